"""A cell from start to evidence: two server lifetimes, and all that runs in them.

The run records what happened and judges nothing; `certify` reads the file it leaves behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from batch_invariance.errors import Interrupted, ServerError
from batch_invariance.invariance_diff.model import Arm
from batch_invariance.invariance_diff.records import (
    COMPLETE,
    Footer,
    LifetimeEnd,
    LifetimeStart,
)
from batch_invariance.live_invariance.dispatch import Dispatcher
from batch_invariance.live_invariance.fit import check_items_fit
from batch_invariance.live_invariance.passes import Passes, ServerDied
from batch_invariance.live_invariance.recording import Recorder, StopRun
from batch_invariance.live_invariance.server import Launcher, RunningServer, check_fits
from batch_invariance.live_invariance.telemetry import read_identity

UNDER_LOAD = (Arm.C, Arm.CONFIRM, Arm.P)
ONE_SLOT = (Arm.A, Arm.A2)


@dataclass(frozen=True, slots=True)
class Earlier:
    """What an interrupted run has done: its complete passes, and how many launches it made.
    `control` says that the positive control is settled."""

    done: frozenset[tuple[Arm, int]] = frozenset()
    n_lifetimes: int = 0
    control: bool = False


FRESH = Earlier()


def run_cell(
    recorder: Recorder, launcher: Launcher, request_timeout_s: float, earlier: Earlier = FRESH
) -> None:
    """Runs arms A and A2 on one slot, then B, C, confirm and P on N, less what is done `earlier`.

    Leaves complete evidence, or evidence whose footer says where it ended; without a footer where a
    signal interrupted it. A server that dies under the cell's load is such an end; raises
    ServerError when a launch fails or the server dies before, WorkSetError when an item does not
    fit the context.
    """
    if earlier is FRESH:
        recorder.write(recorder.header)
    conclude(recorder, lambda: _lifetimes(recorder, launcher, request_timeout_s, earlier))


def conclude(recorder: Recorder, what: Callable[[], None]) -> None:
    """Does `what`, and closes the evidence with a footer that says how it ended; see `run_cell`."""
    ended = COMPLETE
    try:
        what()
    except Interrupted as signal:
        recorder.event("interrupted", str(signal))
        recorder.sync()
        raise
    except StopRun as stop:
        ended = stop.ended
        recorder.event("stopped", ended)
    except ServerDied as death:
        ended = str(death)
        if death.arm not in UNDER_LOAD:
            _close(recorder, ended)
            raise ServerError(
                f"{death} ({death.how}), before the cell's load: no verdict. "
                f"The end of its log:\n{death.log_tail}"
            ) from death
    except BaseException as error:
        _close(recorder, f"{type(error).__name__}: the run was not finished")
        raise
    _close(recorder, ended)


def _close(recorder: Recorder, ended: str) -> None:
    recorder.write(Footer(ended, recorder.n_trials, time.monotonic()))
    recorder.sync()


def _lifetimes(recorder: Recorder, launcher: Launcher, timeout_s: float, earlier: Earlier) -> None:
    """The launches that are still needed: one with one slot, one with N."""
    index = earlier.n_lifetimes
    planned = {(plan.arm, plan.pass_index) for plan in recorder.header.plan.passes}
    missing = planned - earlier.done
    if any(arm in ONE_SLOT for arm, _ in missing):
        _lifetime(recorder, launcher, Launch(index, 1, True), timeout_s, earlier)
        index += 1
    if any(arm not in ONE_SLOT for arm, _ in missing) or not earlier.control:
        slots = recorder.header.cell.dispatch_n
        _lifetime(recorder, launcher, Launch(index, slots, False), timeout_s, earlier)


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: its number in the run, its slots, and whether it is for the reference, arms A and
    A2, or for the arms on N slots."""

    index: int
    parallel: int
    reference: bool


def _lifetime(
    recorder: Recorder, launcher: Launcher, launch: Launch, timeout_s: float, earlier: Earlier
) -> None:
    """One launch and the arms that belong to it; the server is stopped on every way out."""
    header, index = recorder.header, launch.index
    recorder.observer.stage(f"launching the server with {launch.parallel} slot(s)")
    server = launcher.launch(launch.parallel)
    death: ServerDied | None = None
    try:
        _write_start(recorder, server, index)
        check_fits(server.facts, header.subject.model.file)
        if index == 0:
            check_items_fit(server.client, recorder.items, header.plan.sampling, header.cell.ctx)
        with (
            Dispatcher(server.client, launch.parallel, timeout_s, server.dead) as dispatcher,
            Passes(recorder, server, index, dispatcher) as passes,
        ):
            _arms(recorder, passes, launch, earlier)
    except ServerDied as error:
        death = error
        raise
    finally:
        identity = None if server.dead.is_set() else read_identity(server.client)
        ended = server.stop()
        if death is not None:
            death.how = server.ending
            death.log_tail = ended.log_tail
            recorder.event("server_died", f"{death}: {death.how}", death.arm)
        recorder.write(LifetimeEnd(index, identity, ended, time.monotonic()))


def _arms(recorder: Recorder, passes: Passes, launch: Launch, earlier: Earlier) -> None:
    passes.warm_up()
    for plan in recorder.header.plan.passes:
        if (plan.arm in ONE_SLOT) is launch.reference and (
            plan.arm,
            plan.pass_index,
        ) not in earlier.done:
            passes.planned(plan)
    if not launch.reference:
        if (Arm.CONFIRM, 0) not in earlier.done:
            passes.confirm()
        if not earlier.control:
            passes.control()


def _write_start(recorder: Recorder, server: RunningServer, index: int) -> None:
    facts = server.facts
    recorder.write(
        LifetimeStart(
            index=index,
            parallel=facts.parallel,
            n_ctx=facts.n_ctx,
            argv=facts.argv,
            omitted_flags=facts.omitted_flags,
            identity=facts.identity,
            key_enforced=facts.key_enforced,
            socket_owned=facts.socket_owned,
            system_info=facts.system_info,
            executable_sha256=facts.binary.executable_sha256,
            libraries=facts.binary.libraries,
            ts=time.monotonic(),
        )
    )
