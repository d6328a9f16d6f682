"""The fuzzer by hand: as many inputs as you like, of one parser or of all."""

from __future__ import annotations

import argparse
import sys
import tempfile
import traceback
from pathlib import Path

from fuzz.harness import run
from fuzz.targets import targets


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="PARSER", help="all of them when left out")
    parser.add_argument("--seed", type=int, default=1, help="another seed, other inputs (1)")
    parser.add_argument("--count", type=int, default=10_000, help="inputs per parser (10000)")
    args = parser.parse_args()
    n_broken, total = 0, 0.0
    with tempfile.TemporaryDirectory(prefix="batch-invariance-fuzz-") as folder:
        for target in targets(Path(folder)):
            if args.names and target.name not in args.names:
                continue
            tally = run(target, args.seed, args.count)
            n_broken += len(tally.broken)
            total += tally.seconds
            print(
                f"{target.name:16} {tally.n_inputs:8} inputs {tally.n_accepted:8} accepted "
                f"{tally.seconds:7.2f} s  {len(tally.broken)} broken",
                flush=True,
            )
            for error in tally.broken:
                traceback.print_exception(error)
    print(f"{total:.1f} s of processor time")
    return 1 if n_broken else 0


if __name__ == "__main__":
    sys.exit(main())
