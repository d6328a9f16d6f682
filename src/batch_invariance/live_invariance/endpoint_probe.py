"""Finding out what a server takes and gives, by asking it a short question a few times.

A parameter counts as accepted where the request that states it was answered. Whether it is heeded
shows only for some: logprobs come back, tokens come back by id, a ban changes the answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from batch_invariance.errors import ServerError
from batch_invariance.invariance_diff.endpoint import (
    Capabilities,
    Dialect,
    Endpoint,
    Engine,
    TokenNames,
)
from batch_invariance.invariance_diff.model import Completion, Failure, Item, Message
from batch_invariance.invariance_diff.packed import unpack_ids
from batch_invariance.invariance_diff.records import Identity
from batch_invariance.invariance_diff.request import (
    OF_OTHERS,
    Sampling,
    ban_token,
    build_body,
)
from batch_invariance.invariance_diff.response import parse_response
from batch_invariance.live_invariance.dispatch import CHAT_PATH
from batch_invariance.live_invariance.endpoint_client import EndpointClient
from batch_invariance.live_invariance.endpoint_facts import Told, look, watchable
from batch_invariance.live_invariance.http import Client, Exchange

QUESTION = Item("probe", (Message("user", "Name three colours."),), max_tokens=8)
NEEDED = ("temperature", "stream")
"""Without these nothing can be measured: a server that refuses them is refused."""
OPENAI = ("top_p", "presence_penalty", "frequency_penalty", "seed", "n", "logprobs", "top_logprobs")
OPEN_ENGINES = ("top_k", "min_p", "ignore_eos", *OF_OTHERS)
"""Parameters beyond OpenAI's that vLLM, SGLang and others take."""
TESTED_BY_ITSELF = "logit_bias"
PROBES_AT_MOST = 24
"""Requests that the probes may come to: one in all, one for each parameter that is refused in
company, and the ban."""


@dataclass(frozen=True, slots=True)
class Found:
    """What the probes found: the endpoint for the header, the sampling in its dialect, and what
    the server said of itself."""

    endpoint: Endpoint
    sampling: Sampling
    told: Told

    @property
    def identity(self) -> Identity:
        """In the terms of a launch."""
        return self.told.identity


@dataclass(frozen=True, slots=True)
class Asked:
    """What to probe: the model's name, the plain sampling, N, the operator's claim, and how long
    one request may take."""

    model: str
    sampling: Sampling
    concurrency: int
    claim: str | None
    timeout_s: float


def probe(client: EndpointClient, metrics: Client, asked: Asked) -> Found:
    """Probes the server. Raises ServerError where it answers no chat request at all."""
    first = look(client, metrics, asked.model)
    seen = watchable(client, metrics, first.facts)
    slots = first.identity.total_slots
    pins = seen.engine is Engine.LLAMA_CPP and slots is not None and slots >= asked.concurrency
    prober = _Prober(client, asked, pins)
    dialect, answer = prober.settle(_candidates(seen.engine, asked.sampling))
    capabilities = Capabilities(
        logprobs=answer.logprobs is not None,
        alternatives=bool(answer.top_logprobs),
        tokens=dialect.tokens,
        usage=answer.prompt_tokens is not None and answer.completion_tokens is not None,
        reports_cache=answer.cache_n is not None,
        seed="seed" in dialect.stated,
        cache_prompt="cache_prompt" in dialect.stated,
        logit_bias=prober.heeds_ban(dialect, answer),
        refused=tuple(prober.refused),
    )
    told = look(client, metrics, asked.model)
    endpoint = Endpoint(
        url=client.base_url,
        engine=seen.engine,
        said=told.facts,
        capabilities=capabilities,
        offered=seen.offered,
        claim=asked.claim,
        n_probes=prober.n_sent,
    )
    return Found(endpoint, replace(asked.sampling, dialect=dialect), told)


def _candidates(engine: Engine, sampling: Sampling) -> tuple[str, ...]:
    """The parameters to try, the needed ones first. `cache_prompt` is llama.cpp's, which may stand
    behind a gateway that is not known."""
    if engine is Engine.LLAMA_CPP:
        return tuple(name for name in sampling.to_json() if name != TESTED_BY_ITSELF)
    own = () if engine in (Engine.VLLM, Engine.SGLANG, Engine.TGI) else ("cache_prompt",)
    return (*NEEDED, *OPENAI, *OPEN_ENGINES, *own)


