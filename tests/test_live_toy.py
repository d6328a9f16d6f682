"""Toy models on a real llama-server: they load, answer, and give valid logprobs."""

from __future__ import annotations

import json
import math
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from batch_invariance.formats.toy_gguf import ToySpec, toy_model_bytes

pytestmark = pytest.mark.live

START_SECONDS = 60
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _call(url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with OPENER.open(request, timeout=START_SECONDS) as reply:
        return json.load(reply)


def _wait_ready(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            pytest.fail(f"the server ended with {server.returncode}: {log.read_text()[-2000:]}")
        try:
            _call(f"{url}/health")
            return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.02)
    pytest.fail(f"the server was not ready: {log.read_text()[-2000:]}")


@contextmanager
def _server(binary: Path, model: Path, *flags: str) -> Iterator[str]:
    port = _free_port()
    log = model.with_suffix(".log")
    argv = [str(binary), "-m", str(model), "--host", "127.0.0.1", "--port", str(port), *flags]
    with log.open("wb") as sink:
        server = subprocess.Popen(argv, stdout=sink, stderr=sink)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_ready(server, url, log)
        yield url
    finally:
        server.kill()
        server.wait()


def _ask(url: str, prompt: str) -> Any:
    reply = _call(
        f"{url}/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": 24,
            "temperature": 0,
            "seed": 1,
            "cache_prompt": False,
            "logprobs": True,
            "top_logprobs": 5,
        },
    )
    return reply["choices"][0]


@pytest.mark.parametrize(
    "spec", ["f32", "f16,twins", "bf16", "q8_0", "q4_0", "f16,moe", "q8_0,moe,twins"]
)
def test_toy_model_answers_with_valid_logprobs(
    spec: str, live_server: Path, tmp_path: Path
) -> None:
    model = tmp_path / "toy.gguf"
    model.write_bytes(toy_model_bytes(ToySpec.parse(spec)))
    with _server(live_server, model, "--parallel", "2", "-c", "2048") as url:
        assert _call(f"{url}/props")["total_slots"] == 2
        answers = [
            _ask(url, prompt) for prompt in ("Tell me about rivers.", "\0 naïve 日本 🙂", "")
        ]
        again = _ask(url, "Tell me about rivers.")
    for answer in answers:
        tokens = answer["logprobs"]["content"]
        assert answer["finish_reason"] == "length"
        assert len(tokens) == 24
        assert answer["message"]["content"].isprintable()
        for token in tokens:
            best = token["top_logprobs"]
            assert len(best) == 5
            assert math.isfinite(token["logprob"])
            assert token["logprob"] == best[0]["logprob"] <= 0
    assert again["logprobs"]["content"] == answers[0]["logprobs"]["content"]
    assert answers[0]["message"]["content"] != answers[1]["message"]["content"]


def test_a_quantised_cache_fits_the_heads(live_server: Path, tmp_path: Path) -> None:
    model = tmp_path / "toy.gguf"
    model.write_bytes(toy_model_bytes(ToySpec.parse("q8_0")))
    with _server(live_server, model, "-c", "512", "-ctk", "q8_0", "-ctv", "q8_0") as url:
        assert _ask(url, "Tell me about rivers.")["finish_reason"] == "length"
