"""The rules of the house, read from the source of every module."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "batch_invariance"
PACKAGE = "batch_invariance"
LEAST_MODULES = 80

PURE = ("invariance_diff", "formats", "profiles")
FORBIDDEN_IN_PURE = frozenset(
    {
        "os",
        "socket",
        "subprocess",
        "threading",
        "time",
        "random",
        "urllib",
        "pathlib",
        "shutil",
        "tempfile",
        "signal",
        "queue",
        "multiprocessing",
        "asyncio",
        "concurrent",
        "select",
        "selectors",
        "ssl",
        "http",
        "secrets",
        "uuid",
        "datetime",
        "ctypes",
        "fcntl",
        "mmap",
        "glob",
        "fileinput",
        "importlib",
        "pickle",
        "platform",
        "logging",
        "sys",
    }
)
# `io` holds byte streams in memory too; what opens a file there is forbidden by name.
FORBIDDEN_NAMES = frozenset({"io.open", "io.FileIO", "io.open_code", "codecs.open"})
FORBIDDEN_CALLS = frozenset({"open", "exec", "eval", "__import__", "input", "print", "compile"})

BOTTOM = (
    "errors", "_version", "invariance_diff.model",
    "answer_code", "answer_text", "answer_values", "python_lexing", "python_syntax",
    "scorer_api", "scorer_base", "scorer_loading", "scorer_parameters", "scorer_reading",
    "scorers", "scorers.contains", "scorers.json_equal", "scorers.last_number", "scorers.regex",
    "scorers.syntax",
)  # fmt: skip
LAYERS = ("invariance_diff", "formats", "profiles", "live_invariance", "cli")


def _modules() -> dict[str, ast.Module]:
    """Every module under the package by dotted name without the package's own."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        found[name] = ast.parse(path.read_bytes(), str(path))
    return found


MODULES = _modules()
IS_PACKAGE = {
    ".".join(path.relative_to(SOURCE).parent.parts) for path in SOURCE.rglob("__init__.py")
}


