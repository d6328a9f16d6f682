"""The evidence codec: records to chained JSON Lines, and back, one line at a time.

Every line is an object with `seq` (0, 1, 2, ...), `prev` (SHA-256 of the line before, without its
newline; 64 zeros on the first) and `kind`. Neither direction holds more than one line.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, NoReturn

from batch_invariance.errors import EvidenceError
from batch_invariance.invariance_diff.codec import from_json, shown, to_json
from batch_invariance.invariance_diff.digest import canonical_json
from batch_invariance.invariance_diff.model import (
    Arm,
    Completion,
    Failure,
    Scored,
    Trial,
    TrialKey,
)
from batch_invariance.invariance_diff.records import (
    ControlPlan,
    DecodeRuns,
    Event,
    Footer,
    GaugeSamples,
    Header,
    LifetimeEnd,
    LifetimeStart,
    PassEnd,
    PassStart,
    Record,
    Resumed,
    ServerSaid,
    SharedArm,
    WaveEnd,
)
from batch_invariance.invariance_diff.rules import EVIDENCE_SCHEMA
from batch_invariance.invariance_diff.strict_json import DECODER

FIRST_PREV = "0" * 64
TRIAL_KIND = "trial"

_KINDS: dict[str, type[Any]] = {
    "header": Header,
    "lifetime_start": LifetimeStart,
    "lifetime_end": LifetimeEnd,
    "pass_start": PassStart,
    "wave_end": WaveEnd,
    "decode_runs": DecodeRuns,
    "gauge_samples": GaugeSamples,
    "server_said": ServerSaid,
    "pass_end": PassEnd,
    "control_plan": ControlPlan,
    "event": Event,
    "resumed": Resumed,
    "shared_arm": SharedArm,
    "footer": Footer,
}
_KIND_OF = {cls: kind for kind, cls in _KINDS.items()}


class EvidenceEncoder:
    """Turns records into lines, keeping the sequence number and the chain.

    To go on with a file, `seq` is the number of its lines and `prev` the SHA-256 of the last.
    """

    def __init__(self, seq: int = 0, prev: str = FIRST_PREV) -> None:
        self._seq = seq
        self._prev = prev

    def encode(self, record: Record) -> bytes:
        """The next line of the file, newline included."""
        if isinstance(record, Trial):
            fields = trial_fields(record)
            fields["kind"] = TRIAL_KIND
        else:
            fields = to_json(record)
            fields["kind"] = _KIND_OF[type(record)]
        fields["seq"], fields["prev"] = self._seq, self._prev
        line = canonical_json(fields)
        self._seq += 1
        self._prev = hashlib.sha256(line).hexdigest()
        return line + b"\n"


class EvidenceReader:
    """Yields the records of an evidence file and checks the chain as it goes.

    After the iteration `sha256` digests the whole file and `n_records` counts its lines. Raises
    EvidenceError with the line number at the first line that does not belong.
    """

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = lines
        self._file = hashlib.sha256()
        self.n_records = 0
        self.last_line_sha256 = FIRST_PREV
        """SHA-256 of the last line read, without its newline."""

    @property
    def sha256(self) -> str:
        """SHA-256 of every byte read so far."""
        return self._file.hexdigest()

    def __iter__(self) -> Iterator[Record]:
        prev = FIRST_PREV
        for raw in self._lines:
            self._file.update(raw)
            if not raw.endswith(b"\n"):
                self._refuse("is cut short: the file ends inside a line")
            line = raw[:-1]
            fields = self._parse(line)
            if fields.pop("seq", None) != self.n_records:
                self._refuse("is out of sequence: a line was removed, repeated or moved")
            if fields.pop("prev", None) != prev:
                self._refuse("breaks the chain: the line before it was changed")
            record = self._decode(fields)
            if (self.n_records == 0) is not isinstance(record, Header):
                self._refuse("the first line, and no other, must be the header")
            prev = self.last_line_sha256 = hashlib.sha256(line).hexdigest()
            self.n_records += 1
            yield record

    def _refuse(self, why: str) -> NoReturn:
        raise EvidenceError("evidence", [f"line {self.n_records + 1}: {why}"])

    def _parse(self, line: bytes) -> dict[str, Any]:
        try:
            fields = DECODER.decode(line.decode("utf-8"))
        except (ValueError, RecursionError):
            self._refuse("is not JSON, or holds a key twice or a number out of range")
        if not isinstance(fields, dict):
            self._refuse("is not an object")
        return fields

    def _decode(self, fields: dict[str, Any]) -> Record:
        kind = fields.pop("kind", None)
        try:
            if kind == TRIAL_KIND:
                return trial_from_fields(fields)
            if not isinstance(kind, str) or kind not in _KINDS:
                self._refuse(f"unknown kind {shown(kind)}")
            schema = fields.get("schema")
            if kind == "header" and schema != EVIDENCE_SCHEMA:
                self._refuse(f"unknown schema {shown(schema)}; this is {EVIDENCE_SCHEMA}")
            record: Record = from_json(_KINDS[kind], fields, kind)
            return record
        except EvidenceError as error:
            if error.issues[0].startswith("line "):
                raise
            self._refuse(error.issues[0])


def trial_fields(trial: Trial) -> dict[str, Any]:
    """A trial as flat JSON fields; see `rules` for which are invariant, volatile, diagnostic."""
    key = trial.key
    fields: dict[str, Any] = {
        "arm": key.arm.value,
        "pass_index": key.pass_index,
        "item": key.item,
        "occurrence": key.occurrence,
        "item_id": trial.item_id,
        "lane": trial.lane,
        "wave": trial.wave,
        "request_sha256": trial.request_sha256,
        "dispatch_ts": trial.dispatch_ts,
        "complete_ts": trial.complete_ts,
        "perturbed": trial.perturbed,
    }
    result = trial.result
    if isinstance(result, Failure):
        fields["failure"] = to_json(result)
        return fields
    if trial.scored is None:
        raise ValueError("a trial with a completion must be scored")
    fields.update(to_json(trial.scored))
    fields.update(to_json(result))
    fields["prompt_tokens_measured"] = fields.pop("prompt_tokens")
    return fields


# Each table has its fields in the order in which `trial_from_fields` takes them.
_STR, _INT, _BOOL = (str, type(None)), (int, type(None)), (bool, type(None))
_COMPLETION_TYPES: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "finish_reason": _STR,
    "reasoning": _STR,
    "tool_calls": _STR,
    "token_ids": _STR,
    "logprobs": _STR,
    "top_ids": _STR,
    "top_logprobs": _STR,
    "prompt_tokens_measured": _INT,
    "completion_tokens": _INT,
    "cache_n": _INT,
    "draft_n": _INT,
    "truncated": _BOOL,
}
_SCORED_TYPES: dict[str, tuple[type, ...]] = {
    "extracted_answer": _STR,
    "expected_answer": _STR,
    "failure_mode": (str,),
    "score": (int, float, type(None)),
    "passed": _BOOL,
}
_KEY_TYPES: dict[str, tuple[type, ...]] = {
    "arm": (str,),
    "pass_index": (int,),
    "item": (int,),
    "occurrence": (int,),
    "item_id": (str,),
    "lane": (int,),
    "wave": _INT,
    "request_sha256": (str,),
    "dispatch_ts": (int, float),
    "complete_ts": (int, float),
    "perturbed": (bool,),
}
_ANSWERED = {**_KEY_TYPES, **_COMPLETION_TYPES, **_SCORED_TYPES}
_LOST = {**_KEY_TYPES, "failure": (dict,)}
_SENT = itemgetter(*_KEY_TYPES)
_COMPLETION = itemgetter(*_COMPLETION_TYPES)
_SCORED = itemgetter(*_SCORED_TYPES)


def trial_from_fields(fields: dict[str, Any]) -> Trial:
    """The inverse of `trial_fields`, written out because a run has many of them.

    Raises EvidenceError for a missing, unknown or wrongly typed field.
    """
    expected = _LOST if "failure" in fields else _ANSWERED
    if fields.keys() != expected.keys():
        odd = min(fields.keys() ^ expected.keys())
        raise EvidenceError("evidence", [f"trial: field {odd!r} is missing or unknown"])
    misfit = _misfit(tuple(fields), tuple(map(type, fields.values())))
    if misfit is not None:
        raise EvidenceError("evidence", [f"trial.{misfit} is of the wrong type"])
    try:
        arm = Arm(fields["arm"])
    except ValueError:
        raise EvidenceError(
            "evidence", [f"trial.arm has no meaning: {shown(fields['arm'])}"]
        ) from None
    result: Completion | Failure
    scored: Scored | None = None
    if "failure" in fields:
        result = from_json(Failure, fields["failure"], "trial.failure")
    else:
        result = Completion(*_COMPLETION(fields))
        scored = Scored(*_SCORED(fields))
    _, pass_index, item, occurrence, item_id, lane, wave, sha, sent, back, perturbed = _SENT(fields)
    key = TrialKey(arm, pass_index, item, occurrence)
    return Trial(key, item_id, lane, wave, sha, sent, back, result, scored, perturbed)


@functools.lru_cache(maxsize=256)
def _misfit(names: tuple[str, ...], types: tuple[type, ...]) -> str | None:
    """The first field of a wrong type, of names that a trial has; None where all fit. Remembered,
    since most trials of a file have fields of the same types."""
    given = dict(zip(names, types, strict=True))
    expected = _LOST if "failure" in given else _ANSWERED
    return next((name for name, fit in expected.items() if given[name] not in fit), None)
