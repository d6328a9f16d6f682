"""Reading replies: reasoning, fences, wrappers, numbers, JSON, and signs of trouble."""

from __future__ import annotations

import json

import pytest

from batch_invariance.answer_code import reply_syntax
from batch_invariance.answer_text import (
    Fence,
    Visible,
    encodable,
    fences,
    is_refusal,
    is_runaway,
    settled_part,
    unwrapped,
    without_fence_marks,
    without_reasoning,
)
from batch_invariance.answer_values import (
    canonical_number,
    find_json,
    json_regions,
    json_text,
    last_number,
    same_json,
    strict_json,
    whole_number_text,
    within,
)


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        ("plain", Visible("plain", False)),
        ("<think>hm</think>\n42", Visible("\n42", False)),
        ("a<think>x</think>b<think>y</think>c", Visible("abc", False)),
        ("in the prompt opened</think>42", Visible("42", False)),
        ("<think>a<think>b</think>c</think>d", Visible("d", False)),
        ("42 <think>but wait", Visible("42 ", True)),
        ("<think>", Visible("", True)),
        ("x</think>42<think>y", Visible("42", True)),
    ],
)
def test_reasoning_is_cut_out(text: str, visible: Visible) -> None:
    assert without_reasoning(text) == visible


@pytest.mark.parametrize(
    ("text", "found", "rest"),
    [
        ("a ```b``` c", [], "a ```b``` c"),
        ("```\n42\n```", [Fence("", "42", True)], "42"),
        ("see:\n```Python\nx\n\ny\n```\nok", [Fence("python", "x\n\ny", True)], "see:\nx\n\ny\nok"),
        (
            "```json\n{}\n```\n~~~\nb\n~~~",
            [Fence("json", "{}", True), Fence("", "b", True)],
            "{}\nb",
        ),
        ("````\n```\nx\n```\n````", [Fence("", "```\nx\n```", True)], "```\nx\n```"),
        ("```py\nx = 1", [Fence("py", "x = 1", False)], "x = 1"),
        ("```", [Fence("", "", False)], ""),
    ],
)
def test_fences_are_found_and_taken_off(text: str, found: list[Fence], rest: str) -> None:
    assert list(fences(text)) == found
    assert without_fence_marks(text) == rest


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (' "42" ', "42"),
        ("**`name`**", "name"),
        ("\u201cquoted\u201d", "quoted"),
        ("'it''s'", "'it''s'"),
        ('"a" and "b"', '"a" and "b"'),
        ("**", "**"),
        ('"', '"'),
        ("", ""),
        ("__init__", "__init__"),
        ("```weld()```", "weld()"),
    ],
)
def test_wrappers_around_the_whole_are_peeled(text: str, inside: str) -> None:
    assert unwrapped(text) == inside


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", "42"),
        ("The answer is 42.", "42"),
        ("17 + 25 = 42", "42"),
        ("**1,024**", "1024"),
        ("$1,234,567.80!", "1234567.8"),
        ("3,5", "5"),
        ("12,345,67", "67"),
        ("1,2345", "2345"),
        ("-7", "-7"),
        ("it is \u22127", "-7"),
        ("a change of -$5", "-5"),
        ("+7", "7"),
        ("3-4", "4"),
        ("10 - 3", "3"),
        ("f(2)-1", "1"),
        ("7.0", "7"),
        ("007.50", "7.5"),
        ("-0.0", "0"),
        (".5", "0.5"),
        ("wait...5", "5"),
        ("1.5e3", "1500"),
        ("2E-3", "0.002"),
        ("1e30", "1e+30"),
        ("-1.25e-9", "-1.25e-9"),
        ("6 apples", "6"),
        ("7kg", "7"),
        ("50%", "50"),
        ("item_5 and x1", None),
        ("GPT-4", "4"),
        ("v3.14.15", None),
        ("3.14.15", "3.14"),
        ("1e1234567", "1"),
        ("none", None),
        ("", None),
        ("\u0663", None),
        ("9" * 5000, f"9.{'9' * 4999}e+4999"),
        ("1" + "0" * 5000, "1e+5000"),
    ],
)
def test_the_last_number_in_canonical_form(text: str, number: str | None) -> None:
    assert last_number(text) == number


