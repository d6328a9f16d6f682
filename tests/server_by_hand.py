"""A real llama-server as somebody might start it by hand."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from batch_invariance.live_invariance.http import Client
from batch_invariance.live_invariance.launch import choose_port
from waiting import wait_until

NAME = "somebodys"


@contextlib.contextmanager
def started_by_hand(server: Path, model: Path, folder: Path, *flags: object) -> Iterator[str]:
    """Its address, once it is ready; it serves the model as `NAME` and logs into `folder`."""
    port = choose_port(frozenset())
    command = [server, "-m", model, "-a", NAME, "--host", "127.0.0.1", "--port", port, *flags]
    log_path = folder / "server.log"
    with open(log_path, "wb") as log:
        process = subprocess.Popen(
            [str(word) for word in command], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        client = Client(f"http://127.0.0.1:{port}", None)
        wait_until(lambda: client.get("/health", 5.0).ok or process.poll() is not None, 120.0)
        assert process.poll() is None, log_path.read_text("utf-8", "replace")
        yield client.base_url
    finally:
        process.kill()
        process.wait()
