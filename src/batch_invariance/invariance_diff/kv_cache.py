"""The KV cache of one server: which bytes a token leaves in which block.

Pure arithmetic in bytes, elements and tokens. Source: `llama_kv_cache`, `llama_kv_cache_iswa` and
`llama_memory_recurrent` of llama.cpp b11434; build 10068 allocates the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from batch_invariance.errors import UsageError
from batch_invariance.invariance_diff.rules import CTX_STEP

STATE_BYTES: Final = 4
"""Bytes of an element of a recurrent state: always float32, whatever `-ctk` says."""


class KvType(Enum):
    """An element type of the KV cache, by llama-server's name for `-ctk` and `-ctv`.

    A block of `block_elements` takes `block_bytes` (`kv_cache_types` in common/arg.cpp, sizes in
    ggml-common.h, b11434).
    """

    F32 = ("f32", 1, 4)
    F16 = ("f16", 1, 2)
    BF16 = ("bf16", 1, 2)
    Q8_0 = ("q8_0", 32, 34)
    Q4_0 = ("q4_0", 32, 18)
    Q4_1 = ("q4_1", 32, 20)
    IQ4_NL = ("iq4_nl", 32, 18)
    Q5_0 = ("q5_0", 32, 22)
    Q5_1 = ("q5_1", 32, 24)

    def __init__(self, label: str, block_elements: int, block_bytes: int) -> None:
        self.label = label
        self.block_elements = block_elements
        self.block_bytes = block_bytes

    @property
    def quantized(self) -> bool:
        """Whether elements are packed in blocks."""
        return self.block_elements > 1

    def bytes_of(self, elements: int) -> int:
        """Bytes of `elements`, a whole number of blocks."""
        return elements // self.block_elements * self.block_bytes

    @classmethod
    def parse(cls, label: str) -> KvType:
        """The type that llama-server calls `label`.

        Raises:
            UsageError: there is none of that name.
        """
        for kind in cls:
            if kind.label == label:
                return kind
        valid = ", ".join(kind.label for kind in cls)
        raise UsageError(f"unknown KV cache type {label!r}; llama-server knows {valid}")


@dataclass(frozen=True, slots=True)
class BlockCache:
    """What one block caches of each token.

    `heads` KV heads of `key_length` and `value_length` elements; `value_length` is 0 where the
    values are read out of the keys (latent attention). `extra_keys` are the elements of a second
    key cache, an indexer's. A `windowed` block keeps the tokens of a sliding window alone.
    """

    heads: int
    key_length: int
    value_length: int
    windowed: bool = False
    extra_keys: int = 0


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What the command line says of a server's memory; the defaults are llama-server's.

    Sizes of batches are in tokens (`-b`, `-ub`). With `kv_unified` all slots share one cache and
    each may use all of it. `swa_full` keeps whole contexts in windowed blocks too.
    """

    k_type: KvType = KvType.F16
    v_type: KvType = KvType.F16
    flash_attention: bool = True
    batch_tokens: int = 2048
    ubatch_tokens: int = 512
    kv_unified: bool = False
    swa_full: bool = False


@dataclass(frozen=True, slots=True)
class CacheCells:
    """How many tokens the cache has room for.

    `streams` separate caches, each with `full` cells in ordinary blocks and `windowed` cells in
    windowed ones; `ubatch` is the micro-batch that this server will use, in tokens.
    """

    streams: int
    full: int
    windowed: int
    ubatch: int


def cache_cells(
    ctx: int, parallel: int, window: int | None, settings: ServerSettings
) -> CacheCells:
    """The cells of a server with `parallel` slots of `ctx` tokens each.

    `window` is the sliding window in tokens, None where the model has none. The server rounds a
    slot's context up to `CTX_STEP`, and the windowed cells of a stream too: they hold the window
    of every sequence of the stream, and one micro-batch.
    """
    slot = _padded(ctx)
    streams, full = (1, slot * parallel) if settings.kv_unified else (parallel, slot)
    batch = min(settings.batch_tokens, slot * parallel)
    ubatch = min(settings.ubatch_tokens or batch, batch)
    windowed = full
    if window is not None and not settings.swa_full:
        sequences = parallel if settings.kv_unified else 1
        windowed = _padded(min(full, window * sequences + ubatch))
    return CacheCells(streams, full, windowed, ubatch)


def kv_bytes_per_token(blocks: tuple[BlockCache, ...], settings: ServerSettings) -> int:
    """Bytes of KV cache that one token takes over all blocks while it is in every window.

    Raises:
        UsageError: the server would refuse these types; see `row_bytes`.
    """
    return sum(row_bytes(blocks, settings))


def kv_bytes(blocks: tuple[BlockCache, ...], settings: ServerSettings, cells: CacheCells) -> int:
    """Bytes of KV cache of the whole server. Raises UsageError as `row_bytes` does."""
    rows = row_bytes(blocks, settings)
    per_stream = sum(
        row * (cells.windowed if block.windowed else cells.full)
        for block, row in zip(blocks, rows, strict=True)
    )
    return cells.streams * per_stream


def row_bytes(blocks: tuple[BlockCache, ...], settings: ServerSettings) -> tuple[int, ...]:
    """Bytes that one token takes in each block.

    Without flash attention the values lie transposed, and every block gets as many as the largest
    ([TAG_V_CACHE_VARIABLE] in llama-kv-cache.cpp).

    Raises:
        UsageError: a head does not divide into the type's blocks, or values are to be quantised
            without flash attention; the server would refuse too.
    """
    if settings.v_type.quantized and not settings.flash_attention:
        raise UsageError(
            f"KV cache type {settings.v_type.label} for V needs flash attention; "
            "turn it on or choose f16"
        )
    for block in blocks:
        _check_head(settings.k_type, block.key_length, "K")
        _check_head(settings.k_type, block.extra_keys, "K")
        _check_head(settings.v_type, block.value_length, "V")
    widest = max((block.heads * block.value_length for block in blocks), default=0)
    rows = []
    for block in blocks:
        values = block.heads * block.value_length
        if not settings.flash_attention and block.value_length:
            values = widest
        keys = block.heads * block.key_length + block.extra_keys
        rows.append(settings.k_type.bytes_of(keys) + settings.v_type.bytes_of(values))
    return tuple(rows)


def _padded(tokens: int) -> int:
    return -(-tokens // CTX_STEP) * CTX_STEP


def _check_head(kind: KvType, length: int, side: str) -> None:
    if length % kind.block_elements:
        raise UsageError(
            f"KV cache type {kind.label} for {side} packs {kind.block_elements} elements at a "
            f"time and this model's heads have {length}; choose f16"
        )
