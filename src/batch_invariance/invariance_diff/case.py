"""A case: the few requests that show one divergence, and all that is needed to send them again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from batch_invariance.errors import CaseError, EvidenceError, ScheduleError
from batch_invariance.invariance_diff.attempts import AttemptPlan, Rate
from batch_invariance.invariance_diff.codec import from_json, shown, to_json
from batch_invariance.invariance_diff.endpoint import Endpoint
from batch_invariance.invariance_diff.model import Item, ScorerInfo, Source
from batch_invariance.invariance_diff.records import Cell, Observer, Subject
from batch_invariance.invariance_diff.request import Sampling
from batch_invariance.invariance_diff.schedule import DispatchKind, PassSchedule, check_schedule
from batch_invariance.invariance_diff.strict_json import parse_json

SCHEMA = "case/1"
ENDPOINT_SCHEMA = "endpoint-case/1"
"""Of a case whose server somebody else runs: the fields of the other and `endpoint`."""
MOST_COUNTED = 1_000_000


class DivergenceKind(str, Enum):
    """What of the target's answer differs: the scored answer, anything that was generated, or
    logprobs on tokens that agree."""

    SCORE = "score"
    TOKEN = "token"
    LOGPROB = "logprob"


class Reference(str, Enum):
    """What the target's answer under load is held against: its answer alone on the same server and
    slot, or its answer on a server of one slot, where slots alone change it."""

    SAME_SERVER = "same_server"
    ONE_SLOT = "one_slot"


class Redaction(str, Enum):
    """What became of the prompts: `none`; `filler`, replaced by words of equal token count that
    still show it; `removed`, which cannot be sent again."""

    NONE = "none"
    FILLER = "filler"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class CaseRequest:
    """One request: the prompt with its own `max_tokens`, its wave (requests of one wave are
    released together; of a saturated schedule there is only wave 0), the slot it pins (None: the
    first free one), and its delay after the release."""

    item: Item
    wave: int
    lane: int | None
    delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class CaseShape:
    """What is sent: requests in order of dispatch, to a server of `lanes` slots. `target` is the
    index of the one whose answer differs."""

    kind: DispatchKind
    lanes: int
    requests: tuple[CaseRequest, ...]
    target: int

    @property
    def subject(self) -> CaseRequest:
        """The target's request."""
        return self.requests[self.target]

    @property
    def companions(self) -> tuple[int, ...]:
        """The indexes of all other requests."""
        return tuple(i for i in range(len(self.requests)) if i != self.target)

    @property
    def items(self) -> tuple[Item, ...]:
        """The requests' items; a schedule's item index is the request's index."""
        return tuple(request.item for request in self.requests)

    @property
    def names(self) -> tuple[str, ...]:
        """What the requests are called in the case's files: `target`, `companion-1` and so on."""
        numbers = {index: number for number, index in enumerate(self.companions, 1)}
        indexes = range(len(self.requests))
        return tuple(f"companion-{numbers[i]}" if i in numbers else "target" for i in indexes)

    def schedule(self) -> PassSchedule:
        """The requests as the dispatcher takes them."""
        waves: dict[int, list[int]] = {}
        for i, request in enumerate(self.requests):
            waves.setdefault(request.wave, []).append(i)
        groups = tuple(tuple(group) for _, group in sorted(waves.items()))
        order = [i for group in groups for i in group]
        lanes = [self.requests[i].lane for i in order]
        pinned = tuple(lane for lane in lanes if lane is not None)
        delays = tuple(self.requests[i].delay_ms for i in order)
        return PassSchedule(
            self.kind,
            self.lanes,
            groups,
            None if self.kind is DispatchKind.SATURATE else pinned,
            delays if any(delays) else None,
        )

    def only(self, keep: tuple[int, ...]) -> CaseShape:
        """The shape with the companions of `keep` alone."""
        kept = [i for i in range(len(self.requests)) if i == self.target or i in keep]
        requests = tuple(self.requests[i] for i in kept)
        return replace(self, requests=requests, target=kept.index(self.target))

    def with_item(self, index: int, item: Item) -> CaseShape:
        """The shape with another item in one request."""
        changed = replace(self.requests[index], item=item)
        return replace(
            self, requests=(*self.requests[:index], changed, *self.requests[index + 1 :])
        )


@dataclass(frozen=True, slots=True)
class Seen:
    """One way in which the target's answer was another, and in how many attempts.

    `token_index`: where the tokens part (the first position whose logprobs moved, for logprobs
    alone), None where they agree or are not known. `margin`: of the answer alone there, in nats.
    `fields`: what differs.
    """

    token_index: int | None
    token_alone: int | None
    token_here: int | None
    margin: float | None
    fields: tuple[str, ...]
    count: int = 1

    def same_as(self, other: Seen) -> bool:
        """The same parting: index, tokens and fields."""
        return (self.token_index, self.token_alone, self.token_here, self.fields) == (
            other.token_index,
            other.token_alone,
            other.token_here,
            other.fields,
        )


@dataclass(frozen=True, slots=True)
class Expected:
    """What a run of the case shows: the kind, the digest and the text of the answer alone, the
    ways in which it differs, the most common first, and the text of that one."""

    kind: DivergenceKind
    alone_sha256: str
    alone_text: str | None
    other_text: str | None
    seen: tuple[Seen, ...]


