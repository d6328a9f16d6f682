"""A small case that no server had a part in."""

from __future__ import annotations

from dataclasses import replace

from batch_invariance.invariance_diff.attempts import Rate, plan_attempts
from batch_invariance.invariance_diff.case import (
    SCHEMA,
    Case,
    CaseRequest,
    CaseShape,
    DivergenceKind,
    Expected,
    Origin,
    Ran,
    Reference,
    Search,
    Seen,
)
from batch_invariance.invariance_diff.case_judge import Wanted, answer_sha256
from batch_invariance.invariance_diff.model import Item, Message, Source, Trial
from batch_invariance.invariance_diff.records import Cell, Observer
from batch_invariance.invariance_diff.request import Sampling
from batch_invariance.invariance_diff.schedule import DispatchKind
from core_fixtures import SCORER, SUBJECT, a_completion, a_trial

SECRET = "the merger with Initech"
ALONE, OTHER = (5, 6, 7), (5, 9, 7)


def answer(*ids: int) -> Trial:
    """The target's trial with these tokens, else those that it has alone."""
    return a_trial(a_completion(ids or ALONE))


def seen_in(trial: Trial) -> Seen:
    """How it differs from the answer alone, in tokens."""
    seen = Wanted(DivergenceKind.TOKEN).seen(answer(), trial)
    assert seen is not None
    return replace(seen, count=9)


def a_case(**changes: object) -> Case:
    """Two requests on two slots; the target's second token is another in 9 of 10 attempts."""
    requests = (
        _request("secret-1", f"What about {SECRET}?", 0),
        _request("secret-2", f"Sum up {SECRET}.\nTwo lines.", 1),
    )
    expected = Expected(
        DivergenceKind.TOKEN,
        answer_sha256(answer()),
        "one two three",
        "one four",
        (seen_in(answer(*OTHER)),),
    )
    case = Case(
        schema=SCHEMA,
        ts_utc="2026-12-03T00:00:00Z",
        source=Source.LIVE,
        origin=Origin("c.json", "a" * 64, "b" * 64, "secret-2", "co_batching", 4, 4, 900, 128),
        cell=Cell("toy", 512, 4, "f16", "f16", False, 512, (), {"GGML_X": "a b"}),
        subject=SUBJECT,
        ran=Ran("d" * 64, {"libx.so": "e" * 64}, "b1", "f" * 64, ("-c", "1024", "--parallel", "2")),
        observer=Observer("batch-invariance 0", "3.12.0", "Linux 6", "x86_64", "a CPU", 2),
        sampling=Sampling(7, 64, 5),
        scorer=SCORER,
        logit_drift=None,
        reference=Reference.SAME_SERVER,
        shape=CaseShape(DispatchKind.WAVES, 2, requests, 1),
        expected=expected,
        rate=Rate(10, 9),
        rate_is_fresh=True,
        one_slot_agrees=True,
        search=Search(20, 8, 70, 12.5, Rate(10, 10), plan_attempts(11 / 12), None),
    )
    return replace(case, **changes)  # type: ignore[arg-type]


def _request(name: str, text: str, lane: int) -> CaseRequest:
    return CaseRequest(Item(name, (Message("user", text),), max_tokens=8), 0, lane)
