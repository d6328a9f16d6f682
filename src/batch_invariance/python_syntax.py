"""Python source as a normalised syntax tree, written in one form on every Python from 3.10 on.

Two sources with the same normalised syntax behave alike. What is taken to be without meaning:

- comments, blank lines, indentation widths, line breaks, redundant parentheses, trailing commas,
  quote styles, the spelling of numbers (`0x10` is `16`), adjacent strings that Python joins;
- docstrings, other constants that stand as a statement, and `pass` beside other statements;
- annotations of parameters and results, and of local variables that get a value, where they are
  built of `int`, `list`, `dict[str, int]`, `int | None` and their like. They stay in a class,
  under a decorator, and whenever they name anything else, which need not exist.

Docstrings and annotations stay in a source that could look at them or change what they mean: one
that names `__doc__`, `inspect`, `eval` or another of `_LOOKING`, binds a built-in type's name,
declares a name global or nonlocal, or imports from `__future__`.

Everything else counts. Names of parameters and of local variables do, since a caller may pass
them by keyword and code can look them up; `x += 1` is not `x = x + 1`; an f-string is compared by
its text between the quotes.

The grammar is that of Python 3.10 with identifiers in ASCII, so that the answer does not depend
on the Python that gives it; the inside of an f-string is not checked.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from typing import TypeGuard

from batch_invariance.python_lexing import PlainSource, without_fstrings

MAX_SOURCE_CHARS = 20_000
MAX_TREE_DEPTH = 100
"""Limits well within those of every parser from 3.10 to 3.13, which differ from each other."""

_GRAMMAR = (3, 10)
_NEWER = frozenset({"TryStar", "TypeAlias", "TypeVar", "TypeVarTuple", "ParamSpec", "TemplateStr"})
_UNWRITTEN = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
_PLAIN_TYPES = frozenset(
    {"bool", "bytearray", "bytes", "complex", "dict", "float", "frozenset", "int", "list",
     "object", "set", "str", "tuple", "type"}
)  # fmt: skip
_GENERIC_TYPES = frozenset({"dict", "frozenset", "list", "set", "tuple", "type"})
_LOOKING = frozenset(
    {"__annotations__", "__builtins__", "__code__", "__dict__", "__doc__", "__future__", "builtins",
     "compile", "eval", "exec", "get_annotations", "get_type_hints", "getdoc", "getsource",
     "globals", "help", "inspect", "locals", "setattr", "signature", "vars"}
)  # fmt: skip
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def normalised_syntax(source: str) -> str | None:
    """Return the normalised syntax tree of a module's source as ASCII text.

    None when it is no Python 3.10, or beyond the limits. Never raises.
    """
    text = source.replace("\r\n", "\n").replace("\r", "\n")
    if len(text) > MAX_SOURCE_CHARS:
        return None
    try:
        plain = without_fstrings(text)
        with warnings.catch_warnings():
            # Warnings about odd literals would be shown, or under -W error be SyntaxErrors.
            warnings.simplefilter("ignore")
            tree = ast.parse(plain.text, feature_version=_GRAMMAR)
        _check(tree)
        if not _looks_at_itself(tree, plain):
            _Normaliser().visit(tree)
        return "".join(_written(tree, plain))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _check(tree: ast.AST) -> None:
    """Raise ValueError for a tree too deep, or of a grammar newer than 3.10."""
    level: list[ast.AST] = [tree]
    for _ in range(MAX_TREE_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        for node in level:
            index = node.slice if isinstance(node, ast.Subscript) else None
            parts = index.elts if isinstance(index, ast.Tuple) else []
            if any(isinstance(part, ast.Starred) for part in parts):
                raise ValueError("unpacking in a subscript")  # 3.11 reads it without parentheses
            if isinstance(node, ast.arg) and isinstance(node.annotation, ast.Starred):
                raise ValueError("an unpacked annotation")
            if type(node).__name__ in _NEWER:
                raise ValueError("newer than Python 3.10")
        if not level:
            return
    raise ValueError("nested too deeply")


def _looks_at_itself(tree: ast.AST, plain: PlainSource) -> bool:
    """Whether code could tell a source with docstrings and annotations from one without."""
    inside = " ".join(plain.fstrings)
    if ":=" in inside or any(word in inside for word in _LOOKING):
        return True
    for node in ast.walk(tree):
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            return True
        reads = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        binds = not reads and not isinstance(node, (ast.Attribute, ast.Constant, ast.keyword))
        for name in _names_in(node):
            if not _LOOKING.isdisjoint(name.split(".")):
                return True
            if binds and (name in _PLAIN_TYPES or name == "*"):
                return True
    return False


def _names_in(node: ast.AST) -> Iterator[str]:
    """Every text in a node's own fields: names that it binds or reads, and string constants."""
    return (value for _, value in ast.iter_fields(node) if isinstance(value, str))


