"""The families whose facts stand in code: C1, E4, E5."""

from __future__ import annotations

from batch_invariance.profiles.spark.bugs import BUGS, Names
from batch_invariance.profiles.spark.draw import Draw
from batch_invariance.profiles.spark.task import Body, Task
from batch_invariance.profiles.spark.words import CREATURES, MINERALS, PLANTS, VERBS

_LISTS = (
    ("ages", "age"), ("angles", "angle"), ("costs", "cost"), ("depths", "depth"),
    ("heights", "height"), ("levels", "level"), ("marks", "mark"), ("prices", "price"),
    ("ranks", "rank"), ("scores", "score"), ("speeds", "speed"), ("weights", "weight"),
)  # fmt: skip
_RESULTS = ("answer", "outcome", "result", "sum_up", "tally", "total")


def return_value(draw: Draw) -> Task:
    """Make a question of C1: what a function returns for one argument.

    Every number in it is below 100 and every answer above it, so that no answer stands in its
    prompt: the argument is at least 31, the factor at least 4, and at most 19 is subtracted.
    """
    name = _names(draw, 1)[0]
    argument, factor = draw.between(31, 60), draw.between(4, 9)
    limit, less, more = draw.between(35, 55), draw.between(11, 19), draw.between(2, 9)
    total = draw.pick(_RESULTS)
    head = f"def {name}(n):\n"
    kind = draw.between(1, 3)
    if kind == 1:
        body = (
            f"    {total} = n * {factor}\n    if n > {limit}:\n        {total} -= {less}\n"
            f"    return {total} + {more}"
        )
        value = argument * factor - (less if argument > limit else 0) + more
    elif kind == 2:
        body = (
            f"    {total} = {more}\n    for _ in range({factor}):\n        {total} += n\n"
            f"    return {total} - {less}"
        )
        value = more + factor * argument - less
    else:
        body = f"    {total} = [n + {more}, n * {factor}]\n    return sum({total}) - {less}"
        value = argument + more + argument * factor - less
    question = f"What does {name}({argument}) return? Reply with the number only."
    return Task(Body.CODE, (head + body,), question, str(value), 32)


def fix_bug(draw: Draw) -> Task:
    """Make a question of E4: a function with one bug, which is described."""
    bug = draw.pick(BUGS)
    many, one = draw.pick(_LISTS)
    low = draw.between(11, 99)
    names = Names(
        _names(draw, 1)[0], many, one, draw.pick(_RESULTS), low, low + draw.between(11, 99)
    )
    question = (
        f"{names.function} has one bug: {names.put_into(bug.complaint)}. "
        "Change nothing else. Reply with the corrected function only."
    )
    return Task(Body.CODE, (bug.wrong_source(names),), question, bug.right_source(names), 112)


def caller(draw: Draw) -> Task:
    """Make a question of E5: of three functions one calls the helper and returns a dict.

    The decoys: one calls the helper and returns a list, one returns a dict without calling it.
    """
    helper, right, lister, other = _names(draw, 4)
    key, plain = draw.some(MINERALS, 2)
    add, factor = draw.between(11, 99), draw.between(11, 99)
    through = draw.flip()
    call = f"part = {helper}(x)\n    return {{{key!r}: part}}"
    facts = [
        f"def {helper}(x):\n    return x + {add}",
        f"def {right}(x):\n    {call if through else f'return dict({key}={helper}(x))'}",
        f"def {lister}(x):\n    return [{helper}(x), x]",
        f"def {other}(x):\n    return {{{plain!r}: x * {factor}}}",
    ]
    question = f"Which function calls {helper} and returns a dict? Reply with its name only."
    return Task(Body.CODE, tuple(draw.shuffled(facts)), question, right, 24)


def _names(draw: Draw, n: int) -> list[str]:
    """Names of `n` functions, no word of which is in another."""
    verbs = draw.some(VERBS, n)
    nouns = draw.some((*CREATURES, *MINERALS, *PLANTS), n)
    return [f"{verb}_{noun}" for verb, noun in zip(verbs, nouns, strict=True)]
