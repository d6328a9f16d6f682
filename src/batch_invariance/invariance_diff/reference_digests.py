"""The serial answers of a run as digests: arm A, where its repeat A2 says the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from batch_invariance.invariance_diff.certificate import Certificate
from batch_invariance.invariance_diff.diff import degenerate, ids_tell_all
from batch_invariance.invariance_diff.digest import digest_of
from batch_invariance.invariance_diff.model import Arm, Completion, Item, Outcome, Trial
from batch_invariance.invariance_diff.onlooker import Onlooker
from batch_invariance.invariance_diff.records import Header, Record

TRUSTED_BY = ("completeness", "isolation", "identity")
"""The gates without which a serial answer is not known to be one of this subject, alone."""


class Gap(str, Enum):
    """Why an item has no digest: A or its repeat was lost or never ran, or the two differ."""

    LOST = "lost"
    UNSTABLE = "unstable"


@dataclass(frozen=True, slots=True)
class AnswerDigests:
    """What one item was answered, alone; SHA-256 in hexadecimal.

    `request_sha256` digests the body without `id_slot`, so prompt and sampling. `text_sha256`
    covers text, finish reason, reasoning, tool calls and the count of tokens; `tokens_sha256` the
    token ids, None where they do not account for the answer; `logprobs_sha256` the logprobs with
    the alternatives, None where there are none, or none that A and A2 share. All are None where
    `gap` says why there is nothing to compare.
    """

    id: str
    request_sha256: str | None
    text_sha256: str | None
    tokens_sha256: str | None
    logprobs_sha256: str | None
    gap: Gap | None = None


class ReferenceCollector(Onlooker):
    """Takes the records of one evidence file in their order and keeps digests of A and A2."""

    def __init__(self) -> None:
        self.header: Header | None = None
        self._answers: dict[tuple[Arm, int], AnswerDigests] = {}

    def feed(self, record: Record) -> None:
        """Takes the next record. Raises EvidenceError for packed data that is none."""
        if isinstance(record, Header):
            self.header = record
        elif isinstance(record, Trial) and record.key.arm in (Arm.A, Arm.A2):
            # A pass that was interrupted runs again whole: its last answer is the one that counts.
            self._answers[record.key.arm, record.key.item] = _digests(record)

    def items(self) -> tuple[AnswerDigests, ...]:
        """One entry for each item of the work-set, in its order."""
        items: Iterable[Item] = () if self.header is None else self.header.workset.items
        return tuple(
            _agreed(item.id, self._answers.get((Arm.A, i)), self._answers.get((Arm.A2, i)))
            for i, item in enumerate(items)
        )


def reference_faults(certificate: Certificate) -> tuple[str, ...]:
    """Why the serial answers of a run are no reference; empty where they are."""
    outcomes: Mapping[str, Outcome] = {row.gate: row.outcome for row in certificate.gates}
    measured = {row.gate: row.measured for row in certificate.gates}
    return tuple(
        f"{gate}: {measured.get(gate, 'there is no such gate')}"
        for gate in TRUSTED_BY
        if outcomes.get(gate) is not Outcome.PASS
    )


def _digests(trial: Trial) -> AnswerDigests:
    result, request = trial.result, trial.request_sha256
    if not isinstance(result, Completion):
        return AnswerDigests(trial.item_id, request, None, None, None, Gap.LOST)
    text = (
        *(result.text, result.finish_reason, result.reasoning, result.tool_calls),
        result.completion_tokens,
    )
    tokens = digest_of(result.token_ids) if ids_tell_all(result) else None
    logprobs = None
    if not degenerate(result.logprobs):
        logprobs = digest_of([result.logprobs, result.top_ids, result.top_logprobs])
    return AnswerDigests(trial.item_id, request, digest_of(text), tokens, logprobs)


def _agreed(name: str, a: AnswerDigests | None, again: AnswerDigests | None) -> AnswerDigests:
    request = None if a is None else a.request_sha256
    gap = None
    if a is None or again is None or Gap.LOST in (a.gap, again.gap):
        gap = Gap.LOST
    elif (a.request_sha256, a.text_sha256, a.tokens_sha256) != (
        *(again.request_sha256, again.text_sha256, again.tokens_sha256),
    ):
        gap = Gap.UNSTABLE
    if a is None or again is None or gap is not None:
        return AnswerDigests(name, request, None, None, None, gap)
    logprobs = a.logprobs_sha256 if a.logprobs_sha256 == again.logprobs_sha256 else None
    return AnswerDigests(name, request, a.text_sha256, a.tokens_sha256, logprobs)
