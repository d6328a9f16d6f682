"""Good files of every kind, small, so that thousands of damaged ones are read in a second."""

from __future__ import annotations

import functools
import json
import struct
from pathlib import Path
from typing import Any

from batch_invariance.formats.dsse import Envelope, hmac_signature
from batch_invariance.formats.intoto import PAYLOAD_TYPE, STATEMENT_TYPE, TEST_RESULT_TYPE
from batch_invariance.formats.toy_gguf import ToySpec, toy_model_bytes
from batch_invariance.invariance_diff.certificate import certify
from batch_invariance.invariance_diff.golden import record_golden
from batch_invariance.invariance_diff.model import Arm
from batch_invariance.invariance_diff.reference_digests import ReferenceCollector
from batch_invariance.invariance_diff.signature import SigningKey
from batch_invariance.invariance_diff.subject_facts import Run
from case_fixtures import a_case
from core_fixtures import EVIDENCE_NAME, Ideal, decode, encode, first_trial, in_arm, lost, on_trials
from decode_fixtures import with_log
from gguf_builder import ARRAY, STRING, U32, array, model, string, tensor, text, u32

ROOT = Path(__file__).resolve().parents[2]
KEY = bytes(range(40))


@functools.cache
def evidence() -> tuple[tuple[bytes, ...], ...]:
    """The lines of small runs: clean and with the server's log; with a lost trial; resumed."""
    records = with_log(Ideal([2, 1], n=2, passes=1, prompt_tokens=3).records())
    clean = tuple(encode(records))
    broken = tuple(encode(on_trials(in_arm(Arm.C, 0, 1), lost())(records)))
    assert first_trial(records, in_arm(Arm.C)) > 0
    return clean, broken


@functools.cache
def certificates() -> tuple[Any, ...]:
    """Certificates as JSON objects."""
    return tuple(certify(lines, EVIDENCE_NAME).to_json() for lines in evidence())


def cases() -> tuple[Any, ...]:
    """Cases as JSON objects."""
    return (json.loads(a_case().to_bytes()), json.loads(a_case(logit_drift="bits").to_bytes()))


WORK_SETS: tuple[Any, ...] = (
    ["one", {"id": "a", "prompt": "two", "expected_answer": "2", "max_tokens": 7}],
    [
        {"item": "three", "system": "be brief", "family": "f", "fill": 0.5},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "four"}]}]},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "five"}]},
    ],
)
BATCH: tuple[tuple[Any, ...], ...] = (
    (
        {
            "custom_id": "r1",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": "m",
                "messages": [{"role": "user", "content": "six"}],
                "max_tokens": 5,
                "stop": ["\n"],
                "temperature": 1,
            },
        },
        {"custom_id": "r2", "body": {"messages": [{"role": "user", "content": "seven"}]}},
    ),
)
LM_EVAL: tuple[tuple[Any, ...], ...] = (
    (
        {
            "doc_id": 0,
            "target": "8",
            "arguments": [["eight?", {"until": ["\n"], "max_gen_toks": 16}]],
        },
        {
            "doc_id": 1,
            "target": ["a", "b"],
            "arguments": {"gen_args_0": {"arg_0": "nine?", "arg_1": {"do_sample": False}}},
        },
        {
            "doc_id": 2,
            "target": 3,
            "arguments": [['[{"role": "user", "content": "ten", "type": "text"}]', {}]],
        },
        {"doc_id": 3, "arguments": [["which", " this"], ["which", " that"]]},
    ),
)
SCHEDULES: tuple[Any, ...] = (
    {
        "schema": "schedule/1",
        "n_items": 4,
        "lanes": 2,
        "passes": [
            {"kind": "waves", "groups": [[0, 1], [2, 3]], "delays_ms": [0, 0, 5, 1]},
            {"kind": "waves", "groups": [[3, 1]], "pinned": [1, 0]},
            {"kind": "saturate", "groups": [[3, 1, 2, 0]]},
        ],
    },
)
PLANS: tuple[Any, ...] = (
    {
        "version": 1,
        "models": ["canary:q8_0", "a.gguf", "alias"],
        "ctx": [512, 1024],
        "parallel": [2, 4, 8],
        "kv_types": ["f16", "q8_0/q4_0"],
        "flag_sets": {"fa-on": ["--flash-attn", "on"], "none": []},
        "server_bin": "llama-server",
        "workset": "w.json",
        "passes": 2,
        "max_tokens": 16,
    },
)
INDEXES: tuple[Any, ...] = (
    {
        "schema": "matrix/1",
        "tool": "batch-invariance 0",
        "began_utc": "2026-12-03T03:11:12Z",
        "updated_utc": "2026-12-03T03:12:12Z",
        "complete": False,
        "cells": [
            {
                "folder": "default",
                "model": "toy",
                "ctx": 512,
                "dispatch_n": 2,
                "source": "live",
                "server_flags": ["--flash-attn", "on"],
                "file": "default/toy__ctx512__N2.json",
                "evidence": "default/toy__ctx512__N2.evidence.jsonl",
                "shared_arm": "default/toy__ctx512__A.evidence.jsonl",
                "inputs_sha256": "a" * 64,
                "state": "left_out",
                "why": "about 9 s, 1 s of the time budget left",
            }
        ],
        "shared_arms": [
            {
                "file": "default/toy__ctx512__A.evidence.jsonl",
                "inputs_sha256": "b" * 64,
                "state": "done",
                "sha256": "c" * 64,
                "seconds": 8.5,
            }
        ],
    },
)
POLICIES: tuple[Any, ...] = (
    {
        "version": 1,
        "required": ["toy/512/2", "other*/?/4"],
        "sources": ["live", "canary"],
        "max_age_days": 90,
        "model_sha256": ["b" * 64],
        "server_sha256": ["a" * 64],
        "cell_sha256": ["c" * 64],
        "max_prompt_rate_upper_bound_95": 0.25,
        "min_horizon_tokens": 8,
        "accept_amber": {
            "toy/512/2": {"reason": "known", "signed_off_by": "me", "expires": "2030-01-31"}
        },
    },
    {"version": 1, "required": ["toy/512/2"]},
)
TOML = (
    b"""# a policy
version = 1
required = [
    "toy/512/2",  # one
    'other/*/4',
]
max_age_days = 9_0
max_prompt_rate_upper_bound_95 = "0.2"

[accept_amber."toy/512/2"]
reason = "a \\u00e9 and a \\\\"
signed_off_by = "me"
""",
    b"""[defaults]
server_flags = ["--threads", "8"]
ctx = 8192
parallel = 4

[models."a.b"]
gguf = "{MODELS_DIR}/m.gguf"
kv = "q8_0/f16"

[models.plain]
gguf = '/models/x.gguf'
server_bin = "llama-server"
server_flags = [
    "--flash-attn", "on",
]
""",
)
RESPONSES: tuple[Any, ...] = (
    {
        "choices": [
            {
                "finish_reason": "length",
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "hi",
                    "reasoning_content": "hm",
                    "tool_calls": [{"id": "x1", "function": {"name": "f", "arguments": "{}"}}],
                },
                "logprobs": {
                    "content": [
                        {
                            "id": 7,
                            "token": "h",
                            "logprob": -0.25,
                            "top_logprobs": [
                                {"id": 7, "token": "h", "logprob": -0.25},
                                {"id": 8, "token": "i", "logprob": -1.5},
                            ],
                        }
                    ]
                },
            }
        ],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 1,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
        "timings": {"predicted_n": 1, "cache_n": 0, "draft_n": 0},
        "truncated": False,
    },
    {"error": {"code": 500, "message": "boom", "type": "server_error"}},
    {"choices": [{"finish_reason": None, "message": {"content": None}}]},
)
_TOPS = [{"id": 7, "logprob": -0.25}, {"id": 8, "logprob": -1.5}]
_ROWS = [{"id": n, "bytes": [n], "top_logprobs": _TOPS} for n in (104, 195, 169)]
TIES: tuple[Any, ...] = ({"choices": [{"logprobs": {"content": _ROWS}}]},)
SLOTS: tuple[Any, ...] = (
    [{"id": 0, "is_processing": True}, {"id": 1, "is_processing": False}],
    [{"id": 0, "state": 1, "id_task": 5}, {"state": 0}],
)
METRICS = (
    b"# HELP llamacpp:n_decode_total calls\nllamacpp:n_decode_total 12\n"
    b"llamacpp:tokens_predicted_total 34\nllamacpp:prompt_tokens_total 5.6e1\n",
)
STATEMENTS: tuple[Any, ...] = (
    {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": "m.gguf", "digest": {"sha256": "b" * 64}}],
        "predicateType": TEST_RESULT_TYPE,
        "predicate": {"result": "PASSED", "configuration": []},
    },
)


