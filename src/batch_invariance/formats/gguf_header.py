"""What a GGUF header says of its model, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheKeys:
    """What a header states of its model's cache beyond heads and their lengths; 0 where absent.

    `window_pattern` has one entry per block, True where the block attends to the sliding window
    alone; None where the header states no pattern. `windowed_key_length` and
    `windowed_value_length` are the heads of such blocks. `latent` says that attention works on
    compressed keys of `kv_lora_rank` elements and reads its values out of them (MLA).
    `shared_kv_blocks` of the last blocks use the cache of an earlier one. `prediction_blocks` of
    the last blocks predict further tokens. `indexer_key_length` is the head of an indexer that
    chooses which tokens to attend to. Every `attention_interval`-th block attends, the others are
    recurrent. `recurrent_length` is the inner size of a recurrent block, `state_elements` what one
    such block keeps of a sequence.
    """

    window_pattern: tuple[bool, ...] | None
    windowed_key_length: int
    windowed_value_length: int
    latent: bool
    kv_lora_rank: int
    shared_kv_blocks: int
    prediction_blocks: int
    indexer_key_length: int
    attention_interval: int
    recurrent_length: int
    state_elements: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a GGUF file says of its model.

    Lengths are in elements or tokens. `head_count` is the most of any block; `head_count_kv` has
    one entry per block. `feed_forward_length` (the most of any block) and
    `expert_feed_forward_length` are 0 where absent, `expert_count` is 0 for a dense model.
    `file_type` is `general.file_type` (None where absent) and `file_type_name` its name without
    MOSTLY_. `sliding_window` is None where the model has none. `tokenizer_model` is the kind of
    tokenizer and `tokenizer_pre` the name of its splitting rules. `vocab_size` counts the tokens
    listed. `split_count` and `split_no` are 1 and 0 for a whole file; a later part of a split model
    carries no keys of its own, so its `architecture` is empty and its sizes are 0. `tensor_types`
    counts tensors by type name; `weights_bytes` sums their data without padding.
    """

    version: int
    architecture: str
    name: str | None
    file_type: int | None
    file_type_name: str | None
    block_count: int
    context_length: int
    embedding_length: int
    feed_forward_length: int
    head_count: int
    head_count_kv: tuple[int, ...]
    key_length: int
    value_length: int
    expert_count: int
    expert_used_count: int
    expert_feed_forward_length: int
    sliding_window: int | None
    cache: CacheKeys
    tokenizer_model: str | None
    tokenizer_pre: str | None
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
