from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fake_faults import Faults
from fake_faulty_server import FaultyServer
from fake_llama_server import (
    as_asked,
    launch_identity,
    parse_command_line,
    write_fake_server,
)
from mock_client import Client, chat_body, ids_of, text_of, together

PROMPTS = [f"Tell me about subject number {index}." for index in range(4)]


@dataclass
class Running:
    """One launched fake with its log."""

    process: subprocess.Popen[bytes]
    client: Client
    log: Path

    def log_text(self) -> str:
        return self.log.read_text()


Launch = Callable[..., Running]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Launch fakes as the driver does; end them all afterwards."""
    running: list[subprocess.Popen[bytes]] = []

    def start(parallel: int = 4, flags: tuple[str, ...] = (), **faults: Any) -> Running:
        server = write_fake_server(tmp_path, **faults)
        key = tmp_path / "key"
        key.write_text("secret\n")
        log = tmp_path / "server.log"
        words = f"-m toy.gguf -c {2048 * parallel} --parallel {parallel} --host 127.0.0.1 --port 0"
        more = f"--api-key-file {key} --metrics --slots --cache-ram 0 --no-kv-unified -cb -ctk f16"
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                [str(server), *words.split(), *more.split(), "--log-colors", "off", *flags],
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
        running.append(process)
        return Running(process, Client(port_from(process, log)), log)

    yield start
    for process in running:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


Serve = Callable[..., Client]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Run fakes in this process, for what needs none of its own; end them all afterwards."""
    with ExitStack() as running:

        def start(parallel: int = 4, flags: tuple[str, ...] = (), **faults: Any) -> Client:
            words = f"-m toy.gguf -c {2048 * parallel} --parallel {parallel} --api-key secret"
            line = parse_command_line([*words.split(), "--metrics", *flags])
            planted = as_asked(line, Faults(**faults))
            server = FaultyServer(launch_identity(line, planted), 0, planted)
            return Client(running.enter_context(server).port)

        yield start


def port_from(process: subprocess.Popen[bytes], log: Path) -> int:
    marker = "listening on http://127.0.0.1:"
    wait_until(lambda: marker in log.read_text() or process.poll() is not None)
    assert marker in log.read_text(), log.read_text()
    return int(log.read_text().split(marker)[1].split("\n")[0])


