"""The faulty fake inside the process of the test, for what needs no process of its own.

The verb, its options, the run, the schedules, HTTP and the evidence are those of a user's run;
launching, owning and ending a process is left out, and with it most of the time.
"""

from __future__ import annotations

import secrets
import threading
from dataclasses import replace
from pathlib import Path

from batch_invariance.errors import GuardRefused, ServerError
from batch_invariance.invariance_diff.records import ExitInfo, Identity
from batch_invariance.live_invariance.binaries import RunningBinary
from batch_invariance.live_invariance.http import Client
from batch_invariance.live_invariance.launch import build_argv
from batch_invariance.live_invariance.server import LaunchSettings, ServerFacts
from batch_invariance.live_invariance.telemetry import read_identity
from fake_faults import Faults
from fake_faulty_server import FaultyServer
from fake_llama_server import as_asked, launch_identity, parse_command_line

LAUNCHER = "batch_invariance.cli.cell_options.LlamaLauncher"
"""What the verbs launch servers with."""


class InProcessServer:
    """A fake that runs; see `server.RunningServer`."""

    def __init__(self, server: FaultyServer, client: Client, facts: ServerFacts) -> None:
        self.client = client
        self.facts = facts
        self.dead = threading.Event()
        self.log_path: Path | None = None
        self.ending = "exit code 0"
        self._server = server

    def stop(self) -> ExitInfo:
        self._server.stop()
        return ExitInfo(0, None, "")


class InProcessLauncher:
    """Starts fakes with these faults; see `server.Launcher`."""

    def __init__(self, settings: LaunchSettings, faults: Faults) -> None:
        self._settings = settings
        self._faults = faults

    def launch(self, parallel: int) -> InProcessServer:
        try:
            self._settings.before_launch(parallel)
        except GuardRefused as error:
            raise ServerError(f"no launch: {error}") from error
        command = build_argv(replace(self._settings.spec, parallel=parallel))
        key = secrets.token_hex(16)
        line = replace(parse_command_line(command.argv), api_key_file="", api_key=key)
        self._faults.note(started=parallel, argv=list(command.argv))
        faults = as_asked(line, self._faults.for_launch(parallel))
        server = FaultyServer(launch_identity(line, faults), 0, faults)
        server.start()
        client = Client(f"http://127.0.0.1:{server.port}", key)
        facts = ServerFacts(
            parallel=parallel,
            n_ctx=self._settings.spec.ctx,
            argv=command.argv,
            omitted_flags=command.omitted_flags,
            identity=read_identity(client) or Identity(None, None, None, None),
            key_enforced=True,
            socket_owned=None,
            system_info=None,
            binary=RunningBinary(),
        )
        return InProcessServer(server, client, facts)
