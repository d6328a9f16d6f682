"""The work-set of the profile `spark`: its bytes, its lengths, its facts and its answers."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from batch_invariance.errors import UsageError
from batch_invariance.invariance_diff.digest import canonical_json
from batch_invariance.invariance_diff.model import Completion, Item, Message
from batch_invariance.invariance_diff.workset import parse_workset, workset_to_json
from batch_invariance.profiles.spark import filler, tasks_text, words
from batch_invariance.profiles.spark import generate as generator
from batch_invariance.profiles.spark.bugs import BUGS, Names
from batch_invariance.profiles.spark.calibrate import CountTokens
from batch_invariance.profiles.spark.draw import Draw
from batch_invariance.profiles.spark.families import Family
from batch_invariance.profiles.spark.generate import (
    DEFAULT_FILLS,
    SparkPlan,
    SparkSet,
    generate,
)
from batch_invariance.profiles.spark.scorer import SparkScorer
from batch_invariance.profiles.spark.task import Body, Task
from spark_solvers import REPAIRS, SOLVERS, code_of, functions_of, question_of

ROOT = Path(__file__).resolve().parent.parent
SEEDS = (0, 1, 7, 2024, -3)
SHA256 = "e315755ea2f1bc8e5ac62253eea901be354fdcc3be457a5ed283709e24c30061"


def quarter(messages: Sequence[Message]) -> int:
    return sum(len(message.content) for message in messages) // 4 + 12


def by_word(messages: Sequence[Message]) -> int:
    return sum(len(message.content.split()) for message in messages) + 5


def by_byte(messages: Sequence[Message]) -> int:
    return sum(len(message.content.encode()) for message in messages)


def by_piece(messages: Sequence[Message]) -> int:
    """Much as a vocabulary does: words in pieces of up to six letters, marks and digits apart."""
    return sum(len(re.findall(r" ?[A-Za-z]{1,6}|\d|\s|\S", m.content)) for m in messages)


COUNTERS = (quarter, by_word, by_byte, by_piece)


def bytes_of(made: SparkSet) -> bytes:
    return canonical_json(workset_to_json(made.workset.items))


def asked(item: Item) -> str:
    assert [message.role for message in item.messages] == ["system", "user"]
    return item.messages[1].content


@functools.cache
def usual(seed: int) -> SparkSet:
    return generate(SparkPlan(seed, 2048), quarter)


def items_of(family: str, *seeds: int) -> list[Item]:
    items = [item for seed in seeds for item in usual(seed).workset.items]
    return [item for item in items if item.family == family]


def times(word: str, text: str) -> int:
    return len(re.findall(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text))


# Bytes.


@pytest.mark.parametrize("count", COUNTERS)
def test_one_seed_and_one_counter_give_one_set_of_bytes(count: CountTokens) -> None:
    one, two = (generate(SparkPlan(7, 2048), count) for _ in range(2))
    assert bytes_of(one) == bytes_of(two)
    assert one == two


def test_the_bytes_are_the_same_on_every_python() -> None:
    made = generate(SparkPlan(7, 2048, per_family=2), quarter)
    assert hashlib.sha256(bytes_of(made)).hexdigest() == SHA256
    assert made.workset.sha256 == SHA256
    assert bytes_of(made).isascii()


def test_another_seed_differs_in_every_item() -> None:
    sets = [generate(SparkPlan(seed, 2048), quarter).workset.items for seed in SEEDS]
    for same_id in zip(*sets, strict=True):
        assert len({item.id for item in same_id}) == 1
        assert len({asked(item) for item in same_id}) == len(SEEDS)
        assert len({item.expected_answer for item in same_id}) == len(SEEDS)


def test_items_are_named_by_family_fill_and_index() -> None:
    made = generate(SparkPlan(1, 2048, fills=(0.9, 0.05), per_family=2), quarter)
    fills = {"f90": 0.9, "f05": 0.05}
    expected = [f"{f.value}-{fill}-{i}" for f in Family for fill in fills for i in (0, 1)]
    assert [item.id for item in made.workset.items] == expected
    assert [one.item_id for one in made.calibration] == expected
    for item in made.workset.items:
        family, fill, _ = item.id.split("-")
        assert item.family == family
        assert item.fill == fills[fill]


def test_an_item_does_not_depend_on_what_else_is_asked_for() -> None:
    many = generate(SparkPlan(5, 2048, per_family=3), quarter).workset.items
    few = generate(SparkPlan(5, 2048, fills=(0.3,)), quarter).workset.items
    assert set(few) < set(many)


def test_no_two_items_ask_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    items = generate(SparkPlan(3, 2048, fills=(0.01, 0.02), per_family=60), quarter).workset.items
    assert len({item.messages for item in items}) == len(items) == 1200

    def one_of_forty(draw: Draw) -> Task:
        return Task(Body.PROSE, (f"The number is {draw.between(1, 40)}.",), "Which?", "x", 8)

    monkeypatch.setattr(generator, "_TASKS", dict.fromkeys(Family, one_of_forty))
    few = generate(SparkPlan(3, 2048, fills=(0.01,), per_family=4), quarter).workset.items
    assert len({item.messages for item in few}) == len(few) == 40


def test_the_set_reads_back_as_it_was_written() -> None:
    made = generate(SparkPlan(7, 2048), quarter)
    read = parse_workset(bytes_of(made), made.workset.name)
    assert read == made.workset


# Lengths.


@pytest.mark.parametrize("count", COUNTERS)
@pytest.mark.parametrize("ctx", [2048, 3000, 8192])
def test_every_prompt_has_the_length_that_was_asked_for(count: CountTokens, ctx: int) -> None:
    floors = 0
    for seed in (1, 2):
        made = generate(SparkPlan(seed, ctx), count)
        for item, said in zip(made.workset.items, made.calibration, strict=True):
            assert item.fill is not None
            assert item.max_tokens is not None
            assert said.item_id == item.id
            assert said.measured == count(item.messages)
            assert said.target == min(round(item.fill * ctx), ctx - item.max_tokens)
            assert said.measured + item.max_tokens <= ctx
            floors += said.floor
            if said.floor:
                assert said.measured > said.target
            else:
                assert abs(said.measured - said.target) <= 0.03 * said.target
    assert floors < 20 or count is by_byte


def test_lengths_near_the_bare_question_are_reached_too() -> None:
    fills = tuple(percent / 100 for percent in range(4, 26))
    for seed in range(4):
        made = generate(SparkPlan(seed, 1024, fills=fills), by_piece)
        for said in made.calibration:
            assert said.floor or abs(said.measured - said.target) <= 0.03 * said.target
        assert {said.floor for said in made.calibration} == {True, False}


def test_a_floor_is_the_question_without_filler() -> None:
    low = generate(SparkPlan(4, 2048, fills=(0.01,)), quarter)
    filler_text = " ".join((*filler.WHO, *filler.VIEW))
    known = set(re.findall(r"[A-Z]\w+", filler_text)) - {"The", "One"}
    assert all(said.floor for said in low.calibration)
    for item in low.workset.items:
        assert not known & set(re.findall(r"\w+", asked(item)))
        if "```" in asked(item):
            assert 1 <= len(functions_of(asked(item))) <= 4


def test_a_full_context_leaves_room_for_the_answer() -> None:
    made = generate(SparkPlan(1, 2048, fills=(1.0,)), quarter)
    for item, said in zip(made.workset.items, made.calibration, strict=True):
        assert item.max_tokens is not None
        assert said.target == 2048 - item.max_tokens
        assert said.measured <= said.target
        assert not said.floor


def test_answers_are_limited_by_family_and_by_the_plan() -> None:
    free = generate(SparkPlan(1, 2048, fills=(0.3,)), quarter).workset.items
    limits = {item.family: item.max_tokens or 0 for item in free}
    assert max(limits, key=lambda family: limits[family]) == "E4"
    assert all(24 <= limit <= 128 for limit in limits.values())
    capped = generate(SparkPlan(1, 2048, fills=(0.3,), max_tokens=40), quarter).workset.items
    assert [i.max_tokens for i in capped] == [min(limits[i.family or ""], 40) for i in capped]


def test_the_counter_is_asked_seldom_and_always_the_same() -> None:
    def watched() -> list[tuple[Message, ...]]:
        seen: list[tuple[Message, ...]] = []

        def count(messages: Sequence[Message]) -> int:
            seen.append(tuple(messages))
            return quarter(messages)

        generate(SparkPlan(7, 8192), count)
        return seen

    one = watched()
    assert one == watched()
    assert len(one) <= 30 * len(Family) * len(DEFAULT_FILLS)
    assert len(set(one)) == len(one)


# Counters that are no good.


def constant(n: int) -> CountTokens:
    return lambda messages: n


def scattered(messages: Sequence[Message]) -> int:
    digest = hashlib.sha256(repr(messages).encode()).digest()
    return int.from_bytes(digest[:2], "big") % 2000


def saw(messages: Sequence[Message]) -> int:
    return quarter(messages) // 200 * 200 - quarter(messages) % 200


@pytest.mark.parametrize("count", [constant(0), constant(150), constant(-5), constant(614)])
def test_a_counter_that_stands_still_is_refused(count: CountTokens) -> None:
    with pytest.raises(UsageError, match="no count of its text"):
        generate(SparkPlan(1, 2048), count)


def test_a_counter_that_is_too_high_leaves_a_floor_or_no_room() -> None:
    made = generate(SparkPlan(1, 2048, fills=(0.05,)), constant(150))
    assert all(said.floor and said.measured == 150 for said in made.calibration)
    with pytest.raises(UsageError, match="need more than ctx 2048"):
        generate(SparkPlan(1, 2048), constant(5000))


@pytest.mark.parametrize("count", [scattered, saw])
@pytest.mark.parametrize("fill", [0.05, 0.3, 0.9])
def test_a_counter_that_jumps_ends_in_a_refusal_or_a_true_length(
    count: CountTokens, fill: float
) -> None:
    refused: list[str] = []
    for seed in range(6):
        try:
            made = generate(SparkPlan(seed, 4096, fills=(fill,)), count)
        except UsageError as error:
            refused.append(str(error))
            continue
        for item, said in zip(made.workset.items, made.calibration, strict=True):
            assert said.measured == count(item.messages)
            assert said.floor or abs(said.measured - said.target) <= 0.03 * said.target
    assert refused
    assert all("counter" in said or "need more than ctx" in said for said in refused)


# Plans that are no good.


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ({"ctx": 0}, "ctx 0"),
        ({"ctx": -4}, "ctx -4"),
        ({"fills": ()}, "no fills"),
        ({"fills": (0.0,)}, "fill 0.0"),
        ({"fills": (-0.1,)}, "fill -0.1"),
        ({"fills": (1.01,)}, "fill 1.01"),
        ({"fills": (float("nan"),)}, "fill nan"),
        ({"fills": (float("inf"),)}, "fill inf"),
        ({"fills": (0.055,)}, "fill 0.055 must be a whole percent"),
        ({"fills": (0.3, 0.3)}, "more than once"),
        ({"fills": (0.3, 0.1 + 0.2)}, "more than once"),
        ({"per_family": 0}, "per_family 0"),
        ({"max_tokens": 0}, "max_tokens 0"),
        ({"max_tokens": 2048}, "max_tokens 2048"),
        ({"ctx": 128}, "max_tokens 128"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(plan: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)) as caught:
        SparkPlan(**{"seed": 1, "ctx": 2048, **plan})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_all_that_is_wrong_with_a_plan_is_said_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        SparkPlan(1, 2048, fills=(0.0, 2.0), per_family=-1, max_tokens=0)
    for part in ("fill 0.0", "fill 2.0", "per_family -1", "max_tokens 0"):
        assert part in str(caught.value)


def test_a_context_too_small_names_the_families_and_what_to_do() -> None:
    with pytest.raises(UsageError) as caught:
        generate(SparkPlan(1, 160), quarter)
    said = re.search(r"more than ctx 160 .*: (.*)\. Raise ctx to (\d+)", str(caught.value))
    assert said is not None
    needs = dict(re.findall(r"(\w\d) \((\d+)\)", said[1]))
    assert {"E1", "E3", "E4"} <= set(needs) < {family.value for family in Family}
    assert max(needs.values(), key=int) == said[2]
    generate(SparkPlan(1, int(said[2])), quarter)


# Facts and answers.


@pytest.mark.parametrize("family", list(Family))
def test_the_answer_follows_from_the_prompt_alone(family: Family) -> None:
    seeds = range(40) if family is Family.E4 else range(12)
    for item in items_of(family.value, *seeds):
        expected = item.expected_answer
        assert expected is not None
        solved = SOLVERS[family.value](asked(item))
        if family is Family.E4:
            assert ast.unparse(ast.parse(expected)) == solved
        else:
            assert solved == expected


def test_the_secret_stands_once() -> None:
    for item in items_of("A2", *SEEDS):
        assert asked(item).count(item.expected_answer or "") == 1


@pytest.mark.parametrize("family", ["A4", "B1", "C1"])
def test_a_worked_out_number_does_not_stand_in_its_prompt(family: str) -> None:
    for item in items_of(family, *range(30)):
        assert times(item.expected_answer or "", asked(item)) == 0
        assert 100 < int(item.expected_answer or "") < 10_000


def test_the_facts_of_reports_pairs_and_objects_stand_once() -> None:
    for item in items_of("D1", *SEEDS):
        facts = json.loads(item.expected_answer or "")
        assert list(facts) == ["component", "owner", "ticket"]
        assert all(times(value, asked(item)) == 1 for value in facts.values())
    for item in items_of("E1", *SEEDS):
        values = json.loads(item.expected_answer or "")
        assert len(set(values)) == 4
        assert all(times(value, asked(item)) == 1 for value in values)
    for item in items_of("E2", *SEEDS):
        answer = json.loads(item.expected_answer or "")
        assert sorted(type(value).__name__ for value in answer.values()) == ["bool", "int", "str"]
        for value in answer.values():
            assert isinstance(value, bool) or times(str(value), asked(item)) == 1


def test_a_tool_call_states_each_argument_once() -> None:
    for item in items_of("E3", *SEEDS):
        expected = json.loads(item.expected_answer or "")
        before, _, shown = asked(item).rpartition("\nTool: ")
        assert json.loads(shown.split("\n")[0]) == expected["schema"]
        for value in expected["call"]["arguments"].values():
            assert times(str(value), before) == 1


def test_the_pairs_are_asked_for_in_an_order_of_their_own() -> None:
    in_order = []
    for item in items_of("E1", *range(10)):
        text = asked(item)
        places = [text.index(value) for value in json.loads(item.expected_answer or "")]
        in_order.append(places == sorted(places))
    assert not all(in_order)


def test_the_corrected_function_is_not_in_the_prompt() -> None:
    for item in items_of("E4", *range(40)):
        expected = item.expected_answer or ""
        assert expected not in asked(item)
        (wanted,) = ast.parse(expected).body
        assert isinstance(wanted, ast.FunctionDef)
        assert times(wanted.name, asked(item)) == 2


def test_the_function_asked_for_has_decoys() -> None:
    for item in items_of("E5", *SEEDS):
        text, right = asked(item), item.expected_answer or ""
        helper = question_of(text).split()[3]
        assert times(right, text) == 1
        planted = {name: ast.unparse(node) for name, node in functions_of(text).items()}
        calls = [name for name, code in planted.items() if f"{helper}(x)" in code]
        assert len([name for name in calls if name not in (right, helper)]) == 1
        assert [name for name, code in planted.items() if "{'" in code and name not in calls]


def test_every_kind_of_question_comes_up() -> None:
    complaints, tools, bodies = set(), set(), set()
    for item in items_of("E4", *range(40)):
        complaints |= {pattern for pattern in REPAIRS if re.search(pattern, asked(item))}
    for item in items_of("E3", *range(20)):
        tools.add(json.loads(item.expected_answer or "")["call"]["name"])
    for item in items_of("C1", *range(20)):
        name = question_of(asked(item)).split()[2].partition("(")[0]
        bodies.add(len(functions_of(asked(item))[name].body))
    assert complaints == set(REPAIRS)
    assert len(REPAIRS) == len(BUGS)
    assert len(tools) == 5
    assert bodies == {2, 3}


CASES: dict[str, list[object]] = {
    "count the elements": [[10, 50, 50, 60]],
    "its range": [[1, 2, 3]],
    "negative elements": [[-5, -2, -9]],
    "inside the loop": [[1, 2, 3]],
    "last product": [[1, 2, 3]],
    "the reverse": [5, 9],
    "both conditions": [10],
    "multiples": [[1, 50, 100, 7]],
}
RIGHT: dict[str, object] = {
    "count the elements": 3,
    "its range": 56,
    "negative elements": 48,
    "inside the loop": 56,
    "last product": 300,
    "the reverse": 200,
    "both conditions": False,
    "multiples": [50, 100],
}


@pytest.mark.parametrize("said", CASES)
def test_a_bug_is_a_bug_and_its_fix_is_none(said: str) -> None:
    (bug,) = [bug for bug in BUGS if said in bug.complaint]
    names = Names("fold_fern", "marks", "mark", "total", 50, 80)

    def run(source: str) -> object:
        scope: dict[str, object] = {}
        exec(source, scope)
        function = scope["fold_fern"]
        assert callable(function)
        result: object = function(*CASES[said])
        return result

    assert len(CASES) == len(BUGS)
    assert run(bug.right_source(names)) == RIGHT[said]
    assert run(bug.wrong_source(names)) != RIGHT[said]
    for source in (bug.right_source(names), bug.wrong_source(names), names.put_into(bug.complaint)):
        assert "<fix>" not in source
        assert "{" not in source


def test_facts_are_planted_anywhere() -> None:
    shares = []
    for item in items_of("A2", *range(40)):
        if item.fill == 0.9:
            text = asked(item)
            shares.append(10 * text.index(item.expected_answer or "") // len(text))
    assert len(set(shares)) >= 7


def test_code_is_code_at_every_fill() -> None:
    for family in ("C1", "E4", "E5"):
        for item in items_of(family, *SEEDS):
            ast.parse(code_of(asked(item)))


# The scorer of the profile agrees on what an answer is.


def reply(item: Item) -> str:
    """A right answer in the form that the question asks for."""
    expected = item.expected_answer or ""
    if item.family == "D1":
        return "\n".join(f"{key}: {value}" for key, value in json.loads(expected).items())
    if item.family == "E1":
        return ", ".join(json.loads(expected))
    return json.dumps(json.loads(expected)["call"]) if item.family == "E3" else expected


def passes(text: str, item: Item) -> bool | None:
    scorer = SparkScorer()
    answer = scorer.extract_answer(Completion(text, "stop"), item)
    return scorer.score(answer, item).passed


@pytest.mark.parametrize("seed", SEEDS)
def test_the_expected_answer_scores_and_that_of_another_seed_does_not(seed: int) -> None:
    for item, other in zip(usual(seed).workset.items, usual(seed + 1).workset.items, strict=True):
        assert passes(reply(item), item) is True
        assert passes(reply(other), item) is False


def test_the_wrong_function_and_the_decoys_do_not_score() -> None:
    for item in items_of("E4", *SEEDS):
        name = question_of(asked(item)).split()[0]
        assert passes(ast.unparse(functions_of(asked(item))[name]), item) is False
    for item in items_of("E5", *SEEDS):
        decoys = set(functions_of(asked(item))) - {item.expected_answer}
        assert not [name for name in decoys if passes(name, item)]


# Filler.


def _planted() -> set[str]:
    lists = (words.CREATURES, words.MINERALS, words.PLANTS, words.COMPONENTS, words.PEOPLE)
    return {word.lower() for one in (*lists, words.VERBS) for word in one}


def test_no_planted_word_is_in_two_lists() -> None:
    lists = (words.CREATURES, words.MINERALS, words.PLANTS, words.COMPONENTS, words.PEOPLE)
    counts = Counter(word.lower() for one in (*lists, words.VERBS) for word in one)
    assert [word for word, n in counts.items() if n > 1] == []


def test_filler_holds_no_word_that_a_fact_is_made_of() -> None:
    pieces = [filler.piece(body, "x", index) for body in Body for index in range(2000)]
    said = set(re.findall(r"[a-z]+", " ".join((*pieces, *filler.tags("x", 500))).lower()))
    assert len(said) > 250
    asked_about = {"passphrase", "vault", "step", "count", "report", "component", "owner"}
    asked_about |= {"ticket", "service", "request", "true", "false"}
    prose = " ".join(filler.piece(Body.PROSE, "x", index) for index in range(2000)).lower()
    assert not said & _planted()
    choices = {word for tool in tasks_text._TOOLS for word in (*tool[0].split("_"), *tool[4])}
    assert not set(re.findall(r"[a-z]+", prose)) & choices
    assert not set(re.findall(r"[a-z]+", prose)) & asked_about
    assert not re.search(r"\d", prose)


def test_filler_code_is_plain_and_each_name_is_new() -> None:
    trees = [ast.parse(filler.piece(Body.CODE, "x", index)) for index in range(3000)]
    names = [node.name for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert len(set(names)) == len(names) == len(trees)
    nodes = [node for tree in trees for node in ast.walk(tree)]
    numbers = {node.value for node in nodes if isinstance(node, ast.Constant)}
    assert {n for n in numbers if isinstance(n, int)} <= {0, 1, 2}
    assert not [node for node in nodes if isinstance(node, (ast.Dict, ast.DictComp))]
    assert {"dict"}.isdisjoint(node.id for node in nodes if isinstance(node, ast.Name))


def test_filler_of_two_items_differs() -> None:
    items = items_of("A2", 7)
    texts = [set(asked(item).split(".")) for item in items]
    assert len(texts[1] & texts[2]) < len(texts[1]) // 2


# The page.


def _page_generator() -> ModuleType:
    path = ROOT / "docs" / "generate_spark.py"
    spec = importlib.util.spec_from_file_location("generate_spark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_examples_of_the_page_are_what_is_generated() -> None:
    page = (ROOT / "docs" / "spark.md").read_text("utf-8")
    assert page == _page_generator().render(page), "run: python docs/generate_spark.py"
    for family in Family:
        assert f"\n### {family.value}: {family.summary}\n" in page
