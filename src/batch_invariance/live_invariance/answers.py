"""From what HTTP gave back to an answer, or to the way in which it was lost."""

from __future__ import annotations

import threading

from batch_invariance.invariance_diff.endpoint import TokenNames
from batch_invariance.invariance_diff.model import Completion, Failure, FailureKind
from batch_invariance.invariance_diff.response import parse_response
from batch_invariance.live_invariance.http import Exchange

DEATH_GRACE_S = 0.5
"""How long a broken connection waits for word of the server's death before it is put down to the
network."""
BROKEN = (FailureKind.CONNECTION, FailureKind.TRUNCATED_BODY)


def broke_by_death(exchange: Exchange, dead: threading.Event) -> bool:
    """Whether the connection broke because the server died; waits a moment for word of it."""
    failure = exchange.failure
    return failure is not None and failure.kind in BROKEN and dead.wait(DEATH_GRACE_S)


def read_result(
    exchange: Exchange, max_tokens: int, died: bool, names: TokenNames = TokenNames.IDS
) -> Completion | Failure:
    """The completion, asked for with `max_tokens`, or the failure; `died` puts a broken connection
    down to the server's death, and `names` says how the server names tokens."""
    if exchange.failure is None:
        return parse_response(exchange.status, exchange.body, max_tokens, names)
    if died:
        return Failure(FailureKind.SERVER_DIED, exchange.failure.detail)
    return exchange.failure