def _imports(name: str) -> Iterator[str]:
    """Absolute names of all that a module imports, wherever in it the statement stands."""
    for node in ast.walk(MODULES[name]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = [PACKAGE, *(name.split(".") if name else [])]
                above = node.level - (name in IS_PACKAGE)
                parts = parts[: len(parts) - above] if above else parts
                base = ".".join([*parts, *([base] if base else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _own_imports(name: str) -> set[str]:
    """The modules of this package that a module imports, named as in MODULES."""
    found = set()
    for imported in _imports(name):
        if imported == PACKAGE or imported.startswith(PACKAGE + "."):
            inner = imported[len(PACKAGE) + 1 :]
            if inner in MODULES:
                found.add(inner)
    return found


def _layer(name: str) -> int:
    """Where a module stands: 0 is the bottom, `cli` the top."""
    if name in BOTTOM:
        return 0
    head = name.split(".")[0]
    return 1 + LAYERS.index(head) if head in LAYERS else -1


def _pure() -> list[str]:
    return [name for name in MODULES if name.split(".")[0] in PURE]


def test_every_module_was_looked_at() -> None:
    files = [path for path in SOURCE.rglob("*.py") if "__pycache__" not in path.parts]
    assert len(MODULES) == len(files) >= LEAST_MODULES
    for half in (*PURE, "live_invariance", "cli"):
        assert sum(name.startswith(half + ".") for name in MODULES) >= 5
    assert set(BOTTOM) < set(MODULES)
    assert all(_layer(name) >= 0 for name in MODULES if name not in ("", "__main__"))


def test_imports_are_seen_in_every_form() -> None:
    """The reader of imports itself, on a package of its own."""
    assert "batch_invariance.invariance_diff.model" in set(_imports("invariance_diff.diff"))
    assert "invariance_diff.model" in _own_imports("scorer_api")
    assert "errors" in _own_imports("invariance_diff.evidence")
    assert "json" in set(_imports("invariance_diff.strict_json"))
    assert "cli.main" in _own_imports("__main__")


@pytest.mark.parametrize("name", _pure())
def test_the_pure_halves_touch_nothing(name: str) -> None:
    heads = {imported.split(".")[0] for imported in _imports(name)}
    assert not heads & FORBIDDEN_IN_PURE
    assert not set(_imports(name)) & FORBIDDEN_NAMES
    nodes = list(ast.walk(MODULES[name]))
    assert not {n.id for n in nodes if isinstance(n, ast.Name)} & FORBIDDEN_CALLS
    assert not {ast.unparse(n) for n in nodes if isinstance(n, ast.Attribute)} & FORBIDDEN_NAMES


@pytest.mark.parametrize("name", _pure())
def test_the_pure_halves_keep_no_state(name: str) -> None:
    assert not [n for n in ast.walk(MODULES[name]) if isinstance(n, (ast.Global, ast.Nonlocal))]


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_run_one_way(name: str) -> None:
    if name in ("", "__main__"):
        return
    for imported in _own_imports(name):
        if imported == "":
            continue
        if name in BOTTOM:
            assert imported in (*BOTTOM, "invariance_diff"), f"{name} imports {imported}"
        else:
            assert _layer(imported) <= _layer(name), f"{name} imports {imported}"


def test_nothing_imports_the_command_line() -> None:
    for name in MODULES:
        if name != "__main__" and name.split(".")[0] != "cli":
            assert not [i for i in _own_imports(name) if i.split(".")[0] == "cli"], name


def test_the_vocabulary_and_the_errors_stand_on_nothing() -> None:
    assert _own_imports("errors") == set()
    assert _own_imports("invariance_diff.model") == set()
    assert _own_imports("invariance_diff.rules") == set()


def test_no_module_imports_itself_in_a_circle() -> None:
    graph = {name: _own_imports(name) - {name, ""} for name in MODULES if name}
    packages = {name for name in graph if name in IS_PACKAGE}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail, name))
        if name not in done and name not in packages:
            for inner in sorted(graph[name]):
                visit(inner, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize("name", sorted(MODULES))
def test_only_the_standard_library_is_imported(name: str) -> None:
    for imported in _imports(name):
        head = imported.split(".")[0]
        # tomllib is in the standard library from 3.11 on; toml_text imports it only there.
        known = sys.stdlib_module_names | {PACKAGE, "tomllib"}
        assert head in known, f"{name} imports {head}"


def test_no_runtime_dependency() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    project = text.split("[project]", 1)[1].split("\n[", 1)[0]
    assert re.search(r"^dependencies = \[\]$", project, re.MULTILINE)
    assert re.search(r'^requires-python = ">=3\.10"$', project, re.MULTILINE)


@pytest.mark.parametrize("name", sorted(MODULES))
def test_every_module_says_what_it_is(name: str) -> None:
    docstring = ast.get_docstring(MODULES[name])
    assert docstring
    assert docstring[0].isupper() or docstring.startswith((PACKAGE, "batch-invariance", "`"))


@pytest.mark.parametrize("name", sorted(MODULES))
def test_every_module_postpones_annotations(name: str) -> None:
    """What lets one source run on Python 3.10 to 3.13."""
    body = MODULES[name].body
    if any(isinstance(n, (ast.FunctionDef, ast.ClassDef, ast.AnnAssign)) for n in body):
        assert [n for n in body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]


def test_value_types_of_the_core_are_frozen() -> None:
    """Tallies that are added up are the exception, named here."""
    tallies = {"_ItemTally", "ItemFacts", "Isolation", "ControlFacts", "Lifetime", "Facts"}
    tallies |= {"TaskTally", "SpaceTally"}
    mutable = set()
    for name in _pure():
        for node in ast.walk(MODULES[name]):
            if not isinstance(node, ast.ClassDef):
                continue
            for decorator in node.decorator_list:
                text = ast.unparse(decorator)
                if text.startswith("dataclass") and "frozen=True" not in text:
                    mutable.add(node.name)
    assert mutable <= tallies
