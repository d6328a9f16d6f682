from __future__ import annotations

import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from batch_invariance.errors import UsageError
from batch_invariance.live_invariance.mock_model import VOCABULARY, tokenize
from batch_invariance.live_invariance.mock_server import BatchDivergence, MockBehaviour, MockServer
from mock_client import Client, chat_body, ids_of, logprobs_of, text_of, together, tokens_of

PROMPTS = [f"Tell me about subject number {index}." for index in range(4)]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with MockServer(parallel=4, ctx=2048, api_key="secret") as server:
        yield Client(server.port)


def comparable(reply: dict[str, object]) -> object:
    """What must not change from one request to the next."""
    return (reply["choices"], reply["usage"])


# --- what a request alone sees ---


def test_the_same_prompt_gets_the_same_answer_again_on_every_slot(client: Client) -> None:
    answers = [comparable(client.chat("hello", id_slot=slot)) for slot in (0, 1, 2, 3, 0)]
    assert all(answer == answers[0] for answer in answers)


def test_another_server_gives_the_same_answer(client: Client) -> None:
    with MockServer(parallel=1, ctx=2048) as other:
        theirs = Client(other.port).chat("hello", logprobs=True)
    assert theirs["choices"] == client.chat("hello")["choices"]


def test_different_prompts_get_different_answers(client: Client) -> None:
    assert len({text_of(client.chat(prompt)) for prompt in PROMPTS}) == len(PROMPTS)


def test_an_answer_has_the_real_servers_shape(client: Client) -> None:
    reply = client.chat("hello", max_tokens=7)
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["choices"][0]["message"]["role"] == "assistant"
    assert reply["usage"]["completion_tokens"] == reply["timings"]["predicted_n"] == 7
    assert reply["timings"]["prompt_n"] == reply["usage"]["prompt_tokens"]
    assert reply["timings"]["cache_n"] == 0
    assert "".join(token["token"] for token in tokens_of(reply)) == text_of(reply)
    for token in tokens_of(reply):
        first = token["top_logprobs"][0]
        assert {**first, "top_logprobs": token["top_logprobs"]} == token
        assert bytes(token["bytes"]).decode() == token["token"]


def test_logprobs_are_float32_values_sorted_and_possible(client: Client) -> None:
    for token in tokens_of(client.chat("hello", top_logprobs=10)):
        listed = [one["logprob"] for one in token["top_logprobs"]]
        assert len(listed) == 10
        assert listed == sorted(listed, reverse=True)
        assert [struct.unpack("<f", struct.pack("<f", one))[0] for one in listed] == listed
        assert sum(2.718281828**one for one in listed) < 1.0


def test_without_logprobs_none_are_sent(client: Client) -> None:
    assert "logprobs" not in client.chat("hello", logprobs=False)["choices"][0]


def test_some_prompts_end_by_themselves_unless_told_not_to(client: Client) -> None:
    ended = next(
        (prompt, reply)
        for prompt in (f"prompt {index}" for index in range(200))
        if (reply := client.chat(prompt, ignore_eos=False, max_tokens=60))["choices"][0][
            "finish_reason"
        ]
        == "stop"
    )
    prompt, short = ended
    full = client.chat(prompt, max_tokens=60)
    assert short["usage"]["completion_tokens"] < 60 == full["usage"]["completion_tokens"]
    assert tokens_of(short)[-1]["token"] == ""
    assert ids_of(full)[: len(ids_of(short)) - 1] == ids_of(short)[:-1]


