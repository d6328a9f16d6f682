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
    launch_limits,
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
from batch_invariance.invariance_diff.model import Message, Source, Verdict
from batch_invariance.invariance_diff.workset import WorkSet
from batch_invariance.live_invariance import canary
from batch_invariance.live_invariance.prepare import (
    ServerKnowledge,
    know_server,
    live_header,
    plan_shortfalls,
)
from batch_invariance.live_invariance.produce import Produced, produce
from batch_invariance.live_invariance.text import printable
from batch_invariance.live_invariance.token_counter import token_counter
from batch_invariance.profiles.spark.generate import generate
from batch_invariance.profiles.spark.scorer import SparkScorer
from batch_invariance.scorer_api import Scorer

DEFAULT_MAX_TOKENS = 64
GUESSED_CHARACTERS = 4
"""Characters per token where a dry run may not ask a server."""
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
        workset = prepared(_workset(args, cell, known), args)
        for reason in plan_shortfalls(workset, cell.settings):
            print(f"this run can never be GREEN: {reason}", file=sys.stderr)
        header = live_header(cell.source, cell.server, known, cell.settings, workset, scorer)
        targets.clear()
        began = time.monotonic()
        conduct, progress = conduct_from(args, header)
        try:
            produced = produce(header, launcher, scorer, args.out_dir, conduct, key)
        finally:
            progress.close()
    write_ci_outputs(targets, [produced_cell(produced, time.monotonic() - began)])
    return _finish(args, produced, cell)


def _workset(args: argparse.Namespace, cell: ChosenCell, known: ServerKnowledge) -> WorkSet:
    """The work-set of the cell; the profile's is fitted by the server's own tokenizer."""
    if cell.workset is not None:
        return cell.workset
    assert cell.spark is not None
    say = _silent if args.quiet else _aside
    say("profile spark: fitting prompts with the server's tokenizer")
    limits = launch_limits(args)
    with token_counter(cell.server, known, args.ready_timeout, limits) as count:
        made = generate(cell.spark, count)
    floors = [entry.item_id for entry in made.calibration if entry.floor]
    say(f"profile spark: {len(made.workset.items)} items, each within 3 % of its length")
    if floors:
        say(f"longer than their fill even without filler: {printable(', '.join(floors))}")
    return made.workset


def _aside(text: str) -> None:
    print(text, file=sys.stderr)


def _silent(text: str) -> None:
    """What `--quiet` makes of a remark."""


def _dry_run(
    args: argparse.Namespace, cell: ChosenCell, known: ServerKnowledge, scorer: Scorer
) -> int:
    notes = []
    workset = cell.workset
    if workset is None:
        assert cell.spark is not None
        workset = generate(cell.spark, _guess).workset
        notes.append(
            f"profile spark: here a token is taken for {GUESSED_CHARACTERS} characters; the run "
            "fits the prompts with the server's tokenizer, so the work-set's digest will differ"
        )
    workset = prepared(workset, args)
    header = live_header(cell.source, cell.server, known, cell.settings, workset, scorer)
    short = plan_shortfalls(workset, cell.settings)
    view = PlanView(header, cell.server, known, cell.origins, short, tuple(notes))
    print(json.dumps(plan_as_json(view)) if args.json else plan_text(view).rstrip("\n"))
    return ExitCode.PROMOTABLE


def _guess(messages: Sequence[Message]) -> int:
    return sum(len(m.content) for m in messages) // GUESSED_CHARACTERS


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
