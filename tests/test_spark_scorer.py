"""The scorer of the profile `spark`: answers written by hand, by family, and hostile ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from batch_invariance.errors import ScorerError
from batch_invariance.invariance_diff.model import Completion, Item, Message, Scored
from batch_invariance.profiles.spark import tasks_code, tasks_text
from batch_invariance.profiles.spark.draw import Draw
from batch_invariance.profiles.spark.families import Family
from batch_invariance.profiles.spark.scorer import SparkScorer
from batch_invariance.profiles.spark.task import Task
from batch_invariance.profiles.spark.tool_schema import tool_of
from batch_invariance.python_syntax import normalised_syntax
from batch_invariance.scorer_api import apply_scorer, describe_scorer, resolve_scorer
from batch_invariance.scorer_reading import FailureMode

SECRET = "beaver-3580-amber"
FACTS = '{"component":"allocator","owner":"Yara","ticket":"CV-4001"}'
CODES = '["cormorant-74","harrier-59","weasel-98","gannet-14"]'
OBJECT = '{"image":"osprey-garnet","sealed":true,"workers":9824}'
CALL = '{"arguments":{"delay":93,"host":"falcon-thistle","mode":"staged"},"name":"restart_host"}'
SCHEMA = {
    "name": "restart_host",
    "parameters": {
        "type": "object",
        "properties": {
            "host": {"type": "string"},
            "delay": {"type": "integer"},
            "mode": {"type": "string", "enum": ["soft", "hard", "staged"]},
        },
        "required": ["host", "delay", "mode"],
    },
}
FIXED = "def grind_aspen(depth):\n    return depth > 45 and depth < 125"
BROKEN = FIXED.replace("and", "or")
LONG_NUMBER = "".join(str(n) for n in range(1, 1500))
EXPECTED = {
    "A2": SECRET,
    "A4": "317",
    "B1": "408",
    "C1": "154",
    "D1": FACTS,
    "E1": CODES,
    "E2": OBJECT,
    "E3": json.dumps({"call": json.loads(CALL), "schema": SCHEMA}),
    "E4": FIXED,
    "E5": "twist_marten",
}


@dataclass(frozen=True)
class Case:
    """A reply, and what the scorer has to say of it. `finish`: why the reply ended."""

    family: str
    text: str
    answer: str | None
    score: float = 1.0
    mode: str = "ok"
    finish: str = "stop"


def failed(family: str, text: str, mode: str, finish: str = "stop") -> Case:
    return Case(family, text, None, 0.0, mode, finish)


def numbers(family: str) -> list[Case]:
    right = EXPECTED[family]
    return [
        Case(family, right, right),
        Case(family, f"**{right}**.", right),
        Case(family, f"{right}.0", right),
        Case(family, f"First 80 * 3 = 240, then more; the result is {right}.", right),
        Case(family, f"{right}\n\nThat is 240 + 77, in 4 steps.", right),
        Case(family, f"The final answer: {right}\nI took 4 steps.", right),
        Case(family, f"I get {right} after 4 steps.", "4", 0.0),
        Case(family, f"Answer: {right}\nI took four steps", right),
        Case(family, f"```\n{right}\n```", right),
        Case(family, f"<think>240? 298?</think>\n{right}", right),
        Case(family, "316", "316", 0.0),
        Case(family, "-" + right, "-" + right, 0.0),
        Case(family, right + ".5", right + ".5", 0.0),
        Case(family, f"{right}\n\nTo get there, multiply 80 by", right, finish="length"),
        failed(family, "", "empty"),
        failed(family, " \n", "empty", "length"),
        failed(family, "the number", "wrong_format"),
        failed(family, f"Step 1 gives 240. Step 2 gives {right}", "truncated", "length"),
        failed(family, right, "truncated", "length"),
        failed(family, "<think>80 times 3 is 240", "reasoning_leak", "length"),
        failed(family, "<think>80 times 3 is 240</think>", "premature_eos"),
        failed(family, "<think>80 times 3 is 240</think>\n", "truncated", "length"),
        failed(family, "240 240 " * 30, "runaway_repetition", "length"),
        failed(family, "I'm sorry, but I can't help with 80.", "refusal"),
        Case(family, LONG_NUMBER, f"1.{LONG_NUMBER[1:]}e+{len(LONG_NUMBER) - 1}", 0.0),
    ]


def syntax(source: str) -> str:
    text = normalised_syntax(source)
    assert text is not None
    return text


def facts(**changed: str) -> str:
    return json.dumps(changed, sort_keys=True, separators=(",", ":"))


CASES = [
    # A2: a secret
    Case("A2", SECRET, SECRET),
    Case("A2", f'"{SECRET}".', SECRET),
    Case("A2", f"The passphrase of the nettle vault is {SECRET}.", SECRET),
    Case("A2", f"Sure!\n\n```\n{SECRET}\n```\nKeep it safe.", SECRET),
    Case("A2", f"**Passphrase:** `{SECRET}`", SECRET),
    Case("A2", f"It is {SECRET}. The nettle", SECRET, finish="length"),
    Case("A2", "beaver-3581-amber", "beaver-3581-amber", 0.0),
    Case("A2", "It is beaver-3581-amber, not " + SECRET, "beaver-3581-amber", 0.0),
    Case("A2", "Beaver-3580-Amber", "Beaver-3580-Amber", 0.0),
    Case("A2", "beaver-3580", "beaver-3580", 0.0),
    Case("A2", "the nettle vault", "the nettle vault", 0.0),
    failed("A2", "", "empty"),
    failed("A2", "It is " + SECRET[:-2], "truncated", "length"),
    failed("A2", "I read the notes, and they say nothing of a vault.", "wrong_format"),
    failed("A2", "I\u2019m sorry, but I can\u2019t share passphrases.", "refusal"),
    failed("A2", f"{SECRET} " * 12, "runaway_repetition", "length"),
    failed("A2", f"<think>It is {SECRET}", "reasoning_leak"),
    *numbers("A4"),
    *numbers("B1"),
    *numbers("C1"),
    # D1: three facts
    Case("D1", "component: allocator\nowner: Yara\nticket: CV-4001", FACTS),
    Case("D1", "ticket = CV-4001\nOwner: Yara\n**Component:** allocator.", FACTS),
    Case("D1", FACTS, FACTS),
    Case("D1", f"```json\n{FACTS}\n```", FACTS),
    Case("D1", "```\ncomponent: allocator\nowner: Yara\nticket: CV-4001\n```", FACTS),
    Case(
        "D1",
        "Here are the facts of report walrus:\n\n- component: allocator\n- owner: Yara\n"
        "- ticket: CV-4001\n\nLet me know if you need more.",
        FACTS,
    ),
    Case("D1", "component: allocator, owner: Yara, ticket: CV-4001", FACTS),
    Case("D1", "component: ...\ncomponent: allocator\nowner: Yara\nticket: CV-4001", FACTS),
    Case(
        "D1",
        "component: allocator\nowner: Rosa\nticket: CV-4001",
        facts(component="allocator", owner="Rosa", ticket="CV-4001"),
        2 / 3,
    ),
    Case("D1", "owner: Yara", facts(owner="Yara"), 1 / 3),
    Case(
        "D1",
        '{"component": "proxy", "owner": null, "ticket": 4001}',
        facts(component="proxy", owner="null", ticket="4001"),
        0.0,
    ),
    failed("D1", "", "empty"),
    failed("D1", "The report is about a fault in a part.", "wrong_format"),
    failed("D1", "component: allocator\nowner: Yara\nticket: CV-4", "truncated", "length"),
    Case("D1", "component: allocator\nowner: Yara\nticket: CV-4001\nI", FACTS, finish="length"),
    # E1: four values in order
    Case("E1", "cormorant-74, harrier-59, weasel-98, gannet-14", CODES),
    Case("E1", "cormorant-74,harrier-59,weasel-98,gannet-14.", CODES),
    Case("E1", "cormorant-74\nharrier-59\nweasel-98\ngannet-14", CODES),
    Case("E1", CODES, CODES),
    Case("E1", f"```json\n{CODES}\n```", CODES),
    Case("E1", "```\ncormorant-74, harrier-59, weasel-98, gannet-14\n```", CODES),
    Case(
        "E1",
        "The codes of gneiss, marble, jade and onyx are:\n"
        "cormorant-74, harrier-59, weasel-98, and gannet-14.\nAsk me about gecko-62!",
        CODES,
    ),
    Case(
        "E1",
        "1. gneiss: cormorant-74\n2. marble: harrier-59\n3. jade: weasel-98\n4. onyx: gannet-14",
        CODES,
    ),
    Case(
        "E1",
        "cormorant-74, harrier-59, gannet-14, weasel-98",
        '["cormorant-74","harrier-59","gannet-14","weasel-98"]',
        0.5,
    ),
    Case("E1", "cormorant-74, harrier-59", '["cormorant-74","harrier-59"]', 0.5),
    Case(
        "E1",
        "cormorant-74, harrier-59, weasel-98, gannet-14, gecko-62",
        CODES[:-1] + ',"gecko-62"]',
        0.8,
    ),
    Case("E1", "gneiss, marble, jade, onyx", '["gneiss","marble","jade","onyx"]', 0.0),
    failed("E1", "", "empty"),
    failed("E1", "cormorant-74", "wrong_format"),
    failed(
        "E1", "Well, I have looked at all of the codes in the notes, and found none", "wrong_format"
    ),
    failed("E1", "cormorant-74, harrier-59, weasel-98, gannet-1", "truncated", "length"),
    Case("E1", "cormorant-74, harrier-59, weasel-98, gannet-14\nThe co", CODES, finish="length"),
    # E2: one JSON object
    Case("E2", OBJECT, OBJECT),
    Case("E2", json.dumps(json.loads(OBJECT), indent=2), OBJECT),
    Case("E2", f"```json\n{OBJECT}\n```", OBJECT),
    Case("E2", f"Here is the service: {OBJECT} Anything else?", OBJECT),
    Case("E2", f"{OBJECT}\n\nThis object has thr", OBJECT, finish="length"),
    Case("E2", OBJECT.replace("9824", "9825"), OBJECT.replace("9824", "9825"), 2 / 3),
    Case("E2", OBJECT.replace("9824", "9824.0"), OBJECT.replace("9824", "9824.0"), 2 / 3),
    Case("E2", OBJECT.replace("9824", '"9824"'), OBJECT.replace("9824", '"9824"'), 2 / 3),
    Case("E2", OBJECT.replace("true", "1"), OBJECT.replace("true", "1"), 2 / 3),
    Case("E2", '{"workers": 9824}', '{"workers":9824}', 1 / 3),
    Case("E2", OBJECT[:-1] + ',"x":1}', OBJECT[:-1] + ',"x":1}', 0.75),
    Case(
        "E2",
        '{"workers": 7, "image": "", "sealed": false}',
        '{"image":"","sealed":false,"workers":7}',
        0.0,
    ),
    Case("E2", "{}", "{}", 0.0),
    failed("E2", "", "empty"),
    failed("E2", "9824 workers, osprey-garnet, sealed", "no_valid_json"),
    failed("E2", "{'workers': 9824}", "no_valid_json"),
    failed("E2", OBJECT.replace("9824", "NaN"), "no_valid_json"),
    failed("E2", OBJECT.replace("9824", "1e999"), "no_valid_json"),
    failed("E2", OBJECT.replace("9824", "9" * 5000), "no_valid_json"),
    failed("E2", '{"workers": 9824, "workers": 9824}', "no_valid_json"),
    failed("E2", '[9824, "osprey-garnet", true]', "wrong_format"),
    failed("E2", '{"workers": 9824, "image":', "premature_eos"),
    failed("E2", '{"workers": 9824, "image":', "truncated", "length"),
    # E3: a tool call
    Case("E3", CALL, CALL),
    Case("E3", f"```json\n{CALL}\n```", CALL),
    Case("E3", f"I will restart it.\n{CALL}\nDone.", CALL),
    Case("E3", CALL[:-1] + ', "type": "function"}', CALL),
    Case("E3", CALL.replace("93", "94"), CALL.replace("93", "94"), 0.5 + 0.5 * 2 / 3),
    Case("E3", CALL.replace("93", '"93"'), CALL.replace("93", '"93"'), 0.5 * 2 / 3),
    Case("E3", CALL.replace("staged", "gentle"), CALL.replace("staged", "gentle"), 0.5 * 2 / 3),
    Case("E3", CALL.replace('"delay":93,', ""), CALL.replace('"delay":93,', ""), 0.5 * 2 / 3),
    Case(
        "E3",
        CALL.replace('"delay":93,', '"delay":93,"force":true,'),
        CALL.replace('"delay":93,', '"delay":93,"force":true,'),
        0.5 * 3 / 4,
    ),
    Case("E3", CALL.replace("restart", "stop"), CALL.replace("restart", "stop"), 0.0),
    Case(
        "E3",
        '{"name": "restart_host", "arguments": {}}',
        '{"arguments":{},"name":"restart_host"}',
        0.0,
    ),
    failed("E3", "", "empty"),
    failed("E3", "restart_host(falcon-thistle, 93, staged)", "no_valid_json"),
    failed("E3", '{"tool": "restart_host"}', "wrong_format"),
    failed("E3", CALL.replace('"restart_host"', "7"), "wrong_format"),
    failed("E3", '{"name": "restart_host", "arguments": "{}"}', "wrong_format"),
    failed("E3", CALL[:-1], "premature_eos"),
    failed("E3", CALL[:-9], "truncated", "length"),
    # E4: a function
    Case("E4", FIXED, syntax(FIXED)),
    Case("E4", f"```python\n{FIXED}\n```", syntax(FIXED)),
    Case("E4", f"Here is it:\n\n```py\n{FIXED}\n```\n\nIt now demands both.", syntax(FIXED)),
    Case("E4", f"The corrected function is:\n\n{FIXED}\n\nIt demands both.", syntax(FIXED)),
    Case(
        "E4",
        "```python\ndef grind_aspen(depth: int) -> bool:\n    '''Both.'''  # now\n"
        "    return (depth > 45) and (depth < 125)\n```",
        syntax(FIXED),
    ),
    Case("E4", f"```\n{BROKEN}\n```\nmust become\n```\n{FIXED}\n```", syntax(FIXED)),
    Case("E4", f"```python\n{FIXED}", syntax(FIXED)),
    Case("E4", f"```python\n{FIXED}\n```\nNow it", syntax(FIXED), finish="length"),
    Case("E4", BROKEN, syntax(BROKEN), 0.0),
    Case(
        "E4",
        FIXED.replace("depth > 45 and depth < 125", "45 < depth < 125"),
        syntax(FIXED.replace("depth > 45 and depth < 125", "45 < depth < 125")),
        0.0,
    ),
    Case(
        "E4", FIXED + "\n\nprint(grind_aspen(50))", syntax(FIXED + "\nprint(grind_aspen(50))"), 0.0
    ),
    failed("E4", "", "empty"),
    failed("E4", "Use and instead of or.", "parse_fail"),
    failed("E4", "return depth > 45 and depth < 125", "parse_fail"),
    failed("E4", "```python\ndef grind_aspen(depth):\n    return depth >\n```", "parse_fail"),
    failed("E4", "```python\ndef grind_aspen(depth):\n    return (depth > 45", "premature_eos"),
    failed("E4", FIXED, "truncated", "length"),
    failed("E4", "def f():\n  return " + "(" * 5000, "parse_fail"),
    # E5: a name
    Case("E5", "twist_marten", "twist_marten"),
    Case("E5", "`twist_marten()`", "twist_marten"),
    Case("E5", "The function is twist_marten.", "twist_marten"),
    Case("E5", "```python\ntwist_marten\n```", "twist_marten"),
    Case("E5", "def twist_marten(x):", "twist_marten"),
    Case("E5", "twist_marten calls forge_egret and returns a dict.", "twist_marten"),
    Case(
        "E5",
        "The function that calls `forge_egret` and returns a dict is **twist_marten**.",
        "twist_marten",
    ),
    Case("E5", "twist_marten\nIt calls forge_eg", "twist_marten", finish="length"),
    Case("E5", "stir_lemur", "stir_lemur", 0.0),
    Case("E5", "stir_lemur, which is not twist_marten", "stir_lemur", 0.0),
    failed("E5", "", "empty"),
    failed("E5", "It is the third of them", "wrong_format"),
    failed("E5", "The function is twist_mar", "truncated", "length"),
    failed("E5", "I cannot answer questions about code.", "refusal"),
]


def item(family: str | None, expected: str | None) -> Item:
    return Item("q", (Message("user", "?"),), expected, family)


def scored(family: str | None, text: str, expected: str | None, finish: str = "stop") -> Scored:
    completion = Completion(text, finish_reason=finish)
    return apply_scorer(SparkScorer(), completion, item(family, expected))


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case.family}-{case.mode}-{case.text[:24]!a}"
)
def test_a_reply_is_read_and_scored(case: Case) -> None:
    found = scored(case.family, case.text, EXPECTED[case.family], case.finish)
    assert found == Scored(
        case.answer, EXPECTED[case.family], case.mode, case.score, case.score == 1.0
    )


def test_the_table_is_complete() -> None:
    families = {case.family for case in CASES}
    assert families == {family.value for family in Family}
    assert len(CASES) >= 60
    for family in families:
        mine = [case for case in CASES if case.family == family]
        assert {1.0, 0.0} <= {case.score for case in mine}
        assert {"ok", "empty"} < {case.mode for case in mine}
        assert any("```" in case.text for case in mine if case.score == 1.0)
    partial = {case.family for case in CASES if 0 < case.score < 1}
    assert partial == {"D1", "E1", "E2", "E3"}
    assert {case.mode for case in CASES} == {mode.value for mode in FailureMode}


MAKERS: dict[str, Callable[[Draw], Task]] = {
    "A2": tasks_text.recall,
    "A4": tasks_text.four_steps,
    "B1": tasks_text.three_quantities,
    "C1": tasks_code.return_value,
    "D1": tasks_text.report,
    "E1": tasks_text.pairs,
    "E2": tasks_text.json_object,
    "E3": tasks_text.tool_call,
    "E4": tasks_code.fix_bug,
    "E5": tasks_code.caller,
}


def as_asked(family: str, expected: str) -> str:
    """The expected answer in the form that the question asks for."""
    if family == "D1":
        return "\n".join(f"{key}: {value}" for key, value in json.loads(expected).items())
    if family == "E1":
        return ", ".join(json.loads(expected))
    if family == "E3":
        return json.dumps(json.loads(expected)["call"])
    return expected


@pytest.mark.parametrize("family", sorted(MAKERS))
def test_the_right_answers_of_the_work_set_are_right(family: str) -> None:
    for seed in range(40):
        task = MAKERS[family](Draw(f"{family}/{seed}"))
        found = scored(family, as_asked(family, task.expected), task.expected)
        assert (found.failure_mode, found.score, found.passed) == ("ok", 1.0, True)
        if family == "E4":
            wrong = scored(family, task.facts[0], task.expected)
            assert (wrong.failure_mode, wrong.score) == ("ok", 0.0)


@pytest.mark.parametrize("family", ["Z9", None, "a2", ""])
def test_another_family_is_compared_by_its_text(family: str | None) -> None:
    assert scored(family, ' "Rome" ', "Rome") == Scored("Rome", "Rome", "ok", 1.0, True)
    assert scored(family, "Rome, Italy", "Rome").passed is False
    assert scored(family, "", "Rome").failure_mode == "empty"


@pytest.mark.parametrize("family", sorted(EXPECTED))
def test_without_an_expected_answer_nothing_is_scored(family: str) -> None:
    assert scored(family, "x", None) == Scored("x", None, "ok", None, None)


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("A4", "four"),
        ("B1", "1.5"),
        ("D1", "[]"),
        ("D1", "{}"),
        ("D1", '{"a": 1}'),
        ("D1", "not JSON"),
        ("E1", "[]"),
        ("E1", "[1]"),
        ("E2", "[]"),
        ("E2", "{}"),
        ("E3", CALL),
        ("E3", json.dumps({"call": {"name": "stop_host", "arguments": {}}, "schema": SCHEMA})),
        ("E3", json.dumps({"call": {"name": "restart_host", "arguments": {}}, "schema": SCHEMA})),
        ("E4", "def f(:"),
    ],
)
def test_an_expected_answer_that_a_family_cannot_have_is_a_fault(
    family: str, expected: str
) -> None:
    with pytest.raises(ScorerError, match="scorer spark failed on item 'q': ValueError"):
        scored(family, "x", expected)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ([], "must be an object with a name"),
        ({"name": 1}, "must be an object with a name"),
        ({"name": "t", "parameters": {"type": "array"}}, "must be of type object"),
        ({"name": "t", "parameters": {"type": "object", "oneOf": []}}, "keyword 'oneOf'"),
        ({"name": "t", "parameters": {"type": "object", "required": ["a"]}}, "no property"),
        (
            {"name": "t", "parameters": {"type": "object", "properties": {"a": {"type": "date"}}}},
            "must have one of the types",
        ),
        (
            {
                "name": "t",
                "parameters": {
                    "type": "object",
                    "properties": {"a": {"type": "string", "pattern": "x"}},
                },
            },
            "keyword 'pattern'",
        ),
    ],
)
def test_a_schema_that_is_not_understood_is_refused(changed: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tool_of(changed)


@pytest.mark.parametrize(
    ("kind", "fitting", "unfitting"),
    [
        ("integer", [0, -3], [1.0, True, "1", None]),
        ("number", [0, 1.5], [True, "1", None]),
        ("boolean", [True, False], [0, 1, "true"]),
        ("string", ["", "1"], [1, None, ["a"], {}]),
    ],
)
def test_arguments_have_to_be_of_their_type(
    kind: str, fitting: list[object], unfitting: list[object]
) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": kind}}, "required": []}
    tool = tool_of({"name": "t", "parameters": parameters})
    assert tool.accepts({})
    assert all(tool.accepts({"a": value}) for value in fitting)
    assert not any(tool.accepts({"a": value}) for value in unfitting)
    assert not tool.accepts({"b": 1})


HOSTILE = (
    "NaN",
    "1e999999999",
    "-" * 300 + "x",
    "\ud800\udfff",
    "\x1b[2J\x1b]0;gone\x07",
    "\0",
    "{" * 50_000,
    '{"a":' * 20_000,
    "[" * 50_000 + "]" * 50_000,
    "9" * 100_000,
    "a" * 100_000,
    "a_b " * 25_000,
    "is " * 30_000,
    "component: " * 9_000,
    "a-1, " * 20_000,
    "<think>" * 15_000,
    "</think>" * 15_000,
    "```\n" * 25_000,
    "def f():\n" * 10_000,
    "\u2067\u202e" * 1000,
    "name\n" * 20_000,
    "\n" * 100_001 + "x",
    "x" + " " * 100_001 + "x",
    '"' * 100_001 + "x",
)


@pytest.mark.parametrize("family", sorted(EXPECTED))
@pytest.mark.parametrize("finish", ["stop", "length"])
def test_no_reply_breaks_the_scorer(family: str, finish: str) -> None:
    """`apply_scorer` raises for whatever cannot be compared or stored."""
    for text in HOSTILE:
        found = scored(family, text, EXPECTED[family], finish)
        assert found.passed is False
        assert (found.extracted_answer is None) == (found.failure_mode != "ok")
        json.dumps(found.extracted_answer).encode("utf-8")


def test_a_reply_of_reasoning_alone_is_no_empty_one() -> None:
    thinking = Completion("", finish_reason="length", reasoning="80 times 3")
    found = apply_scorer(SparkScorer(), thinking, item("A4", "317"))
    assert found.failure_mode == "truncated"
    unknown = Completion("", reasoning="80 times 3")
    assert apply_scorer(SparkScorer(), unknown, item("A4", "317")).failure_mode == "empty"


def test_a_context_that_ran_out_cuts_a_reply_off() -> None:
    completion = Completion("It is 31", finish_reason="stop", truncated=True)
    found = apply_scorer(SparkScorer(), completion, item("A4", "317"))
    assert found.failure_mode == "truncated"


def test_a_plain_secret_and_a_plain_name_are_found_too() -> None:
    assert scored("A2", "I think it is blue heron, yes.", "blue heron").passed is True
    assert scored("A2", "a heron of blue", "blue heron").extracted_answer == "a heron of blue"
    for text in ("render", "The function is render.", "It is `render`", "The answer is render()"):
        assert scored("E5", text, "render").passed is True
    assert scored("E5", "It renders things for you", "render").failure_mode == "wrong_format"


def test_values_without_a_pattern_are_what_commas_and_lines_part() -> None:
    expected = '["red","green","dark blue"]'
    for text in ("red, green, and dark blue.", "- red\n- green\n- dark blue"):
        assert scored("E1", text, expected).passed is True


def test_the_scorer_can_be_named_on_the_command_line() -> None:
    scorer = resolve_scorer("batch_invariance.profiles.spark.scorer:SparkScorer")
    info = describe_scorer(scorer)
    assert (info.name, dict(info.params)) == ("spark", {})