class _Prober:
    """Sends the probes and counts them."""

    def __init__(self, client: EndpointClient, asked: Asked, pins: bool) -> None:
        self._client = client
        self._asked = asked
        self._pins = pins
        self.n_sent = 0
        self.refused: list[str] = []

    def settle(self, names: Sequence[str]) -> tuple[Dialect, Completion]:
        """The dialect with every parameter that the server takes, and its answer to it."""
        dialect = Dialect(self._asked.model, tuple(names), self._pins, TokenNames.IDS)
        exchange = self._send(dialect)
        if _refused(exchange):
            dialect = replace(dialect, stated=self._one_by_one(names))
            exchange = self._send(dialect)
        for kind in (TokenNames.IDS, TokenNames.SPELLING):
            answer = self._read(exchange, kind)
            if answer.token_ids:
                return replace(dialect, tokens=kind), answer
        return replace(dialect, tokens=TokenNames.NONE), self._read(exchange, TokenNames.IDS)

    def heeds_ban(self, dialect: Dialect, answer: Completion) -> bool:
        """Whether a ban of the first token changes the first token."""
        if dialect.tokens is not TokenNames.IDS or not answer.token_ids:
            return False
        first = unpack_ids(answer.token_ids)[0]
        exchange = self._send(dialect, ban_token(first, dialect))
        again = parse_response(exchange.status, exchange.body, 1, dialect.tokens)
        if not isinstance(again, Completion) or not again.token_ids:
            return False
        return unpack_ids(again.token_ids)[0] != first

    def _one_by_one(self, names: Iterable[str]) -> tuple[str, ...]:
        """The parameters that are not refused beside the needed ones."""
        kept: list[str] = list(NEEDED)
        base = Dialect(self._asked.model, NEEDED, self._pins, TokenNames.IDS)
        exchange = self._send(base)
        if _refused(exchange):
            raise ServerError(no_answer(self._client, self._asked.model, exchange))
        # logprobs is what top_logprobs rests on.
        for name in names:
            if name in kept:
                continue
            beside = (*NEEDED, "logprobs", name) if name == "top_logprobs" else (*NEEDED, name)
            if _refused(self._send(replace(base, stated=beside))):
                self.refused.append(name)
            else:
                kept.append(name)
        return tuple(kept)

    def _send(self, dialect: Dialect, overrides: dict[str, object] | None = None) -> Exchange:
        body = build_body(QUESTION, replace(self._asked.sampling, dialect=dialect), overrides)
        self.n_sent += 1
        exchange = self._client.post(CHAT_PATH, body.for_slot(0), self._asked.timeout_s)
        if exchange.failure is not None or exchange.status in (401, 403, 404, 429):
            raise ServerError(no_answer(self._client, self._asked.model, exchange))
        return exchange

    def _read(self, exchange: Exchange, names: TokenNames) -> Completion:
        result = parse_response(exchange.status, exchange.body, QUESTION.max_tokens or 1, names)
        if isinstance(result, Failure):
            raise ServerError(no_answer(self._client, self._asked.model, exchange))
        return result


def no_answer(client: EndpointClient, model: str, exchange: Exchange) -> str:
    """What to say of a chat request that was not answered, and what may help."""
    where = f"{client.base_url}{CHAT_PATH} (model {model})"
    if exchange.failure is not None:
        return f"{where} does not answer: {exchange.failure.detail}; check --url"
    said = exchange.body[:200].decode("utf-8", "replace")
    hints = {
        401: "give the key with --api-key-file or --api-key-env",
        403: "give the key with --api-key-file or --api-key-env",
        404: "check --url and --model; the server must have /v1/chat/completions",
        429: "its rate limit leaves no room; try later or raise --request-timeout",
    }
    hint = hints.get(exchange.status, "no request can be measured there")
    return f"{where} answers {exchange.status}: {said.strip()}; {hint}"


def _refused(exchange: Exchange) -> bool:
    """Whether the server would not take the request's parameters."""
    if exchange.status != 200:
        return True
    try:
        document = json.loads(exchange.body)
    except (ValueError, RecursionError):
        return True
    return not isinstance(document, dict) or "choices" not in document
