"""Where `minimise` makes its attempts: on servers launched for it, or on one of somebody else.

Each of the two refuses a subject that is not the certificate's, gives the seats of the search, and
says in the end what the case ran on.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from batch_invariance.cli.case_endpoint import EndpointGround, endpoint_ground
from batch_invariance.cli.cell_options import ChosenCell, guarded_launcher
from batch_invariance.cli.endpoint_job import say
from batch_invariance.cli.endpoint_options import limits_of
from batch_invariance.cli.endpoint_text import notice
from batch_invariance.cli.recorded_cell import recorded_cell
from batch_invariance.errors import EvidenceError, ServerError, UsageError
from batch_invariance.invariance_diff.case import Ran, Reference
from batch_invariance.invariance_diff.case_origin import ItemStarts, reference_for
from batch_invariance.invariance_diff.certificate import Certificate
from batch_invariance.invariance_diff.endpoint import Endpoint
from batch_invariance.invariance_diff.model import Source
from batch_invariance.invariance_diff.records import (
    Cell,
    Header,
    LifetimeStart,
    ModelFacts,
    Subject,
)
from batch_invariance.invariance_diff.request import Sampling
from batch_invariance.live_invariance.case_amount import check_room, search_amount
from batch_invariance.live_invariance.case_endpoint import Heard
from batch_invariance.live_invariance.case_seat import LaunchedSeats, LaunchSeating, Seats
from batch_invariance.live_invariance.case_subject import (
    RecordedEndpoint,
    differs_from_run,
    ran_of,
)
from batch_invariance.live_invariance.endpoint_prepare import UNKNOWN
from batch_invariance.live_invariance.minimise import SearchLimits
from batch_invariance.live_invariance.prepare import ServerKnowledge, know_server
from batch_invariance.scorer_api import ScoringSession


@dataclass(frozen=True, slots=True)
class MinimiseTask:
    """The certificate with its file's name, how its run began, the divergence that was chosen in
    it, what scores it, and how far the search goes."""

    name: str
    certificate: Certificate
    header: Header
    start: LifetimeStart | None
    item: ItemStarts
    session: ScoringSession | None
    limits: SearchLimits


@dataclass(frozen=True, slots=True)
class About:
    """What a case says of what it ran on; see `case.Case`."""

    cell: Cell
    subject: Subject
    ran: Ran
    sampling: Sampling
    endpoint: Endpoint | None = None


class Ground(Protocol):
    """Where attempts are made: its seats, what requests state, and what answers are held
    against."""

    seats: Seats
    sampling: Sampling
    reference: Reference

    def about(self, lanes: int) -> About:
        """What ran, for a case of so many slots. Raises ServerError where that is not one subject
        any more."""


def ground_of(
    args: argparse.Namespace, task: MinimiseTask, launching: Callable[[int], None]
) -> contextlib.AbstractContextManager[Ground]:
    """Where the certificate's divergence can be tried again; `launching` is told of launches.

    Raises EvidenceError where the subject is another and --any-subject is not given, UsageError
    where there is nothing to try it on or the limits leave no room, ServerError where the server
    does not answer.
    """
    if task.header.source is Source.ENDPOINT:
        return _endpoint(args, task)
    return _launched(args, task, launching)


def _check_subject(args: argparse.Namespace, task: MinimiseTask, changed: list[str]) -> None:
    if changed and not args.any_subject:
        raise EvidenceError(
            f"certificate {task.name}",
            ["another server or model:", *changed, "--any-subject goes on all the same"],
        )


class _Launched:
    """Servers launched for the case; see `Ground`."""

    def __init__(
        self,
        args: argparse.Namespace,
        task: MinimiseTask,
        cell: ChosenCell,
        launching: Callable[[int], None],
    ) -> None:
        header = task.header
        known = know_server(cell.server, header.cell.dispatch_n)
        _check_subject(args, task, differs_from_run(header, known))
        self.sampling = header.plan.sampling
        self.reference = reference_for(task.certificate.divergence_class)
        self._header, self._cell, self._known = header, cell, known
        seating = LaunchSeating(
            launcher=guarded_launcher(args, cell, known),
            model_file=cell.server.model.name,
            ctx=cell.server.ctx,
            sampling=self.sampling,
            request_timeout_s=args.request_timeout,
        )
        self._launched = LaunchedSeats(seating, launching)
        self.seats: Seats = self._launched

    def about(self, lanes: int) -> About:
        """The recorded cell, and what the processes themselves showed."""
        header, facts = self._header, self._launched.facts
        assert facts is not None
        subject = _subject_of(header.subject, self._known)
        ran = ran_of(facts, self._cell.server.ctx, lanes)
        return About(header.cell, subject, ran, self.sampling)


def _subject_of(recorded: Subject, known: ServerKnowledge) -> Subject:
    return replace(
        recorded,
        server_sha256=known.server_sha256,
        server_version=known.version,
        model=known.model,
    )


@contextlib.contextmanager
def _launched(
    args: argparse.Namespace, task: MinimiseTask, launching: Callable[[int], None]
) -> Iterator[Ground]:
    argv = () if task.start is None else task.start.argv
    with recorded_cell(args, task.header, argv) as cell:
        yield _Launched(args, task, cell, launching)


class _Endpoint:
    """A server of somebody else; see `Ground`. The answer alone on the same server is the only
    reference there is."""

    reference = Reference.SAME_SERVER

    def __init__(self, args: argparse.Namespace, task: MinimiseTask, on: EndpointGround) -> None:
        _check_subject(args, task, on.differences(on.seats.hear(), answered=False))
        self._greeted = on.seats.greet()
        _check_subject(args, task, on.differences(self._greeted, answered=True))
        self._on, self._header = on, task.header
        self.seats: Seats = on.seats
        self.sampling = on.sampling

    def about(self, lanes: int) -> About:
        """The recorded cell, and what the server says of itself at the end."""
        now, on = self._on.seats.hear(), self._on
        changed = on.since(self._greeted, now)
        if changed:
            raise ServerError(
                f"{on.url} became another server during the search: {'; '.join(changed)}"
            )
        return self._about(now if now.told.facts else self._greeted)

    def _about(self, now: Heard) -> About:
        header, identity, on = self._header, now.told.identity, self._on
        endpoint = now.endpoint(on.recorded.endpoint, on.url)
        model = ModelFacts(now.model, 0, None, UNKNOWN)
        return About(
            cell=replace(header.cell, model=now.model),
            subject=Subject(on.url, None, identity.build, model),
            ran=Ran(None, {}, identity.build, identity.chat_template_sha256, ()),
            sampling=self.sampling,
            endpoint=endpoint,
        )


@contextlib.contextmanager
def _endpoint(args: argparse.Namespace, task: MinimiseTask) -> Iterator[Ground]:
    header, identity = task.header, None if task.start is None else task.start.identity
    dialect = header.plan.sampling.dialect
    if header.endpoint is None or dialect is None:
        raise UsageError(f"{task.name}: its evidence does not describe its server")
    recorded = RecordedEndpoint(
        endpoint=header.endpoint,
        model=dialect.model,
        ctx=header.cell.ctx,
        chat_template_sha256=None if identity is None else identity.chat_template_sha256,
    )
    attempts = task.limits.attempts
    with endpoint_ground(args, recorded, header.plan.sampling, attempts) as on:
        shapes = [start.shape for start in task.item.starts]
        amount = search_amount(shapes, on.sampling, task.limits)
        check_room(amount.least, limits_of(args), "the start and its measurement alone")
        if not args.quiet:
            say(notice(on.url, amount.most, limits_of(args)))
            usual = (
                f"where it shows every time, a candidate takes {amount.candidate} requests at most"
            )
            say([f"  {usual}"])
        yield _Endpoint(args, task, on)
