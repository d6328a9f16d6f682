"""The scorers that come with the tool, each by its name and with its parameters as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from batch_invariance.errors import ScorerError
from batch_invariance.scorer_base import ExactMatch, Scorer
from batch_invariance.scorer_parameters import construct, parameter_names
from batch_invariance.scorers.contains import Contains
from batch_invariance.scorers.json_equal import JsonEqual
from batch_invariance.scorers.last_number import LastNumber
from batch_invariance.scorers.regex import Regex
from batch_invariance.scorers.syntax import PythonSyntax


@dataclass(frozen=True, slots=True)
class Shipped:
    """A scorer of the tool: its class, and what makes an answer right, in a line."""

    made: type[Scorer]
    right_when: str

    @property
    def name(self) -> str:
        """What it is selected by."""
        return self.made.name

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of its parameters."""
        return parameter_names(self.made)


SHIPPED = (
    Shipped(ExactMatch, "the stripped text equals the expected answer"),
    Shipped(Contains, "the expected answer occurs in the text"),
    Shipped(LastNumber, "the last number equals the expected one"),
    Shipped(JsonEqual, "the JSON in the text equals the expected JSON"),
    Shipped(Regex, "a pattern picks the expected answer out of the text, or is expected itself"),
    Shipped(PythonSyntax, "the Python source has the same syntax tree as the expected one"),
)
"""All of them, in the order in which help and documentation list them."""


def shipped_scorer(name: str, params: Mapping[str, str]) -> Scorer:
    """Make a shipped scorer with parameters given as text.

    Raises `ScorerError` for a name that none has, a parameter that it does not take, and a value
    that it cannot use.
    """
    for shipped in SHIPPED:
        if shipped.name == name:
            return construct(shipped.made, params, f"scorer {name!r}")
    names = [shipped.name for shipped in SHIPPED]
    close = get_close_matches(name, names, 1)
    hint = f"did you mean {close[0]}? The scorers shipped are" if close else "those shipped are"
    raise ScorerError(
        f"scorer {name!r} is none of the tool's own; {hint} {', '.join(names)}. One of your own"
        " must be written pkg.mod:Name, a module and a name in it"
    )
