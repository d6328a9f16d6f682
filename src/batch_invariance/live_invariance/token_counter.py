"""A short-lived server of our own, outside any run: it counts prompts, or answers them one by one.

    with token_counter(choice, known, ready_timeout_s=600.0) as count:
        count([Message("user", "How long am I?")])  # tokens, chat template included

`count` is a `Callable[[Sequence[Message]], int]`; `count.facts` says which server it asks. The
server for counting maps the model and computes nothing: no warm-up, no layers on a GPU, no
repacked copy of the weights, 256 tokens of context, one slot.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from batch_invariance.errors import ServerError
from batch_invariance.invariance_diff.digest import canonical_json
from batch_invariance.invariance_diff.model import Item, Message
from batch_invariance.invariance_diff.request import Sampling, build_body
from batch_invariance.invariance_diff.schedule import serial_pass
from batch_invariance.live_invariance.dispatch import Dispatcher, LaneLost
from batch_invariance.live_invariance.flags import UserFlags, canonical
from batch_invariance.live_invariance.host import NO_LIMITS, LaunchLimits
from batch_invariance.live_invariance.http import Exchange
from batch_invariance.live_invariance.interrupts import check, deferred
from batch_invariance.live_invariance.prepare import (
    ServerChoice,
    ServerKnowledge,
    footprint,
    launch_spec,
)
from batch_invariance.live_invariance.server import (
    LaunchSettings,
    LlamaLauncher,
    OwnedServer,
    ServerFacts,
    check_fits,
)

COUNTER_CTX = 256
"""The smallest context that llama-server gives a slot; counting does not depend on it."""
COUNT_TIMEOUT_S = 60.0
DETAIL_LIMIT = 300
# What spares the counting server work, each with the spellings under which the user decides it.
_SPARING: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("--no-warmup",), ("--warmup", "--no-warmup")),
    (("-ngl", "0"), ("-ngl", "--gpu-layers", "--n-gpu-layers")),
    (("--no-repack",), ("--repack", "-nr", "--no-repack")),
)


class TokenCounter:
    """Counts prompts as the server sees them: its chat template, then its tokenizer."""

    def __init__(self, server: OwnedServer) -> None:
        self.facts: ServerFacts = server.facts
        self._server = server

    def __call__(self, messages: Sequence[Message]) -> int:
        """Tokens of the prompt that a chat completion of `messages` starts from.

        Raises ServerError where the server cannot tell, such as a template that refuses a role;
        Interrupted for a signal that has come in.
        """
        chat = [{"role": m.role, "content": m.content} for m in messages]
        prompt = self._ask("/apply-template", {"messages": chat}, "prompt")
        asked = {"content": prompt, "add_special": True, "parse_special": True}
        tokens = self._ask("/tokenize", asked, "tokens")
        if not isinstance(prompt, str) or not isinstance(tokens, list):
            raise ServerError("the server's /apply-template and /tokenize answer in no known form")
        return len(tokens)

    def _ask(self, path: str, payload: dict[str, object], key: str) -> object:
        check()
        exchange = self._server.client.post(path, canonical_json(payload), COUNT_TIMEOUT_S)
        document = _object(exchange)
        if key in document:
            return document[key]
        if self._server.dead.is_set():
            raise ServerError(f"the server died while it counted prompts, at {path}")
        raise ServerError(
            f"the server cannot count prompts: {path} answered {_said(exchange)}; "
            "use a build with /tokenize and /apply-template"
        )


@contextmanager
def token_counter(
    choice: ServerChoice,
    known: ServerKnowledge,
    ready_timeout_s: float,
    limits: LaunchLimits = NO_LIMITS,
) -> Iterator[TokenCounter]:
    """A counter that lives as long as the context. The user's flags hold: they name the template.

    Raises ServerError when the launch fails or the server cannot count.
    """
    sparing = _sparing_flags(choice.flags, known.known_flags)
    flags = UserFlags((*choice.flags.flags, *sparing))
    counting = replace(choice, ctx=COUNTER_CTX, flags=flags)
    # It maps the weights without reading them, so that their size says nothing about its memory.
    unguarded = LaunchLimits(limits.reserved_ports, memory_guard=False)
    with serving(counting, known, ready_timeout_s, unguarded) as server:
        yield TokenCounter(server)


def _sparing_flags(given: UserFlags, known: frozenset[str] | None) -> tuple[str, ...]:
    """What to add: flags that the build knows and the user has not decided."""
    decided = {canonical(token) for token in given.flags}
    added: list[str] = []
    for words, spellings in _SPARING:
        if known is not None and words[0] in known and not decided & set(spellings):
            added += words
    return tuple(added)


@contextmanager
def serving(
    choice: ServerChoice,
    known: ServerKnowledge,
    ready_timeout_s: float,
    limits: LaunchLimits = NO_LIMITS,
) -> Iterator[OwnedServer]:
    """A server with one slot that lives as long as the context, proved to be ours and as asked.

    Signals are raised where a count or an answer is awaited. Raises GuardRefused, and ServerError
    when the launch fails.
    """
    need = footprint(choice, 1).total_bytes
    limits.check(need)
    settings = LaunchSettings(
        launch_spec(choice, known, 1),
        limits.reserved_ports,
        ready_timeout_s,
        lambda parallel: limits.check(need),
    )
    with deferred():
        server = LlamaLauncher(settings).launch(1)
        try:
            check_fits(server.facts, choice.model.name)
            yield server
        finally:
            server.stop()
        check()


def ask_each(
    server: OwnedServer, items: Sequence[Item], sampling: Sampling, timeout_s: float
) -> list[Exchange]:
    """Asks every item once, one after the other, with the body that a run would send.

    Whatever came back, in the items' order. Raises ServerError when the server dies.
    """
    bodies = [build_body(item, sampling) for item in items]
    exchanges: list[Exchange] = []
    with Dispatcher(server.client, 1, timeout_s, server.dead) as dispatcher:
        try:
            for answer in dispatcher.run(
                serial_pass(len(items), 1), lambda entry: bodies[entry.item]
            ):
                if not isinstance(answer, int):
                    exchanges.append(answer.exchange)
        except LaneLost as lost:
            raise ServerError(f"{lost}; raise --request-timeout") from lost
    if server.dead.is_set():
        raise ServerError(f"the server died after {len(exchanges)} of {len(items)} requests")
    return exchanges


def _object(exchange: Exchange) -> dict[str, object]:
    try:
        document = json.loads(exchange.body) if exchange.ok else None
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _said(exchange: Exchange) -> str:
    if exchange.failure is not None:
        return exchange.failure.detail
    text = exchange.body.decode("utf-8", "replace").strip()
    return f"HTTP {exchange.status} {text[:DETAIL_LIMIT]}".strip()
