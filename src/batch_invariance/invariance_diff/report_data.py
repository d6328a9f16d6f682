"""What a report shows of one certificate: what it says, whether that is borne out, and the answers
side by side.

A certificate is shown in its colour only where its evidence bears it out. Anything else has the
standing NOT_VERIFIED, whatever it says of itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batch_invariance.errors import EvidenceError
from batch_invariance.invariance_diff.cert_reading import CertView
from batch_invariance.invariance_diff.certificate import Certificate
from batch_invariance.invariance_diff.codec import from_json
from batch_invariance.invariance_diff.facts import ContaminatedTrial
from batch_invariance.invariance_diff.json_fields import MOST
from batch_invariance.invariance_diff.model import Arm, Completion, TrialKey
from batch_invariance.invariance_diff.packed import unpack_floats, unpack_ids
from batch_invariance.invariance_diff.pairs import IdReport, PairReport
from batch_invariance.invariance_diff.report_evidence import RunView
from batch_invariance.invariance_diff.report_words import STANDING_OF, Standing
from batch_invariance.invariance_diff.shared_text import common_length

MAX_MARK = 24
"""The most characters of a word that are marked as the first difference."""


@dataclass(frozen=True, slots=True)
class Detail:
    """How much a report shows of one cell, so that a report of many stays small: divergences side
    by side, ids in a table, passes drawn in full with at most so many requests, bars in the
    timeline, characters around a difference."""

    n_side_by_side: int
    n_listed: int
    n_passes: int
    n_requests: int
    n_bars: int
    n_characters: int


FULL = Detail(6, 60, 2, 64, 1600, 200)


def detail_for(n_cells: int) -> Detail:
    """Everything for a dozen cells; for many so little that 200 of them stay under 5 MB."""
    if n_cells <= 12:
        return FULL
    if n_cells <= 50:
        return Detail(4, 16, 1, 32, 800, 120)
    return Detail(1, 6, 1, 8, 160, 60)


@dataclass(frozen=True, slots=True)
class Marked:
    """A text around a place: what comes before, the marked part, what follows; `more_before` and
    `more_after` say that the text goes on."""

    before: str
    marked: str
    after: str
    more_before: bool
    more_after: bool


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """One of the two tokens at a divergence and its logprob in A and in C, in nats; None where
    that side's alternatives do not list it."""

    token: int
    logprob_a: float | None
    logprob_c: float | None


@dataclass(frozen=True, slots=True)
class SideBySide:
    """One divergence: its entry in the certificate, both texts (None: not in the evidence), and
    the two tokens; `same_text` where tokens differ and the text does not."""

    entry: IdReport
    a: Marked | None
    c: Marked | None
    same_text: bool
    choices: tuple[TokenChoice, ...]


@dataclass(frozen=True, slots=True)
class ForeignText:
    """An answer of arm C that holds another item's text, and that text (None: not in the
    evidence)."""

    trial: ContaminatedTrial
    excerpt: Marked | None


@dataclass(frozen=True, slots=True)
class CellReport:
    """One certificate file. `view` is None where it cannot be read as one, `certificate` where it
    is not of this version in every field; `problems` is empty only where its evidence bears it
    out, and `run` is there only then."""

    file: str
    view: CertView | None
    certificate: Certificate | None
    problems: tuple[str, ...]
    run: RunView | None
    divergences: tuple[SideBySide, ...]
    foreign: tuple[ForeignText, ...]

    @property
    def standing(self) -> Standing:
        """What may be relied on."""
        if self.problems or self.view is None:
            return Standing.NOT_VERIFIED
        return STANDING_OF[self.view.verdict]

    @property
    def safe(self) -> bool:
        """Whether it stands for its cell: live, GREEN, every gate passed, borne out."""
        return self.standing is Standing.GREEN and self.view is not None and self.view.promotable


def certificate_of(cert: Mapping[str, Any]) -> Certificate | None:
    """The certificate's JSON as its own type; None where a field is of another version, of a wrong
    type, or no figure at all."""
    try:
        return from_json(Certificate, dict(cert), "certificate") if _sane(cert) else None
    except (EvidenceError, RecursionError):
        return None


def _sane(value: object) -> bool:
    """Whether every whole number fits a float."""
    if isinstance(value, dict):
        return all(_sane(entry) for entry in value.values())
    if isinstance(value, list):
        return all(_sane(entry) for entry in value)
    return type(value) is not int or abs(value) <= MOST


def shown_divergences(entries: Sequence[IdReport], limit: int) -> Sequence[IdReport]:
    """The first `limit` diverging ids, those with another score first."""
    scored = [entry for entry in entries if entry.n_score_divergent]
    others = [entry for entry in entries if not entry.n_score_divergent]
    return [*scored, *others][:limit]


