"""GGUF files put together key by key, whole or with weights that are a hole in the file."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from batch_invariance.formats.ggml import GGML_TYPES, GgmlType
from batch_invariance.formats.toy_vocab import BOS_ID, EOS_ID, UNKNOWN_ID, VOCABULARY

U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
Value = int | float | str | Sequence[int]
Tensors = dict[str, tuple[tuple[int, ...], GgmlType]]


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def u32(name: str, value: int) -> bytes:
    return text(name) + struct.pack("<II", U32, value)


def string(name: str, value: str) -> bytes:
    return text(name) + struct.pack("<I", STRING) + text(value)


def array(name: str, kind: int, count: int, body: bytes) -> bytes:
    return text(name) + struct.pack("<IIQ", ARRAY, kind, count) + body


def key(name: str, value: Value) -> bytes:
    """A key of the type that fits the value; a sequence of numbers is an array of int32."""
    if isinstance(value, str):
        return string(name, value)
    if isinstance(value, float):
        return text(name) + struct.pack("<If", F32, value)
    if isinstance(value, int):
        return u32(name, value)
    kind = BOOL if all(isinstance(number, bool) for number in value) else I32
    code = "?" if kind == BOOL else "i"
    return array(name, kind, len(value), struct.pack(f"<{len(value)}{code}", *value))


def tensor(name: str, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    shape = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return text(name) + shape + struct.pack("<IQ", kind, offset)


BASE = (
    string("general.architecture", "llama"),
    u32("llama.block_count", 3),
    u32("llama.context_length", 4096),
    u32("llama.embedding_length", 128),
    u32("llama.attention.head_count", 4),
)


def model(
    *more: bytes,
    keys: tuple[bytes, ...] = BASE,
    tensors: tuple[bytes, ...] = (),
    data: int = 0,
    version: int = 3,
) -> bytes:
    keys = (*keys, *more)
    head = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(keys))
    body = head + b"".join(keys) + b"".join(tensors)
    return body + b"\0" * (-len(body) % 32 + data)


def named_model(architecture: str, values: Mapping[str, Value]) -> bytes:
    """A model without tensors; names of `values` are those after the architecture's dot."""
    sizes = {"block_count": 4, "context_length": 4096, "embedding_length": 128}
    sizes["attention.head_count"] = 4
    keys = [string("general.architecture", architecture)]
    keys += [key(f"{architecture}.{name}", value) for name, value in {**sizes, **values}.items()]
    return model(keys=tuple(keys))


def write_sparse(path: Path, keys: Mapping[str, Value], tensors: Tensors) -> None:
    """A model that a server loads, with the toy vocabulary. Its weights are zeros in a hole."""
    written = [key(name, value) for name, value in keys.items()]
    written += [
        string("tokenizer.ggml.model", "llama"),
        array(
            "tokenizer.ggml.tokens",
            STRING,
            len(VOCABULARY),
            b"".join(text(token) for token, _ in VOCABULARY),
        ),
        array(
            "tokenizer.ggml.scores",
            F32,
            len(VOCABULARY),
            b"".join(struct.pack("<f", -float(rank)) for rank in range(len(VOCABULARY))),
        ),
        key("tokenizer.ggml.token_type", [kind for _, kind in VOCABULARY]),
        u32("tokenizer.ggml.bos_token_id", BOS_ID),
        u32("tokenizer.ggml.eos_token_id", EOS_ID),
        u32("tokenizer.ggml.unknown_token_id", UNKNOWN_ID),
    ]
    entries, offset = [], 0
    for name, (dims, kind) in tensors.items():
        entries.append(tensor(name, dims, kind.number, offset))
        offset += -(-tensor_bytes(dims, kind.number) // 32) * 32
    head = model(keys=tuple(written), tensors=tuple(entries))
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + offset)


def tensor_bytes(dims: tuple[int, ...], kind: int) -> int:
    packed, elements = GGML_TYPES[kind], 1
    for dim in dims:
        elements *= dim
    return elements // packed.block_elements * packed.block_bytes
