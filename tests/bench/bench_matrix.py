"""What a sweep takes against its cells one by one, on a real llama-server.

    PYTHONPATH=src python tests/bench/bench_matrix.py SERVER_BIN

One model, context and flag set with N = 2, 4, 8. Each figure is the wall time of the program.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CANARY = "q8_0"
SLOTS = (2, 4, 8)
MEASURED = ["--passes", "4", "--max-tokens", "32", "-q"]


def timed(*words: object) -> float:
    """Seconds that a command line takes. Raises where it does not end well."""
    began = time.monotonic()
    argv = [sys.executable, "-m", "batch_invariance", *map(str, words)]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def main() -> None:
    """Prints the comparison."""
    server = sys.argv[1]
    with tempfile.TemporaryDirectory(prefix="batch-invariance-bench-") as name:
        folder = Path(name)
        common = ["--server-bin", server, *MEASURED]
        one_by_one = {}
        for n in SLOTS:
            words = ["run-live", *common, "--canary", CANARY, "--parallel", n]
            one_by_one[n] = timed(*words, "--out-dir", folder / "alone")
        slots = ",".join(map(str, SLOTS))
        words = ["run-matrix", *common, "--model", f"canary:{CANARY}", "--parallel", slots]
        together = timed(*words, "--out-dir", folder / "sweep")
        index = json.loads((folder / "sweep" / "matrix.json").read_bytes())
    arms = sum(entry["seconds"] for entry in index["shared_arms"])
    own = sum(entry["seconds"] for entry in index["cells"])
    alone = sum(one_by_one.values())
    each = ", ".join(f"N {n} {seconds:.1f} s" for n, seconds in one_by_one.items())
    print("# python tests/bench/bench_matrix.py")
    print(f"canary {CANARY}, N = {slots}, {' '.join(MEASURED[:-1])}")
    print(f"one by one  {alone:6.1f} s  ({each})")
    print(
        f"as a sweep  {together:6.1f} s  (arms A and A2 {arms:.1f} s, B and C of all {own:.1f} s)"
    )
    beside = together - arms - own
    print(f"            {together / alone:.0%} of the time; {beside:.1f} s beside the arms")


if __name__ == "__main__":
    main()
