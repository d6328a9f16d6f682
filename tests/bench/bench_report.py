"""Reports of many cells: how long one takes to make, how large it is, how fast it opens.

    python tests/bench/bench_report.py [--cells 12,50,200] [--repeats 3] [--evidence DIR]

Runs the mock with every kind of divergence at two contexts and two numbers of slots, eight passes
each as `run-mock` does by itself, or takes the evidence files of a folder, such as the real cells
of `examples/matrix/certs`. Copies those cells until there are enough; each copy is derived anew, so
that its evidence bears it out. Then `report` runs in a process of its own. Printed: the evidence
read; wall and processor seconds (all processes together), the median of the repeats; the processor
seconds of one process that only draws cells already read; the size of the page; and where there is
a Chromium, the seconds from its start to a picture of the page, less those for an empty one.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from batch_invariance.cli.cell_reading import read_cell
from batch_invariance.cli.cert_files import find_certificates
from batch_invariance.cli.main import main as batch_invariance
from batch_invariance.formats.html_page import Cell, PageInfo, draw_cell, page
from batch_invariance.invariance_diff.certificate import certify
from batch_invariance.invariance_diff.evidence import (
    EvidenceEncoder,
    EvidenceReader,
)
from batch_invariance.invariance_diff.records import Header, Record, SharedArm
from batch_invariance.invariance_diff.report_data import detail_for
from browser_equipment import Chromium, find_chromium

KINDS = (None, "score", "token", "logprob")
FIGURES = ((1024, 2), (1024, 4), (2048, 2), (2048, 4))


def originals(folder: Path) -> Iterator[tuple[Record, ...]]:
    """The records of one mock run for each kind, context and number of slots."""
    for kind in KINDS:
        for ctx, n in FIGURES:
            out = folder / f"{kind}-{ctx}-{n}"
            words = ["run-mock", "--quiet", "--ctx", str(ctx), "--parallel", str(n)]
            words += ["--divergence-fraction", "0.3"]
            words += ["--batch-divergence", kind] if kind else []
            with contextlib.redirect_stdout(io.StringIO()):
                batch_invariance([*words, "--out-dir", str(out)])
            (evidence,) = out.glob("*.evidence.jsonl")
            with open(evidence, "rb") as file:
                yield tuple(EvidenceReader(file))


def found_in(folder: Path) -> Iterator[tuple[Record, ...]]:
    """The records of every cell of a folder."""
    for path in sorted(folder.rglob("*__N*.evidence.jsonl")):
        with open(path, "rb") as file:
            yield tuple(EvidenceReader(file))


def write_copy(records: Sequence[Record], number: int, folder: Path) -> int:
    """The cell in another folder, under another flag where its arms are its own, with a certificate
    derived anew; returns its evidence's bytes."""
    header = records[0]
    assert isinstance(header, Header)
    cell = header.cell
    # What a sweep shares is bound to the flags of its cells.
    if not any(isinstance(record, SharedArm) for record in records):
        cell = replace(cell, server_flags=("--copy", str(number)))
    encoder = EvidenceEncoder()
    lines = [encoder.encode(record) for record in (replace(header, cell=cell), *records[1:])]
    stem = folder / str(number) / f"mock__ctx{cell.ctx}__N{cell.dispatch_n}"
    stem.parent.mkdir(exist_ok=True)
    evidence = stem.with_suffix(".evidence.jsonl")
    evidence.write_bytes(b"".join(lines))
    stem.with_suffix(".json").write_bytes(certify(lines, evidence.name).to_bytes())
    return evidence.stat().st_size


def timed_report(folder: Path, out: Path) -> tuple[float, float]:
    """Wall and processor seconds of `report` in a process of its own."""
    out.unlink(missing_ok=True)
    before, began = os.times(), time.monotonic()
    command = [sys.executable, "-m", "batch_invariance", "report", str(folder), "-o", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.monotonic() - began, os.times()
    spent = after.children_user + after.children_system
    return wall, spent - before.children_user - before.children_system


def drawing(folder: Path) -> float:
    """Processor seconds to draw the page of cells already read and verified."""
    paths = find_certificates([folder]).certificates
    detail = detail_for(len(paths))
    spent, cells = 0.0, []
    for number, path in enumerate(paths, 1):
        report = read_cell(path, detail)
        began = time.process_time()
        cells.append(Cell(report, draw_cell(report, number, len(paths), detail)))
        spent += time.process_time() - began
    began = time.process_time()
    page(cells, PageInfo((str(folder),), "now", "bench"))
    return spent + time.process_time() - began


def opening(page: Path, scratch: Path) -> str:
    """Seconds until a browser shows the page, less those for an empty one."""
    path, why_not = find_chromium()
    if path is None:
        return why_not
    browser = Chromium(path, scratch)
    empty = scratch / "empty.html"
    empty.write_text("<!DOCTYPE html><title>empty</title>", "utf-8")

    def seconds(target: Path) -> float:
        began = time.monotonic()
        browser.screenshot(target, 1280, 900)
        return time.monotonic() - began

    seconds(empty)
    pairs = [(seconds(empty), seconds(page)) for _ in range(3)]
    return f"{statistics.median(b - a for a, b in pairs):.2f}"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cells", default="12,50,200")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--evidence", type=Path)
    args = parser.parse_args()
    print(f"# {time.strftime('%Y-%m-%d')} UTC, {os.cpu_count()} processors")
    print(f"# {platform.system()} {platform.machine()}, Python {platform.python_version()}")
    print(f"# load average before: {os.getloadavg()[0]:.1f}; median of {args.repeats}")
    print(f"# python {' '.join(sys.argv)}")
    print("cells  evidence MB |  wall s   cpu s  draw cpu s |  page MB  KB/cell |  to open s")
    with tempfile.TemporaryDirectory(prefix="batch-invariance-bench-") as name:
        scratch = Path(name)
        evidence = args.evidence
        made = list(found_in(evidence) if evidence else originals(scratch / "originals"))
        for count in map(int, args.cells.split(",")):
            folder = scratch / f"cells{count}"
            folder.mkdir()
            size = 0
            for i in range(count):
                kind = folder / str(i % len(made))
                kind.mkdir(exist_ok=True)
                size += write_copy(made[i % len(made)], i // len(made), kind)
            out = scratch / f"report{count}.html"
            runs = [timed_report(folder, out) for _ in range(args.repeats)]
            wall, spent = (statistics.median(values) for values in zip(*runs, strict=True))
            written = out.stat().st_size
            print(
                f"{count:5}  {size / 1e6:11.1f} |  {wall:6.2f}  {spent:6.2f}  "
                f"{drawing(folder):10.2f} |  {written / 1e6:7.2f}  {written / 1e3 / count:7.1f} |  "
                f"{opening(out, scratch):>9}",
                flush=True,
            )


if __name__ == "__main__":
    main()
