"""The cut of a forward pass into micro-batches, against llama.cpp's own loop token by token."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from batch_invariance.invariance_diff.ubatch import Layout, Part, ubatches


def split_simple(parts: Sequence[Part], n_ubatch: int) -> list[list[int]]:
    tokens = [lane for lane, n in parts for _ in range(n)]
    return [tokens[i : i + n_ubatch] for i in range(0, len(tokens), n_ubatch)]


def split_equal(parts: Sequence[Part], n_ubatch: int) -> list[list[int]]:
    """`llama_batch_allocr::split_equal(n_ubatch, sequential=true)`, one sequence per token."""
    tokens = [lane for lane, n in parts for _ in range(n)]
    used = [False] * len(tokens)
    out: list[list[int]] = []
    while not all(used):
        chosen: list[int] = []
        for i, lane in enumerate(tokens):
            if used[i] or lane in chosen or (chosen and lane != chosen[-1] + 1):
                continue
            chosen.append(lane)
            if len(chosen) >= n_ubatch:
                break
        rows = {
            lane: [i for i, t in enumerate(tokens) if t == lane and not used[i]] for lane in chosen
        }
        taken: list[int] = []
        depth = 0
        while all(depth < len(rows[lane]) for lane in chosen):
            for lane in chosen:
                used[rows[lane][depth]] = True
                taken.append(lane)
            depth += 1
            if (depth + 1) * len(chosen) > n_ubatch:
                break
        out.append(taken)
    return out


def lanes_of(cut: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Sets of lanes, equal neighbours beyond two left out."""
    found: list[tuple[int, ...]] = []
    for group in cut:
        lanes = tuple(dict.fromkeys(group))
        if found[-2:] != [lanes, lanes]:
            found.append(lanes)
    return found


@pytest.mark.parametrize("seed", range(300))
def test_against_the_token_by_token_loop(seed: int) -> None:
    rng = random.Random(seed)
    lanes = rng.sample(range(8), rng.randint(1, 8))
    parts = [(lane, rng.choice([1, 1, 1, rng.randint(2, 40)])) for lane in lanes]
    n_ubatch = rng.choice([1, 2, 3, 8, 16, 512])
    for unified, reference in ((True, split_simple), (False, split_equal)):
        got = ubatches(parts, Layout(unified, n_ubatch))
        assert lanes_of(got) == lanes_of(reference(parts, n_ubatch))
        assert (len(got) == 1) is (len(reference(parts, n_ubatch)) == 1)


def test_generating_neighbours_are_together_and_a_gap_parts_them() -> None:
    split = Layout(kv_unified=False, n_ubatch=512)
    assert ubatches([(0, 1), (1, 1), (2, 1)], split) == [(0, 1, 2)]
    assert ubatches([(0, 1), (2, 1)], split) == [(0,), (2,)]
    assert ubatches([(0, 1), (2, 1)], Layout(True, 512)) == [(0, 2)]


def test_a_prompt_of_any_length_costs_nothing() -> None:
    huge = 10**18
    for unified in (True, False):
        cut = ubatches([(0, huge), (1, 1)], Layout(unified, 1))
        assert {0, 1} == {lane for group in cut for lane in group}
        assert len(cut) <= 6


@pytest.mark.parametrize("tokens", [512 * 4, 512 * 9])
@pytest.mark.parametrize("unified", [True, False])
def test_equal_neighbours_beyond_two_are_left_out(tokens: int, unified: bool) -> None:
    """After the first of a unified cut, which may hold others too."""
    first = [(0,)] if unified else []
    assert ubatches([(0, tokens)], Layout(unified, 512)) == [*first, (0,), (0,)]


@pytest.mark.parametrize("unified", [True, False])
def test_a_micro_batch_that_is_just_full(unified: bool) -> None:
    layout = Layout(unified, 4)
    assert ubatches([(0, 4)], layout) == [(0,)]
    assert ubatches([(0, 5)], layout) == [(0,), (0,)]
    assert ubatches([(0, 2), (1, 2)], layout) == [(0, 1)]
