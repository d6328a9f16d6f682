"""Writes what the documentation shows of runs that are checked in under tests/bench/results.

    python docs/generate_tables.py

A table, or a program's output, stands between two marks that name its results file. `--check`
writes nothing and ends with 1, naming each page that is out of step.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS.parent / "tests" / "bench" / "results"
MARKED = re.compile(r"(<!-- (table|output) of (\S+) -->\n).*?(<!-- end of \2 -->)", re.DOTALL)


def table(results: str) -> str:
    """A results file's lines of cells (`a | b`) as a table; other lines are not in it."""
    lines = (RESULTS / results).read_text("utf-8").splitlines()
    rows = [[cell.strip() for cell in line.split(" | ")] for line in lines if " | " in line]
    shown = ["| " + " | ".join(row) + " |" for row in rows]
    shown.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(shown)


def output(results: str) -> str:
    """A results file as a block of text, less the comments at its head."""
    lines = (RESULTS / results).read_text("utf-8").splitlines()
    return "\n".join(["```", *(line for line in lines if not line.startswith("#")), "```"])


SHOWN = {"table": table, "output": output}


def render(page: Path) -> str:
    """The page with everything that is marked made anew."""
    return MARKED.sub(
        lambda found: f"{found[1]}\n{SHOWN[found[2]](found[3])}\n\n{found[4]}",
        page.read_text("utf-8"),
    )


def main() -> int:
    """The exit status: 0 when the pages are, or now are, in step."""
    check = "--check" in sys.argv[1:]
    stale = []
    for page in sorted(DOCS.glob("*.md")):
        text = render(page)
        if text == page.read_text("utf-8"):
            continue
        stale.append(page.name)
        if not check:
            page.write_text(text, "utf-8")
    if check and stale:
        print(f"out of step: {', '.join(stale)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
