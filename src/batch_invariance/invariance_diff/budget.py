"""How much memory a cell needs, from the numbers in the model's header.

Pure arithmetic; every result is in bytes. Weights and KV cache are exact: llama-server b10068
prints the same KV buffer sizes for every cache type. The overhead is an estimate from above.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from batch_invariance.errors import UsageError

UBATCH_TOKENS: Final = 512
"""llama-server's default `--ubatch-size`."""
PROCESS_BYTES: Final = 48 << 20
"""The server without weights, KV and compute buffers: peak RSS 19 MiB with a toy model and 28 MiB
with a vocabulary of 49,152, b10068 on x86-64."""
ACTIVATION_WIDTHS: Final = 16
"""Compute buffer per token of a micro-batch, in float32 rows of the embedding: 12 measured on
SmolLM2-135M, b10068."""
FLOAT_BYTES: Final = 4


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
class ModelShape:
    """The sizes of a model that its memory depends on.

    Lengths are in elements; `head_count_kv` has one entry per block, 0 where a block caches
    nothing. `vocab_size` is in tokens, `weights_bytes` sums all tensors of all parts.
    """

    block_count: int
    head_count: int
    head_count_kv: tuple[int, ...]
    key_length: int
    value_length: int
    embedding_length: int
    vocab_size: int
    weights_bytes: int


@dataclass(frozen=True, slots=True)
class Footprint:
    """The memory of one server, in bytes."""

    weights_bytes: int
    kv_bytes: int
    overhead_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.weights_bytes + self.kv_bytes + self.overhead_bytes


def kv_bytes_per_token(shape: ModelShape, k_type: KvType, v_type: KvType) -> int:
    """Bytes of KV cache that one token takes over all blocks.

    From above where a model caches less than all heads of all blocks: sliding windows, blocks that
    share a cache, latent attention that keeps no values.

    Raises:
        UsageError: the heads do not divide into the type's blocks; the server would refuse too.
    """
    heads = sum(shape.head_count_kv)
    keys = _row_bytes(k_type, shape.key_length, "K")
    values = _row_bytes(v_type, shape.value_length, "V")
    return heads * (keys + values)


def project(
    shape: ModelShape,
    ctx: int,
    parallel: int,
    k_type: KvType = KvType.F16,
    v_type: KvType = KvType.F16,
    flash_attention: bool = True,
) -> Footprint:
    """The footprint of a server with `parallel` slots of `ctx` tokens each.

    Under unified KV all slots share one cache: project `ctx * parallel` tokens for one slot.
    Without flash attention the scores of a whole micro-batch are held in memory.

    Raises:
        UsageError: `ctx` or `parallel` is below 1, or the KV type does not fit the heads.
    """
    if ctx < 1 or parallel < 1:
        raise UsageError(f"no memory to project for ctx {ctx} and parallel {parallel}; give 1 up")
    kv_bytes = kv_bytes_per_token(shape, k_type, v_type) * ctx * parallel
    mask_and_scores = ctx * (1 if flash_attention else 1 + shape.head_count)
    per_token = ACTIVATION_WIDTHS * shape.embedding_length + mask_and_scores
    logits = shape.vocab_size * parallel
    overhead = PROCESS_BYTES + FLOAT_BYTES * (UBATCH_TOKENS * per_token + logits)
    return Footprint(shape.weights_bytes, kv_bytes, overhead)


def _row_bytes(kind: KvType, length: int, side: str) -> int:
    """Bytes of one head's row of `length` elements."""
    blocks, rest = divmod(length, kind.block_elements)
    if rest:
        raise UsageError(
            f"KV cache type {kind.label} for {side} packs {kind.block_elements} elements at a "
            f"time and this model's heads have {length}; choose f16"
        )
    return blocks * kind.block_bytes
