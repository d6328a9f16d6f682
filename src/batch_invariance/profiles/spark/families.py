"""The families of the profile `spark`: what kinds of question there are."""

from __future__ import annotations

from enum import Enum


class Family(str, Enum):
    """A kind of question; the value is what `Item.family` says, `summary` a line about it."""

    summary: str

    def __new__(cls, value: str, summary: str) -> Family:
        """Make a member that is its value as a string and carries its summary."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.summary = summary
        return member

    A2 = "A2", "recall of one planted secret"
    A4 = "A4", "a chain of four arithmetic steps"
    B1 = "B1", "a chain of three quantities, each defined by the one before"
    C1 = "C1", "the return value of a planted function"
    D1 = "D1", "three facts of a report, as three lines"
    E1 = "E1", "four of sixteen planted pairs, in the order asked"
    E2 = "E2", "one JSON object with an int, a string and a boolean"
    E3 = "E3", "a tool call as JSON, against the tool's schema"
    E4 = "E4", "one described bug fixed in a function"
    E5 = "E5", "the one function that calls another and returns a dict"
