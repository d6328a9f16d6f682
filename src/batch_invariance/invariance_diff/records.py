"""The records of an evidence file, one dataclass per kind, in the order a run writes them.

`Header`, then per server lifetime `LifetimeStart`, its passes (`PassStart`, trials, a `WaveEnd`
per wave, `DecodeRuns`, `PassEnd`) and `LifetimeEnd`; `Event` wherever something happened; a
`Footer` closes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from batch_invariance.invariance_diff.endpoint import Endpoint
from batch_invariance.invariance_diff.model import Arm, Item, ScorerInfo, Source, Trial
from batch_invariance.invariance_diff.request import Sampling
from batch_invariance.invariance_diff.schedule import DispatchKind, Ordering, PassSchedule


@dataclass(frozen=True, slots=True)
class Cell:
    """What the verdict is about: the model's name, the context per slot, the number of slots N,
    KV types, unified or split KV (None where the build has no flag for it), the tokens of one
    micro-batch, the user's server flags as given, and the variables of the environment that steer
    the engine."""

    model: str
    ctx: int
    dispatch_n: int
    kv_type_k: str
    kv_type_v: str
    kv_unified: bool | None
    n_ubatch: int
    server_flags: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The model file: size in bytes over all parts, digest, and its GGUF header in short; of a
    server of someone else the model's name alone.

    `sha256_from` says whether the digest was computed in this run or found in the cache.
    """

    file: str
    size: int
    sha256: str | None
    sha256_from: str
    architecture: str | None = None
    name: str | None = None
    file_type: str | None = None
    block_count: int | None = None
    context_length: int | None = None
    expert_count: int | None = None
    expert_used_count: int | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """What was tested: the server file that was given, by name and digest, the text with which it
    names its version, and the model. What really ran is in each `LifetimeStart`."""

    server_file: str
    server_sha256: str | None
    server_version: str | None
    model: ModelFacts


@dataclass(frozen=True, slots=True)
class Observer:
    """Who measured: tool version, Python version, system, machine, processor and its count."""

    tool: str
    python: str
    system: str
    machine: str
    processor: str | None
    cpu_count: int | None


