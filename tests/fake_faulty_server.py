"""The mock server with faults planted through its hooks."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from batch_invariance.live_invariance.mock_answer import (
    Answer,
    GeneratedToken,
    GenerationRequest,
    GenerationResult,
    MockBehaviour,
)
from batch_invariance.live_invariance.mock_api import MockApi
from batch_invariance.live_invariance.mock_engine import Counters, Job, MockEngine, SlotState
from batch_invariance.live_invariance.mock_model import Candidate, tokenize
from batch_invariance.live_invariance.mock_server import MockHandler, MockServer
from batch_invariance.live_invariance.mock_wire import (
    BadCall,
    Call,
    Identity,
    Json,
    Reply,
    error_reply,
    json_reply,
)
from fake_faults import DRIFT, METRICS, UNDER_LOAD, Faults, Loss, behaviour_of, die, flood_stderr


class Lost(Exception):
    """This request shall not get its answer."""

    def __init__(self, kind: Loss) -> None:
        super().__init__(kind.value)
        self.kind = kind


@dataclass(frozen=True)
class LossyReply(Reply):
    """A reply that does not arrive as it is."""

    loss: Loss = Loss.HANG


LOST_BODY = json_reply(
    200, {"choices": [{"message": {"role": "assistant", "content": "lost " * 40}, "index": 0}]}
).body

IDLE_S = 0.005
"""How long an engine rests whose every job hangs; its lock is free meanwhile."""


def user_text(prompt: str) -> str:
    """The last user message of a templated prompt."""
    found = re.findall(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", prompt, re.DOTALL)
    return str(found[-1])


def mixed(answer: Answer, donor: str) -> Answer:
    """The answer with its text, from the second token on, overwritten by the donor's."""
    tokens = list(answer.tokens)
    for place, piece in enumerate(tokenize(" " + donor)[: len(tokens) - 1], start=1):
        old = tokens[place]
        first = (Candidate(piece.token_id, piece.text, old.logprob),) if old.top else ()
        top = (*first, *old.top[1:])
        tokens[place] = GeneratedToken(piece.token_id, piece.text, old.logprob, top)
    return replace(answer, tokens=tuple(tokens))


class FaultyEngine(MockEngine):
    """The mock engine with faults in its batches and answers."""

    def __init__(self, slots: int, behaviour: MockBehaviour, faults: Faults) -> None:
        super().__init__(slots, behaviour)
        self.faults = faults
        self._losses = {number: Loss(kind) for kind, number in faults.fail_nth_concurrent.items()}
        self._concurrent: dict[int, int] = {}
        self._donors: dict[int, str] = {}
        self._answered_once = False
        self.n_asked = 0

    def submit(self, request: GenerationRequest) -> Job:
        self.n_asked += 1
        return super().submit(
            replace(request, bias={}) if self.faults.ignore_logit_bias else request
        )

    def seed_text(self, request: GenerationRequest) -> str:
        odd = self.faults.first_reply_odd and not self._answered_once
        self._answered_once = True
        if self.faults.noise_serial:
            return request.prompt + os.urandom(8).hex()
        return request.prompt + " (first)" if odd else request.prompt

    def select_batch(self, active: Sequence[Job]) -> Sequence[Job]:
        batch = active[: 1 if self.faults.one_executor else self.faults.max_batch]
        if len(batch) >= 2:
            for job in batch:
                self._concurrent.setdefault(job.id_task, len(self._concurrent) + 1)
            status = self.faults.die_when_concurrent
            if status is not None and len(self._concurrent) > self.faults.die_after:
                die(status, self.faults.die_message)
        if self.faults.mix_donor_at is not None and len(batch) >= self.faults.mix_donor_at:
            for job, donor in zip(batch, [*batch[1:], batch[0]], strict=True):
                self._donors.setdefault(job.id_task, user_text(donor.request.prompt))
        going = [job for job in batch if self.loss_of(job) is not Loss.HANG_BUSY]
        if not going:
            self._changed.wait(IDLE_S)
        return going

    def counters(self) -> Counters:
        now = super().counters()
        foreign = self.faults.foreign_tokens * self.n_asked
        seen = replace(
            now,
            decodes=now.decodes + foreign,
            predicted_tokens=now.predicted_tokens + foreign,
        )
        return METRICS[self.faults.metrics_shape](seen)

    def loss_of(self, job: Job) -> Loss | None:
        return self._losses.get(self._concurrent.get(job.id_task, 0))

    def wait(self, job: Job) -> GenerationResult:
        result = super().wait(job)
        loss = self.loss_of(job)
        if loss is not None:
            raise Lost(loss)
        donor = self._donors.get(job.id_task)
        return result if donor is None else replace(result, answer=mixed(result.answer, donor))


