"""How many requests and tokens attempts at a case may come to, told before they are sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from batch_invariance.errors import UsageError
from batch_invariance.invariance_diff.attempts import MOST_ATTEMPTS, plan_attempts
from batch_invariance.invariance_diff.case import CaseShape
from batch_invariance.invariance_diff.request import Sampling, build_body
from batch_invariance.live_invariance.case_bench import ALONE_TIMES
from batch_invariance.live_invariance.endpoint_client import Limits, most_tokens
from batch_invariance.live_invariance.endpoint_prepare import Amount
from batch_invariance.live_invariance.endpoint_probe import QUESTION
from batch_invariance.live_invariance.minimise import FALLBACKS, SearchLimits

MEASURED_ALONE = ALONE_TIMES + 1
"""How often a measurement asks the target alone: before the attempts, and once after them."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The most that goes out: requests, generated tokens, and tokens of prompts, which are guessed
    from the size of their requests."""

    requests: int
    generated: int
    prompts: int

    def times(self, n: int) -> Sent:
        """So often."""
        return Sent(n * self.requests, n * self.generated, n * self.prompts)

    def exceeds(self, limits: Limits) -> str | None:
        """Which limit this goes beyond, as the option and what is needed; None for neither."""
        tokens = self.generated + self.prompts
        if limits.requests is not None and self.requests > limits.requests:
            return f"--max-requests: {limits.requests} are left, {self.requests} may be needed"
        if limits.tokens is not None and tokens > limits.tokens:
            return f"--max-total-tokens: {limits.tokens} are left, about {tokens} may be needed"
        return None


GREETING = Sent(1, QUESTION.max_tokens or 1, 64)
"""The one short question before the first attempt, whose parameters make up most of its size."""


def total(parts: Sequence[Sent]) -> Sent:
    """All of them together."""
    return Sent(
        sum(part.requests for part in parts),
        sum(part.generated for part in parts),
        sum(part.prompts for part in parts),
    )


def attempts_at(shape: CaseShape, sampling: Sampling, n: int, alone: int = ALONE_TIMES) -> Sent:
    """`n` attempts at a shape, its target asked alone so often."""
    limits = [item.max_tokens or sampling.max_tokens for item in shape.items]
    sizes = [most_tokens(build_body(item, sampling).data) for item in shape.items]
    prompts = [size - limit for size, limit in zip(sizes, limits, strict=True)]
    target = shape.target
    return Sent(
        n * len(limits) + alone,
        n * sum(limits) + alone * limits[target],
        n * sum(prompts) + alone * prompts[target],
    )


def measurement_of(shape: CaseShape, sampling: Sampling, n: int) -> Sent:
    """One measurement of a shape with `n` attempts."""
    return attempts_at(shape, sampling, n, MEASURED_ALONE)


@dataclass(frozen=True, slots=True)
class SearchAmount:
    """What a search may send at most, what it cannot do without, and the requests of one candidate
    as large as the first start where the divergence shows every time."""

    most: Amount
    least: Sent
    candidate: int


def search_amount(
    shapes: Sequence[CaseShape], sampling: Sampling, limits: SearchLimits
) -> SearchAmount:
    """The amounts of a search that starts from one of `shapes`, in this order."""
    n = limits.attempts
    starts = [attempts_at(shape, sampling, n) for shape in shapes]
    steady = plan_attempts((n + 1) / (n + 2)).limit
    largest = max(shapes, key=lambda shape: len(shape.requests))
    candidates, measured = (
        attempts_at(largest, sampling, MOST_ATTEMPTS).times(limits.max_candidates),
        measurement_of(largest, sampling, n).times(len(FALLBACKS)),
    )
    first = measurement_of(shapes[0], sampling, n)
    parts = {
        "greeting": GREETING,
        "starts": total(starts),
        "candidates": candidates,
        "measuring": measured,
    }
    whole = total(list(parts.values()))
    return SearchAmount(
        most=Amount(
            tuple((name, part.requests) for name, part in parts.items()),
            whole.generated,
            whole.prompts,
        ),
        least=total([GREETING, starts[0], first]),
        candidate=attempts_at(shapes[0], sampling, steady).requests,
    )


def replay_amount(shape: CaseShape, sampling: Sampling, n: int) -> tuple[Amount, Sent]:
    """The amount of a replay with `n` attempts, in both forms."""
    measured = measurement_of(shape, sampling, n)
    whole = total([GREETING, measured])
    parts = (("greeting", GREETING.requests), ("attempts", measured.requests))
    return Amount(parts, whole.generated, whole.prompts), whole


def check_room(needed: Sent, limits: Limits, what: str) -> None:
    """Raises UsageError where `what` cannot stay below the limits."""
    over = needed.exceeds(limits)
    if over is not None:
        raise UsageError(f"{over} for {what}; lower --attempts or raise it")
