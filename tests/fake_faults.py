"""What can be wrong with the fake llama-server, and the pieces that make it so."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from batch_invariance.live_invariance.mock_answer import BatchDivergence, MockBehaviour
from batch_invariance.live_invariance.mock_wire import Json


class Loss(str, Enum):
    """How one request is lost.

    HANG never answers, its slot is idle again; HANG_BUSY never answers and its slot stays busy.
    TRUNCATED_JSON closes in the middle of the body; BAD_JSON sends half a body as if it were all.
    """

    HTTP_500 = "http_500"
    HANG = "hang"
    HANG_BUSY = "hang_busy"
    RESET = "reset"
    TRUNCATED_JSON = "truncated_json"
    BAD_JSON = "bad_json"


@dataclass(frozen=True)
class Faults:
    """What is wrong with the server; the default is nothing.

    "Concurrent" requests are those that shared a decode with another one. They are counted from 1
    in the order of joining (slot order within a wave); `fail_nth_concurrent` maps a kind of loss
    to the number that it hits, and the server dies with the first number above `die_after`. A
    warm-up wave counts too, so add its size. Exit statuses are as in subprocess: 9 is exit code
    9, -9 is SIGKILL. `die_at_completion`: exit code 9 at the n-th completion asked for, warm-up
    included, which is certain in serial arms. `max_batch`: a decode takes in no more slots than
    this. `slots_shape`: is_processing, state, 501 or 404. `under_load`: a key of `UNDER_LOAD`.
    `behaviour`: fields of `MockBehaviour`. `journal`: a file to which the server appends, as JSON
    Lines, one object for its start (command line, environment, key) and one with the body of each
    completion that it is asked for.
    """

    slots_override: int | None = None
    cap_parallel: int | None = None
    wrong_ctx: int | None = None
    one_executor: bool = False
    max_batch: int | None = None
    ready_delay_s: float = 0.0
    error_object_200: bool = False
    http_500_for_prompt_containing: str | None = None
    fail_nth_concurrent: Mapping[str, int] = field(default_factory=dict)
    die_at_completion: int | None = None
    die_when_concurrent: int | None = None
    die_after: int = 0
    die_at_start: int | None = None
    die_message: str = "ggml_abort: GGML_ASSERT(fake fault) failed"
    noise_serial: bool = False
    first_reply_odd: bool = False
    stderr_flood_bytes: int = 0
    slots_shape: str = "is_processing"
    no_metrics: bool = False
    mix_donor_at: int | None = None
    under_load: str | None = None
    ignore_logit_bias: bool = False
    cached_tokens_report: int = 0
    draft_n_report: int | None = None
    ignore_api_key: bool = False
    ignore_sigterm: bool = False
    split_utf8: bool = False
    launcher_without_exec: bool = False
    behaviour: Mapping[str, object] = field(default_factory=dict)
    journal: str | None = None

    def note(self, **what: object) -> None:
        """Append to the journal, where one is kept; one write, so that threads do not mix."""
        if self.journal is not None:
            with open(self.journal, "a") as file:
                file.write(json.dumps(what) + "\n")


def behaviour_of(faults: Faults) -> MockBehaviour:
    given: dict[str, Any] = dict(faults.behaviour)
    kind = BatchDivergence(given.pop("batch_divergence", BatchDivergence.NONE))
    return MockBehaviour(batch_divergence=kind, **given)


def die(status: int, message: str) -> None:
    """End the process at once, by a signal (negative) or an exit code."""
    print(message, file=sys.stderr, flush=True)
    if status < 0:
        os.kill(os.getpid(), -status)
        signal.pause()
    os._exit(status)


def other_finish_reason(body: Json, loaded: bool) -> None:
    """An answer that was cut off at its limit is said to have stopped by itself."""
    if loaded:
        body["choices"][0]["finish_reason"] = "stop"


def more_tokens(body: Json, loaded: bool) -> None:
    """One more token, of empty text."""
    if loaded:
        listed = body["choices"][0].get("logprobs", {}).get("content")
        if listed:
            listed.append({**listed[-1], "token": "", "bytes": []})
        body["usage"]["completion_tokens"] += 1
        body["usage"]["total_tokens"] += 1
        body["timings"]["predicted_n"] += 1


def other_tool_arguments(body: Json, loaded: bool) -> None:
    """A tool call in every answer, with a random id; its arguments differ under load."""
    arguments = '{"city":"Oslo"}' if loaded else '{"city":"Rome"}'
    call = {"name": "weather", "arguments": arguments}
    body["choices"][0]["message"]["tool_calls"] = [
        {"type": "function", "function": call, "id": os.urandom(8).hex()}
    ]


def other_reasoning(body: Json, loaded: bool) -> None:
    """Reasoning in every answer; it differs under load."""
    thought = "I think in company." if loaded else "I think alone."
    body["choices"][0]["message"]["reasoning_content"] = thought


UNDER_LOAD: Mapping[str, Callable[[Json, bool], None]] = {
    "finish_reason": other_finish_reason,
    "token_count": more_tokens,
    "tool_args": other_tool_arguments,
    "reasoning": other_reasoning,
}


def flood_stderr(n_bytes: int) -> None:
    """Write about this much to stderr, in lines."""
    line = "W srv  flood: " + "x" * 985 + "\n"
    for _ in range(n_bytes // len(line) + (n_bytes > 0)):
        sys.stderr.write(line)
    sys.stderr.flush()
