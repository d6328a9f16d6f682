"""What each family of the profile `spark` asks, worked out from the prompt's text alone.

Nothing here imports the generator: a solver reads the user message as a model does.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable


def code_of(text: str) -> str:
    found = re.search(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def question_of(text: str) -> str:
    return text.rpartition("```\n\n" if "```" in text else "\n\n")[2]


def functions_of(text: str) -> dict[str, ast.FunctionDef]:
    nodes = ast.parse(code_of(text)).body
    assert all(isinstance(node, ast.FunctionDef) for node in nodes)
    found = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
    assert len(found) == len(nodes)
    return found


def _one(pattern: str, text: str) -> tuple[str, ...]:
    found = re.findall(pattern, text)
    assert len(found) == 1, (pattern, found)
    return found[0] if isinstance(found[0], tuple) else (found[0],)


def recall(text: str) -> str:
    (vault,) = _one(r"What is the passphrase of the (\w+) vault\?", text)
    return _one(rf"The passphrase of the {vault} vault is (\S+)\.", text)[0]


def four_steps(text: str) -> str:
    value = int(_one(r"Start with (\d+) and take steps 1 to 4 in order\.", text)[0])
    steps = re.findall(r"Step (\d): (add|subtract|multiply by) (\d+)\.", text)
    assert [number for number, _, _ in steps] == ["1", "2", "3", "4"]
    for _, name, operand in steps:
        if name == "add":
            value += int(operand)
        elif name == "subtract":
            value -= int(operand)
        else:
            value *= int(operand)
    return str(value)


def three_quantities(text: str) -> str:
    (asked,) = _one(r"What number is the (\w+) count\?", text)
    rules = re.findall(r"The (\w+) count is (\w+) (plus|minus|times) (\d+)\.", text)
    assert len(rules) == 3
    assert rules[-1][0] == asked
    table = {name: (of, operation, int(by)) for name, of, operation, by in rules}
    assert len(table) == 3

    def value(name: str) -> int:
        if name.isdigit():
            return int(name)
        of, operation, by = table[name]
        left = value(of)
        return {"plus": left + by, "minus": left - by, "times": left * by}[operation]

    return str(value(asked))


def return_value(text: str) -> str:
    name, argument = _one(r"What does (\w+)\((\d+)\) return\?", text)
    scope: dict[str, Callable[[int], int]] = {}
    exec(code_of(text), scope)
    return str(scope[name](int(argument)))


def report(text: str) -> str:
    (name,) = _one(r"Give the facts of report (\w+) in three lines of this form:", text)
    assert text.endswith(":\ncomponent: ...\nowner: ...\nticket: ...")
    said = re.findall(
        rf"Report {name}: the (component|owner|ticket)(?: at fault)? is (?:the )?(\S+)\.", text
    )
    assert [key for key, _ in said] == ["component", "owner", "ticket"]
    return json.dumps(dict(said), sort_keys=True, separators=(",", ":"))


def pairs(text: str) -> str:
    (names,) = _one(r"Give the codes of (.*) in this order, in one line,", text)
    said = re.findall(r"Code (\w+): ([\w-]+)\.", text)
    table = dict(said)
    assert len(said) == len(table) == len(set(table.values())) == 16
    asked = names.split(", ")
    assert len(set(asked)) == 4
    return json.dumps([table[name] for name in asked], separators=(",", ":"))


def json_object(text: str) -> str:
    service, form = _one(r"Give service (\w+) as one JSON object of this form: (\{.*\})", text)
    count, name, state = _one(r'"(\w+)": integer, "(\w+)": string, "(\w+)": true or false', form)
    answer = {
        count: int(_one(rf"Service {service} has (\d+) {count}\.", text)[0]),
        name: _one(rf"The {name} of service {service} is (\S+)\.", text)[0],
        state: _one(rf"Service {service} is (not )?{state}\.", text)[0] == "",
    }
    return json.dumps(answer, sort_keys=True, separators=(",", ":"))


def tool_call(text: str) -> str:
    schema = json.loads(_one(r"(?m)^Tool: (.*)$", text)[0])
    parameters = schema["parameters"]
    (wishes,) = _one(rf"Request for {schema['name']}: (.*?)\.", text)
    arguments: dict[str, object] = {}
    for wish in wishes.split(", "):
        key, value = wish.split(" ")
        rule = parameters["properties"][key]
        assert rule["type"] in ("string", "integer")
        assert value in rule.get("enum", [value])
        arguments[key] = int(value) if rule["type"] == "integer" else value
    assert parameters["type"] == "object"
    assert sorted(arguments) == sorted(parameters["properties"]) == sorted(parameters["required"])
    call = {"name": schema["name"], "arguments": arguments}
    return json.dumps({"call": call, "schema": schema}, sort_keys=True, separators=(",", ":"))


def fix_bug(text: str) -> str:
    """The corrected function, as Python writes it out."""
    name, complaint = _one(r"(\w+) has one bug: (.*?)\. Change nothing else\.", text)
    function = functions_of(text)[name]
    before = ast.unparse(function)
    for pattern, repair in REPAIRS.items():
        if re.search(pattern, complaint):
            repair(function)
            after = ast.unparse(ast.fix_missing_locations(function))
            assert after != before
            return after
    raise AssertionError(f"nobody knows how to mend: {complaint}")


def caller(text: str) -> str:
    (helper,) = _one(r"Which function calls (\w+) and returns a dict\?", text)
    found = [name for name, node in functions_of(text).items() if _fits(node, helper)]
    assert len(found) == 1
    return found[0]


def _calls(node: ast.AST, name: str) -> bool:
    return any(
        isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id == name
        for inner in ast.walk(node)
    )


def _gives_dict(node: ast.FunctionDef) -> bool:
    returned = [inner.value for inner in ast.walk(node) if isinstance(inner, ast.Return)]
    return all(
        isinstance(value, ast.Dict)
        or (isinstance(value, ast.Call) and ast.unparse(value.func) == "dict")
        for value in returned
    )


def _fits(node: ast.FunctionDef, helper: str) -> bool:
    return _calls(node, helper) and _gives_dict(node)


# One repair per complaint of E4, each on the syntax tree of the function.


def _comparisons(function: ast.FunctionDef) -> list[ast.Compare]:
    return [node for node in ast.walk(function) if isinstance(node, ast.Compare)]


def _from_up(function: ast.FunctionDef) -> None:
    (comparison,) = _comparisons(function)
    assert isinstance(comparison.ops[0], ast.Gt)
    comparison.ops = [ast.GtE()]


def _whole_range(function: ast.FunctionDef) -> None:
    (call,) = [n for n in ast.walk(function) if isinstance(n, ast.Call) and _is(n.func, "range")]
    (limit,) = call.args
    assert isinstance(limit, ast.BinOp)
    call.args = [limit.left]


def _is(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _first_element(function: ast.FunctionDef) -> None:
    start = function.body[0]
    assert isinstance(start, ast.Assign)
    start.value = ast.parse(f"{function.args.args[0].arg}[0]", mode="eval").body


def _return_after(function: ast.FunctionDef) -> None:
    loop = function.body[-1]
    assert isinstance(loop, ast.For)
    function.body.append(loop.body.pop())


def _add_up(function: ast.FunctionDef) -> None:
    loop = function.body[1]
    assert isinstance(loop, ast.For)
    (step,) = loop.body
    assert isinstance(step, ast.Assign)
    loop.body = [ast.AugAssign(step.targets[0], ast.Add(), step.value)]


def _reverse(function: ast.FunctionDef) -> None:
    start = function.body[0]
    assert isinstance(start, ast.Assign)
    difference = start.value
    assert isinstance(difference, ast.BinOp)
    difference.left, difference.right = difference.right, difference.left


def _both(function: ast.FunctionDef) -> None:
    (choice,) = [node for node in ast.walk(function) if isinstance(node, ast.BoolOp)]
    assert isinstance(choice.op, ast.Or)
    choice.op = ast.And()


def _multiples(function: ast.FunctionDef) -> None:
    (comparison,) = _comparisons(function)
    assert isinstance(comparison.ops[0], ast.NotEq)
    comparison.ops = [ast.Eq()]


REPAIRS: dict[str, Callable[[ast.FunctionDef], None]] = {
    r"leaves out those equal to \d+": _from_up,
    r"range leaves out the last element": _whole_range,
    r"must begin as the first element": _first_element,
    r"returns inside the loop, and must return after it": _return_after,
    r"must add up all of them": _add_up,
    r"gap must be \w+ minus \w+, and is the reverse": _reverse,
    r"must demand both conditions": _both,
    r"must keep the multiples of \d+": _multiples,
}

SOLVERS: dict[str, Callable[[str], str]] = {
    "A2": recall,
    "A4": four_steps,
    "B1": three_quantities,
    "C1": return_value,
    "D1": report,
    "E1": pairs,
    "E2": json_object,
    "E3": tool_call,
    "E4": fix_bug,
    "E5": caller,
}
