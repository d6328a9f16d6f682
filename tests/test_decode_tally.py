"""Forward passes added up task by task: small logs, every figure by hand."""

from __future__ import annotations

import pytest

from batch_invariance.invariance_diff.decode_witness import (
    MAX_SHAPES,
    DecodeTally,
    Run,
    Sent,
    TaskTally,
)
from batch_invariance.invariance_diff.ubatch import Layout

SPLIT, UNIFIED = Layout(False, 512), Layout(True, 512)


def tally_of(*runs: Run, layout: Layout = UNIFIED) -> DecodeTally:
    tally = DecodeTally(layout)
    tally.add(runs)
    return tally


def sent(lane: int, tokens: int | None, prompt: int | None = 40, item: int | None = None) -> Sent:
    return Sent(lane if item is None else item, 0, lane, float(lane), tokens, prompt)


def tasks(tally: DecodeTally, *trials: Sent) -> dict[int, TaskTally]:
    """By lane; the counter agrees with the log."""
    matched = tally.match(trials, tally.n_steps)
    assert not isinstance(matched, str), matched
    return {task.lane: task for task in matched.values()}


PAIR = (
    (1, 0, 7, 40),  # lane 0 reads its prompt alone
    (2, 0, 7, 0),  # and generates alone
    (1, 0, 7, 0, 1, 8, 30),  # while lane 1 reads
    (3, 0, 7, 0, 1, 8, 0),  # both generate
    (2, 1, 8, 0),
)


def test_a_log_of_two_tasks_is_added_up() -> None:
    tally = tally_of(*PAIR)
    assert (tally.n_steps, tally.n_crowded, tally.peak, tally.most_rows) == (9, 4, 2, 40)
    found = tasks(tally, sent(0, 7), sent(1, 6, 30))
    assert found[0] == TaskTally(0, 7, 7, 1, 40, 4, {1: 2, 2: 4}, {8}, decode_met_prompt=True)
    assert found[1] == TaskTally(1, 8, 6, 1, 30, 4, {2: 3, 1: 2}, {7}, prompt_met_decode=True)
    met = [(t.prompt_met_decode, t.prompt_met_prompt, t.decode_met_prompt) for t in found.values()]
    assert met == [(False, False, True), (True, False, False)]


def test_one_task_alone_meets_nobody() -> None:
    tally = tally_of((1, 0, 7, 40), (5, 0, 7, 0))
    assert (tally.n_steps, tally.n_crowded, tally.peak, tally.most_rows) == (6, 0, 1, 40)
    found = tasks(tally, sent(0, 6))
    assert found[0] == TaskTally(0, 7, 6, 1, 40, 0, {1: 5}, set())
    empty = tally_of()
    assert (empty.n_steps, empty.n_crowded, empty.peak, empty.most_rows) == (0, 0, 0, 0)


def test_prompts_that_are_read_together_meet() -> None:
    tally = tally_of((1, 0, 7, 20, 1, 8, 30), (1, 0, 7, 0, 1, 8, 0))
    found = tasks(tally, sent(0, 2, 20), sent(1, 2, 30))
    for task in found.values():
        assert task.prompt_met_prompt
        assert not task.prompt_met_decode
        assert not task.decode_met_prompt
        assert task.shared == 2
    assert tally.most_rows == 50


def test_a_prompt_in_chunks_counts_each_of_its_passes() -> None:
    tally = tally_of((2, 0, 7, 512), (1, 0, 7, 100), (3, 0, 7, 0))
    found = tasks(tally, sent(0, 4, 1124))
    assert (found[0].steps, found[0].prompt_steps, found[0].prompt_tokens) == (6, 3, 1124)


