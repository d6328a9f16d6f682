"""`replay`: whether a case shows its divergence here and now, and on what."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from batch_invariance.cli.cell_options import add_safety_options, launcher_of
from batch_invariance.cli.exit_codes import ExitCode
from batch_invariance.cli.recorded_cell import recorded_scorer, recorded_server
from batch_invariance.cli.replay_text import render_replayed, replayed_as_json
from batch_invariance.cli.run_options import add_scorer_options, positive
from batch_invariance.cli.style import Speaker, Style
from batch_invariance.errors import UsageError
from batch_invariance.invariance_diff.attempts import attempts_to_see
from batch_invariance.invariance_diff.case import Case, DivergenceKind, Redaction
from batch_invariance.invariance_diff.case_judge import (
    Replayed,
    ReplayOutcome,
    judge_replay,
    on_other_subject,
    wanted_of,
)
from batch_invariance.invariance_diff.model import Source
from batch_invariance.live_invariance.case_bench import BenchSettings, CaseBench
from batch_invariance.live_invariance.case_folder import read_case
from batch_invariance.live_invariance.case_subject import (
    differs_before_launch,
    differs_by_machine,
    differs_once_launched,
)
from batch_invariance.live_invariance.interrupts import deferred
from batch_invariance.live_invariance.prepare import ServerChoice, ServerKnowledge, know_server
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
        description="Launches the server as a case of minimise says, asks its target alone and in "
        "its company, and says whether the recorded divergence shows.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("case", type=Path, metavar="CASE", help="its folder, or its case.json")
    parser.add_argument(
        "--server-bin", metavar="S", required=True, help="llama-server, a path or a command"
    )
    parser.add_argument("--model", type=Path, metavar="M", help="a GGUF file; a canary makes its")
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
    add_safety_options(parser)
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    group.add_argument("-q", "--quiet", action="store_true", help="no progress, only trouble")
    parser.set_defaults(run=run)


@dataclass(frozen=True, slots=True)
class _Subject:
    """What the case is replayed on, and what about it is not as recorded."""

    server: ServerChoice
    folder: Path | None
    known: ServerKnowledge
    differences: tuple[str, ...]


def run(args: argparse.Namespace, server_flags: Sequence[str]) -> int:
    """Carries the verb out and returns the exit code."""
    if server_flags:
        raise UsageError("replay takes the server's flags from the case: nothing follows --")
    if args.attempts is not None and not 1 <= args.attempts <= MOST_ATTEMPTS:
        raise UsageError(f"--attempts {args.attempts}: give 1 to {MOST_ATTEMPTS}")
    case = read_case(args.case)
    if case.redaction is Redaction.REMOVED:
        raise UsageError(
            f"{args.case}: its prompts were taken out, so it cannot be sent again; make the case "
            "once more without --redact"
        )
    if case.source is Source.LIVE and args.model is None:
        raise UsageError(f"--model: needed, a GGUF file like {case.subject.model.file}")
    scored = case.expected.kind is DivergenceKind.SCORE
    session = ScoringSession(recorded_scorer(args, case.scorer)) if scored else None
    with _subject(args, case) as subject:
        if subject.differences and not args.any_subject:
            replayed = on_other_subject(subject.differences, None)
        else:
            replayed = _replayed(args, case, subject, session)
    code = EXITS[replayed.outcome]
    machine = tuple(differs_by_machine(case.observer))
    if args.json:
        print(json.dumps(replayed_as_json(case, replayed, machine, code)))
    else:
        print(render_replayed(case, replayed, machine, Style(sys.stdout)), end="")
    return code


def _attempts(case: Case) -> int:
    """As many as recorded, and enough to see it once with confidence at the recorded rate."""
    return max(case.rate.n, attempts_to_see(case.rate.cautious))


@contextlib.contextmanager
def _subject(args: argparse.Namespace, case: Case) -> Iterator[_Subject]:
    file = case.subject.model.file
    with recorded_server(case.source, case.cell, file, args.server_bin, args.model) as (
        server,
        folder,
    ):
        known = know_server(server, case.shape.lanes)
        yield _Subject(server, folder, known, tuple(differs_before_launch(case, known)))


def _replayed(
    args: argparse.Namespace, case: Case, subject: _Subject, session: ScoringSession | None
) -> Replayed:
    speaker = Speaker(sys.stderr)

    def launching(lanes: int) -> None:
        if not args.quiet:
            speaker.say(f"launching the server with {lanes} slot{'' if lanes == 1 else 's'}\n")

    server = subject.server
    settings = BenchSettings(
        launcher=launcher_of(args, server, subject.known, case.shape.lanes, subject.folder),
        model_file=server.model.name,
        ctx=server.ctx,
        sampling=case.sampling,
        session=session,
        request_timeout_s=args.request_timeout,
        wanted=wanted_of(case.expected.kind, case.logit_drift),
        reference=case.reference,
    )
    with deferred(), CaseBench(settings, launching) as bench:
        measured = bench.measure(case.shape, args.attempts or _attempts(case))
        facts = bench.facts
    replayed = judge_replay(case, measured)
    differences = list(subject.differences)
    if facts is not None:
        differences += differs_once_launched(case, facts)
    return on_other_subject(differences, replayed) if differences else replayed
