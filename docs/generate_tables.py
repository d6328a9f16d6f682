"""Writes what the documentation shows of checked-in runs and files.

    python docs/generate_tables.py

A table, or a program's output, stands between two marks that name its results file under
tests/bench/results, or one part of it (`FILE:PART`, which begins after the line `# part PART`). A
file of the repository stands between marks with its path. `--check` writes nothing and ends with 1,
naming each page that is out of step.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
RESULTS = ROOT / "tests" / "bench" / "results"
MARKED = re.compile(r"(<!-- (table|output|file) of (\S+) -->\n).*?(<!-- end of \3 -->)", re.DOTALL)
BEGINS = re.compile(r"<!-- (?:table|output|file) of \S+ -->")
PART = "# part "
LANGUAGES = {".yml": "yaml", ".toml": "toml", ".sh": "sh"}


def lines_of(results: str) -> list[str]:
    """The lines of a results file, or of one part of it. Raises ValueError without that part."""
    name, _, part = results.partition(":")
    lines = (RESULTS / name).read_text("utf-8").splitlines()
    if not part:
        return lines
    lines = lines[lines.index(PART + part) + 1 :]
    end = next((i for i, line in enumerate(lines) if line.startswith(PART)), len(lines))
    return lines[:end]


def table(results: str) -> str:
    """A results file's lines of cells (`a | b`) as a table; other lines are not in it."""
    rows = [
        [cell.strip() for cell in line.split(" | ")] for line in lines_of(results) if " | " in line
    ]
    shown = ["| " + " | ".join(row) + " |" for row in rows]
    shown.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(shown)


def output(results: str) -> str:
    """A results file as a block of text, less its comments."""
    shown = (line for line in lines_of(results) if not line.startswith("#"))
    return "\n".join(["```", *shown, "```"])


def file(path: str) -> str:
    """A file of the repository as a block in its language."""
    text = (ROOT / path).read_text("utf-8")
    return f"```{LANGUAGES.get(Path(path).suffix, '')}\n{text}```"


SHOWN = {"table": table, "output": output, "file": file}


def render(page: Path) -> str:
    """The page with everything that is marked made anew. Raises ValueError where a mark's end is
    missing or names another file."""
    text, n_made = MARKED.subn(
        lambda found: f"{found[1]}\n{SHOWN[found[2]](found[3])}\n\n{found[4]}",
        page.read_text("utf-8"),
    )
    if n_made != len(BEGINS.findall(text)):
        raise ValueError(f"{page.name}: a mark lacks its end, <!-- end of FILE -->")
    return text


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
