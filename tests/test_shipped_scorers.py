"""The scorers that come with the tool: by name, with parameters, and what they say of replies."""

from __future__ import annotations

import ast
import importlib
import re
import sys
import types
from pathlib import Path

import pytest

from batch_invariance.errors import ScorerError
from batch_invariance.invariance_diff.model import Completion, Item, Message, Scored
from batch_invariance.profiles.spark.scorer import SparkScorer
from batch_invariance.python_syntax import normalised_syntax
from batch_invariance.scorer_api import (
    ExactMatch,
    Scorer,
    apply_scorer,
    describe_scorer,
    resolve_scorer,
    scorer_sha256,
)
from batch_invariance.scorer_parameters import construct, scorer_params
from batch_invariance.scorer_reading import FailureMode
from batch_invariance.scorers import SHIPPED, shipped_scorer

SOURCE = Path(__file__).resolve().parent.parent / "src"


def item(expected: str | None) -> Item:
    return Item("q", (Message("user", "?"),), expected)


def scored(
    name: str, text: str, expected: str | None, finish: str = "stop", **params: str
) -> Scored:
    completion = Completion(text, finish_reason=finish)
    return apply_scorer(shipped_scorer(name, params), completion, item(expected))


def test_all_are_there_by_name_with_a_line_about_each() -> None:
    assert {shipped.name: shipped.parameters for shipped in SHIPPED} == {
        "exact_match": (),
        "contains": ("ignore_case",),
        "last_number": ("tolerance",),
        "json_equal": ("partial",),
        "regex": ("pattern", "group", "full", "last"),
        "python_syntax": (),
    }
    for shipped in SHIPPED:
        scorer = shipped_scorer(shipped.name, {})
        info = describe_scorer(scorer)
        assert info.name == shipped.name
        assert tuple(info.params) == shipped.parameters
        assert "\n" not in shipped.right_when
        assert type(resolve_scorer(shipped.name)) is type(scorer)


RIGHT, WRONG = (1.0, True), (0.0, False)
NEW_TREE = normalised_syntax("def f(a): return a + 1")


@pytest.mark.parametrize(
    ("name", "text", "expected", "answer", "mode", "rated"),
    [
        ("exact_match", " 4 ", "4", "4", "ok", RIGHT),
        ("exact_match", "", "4", "", "empty", WRONG),
        ("contains", "It is Rome.", " Rome ", "Rome", "ok", RIGHT),
        ("contains", "It is rome.", "Rome", "It is rome.", "ok", WRONG),
        ("contains", "", "Rome", None, "empty", WRONG),
        ("contains", "<think>Rome</think>Oslo", "Rome", "Oslo", "ok", WRONG),
        ("contains", "<think>Rome", "Rome", None, "reasoning_leak", WRONG),
        ("contains", "x", " ", "x", "ok", (None, None)),
        ("last_number", "so $1,024.50.", "1024.5", "1024.5", "ok", RIGHT),
        ("last_number", "6.9", "7", "6.9", "ok", WRONG),
        ("last_number", "no idea", "7", None, "wrong_format", WRONG),
        ("last_number", "7", "Rome", "7", "ok", (None, None)),
        ("last_number", "1e400", "1e400", "1e+400", "ok", RIGHT),
        ("json_equal", '{"b": 1, "a": 2}', '{"a":2,"b":1}', '{"a":2,"b":1}', "ok", RIGHT),
        ("json_equal", '```json\n{"a": 2}\n```', '{"a":2}', '{"a":2}', "ok", RIGHT),
        ("json_equal", 'So: {"a": 2}!', '{"a":2}', '{"a":2}', "ok", RIGHT),
        ("json_equal", 'So: ["a"]!', '["a"]', '["a"]', "ok", RIGHT),
        ("json_equal", '{"a": 2.0}', '{"a":2}', '{"a":2.0}', "ok", WRONG),
        ("json_equal", "true", "1", "true", "ok", WRONG),
        ("json_equal", "```\n42\n```", "42", "42", "ok", RIGHT),
        ("json_equal", "{'a': 2}", '{"a":2}', None, "no_valid_json", WRONG),
        ("json_equal", '{"a": NaN}', '{"a":2}', None, "no_valid_json", WRONG),
        ("json_equal", '{"a": 2', '{"a":2}', None, "premature_eos", WRONG),
        ("json_equal", '{"a": {"b": 1}, "c"', '{"b":1}', None, "premature_eos", WRONG),
        ("regex", "the 4 of us", r"\d", "the 4 of us", "ok", RIGHT),
        ("regex", "the four of us", r"\d", "the four of us", "ok", WRONG),
        ("regex", "cost: 4", r"(?<=cost: )\d", "cost: 4", "ok", RIGHT),
        ("python_syntax", "def f(a):\n  return (a+1)", "def f(a): return a + 1", NEW_TREE, "ok",
         RIGHT),
        ("python_syntax", "Sure", "def f(a): return a", None, "parse_fail", WRONG),
        ("python_syntax", "```python\nx = 1\n```", "x = 0x1", normalised_syntax("x=1"), "ok",
         RIGHT),
        ("python_syntax", "```python\nx = (", "x = 1", None, "premature_eos", WRONG),
    ],
)  # fmt: skip
def test_a_reply_is_read_and_scored(
    name: str,
    text: str,
    expected: str,
    answer: str | None,
    mode: str,
    rated: tuple[float | None, bool | None],
) -> None:
    assert scored(name, text, expected) == Scored(answer, expected, mode, *rated)
    unscored = scored(name, text, None)
    assert (unscored.score, unscored.passed) == (None, None)


