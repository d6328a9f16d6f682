"""What a server shows of itself while it works: `/metrics`, `/slots`, `/props`."""

from __future__ import annotations

import hashlib
import json
import threading
from typing import Any, Protocol

from batch_invariance.invariance_diff.model import Arm
from batch_invariance.invariance_diff.records import Counters, Identity, Record, SlotSamples
from batch_invariance.invariance_diff.response import MAX_COUNT
from batch_invariance.invariance_diff.rules import EXACT_COUNTER_LIMIT
from batch_invariance.invariance_diff.tracker import NO_COUNTERS
from batch_invariance.live_invariance.http import Client, Exchange

PROBE_TIMEOUT_S = 10.0
SAMPLE_INTERVAL_S = 0.1
METRIC_PREFIX = "llamacpp:"


def read_counters(client: Client) -> Counters:
    """The server's counters now; unknown where `/metrics` is off or not understood."""
    exchange = client.get("/metrics", PROBE_TIMEOUT_S)
    return parse_metrics(exchange.body) if exchange.ok else NO_COUNTERS


def parse_metrics(body: bytes) -> Counters:
    """Counters out of the Prometheus text. One with more than six digits is no longer exact."""
    values: dict[str, int | None] = {}
    for line in body.decode("utf-8", "replace").splitlines():
        name, _, value = line.strip().partition(" ")
        if name.startswith(METRIC_PREFIX):
            values[name.removeprefix(METRIC_PREFIX)] = _exact(value)
    return Counters(
        values.get("n_decode_total"),
        values.get("tokens_predicted_total"),
        values.get("prompt_tokens_total"),
    )


def _exact(text: str) -> int | None:
    try:
        value = float(text)
    except ValueError:
        return None
    if not 0 <= value < EXACT_COUNTER_LIMIT or value != int(value):
        return None
    return int(value)


def read_identity(client: Client) -> Identity | None:
    """What `/props` says; None where it does not answer."""
    props = _json(client.get("/props", PROBE_TIMEOUT_S))
    if not isinstance(props, dict):
        return None
    settings = props.get("default_generation_settings")
    n_ctx = settings.get("n_ctx") if isinstance(settings, dict) else None
    template = props.get("chat_template")
    return Identity(
        total_slots=_whole(props.get("total_slots")),
        n_ctx=_whole(n_ctx),
        model=_text(props.get("model_path")),
        build=_text(props.get("build_info")),
        chat_template_sha256=(
            hashlib.sha256(template.encode("utf-8", "surrogatepass")).hexdigest()
            if isinstance(template, str)
            else None
        ),
    )


def _json(exchange: Exchange) -> Any:
    if not exchange.ok:
        return None
    try:
        return json.loads(exchange.body)
    except (ValueError, RecursionError):
        return None


def _whole(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < MAX_COUNT else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def busy_slots(exchange: Exchange) -> frozenset[int] | None:
    """The slots that are processing; None where `/slots` is off or not understood.

    Newer builds say `is_processing`, older ones a `state` that is 0 when idle. A slot keeps the
    id of its last task, so a set `id_task` says nothing.
    """
    slots = _json(exchange)
    if not isinstance(slots, list) or not slots:
        return None
    busy = set()
    for index, slot in enumerate(slots):
        if not isinstance(slot, dict):
            return None
        working = slot.get("is_processing")
        if not isinstance(working, bool):
            state = slot.get("state")
            if type(state) is not int:
                return None
            working = state != 0
        if working:
            number = slot.get("id")
            busy.add(number if type(number) is int else index)
    return frozenset(busy)


def read_busy_slots(client: Client) -> frozenset[int] | None:
    """The slots that are processing now."""
    return busy_slots(client.get("/slots", PROBE_TIMEOUT_S))


class Sampler(Protocol):
    """Watches a pass while its context holds, and says afterwards what it saw."""

    def __enter__(self) -> Sampler:
        """Starts to watch."""

    def __exit__(self, *_: object) -> None:
        """Stops."""

    def slots(self) -> SlotSamples | None:
        """For the pass's end."""

    def records(self, arm: Arm, pass_index: int) -> tuple[Record, ...]:
        """Records of their own, to be written before the pass's end."""


class Telemetry(Protocol):
    """How a run watches the server it measures."""

    def begin(self) -> Counters:
        """The counters before a pass."""

    def read(self, n_generated: int) -> Counters:
        """The counters now that the pass's answers so far hold `n_generated` tokens."""

    def sampler(self, concurrent: bool) -> Sampler:
        """What watches a pass, serial or concurrent."""


class LlamaTelemetry:
    """Of a llama-server of our own, whose counters are right at once."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def begin(self) -> Counters:
        """The counters before a pass."""
        return read_counters(self._client)

    def read(self, n_generated: int) -> Counters:
        """The counters now."""
        return read_counters(self._client)

    def sampler(self, concurrent: bool) -> SlotSampler:
        """Polls the slots of a concurrent pass."""
        return SlotSampler(self._client, wanted=concurrent)


class SlotSampler:
    """Polls `/slots` while a pass runs, unless it is not `wanted`; a context manager. Few polls:
    each one costs the server."""

    def __init__(
        self, client: Client, interval_s: float = SAMPLE_INTERVAL_S, wanted: bool = True
    ) -> None:
        self._wanted = wanted
        self._client = client
        self._interval_s = interval_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._answered = 0
        self._peak = 0
        self._unavailable: str | None = None

    def __enter__(self) -> SlotSampler:
        if self._wanted:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._wanted:
            self._thread.join()

    def slots(self) -> SlotSamples | None:
        """What was seen; to be asked after the end. None where polling was not asked for."""
        if not self._wanted:
            return None
        return SlotSamples(self._answered, self._peak, self._unavailable)

    def records(self, arm: Arm, pass_index: int) -> tuple[Record, ...]:
        """What the pass's end does not hold; slot samples are in there."""
        return ()

    def _poll(self) -> None:
        while not self._done.wait(self._interval_s):
            exchange = self._client.get("/slots", PROBE_TIMEOUT_S)
            busy = busy_slots(exchange)
            if busy is not None:
                self._answered += 1
                self._peak = max(self._peak, len(busy))
            elif exchange.failure is None:
                self._unavailable = f"/slots answers {exchange.status}, not understood"
                return
