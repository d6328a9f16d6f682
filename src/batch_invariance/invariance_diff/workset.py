"""Work-sets: bytes in, items out, or every fault of the file at once.

Three spellings are read, told apart by content, never by the file's name:

- a JSON list whose entries are objects or strings, mixed as you like;
- JSON Lines of the same objects (or strings), one a line, blank lines skipped;
- JSON Lines of OpenAI batch requests (`custom_id`, `body`).

An object holds exactly one of `item`, `prompt` (both the text of one user message) and `messages`,
and may hold `system`, `expected_answer`, `family`, `fill`, `id` and `max_tokens`. A bare string is
the text of one user message. `null` counts as absent everywhere.

Of a batch request the messages and the token limit are carried. What the run pins itself (model,
temperature, seed, ...: `_PINNED`) is accepted and ignored. What would change the question and is
not carried (tools, stop, ...: `_UNSUPPORTED`) is a fault, unless it states the API's own default.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from batch_invariance.errors import WorkSetError
from batch_invariance.invariance_diff.model import Item, Message
from batch_invariance.invariance_diff.workset_json import (
    JsonObject,
    check_keys,
    entries,
    fill_field,
    json_faults,
    kind,
    label_field,
    limit_field,
    show,
    string_field,
)

_MAX_LISTED = 20  # faults spelled out in one error

_ROLES = ("system", "user", "assistant", "tool")
_TEXT_KEYS = ("item", "prompt", "messages")
_NOTES = ("expected_answer", "family", "fill")
_PLAIN_KEYS = (*_TEXT_KEYS, *_NOTES, "system", "id", "max_tokens")
_BATCH_KEYS = ("custom_id", "body", "method", "url", *_NOTES)
_LIMIT_KEYS = ("max_tokens", "max_completion_tokens")
_PINNED = (
    "model", "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty",
    "frequency_penalty", "repeat_penalty", "logprobs", "top_logprobs", "cache_prompt",
    "stream_options", "user", "metadata", "store", "service_tier",
)  # fmt: skip
# Each with the values that ask for nothing beyond the default.
_UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "n": (1,),
    "stream": (False,),
    "logit_bias": ({}, []),
    "stop": ([],),
    "reasoning_effort": (),
    "chat_template_kwargs": ({},),
    "grammar": ("",),
}
_BODY_KEYS = ("messages", *_LIMIT_KEYS, *_PINNED, *_UNSUPPORTED)


@dataclass(frozen=True, slots=True)
class WorkSet:
    """The prompts of a run.

    `name`: what the caller calls the file. `items`: at least one, ids distinct, in file order.
    `sha256`: hex digest of the items' canonical JSON, so that two spellings of the same items
    have the same digest.
    """

    name: str
    items: tuple[Item, ...]
    sha256: str


def parse_workset(data: bytes, name: str) -> WorkSet:
    """Read a work-set from the bytes of a file called `name`.

    Raises `WorkSetError` with every fault of the file, each with its position: `item [3]` counts
    from 0 as the certificate does, `line 4` from 1 as editors do.
    """
    faults: list[str] = []
    return workset_from(entries(data, faults), faults, name)


def workset_from(placed: Iterable[tuple[str, object]], faults: list[str], name: str) -> WorkSet:
    """Read a work-set from JSON values, each with the position that a fault in it is named by.

    `faults` are those found before, and those found while `placed` is read. Raises `WorkSetError`
    with all of them and its own.
    """
    items: list[Item] = []
    owner: dict[str, str] = {}
    for where, value in placed:
        found = list(json_faults(value))
        item = _read_item(value, found)
        if item.id in owner:
            found.append(f"id {show(item.id)} is already taken by {owner[item.id]}")
        elif item.id:
            owner[item.id] = where
        faults += [f"{where}: {fault}" for fault in found]
        items.append(item)
    if not items and not faults:
        faults.append("holds no items")
    if faults:
        raise workset_error(name, faults)
    return named_workset(items, name)


def workset_error(name: str, faults: Sequence[str]) -> WorkSetError:
    """The error that lists the faults of the file `name`, the first twenty in full."""
    more = len(faults) - _MAX_LISTED
    tail = [f"and {more} more"] if more > 0 else []
    shown = name if name.isprintable() else repr(name)
    return WorkSetError(f"work-set {shown}", [*faults[:_MAX_LISTED], *tail])


def named_workset(items: Sequence[Item], name: str) -> WorkSet:
    """A work-set of `items`, at least one; those whose id is empty get one from their content."""
    named = _with_ids(items)
    return WorkSet(name, named, items_sha256(named))


def items_sha256(items: Sequence[Item]) -> str:
    """The digest of a work-set: over its items, not over the bytes of a file."""
    return _digest(workset_to_json(items))


def workset_to_json(items: Sequence[Item]) -> list[dict[str, object]]:
    """Turn items into the plain objects that `parse_workset` reads back to equal items.

    Its canonical form (sorted keys, no spaces, ASCII) is what `WorkSet.sha256` digests.
    """
    return [_item_to_json(item) for item in items]


def _item_to_json(item: Item) -> dict[str, object]:
    optional = {
        "expected_answer": item.expected_answer,
        "family": item.family,
        "fill": item.fill,
        "max_tokens": item.max_tokens,
    }
    return {
        "id": item.id,
        "messages": _messages_to_json(item),
        **{key: value for key, value in optional.items() if value is not None},
    }


def _messages_to_json(item: Item) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in item.messages]


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _with_ids(items: Sequence[Item]) -> tuple[Item, ...]:
    """Give each item without an id one from its content; the same content again gets -2, -3."""
    taken = {item.id for item in items if item.id}
    named = []
    for item in items:
        if not item.id:
            base = _digest([_messages_to_json(item), item.expected_answer])[:12]
            chosen, copy = base, 1
            while chosen in taken:
                copy += 1
                chosen = f"{base}-{copy}"
            taken.add(chosen)
            item = replace(item, id=chosen)
        named.append(item)
    return tuple(named)


# From JSON values to items. Each function appends what is wrong to `faults` and goes on.


def _read_item(value: object, faults: list[str]) -> Item:
    """Read one entry; `id` is empty when the file gives none."""
    if isinstance(value, str):
        return Item("", (Message("user", value),))
    if not isinstance(value, JsonObject):
        faults.append(f"must be an object or a string, is {kind(value)}")
        return Item("", ())
    is_batch = "body" in value or "custom_id" in value
    item = _read_batch(value, faults) if is_batch else _read_plain(value, faults)
    return replace(
        item,
        expected_answer=string_field(value, "expected_answer", faults),
        family=label_field(value, "family", faults),
        fill=fill_field(value, faults),
    )


def _read_plain(obj: JsonObject, faults: list[str]) -> Item:
    check_keys(obj, _PLAIN_KEYS, "", faults)
    given = [key for key in _TEXT_KEYS if obj.get(key) is not None]
    messages: tuple[Message, ...] = ()
    if len(given) != 1:
        has = " and ".join(given) or "none of them"
        faults.append(f"needs exactly one of item, prompt and messages, has {has}")
    elif given == ["messages"]:
        messages = _messages(obj["messages"], "messages", faults)
    else:
        messages = (Message("user", string_field(obj, given[0], faults) or ""),)
    system = string_field(obj, "system", faults)
    if system is not None:
        if any(message.role == "system" for message in messages):
            faults.append("system is given beside a system message; give it once")
        messages = (Message("system", system), *messages)
    limit = limit_field(obj, "max_tokens", "", faults)
    return Item(label_field(obj, "id", faults) or "", messages, max_tokens=limit)


def _read_batch(obj: JsonObject, faults: list[str]) -> Item:
    check_keys(obj, _BATCH_KEYS, "", faults)
    url = string_field(obj, "url", faults)
    if url is not None and not url.endswith("/chat/completions"):
        faults.append(f"url {show(url)} is unsupported; only chat completions are")
    custom_id = label_field(obj, "custom_id", faults) or ""
    body = obj.get("body")
    if not isinstance(body, JsonObject):
        faults.append(f"body must be an object, is {kind(body)}")
        return Item(custom_id, ())
    check_keys(body, _BODY_KEYS, "body.", faults)
    for key, harmless in _UNSUPPORTED.items():
        asked = body.get(key)
        if asked is not None and not any(_same_json(asked, value) for value in harmless):
            faults.append(f"body.{key} is unsupported: it would change what is asked")
    messages = _messages(body.get("messages"), "body.messages", faults)
    limits = {limit_field(body, key, "body.", faults) for key in _LIMIT_KEYS} - {None}
    if len(limits) > 1:
        faults.append("body.max_tokens and body.max_completion_tokens differ; give one")
    return Item(custom_id, messages, max_tokens=min(filter(None, limits), default=None))


def _same_json(asked: object, value: object) -> bool:
    # 1 == True == 1.0 in Python, not in JSON.
    return asked == value and (isinstance(value, dict) or type(asked) is type(value))


def _messages(value: object, path: str, faults: list[str]) -> tuple[Message, ...]:
    if not isinstance(value, list):
        faults.append(f"{path} must be a list of messages, is {kind(value)}")
        return ()
    if not value:
        faults.append(f"{path} is an empty list; give at least one message")
    messages = []
    for index, entry in enumerate(value):
        at = f"{path}[{index}]"
        if not isinstance(entry, JsonObject):
            faults.append(f"{at} must be an object, is {kind(entry)}")
            continue
        check_keys(entry, ("role", "content"), f"{at}.", faults)
        role = entry.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            shown = show(role) if isinstance(role, str) else kind(role)
            faults.append(f"{at}.role must be one of {', '.join(_ROLES)}, is {shown}")
            role = ""
        content = _content(entry.get("content"), f"{at}.content", faults)
        messages.append(Message(role, content))
    return tuple(messages)


def _content(value: object, path: str, faults: list[str]) -> str:
    """Read a message's text; text parts are joined by line feeds, as llama-server joins them."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        faults.append(f"{path} must be a string or a list of text parts, is {kind(value)}")
        return ""
    texts = []
    for index, part in enumerate(value):
        text = part.get("text") if isinstance(part, JsonObject) else None
        if isinstance(part, JsonObject) and part.get("type") == "text" and isinstance(text, str):
            check_keys(part, ("type", "text"), f"{path}[{index}].", faults)
            texts.append(text)
        else:
            faults.append(f'{path}[{index}] must be {{"type": "text", "text": "..."}}')
    return "\n".join(texts)
