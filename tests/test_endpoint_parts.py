"""The parts of an endpoint run by themselves: metrics text, rate limits, addresses, spelling."""

from __future__ import annotations

import json

import pytest

from batch_invariance.errors import UsageError
from batch_invariance.invariance_diff.control import plan_ban, plan_exchange
from batch_invariance.invariance_diff.endpoint import Dialect, Engine, TokenNames
from batch_invariance.invariance_diff.model import Arm, Completion, Item, Message, Trial, TrialKey
from batch_invariance.invariance_diff.packed import unpack_ids
from batch_invariance.invariance_diff.request import Sampling, ban_token, build_body
from batch_invariance.invariance_diff.response import parse_response
from batch_invariance.live_invariance.endpoint_client import (
    EndpointClient,
    Limits,
    base_url,
    most_tokens,
    on_loopback,
    retry_after,
    used_tokens,
)
from batch_invariance.live_invariance.http import Exchange
from batch_invariance.live_invariance.prometheus import (
    counters_from,
    engine_of,
    offered_by,
    running_from,
)
from core_fixtures import a_completion, a_trial

VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a"} 3.0
vllm:num_requests_running{engine="1",model_name="a"} 1.0
vllm:num_requests_waiting{engine="0",model_name="a"} 2.0
vllm:prefix_cache_hits_total{engine="0",model_name="a"} 16.0
vllm:external_prefix_cache_hits_total{engine="0",model_name="a"} 4.0
vllm:generation_tokens_total{engine="0",model_name="a"} 1.234567e+06
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="a"} 7.0
vllm:iteration_tokens_total_count{engine="0",model_name="a"} 70.0
vllm:iteration_tokens_total_count{engine="1",model_name="a"} 30.0
vllm:iteration_tokens_total_sum{engine="0",model_name="a"} 900.0
"""
SGLANG = b"""sglang:num_running_reqs{model_name="m",tp_rank="0",dp_rank="0"} 4.0
sglang:num_running_reqs{model_name="m",tp_rank="1",dp_rank="0"} 4.0
sglang:num_running_reqs{model_name="m",tp_rank="0",dp_rank="1"} 2.0
sglang:num_running_reqs{model_name="m",tp_rank="0",dp_rank="0",priority="3"} 4.0
sglang:num_queue_reqs{model_name="m"} 1.0
sglang:prompt_tokens_total{model_name="m"} 8.128902e+06
sglang:cached_tokens_total{model_name="m",cache_source="device"} 5
sglang:cached_tokens_total{model_name="m",cache_source="host"} 6
"""


def test_vllm_metrics_are_added_up_over_engines() -> None:
    assert engine_of(VLLM) is Engine.VLLM
    counters = counters_from(Engine.VLLM, VLLM)
    assert counters.decode_total == 100
    assert counters.predicted_total == 1_234_567
    assert counters.prompt_total is None
    assert counters.cached_total == 20
    assert running_from(Engine.VLLM, VLLM) == (3, 2)
    assert offered_by(Engine.VLLM, VLLM).prompt is None


def test_ranks_of_one_batch_count_once_and_replicas_share_none() -> None:
    assert engine_of(SGLANG) is Engine.SGLANG
    assert running_from(Engine.SGLANG, SGLANG) == (4, 1)
    counters = counters_from(Engine.SGLANG, SGLANG)
    assert counters.decode_total is None
    assert counters.prompt_total == 8_128_902
    assert counters.cached_total == 11


def test_a_llama_server_prints_six_digits_and_no_more_is_believed() -> None:
    text = b"llamacpp:n_decode_total 123456\nllamacpp:tokens_predicted_total 1.23457e+06\n"
    counters = counters_from(Engine.LLAMA_CPP, text)
    assert counters.decode_total == 123456
    assert counters.predicted_total is None
    assert running_from(Engine.LLAMA_CPP, text) is None


@pytest.mark.parametrize("text", [b"", b"process_cpu_seconds_total 3\n", b"\xff\xfe", b"vllm:x"])
def test_what_is_nobodys_is_nobodys(text: bytes) -> None:
    assert engine_of(text) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None),
        ("0", 0.0),
        ("120", 120.0),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 37.0),
        ("Sun, 06 Nov 1994 08:48:00 GMT", 0.0),
        ("soon", None),
        ("-5", None),
        ("1e400", None),
    ],
)
def test_retry_after_is_a_number_or_a_date(text: str | None, seconds: float | None) -> None:
    now = 784111740.0  # 08:49:00
    assert retry_after(text, now) == seconds


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("http://localhost:8000", "http://localhost:8000"),
        ("http://localhost:8000/", "http://localhost:8000"),
        ("https://gateway.example/v1/", "https://gateway.example"),
        ("https://gateway.example/openai/v1", "https://gateway.example/openai"),
        ("http://[::1]:80/v1", "http://[::1]:80"),
    ],
)
def test_the_address_may_be_given_with_or_without_v1(given: str, base: str) -> None:
    assert base_url(given) == base


def test_a_port_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="--url"):
        base_url("http://host:99999")


def test_only_the_loopback_is_kept_from_proxies() -> None:
    assert on_loopback("http://127.0.0.1:1")
    assert on_loopback("http://[::1]:1")
    assert not on_loopback("http://127.0.0.1.example")


@pytest.mark.parametrize(
    "values", [("+Inf", "-Inf"), ("1e308", "1e308"), ("NaN", "1"), ("1e999", "")]
)
def test_a_counter_that_is_no_number_is_unknown_and_no_error(values: tuple[str, str]) -> None:
    lines = [
        f'vllm:generation_tokens_total{{engine="{i}"}} {value}' for i, value in enumerate(values)
    ]
    body = "\n".join(lines).encode()
    assert engine_of(body) is Engine.VLLM
    assert counters_from(Engine.VLLM, body).predicted_total is None
    gauges = body.replace(b"generation_tokens_total", b"num_requests_running")
    assert running_from(Engine.VLLM, gauges) is None


def test_tokens_are_reserved_before_an_answer_and_counted_after_it() -> None:
    body = b'{"max_tokens":64,"messages":[]}'
    assert most_tokens(body) == 64 + len(body) // 4
    said = {"usage": {"prompt_tokens": 7, "completion_tokens": 5}}
    assert used_tokens(Exchange(200, json.dumps(said).encode(), None, 0.0, 0.0)) == 12
    assert used_tokens(Exchange(200, b'{"choices":[]}', None, 0.0, 0.0)) is None
    for count in (b"1e400", b"-9", b'"9"', b"true", b"null", b"9" * 30):
        usage = b'{"usage":{"prompt_tokens":%b,"completion_tokens":1}}' % count
        assert used_tokens(Exchange(200, usage, None, 0.0, 0.0)) is None


def test_what_would_pass_the_cap_is_not_sent() -> None:
    client = EndpointClient("http://127.0.0.1:9", None, 1.0, Limits(requests=2))
    kinds = [client.post("/x", b"{}", 1.0).failure for _ in range(3)]
    assert [kind.kind.value for kind in kinds if kind is not None] == [
        "connection",
        "connection",
        "not_sent",
    ]
    assert client.n_requests == 2


def _answer(*rows: dict[str, object]) -> bytes:
    choice = {
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": "x", "tool_calls": [], "reasoning": None},
        "logprobs": {"content": list(rows)},
    }
    usage = {"prompt_tokens": 3, "completion_tokens": len(rows), "prompt_tokens_details": None}
    return json.dumps({"choices": [choice], "usage": usage}).encode()


def _ids(body: bytes, names: TokenNames) -> tuple[int, ...] | None:
    result = parse_response(200, body, 8, names)
    assert isinstance(result, Completion)
    return None if result.token_ids is None else unpack_ids(result.token_ids)


def test_tokens_by_id_in_the_ways_that_engines_spell_them() -> None:
    row = {"logprob": -1.0, "top_logprobs": []}
    llama = _answer({**row, "id": 7, "token": "a"})
    vllm = _answer({**row, "token": "token_id:7", "bytes": None})
    assert _ids(llama, TokenNames.IDS) == _ids(vllm, TokenNames.IDS) == (7,)
    for token in ("a", "token_id:", "token_id:x", None, 5):
        assert _ids(_answer({**row, "token": token}), TokenNames.IDS) is None


def test_spelling_goes_by_bytes_where_there_are_any() -> None:
    row = {"logprob": -1.0, "top_logprobs": []}
    by_bytes = _ids(_answer({**row, "token": "?", "bytes": [97]}), TokenNames.SPELLING)
    by_text = _ids(_answer({**row, "token": "a", "bytes": None}), TokenNames.SPELLING)
    assert by_bytes == by_text
    assert by_bytes != _ids(_answer({**row, "token": "b"}), TokenNames.SPELLING)


def test_a_body_in_a_dialect_states_what_is_accepted_and_no_more() -> None:
    stated = ("temperature", "seed", "repetition_penalty", "unheard")
    dialect = Dialect("m", stated, False, TokenNames.IDS)
    sampling = Sampling(3, 9, 5, dialect)
    body = build_body(Item("i", (Message("user", "hi"),)), sampling)
    assert json.loads(body.for_slot(2)) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 9,
        "temperature": 0.0,
        "seed": 3,
        "repetition_penalty": 1.0,
    }
    assert ban_token(5, dialect) == {"logit_bias": {"5": -100}}
    assert ban_token(5) == {"logit_bias": [[5, False]]}


def test_the_control_is_a_ban_or_the_prompt_of_an_item_that_answers_otherwise() -> None:
    def trial(item: int, text: str, ids: tuple[int, ...]) -> Trial:
        return a_trial(a_completion(ids, text), key=TrialKey(Arm.A, 0, item))

    same = {0: trial(0, "x", (4,)), 1: trial(1, "x", (4,)), 2: trial(2, "y", (5,))}
    plan = plan_exchange(same)
    assert plan is not None
    assert (plan.item, plan.other_item, plan.banned_token) == (0, 2, None)
    ban = plan_ban(same)
    assert ban is not None
    assert (ban.item, ban.banned_token, ban.other_item) == (0, 4, None)
    assert plan_exchange({0: same[0], 1: same[1]}) is None
    assert plan_ban({}) is None
