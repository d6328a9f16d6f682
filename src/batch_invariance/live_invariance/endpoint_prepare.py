"""From what the probes found to the header of an endpoint run, and what the run will send."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from batch_invariance.errors import UsageError
from batch_invariance.invariance_diff import rules
from batch_invariance.invariance_diff.model import Arm, Item, Source
from batch_invariance.invariance_diff.plan import FOREIGN_ARMS, plan_listed, plan_passes
from batch_invariance.invariance_diff.records import (
    Cell,
    Header,
    ModelFacts,
    PassPlan,
    Subject,
)
from batch_invariance.invariance_diff.request import max_tokens_of
from batch_invariance.invariance_diff.schedule_file import check_matches
from batch_invariance.invariance_diff.workset import WorkSet
from batch_invariance.live_invariance.endpoint_client import Limits
from batch_invariance.live_invariance.endpoint_probe import PROBES_AT_MOST, Found
from batch_invariance.live_invariance.passes import WARMUP_TOKENS
from batch_invariance.live_invariance.prepare import RunSettings, build_header
from batch_invariance.scorer_api import Scorer

UNKNOWN = "unknown"
UNKNOWN_CTX = 0
CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Amount:
    """The most that a run sends: requests by arm, generated tokens, and tokens of prompts, which
    are guessed from their length."""

    requests: tuple[tuple[str, int], ...]
    generated: int
    prompts: int

    @property
    def n_requests(self) -> int:
        """All requests."""
        return sum(n for _, n in self.requests)


def plan_endpoint(settings: RunSettings, n_items: int) -> tuple[PassPlan, ...]:
    """Arms A and A2, the passes of C, and A3 at the end."""
    n, listed = settings.parallel, settings.schedule
    if listed is None:
        seed = settings.schedule_seed
        plans = plan_passes(n_items, n, settings.passes, seed, FOREIGN_ARMS)
    else:
        check_matches(listed.passes, n_items, n, listed.name)
        plans = plan_listed(n_items, n, listed.passes, FOREIGN_ARMS)
    return tuple(sorted(plans, key=lambda plan: plan.arm is Arm.A3))


def amount_of(settings: RunSettings, items: Sequence[Item], lifetimes: int = 1) -> Amount:
    """What the run may send at most: every divergence confirmed, no request refused; `lifetimes`
    times over."""
    n = settings.parallel
    plans = plan_endpoint(settings, len(items))
    limits = [max_tokens_of(item, settings.sampling) for item in items]
    lengths = [sum(len(m.content) for m in item.messages) for item in items]
    planned = {arm: [p for p in plans if p.arm is arm] for arm in (Arm.A, Arm.A2, Arm.C, Arm.A3)}
    counts = [(arm.value, sum(p.n_requests for p in found)) for arm, found in planned.items()]
    rest = [
        ("confirm", settings.confirm_limit),
        ("control", n),
        ("warm-up", n),
        ("probes", PROBES_AT_MOST),
    ]
    # Passes send the whole set but for a wave that is filled up, the rest its longest items.
    passes = sum(n for _, n in counts) / len(items)
    longest, prompt = max(limits), max(lengths)
    others = settings.confirm_limit + n
    return Amount(
        requests=tuple((name, count * lifetimes) for name, count in (*counts, *rest)),
        generated=lifetimes * (round(passes * sum(limits)) + others * longest + n * WARMUP_TOKENS),
        prompts=lifetimes
        * (round(passes * sum(lengths)) + (others + n) * prompt)
        // CHARACTERS_PER_TOKEN,
    )


def check_amount(amount: Amount, limits: Limits) -> None:
    """Raises UsageError for a plan that cannot stay below the limits."""
    if limits.requests is not None and amount.n_requests > limits.requests:
        raise UsageError(
            f"--max-requests {limits.requests}: the run may need {amount.n_requests}; use fewer "
            "--passes or items, or raise it"
        )
    tokens = amount.generated + amount.prompts
    if limits.tokens is not None and tokens > limits.tokens:
        raise UsageError(
            f"--max-total-tokens {limits.tokens}: the run may need about {tokens}; use fewer "
            "--passes, items or --max-tokens, or raise it"
        )


def endpoint_header(
    model: str, found: Found, settings: RunSettings, workset: WorkSet, scorer: Scorer
) -> Header:
    """The header of a run against the probed server."""
    spoken = replace(settings, sampling=found.sampling)
    cell = Cell(
        model=model,
        ctx=found.identity.n_ctx or UNKNOWN_CTX,
        dispatch_n=settings.parallel,
        kv_type_k=UNKNOWN,
        kv_type_v=UNKNOWN,
        kv_unified=None,
        n_ubatch=rules.ASSUMED_UBATCH,
        server_flags=(),
        environment={},
    )
    endpoint = found.endpoint
    facts = ModelFacts(model, 0, None, UNKNOWN)
    subject = Subject(endpoint.url, None, found.identity.build, facts)
    header = build_header(Source.ENDPOINT, cell, subject, spoken, workset, scorer)
    passes = plan_endpoint(settings, len(workset.items))
    return replace(header, endpoint=endpoint, plan=replace(header.plan, passes=passes))