class FaultyApi(MockApi):
    """The mock surface with faults in what it says."""

    def __init__(self, engine: FaultyEngine, identity: Identity, faults: Faults) -> None:
        super().__init__(engine, identity)
        self.faults = faults
        self._ready_at = time.monotonic() + faults.ready_delay_s
        self._completions = 0

    def handle(self, call: Call) -> Reply:
        if time.monotonic() < self._ready_at and not call.path.endswith("/models"):
            return error_reply(503, "unavailable_error", "Loading model")
        return super().handle(call)

    def authorized(self, call: Call) -> bool:
        return self.faults.ignore_api_key or super().authorized(call)

    def metrics(self, call: Call) -> Reply:
        if self.faults.no_metrics:
            message = "This server does not support metrics endpoint. Start it with `--metrics`"
            return error_reply(501, "not_supported_error", message)
        return super().metrics(call)

    def props(self, call: Call) -> Reply:
        shown = json.loads(super().props(call).body)
        kept = {k: v for k, v in shown.items() if k not in self.faults.props_without}
        return json_reply(200, {**kept, "media_marker": os.urandom(8).hex()})

    def slots(self, call: Call) -> Reply:
        if self.faults.slots_shape == "501":
            message = "This server does not support slots endpoint. Start it with `--slots`"
            return error_reply(501, "not_supported_error", message)
        if self.faults.slots_shape == "404":
            return error_reply(404, "not_found_error", "File Not Found")
        return super().slots(call)

    def slot_json(self, state: SlotState) -> Json:
        if self.faults.slots_shape != "state":
            return super().slot_json(state)
        task = -1 if state.id_task is None else state.id_task
        return {
            "id": state.id_slot,
            "n_ctx": self.identity.slot_ctx,
            "id_task": task,
            "state": int(state.is_processing),
        }

    def chat(self, call: Call) -> Reply:
        self.faults.note(body=call.body.decode())
        self._completions += 1
        self.faults.hold(self._completions)
        if self._completions == self.faults.die_at_completion:
            die(9, self.faults.die_message)
        if self._completions == self.faults.lose_guardian_at_completion:
            os.kill(os.getppid(), signal.SIGKILL)
        if self._completions == self.faults.freeze_at_completion:
            os.kill(os.getpid(), signal.SIGSTOP)
        flood_stderr(self.faults.stderr_flood_bytes)
        try:
            reply = super().chat(call)
        except Lost as lost:
            if lost.kind is Loss.HTTP_500:
                return error_reply(500, "server_error", "planted failure of a concurrent request")
            return LossyReply(200, LOST_BODY, loss=lost.kind)
        if self.faults.error_object_200 and reply.status == 200:
            return replace(error_reply(500, "server_error", "planted error object"), status=200)
        if self.faults.content_type is not None:
            return replace(reply, content_type=self.faults.content_type)
        if self.faults.split_utf8:
            return replace(
                reply, body=reply.body.replace(b'"content":"', b'"content":"\xf0\x9f', 1)
            )
        return reply

    def generation_request(self, body: Json) -> GenerationRequest:
        request = super().generation_request(body)
        needle = self.faults.http_500_for_prompt_containing
        if needle is not None and needle in request.prompt:
            raise BadCall(error_reply(500, "server_error", "planted failure for this prompt"))
        return request

    def completion_json(self, request: GenerationRequest, result: GenerationResult) -> Json:
        body = super().completion_json(request, result)
        if self.faults.cached_tokens_report:
            body["timings"]["cache_n"] = self.faults.cached_tokens_report
            body["usage"]["prompt_tokens_details"]["cached_tokens"] = (
                self.faults.cached_tokens_report
            )
        if self.faults.draft_n_report is not None:
            body["timings"]["draft_n"] = self.faults.draft_n_report
            body["timings"]["draft_n_accepted"] = 0
        if self.faults.under_load is not None:
            UNDER_LOAD[self.faults.under_load](body, result.peak_batch >= 2)
        if self.faults.drift is not None:
            DRIFT[self.faults.drift](body)
        return body