@pytest.mark.parametrize("name", ["last_number", "json_equal", "python_syntax"])
def test_a_reply_cut_off_before_an_answer_is_truncated(name: str) -> None:
    assert scored(name, "Well, the", "1", finish="length").failure_mode == "truncated"
    assert scored(name, "", "1", finish="length").failure_mode == "empty"


def test_parameters_change_what_is_right() -> None:
    assert scored("contains", "ROME", "Rome", ignore_case="true").passed is True
    assert scored("last_number", "0.31", "0.3", tolerance="0.01").passed is True
    assert scored("last_number", "0.32", "0.3", tolerance="0.01").passed is False
    half = scored("json_equal", '{"a": 1, "b": 2}', '{"a": 1, "b": 3}', partial="true")
    assert (half.score, half.passed) == (0.5, False)
    whole = scored("json_equal", "[1]", "[1]", partial="True")
    assert (whole.score, whole.passed) == (1.0, True)


@pytest.mark.parametrize(
    ("text", "expected", "params", "answer", "passed"),
    [
        ("#### 42 and #### 43", "42", {"pattern": r"#### (\d+)"}, "42", True),
        ("#### 42 and #### 43", "43", {"pattern": r"#### (\d+)", "last": "true"}, "43", True),
        ("a=1, b=2", "2", {"pattern": r"a=(\d), b=(\d)", "group": "2"}, "2", True),
        ("a=1, b=2", "1", {"pattern": r"a=(?P<first>\d)", "group": "first"}, "1", True),
        ("a=1", "a=1", {"pattern": r"a=(\d)", "group": "0"}, "a=1", True),
        ("x yes", "YES", {"pattern": r"(?i)y\w+"}, "yes", False),
        ("yes", "yes", {"pattern": r"\w+", "full": "true"}, "yes", True),
        ("yes!", "yes", {"pattern": r"\w+", "full": "true"}, None, False),
        ("none", "x", {"pattern": r"(x)|none"}, None, False),
        ("yes!", r"yes", {"full": "true"}, "yes!", False),
        ("oh yes", r"yes$", {"last": "true"}, "oh yes", True),
    ],
)
def test_patterns(
    text: str, expected: str, params: dict[str, str], answer: str | None, passed: bool
) -> None:
    found = scored("regex", text, expected, **params)
    assert (found.extracted_answer, found.passed) == (answer, passed)
    assert found.failure_mode == ("ok" if answer is not None else "wrong_format")


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("last_numbers", {}, "did you mean last_number?"),
        ("qwxz", {}, "those shipped are exact_match, contains"),
        ("last_number", {"tolerence": "1"}, "did you mean tolerance? it takes tolerance"),
        ("last_number", {"x": "1"}, "has no parameter x; it takes tolerance"),
        ("last_number", {"tolerance": "wide"}, "tolerance must be a finite number, is 'wide'"),
        ("last_number", {"tolerance": "nan"}, "tolerance must be a finite number, is 'nan'"),
        ("last_number", {"tolerance": "-1"}, "tolerance must be zero or more"),
        ("contains", {"ignore_case": "yes"}, "ignore_case must be true or false, is 'yes'"),
        ("exact_match", {"x": "1"}, "takes no parameters, and x was given"),
        ("regex", {"pattern": "("}, "pattern '(' cannot be compiled: missing )"),
        ("regex", {"pattern": "a{9999999999}"}, "cannot be compiled"),
        ("regex", {"pattern": "(" * 5000 + ")" * 5000}, "cannot be compiled"),
        ("regex", {"pattern": "(a)", "group": "2"}, "no group '2'; it has 1 of them"),
        ("regex", {"pattern": "(?P<n>a)", "group": "m"}, "no group 'm'; it has 1 of them (n)"),
        ("regex", {"group": "1"}, "group needs a pattern"),
        ("regex", {"pattern": "a", "full": "true", "last": "true"}, "exclude each other"),
    ],
)
def test_says_in_one_line_what_is_wrong(name: str, params: dict[str, str], message: str) -> None:
    with pytest.raises(ScorerError) as caught:
        shipped_scorer(name, params)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"scorer {name!r}")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("name", "expected", "message"),
    [
        ("json_equal", "{'a': 1}", "the expected answer is no strict JSON"),
        ("python_syntax", "def f(:", "the expected answer is no Python 3.10 source"),
        ("regex", "(", "pattern '(' cannot be compiled"),
    ],
)
def test_an_expected_answer_that_cannot_be_one_is_a_fault(
    name: str, expected: str, message: str
) -> None:
    with pytest.raises(ScorerError) as caught:
        scored(name, "x", expected)
    assert message in str(caught.value)


