"""`run-live`: one cell against a real llama-server, from launch to certificate."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Sequence

from batch_invariance.cli.cell_options import (
    ChosenCell,
    add_safety_options,
    add_server_options,
    chosen_cell,
    guarded_launcher,
)
from batch_invariance.cli.cell_workset import (
    GUESSED_CHARACTERS,
    fitted_workset,
    guessed_workset,
)
from batch_invariance.cli.ci_output import (
    add_ci_options,
    ci_targets,
    produced_cell,
    write_ci_outputs,
)
from batch_invariance.cli.exit_codes import ExitCode
from batch_invariance.cli.plan_text import PlanView, plan_as_json, plan_text
from batch_invariance.cli.run_options import (
    add_cell_options,
    add_output_options,
    conduct_from,
    load_scorer,
    prepared,
)
from batch_invariance.cli.sign_options import SIGN_HELP, add_sign_option, sign_key
from batch_invariance.cli.style import Style
from batch_invariance.cli.summary import as_json, render
from batch_invariance.errors import UsageError
from batch_invariance.invariance_diff.model import Source, Verdict
from batch_invariance.live_invariance import canary
from batch_invariance.live_invariance.prepare import (
    ServerKnowledge,
    know_server,
    live_header,
    plan_shortfalls,
)
from batch_invariance.live_invariance.produce import Produced, produce
from batch_invariance.profiles.spark.scorer import SparkScorer
from batch_invariance.scorer_api import Scorer

DEFAULT_MAX_TOKENS = 64
EXAMPLES = """examples:
  batch-invariance run-live --server-bin llama-server --canary
  batch-invariance run-live --server-bin ./llama-server --model m.gguf --workset w.json \\
      --ctx 8192 --parallel 4 --cert-source live --out-dir ./certs
  batch-invariance run-live --profile spark --model-alias smollm2 --models-dir ~/models \\
      --ctx 8192 --parallel 4
  batch-invariance run-live ... -- --flash-attn off --threads 8

Everything after -- goes to the server and is part of the cell.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the verb."""
    parser = commands.add_parser(
        "run-live",
        help="certify one cell on a real llama-server",
        description="Launches llama-server, runs the arms, writes evidence and a certificate.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_server_options(parser)
    add_cell_options(parser, DEFAULT_MAX_TOKENS)
    parser.add_argument(
        "--cert-source", metavar="SOURCE", help="state the certificate's source; it must be true"
    )
    add_safety_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="print the plan and start nothing")
    add_output_options(parser)
    add_sign_option(parser, SIGN_HELP)
    add_ci_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, server_flags: Sequence[str]) -> int:
    """Carries the verb out and returns the exit code."""
    targets = ci_targets(args)
    key = sign_key(args)
    with chosen_cell(args, server_flags) as cell:
        if args.cert_source not in (None, cell.source.value):
            raise UsageError(
                f"--cert-source {args.cert_source}: this run's source is {cell.source.value}"
            )
        known = know_server(cell.server, cell.settings.parallel)
        scorer = load_scorer(args, SparkScorer() if args.profile == "spark" else None)
        if args.dry_run:
            return _dry_run(args, cell, known, scorer)
        launcher = guarded_launcher(args, cell, known)
        workset = prepared(fitted_workset(args, cell, known), args)
        for reason in plan_shortfalls(workset, cell.settings):
            print(f"this run can never be GREEN: {reason}", file=sys.stderr)
        header = live_header(cell.source, cell.server, known, cell.settings, workset, scorer)
        targets.clear()
        began = time.monotonic()
        conduct, progress = conduct_from(args, header, key)
        try:
            produced = produce(header, launcher, scorer, args.out_dir, conduct)
        finally:
            progress.close()
    write_ci_outputs(targets, [produced_cell(produced, time.monotonic() - began)])
    return _finish(args, produced, cell)


def _dry_run(
    args: argparse.Namespace, cell: ChosenCell, known: ServerKnowledge, scorer: Scorer
) -> int:
    notes = []
    if cell.workset is None:
        notes.append(
            f"profile spark: here a token is taken for {GUESSED_CHARACTERS} characters; the run "
            "fits the prompts with the server's tokenizer, so the work-set's digest will differ"
        )
    workset = prepared(guessed_workset(cell), args)
    header = live_header(cell.source, cell.server, known, cell.settings, workset, scorer)
    short = plan_shortfalls(workset, cell.settings)
    view = PlanView(header, cell.server, known, cell.origins, short, tuple(notes))
    print(json.dumps(plan_as_json(view)) if args.json else plan_text(view).rstrip("\n"))
    return ExitCode.PROMOTABLE


def _finish(args: argparse.Namespace, produced: Produced, cell: ChosenCell) -> int:
    cert = produced.certificate
    canary_green = cell.source is Source.CANARY and cert.verdict is Verdict.GREEN
    good = cert.promotable or canary_green
    code = ExitCode.PROMOTABLE if good else ExitCode.NOT_PROMOTED
    if args.json:
        print(json.dumps(as_json(produced, code)))
    else:
        print(render(produced, Style(sys.stdout), _next(args, produced)), end="")
    return code


def _next(args: argparse.Namespace, produced: Produced) -> str:
    """The command that most people want next."""
    if args.canary == "" and produced.certificate.verdict is Verdict.GREEN:
        server = shlex.quote(args.server_bin)
        return f"batch-invariance run-live --server-bin {server} --canary {canary.NEXT_SPEC}"
    return f"batch-invariance verify-cert {shlex.quote(str(produced.paths.certificate))}"