@pytest.mark.parametrize("text", ["42", "-4.25", "1e+30", "0", "0.0000001", "1e-8", "-1.5e-9"])
def test_a_canonical_number_stays_as_it_is(text: str) -> None:
    assert canonical_number(text) == text
    assert last_number(text) == text
    assert whole_number_text(text) == text


@pytest.mark.parametrize("text", ["", "-", "42 apples", "1,2", "nan", "inf", "0x10", " 4"])
def test_what_is_more_or_less_than_a_number_is_none(text: str) -> None:
    assert whole_number_text(text) is None


def test_what_is_no_number_has_no_canonical_form() -> None:
    with pytest.raises(ValueError, match="no number"):
        canonical_number("")


@pytest.mark.parametrize(
    ("one", "other", "tolerance", "expected"),
    [
        ("0.31", "0.3", 0.01, True),
        ("0.3100001", "0.3", 0.01, False),
        ("42", "42", 0.0, True),
        ("42", "43", 0.0, False),
        ("1e+999999", "1", 1.0, False),
        ("9" * 5000, "9" * 4999 + "8", 0.5, False),
        ("1e-999999", "0", 1e-300, True),
        ("-1", "1", 2.0, True),
    ],
)
def test_the_tolerance_is_decimal_and_absolute(
    one: str, other: str, tolerance: float, expected: bool
) -> None:
    assert within(one, other, tolerance) is expected


@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        "[Infinity]",
        "1e400",
        '{"a": 1, "a": 1}',
        '{"x": {"a": 1, "a": 2}}',
        "{'a': 1}",
        '{"a": 1,}',
        "{} {}",
        "",
        '"\n"',
        "9" * 5000,
        "-" + "9" * 5000,
        "[" * 65 + "]" * 65,
        "[" * 200_000,
        '{"a":' * 100_000,
        "\ufeff{}",
    ],
)
def test_what_is_no_strict_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        strict_json(text)


def test_strict_json_reads_what_json_is() -> None:
    assert strict_json(' {"a": [1, 2.5, true, null, "\\ud800"]} ') == {
        "a": [1, 2.5, True, None, "\ud800"]
    }
    assert strict_json("[" * 64 + "]" * 64) is not None
    assert strict_json('"[[[[' + "[" * 100 + '"') == "[[[[" + "[" * 100


def test_json_has_one_form_by_type() -> None:
    assert json_text({"b": 1, "a": "\u00e9\ud800"}) == '{"a":"\\u00e9\\ud800","b":1}'
    assert not same_json(1, 1.0)
    assert not same_json(1, True)
    assert not same_json("1", 1)
    assert same_json({"a": 1, "b": 2}, {"b": 2, "a": 1})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('Sure: {"a": 1}. Done.', {"a": 1}),
        ("use { here. " + '{"a": 1}', {"a": 1}),
        ("see {below} or " + '{"a": 1} and {"b": 2}', {"a": 1}),
        ('{"a": "}{\\"}"} x', {"a": '}{"}'}),
        ('```json\n{"a": {"b": 2}}\n```', {"a": {"b": 2}}),
        ('he said "use {"a": 1}', {"a": 1}),
        ('} {"a": 1}', {"a": 1}),
    ],
)
def test_the_first_complete_object_in_prose(text: str, value: object) -> None:
    assert find_json(text, "{") == value


@pytest.mark.parametrize(
    "text",
    ["none", '{"a": 1', "{'a': {\"b\": 1}}", '{"a": NaN}', "{" * 100_000, "{}}"[1:], '{"a": "\n"}'],
)
def test_no_object_inside_a_broken_one(text: str) -> None:
    with pytest.raises(ValueError):
        find_json(text, "{")


def test_lists_in_prose() -> None:
    assert find_json('values: ["a", "b"] ok', "[") == ["a", "b"]
    assert json_regions("[1] [2, [3]] [", "[") == ["[1]", "[2, [3]]"]


