"""A chat-completion response as bytes becomes a `Completion`, or a `Failure` with its kind.

Fields that differ between server versions are tolerated: a missing count becomes None, which
later counts against GREEN; it is never read as zero.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

from batch_invariance.invariance_diff.digest import canonical_json, sha256_hex
from batch_invariance.invariance_diff.endpoint import TokenNames
from batch_invariance.invariance_diff.model import Completion, Failure, FailureKind
from batch_invariance.invariance_diff.packed import pack_floats, pack_ids

DETAIL_LIMIT = 300
MAX_COUNT = 1 << 53
"""A count beyond this is no count; JSON readers elsewhere would not even keep it exact."""


def parse_response(
    status: int, body: bytes, max_tokens: int, names: TokenNames = TokenNames.IDS
) -> Completion | Failure:
    """Reads one HTTP answer. `max_tokens` is what was asked for, to tell a stop at the context;
    `names` says how the server names tokens."""
    try:
        # Bytes would let UTF-16 and halves of surrogate pairs through, which no evidence keeps.
        document = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as fault:
        if status != 200:
            return Failure(FailureKind.HTTP_ERROR, _clip(body.decode("utf-8", "replace")), status)
        return Failure(FailureKind.BAD_JSON, _clip(str(fault)), status)
    error = document.get("error") if isinstance(document, dict) else None
    if status != 200:
        return Failure(FailureKind.HTTP_ERROR, _clip(_error_text(error, document)), status)
    if error is not None:
        return Failure(FailureKind.ERROR_OBJECT, _clip(_error_text(error, document)), status)
    return _completion(document, max_tokens, names)


def _clip(text: str) -> str:
    return text[:DETAIL_LIMIT]


def _error_text(error: object, document: object) -> str:
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return str(error["message"])
    return json.dumps(error if error is not None else document)


def _completion(document: object, max_tokens: int, names: TokenNames) -> Completion | Failure:
    choices = document.get("choices") if isinstance(document, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(document, dict) or not isinstance(choice, dict):
        return Failure(FailureKind.BAD_SHAPE, "no choices in the response", 200)
    if not isinstance(message, dict):
        return Failure(FailureKind.BAD_SHAPE, "no message in the first choice", 200)
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        return Failure(FailureKind.BAD_SHAPE, "message content is not text", 200)
    finish = choice.get("finish_reason")
    usage = _mapping(document.get("usage"))
    timings = _mapping(document.get("timings"))
    n_completion = _count(timings.get("predicted_n"), usage.get("completion_tokens"))
    ids, logprobs, top_ids, top_logprobs = _token_data(choice.get("logprobs"), names)
    return Completion(
        text=content or "",
        finish_reason=finish if isinstance(finish, str) else None,
        reasoning=_reasoning(message),
        tool_calls=_tool_calls(message.get("tool_calls")),
        token_ids=ids,
        logprobs=logprobs,
        top_ids=top_ids,
        top_logprobs=top_logprobs,
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=n_completion,
        cache_n=_count(
            timings.get("cache_n"),
            _mapping(usage.get("prompt_tokens_details")).get("cached_tokens"),
            document.get("tokens_cached"),
        ),
        draft_n=_count(timings.get("draft_n")),
        truncated=_truncated(document, finish, n_completion, max_tokens),
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(*candidates: object) -> int | None:
    for value in candidates:
        if type(value) is int and 0 <= value < MAX_COUNT:
            return value
    return None


def _reasoning(message: Mapping[str, Any]) -> str | None:
    for name in ("reasoning_content", "reasoning"):
        if isinstance(message.get(name), str):
            return str(message[name])
    return None


def _tool_calls(value: object) -> str | None:
    if not isinstance(value, list) or not value:
        return None
    calls = [
        {k: v for k, v in call.items() if k != "id"} if isinstance(call, dict) else call
        for call in value
    ]
    try:
        return canonical_json(calls).decode("ascii")
    except (ValueError, RecursionError):
        return repr(calls)


def _truncated(
    document: Mapping[str, Any], finish: object, n_completion: int | None, max_tokens: int
) -> bool | None:
    """A `length` stop below the asked limit can only be the context's end."""
    if isinstance(document.get("truncated"), bool):
        return bool(document["truncated"])
    if finish != "length":
        return False if isinstance(finish, str) else None
    return None if n_completion is None else n_completion < max_tokens


def _token_data(
    value: object, names: TokenNames
) -> tuple[str | None, str | None, str | None, str | None]:
    """(token ids, logprobs, top ids, top logprobs), packed; None where a position lacks them."""
    rows = _mapping(value).get("content")
    if not isinstance(rows, list):
        return None, None, None, None
    try:
        ids = pack_ids([_token_id(row, names) for row in rows])
    except _UNUSABLE:
        ids = None
    try:
        logprobs = pack_floats([row["logprob"] for row in rows])
    except _UNUSABLE:
        logprobs = None
    try:
        tops = [row["top_logprobs"] for row in rows]
        if len({len(top) for top in tops}) > 1:
            return ids, logprobs, None, None
        top_ids = pack_ids([_token_id(t, names) for top in tops for t in top])
        top_logprobs = pack_floats([t["logprob"] for top in tops for t in top])
    except _UNUSABLE:
        return ids, logprobs, None, None
    return ids, logprobs, top_ids, top_logprobs


_UNUSABLE = (KeyError, TypeError, ValueError, AttributeError, struct.error, OverflowError)
ID_PREFIX = "token_id:"
"""How vLLM spells a token that was asked for by id (`return_tokens_as_token_ids`)."""


def _token_id(row: Any, names: TokenNames) -> int:
    """The id of one entry, or what stands for it. Raises what is in `_UNUSABLE`."""
    if names is TokenNames.SPELLING:
        return _spelling(row)
    if "id" in row:
        number: int = row["id"]
        return number
    token = row["token"]
    if not token.startswith(ID_PREFIX):
        raise ValueError("the token has no id")
    return int(token.removeprefix(ID_PREFIX))


def _spelling(row: Any) -> int:
    """31 bits of the SHA-256 of the token's bytes, or of its text where those are not given."""
    spelt = row.get("bytes")
    if isinstance(spelt, list) and spelt:
        data = bytes(spelt)
    else:
        data = row["token"].encode("utf-8", "surrogatepass")
    return int(sha256_hex(data)[:8], 16) & 0x7FFFFFFF
