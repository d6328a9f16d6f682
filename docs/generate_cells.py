"""Writes the table of docs/cells.md from tests/bench/results/cells_table.txt.

    python docs/generate_cells.py

`--check` writes nothing and ends with 1 when the page is out of step.
"""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "cells.md"
RESULTS = DOCS.parent / "tests" / "bench" / "results" / "cells_table.txt"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"


def render() -> str:
    """The page with the table of the results file."""
    lines = RESULTS.read_text("utf-8").splitlines()
    rows = [[cell.strip() for cell in line.split(" | ")] for line in lines if " | " in line]
    table = ["| " + " | ".join(row) + " |" for row in rows]
    table.insert(1, "|" + "---|" * len(rows[0]))
    page = PAGE.read_text("utf-8")
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n" + "\n".join(table) + f"\n\n{END}{tail}"


def main() -> int:
    """The exit status: 0 when the page is, or now is, in step."""
    text = render()
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.read_text("utf-8") == text else 1
    PAGE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
