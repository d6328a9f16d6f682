"""`replay`: whether a case shows its divergence here and now, and on what."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from batch_invariance.cli.case_endpoint import add_endpoint_options, check_fits_source
from batch_invariance.cli.cell_options import add_safety_options
from batch_invariance.cli.exit_codes import ExitCode
from batch_invariance.cli.recorded_cell import recorded_scorer
from batch_invariance.cli.replay_ground import replayed_on_endpoint, replayed_on_launched
from batch_invariance.cli.replay_text import render_replayed, replayed_as_json
from batch_invariance.cli.run_options import add_scorer_options, non_empty, positive
from batch_invariance.cli.style import Style
from batch_invariance.errors import UsageError
from batch_invariance.invariance_diff.case import DivergenceKind, Redaction
from batch_invariance.invariance_diff.case_judge import ReplayOutcome
from batch_invariance.invariance_diff.model import Source
from batch_invariance.live_invariance.case_folder import read_case
from batch_invariance.live_invariance.case_subject import differs_by_machine
from batch_invariance.scorer_api import ScoringSession

MOST_ATTEMPTS = 10_000
EXITS = {
    ReplayOutcome.REPRODUCED: ExitCode.PROMOTABLE,
    ReplayOutcome.NOT_REPRODUCED: ExitCode.NOT_PROMOTED,
    ReplayOutcome.OTHER_DIVERGENCE: ExitCode.OTHER_DIVERGENCE,
    ReplayOutcome.OTHER_SUBJECT: ExitCode.OTHER_SUBJECT,
    ReplayOutcome.UNPROVED: ExitCode.NO_VERDICT,
}
EXAMPLES = """examples:
  batch-invariance replay case-q17 --server-bin llama-server --model m.gguf
  batch-invariance replay case-q17/case.json --server-bin S --model M --attempts 50 --json
  batch-invariance replay case-q17 --url http://localhost:8000

exit status:
  0  reproduced: an attempt shows the recorded divergence, on the recorded server and model
  3  not reproduced: no attempt differs
  4  another divergence: something differs, and not in a recorded way
  5  another subject: server or model are not the recorded ones, whatever was seen
  1  unproved: the target alone got no answer, or more than one, or the server failed
  2  arguments or a guard refused
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the verb."""
    parser = commands.add_parser(
        "replay",
        help="send a case again and see whether it still shows its divergence",
        description="Launches the server as a case of minimise says, or turns to the one at --url, "
        "asks its target alone and in its company, and says whether the recorded divergence shows.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("case", type=Path, metavar="CASE", help="its folder, or its case.json")
    parser.add_argument(
        "--server-bin", metavar="S", help="llama-server, a path or a command, to be launched"
    )
    parser.add_argument(
        "--model",
        type=non_empty,
        metavar="M",
        help="a GGUF file, a canary makes its own; with --url a name as requests give it, default: "
        "the recorded one",
    )
    parser.add_argument(
        "--attempts",
        type=int,
        metavar="K",
        help="how often to send it (as often as recorded, more where it shows rarely)",
    )
    parser.add_argument(
        "--any-subject",
        action="store_true",
        help="send it to another server or model too; the answer stays another subject",
    )
    parser.add_argument(
        "--request-timeout", type=positive, default=600.0, metavar="S", help="per request (600)"
    )
    add_scorer_options(parser)
    add_endpoint_options(parser)
    add_safety_options(parser)
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    group.add_argument("-q", "--quiet", action="store_true", help="no progress, only trouble")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, server_flags: Sequence[str]) -> int:
    """Carries the verb out and returns the exit code."""
    if server_flags:
        raise UsageError("replay takes the server's flags from the case: nothing follows --")
    if args.attempts is not None and not 1 <= args.attempts <= MOST_ATTEMPTS:
        raise UsageError(f"--attempts {args.attempts}: give 1 to {MOST_ATTEMPTS}")
    case = read_case(args.case)
    check_fits_source(args, case.endpoint is not None, str(args.case))
    if case.endpoint is None and args.server_bin is None:
        raise UsageError("--server-bin: needed, the server to launch")
    if case.redaction is Redaction.REMOVED:
        raise UsageError(
            f"{args.case}: its prompts were taken out, so it cannot be sent again; make the case "
            "once more without --redact"
        )
    if case.source is Source.LIVE and args.model is None:
        raise UsageError(f"--model: needed, a GGUF file like {case.subject.model.file}")
    scored = case.expected.kind is DivergenceKind.SCORE
    session = ScoringSession(recorded_scorer(args, case.scorer)) if scored else None
    if case.endpoint is None:
        args.model = None if args.model is None else Path(args.model)
        replayed = replayed_on_launched(args, case, session)
        machine = tuple(differs_by_machine(case.observer))
    else:
        # The machine of whoever asks is not the server's.
        replayed, machine = replayed_on_endpoint(args, case, session), ()
    code = EXITS[replayed.outcome]
    if args.json:
        print(json.dumps(replayed_as_json(case, replayed, machine, code)))
    else:
        print(render_replayed(case, replayed, machine, Style(sys.stdout)), end="")
    return code
