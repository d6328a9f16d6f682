"""Servers of someone else that are none: the mock's engine behind the surfaces of other engines.

Shapes are those of the engines' public documentation: vLLM's and SGLang's production metrics and
chat completions, TGI's metrics, and a server that tells nothing. Each has planted faults.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from batch_invariance.live_invariance.mock_answer import (
    GenerationRequest,
    GenerationResult,
    MockBehaviour,
)
from batch_invariance.live_invariance.mock_api import MockApi
from batch_invariance.live_invariance.mock_engine import Job, MockEngine
from batch_invariance.live_invariance.mock_server import MockHandler, MockServer
from batch_invariance.live_invariance.mock_wire import Call, Identity, Json, Reply, json_reply
from company import COMPANY

MODEL = "org/fake-1b"
KEY = "sk-very-secret-4711"
SERVERS_OWN_KEY = "the-key-that-sglang-shows"


class Surface(str, Enum):
    """Which engine the server looks like."""

    LLAMA_CPP = "llama.cpp"
    VLLM = "vllm"
    SGLANG = "sglang"
    TGI = "tgi"
    BARE = "bare"


@dataclass
class Plan:
    """What the server is and what is wrong with it.

    `one_at_a_time`: it computes one request at a time; `boasts`: and its gauge calls all of them
    running. `foreign_tokens` of other people are added whenever a chat comes that makes
    `foreign_at` in flight (0: never).
    `cached`: prompt tokens per request that come from a cache. `too_many`: chats that are answered
    429 first, from the `too_many_from`-th on. `refuses`: parameters that are answered 400.
    `restarts_after`: chats after which it says that it is another process; `started_by`: a file
    whose length is the number of its starts. `echoes_key`: it puts
    the caller's key into whatever it says. `keeps_answers`: whoever asks again gets the answer of
    the first time, from a cache in front. `other_model_after`: chats after which its answers name
    another model. `spread`: its gauge is that of four replicas with one request each. `spells`: it
    names no token by id. `no_counters` and
    `no_usage`: what it does not offer.
    """

    surface: Surface = Surface.VLLM
    one_at_a_time: bool = False
    boasts: bool = False
    foreign_at: int = 0
    foreign_tokens: int = 5
    cached: int = 0
    too_many: int = 0
    too_many_from: int = 0
    retry_after: str | None = "0"
    refuses: Sequence[str] = ()
    restarts_after: int | None = None
    started_by: Path | None = None
    echoes_key: bool = False
    spells: bool = False
    no_usage: bool = False
    no_counters: bool = False
    keeps_answers: bool = False
    other_model_after: int | None = None
    spread: bool = False
    bodies: list[Json] = field(default_factory=list)
    chats: int = 0


@dataclass(frozen=True)
class ReplyWithHeaders(Reply):
    """A reply with further headers."""

    headers: Mapping[str, str] = field(default_factory=dict)


class FakeHandler(MockHandler):
    """Says `uvicorn` and sends further headers."""

    def deliver(self, reply: Reply) -> None:
        if not isinstance(reply, ReplyWithHeaders):
            super().deliver(reply)
            return
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)

    def version_string(self) -> str:
        return "uvicorn"


class FakeEngine(MockEngine):
    """The mock's engine, which may compute one request at a time."""

    one_at_a_time = False

    def select_batch(self, active: Sequence[Job]) -> Sequence[Job]:
        return active[:1] if self.one_at_a_time else active


