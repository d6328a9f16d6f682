"""`compare`: two certificates of one cell, before and after a change."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from batch_invariance.cli.compare_text import comparison_lines
from batch_invariance.cli.exit_codes import ExitCode
from batch_invariance.cli.style import Style
from batch_invariance.cli.verified_run import read_run
from batch_invariance.errors import UsageError
from batch_invariance.invariance_diff.codec import to_json
from batch_invariance.invariance_diff.compare import Comparison, Outcome, compare_runs

EXAMPLES = """examples:
  batch-invariance compare old/model__ctx8192__N4.json new/model__ctx8192__N4.json

Both are first derived again from the evidence beside them; one that is not borne out is refused
(exit 1), and so are two different cells and one run given twice (exit 2). Exits 0 only where AFTER
is shown to be no worse: no worse verdict, no new divergent id, none that differs in score where it
differed in tokens alone. Exits 3 where it is worse, and where nothing shows that it is not: another
work-set, sampling or scorer, an UNVERIFIED after the change or a gate that proved nothing beside a
RED, fewer passes under load, a divergence that was not tried again.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the verb."""
    parser = commands.add_parser(
        "compare",
        help="compare two certificates of one cell, before and after a change",
        description="What changed in subject, verdict, gates, divergent ids, drift and speed.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("before", type=Path, metavar="BEFORE", help="the earlier certificate")
    parser.add_argument("after", type=Path, metavar="AFTER", help="the later certificate")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, server_flags: Sequence[str]) -> int:
    """Carries the verb out and returns the exit code."""
    if server_flags:
        raise UsageError("compare starts no server: nothing may follow --")
    before, after = (read_run(path)[0] for path in (args.before, args.after))
    result = compare_runs(before, after)
    passed = result.outcome is Outcome.NOT_WORSE
    code = ExitCode.PROMOTABLE if passed else ExitCode.NOT_PROMOTED
    if args.json:
        print(json.dumps(_as_json(result, code)))
    else:
        lines = comparison_lines(result, (args.before, args.after), Style(sys.stdout))
        print("\n".join(lines))
    return code


def _as_json(result: Comparison, code: ExitCode) -> dict[str, object]:
    return {
        **to_json(result),
        "facts": [
            {**to_json(change), "agreement": change.agreement.value} for change in result.facts
        ],
        "gates": [{**to_json(gate), "agreement": gate.agreement.value} for gate in result.gates],
        "figures": [{**to_json(figure), "ratio": figure.ratio} for figure in result.figures],
        "exit_code": int(code),
    }
