"""`workset show`: what a set holds, which boundaries it meets, and the best bound within reach."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from batch_invariance.invariance_diff.model import Item, Message
from batch_invariance.invariance_diff.request import Sampling
from batch_invariance.invariance_diff.workset_profile import (
    Bucket,
    Group,
    Profile,
    RunPlan,
    profile_workset,
    prompt_bytes,
    prompts_for_bound,
)
from reports_fixtures import CTX, Cell, Outcome, cli, make_cell

PLAN = RunPlan(parallel=4, passes=8, sampling=Sampling(1, 64, 5), ctx=2048, n_ubatch=512)


def items_of(n: int, max_tokens: int | None = None) -> list[Item]:
    return [
        Item(f"q{i}", (Message("user", f"Question {i}"),), "yes", max_tokens=max_tokens)
        for i in range(n)
    ]


def with_lengths(lengths: Sequence[int], max_tokens: int | None = None) -> Profile:
    return profile_workset(items_of(len(lengths), max_tokens), lengths, PLAN)


def test_items_are_counted_by_family_and_fill() -> None:
    prompt = (Message("user", "a"),)
    items = [
        Item("1", prompt, "x", "math", 0.5),
        Item("2", prompt, None, "math", 0.25),
        Item("3", prompt, "y", None, 0.5),
    ]
    found = profile_workset(items, None, PLAN)
    assert (found.n_items, found.n_distinct, found.n_scored) == (3, 1, 2)
    assert found.families == (Group("math", 2, 1), Group(None, 1, 1))
    assert found.fills == (Group("0.25", 1, 0), Group("0.5", 2, 2))


def test_the_histogram_has_the_boundaries_for_edges_and_no_gaps() -> None:
    found = with_lengths([40, 63, 64, 600])
    assert found.histogram == (
        Bucket(32, 64, 2),
        Bucket(64, 128, 1),
        Bucket(128, 256, 0),
        Bucket(256, 512, 0),
        Bucket(512, 1024, 1),
    )


def test_boundaries_say_how_they_are_met() -> None:
    found = with_lengths([63, 64, 65, 200, 255, 600])
    at = {use.tokens: use for use in found.boundaries}
    assert set(at) == {64, 256, 512}
    assert (at[64].below, at[64].at_or_above, at[64].straddled) == (1, 5, True)
    assert (at[256].just_below, at[256].exactly, at[256].straddled) == (1, 0, False)
    assert at[256].crossed
    # 200 + 64 tokens reach 256, 255 does too; nobody below 512 gets there.
    assert (at[256].while_generating, at[512].while_generating) == (2, 0)


def test_the_physical_batch_is_looked_at_too() -> None:
    plan = RunPlan(4, 8, Sampling(1, 64, 5), None, 300)
    found = profile_workset(items_of(8), [100] * 8, plan)
    assert [use.tokens for use in found.boundaries] == [64, 256, 300, 512]
    assert found.together is not None
    assert (found.together.least, found.together.most, found.together.crossed) == (400, 400, False)


@pytest.mark.parametrize(
    ("lengths", "crossed"),
    [([100] * 8, False), ([128] * 8, False), ([128] * 7 + [129], True), ([200] * 8, False)],
)
def test_prompts_that_arrive_together_are_held_against_the_batch(
    lengths: list[int], crossed: bool
) -> None:
    found = with_lengths(lengths)
    assert found.together is not None
    assert found.together.crossed is crossed
    assert any("n_ubatch 512" in warning for warning in found.warnings) is not crossed


def test_fewer_items_than_slots_go_round_again() -> None:
    found = with_lengths([100, 300])
    assert found.together is not None
    assert (found.together.least, found.together.most) == (800, 800)


def test_the_best_bounds_are_those_of_the_formulas() -> None:
    found = with_lengths([100] * 20)
    assert found.prompt_bound == pytest.approx(1 - 0.05 ** (1 / 20))
    assert found.prompt_rule_of_three == pytest.approx(0.15)
    assert found.trial_rule_of_three == pytest.approx(3 / 160)


def test_a_bound_of_5_percent_takes_59_prompts() -> None:
    """1 - 0.95**n >= 0.95 first holds for n = 59."""
    assert prompts_for_bound(0.1, 0.95) == 29
    assert prompts_for_bound(0.05, 0.95) == 59
    assert 1 - 0.95**59 >= 0.95 > 1 - 0.95**58


def test_repeats_add_nothing_to_the_bound_and_are_said() -> None:
    one = items_of(1) * 20
    found = profile_workset(one, [100] * 20, PLAN)
    assert found.prompt_bound == pytest.approx(0.95)
    assert "19 items repeat another's prompt and add no bound" in found.warnings


def warned(profile: Profile, words: str) -> bool:
    return any(words in warning for warning in profile.warnings)


def test_a_small_uniform_unscored_set_is_warned_about() -> None:
    items = [Item(f"q{i}", (Message("user", f"word {i}"),)) for i in range(8)]
    found = profile_workset(items, [40] * 8, RunPlan(4, 8, Sampling(1, 8, 5), None, 512))
    assert warned(found, "few prompts: without a single divergence up to 31.2% of such prompts")
    assert warned(found, "59 distinct prompts bring that to 5%")
    assert warned(found, "uniform: every prompt has 40 tokens")
    assert warned(found, "no prompt meets the boundary of 64, 256, 512 tokens")
    assert warned(found, "any 4 prompts together fit n_ubatch 512")
    assert warned(found, "no item has an expected answer")


def test_a_large_varied_scored_set_is_not_warned_about() -> None:
    lengths = [20 + 9 * i for i in range(80)]
    assert with_lengths(lengths).warnings == ()


def test_one_token_items_are_said_to_need_the_decode_log() -> None:
    assert warned(with_lengths([40 * i for i in range(1, 9)], 1), "8 items generate one token")


def test_what_keeps_a_run_from_green_is_the_plans_word() -> None:
    found = profile_workset(items_of(3), None, PLAN)
    assert "3 distinct prompts, at least 8 are needed" in found.shortfalls
    assert with_lengths([100] * 20).shortfalls == ()


def test_items_that_do_not_fit_are_named_only_where_tokens_and_context_are_known() -> None:
    lengths = [100, 1984, 1985]
    assert with_lengths(lengths).too_long == ("q2",)
    assert profile_workset(items_of(3), None, PLAN).too_long == ()


def test_without_a_count_bytes_bound_the_text_and_boundaries_are_unknown() -> None:
    found = profile_workset([Item("a", (Message("user", "h\u00e9llo"),))], None, PLAN)
    assert prompt_bytes(Item("a", (Message("user", "h\u00e9llo"), Message("user", "x")))) == 7
    assert (found.in_tokens, found.lengths) == (False, (6,))
    assert found.boundaries == ()
    assert found.together is None
    assert warned(found, "uniform: every prompt has 6 bytes")
    assert not warned(found, "boundary")


# --- the command line ---


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Cell:
    return make_cell(
        tmp_path_factory.mktemp("cell"),
        [
            {"id": f"q{i}", "prompt": "word " * (20 * i + 1), "family": "f" if i % 2 else None}
            for i in range(12)
        ],
    )


def run(cell: Cell, *words: object) -> Outcome:
    return cli("workset", "show", cell.workset, *words)


def test_without_a_server_the_unit_is_bytes_and_said_so(cell: Cell) -> None:
    outcome = run(cell)
    assert outcome.code == 0
    assert "set.json: 12 items, 12 distinct prompts, 0 with an expected answer" in outcome.stdout
    assert "prompt length in bytes of text: 5 to 1105" in outcome.stdout
    assert "an upper bound on the text's tokens" in outcome.stdout
    assert "engine boundaries: unknown without --server-bin and --model" in outcome.stdout
    assert "\x1b" not in outcome.stdout


def test_with_a_server_lengths_are_its_tokens(cell: Cell) -> None:
    words = ("--server-bin", cell.server, "--model", cell.model, "--ctx", CTX, "--parallel", 2)
    outcome = run(cell, *words, "--max-tokens", 400, "--json")
    assert outcome.code == 0, outcome.stderr
    report = json.loads(outcome.stdout)
    assert report["in_tokens"]
    # The mock has a token for each word, one for its last blank, and a chat frame.
    steps = [report["lengths"][f"q{i + 1}"] - report["lengths"][f"q{i}"] for i in range(11)]
    assert steps == [20] * 11
    assert [use["tokens"] for use in report["boundaries"]] == [64, 256, 512]
    assert report["too_long"] == [f"q{i}" for i in range(12) if report["lengths"][f"q{i}"] > 112]
    text = run(cell, *words, "--max-tokens", 400).stdout
    assert "prompt length in tokens, counted by the server with its chat template" in text
    assert f"warning: longer than {CTX} tokens with their answer: {report['too_long'][0]}" in text
    assert "by answers" in text


def test_what_comes_from_the_file_cannot_reach_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "set\x1b[31m.json"
    path.write_text(json.dumps(["a", "b"]))
    outcome = cli("workset", "show", path)
    assert outcome.code == 0
    assert "\x1b" not in outcome.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--parallel", 0), "--parallel 0: give 1 to 256"),
        (("--passes", 0), "--passes 0: give 1"),
        (("--max-tokens", 0), "--max-tokens 0: give 1"),
        (("--ctx", 700), "--ctx 700 is no positive multiple of 256"),
        (("--ctx", 512), "--ctx is compared with tokens: give --server-bin and --model too"),
        (("--model", "m.gguf"), "--server-bin and --model count tokens together: give both"),
        (("--", "-ub", "64"), "without --server-bin no server starts"),
        (("--server-bin", "/no/such", "--model", "m"), "--server-bin /no/such: there is no such"),
    ],
)
def test_arguments_that_cannot_be_are_refused(
    cell: Cell, words: tuple[object, ...], said: str
) -> None:
    outcome = run(cell, *words)
    assert outcome.code == 2
    assert said in outcome.stderr
    assert outcome.stdout == ""


def test_a_broken_work_set_is_an_error_before_a_server_starts(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    cell.workset.write_text('[{"prompt": 1}]')
    outcome = run(cell, "--server-bin", cell.server, "--model", cell.model)
    assert outcome.code == 1
    assert "work-set set.json: item [0]: prompt must be a string" in outcome.stderr
    assert cell.journal() == []
