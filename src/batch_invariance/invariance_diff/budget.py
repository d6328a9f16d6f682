"""How much memory a cell needs, from the numbers in the model's header.

Pure arithmetic; every result is in bytes. docs/planning.md compares it with what llama-server says
that it allocates. The weights are exact. So is the KV cache, unless the shape says that it is an
upper bound. The compute buffer is exact for dense models with the layout of Llama and an estimate
for others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from batch_invariance.errors import UsageError
from batch_invariance.invariance_diff.kv_cache import (
    STATE_BYTES,
    BlockCache,
    CacheCells,
    KvType,
    ServerSettings,
    cache_cells,
    kv_bytes,
)

__all__ = ["Footprint", "KvType", "ModelShape", "ServerSettings", "project"]

PROCESS_BYTES: Final = 48 << 20
"""The server without weights, KV and compute buffers: peak RSS 19 MiB with a toy model and 28 MiB
with a vocabulary of 49,152, b10068 on x86-64."""
FLOAT_BYTES: Final = 4
MASK_BYTES: Final = 2
"""Bytes of an element of the attention mask under flash attention: float16."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a model that its memory depends on.

    `blocks` holds the blocks that have a KV cache; `window` is the sliding window of the windowed
    ones, in tokens. Lengths are in elements: `key_length` of one head, `feed_forward_length` of a
    dense block (0: none), `expert_length` of one expert, of which `experts_used` work on a token;
    `recurrent_length` is the inner size of recurrent blocks and `state_elements` what all of them
    keep of one sequence. `vocab_size` is in tokens, `weights_bytes` sums all tensors of all parts.
    `upper_bounds` says in words why the KV cache may be smaller than projected; empty: exact.
    """

    blocks: tuple[BlockCache, ...]
    head_count: int
    key_length: int
    embedding_length: int
    feed_forward_length: int
    vocab_size: int
    weights_bytes: int
    experts_used: int = 0
    expert_length: int = 0
    window: int | None = None
    recurrent_length: int = 0
    state_elements: int = 0
    upper_bounds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Footprint:
    """The memory of one server, in bytes.

    `kv_bytes` includes the state of recurrent blocks. `compute_bytes` and `output_bytes` are the
    buffers of those names in the server's log; `process_bytes` is what it does not log.
    """

    weights_bytes: int
    kv_bytes: int
    compute_bytes: int
    output_bytes: int
    process_bytes: int

    @property
    def overhead_bytes(self) -> int:
        """All but weights and KV cache."""
        return self.compute_bytes + self.output_bytes + self.process_bytes

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.weights_bytes + self.kv_bytes + self.overhead_bytes


def project(
    shape: ModelShape, ctx: int, parallel: int, settings: ServerSettings | None = None
) -> Footprint:
    """The footprint of a server with `parallel` slots of `ctx` tokens each.

    Raises:
        UsageError: `ctx`, `parallel` or a batch is below 1, or the server would refuse the KV
            types.
    """
    settings = settings or ServerSettings()
    if ctx < 1 or parallel < 1:
        raise UsageError(f"no memory to project for ctx {ctx} and parallel {parallel}; give 1 up")
    if settings.batch_tokens < 1 or settings.ubatch_tokens < 0:
        raise UsageError(
            f"no memory to project for batches of {settings.batch_tokens} and "
            f"{settings.ubatch_tokens} tokens; give 1 up"
        )
    cells = cache_cells(ctx, parallel, shape.window, settings)
    state = STATE_BYTES * shape.state_elements * parallel
    return Footprint(
        weights_bytes=shape.weights_bytes,
        kv_bytes=kv_bytes(shape.blocks, settings, cells) + state,
        compute_bytes=_compute_bytes(shape, cells, parallel, settings.flash_attention),
        output_bytes=FLOAT_BYTES * shape.vocab_size * parallel,
        process_bytes=PROCESS_BYTES,
    )


def _compute_bytes(shape: ModelShape, cells: CacheCells, parallel: int, flash: bool) -> int:
    """The compute buffer: the larger of a full micro-batch and of one token for every slot.

    The server sizes it at start for the worst case, a micro-batch over all slots (`sched_reserve`
    in llama-context.cpp). What lives at once in one block is measured; see docs/planning.md.
    """
    widths = _attention_floats(shape), _feed_forward_floats(shape)
    mask = cells.full
    if any(block.windowed for block in shape.blocks):
        mask += cells.windowed
    tokens = -(-cells.ubatch // parallel) * parallel
    if flash:
        per_token = FLOAT_BYTES * max(widths) + MASK_BYTES * mask
    else:
        scores = shape.head_count * cells.full
        per_token = FLOAT_BYTES * (mask + max(widths[0] + scores, widths[1]))
    logits = FLOAT_BYTES * parallel * (shape.vocab_size + 3 * shape.embedding_length)
    return max(tokens * per_token, logits)


def _attention_floats(shape: ModelShape) -> int:
    """Floats per token that an attention or recurrent block holds at once, scores aside."""
    queries = shape.head_count * shape.key_length
    keys = max((block.heads * block.key_length for block in shape.blocks), default=0)
    attention = 3 * shape.embedding_length + 3 * queries + 2 * keys
    recurrent = 4 * shape.embedding_length + 8 * shape.recurrent_length
    return max(attention, recurrent if shape.recurrent_length else 0)


def _feed_forward_floats(shape: ModelShape) -> int:
    """Floats per token that a feed-forward block holds at once, dense or of experts."""
    dense = 3 * shape.feed_forward_length + 4 * shape.embedding_length
    per_expert = 3 * shape.expert_length + shape.embedding_length
    experts = shape.experts_used * per_expert + 5 * shape.embedding_length
    return max(dense, experts if shape.experts_used else 0)
