"""The mock's HTTP surface without HTTP: a call in, a reply out.

Bodies have the shape that llama-server b10068 gives them (captured from it).
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Mapping

from batch_invariance.live_invariance.mock_answer import GenerationRequest, GenerationResult
from batch_invariance.live_invariance.mock_engine import MockEngine, SlotState
from batch_invariance.live_invariance.mock_model import (
    CHAT_TEMPLATE,
    VOCABULARY_SIZE,
    tokenize,
)
from batch_invariance.live_invariance.mock_wire import (
    BadCall,
    Call,
    Identity,
    Json,
    Reply,
    bias_of,
    error_reply,
    json_reply,
    metrics_reply,
    parsed,
    prompt_of,
    token_json,
)

BUILD_INFO = "mock-1"
_MAX_TOP = 64
_OPEN_PATHS = ("/health", "/v1/health", "/v1/models", "/models")


class MockApi:
    """Answers calls from one engine. A subclass may override single routes to plant faults."""

    def __init__(self, engine: MockEngine, identity: Identity) -> None:
        self.engine = engine
        self.identity = identity

    def handle(self, call: Call) -> Reply:
        """Answer a call; every outcome is a reply, except a stop of the engine (ServerError)."""
        path = call.path.partition("?")[0]
        if path not in _OPEN_PATHS and not self.authorized(call):
            return error_reply(401, "authentication_error", "Invalid API Key")
        route = self.routes().get((call.method, path))
        if route is None:
            return error_reply(404, "not_found_error", "File Not Found")
        try:
            return route(call)
        except BadCall as error:
            return error.reply

    def routes(self) -> Mapping[tuple[str, str], Callable[[Call], Reply]]:
        """Map method and path to what answers them."""
        return {
            ("GET", "/health"): self.health,
            ("GET", "/v1/health"): self.health,
            ("GET", "/v1/models"): self.models,
            ("GET", "/models"): self.models,
            ("GET", "/props"): self.props,
            ("GET", "/slots"): self.slots,
            ("GET", "/metrics"): self.metrics,
            ("POST", "/tokenize"): self.tokenize,
            ("POST", "/apply-template"): self.apply_template,
            ("POST", "/v1/chat/completions"): self.chat,
            ("POST", "/chat/completions"): self.chat,
        }

    def authorized(self, call: Call) -> bool:
        """Check the Bearer key, where one is set."""
        key = self.identity.api_key
        expected = f"Bearer {key}".encode()
        return key is None or hmac.compare_digest(call.authorization.encode(), expected)

    def health(self, call: Call) -> Reply:
        """Say that the server is ready."""
        return json_reply(200, {"status": "ok"})

    def models(self, call: Call) -> Reply:
        """List the one model."""
        path = self.identity.model_path
        meta = {"n_vocab": VOCABULARY_SIZE, "n_ctx": self.identity.slot_ctx, "ftype": "mock"}
        entry = {"id": path, "object": "model", "owned_by": "llamacpp", "meta": meta}
        return json_reply(200, {"object": "list", "data": [entry]})

    def props(self, call: Call) -> Reply:
        """Say what the server is."""
        identity = self.identity
        return json_reply(
            200,
            {
                "default_generation_settings": {"params": {}, "n_ctx": identity.slot_ctx},
                "total_slots": identity.slots,
                "model_alias": identity.model_path,
                "model_ftype": "mock",
                "model_path": identity.model_path,
                "endpoint_slots": True,
                "endpoint_props": False,
                "endpoint_metrics": True,
                "chat_template": CHAT_TEMPLATE,
                "bos_token": "<|im_start|>",
                "eos_token": "<|im_end|>",
                "build_info": BUILD_INFO,
                "is_sleeping": False,
            },
        )

    def slots(self, call: Call) -> Reply:
        """Show each slot at this moment."""
        return json_reply(200, [self.slot_json(state) for state in self.engine.slots()])

    def slot_json(self, state: SlotState) -> Json:
        """Show one slot; an idle one keeps its last task, as the real server's does."""
        shown: Json = {
            "id": state.id_slot,
            "n_ctx": self.identity.slot_ctx,
            "speculative": False,
            "is_processing": state.is_processing,
        }
        if state.id_task is not None:
            shown["id_task"] = state.id_task
            shown["next_token"] = [
                {"has_next_token": state.is_processing, "n_decoded": state.n_decoded}
            ]
        return shown

    def metrics(self, call: Call) -> Reply:
        """Show the counters."""
        return metrics_reply(self.engine.counters())

    def tokenize(self, call: Call) -> Reply:
        """Cut `content` into token ids."""
        body = parsed(call)
        pieces = tokenize(str(body.get("content", "")))
        if body.get("with_pieces"):
            return json_reply(
                200, {"tokens": [{"id": one.token_id, "piece": one.text} for one in pieces]}
            )
        return json_reply(200, {"tokens": [one.token_id for one in pieces]})

    def apply_template(self, call: Call) -> Reply:
        """Render `messages` as the prompt."""
        return json_reply(200, {"prompt": prompt_of(parsed(call))})

    def chat(self, call: Call) -> Reply:
        """Complete a chat."""
        request = self.generation_request(parsed(call))
        job = self.engine.submit(request)
        call.submitted()
        return json_reply(200, self.completion_json(request, self.engine.wait(job)))

    def generation_request(self, body: Json) -> GenerationRequest:
        """Read a chat body. Raises BadCall: no messages, or no room in the slot's context."""
        prompt = prompt_of(body)
        prompt_tokens = len(tokenize(prompt))
        room = self.identity.slot_ctx - prompt_tokens
        wanted = body.get("max_tokens")
        if room < 1 or (isinstance(wanted, int) and wanted > room):
            message = (
                f"request ({prompt_tokens} tokens) exceeds the available context size "
                f"({self.identity.slot_ctx} tokens), try increasing it"
            )
            numbers = {"n_prompt_tokens": prompt_tokens, "n_ctx": self.identity.slot_ctx}
            raise BadCall(error_reply(400, "exceed_context_size_error", message, **numbers))
        top = body.get("top_logprobs", 0) if body.get("logprobs") else 0
        return GenerationRequest(
            prompt=prompt,
            prompt_tokens=prompt_tokens,
            max_tokens=wanted if isinstance(wanted, int) and wanted > 0 else room,
            id_slot=body.get("id_slot"),
            bias=bias_of(body),
            ignore_eos=bool(body.get("ignore_eos")),
            top=min(int(top), _MAX_TOP),
            logprobs=bool(body.get("logprobs")),
        )

    def completion_json(self, request: GenerationRequest, result: GenerationResult) -> Json:
        """Build the body of a completion."""
        answer = result.answer
        choice: Json = {
            "finish_reason": answer.finish.value,
            "index": 0,
            "message": {"role": "assistant", "content": answer.text},
        }
        if request.logprobs:
            choice["logprobs"] = {"content": [token_json(token) for token in answer.tokens]}
        n_prompt, n_predicted = request.prompt_tokens, len(answer.tokens)
        return {
            "choices": [choice],
            "created": int(time.time()),
            "model": self.identity.model_path,
            "system_fingerprint": BUILD_INFO,
            "object": "chat.completion",
            "usage": {
                "completion_tokens": n_predicted,
                "prompt_tokens": n_prompt,
                "total_tokens": n_prompt + n_predicted,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
            "id": f"chatcmpl-{result.id_task}",
            "timings": {
                "cache_n": 0,
                "prompt_n": n_prompt,
                "prompt_ms": result.prompt_s * 1000,
                "predicted_n": n_predicted,
                "predicted_ms": result.predicted_s * 1000,
            },
        }
