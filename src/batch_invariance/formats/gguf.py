"""Reads the header of a GGUF model: its metadata and tensor table, never its weights.

The format is specified in https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Versions 2
and 3 are read, little-endian. Every fault is one `GgufError`, whatever the bytes are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Final

from batch_invariance.errors import GgufError
from batch_invariance.formats.ggml import FILE_TYPES
from batch_invariance.formats.gguf_stream import Array, BinarySource, Cursor
from batch_invariance.formats.gguf_tensors import (
    MAX_TENSORS,
    SMALLEST_TENSOR,
    TensorTable,
    read_tensors,
)
from batch_invariance.invariance_diff.budget import ModelShape

MAGIC: Final = b"GGUF"
MAX_KEYS: Final = 1 << 16
MAX_BLOCKS: Final = 4096
MAX_NUMBER: Final = (1 << 32) - 1
DEFAULT_ALIGNMENT: Final = 32
_GUESSED = 1024
"""Bit that llama.cpp sets in a file type that it inferred (LLAMA_FTYPE_GUESSED)."""
_SMALLEST_KEY = 13


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a GGUF file says of its model.

    Lengths are in elements or tokens. `head_count_kv` has one entry per block. `expert_count` is 0
    for a dense model. `file_type` is `general.file_type` (None where absent) and `file_type_name`
    its name without MOSTLY_. `sliding_window` is None where the model has none. `vocab_size` counts
    the tokens listed. `split_count` and `split_no` are 1 and 0 for a whole file; a later part of a
    split model carries no keys of its own, so its `architecture` is empty and its sizes are 0.
    `tensor_types` counts tensors by type name; `weights_bytes` sums their data without padding.
    """

    version: int
    architecture: str
    name: str | None
    file_type: int | None
    file_type_name: str | None
    block_count: int
    context_length: int
    embedding_length: int
    head_count: int
    head_count_kv: tuple[int, ...]
    key_length: int
    value_length: int
    expert_count: int
    expert_used_count: int
    sliding_window: int | None
    tokenizer_model: str | None
    vocab_size: int
    has_chat_template: bool
    split_count: int
    split_no: int
    tensor_count: int
    tensor_types: Mapping[str, int]
    weights_bytes: int

    @property
    def is_moe(self) -> bool:
        """Whether the model is a mixture of experts."""
        return self.expert_count > 0


def parse_header(data: bytes, what: str = "GGUF model") -> GgufHeader:
    """Read the header of a whole GGUF file held in memory.

    Raises:
        GgufError: `data` is not a GGUF model, or is truncated or absurd.
    """
    return read_header(BytesIO(data), len(data), what)


