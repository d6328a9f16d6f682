"""Mutates the verdict logic one place at a time and runs the tests that assert it.

    python tests/mutation/run_mutants.py [--module M]... [--sample N --seed S] [--jobs J] [--list]

Every mutant lives in a forked child alone: the module is compiled from the changed tree as it is
imported, and no file is touched. Exit status 0: every mutant that ran was killed or is listed in
`equivalent.json`, and no listed one was killed or is unknown; 1 otherwise.
"""

from __future__ import annotations

import argparse
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
SOURCE = TESTS.parent / "src"
CORE = SOURCE / "batch_invariance" / "invariance_diff"
PACKAGE = "batch_invariance.invariance_diff"
sys.path[:0] = [str(SOURCE), str(TESTS)]

import pytest  # noqa: E402

from mutation.asserted import ASSERTED, names  # noqa: E402
from mutation.mutate import Mutant, mutants_of, mutated_code  # noqa: E402

CPU_LIMIT_S = 60
"""Of one mutant's tests, in processor time; the slowest list of tests takes a third of it."""
WALL_LIMIT_S = 900
MEMORY_LIMIT = 4 << 30
RUN_FIXTURE = "driver_evidence"
EQUIVALENT = HERE / "equivalent.json"


class Fate(str, Enum):
    """What became of a mutant. TIMEOUT is killed by a test that did not end, STILLBORN a module
    that cannot be imported; both are counted apart."""

    KILLED = "killed"
    TIMEOUT = "timeout"
    STILLBORN = "stillborn"
    SURVIVED = "survived"


@dataclass(frozen=True, slots=True)
class Result:
    """A mutant's fate, and the test that failed."""

    mutant: Mutant
    fate: Fate
    test: str | None = None


@dataclass(eq=False)
class Chosen:
    """The pytest plugin of one child: keeps the tests that may kill, those first that have killed
    the most of the module so far, and notes the first that does."""

    words: tuple[str, ...]
    run: tuple[bytes, ...]
    killers: Mapping[str, int]
    failed: str | None = None
    n_run: int = 0

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.words:
            items[:] = [item for item in items if _named(item, self.words)]
        items.sort(key=lambda item: -self.killers.get(item.nodeid, 0))

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> object:
        """The driver's run needs no repetition; only the certificate depends on the mutant."""
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
        if report.failed and self.failed is None:
            self.failed = report.nodeid


def _named(item: pytest.Item, words: Sequence[str]) -> bool:
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


def _in_child(work: Callable[[], dict[str, Any]]) -> tuple[int, int]:
    """Forks; the child's answer can be read from the descriptor as JSON. (pid, descriptor)"""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    os.close(reading)
    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silence, descriptor)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    signal.alarm(WALL_LIMIT_S)
    answer = json.dumps(work()).encode()
    os.write(writing, answer)
    os._exit(0)


def _run_tests(files: Sequence[str], plugin: Chosen) -> int:
    paths = [str(TESTS / name) for name in files if (TESTS / name).exists()]
    options = ["-x", "-q", "-p", "no:cacheprovider", "-o", "addopts=", "--tb=no"]
    return int(pytest.main([*options, *paths], plugins=[plugin]))


def _judge(mutant: Mutant, run: tuple[bytes, ...], killers: Mapping[str, int]) -> dict[str, Any]:
    """In the child: the mutated module is imported, then the tests that assert it run."""
    asserted = ASSERTED[mutant.module]
    path, name = CORE / f"{mutant.module}.py", f"{PACKAGE}.{mutant.module}"
    changed = mutated_code(mutant, path.read_text("utf-8"), str(path))
    sys.meta_path.insert(0, _Hook(name, path, changed))
    try:
        importlib.import_module(name)
    except Exception as error:
        return {"fate": Fate.STILLBORN.value, "test": repr(error)}
    plugin = Chosen(asserted.words_of(mutant.unit), run, killers)
    code = _run_tests(asserted.files, plugin)
    if plugin.failed is not None:
        return {"fate": Fate.KILLED.value, "test": plugin.failed}
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return {"fate": None, "test": f"pytest ended with {code}"}
    return {"fate": Fate.SURVIVED.value, "test": f"none of {plugin.n_run}"}


def _baseline(modules: Sequence[str], whole: bool) -> tuple[bytes, ...]:
    """The lines of a driver's run, made without a mutant; with `whole` after every test that may
    kill has passed. Raises SystemExit where one does not."""
    files = sorted({name for module in modules for name in ASSERTED[module].files})
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder, "evidence.jsonl")

        class Keep(Chosen):
            def pytest_runtest_teardown(self, item: pytest.Item) -> None:
                found = getattr(item, "funcargs", {}).get(RUN_FIXTURE)
                if found is not None and not kept.exists():
                    kept.write_bytes(b"".join(found.lines))

        def work() -> dict[str, Any]:
            plugin = Keep((), (), {})
            wanted = files if whole else ["test_gates.py::" + GREEN_TEST]
            paths = [str(TESTS / name) for name in wanted if (TESTS / name.split(":")[0]).exists()]
            code = pytest.main(
                ["-x", "-q", "-p", "no:cacheprovider", "-o", "addopts=", *paths], plugins=[plugin]
            )
            return {"code": int(code), "test": plugin.failed}

        pid, reading = _in_child(work)
        answer = _answer(pid, reading)
        if answer is None or answer["code"] != 0:
            failed = "it did not end" if answer is None else answer["test"]
            raise SystemExit(f"the tests fail without any mutant: {failed}")
        lines = kept.read_bytes().splitlines(keepends=True) if kept.exists() else []
    return tuple(lines)


GREEN_TEST = "test_the_unchanged_run_is_green_and_promotable"


