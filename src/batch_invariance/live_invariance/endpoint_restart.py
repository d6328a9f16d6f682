"""Restarting a server of someone else by a command of the user's, and waiting until it serves."""

from __future__ import annotations

import subprocess
import tempfile
import time
from dataclasses import dataclass

from batch_invariance.errors import ServerError
from batch_invariance.live_invariance.endpoint_client import EndpointClient
from batch_invariance.live_invariance.endpoint_facts import ASK_TIMEOUT_S, MODELS, PROCESS_START
from batch_invariance.live_invariance.endpoint_telemetry import METRICS_PATH
from batch_invariance.live_invariance.http import Client
from batch_invariance.live_invariance.interrupts import check
from batch_invariance.live_invariance.prometheus import counters_from, engine_of, read_samples

READY_POLL_S = 0.25
TAIL = 300


@dataclass(frozen=True, slots=True)
class Mark:
    """What tells one process of a server from the next: when it says that it started, and how many
    tokens it has generated; None where it does not say."""

    started: float | None
    generated: int | None


def mark_of(metrics: Client) -> Mark:
    """The mark of the process that serves now."""
    body = metrics.get(METRICS_PATH, ASK_TIMEOUT_S).body
    engine = engine_of(body)
    started = read_samples(body, PROCESS_START).get(PROCESS_START)
    return Mark(started, None if engine is None else counters_from(engine, body).predicted_total)


def restart(command: str, client: EndpointClient, metrics: Client, timeout_s: float) -> bool | None:
    """Runs `command` in a shell and waits until the server lists its models again.

    Whether another process serves now: None where nothing shows it. Raises ServerError where the
    command fails, or where nobody serves after `timeout_s` seconds.
    """
    before = mark_of(metrics)
    deadline = time.monotonic() + timeout_s
    # Into a file: the server that is left behind would hold a pipe open.
    with tempfile.TemporaryFile() as output:
        try:
            done = subprocess.run(
                command,
                shell=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ServerError(
                f"--restart-command did not end within {timeout_s:g} s; it must leave the server "
                "running in the background"
            ) from error
        if done.returncode != 0:
            output.seek(0)
            said = output.read()[-TAIL:].decode("utf-8", "replace").strip()
            raise ServerError(f"--restart-command ended with {done.returncode}: {said}")
    while True:
        check()
        if client.get(MODELS, ASK_TIMEOUT_S).ok:
            seen = _other_process(before, mark_of(metrics))
            # A server that is still on its way down answers too.
            if seen or before.started is None:
                return seen
        if time.monotonic() > deadline:
            raise ServerError(
                f"{client.base_url} serves nobody, or still the old process, {timeout_s:g} s after "
                "--restart-command; raise --ready-timeout or look at the command"
            )
        time.sleep(READY_POLL_S)


def _other_process(before: Mark, now: Mark) -> bool | None:
    if before.started is not None and now.started is not None:
        return before.started != now.started
    if before.generated and now.generated is not None:
        return True if now.generated < before.generated else None
    return None
