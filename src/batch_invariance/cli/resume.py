"""`resume`: goes on with a run that a signal or a crash interrupted."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from batch_invariance.cli.cell_options import add_safety_options, guarded_launcher
from batch_invariance.cli.ci_output import (
    add_ci_options,
    ci_targets,
    produced_cell,
    write_ci_outputs,
)
from batch_invariance.cli.exit_codes import ExitCode
from batch_invariance.cli.recorded_cell import recorded_cell
from batch_invariance.cli.run_options import add_scorer_options, conduct_from, load_scorer, positive
from batch_invariance.cli.sign_options import SIGN_HELP, add_sign_option, sign_key
from batch_invariance.cli.style import Style
from batch_invariance.cli.summary import as_json, render
from batch_invariance.errors import EvidenceError, UsageError
from batch_invariance.invariance_diff.model import Source, Verdict
from batch_invariance.live_invariance.prepare import know_server
from batch_invariance.live_invariance.produce import Produced, certify_ended, resume
from batch_invariance.live_invariance.resume import Interruption, differences, read_interrupted
from batch_invariance.live_invariance.store import cell_paths
from batch_invariance.profiles.spark.scorer import SparkScorer

EXAMPLES = """examples:
  batch-invariance resume certs/model__ctx8192__N4.evidence.jsonl
  batch-invariance resume certs/model__ctx8192__N4.evidence.jsonl --scorer my_scorer:LastLine

Complete passes are kept; one that was cut off runs again whole, and what diverged in it still
counts. Server, model, scorer and machine must be those of the interrupted run. A run that was
ended when all but its certificate was written gets that, and nothing is launched.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the verb."""
    parser = commands.add_parser(
        "resume",
        help="go on with an interrupted run",
        description="Goes on with the run that left this evidence, in the same file, and writes "
        "its certificate.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("evidence", type=Path, metavar="EVIDENCE")
    parser.add_argument("--server-bin", metavar="S", help="default: the path of the first launch")
    parser.add_argument("--model", type=Path, metavar="M", help="default: that of the first launch")
    add_scorer_options(parser)
    parser.add_argument("--stop-on-red", action="store_true", help="end at the first divergence")
    parser.add_argument("--stop-on-lost", action="store_true", help="end at the first lost trial")
    parser.add_argument(
        "--request-timeout", type=positive, default=600.0, metavar="S", help="per request (600)"
    )
    add_safety_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for every trial")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress, only trouble")
    add_sign_option(parser, SIGN_HELP)
    add_ci_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, server_flags: Sequence[str]) -> int:
    """Carries the verb out and returns the exit code."""
    if server_flags:
        raise UsageError("resume takes the server's flags from the evidence: nothing follows --")
    targets = ci_targets(args, [args.evidence])
    key = sign_key(args)
    began = time.monotonic()
    ended = certify_ended(args.evidence, key)
    if ended is not None:
        write_ci_outputs(targets, [produced_cell(ended, time.monotonic() - began)])
        return _finish(args, ended)
    interruption = read_interrupted(args.evidence)
    _check_place(args.evidence, interruption)
    header = interruption.header
    scorer = load_scorer(args, SparkScorer() if header.scorer.name == SparkScorer.name else None)
    with recorded_cell(args, header, interruption.argv) as cell:
        known = know_server(cell.server, header.cell.dispatch_n)
        changed = differences(header, known, scorer)
        if changed:
            raise EvidenceError(f"evidence {args.evidence.name}", ["another run:", *changed])
        launcher = guarded_launcher(args, cell, known)
        targets.clear()
        began = time.monotonic()
        conduct, progress = conduct_from(args, header, key)
        progress.skip(interruption.earlier.done)
        try:
            produced = resume(interruption, launcher, scorer, args.evidence.parent, conduct)
        finally:
            progress.close()
    write_ci_outputs(targets, [produced_cell(produced, time.monotonic() - began)])
    return _finish(args, produced)


def _check_place(path: Path, interruption: Interruption) -> None:
    cell = interruption.header.cell
    name = cell_paths(path.parent, cell.model, cell.ctx, cell.dispatch_n).evidence.name
    if path.name != name:
        raise UsageError(f"{path}: the evidence of this cell is called {name}; rename it first")


def _finish(args: argparse.Namespace, produced: Produced) -> int:
    cert = produced.certificate
    canary_green = cert.source is Source.CANARY and cert.verdict is Verdict.GREEN
    code = ExitCode.PROMOTABLE if cert.promotable or canary_green else ExitCode.NOT_PROMOTED
    if args.json:
        print(json.dumps(as_json(produced, code)))
    else:
        again = f"batch-invariance verify-cert {produced.paths.certificate}"
        print(render(produced, Style(sys.stdout), again), end="")
    return code
