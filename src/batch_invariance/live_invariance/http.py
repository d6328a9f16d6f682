"""HTTP to one server, by `urllib` alone: bounded reads, no redirects, no retries.

A failed request is data: `Client.send` returns an `Exchange` whose `failure` says what happened
and raises nothing.
"""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from batch_invariance.invariance_diff.model import Failure, FailureKind

MAX_BODY_BYTES = 64 * 1024 * 1024
CHUNK_BYTES = 256 * 1024
JSON_HEADERS = {"Content-Type": "application/json", "Accept": "application/json"}


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer; `status`, `body` and `headers` hold where `failure` is None.

    Header names are in lower case. Times are monotonic seconds: just before the request is sent,
    and once the answer is read.
    """

    status: int
    body: bytes
    failure: Failure | None
    dispatch_ts: float
    complete_ts: float
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """An answer with status 200."""
        return self.failure is None and self.status == 200


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class Client:
    """Talks to `base_url` with one key. Safe to use from several threads. `proxies`: go through
    those that the environment names, which a server on the loopback must not."""

    def __init__(self, base_url: str, api_key: str | None, proxies: bool = False) -> None:
        self.base_url = base_url
        self._headers = dict(JSON_HEADERS)
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        handler = urllib.request.ProxyHandler(None if proxies else {})
        self._opener = urllib.request.build_opener(handler, _NoRedirect())

    def with_key(self, api_key: str) -> Client:
        """The same server with another key."""
        return Client(self.base_url, api_key)

    def get(self, path: str, timeout: float) -> Exchange:
        """GET `path`, within `timeout` seconds in all."""
        return self.send(path, None, timeout)

    def post(self, path: str, body: bytes, timeout: float) -> Exchange:
        """POST a JSON `body` to `path`, within `timeout` seconds in all."""
        return self.send(path, body, timeout)

    def send(self, path: str, body: bytes | None, timeout: float) -> Exchange:
        """One request, one answer, or what became of it."""
        request = urllib.request.Request(self.base_url + path, data=body, headers=self._headers)
        start = time.monotonic()
        try:
            try:
                response = self._opener.open(request, timeout=timeout)
            except urllib.error.HTTPError as error:
                with error:
                    data = _read_bounded(error, start + timeout)
                return Exchange(
                    error.code, data, None, start, time.monotonic(), _headers(error.headers)
                )
            with response:
                data = _read_bounded(response, start + timeout)
            return Exchange(
                response.status, data, None, start, time.monotonic(), _headers(response.headers)
            )
        except (OSError, http.client.HTTPException, ValueError) as error:
            return Exchange(0, b"", _failure(error), start, time.monotonic())


def _headers(message: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in message.items()}


class _TooLarge(ValueError):
    """More than MAX_BODY_BYTES."""


def _read_bounded(response: Any, deadline: float) -> bytes:
    chunks: list[bytes] = []
    total = 0
    # One receive at a time, so that a server that drips cannot outlast the deadline.
    while chunk := response.read1(CHUNK_BYTES):
        total += len(chunk)
        if total > MAX_BODY_BYTES:
            raise _TooLarge(f"the body has more than {MAX_BODY_BYTES} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError("the answer did not end in time")
        chunks.append(chunk)
    # A sized read of a body that breaks off ends like a whole one; what is still owed tells.
    owed = getattr(getattr(response, "fp", None), "length", None)
    owed = getattr(response, "length", owed)
    if owed:
        raise http.client.IncompleteRead(b"", owed)
    return b"".join(chunks)


def _failure(error: Exception) -> Failure:
    cause: object = error
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, Exception):
        cause = error.reason
    detail = f"{type(cause).__name__}: {cause}"[:300]
    if isinstance(cause, _TooLarge):
        return Failure(FailureKind.OVERSIZED_BODY, detail)
    if isinstance(cause, TimeoutError):
        return Failure(FailureKind.TIMEOUT, detail)
    if isinstance(cause, http.client.IncompleteRead):
        return Failure(FailureKind.TRUNCATED_BODY, detail)
    return Failure(FailureKind.CONNECTION, detail)