PAGE = b"<!doctype html><title>Welcome</title><p>nginx"
EVENTS = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n: ping\n\ndata: [DONE]\n\n'
DRIP_S = 0.05
OVERSIZED_BYTES = 80 << 20


class FaultyHandler(MockHandler):
    """Delivers lossy replies as they are meant to be lost."""

    def deliver(self, reply: Reply) -> None:
        if not isinstance(reply, LossyReply):
            api = self.server.api
            if isinstance(api, FaultyApi) and api.faults.chunked:
                self._chunked(reply)
            else:
                super().deliver(reply)
            return
        self.close_connection = True
        deliver = {
            Loss.BAD_JSON: self._half,
            Loss.TRUNCATED_JSON: self._cut_off,
            Loss.DRIP: self._drip,
            Loss.RESET: self._reset,
            Loss.PAGE: lambda r: super(FaultyHandler, self).deliver(Reply(200, PAGE, "text/html")),
            Loss.STREAM: lambda r: super(FaultyHandler, self).deliver(
                Reply(200, EVENTS, "text/event-stream")
            ),
            Loss.BROKEN_CHUNK: self._broken_chunk,
            Loss.NO_HTTP: lambda r: self.wfile.write(b"hello, who is there?\r\n"),
            Loss.OVERSIZED: self._oversized,
        }.get(reply.loss, self._nothing)
        deliver(reply)

    def _chunked(self, reply: Reply) -> None:
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for start in range(0, len(reply.body), 1000):
            piece = reply.body[start : start + 1000]
            self.wfile.write(b"%x; note=none\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def _half(self, reply: Reply) -> None:
        super().deliver(Reply(200, reply.body[: len(reply.body) // 2]))

    def _cut_off(self, reply: Reply) -> None:
        self._begin(len(reply.body))
        self.wfile.write(reply.body[: len(reply.body) // 2])

    def _begin(self, length: int) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def _drip(self, reply: Reply) -> None:
        self._begin(1 << 20)
        with suppress(OSError):
            while True:
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(DRIP_S)

    def _reset(self, reply: Reply) -> None:
        # Closing with a linger time of zero sends RST instead of FIN.
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        os.close(self.connection.detach())

    def _broken_chunk(self, reply: Reply) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"ffff\r\n" + reply.body)

    def _oversized(self, reply: Reply) -> None:
        self._begin(OVERSIZED_BYTES)
        piece = b" " * (1 << 20)
        with suppress(OSError):
            for _ in range(OVERSIZED_BYTES // len(piece)):
                self.wfile.write(piece)

    def _nothing(self, reply: Reply) -> None:
        # The thread ends when the client gives up or the server stops.
        self.rfile.read(1)


class FaultyServer(MockServer):
    """The mock server with planted faults."""

    handler_class = FaultyHandler

    def __init__(self, launch: Identity, port: int, faults: Faults) -> None:
        self.faults = faults
        self.launch = launch
        super().__init__(launch.slots, launch.slot_ctx, behaviour_of(faults), launch.api_key, port)

    def busy(self) -> bool:
        """Whether a request runs. Asked by a signal handler: takes no lock that may be held."""
        return any(job is not None for job in self.engine._slots)

    def build_engine(self, behaviour: MockBehaviour) -> FaultyEngine:
        return FaultyEngine(self.launch.slots, behaviour, self.faults)

    def build_api(self) -> FaultyApi:
        assert isinstance(self.engine, FaultyEngine)
        return FaultyApi(self.engine, self.launch, self.faults)
