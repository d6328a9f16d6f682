"""The families whose facts stand in prose: A2, A4, B1, D1, E1, E2, E3."""

from __future__ import annotations

from batch_invariance.invariance_diff.digest import canonical_json
from batch_invariance.profiles.spark.draw import Draw
from batch_invariance.profiles.spark.task import Body, Task
from batch_invariance.profiles.spark.words import (
    COMPONENTS,
    CREATURES,
    MINERALS,
    PEOPLE,
    PLANTS,
)

_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"  # no I and O, which read as digits
_PAIRS, _ASKED = 16, 4
_COUNTS = ("workers", "shards", "retries", "replicas")
_NAMES = ("zone", "profile", "channel", "image")
_STATES = ("sealed", "mirrored", "pinned", "throttled")
_TOOLS = (
    ("restart_host", "host", "delay", "mode", ("soft", "hard", "staged")),
    ("create_snapshot", "volume", "days", "tier", ("cold", "warm", "hot")),
    ("scale_pool", "pool", "size", "policy", ("spread", "packed", "balanced")),
    ("run_suite", "suite", "jobs", "level", ("smoke", "nightly", "full")),
    ("rotate_secret", "vault", "hours", "notify", ("silent", "admins", "tenants")),
)
"""Tools of E3: name, a string argument, an integer argument, an argument with its choices."""


def recall(draw: Draw) -> Task:
    """Make a question of A2: one secret, stated once."""
    vault = draw.pick(PLANTS)
    secret = f"{draw.pick(CREATURES)}-{draw.between(1000, 9999)}-{draw.pick(MINERALS)}"
    return Task(
        Body.PROSE,
        (f"The passphrase of the {vault} vault is {secret}.",),
        f"What is the passphrase of the {vault} vault? Reply with the passphrase only.",
        secret,
        24,
    )


def four_steps(draw: Draw) -> Task:
    """Make a question of A4: a start, and four steps to take in their order.

    Every operand is below 100 and every answer above it, so that no answer stands in its prompt:
    the start is at least 60, what is subtracted at most 19 in all, and the factor at least 3.
    """
    start = value = draw.between(60, 99)
    steps = []
    for number, name in enumerate(draw.shuffled(("add", "add", "subtract", "multiply")), 1):
        value, words = _operate(draw, name, value)
        steps.append(f"Step {number}: {words}.")
    question = (
        f"Start with {start} and take steps 1 to 4 in order. What number results? "
        "Reply with the number only."
    )
    return Task(Body.PROSE, tuple(steps), question, str(value), 32)


def _operate(draw: Draw, name: str, value: int) -> tuple[int, str]:
    """One step: the value after it, and the step in words."""
    if name == "add":
        operand = draw.between(11, 59)
        return value + operand, f"add {operand}"
    if name == "subtract":
        operand = draw.between(11, 19)
        return value - operand, f"subtract {operand}"
    factor = draw.between(3, 9)
    return value * factor, f"multiply by {factor}"


def three_quantities(draw: Draw) -> Task:
    """Make a question of B1: three quantities, each defined by the one before.

    Operands are below 100 and answers above it, as in `four_steps`.
    """
    names = draw.some(PLANTS, 3)
    first, added = draw.between(60, 99), draw.between(11, 59)
    factor, taken = draw.between(3, 9), draw.between(11, 19)
    total = first + added
    product, words = total * factor, f"{names[0]} times {factor}"
    if draw.flip():
        product, words = total - taken, f"{names[0]} minus {taken}"
        last, end = product * factor, f"{names[1]} times {factor}"
    else:
        last, end = product - taken, f"{names[1]} minus {taken}"
    facts = (
        f"The {names[0]} count is {first} plus {added}.",
        f"The {names[1]} count is {words}.",
        f"The {names[2]} count is {end}.",
    )
    question = f"What number is the {names[2]} count? Reply with the number only."
    return Task(Body.PROSE, facts, question, str(last), 32)


def report(draw: Draw) -> Task:
    """Make a question of D1: three facts of a report, partial credit for each."""
    name = draw.pick(CREATURES)
    letters = "".join(draw.pick(_LETTERS) for _ in range(2))
    answer = {
        "component": draw.pick(COMPONENTS),
        "owner": draw.pick(PEOPLE),
        "ticket": f"{letters}-{draw.between(1000, 9999)}",
    }
    facts = (
        f"Report {name}: the component at fault is the {answer['component']}.",
        f"Report {name}: the owner is {answer['owner']}.",
        f"Report {name}: the ticket is {answer['ticket']}.",
    )
    question = (
        f"Give the facts of report {name} in three lines of this form:\n"
        "component: ...\nowner: ...\nticket: ..."
    )
    return Task(Body.PROSE, facts, question, _json(answer), 48)


def pairs(draw: Draw) -> Task:
    """Make a question of E1: sixteen pairs, of which four are asked for in another order."""
    keys = draw.some(MINERALS, _PAIRS)
    values = [f"{name}-{draw.between(10, 99)}" for name in draw.some(CREATURES, _PAIRS)]
    facts = tuple(f"Code {key}: {value}." for key, value in zip(keys, values, strict=True))
    asked = draw.some(range(_PAIRS), _ASKED)
    names = ", ".join(keys[index] for index in asked)
    question = (
        f"Give the codes of {names} in this order, in one line, separated by commas. "
        "Reply with the codes only."
    )
    return Task(Body.PROSE, facts, question, _json([values[index] for index in asked]), 48)


def json_object(draw: Draw) -> Task:
    """Make a question of E2: an int, a string and a boolean of one service."""
    service = draw.pick(PLANTS)
    count, name, state = draw.pick(_COUNTS), draw.pick(_NAMES), draw.pick(_STATES)
    number = draw.between(1000, 9999)
    text = f"{draw.pick(CREATURES)}-{draw.pick(MINERALS)}"
    held = draw.flip()
    facts = [
        f"Service {service} has {number} {count}.",
        f"The {name} of service {service} is {text}.",
        f"Service {service} is {'' if held else 'not '}{state}.",
    ]
    question = (
        f"Give service {service} as one JSON object of this form: "
        f'{{"{count}": integer, "{name}": string, "{state}": true or false}}'
    )
    answer = {count: number, name: text, state: held}
    return Task(Body.PROSE, tuple(draw.shuffled(facts)), question, _json(answer), 48)


def tool_call(draw: Draw) -> Task:
    """Make a question of E3: one call of one tool, its arguments in a sentence."""
    tool, text, count, choice, choices = draw.pick(_TOOLS)
    arguments = {
        text: f"{draw.pick(CREATURES)}-{draw.pick(PLANTS)}",
        count: draw.between(11, 99),
        choice: draw.pick(choices),
    }
    schema = {
        "name": tool,
        "parameters": {
            "type": "object",
            "properties": {
                text: {"type": "string"},
                count: {"type": "integer"},
                choice: {"type": "string", "enum": list(choices)},
            },
            "required": [text, count, choice],
        },
    }
    wishes = ", ".join(f"{key} {value}" for key, value in arguments.items())
    question = (
        f"Tool: {_json(schema)}\n"
        'Call the tool as requested. Reply with JSON only: {"name": ..., "arguments": {...}}'
    )
    expected = _json({"call": {"name": tool, "arguments": arguments}, "schema": schema})
    return Task(Body.PROSE, (f"Request for {tool}: {wishes}.",), question, expected, 64)


def _json(value: object) -> str:
    return canonical_json(value).decode("ascii")
