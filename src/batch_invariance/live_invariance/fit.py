"""Whether every item fits the context, counted by the server's own template and tokenizer.

Asked before the arms start, so that an item that cannot fit is refused by name. An item that fits
whatever its tokenization (a token is at least one byte of text) is not counted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from batch_invariance.errors import WorkSetError
from batch_invariance.invariance_diff.digest import canonical_json
from batch_invariance.invariance_diff.model import Item
from batch_invariance.invariance_diff.request import Sampling, max_tokens_of
from batch_invariance.live_invariance.http import Client, Exchange

TIMEOUT_S = 30.0


def check_items_fit(client: Client, items: Sequence[Item], sampling: Sampling, n_ctx: int) -> None:
    """Raises WorkSetError naming every item whose prompt and `max_tokens` exceed `n_ctx`."""
    frame = _template(client, [{"role": "user", "content": ""}])
    overhead = len(frame.encode("utf-8", "surrogatepass")) if frame is not None else n_ctx
    issues = []
    for item in items:
        limit = max_tokens_of(item, sampling)
        size = sum(len(m.content.encode("utf-8", "surrogatepass")) for m in item.messages)
        # Each further message costs at most the frame of a whole chat.
        if size + overhead * len(item.messages) + limit <= n_ctx:
            continue
        count = count_prompt_tokens(client, item)
        if count is not None and count + limit > n_ctx:
            issues.append(
                f"item {item.id!r} has {count} prompt tokens and asks for {limit} more, "
                f"a slot has {n_ctx}: shorten it, lower max_tokens or raise --ctx"
            )
    if issues:
        raise WorkSetError("work-set does not fit the context", issues)


def count_prompt_tokens(client: Client, item: Item) -> int | None:
    """Tokens of the prompt as the server will see it; None where it cannot be asked.

    A server without /apply-template counts the bare text, which is less than the prompt.
    """
    messages = [{"role": m.role, "content": m.content} for m in item.messages]
    text = _template(client, messages)
    if text is None:
        text = "\n".join(m.content for m in item.messages)
    body = canonical_json({"content": text, "add_special": True, "parse_special": True})
    document = _object(client.post("/tokenize", body, TIMEOUT_S))
    tokens = document.get("tokens")
    return len(tokens) if isinstance(tokens, list) else None


def _template(client: Client, messages: list[dict[str, str]]) -> str | None:
    body = canonical_json({"messages": messages})
    prompt = _object(client.post("/apply-template", body, TIMEOUT_S)).get("prompt")
    return prompt if isinstance(prompt, str) else None


def _object(exchange: Exchange) -> dict[str, object]:
    if not exchange.ok:
        return {}
    try:
        document = json.loads(exchange.body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