def wait_until(condition: Callable[[], object], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def status_of(client: Client, path: str) -> int:
    return client.call(path)[0]


def chat_status(client: Client, prompt: str, **more: Any) -> int:
    return client.call("/v1/chat/completions", chat_body(prompt, **more))[0]


# --- without faults ---


def test_without_faults_it_is_a_llama_server(launch: Launch) -> None:
    running = launch()
    client = running.client
    props = client.get("/props")
    assert (props["total_slots"], props["default_generation_settings"]["n_ctx"]) == (4, 2048)
    assert props["model_path"] == "toy.gguf"
    loaded = client.wave(PROMPTS)
    assert client.metric("n_decode_total") < 2 * 24
    assert [text_of(client.chat(p)) for p in PROMPTS] == [text_of(reply) for reply in loaded]
    assert status_of(Client(client.port, "wrong"), "/props") == 401
    assert "n_slots = 4, n_ctx_slot = 2048, kv_unified = 'false'" in running.log_text()


def test_sigterm_ends_it_with_exit_code_0(launch: Launch) -> None:
    process = launch().process
    process.terminate()
    assert process.wait(10) == 0


def test_it_says_its_version_on_stderr_and_its_flags_on_stdout(tmp_path: Path) -> None:
    server = str(write_fake_server(tmp_path))
    version = subprocess.run([server, "--version"], capture_output=True, text=True, check=True)
    assert (version.stdout, version.stderr[:9]) == ("", "version: ")
    usage = subprocess.run([server, "--help"], capture_output=True, text=True, check=True)
    flags = {"--parallel", "--metrics", "--slots", "--cache-ram", "--no-kv-unified", "--port"}
    assert flags <= set(usage.stdout.replace(",", " ").split())


def test_an_occupied_port_is_exit_code_1(serve: Serve, tmp_path: Path) -> None:
    port = serve().port
    write_fake_server(tmp_path)
    second = subprocess.run(
        [str(tmp_path / "llama-server"), "--port", str(port)], capture_output=True, text=True
    )
    assert second.returncode == 1
    assert "couldn't bind HTTP server socket" in second.stderr


@pytest.mark.parametrize(
    ("flags", "path"), [(("--no-slots",), "/slots"), ((), "/metrics")], ids=["slots", "metrics"]
)
def test_endpoints_can_be_off(serve: Serve, flags: tuple[str, ...], path: str) -> None:
    client = serve(flags=flags, no_metrics=path == "/metrics")
    assert status_of(client, path) == 501


def test_the_behaviour_of_the_mock_can_be_chosen(serve: Serve) -> None:
    client = serve(behaviour={"batch_divergence": "score"})
    loaded = client.wave(PROMPTS)
    assert all(text_of(client.chat(p)) != text_of(r) for p, r in zip(PROMPTS, loaded, strict=True))


# --- what it says of itself ---


@pytest.mark.parametrize(
    ("fault", "parallel", "slots", "slot_ctx"),
    [
        ({"slots_override": 4}, 1, 4, 512),
        ({"cap_parallel": 2}, 4, 2, 4096),
        ({"cap_parallel": 2}, 1, 1, 2048),
        ({"wrong_ctx": 1024}, 4, 4, 1024),
    ],
)
def test_it_can_have_other_slots_or_context_than_asked(
    serve: Serve, fault: dict[str, Any], parallel: int, slots: int, slot_ctx: int
) -> None:
    props = serve(parallel, **fault).get("/props")
    assert props["total_slots"] == slots
    assert props["default_generation_settings"]["n_ctx"] == slot_ctx


def test_it_can_take_any_key(serve: Serve) -> None:
    client = serve(ignore_api_key=True)
    assert Client(client.port, "wrong").call("/tokenize", {"content": "a"})[0] == 200


@pytest.mark.parametrize(("shape", "status"), [("state", 200), ("501", 501), ("404", 404)])
def test_slots_can_have_another_shape(serve: Serve, shape: str, status: int) -> None:
    client = serve(slots_shape=shape)
    client.chat("hello", id_slot=1)
    assert status_of(client, "/slots") == status
    if status == 200:
        assert [slot["state"] for slot in client.get("/slots")] == [0, 0, 0, 0]
        assert "is_processing" not in client.get("/slots")[1]


# --- starting and ending ---


def test_it_can_be_slow_to_get_ready(tmp_path: Path) -> None:
    server = write_fake_server(tmp_path, ready_delay_s=1.0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    client = Client(port)
    with subprocess.Popen([str(server), "--port", str(port)], stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: answers(port))
        before = {path: status_of(client, path) for path in ("/health", "/v1/models", "/props")}
        assert before == {"/health": 503, "/v1/models": 200, "/props": 503}
        assert chat_status(client, "too early") == 503
        wait_until(lambda: status_of(client, "/health") == 200)
        assert chat_status(client, "hello") == 200
        process.terminate()


def answers(port: int) -> bool:
    with suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    return False


def test_it_can_die_at_the_start(tmp_path: Path) -> None:
    server = write_fake_server(tmp_path, die_at_start=3, die_message="no such model")
    ended = subprocess.run([str(server), "--port", "0"], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (3, "no such model\n")


def test_it_can_ignore_sigterm(launch: Launch) -> None:
    running = launch(ignore_sigterm=True)
    running.process.terminate()
    assert text_of(running.client.chat("still here"))
    assert running.process.poll() is None


def test_its_launcher_can_stay_in_between(launch: Launch) -> None:
    running = launch(launcher_without_exec=True)
    running.process.kill()
    running.process.wait()
    assert text_of(running.client.chat("the child outlives its launcher"))


@pytest.mark.parametrize("status", [-signal.SIGKILL, -signal.SIGSEGV, 7])
def test_it_can_die_under_concurrent_load_only(launch: Launch, status: int) -> None:
    running = launch(die_when_concurrent=int(status), die_after=4)
    client = running.client
    client.wave(PROMPTS)
    for prompt in PROMPTS:
        client.chat(prompt)
    with pytest.raises((OSError, http.client.HTTPException)):
        client.wave(PROMPTS)
    assert running.process.wait(10) == status
    assert "GGML_ASSERT" in running.log_text()


def test_it_can_flood_its_log(launch: Launch) -> None:
    running = launch(stderr_flood_bytes=200_000)
    before = running.log.stat().st_size
    assert before > 200_000
    running.client.chat("hello")
    assert running.log.stat().st_size > before + 200_000


# --- wrong answers ---


def test_every_answer_can_be_an_error_object(serve: Serve) -> None:
    assert "error" in serve(error_object_200=True).chat("hello")


def test_one_prompt_can_fail_always(serve: Serve) -> None:
    client = serve(http_500_for_prompt_containing="number 2")
    assert [chat_status(client, prompt) for prompt in PROMPTS] == [200, 200, 500, 200]


def test_only_the_first_reply_can_be_odd(serve: Serve) -> None:
    client = serve(first_reply_odd=True)
    first, *others = [text_of(client.chat("hello")) for _ in range(4)]
    assert len(set(others)) == 1
    assert first not in others


def test_answers_can_differ_from_run_to_run(serve: Serve) -> None:
    client = serve(noise_serial=True)
    assert len({text_of(client.chat("hello")) for _ in range(4)}) == 4


def test_it_can_ignore_a_ban(serve: Serve) -> None:
    client = serve(ignore_logit_bias=True)
    plain = ids_of(client.chat("hello"))
    assert ids_of(client.chat("hello", logit_bias=[[plain[0], False]])) == plain


def test_it_can_report_a_cache_and_drafts(serve: Serve) -> None:
    reply = serve(cached_tokens_report=5, draft_n_report=7).chat("hello")
    assert (reply["timings"]["cache_n"], reply["timings"]["draft_n"]) == (5, 7)
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 5


def test_it_can_split_a_character(serve: Serve) -> None:
    _, text = serve(split_utf8=True).call("/v1/chat/completions", chat_body("hello"))
    assert "\\xf0\\x9f" in text


# --- faults of shared batches only ---


def test_slots_can_be_busy_while_requests_queue(serve: Serve) -> None:
    client = serve(one_executor=True)
    client.wave(PROMPTS)
    assert client.metric("n_decode_total") == 4 * 24
    assert client.metric("n_busy_slots_per_decode") > 1


def test_an_answer_can_hold_a_companions_text(serve: Serve) -> None:
    client = serve(mix_donor_at=3)
    mixed = [text_of(reply) for reply in client.wave(PROMPTS)]
    pair = [text_of(reply) for reply in client.wave(PROMPTS[:2])]
    alone = [text_of(client.chat(prompt)) for prompt in PROMPTS]
    assert pair == alone[:2]
    for lane, text in enumerate(mixed):
        others = [prompt for prompt in PROMPTS if prompt != PROMPTS[lane]]
        assert sum(prompt in text for prompt in others) == 1
        assert PROMPTS[lane] not in text


@pytest.mark.parametrize("what", ["finish_reason", "token_count", "tool_args", "reasoning"])
def test_more_than_the_content_can_differ_under_load(serve: Serve, what: str) -> None:
    client = serve(under_load=what)
    loaded = client.wave(PROMPTS)
    alone = [client.chat(prompt) for prompt in PROMPTS]
    assert [text_of(reply) for reply in loaded] == [text_of(reply) for reply in alone]
    for one, other in zip(alone, loaded, strict=True):
        assert differences(one, other) == {what}


def differences(one: Any, other: Any) -> set[str]:
    def facts(reply: Any) -> dict[str, object]:
        message = reply["choices"][0]["message"]
        calls = message.get("tool_calls", [{"function": None}])
        return {
            "finish_reason": reply["choices"][0]["finish_reason"],
            "token_count": (reply["usage"]["completion_tokens"], len(ids_of(reply))),
            "tool_args": calls[0]["function"],
            "reasoning": message.get("reasoning_content"),
        }

    left, right = facts(one), facts(other)
    return {name for name in left if left[name] != right[name]}


def outcome(client: Client, lane: int) -> str:
    """What a caller with a short patience sees."""
    try:
        body = chat_body(PROMPTS[lane], id_slot=lane)
        status, text = client.call("/v1/chat/completions", body, timeout=1.0)
        json.loads(text)
    except TimeoutError:
        return "timeout"
    except ConnectionResetError:
        return "reset"
    except http.client.IncompleteRead:
        return "short body"
    except json.JSONDecodeError:
        return "bad json"
    except urllib.error.URLError as error:
        return type(error.reason).__name__
    return str(status)


@pytest.mark.parametrize(
    ("loss", "seen"),
    [
        ("http_500", "500"),
        ("hang", "timeout"),
        ("hang_busy", "timeout"),
        ("reset", "reset"),
        ("truncated_json", "short body"),
        ("bad_json", "bad json"),
    ],
)
def test_one_concurrent_request_can_be_lost(serve: Serve, loss: str, seen: str) -> None:
    client = serve(fail_nth_concurrent={loss: 6})
    assert together(lambda lane: outcome(client, lane), 4) == ["200"] * 4
    assert [outcome(client, lane) for lane in range(4)] == ["200"] * 4
    hit = together(lambda lane: outcome(client, lane), 4)
    assert sorted(hit) == sorted(["200", "200", "200", seen])
    busy = sum(slot["is_processing"] for slot in client.get("/slots"))
    assert busy == (loss == "hang_busy")


def test_a_loss_hits_nobody_in_a_serial_run(serve: Serve) -> None:
    client = serve(fail_nth_concurrent={"http_500": 1}, die_when_concurrent=9)
    assert [outcome(client, lane) for lane in (0, 1, 2, 3)] == ["200"] * 4


def test_several_losses_can_be_planted(serve: Serve) -> None:
    client = serve(fail_nth_concurrent={"http_500": 1, "bad_json": 3})
    seen = together(lambda lane: outcome(client, lane), 4)
    assert sorted(seen) == ["200", "200", "500", "bad json"]


def test_the_process_goes_even_with_hanging_clients(launch: Launch) -> None:
    running = launch(fail_nth_concurrent={"hang": 1})
    waiting = threading.Thread(
        target=lambda: together(lambda lane: outcome(running.client, lane), 4)
    )
    waiting.start()
    wait_until(lambda: running.client.metric("tokens_predicted_total") == 4 * 24)
    running.process.terminate()
    assert running.process.wait(10) == 0
    waiting.join()
