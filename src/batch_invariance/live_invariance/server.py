"""A running server as the run sees it, and the real llama-server behind it.

`Launcher` is the seam between the run and what it runs against: the owned llama-server here, the
in-process mock in `mock_launch`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from batch_invariance.errors import GuardRefused, ServerError
from batch_invariance.invariance_diff.gates_server import file_name
from batch_invariance.invariance_diff.model import FailureKind
from batch_invariance.invariance_diff.records import ExitInfo, Identity
from batch_invariance.live_invariance.binaries import RunningBinary, running_binary
from batch_invariance.live_invariance.http import Client
from batch_invariance.live_invariance.interrupts import check
from batch_invariance.live_invariance.launch import (
    LaunchSpec,
    build_argv,
    choose_port,
    scrub_environment,
)
from batch_invariance.live_invariance.process import OwnedProcess
from batch_invariance.live_invariance.procfs import owns_listening_socket
from batch_invariance.live_invariance.store import temporary_folder
from batch_invariance.live_invariance.telemetry import read_identity

READY_POLL_S = 0.02
PORT_TRIES = 3
PROBE_TIMEOUT_S = 10.0
FIRST_PROBE_S = 0.25
DEATH_GRACE_S = 0.5
"""How long an answer that is wrong waits for word of the server's death before it is believed."""
LOG_HEAD_BYTES = 256 * 1024
PROBE_BODY = b'{"content":"batch invariance"}'


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What is known of a server once it is ready; see `records.LifetimeStart`."""

    parallel: int
    n_ctx: int
    argv: tuple[str, ...]
    omitted_flags: tuple[str, ...]
    identity: Identity
    key_enforced: bool
    socket_owned: bool | None
    system_info: str | None
    binary: RunningBinary


class RunningServer(Protocol):
    """A ready server. `dead` is set the moment it dies; `stop` always returns. `log_path` is its
    log, None where it writes none. `ending` says in words how it ended, once it has."""

    client: Client
    log_path: Path | None
    facts: ServerFacts
    dead: threading.Event

    @property
    def ending(self) -> str:
        """How it ended, for a person."""

    def stop(self) -> ExitInfo:
        """Ends the server and says how it ended."""


class Launcher(Protocol):
    """Starts one server at a time."""

    def launch(self, parallel: int) -> RunningServer:
        """A server with `parallel` slots, ready and proved to be ours. Raises ServerError."""


class OwnedServer:
    """A llama-server process that this run launched."""

    def __init__(
        self, process: OwnedProcess, client: Client, dead: threading.Event, scratch: Path
    ) -> None:
        self.client = client
        self.dead = dead
        self.facts: ServerFacts
        self.log_path: Path | None = process.log_path
        self._process = process
        self._scratch = scratch

    @property
    def ending(self) -> str:
        """How it ended, for a person."""
        return self._process.ending

    def stop(self) -> ExitInfo:
        """Ends the process tree, removes its scratch folder, and says how it ended."""
        died = self._process.exit_status
        tail = self._process.log_tail() if died is not None else ""
        try:
            status = self._process.stop()
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)
        ended = died or status
        return ExitInfo(ended.code, ended.signal, tail)


@dataclass(frozen=True, slots=True)
class LaunchSettings:
    """What every launch of a run shares: `spec` (port and slots are filled in for each), ports
    never to be used, how long to wait for readiness, a check made before each launch, and a folder
    of the run's own, removed where the driver vanishes (None: a new one per launch)."""

    spec: LaunchSpec
    reserved_ports: frozenset[int]
    ready_timeout_s: float
    before_launch: Callable[[int], None]
    folder: Path | None = None


class LlamaLauncher:
    """Launches llama-server; see `Launcher`."""

    def __init__(self, settings: LaunchSettings) -> None:
        self._settings = settings

    def launch(self, parallel: int) -> OwnedServer:
        """Starts it on a free loopback port with a random key; another port on a collision."""
        try:
            self._settings.before_launch(parallel)
        except GuardRefused as error:
            # The run has begun: its end is no refusal of arguments any more.
            raise ServerError(f"no launch: {error}") from error
        for attempt in range(1, PORT_TRIES + 1):
            try:
                return self._try(parallel)
            except _PortTaken:
                if attempt == PORT_TRIES:
                    raise
        raise AssertionError("unreachable")

    def _try(self, parallel: int) -> OwnedServer:
        settings = self._settings
        scratch = temporary_folder("", settings.folder)
        process: OwnedProcess | None = None
        try:
            key = secrets.token_hex(16)
            key_file = _write_key(scratch, key)
            port = choose_port(settings.reserved_ports)
            spec = replace(settings.spec, parallel=parallel, port=port, api_key_file=key_file)
            command = build_argv(spec)
            process = OwnedProcess.spawn(
                command.argv,
                scrub_environment(os.environ),
                scratch / "server.log",
                settings.folder or scratch,
            )
            dead = threading.Event()
            process.on_exit(dead.set)
            client = Client(f"http://127.0.0.1:{port}", key)
            server = OwnedServer(process, client, dead, scratch)
            _wait_ready(process, client, dead, settings.ready_timeout_s)
            try:
                server.facts = _facts(spec, command.argv, command.omitted_flags, process, client)
            except ServerError:
                if not dead.wait(DEATH_GRACE_S):
                    raise
            if dead.is_set():
                raise _death(process)
            return server
        except BaseException:
            if process is not None:
                process.stop()
            shutil.rmtree(scratch, ignore_errors=True)
            raise


