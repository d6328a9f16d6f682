"""`golden record`: the serial answers of a certificate's run as a file of digests."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from batch_invariance.cli.exit_codes import ExitCode
from batch_invariance.cli.verified_run import read_run
from batch_invariance.errors import UsageError
from batch_invariance.invariance_diff.golden import Golden, record_golden
from batch_invariance.invariance_diff.report_lines import some
from batch_invariance.live_invariance.store import check_new, write_new
from batch_invariance.live_invariance.text import printable

EXAMPLES = """examples:
  batch-invariance golden record certs/model__ctx8192__N4.json -o golden.json

The certificate is first derived again from the evidence beside it. Recorded is arm A, the serial
reference, where its repeat A2 gave the same answer; a RED certificate has a reference too. Nothing
is recorded (exit 1) where its gates completeness, isolation and identity are not all passed. Exits
0 where every item is recorded, 3 where some have no stable answer and are not.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the verb."""
    parser = commands.add_parser(
        "record",
        help="record the serial answers of a run as digests",
        description="Writes digests of completions and logprobs; no prompt and no answer.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("certificate", type=Path, metavar="CERT")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", required=True, help="a file that is not there"
    )
    parser.add_argument("--evidence", type=Path, metavar="FILE", help="where the evidence is")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, server_flags: Sequence[str]) -> int:
    """Carries the verb out and returns the exit code."""
    if server_flags:
        raise UsageError("golden record starts no server: nothing may follow --")
    check_new(args.output)
    golden = record_golden(*read_run(args.certificate, args.evidence))
    write_new(args.output, golden.to_bytes())
    code = ExitCode.NOT_PROMOTED if golden.gaps else ExitCode.PROMOTABLE
    if args.json:
        print(json.dumps(_as_json(golden, args.output, code)))
    else:
        print("\n".join(_lines(golden, args.output)))
    return code


def _lines(golden: Golden, output: Path) -> list[str]:
    n, kept = len(golden.items), len(golden.items) - len(golden.gaps)
    lines = [
        f"{printable(str(output))}: {kept} of {n} serial answers of "
        f"{printable(golden.model)} recorded, "
        f"{_n_logprobs(golden)} with logprobs"
    ]
    missing = tuple(f"{name} ({gap.value})" for name, gap in golden.gaps.items())
    if missing:
        lines.append(f"  - not recorded: {printable(some(missing))}")
    return lines


def _n_logprobs(golden: Golden) -> int:
    return sum(item.logprobs_sha256 is not None for item in golden.items)


def _as_json(golden: Golden, output: Path, code: ExitCode) -> dict[str, object]:
    return {
        "file": str(output),
        "n_items": len(golden.items),
        "n_with_logprobs": _n_logprobs(golden),
        "not_recorded": {name: gap.value for name, gap in golden.gaps.items()},
        "exit_code": int(code),
    }
