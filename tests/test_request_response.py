"""The one body of an item, and every shape that an answer to it may have."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from batch_invariance.invariance_diff.digest import sha256_hex
from batch_invariance.invariance_diff.model import Completion, Failure, FailureKind, Item, Message
from batch_invariance.invariance_diff.packed import pack_floats, pack_ids
from batch_invariance.invariance_diff.request import (
    Sampling,
    ban_token,
    build_body,
    max_tokens_of,
)
from batch_invariance.invariance_diff.response import parse_response

ITEM = Item("i", (Message("system", "be brief"), Message("user", "héllo 😀")))
SAMPLING = Sampling(seed=3, max_tokens=48, top_logprobs=4)


def test_the_body_states_every_sampling_parameter() -> None:
    """What is left out the server fills from its own flags."""
    body = json.loads(build_body(ITEM, SAMPLING).data)
    assert body["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "héllo 😀"},
    ]
    assert body["temperature"] == 0.0
    assert body["cache_prompt"] is False
    assert body["stream"] is False
    assert body["ignore_eos"] is False
    assert body["logprobs"] is True
    assert body["post_sampling_probs"] is False
    assert (body["seed"], body["max_tokens"], body["top_logprobs"]) == (3, 48, 4)
    assert (body["top_k"], body["top_p"], body["min_p"], body["typical_p"]) == (1, 1.0, 0.0, 1.0)
    assert (body["repeat_penalty"], body["repeat_last_n"]) == (1.0, 0)
    assert (body["presence_penalty"], body["frequency_penalty"]) == (0.0, 0.0)
    assert (body["mirostat"], body["dry_multiplier"], body["xtc_probability"]) == (0, 0.0, 0.0)
    assert (body["dynatemp_range"], body["n"], body["logit_bias"]) == (0.0, 1, [])
    assert set(body["samplers"]) >= {"temperature", "top_k", "penalties", "dry", "xtc"}
    assert "id_slot" not in body


def test_bodies_differ_between_slots_in_id_slot_alone() -> None:
    body = build_body(ITEM, SAMPLING)
    assert body.sha256 == sha256_hex(body.data)
    for slot in (0, 3, 255):
        sent = json.loads(body.for_slot(slot))
        assert sent.pop("id_slot") == slot
        assert sent == json.loads(body.data)
        assert body.for_slot(slot).startswith(body.data[:-1])


def test_the_body_is_the_same_bytes_each_time() -> None:
    again = Item("another id", ITEM.messages, "answer", "family", 0.5)
    assert build_body(ITEM, SAMPLING) == build_body(again, SAMPLING)
    assert build_body(ITEM, SAMPLING).data.isascii()


@pytest.mark.parametrize(
    ("item", "sampling"),
    [
        (Item("i", ITEM.messages[1:]), SAMPLING),
        (Item("i", ITEM.messages, max_tokens=47), SAMPLING),
        (ITEM, Sampling(4, 48, 4)),
        (ITEM, Sampling(3, 47, 4)),
        (ITEM, Sampling(3, 48, 5)),
    ],
)
def test_what_changes_the_request_changes_the_digest(item: Item, sampling: Sampling) -> None:
    assert build_body(item, sampling).sha256 != build_body(ITEM, SAMPLING).sha256


def test_an_item_may_have_its_own_limit() -> None:
    assert max_tokens_of(ITEM, SAMPLING) == 48
    assert max_tokens_of(Item("i", ITEM.messages, max_tokens=7), SAMPLING) == 7
    assert json.loads(build_body(Item("i", (), max_tokens=7), SAMPLING).data)["max_tokens"] == 7


def test_the_ban_changes_the_bias_alone() -> None:
    plain = json.loads(build_body(ITEM, SAMPLING).data)
    banned = json.loads(build_body(ITEM, SAMPLING, ban_token(42)).data)
    assert banned.pop("logit_bias") == [[42, False]]
    plain.pop("logit_bias")
    assert banned == plain


# Answers.


def _answer(**changes: Any) -> dict[str, Any]:
    rows = [
        {
            "id": 5 + i,
            "logprob": -0.5 - i,
            "top_logprobs": [{"id": 5 + i, "logprob": -0.5 - i}, {"id": 1, "logprob": -4.0}],
        }
        for i in range(2)
    ]
    document: dict[str, Any] = {
        "choices": [
            {
                "message": {"role": "assistant", "content": "hi there"},
                "finish_reason": "stop",
                "logprobs": {"content": rows},
            }
        ],
        "usage": {"prompt_tokens": 9, "completion_tokens": 2},
        "timings": {"predicted_n": 2, "cache_n": 0},
    }
    return {**document, **changes}


def _parse(document: object, status: int = 200, max_tokens: int = 48) -> Completion | Failure:
    return parse_response(status, json.dumps(document).encode(), max_tokens)


def _read(document: object, max_tokens: int = 48) -> Completion:
    result = _parse(document, 200, max_tokens)
    assert isinstance(result, Completion)
    return result


def _choice(**changes: Any) -> dict[str, Any]:
    document = _answer()
    document["choices"][0].update(changes)
    return document


def test_a_whole_answer() -> None:
    assert _read(_answer()) == Completion(
        text="hi there",
        finish_reason="stop",
        token_ids=pack_ids([5, 6]),
        logprobs=pack_floats([-0.5, -1.5]),
        top_ids=pack_ids([5, 1, 6, 1]),
        top_logprobs=pack_floats([-0.5, -4.0, -1.5, -4.0]),
        prompt_tokens=9,
        completion_tokens=2,
        cache_n=0,
        truncated=False,
    )


def test_logprobs_keep_their_float32_bits() -> None:
    (value,) = struct.unpack("<f", b"\x01\x02\x03\xbe")
    document = _answer()
    document["choices"][0]["logprobs"]["content"][0]["logprob"] = value
    packed = _read(document).logprobs
    assert packed == pack_floats([value, -1.5])


@pytest.mark.parametrize(
    ("status", "body", "kind", "detail"),
    [
        (500, b'{"error":{"message":"boom"}}', FailureKind.HTTP_ERROR, "boom"),
        (503, b"busy", FailureKind.HTTP_ERROR, "busy"),
        (400, b'{"error":"plain"}', FailureKind.HTTP_ERROR, "plain"),
        (404, b"[]", FailureKind.HTTP_ERROR, "[]"),
        (500, b"\xff", FailureKind.HTTP_ERROR, ""),
        (200, b'{"error":{"message":"boom"}}', FailureKind.ERROR_OBJECT, "boom"),
        (200, b'{"error":{},"choices":[]}', FailureKind.ERROR_OBJECT, ""),
        (200, b'{"choices": [', FailureKind.BAD_JSON, ""),
        (200, b"", FailureKind.BAD_JSON, ""),
        (200, b"[" * 100_000, FailureKind.BAD_JSON, ""),
        (200, b"\xff\xfe", FailureKind.BAD_JSON, ""),
        (200, b"[]", FailureKind.BAD_SHAPE, "no choices"),
        (200, b"{}", FailureKind.BAD_SHAPE, "no choices"),
        (200, b'{"choices":[]}', FailureKind.BAD_SHAPE, "no choices"),
        (200, b'{"choices":[1]}', FailureKind.BAD_SHAPE, "no choices"),
        (200, b'{"choices":[{}]}', FailureKind.BAD_SHAPE, "no message"),
        (200, b'{"choices":[{"message":{"content":[]}}]}', FailureKind.BAD_SHAPE, "not text"),
    ],
)
def test_lost_answers(status: int, body: bytes, kind: FailureKind, detail: str) -> None:
    result = parse_response(status, body, 48)
    assert isinstance(result, Failure)
    assert (result.kind, result.http_status) == (kind, status)
    assert detail in result.detail


def test_a_long_error_is_cut() -> None:
    result = parse_response(500, b"x" * 10_000, 48)
    assert isinstance(result, Failure)
    assert len(result.detail) == 300


def test_an_error_field_that_is_null_is_none() -> None:
    assert _read(_answer(error=None)).text == "hi there"


def test_an_empty_answer_beside_reasoning() -> None:
    for name in ("reasoning_content", "reasoning"):
        answer = _read(_choice(message={"content": None, name: "hm"}))
        assert (answer.text, answer.reasoning) == ("", "hm")
    both = _read(_choice(message={"content": "", "reasoning": "b", "reasoning_content": "a"}))
    assert both.reasoning == "a"
    assert _read(_choice(message={"content": "", "reasoning": 1})).reasoning is None


def test_tool_calls_without_their_random_ids() -> None:
    def call(call_id: str, arguments: str) -> Completion:
        function = {"name": "f", "arguments": arguments}
        made = {"id": call_id, "type": "function", "function": function}
        return _read(_choice(message={"content": None, "tool_calls": [made]}))

    assert call("a", "{}") == call("b", "{}")
    assert call("a", "{}").tool_calls != call("a", '{"x":1}').tool_calls
    nothings: tuple[object, ...] = ([], None, "x")
    for nothing in nothings:
        assert _read(_choice(message={"content": "", "tool_calls": nothing})).tool_calls is None


def test_counts_are_never_read_as_zero() -> None:
    bare = _read({"choices": [{"message": {"content": "x"}}]})
    assert (bare.prompt_tokens, bare.completion_tokens, bare.cache_n, bare.draft_n) == (None,) * 4
    assert bare.truncated is None
    assert bare.finish_reason is None
    for odd in (-1, 1.0, "9", True, None):
        assert _read(_answer(usage={"prompt_tokens": odd})).prompt_tokens is None


def test_counts_are_found_under_each_name() -> None:
    assert _read(_answer(timings={}, usage={"completion_tokens": 7})).completion_tokens == 7
    details = {"prompt_tokens_details": {"cached_tokens": 3}}
    assert _read(_answer(timings={}, usage=details)).cache_n == 3
    assert _read(_answer(timings={}, usage={}, tokens_cached=4)).cache_n == 4
    assert _read(_answer(timings={"cache_n": 5}, usage=details)).cache_n == 5
    assert _read(_answer(timings={"draft_n": 6})).draft_n == 6
    assert _read(_answer(timings=[], usage="x")).prompt_tokens is None


@pytest.mark.parametrize(
    ("finish", "n", "max_tokens", "said", "truncated"),
    [
        ("length", 48, 48, None, False),
        ("length", 47, 48, None, True),
        ("length", None, 48, None, None),
        ("stop", 2, 48, None, False),
        (None, 2, 48, None, None),
        ("stop", 2, 48, True, True),
        ("length", 47, 48, False, False),
        ("length", 47, 48, "yes", True),
    ],
)
def test_a_length_stop_below_the_limit_is_the_end_of_the_context(
    finish: str | None, n: int | None, max_tokens: int, said: object, truncated: bool | None
) -> None:
    document = _choice(finish_reason=finish)
    document["timings"] = {} if n is None else {"predicted_n": n}
    document["usage"] = {}
    if said is not None:
        document["truncated"] = said
    assert _read(document, max_tokens).truncated is truncated


@pytest.mark.parametrize(
    ("rows", "known"),
    [
        (None, ()),
        ("x", ()),
        ([{"id": 5, "logprob": -0.5, "top_logprobs": []}], ("ids", "logprobs", "tops")),
        ([{"id": 5, "logprob": -0.5}], ("ids", "logprobs")),
        ([{"id": 5}], ("ids",)),
        ([{"logprob": -0.5}], ("logprobs",)),
        ([{"id": "5", "logprob": None}], ()),
        ([{"id": 2**31, "logprob": 1e300}], ()),
        ([1], ()),
        (
            [
                {"id": 5, "logprob": -0.5, "top_logprobs": [{"id": 1, "logprob": -1.0}]},
                {"id": 5, "logprob": -0.5, "top_logprobs": []},
            ],
            ("ids", "logprobs"),
        ),
        (
            [{"id": 5, "logprob": -0.5, "top_logprobs": [{"id": None, "logprob": -1.0}]}],
            ("ids", "logprobs"),
        ),
    ],
)
def test_token_data_that_is_not_whole_is_unknown(rows: object, known: tuple[str, ...]) -> None:
    answer = _read(_choice(logprobs={"content": rows}))
    assert (answer.token_ids is not None) is ("ids" in known)
    assert (answer.logprobs is not None) is ("logprobs" in known)
    assert (answer.top_ids is not None) is ("tops" in known)
    assert (answer.top_logprobs is not None) is ("tops" in known)
