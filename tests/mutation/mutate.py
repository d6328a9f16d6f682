"""Mutants: the source of a module with one small change, made through its syntax tree.

What is mutated, one place at a time: comparisons, numbers, booleans and their operators, sums,
`min`/`max` and `any`/`all`, members of enumerations, the order and the members of constants,
returned values, and statements that only have an effect. Messages (f-strings), annotations and
docstrings are left alone: no verdict depends on them.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
BUILTINS = {"min": "max", "max": "min", "any": "all", "all": "any"}
ENUMS = {
    "Verdict": ("GREEN", "AMBER", "UNVERIFIED", "RED"),
    "Outcome": ("PASS", "FAIL", "UNKNOWN", "NOT_APPLICABLE"),
    "Source": ("LIVE", "CANARY", "MOCK", "ENDPOINT"),
    "Status": ("GREEN", "GREEN_WITH_CAVEAT", "GREEN_UNVERIFIED", "FAILED"),
    "Arm": ("A", "A2", "A3", "B", "C", "P", "CONFIRM", "WARMUP"),
    "DispatchKind": ("SERIAL", "WAVES", "SATURATE"),
    "Ordering": ("SEEDED", "BY_LENGTH", "LISTED"),
}
"""Each member becomes the next, the last the first."""
ORDERED = ("PRECEDENCE", "GATES", "INVARIANT_FIELDS", "TOKEN_FIELDS")
"""Constants whose order means something."""
FLOAT_STEP = 0.05
"""By which a share such as 0.8 is moved; whole numbers move by 1."""

_Place = tuple[ast.AST, str, int | None]
"""(parent, field, index in the field's list or None)."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: where (module and unit, a function or a constant), of which kind, and what."""

    module: str
    unit: str
    kind: str
    before: str
    after: str
    occurrence: int
    line: int

    @property
    def id(self) -> str:
        """Its name, which stays the same when lines above it come and go."""
        again = f" ({self.occurrence})" if self.occurrence else ""
        return f"{self.module}.{self.unit}: {self.kind}: {self.before} => {self.after}{again}"


@dataclass(frozen=True, slots=True)
class _Change:
    unit: str
    kind: str
    place: _Place
    new: ast.AST
    before: str
    after: str
    line: int


def mutants_of(module: str, source: str) -> list[Mutant]:
    """Every mutant of a module's source, in the order of the source."""
    return [mutant for mutant, _ in _numbered(module, ast.parse(source))]


def codes_of(
    module: str, source: str, filename: str, wanted: Collection[Mutant]
) -> dict[Mutant, CodeType]:
    """The compiled module of each wanted mutant, with that one change."""
    tree = ast.parse(source)
    codes = {}
    for mutant, change in _numbered(module, tree):
        if mutant in wanted:
            old = _old(change.place)
            _put(change.place, ast.copy_location(change.new, old))
            codes[mutant] = compile(ast.fix_missing_locations(tree), filename, "exec")
            _put(change.place, old)
    return codes


def _put(place: _Place, node: ast.AST) -> None:
    parent, field, index = place
    if index is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[index] = node


def _old(place: _Place) -> Any:
    parent, field, index = place
    value = getattr(parent, field)
    return value if index is None else value[index]


def _numbered(module: str, tree: ast.Module) -> list[tuple[Mutant, _Change]]:
    seen: dict[tuple[str, str, str, str], int] = {}
    found = []
    for change in _changes(tree):
        key = (change.unit, change.kind, change.before, change.after)
        occurrence = seen[key] = seen.get(key, -1) + 1
        found.append((Mutant(module, *key, occurrence, change.line), change))
    return found


def _changes(tree: ast.Module) -> Iterator[_Change]:
    for index, statement in enumerate(tree.body):
        yield from _walk(statement, (tree, "body", index), "", None)


def _walk(node: ast.AST, place: _Place, unit: str, returns: str | None) -> Iterator[_Change]:
    """All changes at and below a node; `returns` is the enclosing function's annotation."""
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.JoinedStr, ast.Assert)):
        return
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        unit = f"{unit}.{node.name}" if unit else node.name
        if isinstance(node, ast.FunctionDef):
            returns = ast.unparse(node.returns) if node.returns is not None else None
    elif not unit:
        unit = _assigned(node)
    for kind, new, shown in _variants(node, place, returns):
        if shown is None:
            shown = (_text(node), _text(new))
        yield _Change(unit, kind, place, new, *shown, getattr(node, "lineno", 0))
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        if isinstance(value, list):
            for index, inner in enumerate(value):
                if isinstance(inner, ast.AST) and not _is_text(inner):
                    yield from _walk(inner, (node, field, index), unit, returns)
        elif isinstance(value, ast.AST):
            yield from _walk(value, (node, field, None), unit, returns)


def _assigned(node: ast.AST) -> str:
    target = None
    if isinstance(node, ast.Assign):
        target = node.targets[0]
    elif isinstance(node, ast.AnnAssign):
        target = node.target
    return target.id if isinstance(target, ast.Name) else "module"


def _is_text(node: ast.AST) -> bool:
    """A docstring or another string that stands for itself."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


class _WithoutMessages(ast.NodeTransformer):
    """Python versions differ in how they write an f-string."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return ast.Constant(...)