class _Normaliser(ast.NodeTransformer):
    """Takes out what has no meaning. `_where` is the chain of scopes around the visited node."""

    def __init__(self) -> None:
        self._where: list[type[ast.AST]] = []

    def visit(self, node: ast.AST) -> ast.AST:
        """Clear the bodies of a node on the way back from its children."""
        scope = isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._unannotate(node)
        if isinstance(node, ast.AnnAssign):
            node = self._assignment(node)
        if scope:
            self._where.append(type(node))
        self.generic_visit(node)
        if scope:
            self._where.pop()
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list) and statements:
                left = [one for one in statements if not _does_nothing(one)]
                setattr(node, name, left or ([] if name == "orelse" else [ast.Pass()]))
        return node

    def _unannotate(self, function: _Function) -> None:
        if function.decorator_list or ast.ClassDef in self._where:
            return
        if function.returns is not None and _is_plain_type(function.returns):
            function.returns = None
        for node in ast.walk(function.args):
            annotation = node.annotation if isinstance(node, ast.arg) else None
            if isinstance(node, ast.arg) and annotation and _is_plain_type(annotation):
                node.annotation = None

    def _assignment(self, node: ast.AnnAssign) -> ast.AST:
        """Make a plain assignment of an annotated one to a local variable."""
        local = bool(self._where) and self._where[-1] is not ast.ClassDef and node.simple
        if local and node.value is not None and _is_plain_type(node.annotation):
            return ast.Assign(targets=[node.target], value=node.value)
        return node


def _does_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.Pass)


def _is_plain_type(node: ast.expr) -> bool:
    """Whether evaluating an annotation surely succeeds and does nothing."""
    if isinstance(node, ast.Constant):
        return node.value is None or isinstance(node.value, str)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        right = node.right
        none = isinstance(right, ast.Constant) and right.value is None
        return _is_type(node.left) and (none or _is_type(right))
    return _is_type(node)


def _is_type(node: ast.expr) -> bool:
    """As `_is_plain_type`, of what can stand on both sides of `|`."""
    if isinstance(node, ast.Name):
        return node.id in _PLAIN_TYPES
    if isinstance(node, ast.Subscript):
        generic = isinstance(node.value, ast.Name) and node.value.id in _GENERIC_TYPES
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return generic and all(_is_argument(one) for one in inner)
    if isinstance(node, ast.BinOp):
        return _is_plain_type(node)
    return False


def _is_argument(node: ast.expr) -> bool:
    ellipsis = isinstance(node, ast.Constant) and node.value is ...
    return ellipsis or _is_plain_type(node)


def _written(value: object, plain: PlainSource) -> Iterator[str]:
    """Write a tree: class names, and fields by name where they hold anything.

    `ast.dump` leaves out other things on other Pythons. Integers are in hexadecimal, which knows
    no limit on digits.
    """
    if isinstance(value, ast.Constant):
        yield f"Constant({_constant(value.value)})"
    elif isinstance(value, ast.Call) and _is_stand_in(value.func, plain):
        yield f"FString({plain.fstring(value.func.id)})"
    elif isinstance(value, ast.AST):
        yield type(value).__name__ + "("
        for name in sorted(value._fields):
            field = getattr(value, name, None)
            if name not in _UNWRITTEN and field is not None and field != []:
                yield name + "="
                yield from _written(field, plain)
                yield ","
        yield ")"
    elif isinstance(value, list):
        yield "["
        for entry in value:
            yield from _written(entry, plain)
            yield ","
        yield "]"
    elif isinstance(value, str) and plain.is_stand_in(value):
        raise ValueError("an f-string where a name should be")
    else:
        yield ascii(value)


def _constant(value: object) -> str:
    return hex(value) if isinstance(value, int) and not isinstance(value, bool) else ascii(value)


def _is_stand_in(node: ast.expr, plain: PlainSource) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and plain.is_stand_in(node.id)
