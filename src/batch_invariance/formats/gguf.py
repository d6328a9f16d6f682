"""Reads the header of a GGUF model: its metadata and tensor table, never its weights.

The format is specified in https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Versions 2
and 3 are read, little-endian. Every fault is one `GgufError`, whatever the bytes are.
"""

from __future__ import annotations

from io import BytesIO
from typing import Final

from batch_invariance.formats.ggml import FILE_TYPES
from batch_invariance.formats.gguf_header import CacheKeys, GgufHeader
from batch_invariance.formats.gguf_keys import MAX_KEYS, SMALLEST_KEY, Keys, read_keys
from batch_invariance.formats.gguf_shape import model_shape
from batch_invariance.formats.gguf_stream import BinarySource, Cursor
from batch_invariance.formats.gguf_tensors import (
    MAX_TENSORS,
    SMALLEST_TENSOR,
    TensorTable,
    read_tensors,
)

__all__ = ["GgufHeader", "model_shape", "parse_header", "read_header"]

MAGIC: Final = b"GGUF"
MAX_BLOCKS: Final = 4096
DEFAULT_ALIGNMENT: Final = 32
DEFAULT_TOKEN_SHIFTS: Final = 2
"""`token_shift_count` of RWKV models that do not state it (llama-hparams.h, b11434)."""
_GUESSED = 1024
"""Bit that llama.cpp sets in a file type that it inferred (LLAMA_FTYPE_GUESSED)."""


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
    cursor.claim(key_count * SMALLEST_KEY + tensor_count * SMALLEST_TENSOR, "the header")
    keys = Keys(read_keys(cursor, key_count), what)
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


def _header(keys: Keys, version: int, tensor_count: int, tensors: TensorTable) -> GgufHeader:
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
    tokens = keys.count("tokenizer.ggml.tokens")
    return GgufHeader(
        version=version,
        architecture=arch,
        name=keys.text("general.name"),
        file_type=file_type,
        file_type_name=None if file_type is None else FILE_TYPES.get(file_type & ~_GUESSED),
        block_count=blocks,
        context_length=keys.number(f"{arch}.context_length", fallback),
        embedding_length=embedding,
        feed_forward_length=keys.most(f"{arch}.feed_forward_length", 0),
        head_count=head_count,
        head_count_kv=keys.per_block(f"{arch}.attention.head_count_kv", blocks, heads),
        key_length=keys.number(f"{arch}.attention.key_length", head_length),
        value_length=keys.number(f"{arch}.attention.value_length", head_length),
        expert_count=keys.number(f"{arch}.expert_count", 0),
        expert_used_count=keys.most(f"{arch}.expert_used_count", 0),
        expert_feed_forward_length=keys.most(f"{arch}.expert_feed_forward_length", 0),
        sliding_window=keys.number(window) if keys.has(window) else None,
        cache=_cache_keys(keys, arch, blocks, embedding, head_count),
        tokenizer_model=keys.text("tokenizer.ggml.model"),
        tokenizer_pre=keys.text("tokenizer.ggml.pre"),
        vocab_size=tokens or keys.number(f"{arch}.vocab_size", 0),
        has_chat_template=keys.has("tokenizer.chat_template"),
        split_count=max(1, keys.number("split.count", 1)),
        split_no=split_no,
        tensor_count=tensor_count,
        tensor_types=tensors.types,
        weights_bytes=tensors.weights_bytes,
    )


def _cache_keys(keys: Keys, arch: str, blocks: int, embedding: int, heads: int) -> CacheKeys:
    attention = f"{arch}.attention"
    latent = [keys.number(f"{attention}.{side}_length_mla", 0) for side in ("key", "value")]
    return CacheKeys(
        window_pattern=keys.window_pattern(f"{attention}.sliding_window_pattern", blocks),
        windowed_key_length=keys.number(f"{attention}.key_length_swa", 0),
        windowed_value_length=keys.number(f"{attention}.value_length_swa", 0),
        latent=all(latent),
        kv_lora_rank=keys.number(f"{attention}.kv_lora_rank", 0),
        shared_kv_blocks=keys.number(f"{attention}.shared_kv_layers", 0),
        prediction_blocks=keys.number(f"{arch}.nextn_predict_layers", 0),
        indexer_key_length=keys.number(f"{attention}.indexer.key_length", 0),
        attention_interval=keys.number(f"{arch}.full_attention_interval", 0),
        recurrent_length=keys.number(f"{arch}.ssm.inner_size", 0),
        state_elements=_state_elements(keys, arch, embedding, heads),
    )


def _state_elements(keys: Keys, arch: str, embedding: int, heads: int) -> int:
    """What one recurrent block keeps of a sequence, in elements; 0 where there is none.

    `n_embd_r` plus `n_embd_s` in llama-hparams.cpp, b11434: token shift and state of RWKV, short
    convolution, delta attention (KDA), or convolution and state of Mamba.
    """
    head_size = keys.number(f"{arch}.wkv.head_size", 0)
    if head_size:
        shifts = keys.number(f"{arch}.token_shift_count", DEFAULT_TOKEN_SHIFTS)
        return embedding * (shifts + head_size)
    short = keys.number(f"{arch}.shortconv.l_cache", 0)
    if short:
        return embedding * (short - 1)
    convolved = max(0, keys.number(f"{arch}.ssm.conv_kernel", 0) - 1)
    head_length = keys.number(f"{arch}.kda.head_dim", 0)
    if head_length:
        return heads * head_length * (3 * (convolved or 3) + head_length)
    inner = keys.number(f"{arch}.ssm.inner_size", 0)
    state = keys.number(f"{arch}.ssm.state_size", 0)
    groups = keys.number(f"{arch}.ssm.group_count", 0)
    return convolved * (inner + 2 * groups * state) + state * inner
