"""HTTP to a server that someone else runs: its rates obeyed, what is sent counted, the key kept in.

A 429 says that the request was not processed, so waiting and sending it again changes no answer;
each time is told to the run, which records it. Nothing else is ever sent twice.
"""

from __future__ import annotations

import email.utils
import json
import queue
import re
import threading
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from batch_invariance.errors import UsageError
from batch_invariance.invariance_diff.model import Failure, FailureKind
from batch_invariance.invariance_diff.response import MAX_COUNT
from batch_invariance.live_invariance.http import Client, Exchange

TOO_MANY = 429
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 300.0
LEAST_SECRET = 8
"""Characters from which on a key is struck out of whatever comes back; a shorter one, such as the
`EMPTY` of many local servers, may stand in an answer by itself."""
STRUCK_OUT = b"[key]"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
TEXT_LIMIT = 200


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that a run may send: requests, and tokens of prompts and answers together; None
    for no limit."""

    requests: int | None = None
    tokens: int | None = None


def base_url(text: str, option: str = "--url") -> str:
    """The address that `option` gives, without a trailing `/v1` or slash.

    Raises UsageError for what is no such address.
    """
    try:
        parts = urllib.parse.urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{option}: {error}; give http://host:port") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{option}: give an address such as http://host:port or https://host/v1")
    if parts.username is not None or parts.password is not None:
        raise UsageError(
            f"{option}: no user or password in it; use --api-key-file or --api-key-env"
        )
    if parts.query or parts.fragment:
        raise UsageError(
            f"{option}: give the address without a query; it would stand in the evidence"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    place = host if port is None else f"{host}:{port}"
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme}://{place}{path}"


def on_loopback(url: str) -> bool:
    """Whether the address is this machine's own."""
    return urllib.parse.urlsplit(url).hostname in LOOPBACK


