"""A plain urllib client for the mock and the fake server, as a stranger would write it."""

from __future__ import annotations

import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Client:
    """Talks to one server on the loopback interface."""

    port: int
    key: str = "secret"

    def call(self, path: str, body: object = None, timeout: float = 20) -> tuple[int, str]:
        """Give status and body text; connection troubles raise."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {self.key}"},
        )
        try:
            with _OPENER.open(request, timeout=timeout) as response:
                return response.status, response.read().decode("utf-8", "backslashreplace")
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def get(self, path: str) -> Any:
        """Give the JSON of a route that must answer 200."""
        status, text = self.call(path)
        assert status == 200, text
        return json.loads(text)

    def chat(self, prompt: str, **more: Any) -> Any:
        """Complete one prompt; give the JSON."""
        status, text = self.call("/v1/chat/completions", chat_body(prompt, **more))
        assert status == 200, text
        return json.loads(text)

    def wave(self, prompts: Sequence[str], **more: Any) -> list[Any]:
        """Complete prompts released together, each on its own slot."""
        return together(lambda lane: self.chat(prompts[lane], id_slot=lane, **more), len(prompts))

    def metric(self, name: str) -> float:
        """Read one counter of `/metrics`."""
        status, text = self.call("/metrics")
        assert status == 200, text
        found = re.search(rf"^llamacpp:{name} (\S+)$", text, re.MULTILINE)
        assert found, text
        return float(found[1])


def together(work: Callable[[int], T], count: int) -> list[T]:
    """Run `work(0..count-1)` in threads released by a barrier; results in order."""
    barrier = threading.Barrier(count)

    def released(lane: int) -> T:
        barrier.wait()
        return work(lane)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(released, range(count)))


def chat_body(prompt: str, **more: Any) -> dict[str, Any]:
    """The request body that the driver sends, with changes."""
    return {
        "model": "m",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": 24,
        "temperature": 0,
        "top_k": 1,
        "seed": 1,
        "cache_prompt": False,
        "logprobs": True,
        "top_logprobs": 5,
        "stream": False,
        "ignore_eos": True,
        **more,
    }


def text_of(reply: Any) -> str:
    return str(reply["choices"][0]["message"]["content"])


def tokens_of(reply: Any) -> list[Any]:
    return list(reply["choices"][0]["logprobs"]["content"])


def ids_of(reply: Any) -> list[int]:
    return [token["id"] for token in tokens_of(reply)]


def logprobs_of(reply: Any) -> list[float]:
    return [token["logprob"] for token in tokens_of(reply)]
