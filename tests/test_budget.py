"""Memory arithmetic, against what a real server printed that it allocates."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batch_invariance.errors import UsageError
from batch_invariance.invariance_diff.budget import KvType, ModelShape, ServerSettings, project
from batch_invariance.invariance_diff.kv_cache import BlockCache, kv_bytes_per_token

MIB = 1 << 20
ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "tests" / "bench" / "results" / "budget.txt"
PAGE = ROOT / "docs" / "planning.md"

SMOLLM2 = ModelShape(
    blocks=(BlockCache(3, 64, 64),) * 30,
    head_count=9,
    key_length=64,
    embedding_length=576,
    feed_forward_length=1536,
    vocab_size=49_152,
    weights_bytes=96_576_768,
)


def settings(k: str = "f16", v: str = "f16", **more: Any) -> ServerSettings:
    return replace(ServerSettings(KvType.parse(k), KvType.parse(v)), **more)


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
    footprint = project(SMOLLM2, ctx, parallel, settings(k, v))
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
    footprint = project(SMOLLM2, ctx, parallel, settings(k, v))
    assert peak_kib * 1024 <= footprint.total_bytes <= peak_kib * 1024 * 1.25


@pytest.mark.parametrize(
    ("ctx", "parallel", "more", "printed_mib"),
    [
        (2048, 1, {}, 15.51),
        (8192, 1, {}, 21.51),
        (8192, 1, {"ubatch_tokens": 128}, 5.38),
        (8192, 1, {"ubatch_tokens": 128, "batch_tokens": 64}, 2.69),
        (2048, 1, {"ubatch_tokens": 4096}, 62.05),
        (2048, 1, {"ubatch_tokens": 0}, 62.05),
        (2048, 4, {"kv_unified": True}, 21.51),
        (256, 256, {}, 49.69),
        (8192, 1, {"flash_attention": False}, 166.38),
        (2048, 1, {"flash_attention": False, "ubatch_tokens": 128}, 11.60),
    ],
)
def test_the_compute_buffer_follows_the_flags(
    ctx: int, parallel: int, more: dict[str, Any], printed_mib: float
) -> None:
    footprint = project(SMOLLM2, ctx, parallel, settings(**more))
    assert abs(footprint.compute_bytes / MIB - printed_mib) <= 0.03 * printed_mib


def test_parts_add_up() -> None:
    footprint = project(SMOLLM2, 2048, 4)
    assert footprint.output_bytes == 4 * 49_152 * 4
    assert footprint.total_bytes == (
        footprint.weights_bytes + footprint.kv_bytes + footprint.overhead_bytes
    )


WINDOWED = replace(
    SMOLLM2,
    blocks=(BlockCache(4, 64, 64, windowed=True),) * 10 + (BlockCache(4, 64, 64),) * 2,
    window=1024,
)


@pytest.mark.parametrize(
    ("ctx", "parallel", "more", "printed_mib"),
    [
        (8192, 1, {}, 16 + 15),
        (8192, 4, {}, 64 + 60),
        (8192, 4, {"ubatch_tokens": 128}, 64 + 50),
        (8192, 4, {"swa_full": True}, 64 + 320),
        (1024, 4, {}, 8 + 40),
        (8192, 4, {"kv_unified": True}, 64 + 45),
    ],
)
def test_windowed_blocks_hold_a_window_and_a_batch(
    ctx: int, parallel: int, more: dict[str, Any], printed_mib: int
) -> None:
    assert project(WINDOWED, ctx, parallel, settings(**more)).kv_bytes == printed_mib * MIB


def test_a_slot_is_rounded_up_as_the_server_does() -> None:
    assert project(SMOLLM2, 300, 3).kv_bytes == project(SMOLLM2, 512, 3).kv_bytes


def test_a_recurrent_state_costs_by_slot_and_not_by_token() -> None:
    recurrent = replace(SMOLLM2, blocks=(), state_elements=1000)
    assert project(recurrent, 2048, 4).kv_bytes == project(recurrent, 256, 4).kv_bytes == 16_000


def test_blocks_differ() -> None:
    blocks = (BlockCache(0, 128, 64), BlockCache(2, 128, 64), BlockCache(1, 576, 0))
    assert kv_bytes_per_token(blocks, settings()) == 2 * (2 * 192 + 576)
    # Without flash attention every block that has values holds as many as the largest.
    without = settings(flash_attention=False)
    assert kv_bytes_per_token(blocks, without) == 2 * (128 + 2 * 128 + 128 + 576)
    indexed = (BlockCache(1, 576, 0, extra_keys=128),)
    assert kv_bytes_per_token(indexed, settings("q8_0")) == (576 + 128) // 32 * 34


def test_every_type_by_the_servers_name() -> None:
    per_token = {
        kind.label: kv_bytes_per_token(SMOLLM2.blocks, ServerSettings(kind, kind))
        for kind in KvType
    }
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
    narrow = replace(SMOLLM2, blocks=(BlockCache(1, 80, 80),))
    with pytest.raises(UsageError, match=r"q8_0 for K packs 32 .* 80"):
        project(narrow, 256, 1, settings("q8_0"))
    with pytest.raises(UsageError, match="q8_0 for V needs flash attention"):
        project(SMOLLM2, 256, 1, settings("f16", "q8_0", flash_attention=False))
    with pytest.raises(UsageError, match="ctx 0"):
        project(SMOLLM2, 0, 1)
    with pytest.raises(UsageError, match="batches of 0"):
        project(SMOLLM2, 256, 1, settings(batch_tokens=0))


def _measured() -> dict[tuple[str, ...], tuple[str, ...]]:
    """Setting to figures, from the file that the benchmark wrote."""
    rows = {}
    for line in RESULTS.read_text("utf-8").splitlines():
        words = line.split()
        if words[0] != "#":
            rows[tuple(words[:8])] = tuple(words[8:-1])
    return rows


def test_the_measured_totals_are_within_a_tenth_and_the_kv_exact() -> None:
    rows = _measured()
    smollm2 = {setting: figures for setting, figures in rows.items() if setting[0] == "SmolLM2"}
    assert len(smollm2) >= 6
    for figures in smollm2.values():
        assert abs(float(figures[9]) - float(figures[4])) <= 0.1 * float(figures[4])
    assert all(figures[1] == figures[6] for figures in rows.values())


def test_the_page_quotes_the_measurement() -> None:
    text = PAGE.read_text("utf-8")
    assert "tests/bench/results/budget.txt" in text
    quoted = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if re.match(r"\| (SmolLM2|gemma3|gpt-oss|deepseek2|granitehybrid) ", line)
    ]
    shown = (1, 6, 2, 7, 4, 9)
    expected = [
        [*setting, *(figures[index] for index in shown), f"{figures[10]} %"]
        for setting, figures in _measured().items()
    ]
    assert quoted == expected
