"""What the runs of a sweep will take: a guess from their sizes, set right by what was measured.

The guess is for a processor that reads the whole model for every token. Its figures give the cells
of tests/bench/results/cells_table.txt within a factor of about two. On another machine they are
wrong by some factor, which the first runs show and which then stands for all.
"""

from __future__ import annotations

from collections.abc import Collection

from batch_invariance.invariance_diff.model import Arm
from batch_invariance.invariance_diff.records import Header
from batch_invariance.invariance_diff.request import max_tokens_of

LAUNCH_S = 0.8
LAUNCH_BYTES_PER_S = 400e6
REQUEST_S = 0.003
TOKEN_S = 0.0003
BYTES_PER_S = 8e9
PROMPT_TOKENS_AT_ONCE = 2
"""Prompt tokens that take as long as one generated token."""
CHARACTERS_PER_TOKEN = 4


def guessed_seconds(header: Header, arms: Collection[Arm]) -> float:
    """Seconds for one launch and the passes of `arms`."""
    size = header.subject.model.size
    sampling, items = header.plan.sampling, header.workset.items
    characters = sum(len(m.content) for item in items for m in item.messages)
    generated = sum(max_tokens_of(item, sampling) for item in items)
    tokens = generated + characters / CHARACTERS_PER_TOKEN / PROMPT_TOKENS_AT_ONCE
    per_item = REQUEST_S + tokens / max(1, len(items)) * (TOKEN_S + size / BYTES_PER_S)
    n_requests = sum(plan.n_requests for plan in header.plan.passes if plan.arm in arms)
    return LAUNCH_S + size / LAUNCH_BYTES_PER_S + n_requests * per_item


class Pace:
    """What was measured over what was guessed, by model and in all."""

    def __init__(self) -> None:
        self._by_model: dict[str, tuple[float, float]] = {}

    @property
    def measured(self) -> bool:
        """Whether anything was measured yet."""
        return bool(self._by_model)

    def add(self, model: str, guessed: float, measured: float) -> None:
        """Counts a finished run in; both in seconds."""
        before = self._by_model.get(model, (0.0, 0.0))
        self._by_model[model] = (before[0] + guessed, before[1] + measured)

    def seconds(self, model: str, guessed: float) -> float:
        """The guess for a run of `model`, set right by its own runs, else by those of all."""
        known = self._by_model.get(model)
        pairs = [known] if known is not None else list(self._by_model.values())
        total_guessed = sum(pair[0] for pair in pairs)
        if not total_guessed:
            return guessed
        return guessed * sum(pair[1] for pair in pairs) / total_guessed
