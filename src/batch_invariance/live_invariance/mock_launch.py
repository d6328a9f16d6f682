"""The in-process mock as a `Launcher`: the same run, no process, no model, no GPU."""

from __future__ import annotations

import secrets
import threading
from pathlib import Path

from batch_invariance.invariance_diff.records import ExitInfo, Identity
from batch_invariance.live_invariance.binaries import RunningBinary
from batch_invariance.live_invariance.http import Client
from batch_invariance.live_invariance.mock_answer import MockBehaviour
from batch_invariance.live_invariance.mock_server import MockServer
from batch_invariance.live_invariance.server import ServerFacts
from batch_invariance.live_invariance.telemetry import read_identity


class MockRunning:
    """A mock server that runs; see `server.RunningServer`."""

    def __init__(self, server: MockServer, parallel: int, ctx: int, api_key: str) -> None:
        self.client = Client(f"http://127.0.0.1:{server.port}", api_key)
        self.dead = threading.Event()
        self.log_path: Path | None = None
        self._server = server
        self.facts = ServerFacts(
            parallel=parallel,
            n_ctx=ctx,
            argv=("mock", "--parallel", str(parallel), "-c", str(ctx * parallel)),
            omitted_flags=(),
            identity=read_identity(self.client) or Identity(None, None, None, None),
            key_enforced=True,
            socket_owned=True,
            system_info=None,
            binary=RunningBinary(),
        )

    @property
    def ending(self) -> str:
        """How it ended: only by being asked to."""
        return "exit code 0"

    def stop(self) -> ExitInfo:
        """Ends the mock's threads and frees its port."""
        self._server.stop()
        return ExitInfo(0, None, "")


class MockLauncher:
    """Starts mocks of `ctx` tokens per slot; see `server.Launcher`."""

    def __init__(self, ctx: int, behaviour: MockBehaviour) -> None:
        self._ctx = ctx
        self._behaviour = behaviour

    def launch(self, parallel: int) -> MockRunning:
        """A mock with `parallel` slots and a random key, serving on a loopback port."""
        key = secrets.token_hex(16)
        server = MockServer(parallel, self._ctx, self._behaviour, key)
        server.start()
        return MockRunning(server, parallel, self._ctx, key)
