"""How many slots fit: footprints over N for a context, the largest N, and the limit that binds.

Pure: the guard arrives as a function, so that a plan and a run refuse by the same rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from batch_invariance.invariance_diff.budget import Footprint, ModelShape, project
from batch_invariance.invariance_diff.kv_cache import ServerSettings
from batch_invariance.invariance_diff.rules import MAX_SLOTS


class Limit(Enum):
    """What keeps N from being larger.

    `MEMORY`: what is available less what must remain. `FOOTPRINT`: the cap. `BATCH`: a micro-batch
    holds no more requests. `SLOTS`: llama.cpp's limit on sequences. `MAX_N`: what was asked.
    """

    MEMORY = "memory"
    FOOTPRINT = "footprint"
    BATCH = "batch"
    SLOTS = "slots"
    MAX_N = "max_n"


Guard = Callable[[int], "Limit | None"]
"""From the bytes of a footprint to the limit that it breaks; None where it breaks none."""


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One N: its footprint, and the limit that it breaks (None: it fits)."""

    n: int
    footprint: Footprint
    broken: Limit | None


@dataclass(frozen=True, slots=True)
class ContextPlan:
    """One context of `ctx` tokens per slot.

    `rows` are the powers of two up to the most that was looked at, the largest N that fits and the
    next one that does not. `largest` is 0 where even one slot does not fit. `binding` is what keeps
    it from being larger.
    """

    ctx: int
    rows: tuple[PlanRow, ...]
    largest: int
    binding: Limit

    def row(self, n: int) -> PlanRow | None:
        """The row of `n`, where it was looked at."""
        return next((row for row in self.rows if row.n == n), None)


def plan_contexts(
    shape: ModelShape,
    contexts: Sequence[int],
    settings: ServerSettings,
    max_n: int,
    guard: Guard,
) -> tuple[ContextPlan, ...]:
    """The plan of every context, in the order given. Raises UsageError as `project` does."""
    most, ceiling = slot_ceiling(settings, max_n)
    plans = []
    for ctx in contexts:
        footprints = [project(shape, ctx, n, settings) for n in range(1, most + 1)]
        broken = [guard(footprint.total_bytes) for footprint in footprints]
        largest = max((n for n in range(1, most + 1) if broken[n - 1] is None), default=0)
        shown = {1, largest, min(largest + 1, most), *_powers_of_two(most)} - {0}
        rows = tuple(PlanRow(n, footprints[n - 1], broken[n - 1]) for n in sorted(shown))
        binding = ceiling if largest == most else broken[largest]
        plans.append(ContextPlan(ctx, rows, largest, binding or ceiling))
    return tuple(plans)


def slot_ceiling(settings: ServerSettings, max_n: int) -> tuple[int, Limit]:
    """The most slots that memory is not asked about, and what sets that figure."""
    batch = min(settings.batch_tokens, settings.ubatch_tokens or settings.batch_tokens)
    limits = [(MAX_SLOTS, Limit.SLOTS), (batch, Limit.BATCH), (max_n, Limit.MAX_N)]
    return min(limits, key=lambda limit: limit[0])


def _powers_of_two(most: int) -> list[int]:
    return [1 << bit for bit in range(most.bit_length()) if 1 << bit <= most]
