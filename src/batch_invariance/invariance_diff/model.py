"""The vocabulary: the value types that every other module speaks in.

Units: every time is in seconds on one monotonic clock, every length in tokens unless it says
otherwise. Nothing here opens a file, a socket or a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

MAX_MAGNITUDE = 1e100
"""Of a recorded score or time; sums and ratios of such numbers are finite."""


class Arm(str, Enum):
    """Which part of a run a trial belongs to.

    `A` and its repeat `A2`: one slot, serial. `B`: N slots, serial. `C`: N slots, concurrent.
    `A3`: serial once more at the end, on a server of someone else. `P`: the positive control.
    `CONFIRM`: divergent items once more, serially, on the lane where they diverged. `WARMUP`:
    recorded and compared with nothing.
    """

    A = "A"
    A2 = "A2"
    A3 = "A3"
    B = "B"
    C = "C"
    P = "P"
    CONFIRM = "confirm"
    WARMUP = "warmup"


class Source(str, Enum):
    """What was run. It comes from the run itself; no caller can choose it."""

    LIVE = "live"
    CANARY = "canary"
    MOCK = "mock"
    ENDPOINT = "endpoint"


class Verdict(str, Enum):
    """The colour of a cell, from best to worst: GREEN, AMBER, UNVERIFIED, RED."""

    GREEN = "GREEN"
    AMBER = "AMBER"
    UNVERIFIED = "UNVERIFIED"
    RED = "RED"


class Status(str, Enum):
    """The verdict as the certificate's `status` spells it."""

    GREEN = "green"
    GREEN_WITH_CAVEAT = "green_with_caveat"
    GREEN_UNVERIFIED = "green_unverified"
    FAILED = "failed"


class Outcome(str, Enum):
    """What became of one gate."""

    PASS = "PASS"
    FAIL = "FAIL"
    UNKNOWN = "UNKNOWN"
    NOT_APPLICABLE = "NOT_APPLICABLE"


class FailureKind(str, Enum):
    """Why a trial was lost."""

    HTTP_ERROR = "http_error"
    ERROR_OBJECT = "error_object"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    TRUNCATED_BODY = "truncated_body"
    OVERSIZED_BODY = "oversized_body"
    BAD_JSON = "bad_json"
    BAD_SHAPE = "bad_shape"
    SERVER_DIED = "server_died"
    NOT_SENT = "not_sent"


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message: `role` (system, user, assistant, tool) and plain-text `content`."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Item:
    """One prompt of a work-set.

    `id`: the user's, or one derived from the content. `messages`: the chat as sent.
    `expected_answer`: None when the item is not scored against an answer. `family` and `fill`
    (share of the context, 0 to 1) only group the report. `max_tokens`: None takes the run's.
    """

    id: str
    messages: tuple[Message, ...]
    expected_answer: str | None = None
    family: str | None = None
    fill: float | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """What came back for one request.

    Token data stays packed and base64-encoded, as the evidence stores it, because equal strings
    are equal bytes: `token_ids` is little-endian int32 (n), `logprobs` little-endian float32 (n),
    `top_ids` int32 (n*k) and `top_logprobs` float32 (n*k), row by row; None where the server
    gave none. `prompt_tokens`, `completion_tokens`, `cache_n` and `draft_n` are the response's own
    counts, None where absent. `truncated`: generation stopped at the context's end rather than at
    `max_tokens`. `tool_calls`: canonical JSON without the random call ids.
    """

    text: str
    finish_reason: str | None = None
    reasoning: str | None = None
    tool_calls: str | None = None
    token_ids: str | None = None
    logprobs: str | None = None
    top_ids: str | None = None
    top_logprobs: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cache_n: int | None = None
    draft_n: int | None = None
    truncated: bool | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A lost trial: its kind, the HTTP status where there was one, and a short detail."""

    kind: FailureKind
    detail: str
    http_status: int | None = None


@dataclass(frozen=True, slots=True)
class Scored:
    """A completion as the scorer sees it; the first five are invariant fields of gate F0."""

    extracted_answer: str | None
    expected_answer: str | None
    failure_mode: str
    score: float | None
    passed: bool | None


@dataclass(frozen=True, slots=True)
class ScorerInfo:
    """Which scorer was used: its name, its parameters, and a hex digest of both and its source."""

    name: str
    sha256: str
    params: Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True, slots=True)
class TrialKey:
    """What a trial is, apart from what came back.

    `item` is the index in the work-set, `index` of the pass counts from 0, `occurrence` counts the
    times this item has gone out in this pass.
    """

    arm: Arm
    pass_index: int
    item: int
    occurrence: int = 0


@dataclass(frozen=True, slots=True)
class Trial:
    """One request and what came back.

    `lane` is the pinned slot, `wave` the wave's index in its pass (None in serial and saturated
    passes). `request_sha256` digests the body without `id_slot`. `perturbed` marks the planted
    change of the positive control. `scored` is None exactly when `result` is a `Failure`.
    """

    key: TrialKey
    item_id: str
    lane: int
    wave: int | None
    request_sha256: str
    dispatch_ts: float
    complete_ts: float
    result: Completion | Failure
    scored: Scored | None
    perturbed: bool = False