def wanted_answers(cert: Mapping[str, Any], detail: Detail) -> dict[TrialKey, str | None]:
    """The trials whose answers the report of this certificate shows, for `RunCollector`. None
    where its JSON is not of this version: it is not borne out then."""
    limit = detail.n_side_by_side
    wanted: dict[TrialKey, str | None] = {}
    try:
        items = {row["id"]: i for i, row in enumerate(cert["rows"])}
        pair = from_json(PairReport, cert["divergence_report"]["AC"], "AC")
        foreign = [
            from_json(ContaminatedTrial, v, "foreign") for v in cert["contamination"][:limit]
        ]
    except (EvidenceError, KeyError, TypeError, OverflowError, RecursionError):
        return wanted
    for trial in foreign:
        wanted[_foreign_key(trial, items)] = None
    for entry in shown_divergences(pair.per_id, limit):
        wanted[_key_of(entry)] = entry.first_divergence.content_sha_y
        wanted[TrialKey(Arm.A, 0, entry.item)] = entry.first_divergence.content_sha_x
    return wanted


def cell_report(
    file: str,
    view: CertView | None,
    certificate: Certificate | None,
    problems: tuple[str, ...],
    run: RunView | None,
    detail: Detail,
) -> CellReport:
    """Puts one cell together. `run` is used only where `problems` is empty."""
    run = None if problems else run
    divergences: tuple[SideBySide, ...] = ()
    foreign: tuple[ForeignText, ...] = ()
    if certificate is not None:
        answers = run.answers if run is not None else {}
        pair = certificate.divergence_report.get("AC")
        entries = pair.per_id if pair is not None else ()
        shown = shown_divergences(entries, detail.n_side_by_side)
        divergences = tuple(_side_by_side(entry, answers, detail) for entry in shown)
        items = {row.id: i for i, row in enumerate(certificate.rows)}
        foreign = tuple(
            ForeignText(trial, _excerpt(trial, answers.get(_foreign_key(trial, items)), detail))
            for trial in certificate.contamination[: detail.n_side_by_side]
        )
    return CellReport(file, view, certificate, problems, run, divergences, foreign)


def _key_of(entry: IdReport) -> TrialKey:
    first = entry.first_divergence
    return TrialKey(Arm.C, first.pass_index, entry.item, first.occurrence)


def _side_by_side(
    entry: IdReport, answers: Mapping[TrialKey, Completion], detail: Detail
) -> SideBySide:
    a, c = answers.get(TrialKey(Arm.A, 0, entry.item)), answers.get(_key_of(entry))
    if a is None or c is None:
        return SideBySide(entry, None, None, False, ())
    place = common_length(a.text, c.text)
    return SideBySide(
        entry,
        _around(a.text, place, detail.n_characters),
        _around(c.text, place, detail.n_characters),
        a.text == c.text,
        _choices(entry, a, c),
    )


def _around(text: str, place: int, reach: int) -> Marked:
    """The text around `place`; marked is what is left of the word that begins or goes on there."""
    start, stop = max(0, place - reach), min(len(text), place + reach)
    end = place
    while end < stop and end - place < MAX_MARK and (end == place or not text[end].isspace()):
        end += 1
    return Marked(text[start:place], text[place:end], text[end:stop], start > 0, stop < len(text))


def _foreign_key(trial: ContaminatedTrial, items: Mapping[str, int]) -> TrialKey:
    return TrialKey(Arm.C, trial.pass_index, items.get(trial.id, -1), trial.occurrence)


def _excerpt(trial: ContaminatedTrial, answer: Completion | None, detail: Detail) -> Marked | None:
    if answer is None or not trial.donors:
        return None
    text = f"{answer.reasoning}\n{answer.text}" if answer.reasoning else answer.text
    donor, reach = trial.donors[0], detail.n_characters
    start = max(0, donor.start - reach // 2)
    end = min(donor.start + donor.n_chars, donor.start + 2 * reach)
    stop = min(len(text), end + reach // 2)
    before, marked = text[start : donor.start], text[donor.start : end]
    return Marked(before, marked, text[end:stop], start > 0, stop < len(text))


def _choices(entry: IdReport, a: Completion, c: Completion) -> tuple[TokenChoice, ...]:
    first = entry.first_divergence
    if first.token_index is None:
        return ()
    in_a, in_c = _listed(a, first.token_index), _listed(c, first.token_index)
    tokens = [token for token in (first.token_x, first.token_y) if token is not None]
    return tuple(TokenChoice(t, in_a.get(t), in_c.get(t)) for t in tokens if t in in_a or t in in_c)


def _listed(answer: Completion, index: int) -> dict[int, float]:
    """Token -> logprob of the alternatives at one position."""
    if not (answer.token_ids and answer.top_ids and answer.top_logprobs):
        return {}
    try:
        n = len(unpack_ids(answer.token_ids))
        ids, logprobs = unpack_ids(answer.top_ids), unpack_floats(answer.top_logprobs)
    except EvidenceError:
        return {}
    width = len(ids) // n if n else 0
    row = slice(index * width, (index + 1) * width)
    return dict(zip(ids[row], logprobs[row], strict=False))
