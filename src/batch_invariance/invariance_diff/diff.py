"""Comparing one trial with another, and adding the comparisons of two arms up.

Two layers are kept apart. *Score*: the invariant fields of gate F0. *Token*: what was generated:
token ids, text, finish reason, reasoning, tool calls and the token count. Logprob drift is a third,
measured on the common prefix of the tokens alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import attrgetter

from batch_invariance.invariance_diff.model import Completion, Trial
from batch_invariance.invariance_diff.packed import unpack_floats, unpack_ids
from batch_invariance.invariance_diff.rules import INVARIANT_FIELDS
from batch_invariance.invariance_diff.stats import bin_of

TOKEN_FIELDS = (
    "token_ids",
    "text",
    "finish_reason",
    "reasoning",
    "tool_calls",
    "completion_tokens",
)
_generated = attrgetter(*TOKEN_FIELDS)


@dataclass(frozen=True, slots=True)
class FirstDivergence:
    """Where two token sequences part: the index, the token on each side (None past an end), and
    x's margin there: logprob of its best token minus that of the runner-up, in nats."""

    token_index: int
    token_x: int | None
    token_y: int | None
    margin_x: float | None


@dataclass(frozen=True, slots=True)
class Drift:
    """Logprobs on the common prefix: positions compared, positions that moved, the first of them,
    and the largest absolute move in nats over the chosen token and the alternatives. `bins` holds
    the `stats.bin_of` the move at each position that moved."""

    n_positions: int
    n_moved: int
    first_index: int | None
    max_abs: float
    bins: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TrialDiff:
    """What differs between trials x and y. Empty tuples mean equal.

    `tokens_known` is false where either side lacks token ids; `drift` is None where logprobs
    are missing or degenerate on either side.
    """

    score_fields: tuple[str, ...]
    token_fields: tuple[str, ...]
    tokens_known: bool
    n_tokens: int
    first: FirstDivergence | None
    drift: Drift | None

    @property
    def score_divergent(self) -> bool:
        """Whether gate F0 sees a difference."""
        return bool(self.score_fields)

    @property
    def token_divergent(self) -> bool:
        """Whether what was generated differs."""
        return bool(self.token_fields)


def compare_trials(x: Trial, y: Trial) -> TrialDiff:
    """Compares two answered trials of one item. Raises ValueError for a lost one."""
    a, b = x.result, y.result
    if not isinstance(a, Completion) or not isinstance(b, Completion):
        raise ValueError("a lost trial cannot be compared")
    token_fields: tuple[str, ...] = ()
    if _generated(a) != _generated(b):
        token_fields = tuple(n for n in TOKEN_FIELDS if getattr(a, n) != getattr(b, n))
    tokens_known = ids_tell_all(a) and ids_tell_all(b)
    common, first = _common_prefix(a, b)
    return TrialDiff(
        _score_fields(x, y), token_fields, tokens_known, common, first, _drift(a, b, common)
    )


def repeats(x: Trial, y: Trial) -> bool:
    """Whether answered trial y is x again in everything that a comparison looks at."""
    return x.result == y.result and not _score_fields(x, y)


def _invariants(trial: Trial) -> tuple[object, ...]:
    scored, result = trial.scored, trial.result
    if scored is None or not isinstance(result, Completion):
        raise ValueError("a lost trial has no invariant fields")
    return (
        scored.score,
        scored.passed,
        scored.extracted_answer,
        scored.expected_answer,
        result.prompt_tokens,
        scored.failure_mode,
    )


def _score_fields(x: Trial, y: Trial) -> tuple[str, ...]:
    pairs = zip(INVARIANT_FIELDS, _invariants(x), _invariants(y), strict=True)
    # Equal exactly and by type; NaN equals nothing, not even itself.
    return tuple([name for name, u, v in pairs if type(u) is not type(v) or u != v])


def _common_prefix(a: Completion, b: Completion) -> tuple[int, FirstDivergence | None]:
    """(length of the common prefix in tokens, where the sequences part)."""
    if a.token_ids is None or b.token_ids is None:
        return 0, None
    if a.token_ids == b.token_ids:
        return _packed_count(a.token_ids), None
    ids_a, ids_b = unpack_ids(a.token_ids), unpack_ids(b.token_ids)
    n = 0
    for u, v in zip(ids_a, ids_b, strict=False):
        if u != v:
            break
        n += 1
    token_a = ids_a[n] if n < len(ids_a) else None
    token_b = ids_b[n] if n < len(ids_b) else None
    return n, FirstDivergence(n, token_a, token_b, margin_at(a, n))