@pytest.mark.parametrize("spelling", ["pairs-false", "pairs-number", "object"])
def test_a_ban_takes_the_next_best_token_and_changes_the_rest(
    client: Client, spelling: str
) -> None:
    plain = client.chat("hello")
    banned = ids_of(plain)[0]
    bias = {
        "pairs-false": [[banned, False]],
        "pairs-number": [[banned, -100]],
        "object": {str(banned): -100},
    }[spelling]
    other = client.chat("hello", logit_bias=bias)
    runner_up = tokens_of(plain)[0]["top_logprobs"][1]
    assert ids_of(other)[0] == runner_up["id"]
    assert logprobs_of(other)[0] == runner_up["logprob"]
    # The reported candidates are those before the bias, as on the real server.
    assert tokens_of(other)[0]["top_logprobs"] == tokens_of(plain)[0]["top_logprobs"]
    assert ids_of(other)[1:] != ids_of(plain)[1:]
    assert banned not in ids_of(other)


def test_a_broken_bias_is_refused(client: Client) -> None:
    status, text = client.call("/v1/chat/completions", chat_body("x", logit_bias=[["a"]]))
    assert (status, "logit_bias" in text) == (400, True)


# --- counting ---


def test_requests_alone_share_no_decode(client: Client) -> None:
    before = {
        name: client.metric(name)
        for name in ("n_decode_total", "tokens_predicted_total", "prompt_tokens_total")
    }
    replies = [client.chat(prompt, id_slot=2, max_tokens=5 + i) for i, prompt in enumerate(PROMPTS)]
    predicted = sum(reply["timings"]["predicted_n"] for reply in replies)
    assert client.metric("n_decode_total") - before["n_decode_total"] == predicted
    assert client.metric("tokens_predicted_total") - before["tokens_predicted_total"] == predicted
    assert client.metric("prompt_tokens_total") - before["prompt_tokens_total"] == sum(
        reply["usage"]["prompt_tokens"] for reply in replies
    )


def test_a_wave_shares_its_decodes_and_its_answers_do_not_change() -> None:
    with MockServer(parallel=4, ctx=2048, api_key="secret") as server:
        client = Client(server.port)
        replies = client.wave(PROMPTS)
        decodes = client.metric("n_decode_total")
        busy = client.metric("n_busy_slots_per_decode")
        alone = [comparable(client.chat(prompt)) for prompt in PROMPTS]
    assert 24 <= decodes <= 36
    assert busy == pytest.approx(4 * 24 / decodes, rel=1e-4)
    assert [comparable(reply) for reply in replies] == alone


def test_requests_pinned_to_one_slot_wait_for_each_other(client: Client) -> None:
    before = client.metric("n_decode_total")
    together(lambda index: client.chat(PROMPTS[index], id_slot=1), 3)
    assert client.metric("n_decode_total") - before == 3 * 24


def test_a_slot_out_of_range_is_ignored(client: Client) -> None:
    assert text_of(client.chat("hello", id_slot=17)) == text_of(client.chat("hello"))


def test_a_long_prompt_takes_more_decodes() -> None:
    with MockServer(parallel=1, ctx=8192) as server:
        client = Client(server.port)
        reply = client.chat("word " * 4100, max_tokens=3)
        assert 4096 < reply["usage"]["prompt_tokens"] <= 3 * 2048
        assert client.metric("n_decode_total") == 3 + 2


def test_the_first_tick_waits_for_a_connection_that_has_not_spoken_yet() -> None:
    patient = MockBehaviour(gather_s=0.0)
    with MockServer(parallel=2, ctx=2048, behaviour=patient) as server:
        client = Client(server.port)
        # A request alone first, so that no companion is expected from experience.
        client.chat("hello", max_tokens=1)
        late = socket.create_connection(("127.0.0.1", server.port))
        raw = json.dumps(chat_body("late", id_slot=1)).encode()
        early = threading.Thread(target=client.chat, args=("early",), kwargs={"id_slot": 0})
        early.start()
        wait_until(lambda: server.engine.counters().deferred == 1)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: {len(raw)}\r\n\r\n"
        late.sendall(head.encode() + raw)
        response = http.client.HTTPResponse(late)
        response.begin()
        assert response.status == 200
        early.join()
        late.close()
        assert client.metric("n_decode_total") == 1 + 24