class FakeApi(MockApi):
    """The surfaces."""

    def __init__(self, engine: MockEngine, identity: Identity, plan: Plan) -> None:
        super().__init__(engine, identity)
        self.plan = plan
        self._in_flight = 0
        self._foreign = 0
        self._cached = 0
        self._kept: dict[bytes, Reply] = {}

    def routes(self) -> Mapping[tuple[str, str], Callable[[Call], Reply]]:
        own = super().routes()
        chat, models, metrics = "/v1/chat/completions", "/v1/models", "/metrics"
        kept = {("POST", chat): self.chat, ("GET", models): self.models}
        surface = self.plan.surface
        if surface is Surface.LLAMA_CPP:
            return {**own, **kept}
        if surface is Surface.BARE:
            return kept
        if not self.plan.no_counters:
            kept["GET", metrics] = self.metrics
        place = {Surface.VLLM: "/version", Surface.SGLANG: "/server_info", Surface.TGI: "/info"}
        return {**kept, ("GET", place[surface]): self.version}

    def models(self, call: Call) -> Reply:
        entry: Json = {"id": MODEL, "object": "model", "owned_by": "someone"}
        if self.plan.surface is Surface.VLLM:
            entry.update(owned_by="vllm", root="/models/fake-1b", max_model_len=2048)
        return json_reply(200, {"object": "list", "data": [entry]})

    def version(self, call: Call) -> Reply:
        said: Json = {"version": "0.32.0"}
        if self.plan.surface is Surface.SGLANG:
            said.update(api_key=SERVERS_OWN_KEY, admin_api_key=SERVERS_OWN_KEY, model_path="/m")
        if self.plan.surface is Surface.TGI:
            said.update(model_id=MODEL, docker_label="sha-1234", sha="1234")
        if self.plan.echoes_key:
            said["version"] = call.authorization
        return json_reply(200, said)

    def metrics(self, call: Call) -> Reply:
        now, plan = self.engine.counters(), self.plan
        running = min(now.processing, 1 if plan.one_at_a_time and not plan.boasts else 99)
        generated = now.predicted_tokens + self._foreign
        started = 1.0 + (plan.restarts_after is not None and plan.chats > plan.restarts_after)
        if plan.started_by is not None:
            started += len(plan.started_by.read_bytes())
        lines = [f"process_start_time_seconds {started}"]
        if plan.surface is Surface.LLAMA_CPP:
            return super().metrics(call)
        if plan.surface is Surface.VLLM:
            lines += _vllm(now.decodes, generated, now.prompt_tokens, self._cached, running)
        elif plan.surface is Surface.SGLANG:
            lines += _sglang(generated, now.prompt_tokens, self._cached, running)
            if plan.spread:
                lines = [line for line in lines if "num_running_reqs" not in line]
                for n in range(4):
                    labels = f'{{model_name="m",dp_rank="{n}",tp_rank="0"}}'
                    lines.append(f"sglang:num_running_reqs{labels} {int(running > n)}")
        else:
            lines += _tgi(generated, now.prompt_tokens, running)
        return Reply(200, ("\n".join(lines) + "\n").encode(), "text/plain; version=0.0.4")

    def chat(self, call: Call) -> Reply:
        plan = self.plan
        body = json.loads(call.body)
        plan.bodies.append(body)
        plan.chats += 1
        if plan.chats > plan.too_many_from and plan.too_many > 0:
            plan.too_many -= 1
            COMPANY.arrived()
            headers = {} if plan.retry_after is None else {"Retry-After": plan.retry_after}
            return ReplyWithHeaders(429, b'{"error":{"message":"slow down"}}', headers=headers)
        refused = [name for name in plan.refuses if name in body]
        if refused or body.get("model") != MODEL:
            COMPANY.arrived()
            said = f"unknown {refused} for {call.authorization if plan.echoes_key else 'you'}"
            return json_reply(400 if refused else 404, {"error": {"message": said}})
        self._in_flight += 1
        try:
            if plan.foreign_at and self._in_flight >= plan.foreign_at:
                self._foreign += plan.foreign_tokens
            if not plan.keeps_answers:
                return super().chat(call)
            if call.body in self._kept:
                COMPANY.arrived()
            else:
                self._kept[call.body] = super().chat(call)
            return self._kept[call.body]
        finally:
            self._in_flight -= 1

    def completion_json(self, request: GenerationRequest, result: GenerationResult) -> Json:
        reply = super().completion_json(request, result)
        plan, choice = self.plan, reply["choices"][0]
        if plan.surface is Surface.LLAMA_CPP:
            return reply
        del reply["timings"]
        after = plan.other_model_after
        reply["model"] = MODEL if after is None or plan.chats <= after else "org/fallback"
        reply["system_fingerprint"] = "fp-1"
        if plan.surface in (Surface.BARE, Surface.TGI):
            del reply["system_fingerprint"]
        self._cached += plan.cached
        details = {"cached_tokens": plan.cached} if plan.surface is Surface.TGI else None
        reply["usage"]["prompt_tokens_details"] = details
        choice["message"].update(refusal=None, reasoning=None, tool_calls=[])
        if plan.no_usage:
            del reply["usage"]
        if plan.surface is Surface.BARE:
            choice.pop("logprobs", None)
        by_id = plan.surface is Surface.VLLM and not plan.spells
        for row in (choice.get("logprobs") or {}).get("content", ()):
            for one in (row, *row["top_logprobs"]):
                _spell(one, by_id)
        return reply


