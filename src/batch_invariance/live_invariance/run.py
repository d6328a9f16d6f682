"""A cell from start to evidence: two server lifetimes, and all that runs in them.

The run records what happened and judges nothing; `certify` reads the file it leaves behind.
"""

from __future__ import annotations

import time

from batch_invariance.errors import ServerError
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
from batch_invariance.live_invariance.process import ExitStatus
from batch_invariance.live_invariance.recording import Recorder, StopRun
from batch_invariance.live_invariance.server import Launcher, RunningServer, check_fits
from batch_invariance.live_invariance.telemetry import read_identity

UNDER_LOAD = (Arm.C, Arm.CONFIRM, Arm.P)


def run_cell(recorder: Recorder, launcher: Launcher, request_timeout_s: float) -> None:
    """Runs arms A and A2 on one slot, then B, C, confirm and P on N.

    Leaves complete evidence, or evidence whose footer says where it ended. A server that dies
    under the cell's load is such an end; raises ServerError when a launch fails or the server
    dies before, WorkSetError when an item does not fit the context.
    """
    recorder.write(recorder.header)
    ended = COMPLETE
    try:
        _lifetime(recorder, launcher, 0, request_timeout_s)
        _lifetime(recorder, launcher, 1, request_timeout_s)
    except StopRun as stop:
        ended = stop.ended
        recorder.event("stopped", ended)
    except ServerDied as death:
        ended = str(death)
        if death.arm not in UNDER_LOAD:
            raise ServerError(
                f"{death} ({death.how}), before the cell's load: no verdict. "
                f"The end of its log:\n{death.log_tail}"
            ) from death
    except BaseException as error:
        ended = f"{type(error).__name__}: the run was not finished"
        raise
    finally:
        recorder.write(Footer(ended, recorder.n_trials, time.monotonic()))
        recorder.sync()


def _lifetime(recorder: Recorder, launcher: Launcher, index: int, timeout_s: float) -> None:
    """One launch and the arms that belong to it; the server is stopped on every way out."""
    header = recorder.header
    parallel = 1 if index == 0 else header.cell.dispatch_n
    recorder.observer.stage(f"launching the server with {parallel} slot(s)")
    server = launcher.launch(parallel)
    death: ServerDied | None = None
    try:
        _write_start(recorder, server, index)
        check_fits(server.facts, header.subject.model.file)
        if index == 0:
            check_items_fit(server.client, recorder.items, header.plan.sampling, header.cell.ctx)
        with (
            Dispatcher(server.client, parallel, timeout_s, server.dead) as dispatcher,
            Passes(recorder, server, index, dispatcher) as passes,
        ):
            _arms(recorder, passes, index)
    except ServerDied as error:
        death = error
        raise
    finally:
        identity = None if server.dead.is_set() else read_identity(server.client)
        ended = server.stop()
        if death is not None:
            death.how = str(ExitStatus(ended.code, ended.signal))
            death.log_tail = ended.log_tail
            recorder.event("server_died", f"{death}: {death.how}", death.arm)
        recorder.write(LifetimeEnd(index, identity, ended, time.monotonic()))


def _arms(recorder: Recorder, passes: Passes, index: int) -> None:
    arms = (Arm.A, Arm.A2) if index == 0 else (Arm.B, Arm.C)
    passes.warm_up()
    for plan in recorder.header.plan.passes:
        if plan.arm in arms:
            passes.planned(plan)
    if index == 1:
        passes.confirm()
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
