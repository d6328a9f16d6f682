"""Mutates the verdict logic one place at a time and runs the tests that assert it.

    python tests/mutation/run_mutants.py [--module M]... [--sample N [--seed S]] [--keep FILE]

Exit status 0: every mutant that ran was killed or is listed in `equivalent.json`, and no listed
one was killed or is unknown; 1 otherwise.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import platform
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent / "src"), str(HERE.parent)]

from mutation.asserted import ASSERTED  # noqa: E402
from mutation.harness import (  # noqa: E402
    CORE,
    Broken,
    Fate,
    Result,
    run_all,
    undisturbed_run,
)
from mutation.mutate import Mutant, mutants_of  # noqa: E402

EQUIVALENT = HERE / "equivalent.json"
COLUMNS = ("mutants", "killed", "timeout", "stillborn", "equivalent", "survived")
CLEAR = "\r\x1b[K" if sys.stderr.isatty() else ""


def find_mutants(modules: Sequence[str]) -> list[Mutant]:
    """All mutants of these modules of the core."""
    found = []
    for module in modules:
        asserted = ASSERTED[module]
        source = (CORE / f"{module}.py").read_text("utf-8")
        found += [m for m in mutants_of(module, source) if asserted.covers(m.unit)]
    return found


def read_equivalent(path: Path = EQUIVALENT) -> dict[str, str]:
    """Mutants that no input can tell apart, each with the reason."""
    entries: dict[str, str] = {}
    for entry in json.loads(path.read_text("utf-8")):
        entries.update(dict.fromkeys(entry["mutants"], entry["why"]))
    return entries


def source_seed() -> int:
    """A seed that stays the same until a mutated module changes."""
    digest = hashlib.sha256()
    for module in sorted(ASSERTED):
        digest.update((CORE / f"{module}.py").read_bytes())
    return int(digest.hexdigest()[:8], 16)


def report(results: Sequence[Result], equivalent: dict[str, str]) -> tuple[list[str], bool]:
    """(lines of the summary, whether all is well)."""
    lines = [f"{'module':16} | " + " | ".join(COLUMNS)]
    total: Counter[str] = Counter()
    wrong = []
    for module in dict.fromkeys(r.mutant.module for r in results):
        own = [r for r in results if r.mutant.module == module]
        counts: Counter[str] = Counter(mutants=len(own))
        for r in own:
            survived, listed = r.fate is Fate.SURVIVED, r.mutant.id in equivalent
            counts["equivalent" if survived and listed else r.fate.value] += 1
            if survived and not listed:
                wrong.append(f"survived {r.test}, line {r.mutant.line}: {_shown(r.mutant.id)}")
            if listed and not survived:
                wrong.append(
                    f"listed as equivalent, yet {r.fate.value}: {_shown(r.mutant.id)}: {r.test}"
                )
        total += counts
        lines.append(_row(module, counts))
    lines.append(_row("all", total))
    telling = total["mutants"] - total["stillborn"] - total["equivalent"]
    killed = total["killed"] + total["timeout"]
    lines.append(f"score: {killed} of {telling} mutants that an input can tell apart were killed")
    return lines + wrong, not wrong


def _row(name: str, counts: Counter[str]) -> str:
    return f"{name:16} | " + " | ".join(f"{counts[c]:{len(c)}d}" for c in COLUMNS)


def _shown(name: str) -> str:
    """A mutant's name; a bar between spaces would be read as a cell of the table."""
    return name.replace(" | ", "|")


