"""`run-mock`: the same run against an in-process mock. No GPU, no model, no server."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from batch_invariance.cli.ci_output import (
    add_ci_options,
    ci_targets,
    produced_cell,
    write_ci_outputs,
)
from batch_invariance.cli.exit_codes import ExitCode
from batch_invariance.cli.run_options import (
    add_cell_options,
    add_output_options,
    conduct_from,
    load_scorer,
    load_workset,
    prepared,
    settings_from,
)
from batch_invariance.cli.sign_options import SIGN_HELP, add_sign_option, sign_key
from batch_invariance.cli.style import Style
from batch_invariance.cli.summary import as_json, render
from batch_invariance.errors import UsageError
from batch_invariance.invariance_diff.builtin_workset import builtin_workset
from batch_invariance.invariance_diff.digest import sha256_hex
from batch_invariance.invariance_diff.model import Source, Verdict
from batch_invariance.invariance_diff.records import Cell, ModelFacts, Subject
from batch_invariance.live_invariance.launch import validate_ctx
from batch_invariance.live_invariance.mock_answer import BatchDivergence, MockBehaviour
from batch_invariance.live_invariance.mock_launch import MockLauncher
from batch_invariance.live_invariance.prepare import build_header, plan_shortfalls
from batch_invariance.live_invariance.produce import produce

EXAMPLES = """examples:
  batch-invariance run-mock
  batch-invariance run-mock --batch-divergence
  batch-invariance run-mock --batch-divergence logprob --logit-drift bits
"""
MODEL = "mock"
MODEL_FILE = "mock-model.gguf"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the verb."""
    parser = commands.add_parser(
        "run-mock",
        help="the same run against an in-process mock, in seconds",
        description="Shows how the tool works; its certificate can never be promoted.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    group = parser.add_argument_group("the mock")
    group.add_argument("--parallel", type=int, default=4, metavar="N", help="slots (4)")
    group.add_argument("--ctx", type=int, default=2048, metavar="C", help="tokens per slot (2048)")
    group.add_argument("--workset", type=Path, metavar="W", help="default: built-in, 16 prompts")
    group.add_argument(
        "--batch-divergence",
        nargs="?",
        const=BatchDivergence.SCORE.value,
        default=BatchDivergence.NONE.value,
        choices=[kind.value for kind in BatchDivergence],
        metavar="KIND",
        help="what batching changes: score (the default), token, logprob, finish_reason",
    )
    group.add_argument(
        "--divergence-fraction", type=float, default=1.0, metavar="F", help="of the prompts (1.0)"
    )
    group.add_argument(
        "--cert-source", metavar="SOURCE", help="state the certificate's source; it must be true"
    )
    add_cell_options(parser, max_tokens=24)
    add_output_options(parser)
    add_sign_option(parser, SIGN_HELP)
    add_ci_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, server_flags: Sequence[str]) -> int:
    """Carries the verb out and returns the exit code."""
    if server_flags:
        raise UsageError("run-mock starts no server: nothing may follow --")
    if args.cert_source not in (None, Source.MOCK.value):
        raise UsageError(f"--cert-source {args.cert_source}: this run's source is mock")
    validate_ctx(args.ctx)
    targets = ci_targets(args)
    key = sign_key(args)
    settings = settings_from(args, args.parallel)
    kind = BatchDivergence(args.batch_divergence)
    behaviour = MockBehaviour(kind, divergence_fraction=args.divergence_fraction)
    workset = prepared(load_workset(args.workset) if args.workset else builtin_workset(), args)
    scorer = load_scorer(args)
    cell = Cell(MODEL, args.ctx, args.parallel, "f16", "f16", False, 512, (), {})
    model = ModelFacts(MODEL_FILE, 0, sha256_hex(b"mock"), "computed", expert_count=0)
    subject = Subject(MODEL, None, "in-process mock", model)
    header = build_header(Source.MOCK, cell, subject, settings, workset, scorer)
    for reason in plan_shortfalls(workset, settings):
        print(f"this run can never be GREEN: {reason}", file=sys.stderr)
    targets.clear()
    began = time.monotonic()
    conduct, progress = conduct_from(args, header, key)
    try:
        launcher = MockLauncher(args.ctx, behaviour)
        produced = produce(header, launcher, scorer, args.out_dir, conduct)
    finally:
        progress.close()
    write_ci_outputs(targets, [produced_cell(produced, time.monotonic() - began)])
    asked = _asked(kind, args.logit_drift)
    good = produced.certificate.verdict is asked
    code = ExitCode.PROMOTABLE if good else ExitCode.NOT_PROMOTED
    if args.json:
        print(json.dumps(as_json(produced, code)))
    else:
        again = "batch-invariance run-mock --batch-divergence"
        if kind is not BatchDivergence.NONE:
            again = f"batch-invariance verify-cert {produced.paths.certificate}"
        print(render(produced, Style(sys.stdout), again), end="")
    return code


def _asked(kind: BatchDivergence, logit_drift: str | None) -> Verdict:
    """The colour that the knobs ask for."""
    if kind is BatchDivergence.SCORE:
        return Verdict.RED
    if kind in (BatchDivergence.TOKEN, BatchDivergence.FINISH_REASON):
        return Verdict.AMBER
    # One step of a float32 is less than any epsilon of use.
    if kind is BatchDivergence.LOGPROB and logit_drift == "bits":
        return Verdict.AMBER
    return Verdict.GREEN