def wait_until(condition: object, limit_s: float = 5.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


# --- divergence under load ---


def alone_and_in_a_wave(behaviour: MockBehaviour) -> list[tuple[dict[str, object], ...]]:
    with MockServer(parallel=4, ctx=2048, behaviour=behaviour) as server:
        client = Client(server.port)
        # A new server waits for a whole wave, so the wave goes first.
        loaded = client.wave(PROMPTS)
        alone = [client.chat(prompt, id_slot=lane) for lane, prompt in enumerate(PROMPTS)]
        return list(zip(alone, loaded, strict=True))


@pytest.mark.parametrize("kind", list(BatchDivergence))
def test_each_divergence_shows_in_its_own_way_only(kind: BatchDivergence) -> None:
    for alone, loaded in alone_and_in_a_wave(MockBehaviour(batch_divergence=kind)):
        changed = {
            "words": sum(
                a != b for a, b in zip(text_of(alone).split(), text_of(loaded).split(), strict=True)
            ),
            "ids": sum(a != b for a, b in zip(ids_of(alone), ids_of(loaded), strict=True)),
            "logprobs": sum(
                a != b for a, b in zip(logprobs_of(alone), logprobs_of(loaded), strict=True)
            ),
            "finish": alone["choices"][0]["finish_reason"]  # type: ignore[index]
            != loaded["choices"][0]["finish_reason"],  # type: ignore[index]
        }
        assert changed == {
            "words": int(kind is BatchDivergence.SCORE),
            "ids": int(kind in (BatchDivergence.SCORE, BatchDivergence.TOKEN)),
            "logprobs": int(kind is BatchDivergence.LOGPROB),
            "finish": kind is BatchDivergence.FINISH_REASON,
        }
        assert alone["usage"] == loaded["usage"]


def test_the_logprob_divergence_is_one_unit_in_the_last_place() -> None:
    behaviour = MockBehaviour(batch_divergence=BatchDivergence.LOGPROB)
    for alone, loaded in alone_and_in_a_wave(behaviour):
        moved = [
            int.from_bytes(struct.pack("<f", b), "little")
            - int.from_bytes(struct.pack("<f", a), "little")
            for a, b in zip(logprobs_of(alone), logprobs_of(loaded), strict=True)
        ]
        assert sorted(map(abs, moved))[-2:] == [0, 1]


def test_a_threshold_above_the_slots_never_strikes() -> None:
    behaviour = MockBehaviour(batch_divergence=BatchDivergence.SCORE, batch_threshold=5)
    assert all(text_of(a) == text_of(b) for a, b in alone_and_in_a_wave(behaviour))


def test_a_fraction_strikes_the_same_prompts_each_time() -> None:
    behaviour = MockBehaviour(batch_divergence=BatchDivergence.SCORE, divergence_fraction=0.5)
    struck = [[text_of(a) != text_of(b) for a, b in alone_and_in_a_wave(behaviour)] for _ in "ab"]
    assert struck[0] == struck[1]
    assert {True, False} == set(struck[0])


@pytest.mark.parametrize("bad", [{"batch_threshold": 0}, {"divergence_fraction": 1.5}])
def test_an_impossible_behaviour_is_refused(bad: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="mock"):
        MockBehaviour(**bad)  # type: ignore[arg-type]


# --- the other routes ---


def test_props_say_slots_and_context(client: Client) -> None:
    props = client.get("/props")
    assert props["total_slots"] == 4
    assert props["default_generation_settings"]["n_ctx"] == 2048
    assert {"model_path", "model_alias", "build_info", "chat_template"} <= props.keys()
    assert props["endpoint_slots"] is props["endpoint_metrics"] is True


def test_an_idle_slot_keeps_its_last_task_and_is_not_busy() -> None:
    with MockServer(parallel=2, ctx=1024) as server:
        client = Client(server.port)
        assert [slot.get("id_task") for slot in client.get("/slots")] == [None, None]
        client.chat("hello", id_slot=1)
        slots = client.get("/slots")
    assert ["id_task" in slot for slot in slots] == [False, True]
    assert [slot["is_processing"] for slot in slots] == [False, False]
    assert [slot["n_ctx"] for slot in slots] == [1024, 1024]


def test_a_busy_slot_shows() -> None:
    slow = MockBehaviour(tick_s=0.05)
    with MockServer(parallel=2, ctx=1024, behaviour=slow) as server:
        client = Client(server.port)
        worker = threading.Thread(target=client.chat, args=("hello",), kwargs={"max_tokens": 4})
        worker.start()
        wait_until(lambda: any(slot["is_processing"] for slot in client.get("/slots")))
        worker.join()
        assert not any(slot["is_processing"] for slot in client.get("/slots"))


@pytest.mark.parametrize("content", ["", "two words", "émoji 🙂 漢字\0 <|im_end|>", "x" * 500])
def test_the_template_and_the_tokenizer_agree_with_the_usage(client: Client, content: str) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]
    _, templated = client.call("/apply-template", {"messages": messages})
    prompt = json.loads(templated)["prompt"]
    _, tokenized = client.call("/tokenize", {"content": prompt, "with_pieces": True})
    pieces = json.loads(tokenized)["tokens"]
    reply = client.chat(content, messages=messages, max_tokens=1)
    assert "".join(piece["piece"] for piece in pieces) == prompt
    assert reply["usage"]["prompt_tokens"] == len(pieces)


