"""Memory arithmetic, against what a real server printed that it allocates."""

from __future__ import annotations

import pytest

from batch_invariance.errors import UsageError
from batch_invariance.invariance_diff.budget import (
    KvType,
    ModelShape,
    kv_bytes_per_token,
    project,
)

MIB = 1 << 20

SMOLLM2 = ModelShape(
    block_count=30,
    head_count=9,
    head_count_kv=(3,) * 30,
    key_length=64,
    value_length=64,
    embedding_length=576,
    vocab_size=49_152,
    weights_bytes=96_576_768,
)


@pytest.mark.parametrize(
    ("ctx", "parallel", "k", "v", "printed_mib"),
    [
        (2048, 1, "f16", "f16", 45.00),
        (2048, 4, "f16", "f16", 180.00),
        (8192, 4, "f16", "f16", 720.00),
        (2048, 4, "q8_0", "q8_0", 95.62),
        (2048, 2, "q4_0", "q5_1", 29.53),
        (2048, 4, "f32", "f16", 270.00),
    ],
)
def test_kv_equals_what_the_server_printed(
    ctx: int, parallel: int, k: str, v: str, printed_mib: float
) -> None:
    footprint = project(SMOLLM2, ctx, parallel, KvType.parse(k), KvType.parse(v))
    assert abs(footprint.kv_bytes / MIB - printed_mib) <= 0.006


@pytest.mark.parametrize(
    ("ctx", "parallel", "k", "v", "peak_kib"),
    [
        (2048, 1, "f16", "f16", 184_324),
        (2048, 4, "f16", "f16", 323_908),
        (2048, 4, "q8_0", "q8_0", 238_044),
        (2048, 2, "q4_0", "q5_1", 169_284),
        (8192, 4, "f16", "f16", 877_616),
    ],
)
def test_total_is_at_or_above_the_peak_a_server_reached(
    ctx: int, parallel: int, k: str, v: str, peak_kib: int
) -> None:
    footprint = project(SMOLLM2, ctx, parallel, KvType.parse(k), KvType.parse(v))
    assert peak_kib * 1024 <= footprint.total_bytes <= peak_kib * 1024 * 1.25


def test_without_flash_attention_the_scores_are_counted() -> None:
    with_it = project(SMOLLM2, 8192, 1)
    without = project(SMOLLM2, 8192, 1, flash_attention=False)
    assert without.overhead_bytes - with_it.overhead_bytes == 9 * 8192 * 512 * 4
    assert without.kv_bytes == with_it.kv_bytes


def test_blocks_without_a_cache_cost_nothing() -> None:
    hybrid = ModelShape(4, 8, (0, 2, 0, 2), 128, 64, 1024, 1000, 0)
    assert kv_bytes_per_token(hybrid, KvType.F16, KvType.F16) == 4 * (128 + 64) * 2


def test_every_type_by_the_servers_name() -> None:
    per_token = {kind.label: kv_bytes_per_token(SMOLLM2, kind, kind) for kind in KvType}
    elements = 30 * 3 * 128
    bits = {label: cost * 8 / elements for label, cost in per_token.items()}
    assert bits == {
        "f32": 32,
        "f16": 16,
        "bf16": 16,
        "q8_0": 8.5,
        "q4_0": 4.5,
        "q4_1": 5,
        "iq4_nl": 4.5,
        "q5_0": 5.5,
        "q5_1": 6,
    }


def test_refusals() -> None:
    with pytest.raises(UsageError, match=r"unknown KV cache type 'Q8_0'.*q8_0"):
        KvType.parse("Q8_0")
    narrow = ModelShape(1, 2, (1,), 80, 80, 160, 100, 0)
    with pytest.raises(UsageError, match=r"q8_0 for K packs 32 .* 80"):
        project(narrow, 256, 1, KvType.Q8_0)
    with pytest.raises(UsageError, match="ctx 0"):
        project(SMOLLM2, 0, 1)
