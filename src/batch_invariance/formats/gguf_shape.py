"""From a GGUF header to the numbers that memory arithmetic needs: which block caches what.

A header does not always say how llama.cpp lays its cache out. What is known of an architecture is
in the tables here; what is not known is counted in full and called an upper bound. Source of the
tables: src/models/*.cpp and `create_memory` in llama-model.cpp, llama.cpp b11434.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from batch_invariance.errors import GgufError
from batch_invariance.formats.gguf_header import GgufHeader
from batch_invariance.formats.gguf_keys import every_nth_full
from batch_invariance.invariance_diff.budget import ModelShape
from batch_invariance.invariance_diff.kv_cache import BlockCache

WINDOW_PERIODS: Final[dict[str, int]] = {
    "gemma2": 2,
    "gemma3": 6,
    "gemma3n": 5,
    "gpt-oss": 2,
    "cohere2": 4,
    "olmo2": 4,
    "plamo3": 8,
    "afmoe": 4,
    "exaone-moe": 4,
    "mellum": 4,
}
"""Architectures with a windowed cache: every n-th block attends to all, unless the header says."""
STATED_PATTERNS: Final = frozenset({"gemma4", "mimo2", "step35"})
"""Architectures with a windowed cache whose header must list the windowed blocks."""
UNSTATED_WINDOWS: Final = frozenset({"exaone4", "llama4", "smallthinker"})
"""Architectures that llama.cpp gives a window of its own, whatever the header says."""
SHARED_KV: Final = frozenset({"gemma3n", "gemma4"})
"""Architectures whose last blocks use an earlier block's cache, as many as the header says."""
RECURRENT: Final = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
"""Architectures without a KV cache."""
ZERO_HEADS_RECUR: Final = frozenset({"jamba", "granitehybrid", "lfm2", "lfm2moe"})
"""Hybrids in which the blocks without KV heads are the recurrent ones, and no others."""


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
    windowed = _windowed(first)
    attending, recurrent = _kinds(first)
    experts_used = first.expert_used_count if first.is_moe else 0
    return ModelShape(
        blocks=tuple(
            _block(first, index, windowed[index])
            for index in range(_cached_blocks(first))
            if attending[index]
        ),
        head_count=first.head_count,
        key_length=first.key_length,
        embedding_length=first.embedding_length,
        feed_forward_length=first.feed_forward_length,
        vocab_size=first.vocab_size,
        weights_bytes=sum(part.weights_bytes for part in ordered),
        experts_used=experts_used,
        expert_length=first.expert_feed_forward_length or first.feed_forward_length,
        window=first.sliding_window if any(windowed) else None,
        recurrent_length=first.cache.recurrent_length,
        state_elements=first.cache.state_elements * sum(recurrent),
        upper_bounds=tuple(_upper_bounds(first, any(windowed))),
    )


def _block(header: GgufHeader, index: int, windowed: bool) -> BlockCache:
    cache = header.cache
    key, value = header.key_length, header.value_length
    if windowed:
        key = cache.windowed_key_length or key
        value = cache.windowed_value_length or value
    return BlockCache(
        heads=header.head_count_kv[index],
        key_length=key,
        value_length=0 if cache.latent else value,
        windowed=windowed,
        extra_keys=cache.indexer_key_length,
    )


def _windowed(header: GgufHeader) -> tuple[bool, ...]:
    """For each block whether its cache holds the sliding window alone."""
    arch, blocks = header.architecture, header.block_count
    stated = header.cache.window_pattern
    if header.sliding_window and stated is not None and arch in STATED_PATTERNS:
        return stated
    if header.sliding_window and arch in WINDOW_PERIODS:
        return stated or every_nth_full(WINDOW_PERIODS[arch], blocks)
    return (False,) * blocks


def _cached_blocks(header: GgufHeader) -> int:
    """How many blocks, from the first, have a cache of their own."""
    shared = header.cache.shared_kv_blocks if header.architecture in SHARED_KV else 0
    return max(0, header.block_count - shared)


def _kinds(header: GgufHeader) -> tuple[list[bool], list[bool]]:
    """For each block whether it has a KV cache, and whether it keeps a recurrent state."""
    blocks, interval = header.block_count, header.cache.attention_interval
    if header.architecture in RECURRENT:
        return [False] * blocks, [True] * blocks
    if not header.cache.state_elements:
        return [True] * blocks, [False] * blocks
    if interval:
        attending = [(index + 1) % interval == 0 for index in range(blocks)]
        return attending, [not attends for attends in attending]
    if not all(header.head_count_kv):
        attending = [heads > 0 for heads in header.head_count_kv]
        return attending, [not attends for attends in attending]
    return [True] * blocks, [True] * blocks


def _upper_bounds(header: GgufHeader, windowed: bool) -> list[str]:
    """Why the KV cache may be smaller than projected, in words."""
    arch, cache = header.architecture, header.cache
    reasons = []
    if header.sliding_window and not windowed:
        reasons.append(
            f"the header states a sliding window of {header.sliding_window} tokens; which blocks "
            f"of {arch!r} keep no more is not known, so all are counted at full context"
        )
    elif arch in UNSTATED_WINDOWS:
        reasons.append(f"llama.cpp gives {arch!r} a window; all blocks are counted at full context")
    if cache.shared_kv_blocks and arch not in SHARED_KV:
        reasons.append(f"{cache.shared_kv_blocks} blocks that share a cache are counted")
    if cache.prediction_blocks:
        reasons.append(f"{cache.prediction_blocks} blocks that predict further tokens are counted")
    if cache.indexer_key_length:
        reasons.append("an indexer is counted in every block")
    if cache.kv_lora_rank and not cache.latent:
        reasons.append("latent attention is counted with the heads that the header states")
    if cache.state_elements and arch not in ZERO_HEADS_RECUR | {"mamba", "mamba2"}:
        reasons.append(f"which blocks of {arch!r} are recurrent is taken from above")
    return reasons
