"""The positive control: which change is planted, and the request that carries it.

A ban of the first token of the item's own answer, where the server heeds one. Elsewhere the request
goes out with the prompt of another item, whose answer is known to differ: that too must be seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from batch_invariance.invariance_diff.model import Completion, Item, Trial
from batch_invariance.invariance_diff.packed import unpack_ids
from batch_invariance.invariance_diff.records import ControlPlan
from batch_invariance.invariance_diff.request import Body, Sampling, ban_token, build_body

OK_MODE = "ok"


def planted_body(plan: ControlPlan, items: Sequence[Item], sampling: Sampling) -> Body:
    """The body of the perturbed request."""
    if plan.banned_token is None:
        other = plan.item if plan.other_item is None else plan.other_item
        return build_body(items[other], sampling)
    return build_body(items[plan.item], sampling, ban_token(plan.banned_token, sampling.dialect))


def plan_ban(reference: Mapping[int, Trial]) -> ControlPlan | None:
    """A ban for the first item whose answer has a token, preferring one that the scorer calls a
    real answer; `reference` is arm A by item."""
    fallback = None
    for item, trial in sorted(reference.items()):
        token = _first_token(trial)
        if token is None or trial.scored is None:
            continue
        if trial.scored.failure_mode == OK_MODE:
            return ControlPlan(item, token, 0)
        fallback = fallback or ControlPlan(item, token, 0)
    return fallback


def plan_exchange(reference: Mapping[int, Trial]) -> ControlPlan | None:
    """The first item with the first other one whose answer is another text."""
    texts = {
        item: trial.result.text
        for item, trial in sorted(reference.items())
        if isinstance(trial.result, Completion) and trial.scored is not None
    }
    for item, text in texts.items():
        for other, its_text in texts.items():
            if text != its_text:
                return ControlPlan(item, None, 0, other)
    return None


def _first_token(trial: Trial) -> int | None:
    result = trial.result
    if not isinstance(result, Completion) or not result.token_ids:
        return None
    return unpack_ids(result.token_ids)[0]
