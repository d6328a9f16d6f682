"""What a server of someone else says of itself, read from the places where engines say it.

Only named fields are taken: some of these answers hold the server's own keys (SGLang's server info
does).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from batch_invariance.invariance_diff.endpoint import Engine, Offered
from batch_invariance.invariance_diff.records import Identity
from batch_invariance.invariance_diff.response import MAX_COUNT
from batch_invariance.live_invariance.endpoint_client import EndpointClient
from batch_invariance.live_invariance.endpoint_telemetry import METRICS_PATH, SLOTS
from batch_invariance.live_invariance.http import Client, Exchange
from batch_invariance.live_invariance.prometheus import engine_of, offered_by, read_samples
from batch_invariance.live_invariance.telemetry import busy_slots, read_identity

ASK_TIMEOUT_S = 10.0
TEXT_LIMIT = 200
MODELS = "/v1/models"
ASKED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("/version", ("version",)),
    ("/props", ("build_info", "model_path", "total_slots")),
    ("/server_info", ("version", "model_path")),
    ("/get_server_info", ("version", "model_path")),
    ("/info", ("version", "sha", "model_id", "model_sha", "docker_label")),
    ("/api/version", ("version",)),
)
"""Route -> the fields taken: vLLM, llama.cpp, SGLang (new and old), TGI, Ollama."""
VERSIONS = (
    "/version version",
    "/props build_info",
    "/server_info version",
    "/get_server_info version",
    "/info version",
    "/api/version version",
    "system_fingerprint",
)
"""Where a version stands, best first."""
PROCESS_START = "process_start_time_seconds"
"""Of every Python server with a Prometheus client: another value is another process."""


@dataclass(frozen=True, slots=True)
class Told:
    """One look at a server: facts by place, and in the terms of `records.Identity`."""

    facts: Mapping[str, str]
    identity: Identity


@dataclass(frozen=True, slots=True)
class Watchable:
    """Whose metrics they are, and which of them are there."""

    engine: Engine
    offered: Offered


def look(client: EndpointClient, metrics: Client, model: str) -> Told:
    """Asks the server who it is. Nothing is generated for it."""
    facts: dict[str, str] = {}
    answers: dict[str, Any] = {}
    for route, fields in ASKED:
        answer = _json(client.get(route, ASK_TIMEOUT_S))
        answers[route] = answer
        if isinstance(answer, dict):
            for field in fields:
                _keep(facts, f"{route} {field}", answer.get(field))
    listed = client.get(MODELS, ASK_TIMEOUT_S)
    _keep(facts, "Server header", listed.headers.get("server"))
    entry = _entry(_json(listed), model)
    for field in ("id", "root", "owned_by", "max_model_len"):
        _keep(facts, f"{MODELS} {field}", entry.get(field))
    started = read_samples(metrics.get(METRICS_PATH, ASK_TIMEOUT_S).body, PROCESS_START)
    _keep(facts, PROCESS_START, started.get(PROCESS_START))
    _keep(facts, "system_fingerprint", ", ".join(sorted(client.fingerprints)) or None)
    return Told(facts, _identity(client, facts, entry))


def _identity(
    client: EndpointClient, facts: Mapping[str, str], entry: Mapping[str, Any]
) -> Identity:
    own = read_identity(client) if "/props build_info" in facts else None
    place = next((name for name in VERSIONS if name in facts), None)
    length = entry.get("max_model_len")
    return Identity(
        total_slots=None if own is None else own.total_slots,
        n_ctx=own.n_ctx if own is not None else _whole(length),
        model=_text(entry.get("id")),
        build=None if place is None else f"{place} {facts[place]}",
        chat_template_sha256=None if own is None else own.chat_template_sha256,
    )


def watchable(client: Client, metrics: Client, facts: Mapping[str, str]) -> Watchable:
    """Which engine serves, and what it lets us watch."""
    body = metrics.get(METRICS_PATH, ASK_TIMEOUT_S).body
    engine = engine_of(body)
    if engine is not None:
        return Watchable(engine, offered_by(engine, body))
    none = Offered(None, None, None, None, None)
    if "/props build_info" in facts:
        slots = busy_slots(client.get(SLOTS, ASK_TIMEOUT_S))
        running = SLOTS if slots is not None else None
        return Watchable(Engine.LLAMA_CPP, Offered(None, None, None, None, running))
    by_owner = {"vllm": Engine.VLLM, "sglang": Engine.SGLANG, "llamacpp": Engine.LLAMA_CPP}
    engine = by_owner.get(facts.get(f"{MODELS} owned_by", "").lower())
    if engine is None and "/info docker_label" in facts:
        engine = Engine.TGI
    if engine is None and "/api/version version" in facts:
        engine = Engine.OLLAMA
    return Watchable(engine or Engine.OTHER, none)


def _entry(listing: Any, model: str) -> Mapping[str, Any]:
    """The entry of `model` in a list of models; empty where it is not listed."""
    entries = listing.get("data") if isinstance(listing, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("id") == model:
            return entry
    return {}


def _keep(facts: dict[str, str], name: str, value: object) -> None:
    if isinstance(value, (str, int, float)) and not isinstance(value, bool) and value != "":
        facts[name] = str(value)[:TEXT_LIMIT]


def _json(exchange: Exchange) -> Any:
    if not exchange.ok:
        return None
    try:
        return json.loads(exchange.body)
    except (ValueError, RecursionError):
        return None


def _whole(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < MAX_COUNT else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
