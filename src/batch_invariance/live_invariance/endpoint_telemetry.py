"""Counters and gauges of a server that someone else runs, read while a pass runs."""

from __future__ import annotations

import threading
import time

from batch_invariance.invariance_diff.endpoint import Engine, Offered
from batch_invariance.invariance_diff.gauge import Poll
from batch_invariance.invariance_diff.model import Arm
from batch_invariance.invariance_diff.records import Counters, GaugeSamples, Record, SlotSamples
from batch_invariance.invariance_diff.tracker import NO_COUNTERS
from batch_invariance.live_invariance.http import Client
from batch_invariance.live_invariance.prometheus import counters_from, running_from
from batch_invariance.live_invariance.telemetry import busy_slots

READ_TIMEOUT_S = 10.0
SETTLE_S = 2.0
"""How long a counter may lag behind the answers: vLLM adds a step up after it has sent the answer
out, so the last one is not there yet for a client that asks at once."""
SETTLE_POLL_S = 0.01
SHORTEST_POLL_S = 0.01
LONGEST_POLL_S = 0.25
POLLS_PER_REQUEST = 8
POLLS_BESIDE_STEPS = 2
"""Where forward passes are counted the gauge says little more, and each poll costs the server."""
METRICS_PATH = "/metrics"


class EndpointTelemetry:
    """Reads what the server offers; see `telemetry.Telemetry`.

    `metrics` is a client of its own where the metrics have another address. `typical_s` is the
    length of a request, which sets how often the gauge is polled.
    """

    def __init__(self, client: Client, metrics: Client, engine: Engine, offered: Offered) -> None:
        self._client = client
        self._metrics = metrics
        self._engine = engine
        self._offered = offered
        self._generated: int | None = None
        self.typical_s = 0.0

    def begin(self) -> Counters:
        """The counters before a pass."""
        counters = self._read()
        self._generated = counters.predicted_total
        return counters

    def read(self, n_generated: int) -> Counters:
        """The counters once the `n_generated` tokens since `begin` are counted, or a while later:
        whoever judges sees what is missing."""
        deadline = time.monotonic() + SETTLE_S
        while True:
            counters = self._read()
            now = counters.predicted_total
            if self._generated is None or now is None or now >= self._generated + n_generated:
                return counters
            if time.monotonic() > deadline:
                return counters
            time.sleep(SETTLE_POLL_S)

    def running(self) -> tuple[int, int] | None:
        """(running, waiting) by the scheduler's gauge, or by llama.cpp's slots."""
        if self._offered.running == SLOTS:
            busy = busy_slots(self._client.get(SLOTS, READ_TIMEOUT_S))
            return None if busy is None else (len(busy), -1)
        if self._offered.running is None:
            return None
        exchange = self._metrics.get(METRICS_PATH, READ_TIMEOUT_S)
        return running_from(self._engine, exchange.body) if exchange.ok else None

    def sampler(self, concurrent: bool) -> GaugeSampler:
        """Polls the gauge for as long as its context holds."""
        wanted = POLLS_PER_REQUEST if self._offered.steps is None else POLLS_BESIDE_STEPS
        interval_s = max(SHORTEST_POLL_S, self.typical_s / wanted)
        return GaugeSampler(self, min(LONGEST_POLL_S, interval_s))

    @property
    def has_gauge(self) -> bool:
        """Whether there is anything to poll."""
        return self._offered.running is not None

    def _read(self) -> Counters:
        if self._offered.steps is None and self._offered.generated is None:
            return NO_COUNTERS
        exchange = self._metrics.get(METRICS_PATH, READ_TIMEOUT_S)
        return counters_from(self._engine, exchange.body) if exchange.ok else NO_COUNTERS


SLOTS = "/slots"
"""llama.cpp's slots in the place of a gauge, for a server without `--metrics`."""


class GaugeSampler:
    """Polls a gauge in a thread of its own; a context manager, to be asked after its end."""

    def __init__(self, telemetry: EndpointTelemetry, interval_s: float) -> None:
        self._telemetry = telemetry
        self._interval_s = interval_s
        self._done = threading.Event()
        self._polls: list[Poll] = []
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> GaugeSampler:
        if self._telemetry.has_gauge:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._telemetry.has_gauge:
            self._thread.join()

    def slots(self) -> SlotSamples | None:
        """Slot samples belong to a server of our own."""
        return None

    def records(self, arm: Arm, pass_index: int) -> tuple[Record, ...]:
        """The polls as a record of the pass; none without a gauge."""
        if not self._polls:
            return ()
        return (GaugeSamples(arm, pass_index, tuple(self._polls)),)

    def _poll(self) -> None:
        while not self._done.wait(self._interval_s):
            asked = time.monotonic()
            seen = self._telemetry.running()
            if seen is not None:
                self._polls.append((asked, time.monotonic(), *seen))


def metrics_base(url: str) -> str:
    """The address that `/metrics` is below, from `--metrics-url` with or without that word."""
    return url.rstrip("/").removesuffix(METRICS_PATH)