@functools.cache
def envelopes() -> tuple[Any, ...]:
    """A signed envelope around a statement."""
    payload = json.dumps(STATEMENTS[0]).encode()
    signature = hmac_signature(KEY, PAYLOAD_TYPE, payload)
    return (json.loads(Envelope(PAYLOAD_TYPE, payload, (signature,)).to_bytes()),)


@functools.cache
def signatures() -> tuple[Any, ...]:
    """The HMAC of a certificate."""
    return (json.loads(SigningKey(KEY).sign(b"certificate").to_bytes()),)


@functools.cache
def goldens() -> tuple[Any, ...]:
    """A golden file of the clean run."""
    records = decode(evidence()[0])
    collector = ReferenceCollector()
    for record in records:
        collector.feed(record)
    assert collector.header is not None
    run = Run(certify(evidence()[0], EVIDENCE_NAME), collector.header)
    return (json.loads(record_golden(run, collector.items()).to_bytes()),)


@functools.cache
def logs() -> tuple[bytes, ...]:
    """Pieces of the logs of real servers, each from its beginning."""
    files = sorted((ROOT / "tests" / "data" / "decode_log").glob("*.txt"))
    return tuple(file.read_bytes()[:6000] for file in files)


@functools.cache
def models() -> tuple[bytes, ...]:
    """GGUF headers: one small, with every kind of value, and those of toys."""
    tensors = (tensor("t", (64, 2), 8, 0), tensor("u", (3,), 0, 160))
    small = model(
        array("llama.attention.head_count_kv", U32, 3, struct.pack("<3I", 4, 0, 1)),
        array("tokenizer.ggml.tokens", STRING, 3, text("a") + text("bc") + text("def")),
        array("nested", ARRAY, 1, struct.pack("<IQI", U32, 1, 7)),
        u32("llama.attention.sliding_window", 512),
        u32("llama.attention.sliding_window_pattern", 6),
        string("general.name", "mutant"),
        tensors=tensors,
        data=192,
    )
    toys = [toy_model_bytes(ToySpec.parse(spec))[:12_000] for spec in ("f16", "q8_0,moe")]
    return (small, small, small, small, small, small, *toys)