def test_a_size_that_is_unknown_leaves_the_prompt_unknown() -> None:
    """And shares nothing for certain: the cut into micro-batches depends on the sizes."""
    for chunks in (((1, 0, 7, -1), (1, 0, 7, 40)), ((1, 0, 7, 40), (1, 0, 7, -1))):
        tally = tally_of(*chunks, (2, 0, 7, 0, 1, 8, -1))
        found = tasks(tally, sent(0, 3), sent(1, 1))
        assert found[0].prompt_tokens is None
        assert found[1].prompt_tokens is None
        assert found[0].shared == found[1].shared == 0
        assert (tally.peak, tally.most_rows) == (1, 40)
        assert found[0].companions == {8}
        assert found[0].sizes == {1: 2}


def test_a_prompt_that_is_cut_shares_nothing_and_its_neighbour_one_piece() -> None:
    """Three generate; lane 3's prompt of 600 fills more than one micro-batch of 512."""
    together = (1, 0, 7, 0, 1, 8, 0, 2, 9, 0, 3, 10, 600)
    tally = tally_of((1, 0, 7, 4), (1, 1, 8, 4), (1, 2, 9, 4), together)
    found = tasks(tally, *(sent(lane, 2, 4) for lane in range(3)), sent(3, 1, 600))
    assert [found[lane].shared for lane in range(4)] == [1, 1, 1, 0]
    # The piece has four lanes, of which three are certain.
    assert found[0].sizes == {4: 1}
    assert (tally.peak, tally.most_rows) == (3, 603)


def test_under_split_caches_a_gap_parts_the_lanes() -> None:
    runs = ((1, 0, 7, 4), (1, 2, 8, 4), (3, 0, 7, 0, 2, 8, 0))
    split = tasks(tally_of(*runs, layout=SPLIT), sent(0, 4, 4), sent(2, 4, 4))
    assert [split[lane].shared for lane in (0, 2)] == [0, 0]
    assert split[0].companions == {8}
    unified = tasks(tally_of(*runs), sent(0, 4, 4), sent(2, 4, 4))
    assert [unified[lane].shared for lane in (0, 2)] == [3, 3]
    assert tally_of(*runs, layout=SPLIT).peak == 1


def test_three_together_all_meet_each_other() -> None:
    together = (4, 0, 7, 0, 1, 8, 0, 2, 9, 0)
    tally = tally_of((1, 0, 7, 4), (1, 1, 8, 4), (1, 2, 9, 4), together)
    found = tasks(tally, *(sent(lane, 5, 4) for lane in range(3)))
    assert [found[lane].companions for lane in range(3)] == [{8, 9}, {7, 9}, {7, 8}]
    assert (tally.peak, tally.n_crowded) == (3, 4)
    assert found[0].sizes == {3: 4}


def test_a_smaller_pass_does_not_lower_what_was_seen() -> None:
    tally = tally_of((1, 0, 7, 50, 1, 8, 50), (1, 0, 7, 0, 1, 8, 0), (1, 0, 7, 0))
    assert (tally.peak, tally.most_rows) == (2, 100)