@pytest.mark.parametrize(
    ("text", "runaway"),
    [
        ("10 " * 20, True),
        ("The answer is 4. " * 9, True),
        ("The answer is 4. " * 7, False),
        ("Steps follow.\n" + "one two three\n" * 50 + "one tw", True),
        ("no no no", False),
        ("-" * 80, False),
        ("```\n" * 20, True),
        ("| a |\n" + "-" * 80, False),
        ("x" * 39, False),
        ("x" * 40, True),
        ("", False),
        ("The quick brown fox jumps over the lazy dog, and then it goes home again.", False),
        ("x" * 1_000_000, True),
        ("ab" * 20 + ".", False),
    ],
)
def test_runaway_repetition(text: str, runaway: bool) -> None:
    assert is_runaway(text) is runaway


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't help with that.",
        "I\u2019m sorry, I can\u2019t share secrets.",
        "I cannot provide the passphrase.",
        "Sorry, I am unable to assist.",
        "As an AI language model, I cannot answer that.",
        "Unfortunately, I can't answer.",
        "I am not able to comply with this request.",
    ],
)
def test_a_refusal_is_seen(text: str) -> None:
    assert is_refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        "I cannot find it; 42.",
        "The answer is: I cannot help you.",
        "42",
        "Sorry, the answer is 42.",
        "I can help: 42",
        "I can't be sure, but it is 42.",
        "",
    ],
)
def test_what_is_no_refusal(text: str) -> None:
    assert not is_refusal(text)


def test_what_of_a_cut_off_text_is_whole() -> None:
    assert settled_part("It is 4. And then") == "It is 4."
    assert settled_part("a: 1\nb: 2") == "a: 1\n"
    assert settled_part("3.5 or") == ""
    assert settled_part("") == ""


def test_lone_surrogates_are_written_out() -> None:
    assert encodable("a\ud800b\U0001f600") == "a\\ud800b\U0001f600"


@pytest.mark.parametrize(
    "text",
    [
        "def f(x):\n    return x",
        "```python\ndef f(x):\n    return x\n```",
        "Here:\n\n```py\ndef f(x):\n    return x\n```\nIt returns x.",
        "Before:\n```\ndef f(x): return 0\n```\nAfter:\n```\ndef f(x): return x\n```",
        "```\ndef f(x): return x\n```\nOutput:\n```text\ndef g(): 1\n```\n```\n3\n```",
        "Here is the function:\ndef f(x):\n    return x\n\nIt returns x now.",
        "    def f(x):\n        return x",
        "```python\ndef f(x):\n    return x",
    ],
)
def test_source_is_found_in_a_reply(text: str) -> None:
    wanted = reply_syntax("def f(x):\n return x", definition=True)
    assert wanted is not None
    assert reply_syntax(text, definition=True) == wanted


@pytest.mark.parametrize(
    "text", ["Sure", "", "```\n\n```", "# nothing", "def f(:", "```js\nf()\n```"]
)
def test_no_source_in_a_reply(text: str) -> None:
    assert reply_syntax(text, definition=True) is None


def test_of_a_cut_off_reply_only_a_closed_block_counts() -> None:
    source = "def f(x):\n    return x"
    assert reply_syntax(source, definition=True, cut_off=True) is None
    assert reply_syntax(f"```\n{source}", definition=True, cut_off=True) is None
    assert reply_syntax(f"```\n{source}\n```\nThis", definition=True, cut_off=True) is not None


MEGA = 250_000
HUGE = (
    "x" * MEGA,
    "9" * MEGA,
    "1," * (MEGA // 2),
    "111," * (MEGA // 4),
    "-." * (MEGA // 2),
    "{" * MEGA,
    "[{" * (MEGA // 2),
    '{"' * (MEGA // 2),
    "<think>" * (MEGA // 7),
    "```\n" * (MEGA // 4),
    "`" * MEGA,
    "``` " + " " * MEGA + "`",
    '"' * MEGA,
    "\\" * MEGA,
    "a.b. " * (MEGA // 5),
    "is " * (MEGA // 3),
    "\n" * MEGA,
    "\ud800" * MEGA,
    "\x1b[2J" * (MEGA // 4),
)


@pytest.mark.parametrize("text", HUGE, ids=lambda text: ascii(text[:4]))
def test_a_long_text_of_anything_is_read(text: str) -> None:
    """Every reader makes a bounded number of passes; a quadratic one would not come to an end."""
    assert without_reasoning(text).text == text or "<think>" in text
    assert len(without_fence_marks(text)) <= len(text)
    assert len(unwrapped(text)) <= len(text)
    assert isinstance(is_runaway(text), bool)
    assert is_refusal(text) is False
    assert len(settled_part(text)) <= len(text)
    number = last_number(text)
    assert number is None or whole_number_text(number) == number
    for opening in "{[":
        assert json_regions(text, opening) == []
    with pytest.raises(ValueError):
        strict_json(text)
    assert reply_syntax(text, definition=True) is None
    json.dumps(encodable(text))