class EndpointClient(Client):
    """A `Client` that obeys 429, counts requests and tokens, and lets no key come back.

    `spent` says why nothing more may be sent, None while something may. `fingerprints` are the
    `system_fingerprint`s of all answers, and `models` the models that they name.
    """

    def __init__(
        self, base_url: str, api_key: str | None, patience_s: float, limits: Limits = Limits()
    ) -> None:
        super().__init__(base_url, api_key, proxies=not on_loopback(base_url))
        self._secret = (api_key or "").encode()
        self._patience_s = patience_s
        self._limits = limits
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._waits: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._ids: set[str] = set()
        self._repeated: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.fingerprints: set[str] = set()
        self.models: set[str] = set()
        self.n_requests = 0
        self.n_tokens = 0

    def close(self) -> None:
        """Ends all waits for a rate limit."""
        self._stopped.set()

    @property
    def spent(self) -> str | None:
        """Which limit is reached."""
        limits = self._limits
        if limits.requests is not None and self.n_requests >= limits.requests:
            return f"--max-requests {limits.requests} is reached"
        if limits.tokens is not None and self.n_tokens >= limits.tokens:
            return f"--max-total-tokens {limits.tokens} is reached"
        return None

    @property
    def left(self) -> Limits:
        """What the limits leave for another client."""
        limits = self._limits
        return Limits(
            None if limits.requests is None else max(0, limits.requests - self.n_requests),
            None if limits.tokens is None else max(0, limits.tokens - self.n_tokens),
        )

    def waits(self) -> Iterator[str]:
        """What was said of rate limits since the last call, one text for each."""
        return _drained(self._waits)

    def repeated(self) -> Iterator[str]:
        """Ids of answers since the last call that an earlier answer had, on a server that gives
        its answers ids."""
        return _drained(self._repeated)

    def post(self, path: str, body: bytes, timeout: float) -> Exchange:
        """POST once, and again for as long as the server says 429 and patience lasts."""
        deadline = time.monotonic() + self._patience_s
        wait_s = FIRST_WAIT_S
        while True:
            with self._lock:
                if self.spent is not None:
                    now = time.monotonic()
                    return Exchange(0, b"", Failure(FailureKind.NOT_SENT, self.spent), now, now)
                self.n_requests += 1
                reserved = most_tokens(body)
                self.n_tokens += reserved
            exchange = super().post(path, body, timeout)
            refused = exchange.failure is None and exchange.status == TOO_MANY
            with self._lock:
                used = 0 if refused else used_tokens(exchange)
                self.n_tokens += (reserved if used is None else used) - reserved
            if not refused:
                self._note(exchange)
                return exchange
            asked = retry_after(exchange.headers.get("retry-after"), time.time())
            pause = min(LONGEST_WAIT_S, wait_s if asked is None else asked)
            if time.monotonic() + pause > deadline:
                return exchange
            said = "no Retry-After" if asked is None else f"Retry-After {asked:g} s"
            self._waits.put(f"429, {said}: waited {pause:g} s and sent the request again")
            wait_s *= 2
            if self._stopped.wait(pause):
                return exchange

    def send(self, path: str, body: bytes | None, timeout: float) -> Exchange:
        """One request, with the key struck out of what comes back."""
        return self._without_key(super().send(path, body, timeout))

    def _note(self, exchange: Exchange) -> None:
        """Takes down which model, build and id an answer names."""
        try:
            said: Any = json.loads(exchange.body) if exchange.ok else None
        except (ValueError, RecursionError):
            return
        if not isinstance(said, dict):
            return
        fingerprint, model, answer = (
            value[:TEXT_LIMIT] if isinstance(value := said.get(name), str) else ""
            for name in ("system_fingerprint", "model", "id")
        )
        with self._lock:
            self.fingerprints |= {fingerprint} - {""}
            self.models |= {model} - {""}
            # A server that calls all of its answers the same gives them no id.
            if answer in self._ids and len(self._ids) > 1:
                self._repeated.put(answer)
            self._ids |= {answer} - {""}

    def _without_key(self, exchange: Exchange) -> Exchange:
        secret = self._secret
        if not secret or (exchange.ok and len(secret) < LEAST_SECRET):
            return exchange
        key, mark = secret.decode(), STRUCK_OUT.decode()
        failure = exchange.failure
        if failure is not None:
            failure = replace(failure, detail=failure.detail.replace(key, mark))
        return replace(
            exchange,
            body=exchange.body.replace(secret, STRUCK_OUT),
            failure=failure,
            headers={n: v.replace(key, mark) for n, v in exchange.headers.items()},
        )


def _drained(source: queue.SimpleQueue[str]) -> Iterator[str]:
    while True:
        try:
            yield source.get_nowait()
        except queue.Empty:
            return


MAX_TOKENS = re.compile(rb'"max_tokens":(\d{1,9})[,}]')
USAGE = re.compile(rb'"usage"\s*:')
PROMPT_BYTES = 4
"""Bytes of a request per token of its prompt: English text has a little more than four."""


def most_tokens(body: bytes) -> int:
    """What a request may come to before its answer says so: its limit, and its prompt by size."""
    limit = MAX_TOKENS.search(body)
    return len(body) // PROMPT_BYTES + (int(limit[1]) if limit is not None else 0)


def used_tokens(exchange: Exchange) -> int | None:
    """Tokens of prompt and answer by the answer's `usage`; None where it does not say."""
    if not USAGE.search(exchange.body):
        return None
    try:
        document: Any = json.loads(exchange.body)
        usage = document["usage"]
        counts = usage["prompt_tokens"], usage["completion_tokens"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    # Less than nothing would give back what the limit has counted.
    known = all(type(count) is int and 0 <= count < MAX_COUNT for count in counts)
    return sum(counts) if known else None


def retry_after(text: str | None, now: float) -> float | None:
    """Seconds to wait by a Retry-After header, a number or a date (RFC 9110, 10.2.3); None for
    none. `now`: seconds since the epoch."""
    if text is None:
        return None
    try:
        return max(0.0, float(text)) if text.strip().isdecimal() else _until(text, now)
    except (ValueError, TypeError, OverflowError):
        return None


def _until(text: str, now: float) -> float:
    return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - now)