def test_an_answer_tokenizes_to_its_own_ids(client: Client) -> None:
    reply = client.chat("hello")
    assert [piece.token_id for piece in tokenize(text_of(reply))] == ids_of(reply)
    assert len(set(VOCABULARY)) == 64


def test_a_request_without_room_is_refused_with_its_numbers(client: Client) -> None:
    status, text = client.call("/v1/chat/completions", chat_body("word " * 2030))
    error = json.loads(text)["error"]
    assert (status, error["type"]) == (400, "exceed_context_size_error")
    assert error["n_ctx"] == 2048
    assert error["n_prompt_tokens"] > 2030


@pytest.mark.parametrize("path", ["/props", "/slots", "/metrics", "/nowhere"])
def test_a_wrong_key_is_refused(client: Client, path: str) -> None:
    status, text = Client(client.port, "wrong").call(path)
    assert (status, json.loads(text)["error"]["type"]) == (401, "authentication_error")


@pytest.mark.parametrize("path", ["/health", "/v1/models"])
def test_two_routes_are_open(client: Client, path: str) -> None:
    assert Client(client.port, "wrong").call(path)[0] == 200


def test_nonsense_gets_an_error_object(client: Client) -> None:
    assert client.call("/nowhere")[0] == 404
    assert client.call("/v1/chat/completions", {"max_tokens": 1})[0] == 400
    assert client.call("/v1/chat/completions", ["no", "object"])[0] == 400


def test_one_connection_serves_many_requests(client: Client) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", client.port)
    headers = {"Authorization": "Bearer secret"}
    for _ in range(3):
        connection.request("POST", "/v1/chat/completions", json.dumps(chat_body("a")), headers)
        assert connection.getresponse().read()
    connection.close()


# --- stopping ---


def ask_a_server_that_stops(client: Client) -> None:
    with suppress(OSError, http.client.HTTPException):
        assert client.call("/v1/chat/completions", chat_body("hello"))[0] == 503


def test_a_stop_leaves_no_thread_and_no_port_even_while_busy() -> None:
    threads = set(threading.enumerate())
    with MockServer(parallel=2, ctx=2048, behaviour=MockBehaviour(tick_s=0.5)) as server:
        worker = threading.Thread(target=ask_a_server_that_stops, args=(Client(server.port),))
        worker.start()
        wait_until(lambda: server.engine.counters().processing == 1)
        silent = socket.create_connection(("127.0.0.1", server.port))
        began = time.monotonic()
    assert time.monotonic() - began < 2
    worker.join()
    silent.close()
    assert set(threading.enumerate()) <= threads
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", server.port), timeout=1)
