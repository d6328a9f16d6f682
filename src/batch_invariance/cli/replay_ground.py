"""What a case is replayed on: servers launched as it says, or the one of somebody else."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from batch_invariance.cli.case_endpoint import endpoint_ground
from batch_invariance.cli.cell_options import launcher_of
from batch_invariance.cli.endpoint_job import say
from batch_invariance.cli.endpoint_options import limits_of
from batch_invariance.cli.endpoint_text import notice
from batch_invariance.cli.recorded_cell import recorded_server
from batch_invariance.cli.style import Speaker
from batch_invariance.invariance_diff.attempts import attempts_to_see
from batch_invariance.invariance_diff.case import Case
from batch_invariance.invariance_diff.case_judge import (
    Measured,
    Replayed,
    judge_replay,
    on_other_subject,
    wanted_of,
)
from batch_invariance.invariance_diff.request import Sampling
from batch_invariance.live_invariance.case_amount import check_room, replay_amount
from batch_invariance.live_invariance.case_bench import BenchSettings, CaseBench
from batch_invariance.live_invariance.case_seat import LaunchedSeats, LaunchSeating, Seats
from batch_invariance.live_invariance.case_subject import (
    RecordedEndpoint,
    differs_before_launch,
    differs_once_launched,
)
from batch_invariance.live_invariance.interrupts import deferred
from batch_invariance.live_invariance.prepare import ServerChoice, ServerKnowledge, know_server
from batch_invariance.scorer_api import ScoringSession

VERSIONLESS = "the server names no version: that it is the recorded one is not shown"


@dataclass(frozen=True, slots=True)
class _Subject:
    """What is launched for the case, and what about it is not as recorded."""

    server: ServerChoice
    folder: Path
    known: ServerKnowledge
    differences: tuple[str, ...]


def replayed_on_launched(
    args: argparse.Namespace, case: Case, session: ScoringSession | None
) -> Replayed:
    """Launches the server as the case says. Raises ServerError where that fails."""
    with _subject(args, case) as subject:
        if subject.differences and not args.any_subject:
            return on_other_subject(subject.differences, None)
        return _replayed(args, case, subject, session)


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
    seating = LaunchSeating(
        launcher=launcher_of(args, server, subject.known, case.shape.lanes, subject.folder),
        model_file=server.model.name,
        ctx=server.ctx,
        sampling=case.sampling,
        request_timeout_s=args.request_timeout,
    )
    seats = LaunchedSeats(seating, launching)
    replayed = judge_replay(case, _measured(args, case, seats, case.sampling, session))
    differences = list(subject.differences)
    if seats.facts is not None:
        differences += differs_once_launched(case, seats.facts)
    return on_other_subject(differences, replayed) if differences else replayed


def replayed_on_endpoint(
    args: argparse.Namespace, case: Case, session: ScoringSession | None
) -> Replayed:
    """Asks the server at --url, which is asked who it is before and after.

    Raises UsageError where the limits leave no room, ServerError where it does not answer.
    """
    dialect = case.sampling.dialect
    assert case.endpoint is not None
    assert dialect is not None
    template = case.ran.chat_template_sha256
    recorded = RecordedEndpoint(case.endpoint, dialect.model, case.cell.ctx, template)
    n = attempts_of(args, case)
    with endpoint_ground(args, recorded, case.sampling, n) as on:
        amount, needed = replay_amount(case.shape, on.sampling, n)
        limits = limits_of(args)
        check_room(needed, limits, "the replay")
        differences = on.differences(on.seats.hear(), answered=False)
        if differences and not args.any_subject:
            return on_other_subject(differences, None)
        if not args.quiet:
            say(notice(on.url, amount, limits))
        on.seats.greet()
        measured = _measured(args, case, on.seats, on.sampling, session)
        replayed = judge_replay(case, measured)
        differences = on.differences(on.seats.hear(), answered=True)
    if differences:
        return on_other_subject(differences, replayed)
    return replayed.noting(VERSIONLESS) if recorded.versionless else replayed


def _measured(
    args: argparse.Namespace,
    case: Case,
    seats: Seats,
    sampling: Sampling,
    session: ScoringSession | None,
) -> Measured:
    """The case as it is measured here and now."""
    wanted = wanted_of(case.expected.kind, case.logit_drift)
    settings = BenchSettings(seats, sampling, session, wanted, case.reference)
    with deferred(), CaseBench(settings) as bench:
        return bench.measure(case.shape, attempts_of(args, case))


def attempts_of(args: argparse.Namespace, case: Case) -> int:
    """As many as were asked for, else as recorded and enough to see it once with confidence at the
    recorded rate."""
    asked: int | None = args.attempts
    return asked or max(case.rate.n, attempts_to_see(case.rate.cautious))
