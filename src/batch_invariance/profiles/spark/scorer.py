"""The scorer of the profile `spark`: by family, which answer was given, and how good it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from batch_invariance import answer_code, answer_values, python_lexing, python_syntax
from batch_invariance.answer_text import unwrapped
from batch_invariance.answer_values import strict_json, whole_number_text
from batch_invariance.invariance_diff.model import Completion, Item
from batch_invariance.profiles.spark import answers, families, tool_schema
from batch_invariance.profiles.spark.families import Family
from batch_invariance.profiles.spark.tool_schema import Tool, tool_of
from batch_invariance.scorer_base import Score
from batch_invariance.scorer_reading import Reading, ReadingScorer, Reply, answered, read_reply
from batch_invariance.scorers import json_equal, syntax
from batch_invariance.scorers.json_equal import shared_keys
from batch_invariance.scorers.syntax import expected_syntax, read_source

VALID_CALL_CREDIT = 0.5
"""What of E3's score the right tool with arguments that fit its schema gives; the rest is for
arguments that are right."""


class SparkScorer(ReadingScorer):
    """Scores the ten families of the profile; `Item.family` decides which.

    | family | `expected_answer` | right when | partial credit |
    |---|---|---|---|
    | A2 | the secret | the secret is the answer | none |
    | A4, B1, C1 | an integer | the number is equal | none |
    | D1 | JSON object of texts | every fact is equal | share of facts |
    | E1 | JSON list of texts | every value is equal, in order | share of places |
    | E2 | JSON object | every key has the value, of its type | share of the keys of both |
    | E3 | JSON object of `call` and `schema` | name and arguments are equal, and fit | see below |
    | E4 | source of a function | the normalised syntax is equal | none |
    | E5 | a function's name | the name is equal | none |

    E3: another tool gives 0. The right tool gives half when its arguments fit the schema, and the
    other half in the share of the arguments of both that are equal. A score below 1.0 is never
    passed.

    The answer is in canonical form (`answers`), and there is one exactly when the failure mode is
    `ok`; the modes are `scorer_reading.FailureMode`. An item of no such family, or without an
    expected answer, is compared by its visible text, quotes around it stripped. An expected answer
    that its family cannot have is a fault of the work-set, and raises ValueError.
    """

    name = "spark"
    rests_on = (
        answers,
        families,
        tool_schema,
        answer_code,
        answer_values,
        json_equal,
        python_lexing,
        python_syntax,
        syntax,
    )

    def read(self, completion: Completion, item: Item) -> Reading:
        """Read the answer as its family has it."""
        reply = read_reply(completion, judge_text=True)
        if isinstance(reply, Reading):
            return reply
        kind = _kind_of(item)
        if kind is None or item.expected_answer is None:
            return answered(unwrapped(reply.text))
        return kind.read(reply, item.expected_answer)

    def score(self, answer: str | None, item: Item) -> Score:
        """Rate the answer as its family is rated; no answer scores 0."""
        if item.expected_answer is None:
            return Score(None, None)
        kind = _kind_of(item)
        rate = _rate_text if kind is None else kind.rate
        value = rate(answer, item.expected_answer)
        return Score(value, value == 1.0)


@dataclass(frozen=True, slots=True)
class _Kind:
    """How a family is read, and how its answer (None: there is none) is rated from 0 to 1."""

    read: Callable[[Reply, str], Reading]
    rate: Callable[[str | None, str], float]


def _kind_of(item: Item) -> _Kind | None:
    return None if item.family is None else _KINDS.get(item.family)


def _rate_text(answer: str | None, expected: str) -> float:
    return float(answer == unwrapped(expected))


def _rate_secret(answer: str | None, expected: str) -> float:
    return float(answer == expected.strip())


def _rate_integer(answer: str | None, expected: str) -> float:
    number = whole_number_text(expected.strip())
    if number is None or not number.lstrip("-").isdigit():
        raise ValueError(f"the expected answer must be an integer, is {expected[:40]!r}")
    return float(answer == number)


def _rate_facts(answer: str | None, expected: str) -> float:
    facts = _texts_by_key(expected)
    given = {} if answer is None else _object(strict_json(answer))
    return sum(given.get(key) == fact for key, fact in facts.items()) / len(facts)


def _rate_values(answer: str | None, expected: str) -> float:
    values = _texts(expected)
    given = [] if answer is None else _texts(answer)
    right = sum(one == other for one, other in zip(given, values, strict=False))
    return right / max(len(given), len(values))


def _rate_object(answer: str | None, expected: str) -> float:
    wanted = _object(strict_json(expected))
    if not wanted:
        raise ValueError("the expected object is empty")
    return 0.0 if answer is None else shared_keys(_object(strict_json(answer)), wanted)


def _rate_tool_call(answer: str | None, expected: str) -> float:
    tool, name, wanted = _expected_call(expected)
    if answer is None:
        return 0.0
    call = _object(strict_json(answer))
    arguments = _object(call["arguments"])
    if call["name"] != name:
        return 0.0
    fits = VALID_CALL_CREDIT if tool.accepts(arguments) else 0.0
    return fits + (1 - VALID_CALL_CREDIT) * shared_keys(arguments, wanted)


def _rate_source(answer: str | None, expected: str) -> float:
    return float(answer == expected_syntax(expected))


def _rate_name(answer: str | None, expected: str) -> float:
    return float(answer == expected.strip())


def _read_facts(reply: Reply, expected: str) -> Reading:
    return answers.read_facts(reply, list(_texts_by_key(expected)))


def _read_values(reply: Reply, expected: str) -> Reading:
    return answers.read_values(reply, _texts(expected))


def _read_secret(reply: Reply, expected: str) -> Reading:
    return answers.read_secret(reply, expected.strip())


def _read_name(reply: Reply, expected: str) -> Reading:
    return answers.read_function_name(reply, expected.strip())


def _read_source(reply: Reply, expected: str) -> Reading:
    return read_source(reply, definition=True)


def _object(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError("the expected answer must be, and hold, JSON objects")
    return value


def _texts_by_key(text: str) -> dict[str, str]:
    texts = {}
    for key, value in _object(strict_json(text)).items():
        if not isinstance(value, str):
            raise ValueError(f"the value of {key!r} in the expected answer must be a string")
        texts[key] = value
    if not texts:
        raise ValueError("the expected answer holds no fact")
    return texts


def _texts(text: str) -> list[str]:
    value = strict_json(text)
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise ValueError("the expected answer must be a JSON list of strings")
    return value


def _expected_call(text: str) -> tuple[Tool, str, dict[str, object]]:
    value = _object(strict_json(text))
    tool, call = tool_of(value.get("schema")), _object(value.get("call"))
    arguments = _object(call.get("arguments"))
    if call.get("name") != tool.name or not tool.accepts(arguments):
        raise ValueError("the expected call does not fit the tool's schema")
    return tool, tool.name, arguments


_INTEGER = _Kind(answers.read_integer, _rate_integer)
_KINDS: Mapping[str, _Kind] = {
    Family.A2.value: _Kind(_read_secret, _rate_secret),
    Family.A4.value: _INTEGER,
    Family.B1.value: _INTEGER,
    Family.C1.value: _INTEGER,
    Family.D1.value: _Kind(_read_facts, _rate_facts),
    Family.E1.value: _Kind(_read_values, _rate_values),
    Family.E2.value: _Kind(answers.read_object, _rate_object),
    Family.E3.value: _Kind(answers.read_tool_call, _rate_tool_call),
    Family.E4.value: _Kind(_read_source, _rate_source),
    Family.E5.value: _Kind(_read_name, _rate_name),
}
