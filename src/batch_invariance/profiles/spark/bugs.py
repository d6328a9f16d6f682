"""The bugs of family E4: functions, and in each one fragment that is wrong.

A complaint determines its fix: one fragment of the function's text, and no other way of writing
it, so that the corrected syntax tree is known.
"""

from __future__ import annotations

from dataclasses import dataclass

_FIX = "<fix>"


@dataclass(frozen=True, slots=True)
class Names:
    """What is put into the text of a bug: names of a function, a list, its element, a result.

    `low` and `high` are two numbers, the first smaller.
    """

    function: str
    many: str
    one: str
    result: str
    low: int
    high: int

    def put_into(self, text: str) -> str:
        """Return `text` with every name in the place that it is meant for."""
        return text.format(
            function=self.function,
            many=self.many,
            one=self.one,
            result=self.result,
            low=self.low,
            high=self.high,
        )


@dataclass(frozen=True, slots=True)
class Bug:
    """A function's text with a place for one fragment, that fragment wrong and right.

    `complaint` says what is wrong, to follow "the function has one bug:".
    """

    text: str
    wrong: str
    right: str
    complaint: str

    def wrong_source(self, names: Names) -> str:
        """Return the function with its bug."""
        return names.put_into(self.text.replace(_FIX, self.wrong))

    def right_source(self, names: Names) -> str:
        """Return the function as it should be."""
        return names.put_into(self.text.replace(_FIX, self.right))


BUGS = (
    Bug(
        """\
def {function}({many}):
    {result} = 0
    for {one} in {many}:
        if {one} <fix> {low}:
            {result} += 1
    return {result}""",
        ">",
        ">=",
        "it must count the elements from {low} up, and leaves out those equal to {low}",
    ),
    Bug(
        """\
def {function}({many}):
    {result} = {low}
    for i in range(<fix>):
        {result} += {many}[i]
    return {result}""",
        "len({many}) - 1",
        "len({many})",
        "its range leaves out the last element of {many}",
    ),
    Bug(
        """\
def {function}({many}):
    {result} = <fix>
    for {one} in {many}:
        if {one} > {result}:
            {result} = {one}
    return {result} + {low}""",
        "0",
        "{many}[0]",
        "it fails for negative elements, because {result} must begin as the first element",
    ),
    Bug(
        """\
def {function}({many}):
    {result} = {low}
    for {one} in {many}:
        {result} += {one}
<fix>return {result}""",
        " " * 8,
        " " * 4,
        "it returns inside the loop, and must return after it",
    ),
    Bug(
        """\
def {function}({many}):
    {result} = 0
    for {one} in {many}:
        {result} <fix> {one} * {low}
    return {result}""",
        "=",
        "+=",
        "it keeps the last product only, and must add up all of them in {result}",
    ),
    Bug(
        """\
def {function}({one}, {result}):
    gap = <fix>
    return gap * {low}""",
        "{one} - {result}",
        "{result} - {one}",
        "gap must be {result} minus {one}, and is the reverse",
    ),
    Bug(
        """\
def {function}({one}):
    return {one} > {low} <fix> {one} < {high}""",
        "or",
        "and",
        "it must demand both conditions, and demands one of them",
    ),
    Bug(
        """\
def {function}({many}):
    {result} = []
    for {one} in {many}:
        if {one} % {low} <fix> 0:
            {result}.append({one})
    return {result}""",
        "!=",
        "==",
        "it must keep the multiples of {low}, and keeps all others",
    ),
)