def reasons(mutants: Sequence[Mutant], path: Path = EQUIVALENT) -> list[str]:
    """The mutants of these that no input can tell apart, under the reasons."""
    lines = []
    ran = {m.id for m in mutants}
    for entry in json.loads(path.read_text("utf-8")):
        named = [f"  {_shown(name)}" for name in entry["mutants"] if name in ran]
        lines += [f"equivalent: {entry['why']}", *named] if named else []
    return lines


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Proves the verdict logic by mutation.")
    parser.add_argument("--module", action="append", choices=sorted(ASSERTED), metavar="M")
    parser.add_argument("--match", metavar="TEXT", help="only mutants whose name holds this")
    parser.add_argument("--sample", type=int, metavar="N", help="so many, drawn by --seed")
    parser.add_argument("--seed", type=int, help="default: by the sources of the mutated modules")
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FILE",
        help="note what was killed as it comes, and run nothing again that FILE names as killed "
        "with the same source of its module",
    )
    parser.add_argument("--list", action="store_true", help="name the mutants and run nothing")
    parser.add_argument("--verbose", action="store_true", help="say which test killed each one")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Carries a command line out."""
    args = _arguments(argv)
    modules = args.module or sorted(ASSERTED)
    mutants = find_mutants(modules)
    if args.match:
        mutants = [m for m in mutants if args.match in m.id]
    what = "every mutant" if mutants and not args.match else f"mutants with {args.match!r}"
    if args.sample is not None:
        seed = source_seed() if args.seed is None else args.seed
        mutants = random.Random(seed).sample(mutants, min(args.sample, len(mutants)))
        what = f"a sample of {len(mutants)} of {what.removeprefix('every ')}s, seed {seed}"
    if args.list:
        print("\n".join(f"{m.line:4d}  {m.id}" for m in mutants))
        return 0
    equivalent = read_equivalent()
    began = time.monotonic()
    try:
        results = _run(mutants, args.sample is None and not args.match, args.keep)
    except Broken as error:
        print(error, file=sys.stderr)
        return 1
    if args.verbose:
        for r in results:
            print(f"{r.fate.value:9}  {r.mutant.id}\n           by {r.test}")
    lines, well = report(results, equivalent)
    unknown = set(equivalent) - {m.id for m in find_mutants(sorted(ASSERTED))}
    lines += [f"listed as equivalent, but there is no such mutant: {name}" for name in unknown]
    took = f"{time.monotonic() - began:.0f} s, Python {platform.python_version()}"
    print("\n".join([what, *lines, took, *reasons(mutants)]))
    return 0 if well and not unknown else 1


def _run(mutants: Sequence[Mutant], whole: bool, keep: Path | None) -> list[Result]:
    """Runs them, says on stderr how far it is, and sorts the results by place."""
    known = {} if keep is None else _kept(keep)
    results = [known[_key(m)] for m in mutants if _key(m) in known]
    left = [m for m in mutants if _key(m) not in known]

    def done(result: Result) -> None:
        results.append(result)
        if result.fate is Fate.SURVIVED:
            print(f"{CLEAR}survived {result.test}: {result.mutant.id}", file=sys.stderr)
        elif keep is not None:
            _note(keep, result)
        if sys.stderr.isatty():
            print(f"{CLEAR}{len(results)} of {len(mutants)}", end="", file=sys.stderr, flush=True)

    if left:
        with tempfile.TemporaryDirectory() as cache:
            sys.pycache_prefix = cache
            files = sorted({name for m in left for name in ASSERTED[m.module].files})
            run_all(left, undisturbed_run(files if whole else []), done)
            if not whole:
                # Only here did the tests not run first.
                undisturbed_run(
                    sorted({r.test for r in results if r.fate is Fate.KILLED and r.test})
                )
    return sorted(results, key=lambda r: (r.mutant.module, r.mutant.line, r.mutant.id))


@functools.cache
def _digest(module: str) -> str:
    return hashlib.sha256((CORE / f"{module}.py").read_bytes()).hexdigest()[:16]


def _key(mutant: Mutant) -> str:
    return f"{_digest(mutant.module)} {mutant.id}"


def _note(keep: Path, result: Result) -> None:
    line = {"key": _key(result.mutant), "fate": result.fate.value, "test": result.test}
    with keep.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _kept(keep: Path) -> dict[str, Result]:
    """What the file says of mutants whose module is as it was."""
    if not keep.exists():
        return {}
    mutants = {_key(m): m for m in find_mutants(sorted(ASSERTED))}
    lines = [json.loads(line) for line in keep.read_text("utf-8").splitlines()]
    return {
        line["key"]: Result(mutants[line["key"]], Fate(line["fate"]), line["test"])
        for line in lines
        if line["key"] in mutants
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
