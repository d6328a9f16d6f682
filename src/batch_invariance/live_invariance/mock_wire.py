"""How the mock reads calls and spells replies, apart from what any route does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from batch_invariance.live_invariance.mock_answer import GeneratedToken
from batch_invariance.live_invariance.mock_engine import Counters
from batch_invariance.live_invariance.mock_model import Candidate, apply_template

Json = dict[str, Any]

_METRICS = (
    ("prompt_tokens_total", "counter", "Number of prompt tokens processed."),
    ("prompt_seconds_total", "counter", "Prompt process time"),
    ("tokens_predicted_total", "counter", "Number of generation tokens processed."),
    ("tokens_predicted_seconds_total", "counter", "Predict process time"),
    ("n_decode_total", "counter", "Total number of llama_decode() calls"),
    ("n_tokens_max", "counter", "Largest observed n_tokens."),
    ("prompt_tokens_seconds", "gauge", "Average prompt throughput in tokens/s."),
    ("predicted_tokens_seconds", "gauge", "Average generation throughput in tokens/s."),
    ("requests_processing", "gauge", "Number of requests processing."),
    ("requests_deferred", "gauge", "Number of requests deferred."),
    ("n_busy_slots_per_decode", "gauge", "Average number of busy slots per llama_decode() call"),
)


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request. `submitted` is called once its work is queued in the engine."""

    method: str
    path: str
    authorization: str
    body: bytes
    submitted: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Reply:
    """One HTTP response."""

    status: int
    body: bytes
    content_type: str = "application/json; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Identity:
    """What the server says of itself; `slot_ctx` is the context of one slot, in tokens."""

    slots: int
    slot_ctx: int
    model_path: str = "mock-model.gguf"
    api_key: str | None = None


class BadCall(Exception):
    """A call that cannot be served; carries its reply."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


def json_reply(status: int, value: object) -> Reply:
    """Encode a value as llama-server does: compact, not escaped to ASCII."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Reply(status, text.encode("utf-8", "replace"))


def error_reply(status: int, kind: str, message: str, **more: int) -> Reply:
    """Build the error object that llama-server sends."""
    return json_reply(status, {"error": {"code": status, "message": message, "type": kind, **more}})


def metrics_reply(now: Counters) -> Reply:
    """Show the counters as Prometheus text; values have six significant digits."""
    values = (
        now.prompt_tokens,
        now.prompt_s,
        now.predicted_tokens,
        now.predicted_s,
        now.decodes,
        now.longest,
        now.prompt_tokens / now.prompt_s if now.prompt_s else 0,
        now.predicted_tokens / now.predicted_s if now.predicted_s else 0,
        now.processing,
        now.deferred,
        now.busy_slots / max(1, now.decodes),
    )
    lines = [
        f"# HELP llamacpp:{name} {text}\n# TYPE llamacpp:{name} {kind}\n"
        f"llamacpp:{name} {value:.6g}\n"
        for (name, kind, text), value in zip(_METRICS, values, strict=True)
    ]
    return Reply(200, "".join(lines).encode(), "text/plain; version=0.0.4")


def parsed(call: Call) -> Json:
    """Read the body. Raises BadCall: no JSON object."""
    try:
        value = json.loads(call.body)
    except ValueError as error:
        raise BadCall(error_reply(500, "server_error", f"parse error: {error}")) from error
    if not isinstance(value, dict):
        raise BadCall(error_reply(400, "invalid_request_error", "the body must be a JSON object"))
    return value


def prompt_of(body: Json) -> str:
    """Render the messages of a body. Raises BadCall: there are none."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise BadCall(error_reply(400, "invalid_request_error", "'messages' is required"))
    return apply_template([(str(one.get("role")), str(one.get("content"))) for one in messages])


def bias_of(body: Json) -> dict[int, float]:
    """Read `logit_bias` in both spellings: `[[id, number or false], ...]` and `{"id": number}`."""
    value = body.get("logit_bias") or []
    pairs = list(value.items()) if isinstance(value, dict) else value
    try:
        return {
            int(token_id): float("-inf") if amount is False else float(amount)
            for token_id, amount in pairs
        }
    except (TypeError, ValueError) as error:
        message = f"'logit_bias' is malformed: {error}"
        raise BadCall(error_reply(400, "invalid_request_error", message)) from error


def token_json(token: GeneratedToken) -> Json:
    """Spell one entry of `logprobs.content`."""
    own = Candidate(token.token_id, token.text, token.logprob)
    return {**_candidate_json(own), "top_logprobs": [_candidate_json(one) for one in token.top]}


def _candidate_json(one: Candidate) -> Json:
    return {
        "id": one.token_id,
        "token": one.text,
        "bytes": list(one.text.encode()),
        "logprob": one.logprob,
    }