def ids_tell_all(completion: Completion) -> bool:
    """Whether the token ids account for the answer.

    llama-server lists no id for a token that ends inside a character, until the character is
    whole: then fewer ids than tokens are complete as far as the text is, unless the text itself
    ends inside a character.
    """
    if completion.token_ids is None or completion.completion_tokens is None:
        return False
    n = _packed_count(completion.token_ids)
    if n == completion.completion_tokens:
        return True
    broken_off = completion.text.endswith("\ufffd") or (completion.reasoning or "").endswith(
        "\ufffd"
    )
    return 0 < n < completion.completion_tokens and not broken_off


def _packed_count(text: str) -> int:
    # Base64 of four bytes a token; its padding is less than a token.
    return len(text) * 3 // 16


def margin_at(completion: Completion, index: int) -> float | None:
    """Logprob of the best alternative minus that of the second at one position, in nats."""
    if completion.top_logprobs is None or completion.token_ids is None:
        return None
    n = _packed_count(completion.token_ids)
    tops = unpack_floats(completion.top_logprobs)
    width = len(tops) // n if n else 0
    if width < 2 or not 0 <= index < n:
        return None
    best, second = sorted(tops[index * width : (index + 1) * width], reverse=True)[:2]
    return best - second if math.isfinite(best - second) else None


def margins(completion: Completion, n: int) -> list[float]:
    """`margin_at` for each of the first `n` positions; empty where alternatives are missing."""
    if completion.top_logprobs is None or completion.token_ids is None:
        return []
    count = _packed_count(completion.token_ids)
    tops = unpack_floats(completion.top_logprobs)
    width = len(tops) // count if count else 0
    if width < 2 or not _all_finite(tops):
        return []
    found = []
    for start in range(0, min(n, count) * width, width):
        best, second = sorted(tops[start : start + width], reverse=True)[:2]
        found.append(best - second)
    return found


def degenerate(logprobs: str | None) -> bool:
    """Whether logprobs are no evidence: missing, not finite, or all one value over two or more."""
    if logprobs is None:
        return True
    values = unpack_floats(logprobs)
    if not values or not _all_finite(values):
        return True
    return values.count(values[0]) == len(values) and (len(values) > 1 or values[0] == 0.0)


def _all_finite(values: tuple[float, ...]) -> bool:
    """Whether no float32 is NaN or infinite: either would show in the sum, and the sum of finite
    ones cannot leave the range of a float64."""
    return math.isfinite(sum(values))


def _drift(a: Completion, b: Completion, common: int) -> Drift | None:
    if common == 0 or a.logprobs is None or b.logprobs is None:
        return None
    if a.logprobs == b.logprobs and a.top_logprobs == b.top_logprobs and a.top_ids == b.top_ids:
        return None if degenerate(a.logprobs) else Drift(common, 0, None, 0.0)
    if degenerate(a.logprobs) or degenerate(b.logprobs):
        return None
    rows_a, rows_b = _rows(a, common), _rows(b, common)
    if rows_a is None or rows_b is None:
        return None
    first, largest, bins = None, 0.0, []
    for index, (u, v) in enumerate(zip(rows_a, rows_b, strict=True)):
        if u != v:
            first = index if first is None else first
            move = _largest_move(u, v)
            largest = max(largest, move)
            bins.append(bin_of(move))
    return Drift(common, len(bins), first, largest, tuple(bins))


_Row = tuple[float, tuple[int, ...], tuple[float, ...]]


def _rows(completion: Completion, n: int) -> list[_Row] | None:
    """Per position the chosen token's logprob, and ids and logprobs of the alternatives."""
    chosen = unpack_floats(completion.logprobs or "")
    if len(chosen) < n:
        return None
    ids = unpack_ids(completion.top_ids or "")
    tops = unpack_floats(completion.top_logprobs or "")
    if len(ids) != len(tops) or len(ids) % len(chosen) or not _all_finite(tops):
        return None
    width = len(ids) // len(chosen)
    cells = [slice(i * width, (i + 1) * width) for i in range(n)]
    return [(chosen[i], ids[row], tops[row]) for i, row in enumerate(cells)]


def _largest_move(u: _Row, v: _Row) -> float:
    """Largest move at one position; an alternative that only one side lists is no measure."""
    if u[1] == v[1]:
        moves = [a - b for a, b in zip(u[2], v[2], strict=True)]
    else:
        other = dict(zip(v[1], v[2], strict=True))
        listed = zip(u[1], u[2], strict=True)
        moves = [logprob - other[token] for token, logprob in listed if token in other]
    return max(abs(move) for move in (u[0] - v[0], *moves))
