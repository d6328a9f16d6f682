"""What a work-set holds and what a run with it could show at best.

Lengths are tokens where the server has counted them, else bytes: a token is at least one byte of
text, so bytes bound the tokens of the text from above. The chat template comes on top of bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from batch_invariance.invariance_diff import rules
from batch_invariance.invariance_diff.model import Item
from batch_invariance.invariance_diff.plan import shortfalls
from batch_invariance.invariance_diff.request import Sampling, max_tokens_of
from batch_invariance.invariance_diff.stats import exact_zero_bound, rule_of_three

FEW_BOUND = 0.1
"""A bound above this is said to be weak."""
AIM_BOUND = 0.05
_FIRST_EDGE = 16


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The run that a set is looked at for: slots, passes of C, sampling, context per slot in
    tokens (None: not said), and the physical batch in tokens."""

    parallel: int
    passes: int
    sampling: Sampling
    ctx: int | None
    n_ubatch: int


@dataclass(frozen=True, slots=True)
class Group:
    """How many items share a family or a fill, and how many of them have an expected answer."""

    name: str | None
    n_items: int
    n_scored: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """Items whose length is at least `low` and below `high`."""

    low: int
    high: int
    n_items: int


@dataclass(frozen=True, slots=True)
class BoundaryUse:
    """How the prompts lie about a boundary of `tokens`, from `rules.LENGTH_BOUNDARIES` or n_ubatch.

    `below` and `at_or_above` count all prompts; `just_below`, `exactly` and `just_above` those of
    one token less, as many, one more. `while_generating` counts those that start below and may
    reach it with the tokens they generate.
    """

    tokens: int
    below: int
    at_or_above: int
    just_below: int
    exactly: int
    just_above: int
    while_generating: int

    @property
    def crossed(self) -> bool:
        """Prompts lie on both sides."""
        return self.below > 0 and self.at_or_above > 0

    @property
    def straddled(self) -> bool:
        """Prompts of one token less, of as many and of one more: some code changes at the
        boundary, such as a tile that is full, some after it, such as a batch that is."""
        return min(self.just_below, self.exactly, self.just_above) > 0


@dataclass(frozen=True, slots=True)
class TogetherUse:
    """The tokens of N prompts that arrive together, smallest and largest, against `n_ubatch`."""

    n_ubatch: int
    least: int
    most: int

    @property
    def crossed(self) -> bool:
        """Some N prompts fit one physical batch and some N do not."""
        return self.least <= self.n_ubatch < self.most


@dataclass(frozen=True, slots=True)
class Profile:
    """A work-set looked at for one run.

    `lengths` are per item, in tokens if `in_tokens`, else bytes. `boundaries` and `together` need
    tokens and are empty and None without. The bounds are those after a run without a divergence:
    `prompt_bound` over distinct prompts, exact; `prompt_rule_of_three` over the same;
    `trial_rule_of_three` over all trials of C, which are not independent. `too_long` names items
    that do not fit the context.
    """

    n_items: int
    n_distinct: int
    n_scored: int
    families: tuple[Group, ...]
    fills: tuple[Group, ...]
    in_tokens: bool
    lengths: tuple[int, ...]
    histogram: tuple[Bucket, ...]
    boundaries: tuple[BoundaryUse, ...]
    together: TogetherUse | None
    too_long: tuple[str, ...]
    prompt_bound: float | None
    prompt_rule_of_three: float | None
    trial_rule_of_three: float | None
    shortfalls: tuple[str, ...]
    warnings: tuple[str, ...]


def profile_workset(items: Sequence[Item], tokens: Sequence[int] | None, plan: RunPlan) -> Profile:
    """Looks at `items`, whose prompts have so many `tokens` each, or None where nobody counted."""
    lengths = tuple(tokens) if tokens is not None else tuple(map(prompt_bytes, items))
    limits = [max_tokens_of(item, plan.sampling) for item in items]
    n_distinct = len({item.messages for item in items})
    boundaries: tuple[BoundaryUse, ...] = ()
    if tokens is not None:
        wanted = sorted({*rules.LENGTH_BOUNDARIES, plan.n_ubatch})
        boundaries = tuple(_boundary(b, lengths, limits) for b in wanted)
    together = _together(lengths, plan) if tokens is not None else None
    histogram = _histogram(lengths)
    return Profile(
        n_items=len(items),
        n_distinct=n_distinct,
        n_scored=_scored(items),
        families=_groups([(item.family, item) for item in items]),
        fills=_groups([(None if i.fill is None else f"{i.fill:g}", i) for i in items]),
        in_tokens=tokens is not None,
        lengths=lengths,
        histogram=histogram,
        boundaries=boundaries,
        together=together,
        too_long=_too_long(items, lengths, limits, plan.ctx) if tokens is not None else (),
        prompt_bound=exact_zero_bound(n_distinct, rules.CONFIDENCE),
        prompt_rule_of_three=rule_of_three(n_distinct),
        trial_rule_of_three=rule_of_three(len(items) * plan.passes),
        shortfalls=shortfalls(items, plan.parallel, plan.passes, plan.sampling),
        warnings=(
            *_size_warnings(items, n_distinct, limits),
            *_length_warnings(lengths, histogram, boundaries),
            *_together_warnings(together, plan),
        ),
    )