def _answer(pid: int, reading: int) -> dict[str, Any] | None:
    """What a child has said; None where a limit ended it."""
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(data) if data else None


def run_all(mutants: Sequence[Mutant], run: tuple[bytes, ...], jobs: int) -> list[Result]:
    """Runs the mutants, `jobs` at a time, and says on stderr how far it is."""
    results: list[Result] = []
    waiting = list(reversed(mutants))
    running: dict[int, tuple[Mutant, int]] = {}
    killers: dict[str, Counter[str]] = defaultdict(Counter)
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant = waiting.pop()
            work = functools.partial(_judge, mutant, run, killers[mutant.module])
            pid, reading = _in_child(work)
            running[pid] = (mutant, reading)
        pid, _ = os.wait()
        mutant, reading = running.pop(pid)
        with os.fdopen(reading, "rb") as pipe:
            data = pipe.read()
        answer = json.loads(data) if data else {"fate": Fate.TIMEOUT.value, "test": None}
        if answer["fate"] is None:
            raise SystemExit(f"{answer['test']}: {mutant.id}")
        result = Result(mutant, Fate(answer["fate"]), answer["test"])
        results.append(result)
        if result.fate is Fate.KILLED:
            killers[mutant.module][answer["test"]] += 1
        elif result.fate is Fate.SURVIVED:
            print(f"\rsurvived {result.test}: {mutant.id}", file=sys.stderr)
        print(f"\r{len(results)} of {len(mutants)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return sorted(results, key=lambda r: (r.mutant.module, r.mutant.line, r.mutant.id))


def find_mutants(modules: Sequence[str]) -> list[Mutant]:
    """All mutants of these modules of the core."""
    found = []
    for module in modules:
        source = (CORE / f"{module}.py").read_text("utf-8")
        asserted = ASSERTED[module]
        found += [m for m in mutants_of(module, source) if asserted.covers(m.unit)]
    return found


def read_equivalent(path: Path = EQUIVALENT) -> dict[str, str]:
    """Mutants that no input can tell apart, each with the reason."""
    entries: dict[str, str] = {}
    for entry in json.loads(path.read_text("utf-8")):
        entries.update(dict.fromkeys(entry["mutants"], entry["why"]))
    return entries


def report(results: Sequence[Result], equivalent: dict[str, str]) -> tuple[list[str], bool]:
    """(lines of the summary, whether all is well)."""
    lines = ["module            mutants  killed  timeout  stillborn  equivalent  survived"]
    total: Counter[str] = Counter()
    survivors = []
    for module in dict.fromkeys(r.mutant.module for r in results):
        own = [r for r in results if r.mutant.module == module]
        counts: Counter[str] = Counter(mutants=len(own))
        for result in own:
            alive = result.fate is Fate.SURVIVED
            listed = alive and result.mutant.id in equivalent
            counts["equivalent" if listed else result.fate.value] += 1
            if alive and not listed:
                survivors.append(f"survived: line {result.mutant.line}: {result.mutant.id}")
        total += counts
        lines.append(_row(module, counts))
    lines.append(_row("all", total))
    telling = total["mutants"] - total["stillborn"] - total["equivalent"]
    killed = total["killed"] + total["timeout"]
    lines.append(f"score: {killed} of {telling} mutants that an input can tell apart were killed")
    dead = [
        f"listed as equivalent, yet killed by {r.test}: {r.mutant.id}"
        for r in results
        if r.fate is not Fate.SURVIVED and r.mutant.id in equivalent
    ]
    return lines + survivors + dead, not (survivors or dead)


def _row(name: str, counts: Counter[str]) -> str:
    columns = ("mutants", "killed", "timeout", "stillborn", "equivalent", "survived")
    widths = (7, 6, 7, 9, 10, 8)
    cells = [f"{counts[c]:{w}d}" for c, w in zip(columns, widths, strict=True)]
    return f"{name:16}  " + "  ".join(cells)


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Proves the verdict logic by mutation.")
    parser.add_argument("--module", action="append", choices=sorted(ASSERTED), metavar="M")
    parser.add_argument("--match", metavar="TEXT", help="only mutants whose name holds this")
    parser.add_argument("--sample", type=int, metavar="N", help="so many, drawn by --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="name the mutants and run nothing")
    parser.add_argument("--verbose", action="store_true", help="say which test killed each one")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Carries a command line out."""
    args = _arguments(argv)
    modules = args.module or sorted(ASSERTED)
    mutants = find_mutants(modules)
    equivalent = read_equivalent()
    unknown = set(equivalent) - {m.id for m in find_mutants(sorted(ASSERTED))}
    if args.match:
        mutants = [m for m in mutants if args.match in m.id]
    if args.sample is not None:
        mutants = random.Random(args.seed).sample(mutants, min(args.sample, len(mutants)))
    if args.list:
        print("\n".join(f"{m.line:4d}  {m.id}" for m in mutants))
        return 0
    with tempfile.TemporaryDirectory() as cache:
        sys.pycache_prefix = cache
        began = time.monotonic()
        run = _baseline(modules, args.sample is None and not args.match)
        results = run_all(mutants, run, args.jobs)
    if args.verbose:
        for result in results:
            print(f"{result.fate.value:9}  {result.mutant.id}\n           by {result.test}")
    lines, well = report(results, equivalent)
    if args.sample is not None:
        lines.insert(0, f"a sample of {len(mutants)} drawn by seed {args.seed}")
    lines += [f"listed as equivalent, but there is no such mutant: {name}" for name in unknown]
    print("\n".join([*lines, f"{time.monotonic() - began:.0f} s"]))
    return 0 if well and not unknown else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