def test_what_one_pass_comes_to_does_not_depend_on_what_is_remembered() -> None:
    """More different passes than are remembered: each is still counted."""
    n = MAX_SHAPES + 3
    runs = [(1, 0, 7, size, 1, 8, 0) for size in range(1, n + 1)]
    tally = tally_of((1, 1, 8, 4), *runs, *runs[-3:])
    found = tasks(tally, sent(0, 1, n * (n + 1) // 2 + 3 * n - 3), sent(1, n + 4, 4))
    assert (found[0].steps, found[1].steps, tally.n_crowded) == (n + 3, n + 4, n + 3)
    assert tally.most_rows == n + 1


def test_passes_of_one_shape_are_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def counted(parts: object, layout: object) -> list[tuple[int, ...]]:
        asked.append(parts)
        return [(0, 1)]

    monkeypatch.setattr("batch_invariance.invariance_diff.decode_witness.ubatches", counted)
    tally_of(*[(1, 0, 7, 0, 1, 8, 0)] * 5, (1, 0, 9, 0, 1, 8, 0))
    assert len(asked) == 1


# Matching tasks with trials.


def why_not(tally: DecodeTally, *trials: Sent, decodes: int | None = -1) -> str:
    found = tally.match(trials, tally.n_steps if decodes == -1 else decodes)
    assert isinstance(found, str)
    return found


def test_the_counter_must_be_known_and_agree() -> None:
    trials = (sent(0, 7), sent(1, 6, 30))
    unknown = "the server's counter of forward passes is unknown"
    assert why_not(tally_of(*PAIR), *trials, decodes=None) == unknown
    for other in (8, 10, 0):
        said = f"the log shows 9 forward passes, the counter {other}"
        assert why_not(tally_of(*PAIR), *trials, decodes=other) == said


def test_every_task_has_a_trial_and_every_trial_a_task() -> None:
    said = "slot 1 worked on 1 tasks, not on 0 requests"
    assert why_not(tally_of(*PAIR), sent(0, 7)) == said
    extra = (sent(0, 7), sent(1, 6, 30), sent(2, 5))
    assert why_not(tally_of(*PAIR), *extra) == "slot 2 worked on 0 tasks, not on 1 requests"
    twice = (sent(0, 7), sent(1, 6, 30), sent(1, 6, 30, item=5))
    assert why_not(tally_of(*PAIR), *twice) == "slot 1 worked on 1 tasks, not on 2 requests"


def test_trials_of_a_lane_go_by_the_time_they_were_sent() -> None:
    tally = tally_of((1, 0, 7, 40), (4, 0, 7, 0), (1, 0, 8, 20), (2, 0, 8, 0))
    late, early = Sent(1, 0, 0, 9.0, 3, 20), Sent(2, 0, 0, 1.0, 5, 40)
    matched = tally.match((late, early), tally.n_steps)
    assert not isinstance(matched, str)
    assert {key: task.task for key, task in matched.items()} == {(2, 0): 7, (1, 0): 8}


@pytest.mark.parametrize(
    ("trial", "said"),
    [
        (sent(0, 6), None),
        (sent(0, 6, None), None),
        (sent(0, None), "its trial was lost or does not count its tokens"),
        (sent(0, 5), "6 passes, 1 of them with its prompt, for 5 tokens"),
        (sent(0, 7), "6 passes, 1 of them with its prompt, for 7 tokens"),
        (sent(0, 6, 41), "40 prompt tokens, the response counts 41"),
        (sent(0, 6, 39), "40 prompt tokens, the response counts 39"),
    ],
)
def test_a_task_can_only_be_the_trial_that_it_adds_up_to(trial: Sent, said: str | None) -> None:
    tally = tally_of((1, 0, 7, 40), (5, 0, 7, 0))
    matched = tally.match((trial,), 6)
    if said is None:
        assert not isinstance(matched, str)
    else:
        assert matched == f"slot 0, task 7: {said}"


def test_a_task_without_a_prompt_is_nobodys() -> None:
    tally = tally_of((5, 0, 7, 0))
    said = "slot 0, task 7: 5 passes, 0 of them with its prompt, for 6 tokens"
    assert why_not(tally, sent(0, 6)) == said


def test_a_prompt_of_unknown_size_may_be_any() -> None:
    tally = tally_of((1, 0, 7, -1), (5, 0, 7, 0))
    assert tasks(tally, sent(0, 6, 40))[0].prompt_tokens is None


@pytest.mark.parametrize(
    ("run", "possible"),
    [
        ((1, 0, 7, 40), True),
        ((1, 0, 7, -1), True),
        ((1, 0, 7, 0), True),
        ((1, 0, 7, -2), False),
        ((1, 0, 7, 3, 1, 8, -2), False),
        ((1, 1, 7, 3, -1, 8, 3), False),
        ((1, -1, 7, 3, 1, 8, 3), False),
        ((1, 0, 7, 3, 0, 8, 3), False),
        ((0, 0, 7, 3), False),
        ((1,), False),
        ((1, 0, 7), False),
    ],
)
def test_passes_that_cannot_be(run: Run, possible: bool) -> None:
    if possible:
        tally_of(run)
        return
    with pytest.raises(ValueError):
        tally_of(run)