def test_texts_of_parameters_are_split_at_their_first_equals_sign() -> None:
    assert scorer_params(["pattern=a=b", "group="]) == {"pattern": "a=b", "group": ""}
    with pytest.raises(ScorerError) as caught:
        scorer_params(["a", "=b", "c=1", "c=2"])
    assert str(caught.value) == (
        "scorer parameters: 'a' must be written KEY=VALUE; '=b' must be written KEY=VALUE;"
        " c is given twice"
    )


class Tuned(ExactMatch):
    """Takes one parameter of every type."""

    name = "tuned"

    def __init__(
        self,
        whole: int = 1,
        part: float | None = None,
        text: str = "",
        yes: bool = False,
        either: int | str = 0,
        free=None,  # type: ignore[no-untyped-def]
    ) -> None:
        self.params = {
            "whole": whole, "part": part, "text": text, "yes": yes, "either": either, "free": free,
        }  # fmt: skip


def test_a_class_of_ones_own_gets_its_parameters_by_annotation() -> None:
    spec = f"{__name__}:Tuned"
    texts = ["whole=-3", "part=0.5", "text=7", "yes=TRUE", "either=7", "free=7"]
    assert dict(describe_scorer(resolve_scorer(spec, texts)).params) == {
        "whole": -3, "part": 0.5, "text": "7", "yes": True, "either": "7", "free": "7",
    }  # fmt: skip
    assert scorer_sha256(resolve_scorer(spec, texts)) != scorer_sha256(resolve_scorer(spec))
    with pytest.raises(ScorerError, match=r"whole must be a whole number, is '1\.5'"):
        resolve_scorer(spec, ["whole=1.5"])
    with pytest.raises(ScorerError, match="Tuned' has no parameter hole; did you mean whole"):
        resolve_scorer(spec, ["hole=1"])


def always(text: str, expected: str) -> bool:
    return True


tuned = Tuned()


def test_only_a_class_takes_parameters() -> None:
    for name, what in (("always", "a function"), ("tuned", "an instance")):
        assert resolve_scorer(f"{__name__}:{name}") is not None
        with pytest.raises(ScorerError, match=f"is {what} and takes no parameters, a, b given"):
            resolve_scorer(f"{__name__}:{name}", ["a=1", "b=2"])


def test_a_constructor_that_fails_is_a_one_line_error() -> None:
    class Failing(ExactMatch):
        def __init__(self, a: Unknown = None) -> None:  # type: ignore[name-defined] # noqa: F821
            raise RuntimeError("two\nlines")

    with pytest.raises(ScorerError, match="making one with these parameters raised RuntimeError"):
        construct(Failing, {"a": "1"}, "scorer x")
    with pytest.raises(ScorerError, match="without arguments raised RuntimeError: two lines"):
        construct(Failing, {}, "scorer x")