def read_header(
    source: BinarySource, file_size: int | None = None, what: str = "GGUF model"
) -> GgufHeader:
    """Read the header from the start of `source`, a binary file opened by the caller.

    `file_size` in bytes, where known, lets a claimed length be refused before it is read and a
    file whose weights are cut off be recognised. `what` names the file in errors.

    Raises:
        GgufError: the file is not a GGUF model, or its header is truncated or absurd.
    """
    cursor = Cursor(source, file_size, what)
    version = _read_version(cursor)
    tensor_count = cursor.u64("the tensor count")
    key_count = cursor.u64("the key count")
    if tensor_count > MAX_TENSORS or key_count > MAX_KEYS:
        cursor.fail(f"absurd header: {tensor_count} tensors and {key_count} keys")
    cursor.claim(key_count * _SMALLEST_KEY + tensor_count * SMALLEST_TENSOR, "the header")
    keys = _Keys(_read_keys(cursor, key_count), what)
    alignment = keys.number("general.alignment", DEFAULT_ALIGNMENT)
    if alignment < 1 or alignment & (alignment - 1):
        cursor.fail(f"general.alignment is {alignment}, which is not a power of two")
    tensors = read_tensors(cursor, tensor_count, alignment)
    data_start = -(-cursor.position // alignment) * alignment
    if file_size is not None and data_start + tensors.last_byte > file_size:
        cursor.fail(
            f"its tensors end at byte {data_start + tensors.last_byte} but the file has "
            f"{file_size}: it is truncated, so fetch it again"
        )
    return _header(keys, version, tensor_count, tensors)


def model_shape(parts: Sequence[GgufHeader], what: str = "GGUF model") -> ModelShape:
    """The numbers that memory arithmetic needs, over all parts of one model.

    `parts` holds one header for a whole file, or every part of a split model in any order.

    Raises:
        GgufError: a part is missing, or the first part lacks a size.
    """
    ordered = sorted(parts, key=lambda part: part.split_no)
    numbers = [part.split_no for part in ordered]
    if not ordered or numbers != list(range(ordered[0].split_count)):
        shown = ", ".join(str(number + 1) for number in numbers) or "none"
        expected = ordered[0].split_count if ordered else 1
        raise GgufError(what, [f"needs parts 1 to {expected}, has {shown}"])
    first = ordered[0]
    return ModelShape(
        block_count=first.block_count,
        head_count=first.head_count,
        head_count_kv=first.head_count_kv,
        key_length=first.key_length,
        value_length=first.value_length,
        embedding_length=first.embedding_length,
        vocab_size=first.vocab_size,
        weights_bytes=sum(part.weights_bytes for part in ordered),
    )


def split_names(file_name: str, split_count: int) -> tuple[str, ...]:
    """The file names of all parts of a split model, given the name of one of them.

    A name without llama.cpp's suffix `-00001-of-00003.gguf` stands for itself alone.
    """
    found = re.fullmatch(r"(.*-)\d{5}(-of-\d{5}\.gguf)", file_name)
    if found is None or split_count < 2:
        return (file_name,)
    return tuple(f"{found[1]}{n:05d}{found[2]}" for n in range(1, split_count + 1))


def _read_version(cursor: Cursor) -> int:
    magic = cursor.take(4, "the magic number")
    if magic != MAGIC:
        cursor.fail(f"not a GGUF model: it begins with {magic!r}, not {MAGIC!r}")
    version = cursor.u32("the version")
    if version & 0xFFFF == 0:
        cursor.fail("big-endian GGUF; only little-endian files are read")
    if version not in (2, 3):
        cursor.fail(f"GGUF version {version}; only 2 and 3 are read, so convert the model again")
    return version


def _read_keys(cursor: Cursor, count: int) -> dict[str, object]:
    keys: dict[str, object] = {}
    for index in range(count):
        name = cursor.text(f"the name of key {index}")
        if name in keys:
            cursor.fail(f"key {name!r} stands twice")
        keys[name] = cursor.value(cursor.value_type(f"key {name!r}"), f"key {name!r}")
    return keys


class _Keys:
    """Typed access to the metadata of one file."""

    def __init__(self, values: Mapping[str, object], what: str) -> None:
        self._values = values
        self._what = what

    def text(self, key: str) -> str | None:
        value = self._values.get(key)
        if value is not None and not isinstance(value, str):
            raise GgufError(self._what, [f"{key} is not a string"])
        return value

    def number(self, key: str, default: int | None = None, most: int = MAX_NUMBER) -> int:
        value = self._values.get(key, default)
        if value is None:
            raise GgufError(self._what, [f"key {key} is missing; this is no language model"])
        return self._checked(key, value, most)

    def per_block(self, key: str, blocks: int, default: tuple[int, ...] | None) -> tuple[int, ...]:
        """One number per block; a scalar stands for every block."""
        value = self._values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, Array):
            return (self.number(key),) * blocks
        if len(value.numbers) < blocks:
            raise GgufError(self._what, [f"{key} has {value.count} entries for {blocks} blocks"])
        return tuple(self._checked(key, number) for number in value.numbers[:blocks])

    def count(self, key: str) -> int:
        value = self._values.get(key)
        return value.count if isinstance(value, Array) else 0

    def has(self, key: str) -> bool:
        return key in self._values

    def _checked(self, key: str, value: object, most: int = MAX_NUMBER) -> int:
        if not isinstance(value, int) or not 0 <= value <= most:
            shown = f"{value!r:.40}" if isinstance(value, (int, float, str)) else "a list"
            raise GgufError(self._what, [f"{key} is {shown}, not a number from 0 to {most}"])
        return int(value)


def _header(keys: _Keys, version: int, tensor_count: int, tensors: TensorTable) -> GgufHeader:
    split_no = keys.number("split.no", 0)
    arch = keys.text("general.architecture") or ""
    partial = split_no > 0 and not arch
    fallback = 0 if partial else None
    blocks = keys.number(f"{arch}.block_count", fallback, MAX_BLOCKS)
    embedding = keys.number(f"{arch}.embedding_length", fallback)
    heads = keys.per_block(f"{arch}.attention.head_count", blocks, () if partial else None)
    head_count = max(heads, default=0)
    head_length = embedding // head_count if head_count else 0
    file_type = keys.number("general.file_type") if keys.has("general.file_type") else None
    window = f"{arch}.attention.sliding_window"
    return GgufHeader(
        version=version,
        architecture=arch,
        name=keys.text("general.name"),
        file_type=file_type,
        file_type_name=None if file_type is None else FILE_TYPES.get(file_type & ~_GUESSED),
        block_count=blocks,
        context_length=keys.number(f"{arch}.context_length", fallback),
        embedding_length=embedding,
        head_count=head_count,
        head_count_kv=keys.per_block(f"{arch}.attention.head_count_kv", blocks, heads),
        key_length=keys.number(f"{arch}.attention.key_length", head_length),
        value_length=keys.number(f"{arch}.attention.value_length", head_length),
        expert_count=keys.number(f"{arch}.expert_count", 0),
        expert_used_count=keys.number(f"{arch}.expert_used_count", 0),
        sliding_window=keys.number(window) if keys.has(window) else None,
        tokenizer_model=keys.text("tokenizer.ggml.model"),
        vocab_size=keys.count("tokenizer.ggml.tokens"),
        has_chat_template=keys.has("tokenizer.chat_template"),
        split_count=max(1, keys.number("split.count", 1)),
        split_no=split_no,
        tensor_count=tensor_count,
        tensor_types=tensors.types,
        weights_bytes=tensors.weights_bytes,
    )
