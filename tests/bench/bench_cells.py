"""The reference cells, run again and again: does each come out as it should?

    python tests/bench/bench_cells.py --server-bin S --model M [--runs 5] [--only NAME]

`--model` is SmolLM2-135M-Instruct.Q4_1.gguf. Printed: one line a run (verdict, class, score and
token-only divergences, whether logprob bits held, seconds), then how many runs came out as stated.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batch_invariance.live_invariance.host import host_facts

EXAMPLES = Path(__file__).parents[2] / "examples"
MIXED = (170, 900)
"""Characters of the prompts of `workset.json` that have 54 to 240 tokens on SmolLM2."""


@dataclass(frozen=True)
class Cell:
    """A cell by name: how to run it, and the verdict, class and claim it should come to.

    A `verdict` of None is a cell of which only the outcome is wanted.
    """

    name: str
    words: tuple[str, ...]
    verdict: str | None
    divergence_class: str | None = None
    logprob_bits: bool | None = None


CELLS = (
    Cell("canary q8_0", ("--canary",), "GREEN", None, True),
    Cell("canary f16,twins", ("--canary", "f16,twins"), "RED", "co_batching"),
    Cell("canary f32", ("--canary", "f32"), "GREEN", None, False),
    Cell("canary f32 armed", ("--canary", "f32", "--logit-drift", "bits"), "AMBER", None, False),
    Cell("canary f32 -fa auto", ("--canary", "f32", "--", "--flash-attn", "auto"), None),
    Cell("canary q8_0,moe", ("--canary", "q8_0,moe"), "GREEN"),
    Cell("SmolLM2 short", ("--workset", "short"), "GREEN"),
    Cell("SmolLM2 mixed", ("--workset", "mixed"), "RED", "co_batching"),
    Cell(
        "SmolLM2 mixed --kv-unified",
        ("--workset", "mixed", "--", "--kv-unified"),
        "RED",
        "slot_allocation(+co_batching)",
    ),
)


def command(cell: Cell, args: argparse.Namespace, folder: Path) -> list[str]:
    """The command line of one run."""
    words = list(cell.words)
    line = [sys.executable, "-m", "batch_invariance", "run-live", "-q", "--json"]
    line += ["--server-bin", args.server_bin, "--out-dir", str(folder)]
    if "--workset" in words:
        place = words.index("--workset") + 1
        words[place] = str(workset(words[place], folder))
        line += ["--model", args.model, "--ctx", "2048", "--parallel", "4"]
        line += ["--max-tokens", "32", "--passes", "2"]
    return line + words


def workset(name: str, folder: Path) -> Path:
    """The short example set, or ten items of the long one that have 54 to 240 tokens."""
    if name == "short":
        return EXAMPLES / "workset_short.json"
    items = json.loads((EXAMPLES / "workset.json").read_bytes())
    chosen = [i for i in items if MIXED[0] <= len(i.get("prompt", "")) <= MIXED[1]][:10]
    path = folder / "mixed.json"
    path.write_text(json.dumps(chosen))
    return path


def run(cell: Cell, args: argparse.Namespace) -> tuple[bool, str]:
    """(whether it came out as stated, one line about it)."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        done = subprocess.run(
            command(cell, args, Path(folder)), capture_output=True, text=True, check=False
        )
        seconds = time.monotonic() - start
        report: dict[str, Any] = json.loads(done.stdout)
        if "certificate" not in report:
            return False, f"no certificate: {report}"
        cert = json.loads(Path(report["certificate"]).read_bytes())
    ac = cert["divergence_report"]["AC"]
    stated = cell.verdict is None or (
        cert["verdict"] == cell.verdict
        and (cert["divergence_class"] or None) == cell.divergence_class
        and cell.logprob_bits in (None, cert["claims"]["logprob_bits"])
    )
    text = (
        f"{cert['verdict']:10} {cert['divergence_class'] or '-':30} "
        f"{ac['n_divergent']:3}/{ac['n_token_only']:2} of {ac['n_ids_compared']:2} ids, "
        f"bits {cert['claims']['logprob_bits']!s:5} {seconds:6.1f} s"
    )
    reasons = "" if stated else f"  NOT AS STATED: {cert['decision_reasons']}"
    return stated, text + reasons


def main() -> None:
    """Runs the cells in turn, so that a slow spell of the machine hits all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server-bin", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    facts = host_facts()
    today = time.strftime("%Y-%m-%d", time.gmtime())
    print(f"# {today}, {facts.cpu_model}, {facts.cpu_count} cores, {facts.system}")
    print(f"# Python {platform.python_version()}, load {os.getloadavg()[0]:.1f} at the start")
    print("# score/token-only divergences of A against C")
    good = dict.fromkeys((c.name for c in CELLS if args.only in c.name), 0)
    for index in range(args.runs):
        for cell in CELLS:
            if cell.name in good:
                stated, text = run(cell, args)
                good[cell.name] += stated
                print(f"{index + 1}  {cell.name:28} {text}", flush=True)
    for cell in CELLS:
        if cell.name in good and cell.verdict is not None:
            print(f"{cell.name:28} as stated in {good[cell.name]} of {args.runs}")


if __name__ == "__main__":
    main()
