"""Running the tests that assert a mutant, each mutant in a forked child.

The test files are collected once; a child puts its mutant in place and runs the tests that may
kill it until one fails. A mutant of what runs at import is imported in a child that has loaded
nothing of the package yet. No file is touched.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import os
import resource
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

from mutation.asserted import ASSERTED, names
from mutation.mutate import Mutant, codes_of
from mutation.swap import Pair, changed_functions, put_in_place

TESTS = Path(__file__).resolve().parent.parent
CORE = TESTS.parent / "src" / "batch_invariance" / "invariance_diff"
PACKAGE = "batch_invariance.invariance_diff"

CPU_LIMIT_S = 60
"""Of one mutant's tests, in processor time; the slowest list of tests takes a third of it."""
WALL_LIMIT_S = 900
MEMORY_LIMIT = 4 << 30
RUN_FIXTURE = "driver_evidence"
GREEN_TEST = "test_gates.py::test_the_unchanged_run_is_green_and_promotable"
OPTIONS = ("-q", "-s", "--tb=no", "--assert=plain", "-p", "no:cacheprovider", "-o", "addopts=")


class Fate(str, Enum):
    """What became of a mutant. TIMEOUT is killed by a test that did not end, STILLBORN a module
    with which no test can be imported; both are counted apart."""

    KILLED = "killed"
    TIMEOUT = "timeout"
    STILLBORN = "stillborn"
    SURVIVED = "survived"


@dataclass(frozen=True, slots=True)
class Result:
    """A mutant's fate, and the test that failed or how many did not."""

    mutant: Mutant
    fate: Fate
    test: str | None = None


class Broken(Exception):
    """The tests say nothing about mutants: one of them fails without any."""


@dataclass
class Killers:
    """Which test has killed how many mutants of a module and of a unit: those go first."""

    of_module: Counter[tuple[str, str]] = field(default_factory=Counter)
    of_unit: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def note(self, result: Result) -> None:
        if result.fate is Fate.KILLED and result.test is not None:
            m = result.mutant
            self.of_module[m.module, result.test] += 1
            self.of_unit[m.module, m.unit, result.test] += 1

    def sort(self, mutant: Mutant, items: list[pytest.Item]) -> list[pytest.Item]:
        def rank(item: pytest.Item) -> tuple[int, int]:
            by_unit = self.of_unit[mutant.module, mutant.unit, item.nodeid]
            return -by_unit, -self.of_module[mutant.module, item.nodeid]

        return sorted(items, key=rank)

    def sort_files(self, mutant: Mutant, files: Sequence[str]) -> list[str]:
        """The files with the tests that killed most mutants of the unit, then of the module."""
        of_unit: Counter[str] = Counter()
        of_module: Counter[str] = Counter()
        for (module, unit, test), n in self.of_unit.items():
            name = Path(test.split("::")[0]).name
            of_module[name] += n * (module == mutant.module)
            of_unit[name] += n * ((module, unit) == (mutant.module, mutant.unit))
        return sorted(files, key=lambda name: (-of_unit[name], -of_module[name]))


class _Plugin:
    """Notes the first test that fails, and spares the tests the driver's run, which needs no
    repetition: only its certificate depends on the mutant."""

    def __init__(self, run: tuple[bytes, ...]) -> None:
        self.run = run
        self.failed: str | None = None
        self.unimportable: str | None = None
        self.n_run = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> object:
        if fixturedef.argname != RUN_FIXTURE or not self.run:
            return None
        value = _driver_evidence(self.run)
        fixturedef.cached_result = (value, fixturedef.cache_key(request), None)
        return value

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.n_run += report.when == "call"
        if report.failed and self.failed is None:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and self.unimportable is None:
            self.unimportable = report.nodeid


class _Fresh(_Plugin):
    """For a child that imports its mutant: collects, keeps the tests that may kill, runs them."""

    def __init__(self, run: tuple[bytes, ...], mutant: Mutant) -> None:
        super().__init__(run)
        self._mutant = mutant

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = _may_kill(self._mutant, items)


class _Warm(_Plugin):
    """Instead of running the tests, forks a child per mutant that runs those which may kill it."""

    def __init__(
        self,
        run: tuple[bytes, ...],
        mutants: Sequence[tuple[Mutant, list[Pair]]],
        killers: Killers,
        done: Callable[[Result], None],
    ) -> None:
        super().__init__(run)
        self._mutants = mutants
        self._killers = killers
        self._done = done

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for mutant, pairs in self._mutants:
            items = self._killers.sort(mutant, _may_kill(mutant, session.items))
            result = _in_child(mutant, functools.partial(self._try, pairs, items))
            self._killers.note(result)
            self._done(result)
        return True

    def _try(self, pairs: list[Pair], items: list[pytest.Item]) -> tuple[Fate, str]:
        put_in_place(pairs)
        for place, item in enumerate(items):
            following = items[place + 1] if place + 1 < len(items) else None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed is not None:
                return Fate.KILLED, self.failed
        return Fate.SURVIVED, f"none of {self.n_run}"


