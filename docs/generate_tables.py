"""Writes the tables of the documentation that come from runs checked in under tests/bench/results.

    python docs/generate_tables.py

A table stands between two marks that name its results file. `--check` writes nothing and ends with
1, naming each page that is out of step.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS.parent / "tests" / "bench" / "results"
MARKED = re.compile(r"(<!-- table of (\S+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def table(results: str) -> str:
    """A results file's lines of cells (`a | b`) as a table; other lines are not in it."""
    lines = (RESULTS / results).read_text("utf-8").splitlines()
    rows = [[cell.strip() for cell in line.split(" | ")] for line in lines if " | " in line]
    shown = ["| " + " | ".join(row) + " |" for row in rows]
    shown.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(shown)


def render(page: Path) -> str:
    """The page with every marked table made anew."""
    return MARKED.sub(
        lambda found: f"{found[1]}\n{table(found[2])}\n\n{found[3]}", page.read_text("utf-8")
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
