"""`golden check`: a later run against recorded answers."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from batch_invariance.cli.exit_codes import ExitCode
from batch_invariance.cli.fact_lines import changed_in_short, fact_lines
from batch_invariance.cli.style import Style
from batch_invariance.cli.verified_run import read_run
from batch_invariance.errors import BatchInvarianceError, FileFormatError, UsageError
from batch_invariance.invariance_diff.codec import to_json
from batch_invariance.invariance_diff.golden import Golden, parse_golden
from batch_invariance.invariance_diff.golden_check import (
    GoldenCheck,
    GoldenOutcome,
    ItemState,
    check_golden,
    of_subject,
)
from batch_invariance.invariance_diff.model import Verdict
from batch_invariance.invariance_diff.subject_facts import Agreement
from batch_invariance.live_invariance.bounded import MAX_INPUT_BYTES, read_at_most
from batch_invariance.live_invariance.text import printable

EXAMPLES = """examples:
  batch-invariance golden check golden.json later/model__ctx8192__N4.json
  batch-invariance golden check --logprobs golden.json later/model__ctx8192__N4.json

The certificate is first derived again from the evidence beside it. Exits 0 for SAME alone: every
recorded item was asked the same and answered the same, token by token. Exits 3 for CHANGED, and for
UNVERIFIED: an item missing, lost, unstable or asked otherwise, another model, a reference that is
none. A change of build, flags or machine is reported and does not decide. Logprobs decide only with
--logprobs; where one side has none they are unknown, never the same.
"""
COLOURS = {
    GoldenOutcome.SAME: Verdict.GREEN,
    GoldenOutcome.CHANGED: Verdict.RED,
    GoldenOutcome.UNVERIFIED: Verdict.UNVERIFIED,
}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the verb."""
    parser = commands.add_parser(
        "check",
        help="hold a later run against recorded answers",
        description="Says of every recorded item: the same, changed, or not shown.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("golden", type=Path, metavar="GOLDEN", help="what golden record wrote")
    parser.add_argument("certificate", type=Path, metavar="CERT", help="of the later run")
    parser.add_argument(
        "--logprobs", action="store_true", help="logprobs must be the same too, to the bit"
    )
    parser.add_argument("--evidence", type=Path, metavar="FILE", help="where the evidence is")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, server_flags: Sequence[str]) -> int:
    """Carries the verb out and returns the exit code."""
    if server_flags:
        raise UsageError("golden check starts no server: nothing may follow --")
    golden = read_golden(args.golden)
    later, answers = read_run(args.certificate, args.evidence)
    check = check_golden(golden, later, answers, args.logprobs)
    passed = check.outcome is GoldenOutcome.SAME
    code = ExitCode.PROMOTABLE if passed else ExitCode.NOT_PROMOTED
    same_run = golden.evidence_sha256 == later.certificate.evidence.sha256
    if args.json:
        report = _as_json(check, golden, code)
        print(json.dumps({**report, "is_recorded_run": same_run}))
    else:
        lines = _lines(check, golden, args.golden, Style(sys.stdout))
        print("\n".join([*lines, *(["  it is the recorded run itself"] if same_run else [])]))
    return code


def read_golden(path: Path) -> Golden:
    """The golden file at `path`. Raises BatchInvarianceError where it cannot be read,
    FileFormatError where it is none."""
    try:
        data = read_at_most(path, MAX_INPUT_BYTES)
    except OSError as error:
        raise BatchInvarianceError(f"cannot read {path}: {error.strerror}") from error
    if data is None:
        raise FileFormatError(str(path), [f"is larger than {MAX_INPUT_BYTES >> 20} MiB"])
    return parse_golden(data, str(path))


def _lines(check: GoldenCheck, golden: Golden, path: Path, style: Style) -> list[str]:
    n = len(check.items)
    word = style.verdict(COLOURS[check.outcome], check.outcome.value)
    model, when = printable(golden.model), printable(golden.ts_utc)
    lines = [
        f"{word}  {model}: {check.count(ItemState.SAME)} of {n} serial answers as recorded in "
        f"{printable(str(path))} from the run of {when}"
    ]
    lines += [f"  - {printable(reason)}" for reason in check.reasons]
    counts = {a: check.n_logprobs(a) for a in Agreement}
    asked = "asked for" if check.logprobs_asked else "not asked for"
    lines.append(
        f"logprobs ({asked}): {counts[Agreement.SAME]} the same, {counts[Agreement.CHANGED]} "
        f"changed, {counts[Agreement.UNKNOWN]} unknown"
    )
    subject = of_subject(check.facts)
    changed = changed_in_short(subject)
    lines.append(f"changed since: {changed}" if changed else "nothing known of the subject changed")
    return lines + fact_lines(subject)


def _as_json(check: GoldenCheck, golden: Golden, code: ExitCode) -> dict[str, object]:
    return {
        **to_json(check),
        "model": golden.model,
        "recorded_ts_utc": golden.ts_utc,
        "facts": [
            {**to_json(change), "agreement": change.agreement.value} for change in check.facts
        ],
        "exit_code": int(code),
    }