def _spell(row: Json, by_id: bool) -> None:
    number = row.pop("id")
    if by_id:
        row["token"] = f"token_id:{number}"


def _vllm(steps: int, generated: int, prompts: int, cached: int, running: int) -> list[str]:
    labels = '{engine="0",model_name="org/fake-1b"}'
    return [
        "# TYPE vllm:num_requests_running gauge",
        f"vllm:num_requests_running{labels} {float(running)}",
        f"vllm:num_requests_waiting{labels} 0.0",
        f"vllm:prefix_cache_hits_total{labels} {float(cached)}",
        f"vllm:prompt_tokens_total{labels} {float(prompts)}",
        f"vllm:generation_tokens_total{labels} {float(generated)}",
        f'vllm:iteration_tokens_total_bucket{{engine="0",le="1.0",model_name="m"}} {float(steps)}',
        f"vllm:iteration_tokens_total_count{labels} {float(steps)}",
        f"vllm:iteration_tokens_total_sum{labels} {float(generated + prompts)}",
    ]


def _sglang(generated: int, prompts: int, cached: int, running: int) -> list[str]:
    def rank(n: int) -> str:
        return f'{{model_name="m",engine_type="unified",tp_rank="{n}"}}'

    return [
        *(f"sglang:num_running_reqs{rank(n)} {float(running)}" for n in (0, 1)),
        f'sglang:num_running_reqs{{model_name="m",priority="1",tp_rank="0"}} {float(running)}',
        f"sglang:num_queue_reqs{rank(0)} 0.0",
        f'sglang:prompt_tokens_total{{model_name="m"}} {prompts:e}',
        f'sglang:generation_tokens_total{{model_name="m"}} {float(generated)}',
        f'sglang:cached_tokens_total{{model_name="m",cache_source="device"}} {float(cached)}',
    ]


def _tgi(generated: int, prompts: int, running: int) -> list[str]:
    return [
        f"tgi_batch_current_size {running}",
        "tgi_queue_size 0",
        f"tgi_request_generated_tokens_sum {generated}",
        f"tgi_request_input_length_sum {prompts}",
    ]


class FakeEndpoint(MockServer):
    """A running server: `with FakeEndpoint(Plan(Surface.SGLANG)) as server: server.url`."""

    handler_class = FakeHandler

    def __init__(
        self, plan: Plan, slots: int = 4, behaviour: MockBehaviour | None = None, key: str = KEY
    ) -> None:
        self.plan = plan
        super().__init__(slots, 2048, behaviour, key)

    def build_engine(self, behaviour: MockBehaviour) -> MockEngine:
        engine = FakeEngine(self.identity.slots, behaviour)
        engine.one_at_a_time = self.plan.one_at_a_time
        return engine

    def build_api(self) -> MockApi:
        return FakeApi(self.engine, self.identity, self.plan)

    @property
    def url(self) -> str:
        """Its address, with the path that OpenAI's clients want."""
        return f"http://127.0.0.1:{self.port}/v1"


def written(folder: Path) -> bytes:
    """Every byte of every file below a folder."""
    return b"".join(p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file())
