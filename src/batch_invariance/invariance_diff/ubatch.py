"""How llama.cpp cuts one forward pass into micro-batches, and so who shares a matrix product.

Source: `llama_kv_cache::init_batch`, `llama_batch_allocr::split_simple` and `split_equal`, b11434.
A unified KV cache takes the tokens in their order, `n_ubatch` at a time. A split one takes runs of
neighbouring sequences and as many tokens of each as all of them still have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """What the cut depends on: one KV cache for all slots or one each, and `--ubatch-size`."""

    kv_unified: bool
    n_ubatch: int


Part = tuple[int, int]
"""(lane, tokens) of one participant of a pass, in the order of the batch."""


def ubatches(parts: Sequence[Part], layout: Layout) -> list[tuple[int, ...]]:
    """The lanes of each micro-batch of one pass, in the order in which they are computed.

    Equal neighbours beyond two are left out, so that the cost does not grow with the tokens.
    """
    if layout.kv_unified:
        return _in_order(parts, layout.n_ubatch)
    return _neighbouring(parts, layout.n_ubatch)


def _in_order(parts: Sequence[Part], n_ubatch: int) -> list[tuple[int, ...]]:
    cut: list[tuple[int, ...]] = []
    lanes: list[int] = []
    room = n_ubatch
    for lane, tokens in parts:
        lanes.append(lane)
        if tokens < room:
            room -= tokens
            continue
        cut.append(tuple(lanes))
        whole, rest = divmod(tokens - room, n_ubatch)
        cut += [(lane,)] * min(whole, 2)
        lanes, room = ([lane], n_ubatch - rest) if rest else ([], n_ubatch)
    if lanes:
        cut.append(tuple(lanes))
    return cut


def _neighbouring(parts: Sequence[Part], n_ubatch: int) -> list[tuple[int, ...]]:
    left = dict(parts)
    order = [lane for lane, _ in parts]
    cut: list[tuple[int, ...]] = []
    while True:
        run: list[int] = []
        for lane in order:
            if left[lane] and (not run or lane == run[-1] + 1) and len(run) < n_ubatch:
                run.append(lane)
        if not run:
            return cut
        # The run stays the same until the shortest of them is used up.
        shortest = min(left[lane] for lane in run)
        pieces = -(-shortest // (n_ubatch // len(run)))
        for lane in run:
            left[lane] -= shortest
        cut += [tuple(run)] * min(pieces, 2)
