"""What can be wrong with the fake llama-server, and the pieces that make it so."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from batch_invariance.live_invariance.mock_answer import BatchDivergence, MockBehaviour
from batch_invariance.live_invariance.mock_engine import Counters
from batch_invariance.live_invariance.mock_wire import Json


class Loss(str, Enum):
    """How one request is lost.

    HANG never answers, its slot is idle again; HANG_BUSY never answers and its slot stays busy.
    TRUNCATED_JSON closes in the middle of the body; BAD_JSON sends half a body as if it were all;
    DRIP sends a body byte by byte without end. PAGE is a page for people with status 200, STREAM
    the events that were not asked for. BROKEN_CHUNK announces a chunk that does not come. NO_HTTP
    is no HTTP at all. OVERSIZED is a body larger than any answer.
    """

    HTTP_500 = "http_500"
    HANG = "hang"
    HANG_BUSY = "hang_busy"
    RESET = "reset"
    TRUNCATED_JSON = "truncated_json"
    BAD_JSON = "bad_json"
    DRIP = "drip"
    PAGE = "page"
    STREAM = "stream"
    BROKEN_CHUNK = "broken_chunk"
    NO_HTTP = "no_http"
    OVERSIZED = "oversized"


HOLD_POLL_S = 0.02


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
    `metrics_shape`: a key of `METRICS`. `drift`: a key of `DRIFT`. `props_without`: fields that
    `/props` does not have. `foreign_tokens`: so many more tokens than asked for are counted with
    each completion. `freeze_at_completion`: the whole process stands still from then on.
    `lose_guardian_at_completion`: it kills its parent. `daemonise`: the process that was started
    ends and leaves the server to itself. `busy_ignores_sigterm`: a first SIGTERM while a request
    runs is not heeded, a second ends it with exit code 1. `log_limit_bytes`: nothing more can be
    written to the log. `old_build`: it knows the flags of `OLD_HELP` alone and ends at any other.
    `spare_reference`: a launch with one slot has no faults. `chunked`: every body comes in chunks.
    `content_type`: of completions. `hold_until`: a file beside the journal without which nothing is
    answered after the second completion. `behaviour`: fields of `MockBehaviour`. `journal`: a file
    to which the server appends, as JSON Lines, one object for its start (command line, environment,
    key), one with the body of each completion that it is asked for, and one for each SIGTERM.
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
    metrics_shape: str = "plain"
    drift: str | None = None
    props_without: tuple[str, ...] = ()
    foreign_tokens: int = 0
    freeze_at_completion: int | None = None
    lose_guardian_at_completion: int | None = None
    daemonise: bool = False
    busy_ignores_sigterm: bool = False
    log_limit_bytes: int | None = None
    old_build: bool = False
    spare_reference: bool = False
    chunked: bool = False
    content_type: str | None = None
    hold_until: str | None = None
    behaviour: Mapping[str, object] = field(default_factory=dict)
    journal: str | None = None

    def for_launch(self, slots: int) -> Faults:
        """The faults of a launch with so many slots."""
        if self.spare_reference and slots == 1:
            return Faults(behaviour=self.behaviour, journal=self.journal)
        return self

    def hold(self, n_completions: int) -> None:
        """Wait for the file without which there is no answer."""
        if self.hold_until is not None and self.journal is not None and n_completions > 2:
            while not os.path.exists(os.path.join(os.path.dirname(self.journal), self.hold_until)):
                time.sleep(HOLD_POLL_S)

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


def without_timings(body: Json) -> None:
    """Counts in `usage` alone."""
    del body["timings"]


def cache_at_the_top(body: Json) -> None:
    """The cache's counter as builds of 2024 have it."""
    del body["timings"]["cache_n"]
    del body["usage"]["prompt_tokens_details"]
    body["tokens_cached"] = 0


def without_cache_counters(body: Json) -> None:
    """Nothing says what came out of a cache."""
    del body["timings"]["cache_n"]
    del body["usage"]["prompt_tokens_details"]


def without_usage(body: Json) -> None:
    """Nothing counts the prompt."""
    del body["usage"]


def without_token_ids(body: Json) -> None:
    """Logprobs by text alone, as the OpenAI API has them."""
    for row in body["choices"][0]["logprobs"]["content"]:
        del row["id"]


def old_probabilities(body: Json) -> None:
    """Probabilities as builds of 2024 have them, beside the choices."""
    rows = body["choices"][0].pop("logprobs")["content"]
    body["completion_probabilities"] = [
        {"content": row["token"], "probs": [{"tok_str": row["token"], "prob": 0.5}]} for row in rows
    ]


def without_finish_reason(body: Json) -> None:
    """It does not say why it ended."""
    body["choices"][0]["finish_reason"] = None


def all_reasoning(body: Json) -> None:
    """The whole answer is reasoning; the content is null."""
    message = body["choices"][0]["message"]
    message["reasoning_content"], message["content"] = message["content"], None


def new_fields(body: Json) -> None:
    """Fields of a build to come, of any type."""
    body["__new"] = {"a": [None, 1.5, {"b": "c"}]}
    body["choices"][0]["message"]["refusal"] = None
    body["timings"]["new_n"] = "many"


DRIFT: Mapping[str, Callable[[Json], None]] = {
    "without_timings": without_timings,
    "cache_at_the_top": cache_at_the_top,
    "without_cache_counters": without_cache_counters,
    "without_usage": without_usage,
    "without_token_ids": without_token_ids,
    "old_probabilities": old_probabilities,
    "without_finish_reason": without_finish_reason,
    "all_reasoning": all_reasoning,
    "new_fields": new_fields,
}

RESET_AFTER = 40
"""Decodes after which a resetting counter begins again."""


def backwards(now: Counters) -> Counters:
    """Counters that run down from a large number."""
    top = 500_000
    return replace(
        now,
        decodes=top - now.decodes,
        predicted_tokens=top - now.predicted_tokens,
        prompt_tokens=top - now.prompt_tokens,
    )


def reset(now: Counters) -> Counters:
    """Counters that begin again in the middle, as those of a server that was started anew."""
    again = RESET_AFTER if now.decodes > RESET_AFTER else 0
    return replace(
        now, decodes=now.decodes - again, predicted_tokens=max(0, now.predicted_tokens - again)
    )


METRICS: Mapping[str, Callable[[Counters], Counters]] = {
    "plain": lambda now: now,
    "backwards": backwards,
    "reset": reset,
}


def flood_stderr(n_bytes: int) -> None:
    """Write about this much to stderr, in lines; a disk that is full is not its trouble."""
    line = "W srv  flood: " + "x" * 985 + "\n"
    with contextlib.suppress(OSError):
        for _ in range(n_bytes // len(line) + (n_bytes > 0)):
            sys.stderr.write(line)
        sys.stderr.flush()