def _may_kill(mutant: Mutant, items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The tests that assert this mutant's unit, in the order of its module's files."""
    asserted = ASSERTED[mutant.module]
    words = asserted.words_of(mutant.unit)
    found = [i for i in items if i.path.name in asserted.files and (not words or _named(i, words))]
    return sorted(found, key=lambda item: asserted.files.index(item.path.name))


@functools.cache
def _named(item: pytest.Item, words: tuple[str, ...]) -> bool:
    text = item.nodeid + "\n" + _source(getattr(item, "function", None))
    return any(names(word, text) for word in words)


@functools.cache
def _source(function: Callable[..., object] | None) -> str:
    return "" if function is None else inspect.getsource(function)


def _driver_evidence(lines: tuple[bytes, ...]) -> object:
    import conftest
    import core_fixtures
    from batch_invariance.invariance_diff.certificate import certify

    certificate = certify(lines, core_fixtures.EVIDENCE_NAME)
    records = core_fixtures.decode(lines)
    return conftest.DriverEvidence(lines, records, certificate.to_bytes())


class _Hook(importlib.abc.MetaPathFinder):
    """Finds the mutated module, with its changed code."""

    def __init__(self, name: str, path: Path, code: CodeType) -> None:
        self._name, self._path, self._code = name, path, code

    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> Any:
        if fullname != self._name:
            return None
        loader = _Loader(fullname, str(self._path))
        loader.code = self._code
        return importlib.util.spec_from_file_location(fullname, self._path, loader=loader)


class _Loader(importlib.machinery.SourceFileLoader):
    code: CodeType

    def get_code(self, fullname: str) -> CodeType:
        return self.code


def _in_child(mutant: Mutant, work: Callable[[], tuple[Fate, str]]) -> Result:
    """Forks, and waits for the child's answer. Raises Broken where it ends without one."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        _child(writing, work)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(pid, 0)
    if data:
        fate, test = json.loads(data)
        return Result(mutant, Fate(fate), test)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGALRM):
        return Result(mutant, Fate.TIMEOUT)
    raise Broken(f"the child of {mutant.id} ended with status {status}")


def _child(writing: int, work: Callable[[], tuple[Fate, str]]) -> None:
    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silence, descriptor)
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + CPU_LIMIT_S
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    signal.alarm(WALL_LIMIT_S)
    try:
        os.write(writing, json.dumps(work()).encode())
    finally:
        os._exit(0)


def _import_and_run(
    mutant: Mutant, code: CodeType, run: tuple[bytes, ...], killers: Killers
) -> tuple[Fate, str]:
    path, name = CORE / f"{mutant.module}.py", f"{PACKAGE}.{mutant.module}"
    sys.meta_path.insert(0, _Hook(name, path, code))
    try:
        importlib.import_module(name)
    except Exception as error:
        return Fate.STILLBORN, repr(error)
    n_run = 0
    # File by file: most mutants need one, and collecting them all takes longer than running one.
    for name in killers.sort_files(mutant, ASSERTED[mutant.module].files):
        plugin = _Fresh(run, mutant)
        _pytest(["-x", *_paths([name])], plugin)
        if plugin.unimportable is not None:
            return Fate.STILLBORN, plugin.unimportable
        if plugin.failed is not None:
            return Fate.KILLED, plugin.failed
        n_run += plugin.n_run
    return Fate.SURVIVED, f"none of {n_run}"


def _pytest(arguments: Sequence[str], plugin: _Plugin) -> int:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        return int(pytest.main([*OPTIONS, *arguments], plugins=[plugin]))


def _paths(files: Sequence[str]) -> list[str]:
    return [str(TESTS / name.removeprefix("tests/")) for name in files]


def undisturbed_run(tests: Sequence[str]) -> tuple[bytes, ...]:
    """The evidence of a driver's run, made without a mutant, after all these tests (files, or
    single ones) have passed. Raises Broken where one does not."""
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder, "evidence.jsonl")

        class Keep(_Plugin):
            def pytest_runtest_teardown(self, item: pytest.Item) -> None:
                found = getattr(item, "funcargs", {}).get(RUN_FIXTURE)
                if found is not None and not kept.exists():
                    kept.write_bytes(b"".join(found.lines))

        def work() -> tuple[Fate, str]:
            plugin = Keep(())
            code = _pytest(["-x", *_paths([*tests, GREEN_TEST])], plugin)
            failed = plugin.failed or plugin.unimportable
            if code and failed is None:
                failed = f"pytest ended with {code}"
            return (Fate.SURVIVED, "") if failed is None else (Fate.KILLED, failed)

        result = _in_child(Mutant("none", "", "", "", "", 0, 0), work)
        if result.fate is not Fate.SURVIVED:
            raise Broken(f"the tests fail without any mutant: {result.test or 'no end'}")
        return tuple(kept.read_bytes().splitlines(keepends=True))


def run_all(
    mutants: Sequence[Mutant], run: tuple[bytes, ...], done: Callable[[Result], None]
) -> None:
    """Runs the mutants one after the other, and hands each result to `done`."""
    inside: list[tuple[Mutant, list[Pair]]] = []
    killers = Killers()
    for mutant, original, code in _compiled(mutants):
        pairs = changed_functions(original, code)
        if pairs is not None:
            inside.append((mutant, pairs))
            continue
        result = _in_child(mutant, functools.partial(_import_and_run, mutant, code, run, killers))
        killers.note(result)
        done(result)
    if inside:
        files = sorted({name for m, _ in inside for name in ASSERTED[m.module].files})
        plugin = _Warm(run, inside, killers, done)
        _pytest(_paths(files), plugin)
        if plugin.unimportable is not None:
            raise Broken(f"cannot be imported: {plugin.unimportable}")


def _compiled(mutants: Sequence[Mutant]) -> Iterator[tuple[Mutant, CodeType, CodeType]]:
    """Every mutant with its module's code, as it is and as the mutant has it."""
    for module in dict.fromkeys(mutant.module for mutant in mutants):
        path = CORE / f"{module}.py"
        source = path.read_text("utf-8")
        own = {mutant for mutant in mutants if mutant.module == module}
        original = compile(source, str(path), "exec")
        for mutant, code in codes_of(module, source, str(path), own).items():
            yield mutant, original, code