def own_imports(module: str) -> set[str]:
    """The modules of the package that a module imports."""
    file = sys.modules[module].__file__
    assert file is not None
    found = set()
    for node in ast.walk(ast.parse(Path(file).read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.startswith("batch_invariance.") and is_module(name)}


def is_module(name: str) -> bool:
    try:
        return isinstance(importlib.import_module(name), types.ModuleType)
    except ImportError:
        return False


NO_PART_OF_A_SCORER = {
    "batch_invariance.errors",
    "batch_invariance.invariance_diff",
    "batch_invariance.invariance_diff.model",
    "batch_invariance.profiles.spark",
    "batch_invariance.scorer_base",
    "batch_invariance.scorers",
}


@pytest.mark.parametrize("made", [*(one.made for one in SHIPPED), SparkScorer])
def test_the_digest_covers_all_that_a_scorer_rests_on(made: type[Scorer]) -> None:
    covered = {base.__module__ for base in made.__mro__}
    for base in made.__mro__:
        covered |= {module.__name__ for module in vars(base).get("rests_on", ())}
    reached, left = set(), {base.__module__ for base in made.__mro__ if base is not object}
    while left:
        name = left.pop()
        reached.add(name)
        if name.startswith("batch_invariance.") and name not in NO_PART_OF_A_SCORER:
            left |= own_imports(name) - reached - NO_PART_OF_A_SCORER
    assert {name for name in reached if name.startswith("batch_invariance.")} <= covered


def test_the_digest_follows_the_modules_that_a_scorer_rests_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def module(source: str) -> types.ModuleType:
        made = types.ModuleType("helper_without_a_file")
        exec(source, vars(made))
        return made

    digests = []
    for source in ("def f(): return 1", "def f(): return 2", "class C:\n def f(self): return 1"):
        monkeypatch.setattr(Tuned, "rests_on", (module(source),))
        digests.append(describe_scorer(Tuned()).sha256)
    monkeypatch.setattr(Tuned, "rests_on", ())
    digests.append(describe_scorer(Tuned()).sha256)
    assert len(set(digests)) == 4


def test_one_shipped_scorer_is_no_part_of_anothers_digest() -> None:
    """So that a change of one is no change of the others."""
    modules = {shipped.made.__module__ for shipped in SHIPPED} - {ExactMatch.__module__}
    for shipped in SHIPPED:
        bases = {base.__module__ for base in shipped.made.__mro__}
        assert bases & modules == {shipped.made.__module__} & modules
        assert not {module.__name__ for module in shipped.made.rests_on} & modules


@pytest.mark.parametrize("rests_on", ["re", ("re",), None])
def test_what_a_scorer_rests_on_must_be_modules(
    rests_on: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tuned, "rests_on", rests_on)
    with pytest.raises(ScorerError, match="rests_on must be a tuple of modules"):
        describe_scorer(Tuned())


def test_the_page_lists_every_scorer_parameter_and_failure_mode() -> None:
    page = (SOURCE.parent / "docs" / "scorers.md").read_text("utf-8")
    shipped, modes = page.split("## Failure modes")[0], page.split("## Failure modes")[1]
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| ([^|]*)\|$", shipped, re.MULTILINE))
    assert {name: tuple(re.findall(r"`(\w+)`", cell)) for name, cell in rows.items()} == {
        shipped.name: shipped.parameters for shipped in SHIPPED
    }
    modes = modes.split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", modes, re.MULTILINE) == [
        mode.value for mode in FailureMode
    ]


HOSTILE = ("\ud800", "\x1b[2J", "\0", "{" * 50_000, "9" * 50_000, "[" * 50_000, "a" * 50_000)


@pytest.mark.parametrize("name", [shipped.name for shipped in SHIPPED if shipped.name[0] != "e"])
def test_no_reply_breaks_a_shipped_scorer(name: str) -> None:
    for text in HOSTILE:
        found = scored(name, text, "7")
        assert found.failure_mode != "scorer_error"
        (found.extracted_answer or "").encode("utf-8")