@dataclass(frozen=True, slots=True)
class WorkSetRecord:
    """The work-set as run: file name, digest over the items, and the items themselves."""

    name: str
    sha256: str
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class PassPlan:
    """One planned pass. `digest` is None where the order depends on arm A's answer lengths."""

    arm: Arm
    pass_index: int
    kind: DispatchKind
    ordering: Ordering
    n_requests: int
    digest: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What the run set out to do. `logit_drift` arms F4: `bits`, or an epsilon as text. `schedule`
    names the file that arm C's passes come from, `listed` holds them; built-in passes follow from
    `schedule_seed`."""

    sampling: Sampling
    passes: tuple[PassPlan, ...]
    schedule_seed: int
    confirm_limit: int
    logit_drift: str | None
    schedule: str | None = None
    listed: tuple[PassSchedule, ...] = ()


@dataclass(frozen=True, slots=True)
class Header:
    """Line 1: everything that is known before a server starts, or before the first request to one
    of someone else, which `endpoint` then describes."""

    schema: str
    rules_version: int
    source: Source
    ts_utc: str
    cell: Cell
    plan: Plan
    subject: Subject
    observer: Observer
    workset: WorkSetRecord
    scorer: ScorerInfo
    endpoint: Endpoint | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """What a server says of itself; None where it does not say."""

    total_slots: int | None
    n_ctx: int | None
    model: str | None
    build: str | None
    chat_template_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class LifetimeStart:
    """One launch: the slots and the per-slot context asked for, the command line, flags this
    build does not know and that were left out, what the server says of itself, and how it was
    proved to be the child (`key_enforced`: it refuses a wrong key; `socket_owned`: the listening
    socket belongs to the child's process tree). `executable_sha256` and `libraries` are read from
    the running process where the system shows them."""

    index: int
    parallel: int
    n_ctx: int
    argv: tuple[str, ...]
    omitted_flags: tuple[str, ...]
    identity: Identity
    key_enforced: bool
    socket_owned: bool | None
    system_info: str | None
    executable_sha256: str | None
    libraries: Mapping[str, str]
    ts: float


@dataclass(frozen=True, slots=True)
class ExitInfo:
    """How a server ended: exit code or signal, and the end of its log."""

    code: int | None
    signal: int | None
    log_tail: str


@dataclass(frozen=True, slots=True)
class LifetimeEnd:
    """The same identity read again before the stop, and the exit."""

    index: int
    identity: Identity | None
    exit: ExitInfo | None
    ts: float


@dataclass(frozen=True, slots=True)
class Counters:
    """`/metrics` at one moment; None where the counter is absent or no longer exact.
    `cached_total` counts prompt tokens that came from a cache."""

    decode_total: int | None
    predicted_total: int | None
    prompt_total: int | None
    cached_total: int | None = None


@dataclass(frozen=True, slots=True)
class PassStart:
    """A pass begins, in lifetime `lifetime`, along `schedule`."""

    arm: Arm
    pass_index: int
    lifetime: int
    schedule: PassSchedule
    counters: Counters


@dataclass(frozen=True, slots=True)
class WaveEnd:
    """All requests of one wave have been answered; counters before the next is released."""

    arm: Arm
    pass_index: int
    wave: int
    counters: Counters


@dataclass(frozen=True, slots=True)
class SlotSamples:
    """What polling `/slots` saw during a pass: polls answered, and the most slots busy at once.

    `unavailable` says why there are none.
    """

    n_samples: int
    peak_busy: int
    unavailable: str | None = None


@dataclass(frozen=True, slots=True)
class DecodeRuns:
    """Forward passes of an open pass as the server's log names them, in their order.

    Each run is (n, lane, task, prompt tokens, lane, task, prompt tokens, ...): n equal passes in a
    row, with every slot and task that took part in the order of the batch. Prompt tokens are 0
    where the slot generates (one token), -1 where the log does not say how many.
    """

    arm: Arm
    pass_index: int
    runs: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class GaugeSamples:
    """What polling a scheduler's gauge saw during an open pass: for each poll when it was asked
    and answered, the requests running, and those waiting (-1: not told)."""

    arm: Arm
    pass_index: int
    samples: tuple[tuple[float, float, int, int], ...]


@dataclass(frozen=True, slots=True)
class ServerSaid:
    """What a server of someone else says of itself, by the place where it says so; once at the
    start of a lifetime and once at its end."""

    lifetime: int
    at_end: bool
    facts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PassEnd:
    """A pass is over: counters, the slot samples of a concurrent pass, and why the server's log
    was not read to its end (None: it was, and `DecodeRuns` hold all of it)."""

    arm: Arm
    pass_index: int
    counters: Counters
    slots: SlotSamples | None
    log_fault: str | None


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened: `server_died`, `stopped`, `lane_lost`, `confirm_truncated`, ..."""

    what: str
    detail: str
    arm: Arm | None = None
    pass_index: int | None = None


@dataclass(frozen=True, slots=True)
class ControlPlan:
    """Which item carries the planted change and which of A's tokens is banned for it; on a server
    that heeds no ban (`banned_token` None), whose prompt goes out in its place."""

    item: int
    banned_token: int | None
    lane: int
    other_item: int | None = None


@dataclass(frozen=True, slots=True)
class Resumed:
    """An interrupted run goes on. A pass that was open is void and runs again whole; what it had
    got stays in the file. `observer` is who goes on."""

    ts_utc: str
    observer: Observer
    ts: float


COMPLETE = "complete"
"""`Footer.ended` of a run that did all it had planned."""


@dataclass(frozen=True, slots=True)
class Footer:
    """The last line: `ended` is COMPLETE, or why the run stopped before its plan was done."""

    ended: str
    n_trials: int
    ts: float


Record = (
    Header
    | LifetimeStart
    | LifetimeEnd
    | PassStart
    | Trial
    | WaveEnd
    | DecodeRuns
    | GaugeSamples
    | ServerSaid
    | PassEnd
    | ControlPlan
    | Event
    | Resumed
    | Footer
)
