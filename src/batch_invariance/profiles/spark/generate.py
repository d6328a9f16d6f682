"""The work-set of the profile `spark`: one seed and one token counter give one set of bytes.

An item is one family at one fill. Its prompt is a system message and a user message with filler
around the facts, as long as the fill asks for. Every choice comes from the seed, the family, the
fill and the index; only when two items would ask the same does the later one draw again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from batch_invariance.errors import UsageError
from batch_invariance.invariance_diff.model import Item, Message
from batch_invariance.invariance_diff.workset import WorkSet, items_sha256
from batch_invariance.profiles.spark import tasks_code, tasks_text
from batch_invariance.profiles.spark.calibrate import CountTokens, Draft, calibrate
from batch_invariance.profiles.spark.draw import Draw
from batch_invariance.profiles.spark.families import Family
from batch_invariance.profiles.spark.task import WHOLE, Task

DEFAULT_FILLS = (0.05, 0.30, 0.90)
_TASKS: Mapping[Family, Callable[[Draw], Task]] = MappingProxyType(
    {
        Family.A2: tasks_text.recall,
        Family.A4: tasks_text.four_steps,
        Family.B1: tasks_text.three_quantities,
        Family.C1: tasks_code.return_value,
        Family.D1: tasks_text.report,
        Family.E1: tasks_text.pairs,
        Family.E2: tasks_text.json_object,
        Family.E3: tasks_text.tool_call,
        Family.E4: tasks_code.fix_bug,
        Family.E5: tasks_code.caller,
    }
)


@dataclass(frozen=True, slots=True)
class SparkPlan:
    """What to generate.

    `seed`: any whole number. `ctx`: context of one slot, in tokens. `fills`: shares of the
    context that prompts fill, whole percents above 0 and up to 1, each once. `per_family`: items
    of each family at each fill. `max_tokens`: no answer may be longer, in tokens.

    Raises UsageError with everything that is wrong.
    """

    seed: int
    ctx: int
    fills: tuple[float, ...] = DEFAULT_FILLS
    per_family: int = 1
    max_tokens: int = 128

    def __post_init__(self) -> None:
        faults = []
        if self.ctx < 2:
            faults.append(f"ctx {self.ctx} holds no prompt; it is the tokens of one slot")
        if not self.fills:
            faults.append("no fills are given; give at least one, such as 0.05")
        for fill in self.fills:
            if not 0 < fill <= 1 or abs(100 * fill - round(100 * fill)) > 1e-9:
                faults.append(f"fill {fill!r} must be a whole percent of the context, as 0.05 is")
        if not faults and len(set(self.percents)) < len(self.fills):
            faults.append("a fill is given more than once; use per_family for more items")
        if self.per_family < 1:
            faults.append(f"per_family {self.per_family} must be at least 1")
        if not 1 <= self.max_tokens < max(self.ctx, 2):
            faults.append(f"max_tokens {self.max_tokens} must be at least 1 and below ctx")
        if faults:
            raise UsageError("profile spark: " + "; ".join(faults))

    @property
    def percents(self) -> tuple[int, ...]:
        """The fills in whole percents."""
        return tuple(round(100 * fill) for fill in self.fills)


@dataclass(frozen=True, slots=True)
class Calibrated:
    """How long one prompt became.

    `target` and `measured` in tokens. `floor`: the task without filler exceeds the target, so no
    filler was put in and `measured` is its bare length.
    """

    item_id: str
    target: int
    measured: int
    floor: bool


@dataclass(frozen=True, slots=True)
class SparkSet:
    """A work-set with the lengths of its prompts, both in the same order."""

    workset: WorkSet
    calibration: tuple[Calibrated, ...]


@dataclass(frozen=True, slots=True)
class _Place:
    """A draft with what the work-set says of it; `limit`: its `max_tokens`."""

    draft: Draft
    family: Family
    percent: int
    limit: int


def generate(plan: SparkPlan, count: CountTokens) -> SparkSet:
    """Make the work-set of a plan, its prompts measured by `count`.

    `count` is asked about 20 times per item, always in the same order with the same prompts.
    Raises UsageError when a question does not fit the context even without filler, naming each
    family that does not, or when no length within 3 % can be reached (`calibrate`).
    """
    places = _places(plan)
    bare = [count(place.draft.messages()) for place in places]
    _check_fit(places, bare, plan.ctx)
    items, calibration = [], []
    for place, length in zip(places, bare, strict=True):
        ceiling = plan.ctx - place.limit
        target = min((place.percent * plan.ctx + 50) // 100, ceiling)
        fitted = calibrate(place.draft, length, target, ceiling, count)
        item_id = place.draft.item_id
        calibration.append(Calibrated(item_id, target, fitted.measured, fitted.floor))
        items.append(
            Item(
                item_id,
                fitted.messages,
                place.draft.task.expected,
                place.family.value,
                place.percent / 100,
                place.limit,
            )
        )
    workset = WorkSet(f"spark-seed{plan.seed}-ctx{plan.ctx}", tuple(items), items_sha256(items))
    return SparkSet(workset, tuple(calibration))


def _places(plan: SparkPlan) -> list[_Place]:
    """Every item's draft: by family, then fill, then index. No two ask the same."""
    taken: set[tuple[Message, ...]] = set()
    places = []
    for family in Family:
        for percent in plan.percents:
            for index in range(plan.per_family):
                draft = _draft(plan.seed, family, f"f{percent:02}-{index}", taken)
                limit = min(draft.task.max_tokens, plan.max_tokens)
                places.append(_Place(draft, family, percent, limit))
    return places


def _draft(seed: int, family: Family, suffix: str, taken: set[tuple[Message, ...]]) -> Draft:
    """The first draft of an item's own sequence of draws whose question is not taken yet."""
    item_id = f"{family.value}-{suffix}"
    attempt = 0
    while True:
        label = f"spark/1/{seed}/{item_id}/{attempt}"
        task = _TASKS[family](Draw(label))
        spots = Draw(f"{label}/positions")
        positions = tuple(sorted(spots.between(0, WHOLE - 1) for _ in task.facts))
        draft = Draft(item_id, task, positions, f"{label}/filler")
        bare = draft.messages()
        if bare not in taken:
            taken.add(bare)
            return draft
        attempt += 1


def _check_fit(places: list[_Place], bare: list[int], ctx: int) -> None:
    """Refuse a plan in which a question with its answer is longer than the context."""
    needs: dict[Family, int] = {}
    for place, length in zip(places, bare, strict=True):
        need = length + place.limit
        if need > ctx:
            needs[place.family] = max(need, needs.get(place.family, 0))
    if needs:
        listed = ", ".join(f"{family.value} ({need})" for family, need in needs.items())
        raise UsageError(
            f"profile spark: with no filler at all these families need more than ctx {ctx} tokens "
            f"for a question and its answer: {listed}. Raise ctx to {max(needs.values())} or more"
        )
