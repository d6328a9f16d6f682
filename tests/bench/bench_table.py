"""The table of cells in docs/cells.md: what batching does to each, on this machine.

    python tests/bench/bench_table.py --server-bin S --model SmolLM2-135M-Instruct.Q4_1.gguf

Prints the table as text, for tests/bench/results/cells_table.txt, from which
`python docs/generate_tables.py` writes docs/cells.md.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batch_invariance.live_invariance.host import host_facts

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MIXED = (170, 900)
"""Characters of the prompts of `workset.json` that have 54 to 240 tokens on SmolLM2."""
PASSES, TOKENS = 3, 24
COLUMNS = ("cell", "N", "flags", "verdict", "class", "score", "token", "logprob", "bound", "s")


@dataclass(frozen=True)
class Row:
    """One cell: its name, what selects model and work-set, N, and the server's flags."""

    name: str
    words: tuple[str, ...]
    n: int
    flags: tuple[str, ...] = ()


def canary(spec: str, n: int, *flags: str) -> Row:
    """A toy model with the built-in work-set."""
    return Row(f"canary {spec}", ("--canary", spec), n, flags)


def smollm2(workset: str, n: int, *flags: str) -> Row:
    """SmolLM2-135M Q4_1 with one of the two sets of prompts."""
    return Row(f"SmolLM2 Q4_1, {workset}", ("--workset", workset), n, flags)


OFF, ON, UNIFIED = ("--flash-attn", "off"), ("--flash-attn", "on"), ("--kv-unified",)
ROWS = (
    *(canary("q8_0", n, *OFF) for n in (2, 4, 8)),
    canary("q8_0", 4, *ON),
    *(canary("f16,twins", n, *OFF) for n in (2, 4, 8)),
    canary("f16,twins", 4, *OFF, *UNIFIED),
    canary("f16", 4, *OFF),
    canary("f32", 4, *OFF),
    canary("f32", 4, *ON),
    smollm2("short", 4),
    smollm2("plain", 2),
)


def worksets(folder: Path) -> dict[str, Path]:
    """Short prompts, and those of mixed length in the example set."""
    items = json.loads((ROOT / "examples" / "workset.json").read_text("utf-8"))
    low, high = MIXED
    mixed = [item for item in items if low <= len(item.get("prompt", "")) <= high]
    (folder / "plain.json").write_text(json.dumps(mixed))
    return {
        "short": ROOT / "examples" / "workset_short.json",
        "plain": folder / "plain.json",
    }


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    """One command line of the program."""
    return subprocess.run(
        [sys.executable, "-m", "batch_invariance", *words], capture_output=True, text=True
    )


def measure(row: Row, args: argparse.Namespace, sets: dict[str, Path], out: Path) -> list[str]:
    """Runs a cell and gives its line."""
    words = ["run-live", "--server-bin", args.server_bin, "--parallel", str(row.n)]
    words += ["--passes", str(PASSES), "--max-tokens", str(TOKENS), "--out-dir", str(out), "-q"]
    if row.words[0] == "--canary":
        words += row.words
    else:
        words += ["--model", str(args.model), "--ctx", "1024"]
        words += ["--workset", str(sets[row.words[1]])]
    began = time.monotonic()
    done = run([*words, "--json", *(("--", *row.flags) if row.flags else ())])
    seconds = time.monotonic() - began
    said = json.loads(done.stdout) if done.stdout.startswith("{") else {}
    head = [row.name, str(row.n), " ".join(row.flags) or "default"]
    if "certificate" not in said:
        return [*head, f"no verdict: {done.stderr.strip()[-80:]}", *["-"] * 5, f"{seconds:.0f}"]
    cert: dict[str, Any] = json.loads(Path(said["certificate"]).read_text("utf-8"))
    ac = cert["divergence_report"]["AC"]
    drift = ac["logit_drift"]
    bound = cert["sensitivity"]["prompt_rate_upper_bound_95"]
    return [
        *head,
        cert["verdict"],
        cert["divergence_class"] or "-",
        f"{ac['n_divergent']}/{cert['workset']['n_items']}",
        f"{len(cert['token_divergence_ids'])}/{cert['workset']['n_items']}",
        f"{drift['n_trials_moved']}/{drift['n_trials']} {drift['max_abs']:.2g}",
        "-" if bound is None else f"{bound:.1%}",
        f"{seconds:.0f}",
    ]


def main() -> None:
    """Runs every cell and prints its line as it comes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server-bin", required=True)
    parser.add_argument("--model", type=Path, required=True)
    args = parser.parse_args()
    host = host_facts()
    print(f"python {platform.python_version()}, {host.cpu_model}, {host.cpu_count} processors")
    print(f"{PASSES} passes of C, at most {TOKENS} tokens; server {Path(args.server_bin).name}")
    print(" | ".join(COLUMNS), flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sets = worksets(folder)
        for number, row in enumerate(ROWS):
            print(" | ".join(measure(row, args, sets, folder / str(number))), flush=True)


if __name__ == "__main__":
    main()