def _write_key(folder: Path, key: str) -> Path:
    path = folder / "api-key"
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(key + "\n")
    except OSError as error:
        raise ServerError(
            f"cannot write the server's key {path}: {error.strerror}; free some space, or name "
            "another place in TMPDIR"
        ) from error
    return path


class _PortTaken(ServerError):
    """Another program took the chosen port first."""


def _wait_ready(
    process: OwnedProcess, client: Client, dead: threading.Event, timeout_s: float
) -> None:
    """Returns once `/health` says 200; looks at the child before every probe.

    Probes wait a little at first and longer where that was not enough: whoever answers nothing may
    be a stranger on the port, and the child long dead.
    """
    deadline = time.monotonic() + timeout_s
    patience_s = FIRST_PROBE_S
    while True:
        check()
        if dead.is_set():
            raise _death(process)
        left_s = deadline - time.monotonic()
        health = client.get("/health", max(READY_POLL_S, min(patience_s, left_s)))
        if health.ok:
            return
        if health.failure is not None and health.failure.kind is FailureKind.TIMEOUT:
            patience_s = min(2 * patience_s, PROBE_TIMEOUT_S)
        if left_s <= 0:
            raise ServerError(
                f"the server was not ready after {timeout_s:g} s; raise --ready-timeout, or see "
                f"the end of its log:\n{process.log_tail()}"
            )
        dead.wait(READY_POLL_S)


def _death(process: OwnedProcess) -> ServerError:
    tail, ending = process.log_tail(), process.ending
    status = process.exit_status
    if "couldn't bind" in tail:
        return _PortTaken(f"the server could not bind its port ({ending}); run again\n{tail}")
    hint = "check --server-bin, --model and the flags after --"
    if process.guardian_lost:
        hint = "find out what killed it and run again"
    elif process.n_left and status is not None and status.code == 0:
        hint = (
            "a server that leaves the process that was started cannot be held; have --server-bin "
            "run it in the foreground"
        )
    elif status is not None and status.signal == signal.SIGILL:
        hint = (
            "SIGILL: this build of the server uses processor instructions that this machine lacks; "
            "use a build made for it"
        )
    return ServerError(f"the server died at start: {ending}; {hint}. The end of its log:\n{tail}")


def _facts(
    spec: LaunchSpec,
    argv: tuple[str, ...],
    omitted: tuple[str, ...],
    process: OwnedProcess,
    client: Client,
) -> ServerFacts:
    """Proves that the endpoint is the child and reads what it says of itself."""
    own = client.post("/tokenize", PROBE_BODY, PROBE_TIMEOUT_S)
    foreign = client.with_key(secrets.token_hex(16)).post("/tokenize", PROBE_BODY, PROBE_TIMEOUT_S)
    key_enforced = own.ok and foreign.status == 401
    port = int(client.base_url.rpartition(":")[2])
    owned = owns_listening_socket(process.pid, port)
    if not own.ok and own.status in (401, 403):
        raise ServerError("another server answers on our port: it refuses our key; run again")
    if not key_enforced and owned is not True:
        raise ServerError(
            "the server enforces no key and its socket cannot be shown to be the child's; "
            "use a build with --api-key-file"
        )
    unified = spec.user_flags.kv_unified
    return ServerFacts(
        parallel=spec.parallel,
        n_ctx=spec.ctx * spec.parallel if unified else spec.ctx,
        argv=argv,
        omitted_flags=omitted,
        identity=read_identity(client) or Identity(None, None, None, None),
        key_enforced=key_enforced,
        socket_owned=owned,
        system_info=_system_info(process.log_path),
        binary=running_binary(process.pid),
    )


def _system_info(log: Path) -> str | None:
    """The line in which the server names its processor features, where its log has one."""
    try:
        with open(log, "rb") as file:
            head = file.read(LOG_HEAD_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    for line in head.splitlines():
        if "system_info:" in line:
            return line[line.index("system_info:") :].strip()
    return None


def check_fits(facts: ServerFacts, model_file: str) -> None:
    """Raises ServerError where the server says that it is not what was asked for."""
    said = facts.identity
    if said.model is not None and file_name(said.model) != model_file:
        raise ServerError(
            f"the server serves {said.model}, {model_file} was asked; no verdict on another model"
        )
    if said.total_slots is not None and said.total_slots != facts.parallel:
        raise ServerError(
            f"the server has {said.total_slots} slots, --parallel {facts.parallel} was asked; "
            "no verdict on wrong slots: use a build that honours --parallel"
        )
    if said.n_ctx is not None and said.n_ctx != facts.n_ctx:
        raise ServerError(
            f"the server gives a slot {said.n_ctx} tokens of context, {facts.n_ctx} were asked; "
            "choose a --ctx that the model allows"
        )
