"""`schedule`: the built-in schedule as a file, to be changed and given to `--schedule`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from batch_invariance.cli.exit_codes import ExitCode
from batch_invariance.errors import UsageError
from batch_invariance.invariance_diff.plan import seeded_schedule
from batch_invariance.invariance_diff.rules import MAX_SLOTS
from batch_invariance.invariance_diff.schedule_file import schedule_text
from batch_invariance.live_invariance.prepare import MAX_PASSES
from batch_invariance.live_invariance.store import check_new, write_new

MAX_ITEMS = 10_000_000
EXAMPLES = """examples:
  batch-invariance schedule --items 16 --parallel 4 -o schedule.json
  batch-invariance run-mock --schedule schedule.json
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the verb."""
    parser = commands.add_parser(
        "schedule",
        help="write the built-in schedule as a file",
        description="Writes the passes of arm C for a work-set of a given size, in seeded orders, "
        "as a file that `--schedule` reads.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--items", type=int, required=True, metavar="n", help="of the work-set")
    parser.add_argument("--parallel", type=int, required=True, metavar="N", help="slots")
    parser.add_argument("--passes", type=int, default=8, metavar="T", help="passes of arm C (8)")
    parser.add_argument("--seed", type=int, default=1, help="of the orders (1)")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="default: standard output")
    parser.add_argument("--json", action="store_true", help="print one JSON object about the file")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, server_flags: Sequence[str]) -> int:
    """Carries the verb out and returns the exit code."""
    if server_flags:
        raise UsageError("schedule starts no server: nothing may follow --")
    for name, value, most in (
        ("items", args.items, MAX_ITEMS),
        ("parallel", args.parallel, MAX_SLOTS),
        ("passes", args.passes, MAX_PASSES),
    ):
        if not 1 <= value <= most:
            raise UsageError(f"--{name} {value}: give 1 to {most}")
    if args.out is not None:
        check_new(args.out)
    passes = [
        seeded_schedule(args.items, args.parallel, args.seed, index) for index in range(args.passes)
    ]
    text = schedule_text(passes, args.items)
    if args.out is not None:
        write_new(args.out, text.encode("ascii"))
    if args.json:
        digests = [entry.digest for entry in passes]
        print(json.dumps({"file": args.out and str(args.out), "pass_sha256": digests}))
    elif args.out is None:
        print(text, end="")
    else:
        print(f"{args.out}: {args.passes} passes of {args.items} items on {args.parallel} lanes")
    return ExitCode.PROMOTABLE