def prompt_bytes(item: Item) -> int:
    """UTF-8 bytes of an item's messages, without any template."""
    return sum(len(message.content.encode("utf-8", "surrogatepass")) for message in item.messages)


def prompts_for_bound(bound: float, confidence: float) -> int:
    """The fewest distinct prompts after which no divergence bounds the rate by `bound`."""
    n = 1
    while (exact_zero_bound(n, confidence) or 0.0) > bound:
        n += 1
    return n


def _scored(items: Sequence[Item]) -> int:
    return sum(item.expected_answer is not None for item in items)


def _groups(named: Sequence[tuple[str | None, Item]]) -> tuple[Group, ...]:
    counts = Counter(name for name, _ in named)
    scored = Counter(name for name, item in named if item.expected_answer is not None)
    order = sorted(counts, key=lambda name: (name is None, name or ""))
    return tuple(Group(name, counts[name], scored[name]) for name in order)


def _histogram(lengths: Sequence[int]) -> tuple[Bucket, ...]:
    """Buckets that double in width, the engine's boundaries among their edges; none is left out
    between the first and the last that hold an item."""
    edges = [0, _FIRST_EDGE]
    while edges[-1] <= max(lengths):
        edges.append(2 * edges[-1])
    buckets = [
        Bucket(low, high, sum(low <= length < high for length in lengths))
        for low, high in pairwise(edges)
    ]
    held = [index for index, bucket in enumerate(buckets) if bucket.n_items]
    return tuple(buckets[held[0] : held[-1] + 1])


def _boundary(tokens: int, lengths: Sequence[int], limits: Sequence[int]) -> BoundaryUse:
    counts = Counter(lengths)
    below = sum(length < tokens for length in lengths)
    return BoundaryUse(
        tokens=tokens,
        below=below,
        at_or_above=len(lengths) - below,
        just_below=counts[tokens - 1],
        exactly=counts[tokens],
        just_above=counts[tokens + 1],
        while_generating=sum(
            length < tokens <= length + limit for length, limit in zip(lengths, limits, strict=True)
        ),
    )


def _together(lengths: Sequence[int], plan: RunPlan) -> TogetherUse:
    """The extremes over N prompts; a set of fewer goes round again, as a short wave does."""
    rounds = -(-plan.parallel // len(lengths))
    ordered = sorted(list(lengths) * rounds) if rounds > 1 else sorted(lengths)
    n = plan.parallel
    return TogetherUse(plan.n_ubatch, sum(ordered[:n]), sum(ordered[-n:]))


def _too_long(
    items: Sequence[Item], lengths: Sequence[int], limits: Sequence[int], ctx: int | None
) -> tuple[str, ...]:
    if ctx is None:
        return ()
    return tuple(
        item.id
        for item, length, limit in zip(items, lengths, limits, strict=True)
        if length + limit > ctx
    )


def _size_warnings(items: Sequence[Item], n_distinct: int, limits: Sequence[int]) -> list[str]:
    found = []
    bound = exact_zero_bound(n_distinct, rules.CONFIDENCE)
    if bound is not None and bound > FEW_BOUND:
        enough = prompts_for_bound(AIM_BOUND, rules.CONFIDENCE)
        found.append(
            f"few prompts: without a single divergence up to {bound:.1%} of such prompts may still "
            f"diverge; {enough} distinct prompts bring that to {AIM_BOUND:.0%}"
        )
    if n_distinct < len(items):
        found.append(f"{len(items) - n_distinct} items repeat another's prompt and add no bound")
    if not _scored(items):
        found.append("no item has an expected answer: runs compare texts, no scores")
    single = sum(limit == 1 for limit in limits)
    if single:
        found.append(
            f"{single} items generate one token: the decode log proves that they shared a pass, "
            "the counter seldom does"
        )
    return found


def _length_warnings(
    lengths: Sequence[int], histogram: Sequence[Bucket], boundaries: Sequence[BoundaryUse]
) -> list[str]:
    found = []
    if len(histogram) == 1:
        unit = "tokens" if boundaries else "bytes"
        low, high = min(lengths), max(lengths)
        span = f"{low}" if low == high else f"{low} to {high}"
        found.append(f"uniform: every prompt has {span} {unit}")
    unmet = [b.tokens for b in boundaries if not b.crossed and not b.while_generating]
    if unmet:
        listed = ", ".join(map(str, unmet))
        found.append(f"not exercised: no prompt meets the boundary of {listed} tokens")
    return found


def _together_warnings(together: TogetherUse | None, plan: RunPlan) -> list[str]:
    if together is None or together.crossed:
        return []
    side = "fit" if together.most <= together.n_ubatch else "exceed"
    return [
        f"any {plan.parallel} prompts together {side} n_ubatch {together.n_ubatch}: the other way "
        "of batching prompts is not exercised"
    ]