def _text(node: ast.AST, limit: int = 90) -> str:
    shown = ast.fix_missing_locations(_WithoutMessages().visit(copy.deepcopy(node)))
    text = " ".join(ast.unparse(shown).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


_Variant = tuple[str, ast.AST, "tuple[str, str] | None"]


def _variants(node: ast.AST, place: _Place, returns: str | None) -> Iterator[_Variant]:
    if isinstance(node, ast.Compare):
        yield from _comparisons(node)
        if isinstance(node.ops[0], (ast.In, ast.NotIn)) and len(node.comparators) == 1:
            yield from _fewer(node.comparators[0], node, "comparators")
    elif isinstance(node, ast.Constant):
        yield from _constants(node)
    elif isinstance(node, ast.BoolOp):
        new: ast.AST = copy.copy(node)
        new.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()  # type: ignore[attr-defined]
        yield "boolean", new, None
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        if not isinstance(node.operand, ast.Constant):
            yield ("boolean" if isinstance(node.op, ast.Not) else "sum"), node.operand, None
    elif isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in ARITHMETIC:
        new = copy.copy(node)
        new.op = ARITHMETIC[type(node.op)]()  # type: ignore[attr-defined]
        yield "sum", new, None
    elif isinstance(node, ast.Name) and node.id in BUILTINS and place[1] == "func":
        yield "builtin", ast.Name(BUILTINS[node.id], node.ctx), None
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        yield from _members(node)
    elif isinstance(node, (ast.For, ast.comprehension)):
        yield from _fewer(node.iter, node, "iter")
    yield from _statements(node, place, returns)


def _comparisons(node: ast.Compare) -> Iterator[_Variant]:
    for index, op in enumerate(node.ops):
        new = copy.copy(node)
        new.ops = [*node.ops[:index], COMPARISONS[type(op)](), *node.ops[index + 1 :]]
        yield "comparison", new, None


def _constants(node: ast.Constant) -> Iterator[_Variant]:
    value = node.value
    if isinstance(value, bool):
        yield "boolean", ast.Constant(not value), None
    elif isinstance(value, (int, float)):
        step = FLOAT_STEP if isinstance(value, float) and value % 1 else 1
        for moved in (value - step, value + step):
            yield "number", ast.Constant(moved), (repr(value), f"{moved:g}")


def _members(node: ast.Attribute) -> Iterator[_Variant]:
    assert isinstance(node.value, ast.Name)
    members = ENUMS.get(node.value.id, ())
    if node.attr in members:
        following = members[(members.index(node.attr) + 1) % len(members)]
        yield "member", ast.Attribute(node.value, following, node.ctx), None


def _fewer(literal: ast.AST, node: ast.AST, field: str) -> Iterator[_Variant]:
    """The node with one member less in the tuple, list or set that it looks through."""
    if not isinstance(literal, (ast.Tuple, ast.List, ast.Set)) or len(literal.elts) < 2:
        return
    for index, gone in enumerate(literal.elts):
        less = copy.copy(literal)
        less.elts = literal.elts[:index] + literal.elts[index + 1 :]
        new = copy.copy(node)
        setattr(new, field, [less] if field == "comparators" else less)
        yield "member left out", new, (_text(literal), f"without {_text(gone, 40)}")


def _statements(node: ast.AST, place: _Place, returns: str | None) -> Iterator[_Variant]:
    if isinstance(node, ast.Return) and node.value is not None:
        for value in (True, False) if returns == "bool" else (None,):
            if not (isinstance(node.value, ast.Constant) and node.value.value is value):
                yield "return", ast.Return(ast.Constant(value)), None
    elif isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(place[0], ast.Module):
        yield from _literals(node)
    elif _only_an_effect(node):
        yield "removal", ast.Pass(), (_text(node), "nothing")


def _only_an_effect(node: ast.AST) -> bool:
    if isinstance(node, (ast.AugAssign, ast.Raise, ast.Continue, ast.Break)):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    return isinstance(node, ast.Assign) and isinstance(
        node.targets[0], (ast.Attribute, ast.Subscript)
    )


def _literals(node: ast.Assign | ast.AnnAssign) -> Iterator[_Variant]:
    """A constant of the module with two neighbours swapped, or with one member less."""
    literal, name = node.value, _assigned(node)
    if isinstance(literal, ast.Dict):
        for index, key in enumerate(literal.keys):
            less: ast.AST = ast.Dict(
                literal.keys[:index] + literal.keys[index + 1 :],
                literal.values[:index] + literal.values[index + 1 :],
            )
            shown = (name, f"without {_text(key, 40) if key is not None else index}")
            yield "member left out", _with_value(node, less), shown
    if not isinstance(literal, (ast.Tuple, ast.List)):
        return
    elements = literal.elts
    for index, gone in enumerate(elements):
        less = ast.Tuple(elements[:index] + elements[index + 1 :], ast.Load())
        yield "member left out", _with_value(node, less), (name, f"without {_short(gone)}")
    if name in ORDERED:
        for index in range(len(elements) - 1):
            a, b = elements[index : index + 2]
            swapped = ast.Tuple([*elements[:index], b, a, *elements[index + 2 :]], ast.Load())
            yield "order", _with_value(node, swapped), (name, f"{_short(b)} before {_short(a)}")


def _short(element: ast.AST) -> str:
    """A member of a constant by its name: that of a gate is its first argument."""
    return _text(element.args[0] if isinstance(element, ast.Call) else element, 40)


def _with_value(node: ast.Assign | ast.AnnAssign, value: ast.AST) -> ast.AST:
    new = copy.copy(node)
    new.value = value  # type: ignore[assignment]
    return new
