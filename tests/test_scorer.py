from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path

import pytest

from batch_invariance.errors import ScorerError
from batch_invariance.invariance_diff.model import Completion, Item, Message, Scored
from batch_invariance.scorer_api import (
    ExactMatch,
    FunctionScorer,
    Score,
    Scorer,
    ScoringSession,
    apply_scorer,
    describe_scorer,
    resolve_scorer,
    scorer_sha256,
)

ROOT = Path(__file__).parent.parent
ASKED = (Message("user", "2+2?"),)
ITEM = Item("q1", ASKED, expected_answer=" 4 ")
OPEN_ITEM = Item("q2", ASKED)

Plugin = Callable[[str], str]


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plugin:
    """Write a module into the current directory and return its name, new at each call."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    count = 0

    def write(source: str) -> str:
        nonlocal count
        count += 1
        name = f"plugin_{count}_of_test"
        (tmp_path / f"{name}.py").write_text(source)
        return name

    return write


SUBCLASS = """
from batch_invariance.scorer_api import Score, Scorer

class Yes(Scorer):
    def score(self, answer, item):
        return Score(2, True)

instance = Yes()
"""

NEEDS_A_PATH = f"""{SUBCLASS}
class No(Yes):
    def __init__(self, path):
        pass
"""


def test_exact_match_compares_stripped_texts() -> None:
    scorer = ExactMatch()
    assert apply_scorer(scorer, Completion("\n4 "), ITEM) == Scored("4", " 4 ", "ok", 1.0, True)
    assert apply_scorer(scorer, Completion("4."), ITEM) == Scored("4.", " 4 ", "ok", 0.0, False)
    assert apply_scorer(scorer, Completion(" "), ITEM) == Scored("", " 4 ", "empty", 0.0, False)


def test_exact_match_does_not_score_without_an_expected_answer() -> None:
    scored = apply_scorer(ExactMatch(), Completion("hm"), OPEN_ITEM)
    assert scored == Scored("hm", None, "ok", None, None)


@pytest.mark.parametrize(
    ("result", "value", "passed"),
    [(True, 1.0, True), (False, 0.0, False), (0.5, 0.5, None), (3, 3.0, None), (None, None, None)],
)
def test_a_function_rates_the_stripped_text(
    result: float | None, value: float | None, passed: bool | None
) -> None:
    seen: list[tuple[str, str]] = []

    def rate(text: str, expected: str) -> float | None:
        seen.append((text, expected))
        return result

    scored = apply_scorer(FunctionScorer(rate), Completion(" four\n"), ITEM)
    assert (scored.score, scored.passed, scored.extracted_answer) == (value, passed, "four")
    assert seen == [("four", " 4 ")]
    assert apply_scorer(FunctionScorer(rate), Completion("x"), OPEN_ITEM).score is None
    assert len(seen) == 1


def test_resolves_classes_instances_and_functions_of_the_current_directory(plugin: Plugin) -> None:
    module = plugin(SUBCLASS + "\ndef same(text, expected):\n    return text == expected.strip()\n")
    for name in ("Yes", "instance"):
        scored = apply_scorer(resolve_scorer(f"{module}:{name}"), Completion("x"), ITEM)
        assert (scored.score, scored.passed) == (2.0, True)
    scorer = resolve_scorer(f"{module}:same")
    assert scorer.name == "same"
    assert apply_scorer(scorer, Completion("4"), ITEM).passed is True


def test_the_current_directory_is_added_to_the_path_once(plugin: Plugin, tmp_path: Path) -> None:
    module = plugin(SUBCLASS)
    resolve_scorer(f"{module}:Yes")
    resolve_scorer(f"{module}:Yes")
    assert sys.path.count(str(tmp_path)) == 1


@pytest.mark.parametrize(
    ("source", "name", "message"),
    [
        (SUBCLASS, "Yess", "has no Yess; did you mean Yes?"),
        (SUBCLASS, "qwxz", "has no qwxz; nothing there has a similar name"),
        ("import no_such_thing", "X", "raised ModuleNotFoundError: No module named 'no_such_"),
        ("1/0", "X", "raised ZeroDivisionError: division by zero"),
        ("raise SystemExit('stop\\n\\x1b[2J')", "X", "raised SystemExit: stop \\x1b[2J"),
        ("def f(:", "f", "raised SyntaxError"),
        ("X = 5", "X", "is a int"),
        ("class X: pass", "X", "is a class without that base"),
        ("def f(text): return True", "f", "the function must take two arguments"),
        ("from batch_invariance.scorer_api import Scorer", "Scorer", "does not define score"),
        (
            NEEDS_A_PATH,
            "No",
            "making one without arguments raised TypeError",
        ),
    ],
)
def test_says_why_a_scorer_cannot_be_used(
    plugin: Plugin, source: str, name: str, message: str
) -> None:
    spec = f"{plugin(source)}:{name}"
    with pytest.raises(ScorerError) as caught:
        resolve_scorer(spec)
    assert str(caught.value).startswith(f"scorer {spec!r}")
    assert message in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("spec", ["", "scorer", "scorer:", ":Name", ".mod:Name", "a b:C", "m:f()"])
def test_says_how_a_scorer_is_named(spec: str) -> None:
    with pytest.raises(ScorerError, match=r"must be written pkg\.mod:Name"):
        resolve_scorer(spec)


@pytest.mark.parametrize("module", ["no_such_module", "no_such_package.mod", "json.no_such"])
def test_says_that_a_module_is_missing(module: str) -> None:
    with pytest.raises(ScorerError, match="there is no module"):
        resolve_scorer(f"{module}:X")


class Returning(Scorer):
    def __init__(self, answer: object = "a", mode: object = "ok", score: object = None) -> None:
        self.returns = (answer, mode, Score(1.0, True) if score is None else score)

    def extract_answer(self, completion: Completion, item: Item) -> str | None:
        return self.returns[0]  # type: ignore[return-value]

    def classify_failure_mode(self, completion: Completion, answer: str | None, item: Item) -> str:
        return self.returns[1]  # type: ignore[return-value]

    def score(self, answer: str | None, item: Item) -> Score:
        return self.returns[2]  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("scorer", "message"),
    [
        (Returning(answer=4), "extract_answer must return a string or None, not int"),
        (Returning(answer="\ud800"), "UnicodeEncodeError"),
        (Returning(mode=""), "classify_failure_mode must return a non-empty string, not an empty"),
        (Returning(mode=None), "non-empty string, not NoneType"),
        (Returning(score=1.0), "score must return a Score, not float"),
        (Returning(score=Score(True, True)), "Score.value must be a number or None, not bool"),
        (Returning(score=Score("1", True)), "not str"),  # type: ignore[arg-type]
        (Returning(score=Score(float("nan"), None)), "Score.value must be finite, not nan"),
        (Returning(score=Score(float("inf"), None)), "Score.value must be finite, not inf"),
        (Returning(score=Score(-1e101, None)), "Score.value is beyond 1e+100: -1e+101"),
        (Returning(score=Score(10**400, None)), "OverflowError"),
        (Returning(score=Score(1.0, 1)), "Score.passed must be"),  # type: ignore[arg-type]
    ],
)
def test_refuses_what_cannot_be_compared(scorer: Scorer, message: str) -> None:
    with pytest.raises(ScorerError) as caught:
        apply_scorer(scorer, Completion("x"), ITEM)
    assert str(caught.value).startswith("scorer Returning failed on item 'q1': ")
    assert message in str(caught.value)


def test_what_is_compared_has_plain_types() -> None:
    class Mode(str, Enum):
        FINE = "fine"

    scored = apply_scorer(Returning(None, Mode.FINE, Score(2, None)), Completion("x"), ITEM)
    assert scored == Scored(None, " 4 ", "fine", 2.0, None)
    assert type(scored.failure_mode) is str
    assert type(scored.score) is float


class Counting(ExactMatch):
    """Counts its calls, and fails on the texts it is told to."""

    def __init__(self, *bad: str) -> None:
        self.bad = bad
        self.calls: list[str] = []

    def extract_answer(self, completion: Completion, item: Item) -> str | None:
        self.calls.append(completion.text)
        if completion.text in self.bad:
            raise RuntimeError(f"cannot read {completion.text}")
        assert completion.logprobs is None
        return completion.text


def test_a_session_scores_each_distinct_item_and_completion_once() -> None:
    scorer = Counting()
    session = ScoringSession(scorer)
    first = session.score(ITEM, Completion("4", logprobs="AAAA"))
    assert session.score(ITEM, Completion("4", logprobs="BBBB")) == first
    session.score(ITEM, Completion("5"))
    session.score(OPEN_ITEM, Completion("4"))
    session.score(ITEM, Completion("4", finish_reason="length"))
    assert scorer.calls == ["4", "5", "4", "4"]


def test_a_session_fails_at_its_first_call_only() -> None:
    session = ScoringSession(Counting("bad"))
    with pytest.raises(ScorerError, match="failed on item 'q1': RuntimeError: cannot read bad"):
        session.score(ITEM, Completion("bad"))


def test_later_failures_are_data_and_are_kept_up_to_a_limit() -> None:
    bad = [f"bad{n}" for n in range(5)]
    scorer = Counting(*bad)
    session = ScoringSession(scorer, max_errors=3)
    assert session.score(ITEM, Completion("4")).failure_mode == "ok"
    for text in [*bad, *bad]:
        assert session.score(ITEM, Completion(text)) == Scored(
            None, " 4 ", "scorer_error", None, None
        )
    assert len(scorer.calls) == 6
    assert session.error_count == 5
    assert len(session.errors) == 3
    assert "cannot read bad0" in session.errors[0]


def test_an_interrupt_inside_a_scorer_is_not_swallowed() -> None:
    class Interrupting(ExactMatch):
        def extract_answer(self, completion: Completion, item: Item) -> str | None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        apply_scorer(Interrupting(), Completion("x"), ITEM)


def test_digest_changes_with_source_name_and_params(plugin: Plugin) -> None:
    digests = [
        scorer_sha256(resolve_scorer(f"{plugin(source)}:Yes"))
        for source in (SUBCLASS, SUBCLASS.replace("2", "3"))
    ]
    scorer = resolve_scorer(f"{plugin(SUBCLASS)}:Yes")
    digests.append(scorer_sha256(scorer))
    scorer.params = {"tolerance": 0.1}
    digests.append(scorer_sha256(scorer))
    scorer.name = "other"
    digests += [scorer_sha256(scorer), scorer_sha256(ExactMatch())]
    assert len(set(digests)) == len(digests)
    assert scorer_sha256(ExactMatch()) == digests[-1]


def test_digest_covers_the_module_that_a_function_stands_in(plugin: Plugin) -> None:
    source = "def helper(t):\n    return t\n\ndef f(text, expected):\n    return helper(text)\n"
    module = plugin(source)
    first = scorer_sha256(resolve_scorer(f"{module}:f"))
    del sys.modules[module]
    Path(f"{module}.py").write_text(source.replace("return t\n", "return t.lower()\n"))
    assert scorer_sha256(resolve_scorer(f"{module}:f")) != first


def test_digest_without_source_is_the_same_in_every_process() -> None:
    def digest(test: str) -> str:
        code = (
            "from batch_invariance.scorer_api import *\n"
            f"def f(text, expected): return text in {test} or (lambda: 1)() == 2\n"
            "print(scorer_sha256(FunctionScorer(f)))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    words = '{"yes", "no", "maybe", "never"}'
    assert digest(words) == digest(words)
    assert digest(words) != digest('{"yes", "no"}')


def test_describes_a_scorer_for_the_certificate() -> None:
    info = describe_scorer(ExactMatch())
    assert (info.name, dict(info.params)) == ("exact_match", {})
    assert info.sha256 == scorer_sha256(ExactMatch())


@pytest.mark.parametrize("value", [float("nan"), [1], {"a": 1}, object()])
def test_refuses_params_that_json_cannot_carry(value: object) -> None:
    scorer = ExactMatch()
    scorer.params = {"p": value}  # type: ignore[dict-item]
    with pytest.raises(ScorerError, match="parameter 'p' must be"):
        describe_scorer(scorer)


def test_a_subclass_without_a_name_is_called_after_its_class() -> None:
    assert describe_scorer(Counting()).name == "Counting"


@pytest.mark.parametrize(
    ("text", "expected", "scored"),
    [
        ("The change is $7.", "$7", Scored("7", "$7", "ok", 1.0, True)),
        ("12, so 1,024 in all", "1024", Scored("1024", "1024", "ok", 1.0, True)),
        ("about 6.9", "7", Scored("6.9", "7", "ok", 0.0, False)),
        ("no idea", "7", Scored(None, "7", "no_number", 0.0, False)),
        (" ", "7", Scored(None, "7", "empty", 0.0, False)),
        ("Rome 1", "Rome", Scored("1", "Rome", "ok", None, None)),
    ],
)
def test_the_example_scorer(
    text: str, expected: str, scored: Scored, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    scorer = resolve_scorer("examples.custom_scorer:LastNumber")
    assert apply_scorer(scorer, Completion(text), Item("q", ASKED, expected)) == scored
    info = describe_scorer(scorer)
    assert json.loads(json.dumps(dict(info.params))) == {"tolerance": 1e-6}
    loose = describe_scorer(resolve_scorer("examples.custom_scorer:LastNumber", ["tolerance=1"]))
    assert dict(loose.params) == {"tolerance": 1.0}
    strict = describe_scorer(resolve_scorer("examples.custom_scorer:strict"))
    assert strict.name == info.name == "last_number"
    assert strict.sha256 != info.sha256