@dataclass(frozen=True, slots=True)
class Ran:
    """What ran, as the process itself shows it: digests of the executable and its libraries, what
    the server says of its build and template, and its command line without paths, address, keys
    and log flags."""

    executable_sha256: str | None
    libraries: Mapping[str, str]
    build: str | None
    chat_template_sha256: str | None
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the case comes from: certificate file, digest of its evidence, digest of its cell, the
    diverging id, the certificate's class of divergence, and what the start sent."""

    certificate: str
    evidence_sha256: str
    cell_sha256: str
    item_id: str
    divergence_class: str | None
    start_lanes: int
    start_requests: int
    start_characters: int
    start_tokens: int


@dataclass(frozen=True, slots=True)
class Search:
    """How it was made small: candidates tried, attempts and seconds that took, the rate of the
    start, how many candidates were kept, what each was tried by, and why it ended early (None:
    nothing smaller was left to try)."""

    n_candidates: int
    n_kept: int
    n_attempts: int
    seconds: float
    start: Rate
    plan: AttemptPlan
    ended_early: str | None


@dataclass(frozen=True, slots=True)
class Case:
    """`case.json`. `cell` is that of the certificate; the case's own number of slots is in `shape`.

    `rate`: of the case itself; `rate_is_fresh`: measured once the search was over, on a server
    launched for it where servers are launched, else it is that of the search's attempts at it.
    `one_slot_agrees`: whether a server of one slot gives the target the answer that it gets alone
    on the case's server; None where it was not asked. `scorer` says what judged a divergence of the
    score. `endpoint`: the server where somebody else runs it, as it spoke of itself last; a slot is
    then a request in flight. None where the server was launched for the case.
    """

    schema: str
    ts_utc: str
    source: Source
    origin: Origin
    cell: Cell
    subject: Subject
    ran: Ran
    observer: Observer
    sampling: Sampling
    scorer: ScorerInfo
    logit_drift: str | None
    reference: Reference
    shape: CaseShape
    expected: Expected
    rate: Rate
    rate_is_fresh: bool
    one_slot_agrees: bool | None
    search: Search
    redaction: Redaction = Redaction.NONE
    endpoint: Endpoint | None = None

    def to_bytes(self) -> bytes:
        """The file's bytes: two spaces, ASCII, one newline at the end; `endpoint` where there is
        one."""
        document = to_json(self)
        if self.endpoint is None:
            del document["endpoint"]
        return json.dumps(document, indent=2, allow_nan=False).encode("ascii") + b"\n"


def parse_case(data: bytes, name: str) -> Case:
    """Reads a case from the bytes of a file called `name`.

    Raises CaseError with what is wrong: no JSON, another schema, a field that is missing, unknown
    or of another type, a schedule that cannot be run.
    """
    what = f"case {name if name.isprintable() else ascii(name)}"
    try:
        document = parse_json(data)
    except ValueError as error:
        raise CaseError(what, [f"is not JSON in UTF-8 that all read alike: {error}"]) from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema not in (SCHEMA, ENDPOINT_SCHEMA):
        known = f"{SCHEMA} and {ENDPOINT_SCHEMA}"
        raise CaseError(what, [f"its schema is {shown(schema)}, this reads {known}"])
    try:
        case = from_json(Case, document, "case")
    except EvidenceError as error:
        raise CaseError(what, list(error.issues)) from None
    issues = [*_shape_faults(case.shape, what), *_figure_faults(case)]
    if issues:
        raise CaseError(what, issues)
    return case


def _figure_faults(case: Case) -> Iterator[str]:
    """What no search can have written."""
    for name, rate in (("rate", case.rate), ("search.start", case.search.start)):
        if not 0 <= rate.shown <= rate.n - rate.lost <= rate.n <= MOST_COUNTED:
            yield f"{name} counts what cannot be"
    try:
        drift = case.logit_drift in (None, "bits") or float(case.logit_drift or "") >= 0.0
    except ValueError:
        drift = False
    if not drift:
        yield "logit_drift is neither bits nor an epsilon"
    own = case.endpoint is None
    if case.sampling.top_logprobs < 1 or (case.sampling.dialect is None) is not own:
        yield f"sampling is not that of {'a server of our own' if own else 'an endpoint'}"
    if (case.schema == SCHEMA) is not own or (case.source is Source.ENDPOINT) is own:
        yield "schema, source and endpoint do not belong together"
    if not own and case.reference is not Reference.SAME_SERVER:
        yield "reference is none that an endpoint has"


def _shape_faults(shape: CaseShape, what: str) -> Iterator[str]:
    if not 0 <= shape.target < len(shape.requests):
        yield "shape.target names no request"
        return
    for i, request in enumerate(shape.requests):
        if not request.item.messages:
            yield f"shape.requests[{i}] has no message"
        if (request.item.max_tokens or 0) < 1:
            yield f"shape.requests[{i}] asks for no token"
        if not 0 <= request.wave < len(shape.requests):
            yield f"shape.requests[{i}].wave is not one of so few requests"
        if (request.lane is None) is not (shape.kind is DispatchKind.SATURATE):
            yield f"shape.requests[{i}].lane does not fit a schedule of kind {shape.kind.value}"
    try:
        check_schedule(shape.schedule(), len(shape.requests), what)
    except ScheduleError as error:
        yield from error.issues
