"""The GGUF header reader: what it reads, and that every fault is one GgufError."""

from __future__ import annotations

import os
import struct
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import pytest

from batch_invariance.errors import GgufError
from batch_invariance.formats.ggml import FILE_TYPES, GGML_TYPES, GgmlType
from batch_invariance.formats.gguf import GgufHeader, model_shape, parse_header, read_header
from batch_invariance.formats.gguf_stream import CHUNK_BYTES
from batch_invariance.formats.toy_gguf import ToySpec, toy_model_bytes
from batch_invariance.live_invariance.model_file import read_model
from gguf_builder import (
    ARRAY,
    BASE,
    F32,
    STRING,
    U32,
    Value,
    array,
    model,
    named_model,
    string,
    tensor,
    text,
    u32,
)


def test_sizes_that_a_file_leaves_out_are_derived() -> None:
    header = parse_header(model())
    assert header.head_count_kv == (4, 4, 4)
    assert (header.key_length, header.value_length) == (32, 32)
    assert (header.expert_count, header.is_moe) == (0, False)
    assert header.sliding_window is None
    assert header.file_type_name is None
    assert (header.split_no, header.split_count) == (0, 1)


def test_stated_sizes_win() -> None:
    header = parse_header(
        model(
            u32("llama.attention.head_count_kv", 2),
            u32("llama.attention.key_length", 64),
            u32("llama.attention.value_length", 16),
            u32("llama.attention.sliding_window", 512),
            u32("llama.expert_count", 8),
            u32("llama.expert_used_count", 2),
            u32("general.file_type", 15),
            string("general.name", "A name"),
            string("tokenizer.ggml.model", "gpt2"),
            string("tokenizer.ggml.pre", "llama-bpe"),
            u32("llama.feed_forward_length", 344),
            u32("llama.expert_feed_forward_length", 96),
            string("tokenizer.chat_template", "{{ x }}" * 20_000),
        )
    )
    assert header.head_count_kv == (2, 2, 2)
    assert (header.key_length, header.value_length, header.sliding_window) == (64, 16, 512)
    assert (header.expert_count, header.expert_used_count, header.is_moe) == (8, 2, True)
    assert header.file_type_name == "Q4_K_M"
    assert header.name == "A name"
    assert (header.tokenizer_model, header.tokenizer_pre) == ("gpt2", "llama-bpe")
    assert (header.feed_forward_length, header.expert_feed_forward_length) == (344, 96)
    assert header.has_chat_template


def test_heads_per_layer_are_read_as_such() -> None:
    heads = array("llama.attention.head_count_kv", U32, 3, struct.pack("<3I", 4, 0, 1))
    assert parse_header(model(heads)).head_count_kv == (4, 0, 1)


@pytest.mark.parametrize("version", [2, 3])
def test_both_current_versions_are_read(version: int) -> None:
    assert parse_header(model(version=version)).version == version


@pytest.mark.parametrize("kind", list(GgmlType))
def test_tensor_bytes_follow_the_type(kind: GgmlType) -> None:
    row = kind.block_elements * 3
    size = kind.block_bytes * 3 * 2
    header = parse_header(model(tensors=(tensor("t", (row, 2), kind.number, 0),), data=size))
    assert header.tensor_types == {kind.name: 1}
    assert header.weights_bytes == size


def test_block_sizes_known_from_the_format() -> None:
    bits = {"Q4_0": 4.5, "Q8_0": 8.5, "Q6_K": 6.5625, "Q4_K": 4.5, "MXFP4": 4.25, "BF16": 16}
    for name, expected in bits.items():
        kind = GgmlType[name]
        assert kind.block_bytes * 8 / kind.block_elements == expected
    assert len(GGML_TYPES) == len(GgmlType)
    assert FILE_TYPES[7] == "Q8_0"


def test_the_source_may_give_few_bytes_at_a_time() -> None:
    class Drip:
        def __init__(self, data: bytes) -> None:
            self._inner = BytesIO(data)

        def read(self, n: int, /) -> bytes:
            return self._inner.read(min(n, 7))

    data = toy_model_bytes(ToySpec())
    assert read_header(Drip(data), len(data)) == parse_header(data)
    assert read_header(Drip(data)) == parse_header(data)


def test_a_claimed_length_is_never_allocated() -> None:
    class Watched:
        largest = 0

        def read(self, n: int, /) -> bytes:
            self.largest = max(self.largest, n)
            return data.read(n)

    for claim in (
        array("tokenizer.ggml.tokens", STRING, 1 << 24, b""),
        array("tokenizer.ggml.scores", F32, 1 << 25, b""),
        text("general.name") + struct.pack("<IQ", STRING, 1 << 27),
    ):
        source = Watched()
        data = BytesIO(model(claim))
        with pytest.raises(GgufError, match="ends inside key"):
            read_header(source)
        assert source.largest <= 1 << 20


def test_later_part_of_a_split_model_needs_no_sizes() -> None:
    split = (u32("split.no", 1), u32("split.count", 2))
    later = parse_header(model(keys=split, tensors=(tensor("b", (8,), 0, 0),), data=32))
    first = parse_header(
        model(
            u32("split.no", 0),
            u32("split.count", 2),
            tensors=(tensor("a", (4,), 0, 0),),
            data=16,
        )
    )
    shape = model_shape([later, first])
    assert shape.weights_bytes == 48
    assert len(shape.blocks) == 3
    with pytest.raises(GgufError, match="needs parts 1 to 2, has 1"):
        model_shape([first])
    with pytest.raises(GgufError, match="needs parts 1 to 2, has 2"):
        model_shape([later])


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "ends inside the magic number"),
        (b"PK\x03\x04 a zip", "not a GGUF model"),
        (b"GGUF", "ends inside the version"),
        (struct.pack("<4sI", b"GGUF", 1), "version 1"),
        (struct.pack("<4sI", b"GGUF", 9), "version 9"),
        (struct.pack(">4sI", b"GGUF", 3), "big-endian"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 1 << 60, 0), "absurd"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1 << 60), "absurd"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 9, 9), "ends inside the header"),
        (model(keys=BASE[:1]), "llama.block_count is missing"),
        (model(keys=()), "missing"),
        (model(BASE[1]), "stands twice"),
        (model(u32("general.alignment", 33)), "power of two"),
        (model(string("general.file_type", "seven")), "general.file_type is 'seven'"),
        (model(u32("general.name", 1)), "general.name is not a string"),
        (model(text("k") + struct.pack("<I", 77)), "unknown value type 77"),
        (model(keys=(BASE[0], u32("llama.block_count", 1 << 31), *BASE[2:])), "block_count is"),
        (model(array("llama.attention.head_count_kv", U32, 1, b"\0" * 4)), "1 entries for 3"),
        (model(tensors=(tensor("t", (32,), 31, 0),)), "unknown type 31"),
        (model(tensors=(tensor("t", (33,), 8, 0),)), "no multiple"),
        (model(tensors=(tensor("t", (1 << 40, 1 << 40), 0, 0),)), "absurd shape"),
        (model(tensors=(tensor("t", (1, 1, 1, 1, 1), 0, 0),)), "5 dimensions"),
        (model(tensors=(tensor("t", (4,), 0, 5),)), "not a multiple"),
        (model(tensors=(tensor("t", (64,), 0, 0),), data=255), "truncated"),
    ],
)
def test_each_fault_is_named(data: bytes, says: str) -> None:
    with pytest.raises(GgufError, match=says) as caught:
        parse_header(data, "models/x.gguf")
    assert str(caught.value).startswith("models/x.gguf: ")
    assert len(caught.value.issues) == 1
    assert "\n" not in str(caught.value)


def test_deeply_nested_arrays_are_refused() -> None:
    body = struct.pack("<IQ", ARRAY, 1) * 5000
    with pytest.raises(GgufError, match="nests arrays"):
        parse_header(model(array("deep", ARRAY, 1, body)))


class Counted:
    """A file that counts the bytes read of it."""

    def __init__(self, inner: BinaryIO) -> None:
        self._inner = inner
        self.read_bytes = 0

    def read(self, n: int, /) -> bytes:
        data = self._inner.read(n)
        self.read_bytes += len(data)
        return data


def test_of_a_file_of_100_gb_the_header_alone_is_read(tmp_path: Path) -> None:
    rows = 1 << 18
    weights = tuple(
        tensor(f"blk.{index}.ffn_down.weight", (98_304, rows), 8, index * 98_304 * rows // 32 * 34)
        for index in range(4)
    )
    head = model(string("tokenizer.chat_template", "x" * 200_000), tensors=weights)
    path, size = tmp_path / "large.gguf", 4 * 98_304 * rows // 32 * 34 + len(head)
    path.write_bytes(head)
    os.truncate(path, size)
    assert size > 100e9
    with path.open("rb") as file:
        counted = Counted(file)
        header = read_header(counted, size)
    assert header.weights_bytes == size - len(head)
    assert counted.read_bytes <= len(head) + CHUNK_BYTES
    assert read_model(path) == ([header], size)
    os.truncate(path, size - 1)
    with pytest.raises(GgufError, match="truncated"):
        read_model(path)


@pytest.mark.parametrize(("kind", "count"), [(F32, 1 << 29), (STRING, 1 << 28), (ARRAY, 1 << 28)])
def test_a_header_that_would_take_minutes_to_read_is_refused(
    tmp_path: Path, kind: int, count: int
) -> None:
    """The file is as long as the header claims: a hole of zeros reads as anything."""
    path = tmp_path / "hole.gguf"
    path.write_bytes(model(array("tokenizer.ggml.scores", kind, count, b"")))
    os.truncate(path, 1 << 37)
    with path.open("rb") as file:
        counted = Counted(file)
        with pytest.raises(GgufError, match="ends beyond 256 MiB"):
            read_header(counted, 1 << 37)
    assert counted.read_bytes <= CHUNK_BYTES


def test_keys_that_would_fill_the_memory_are_refused() -> None:
    many = tuple(string(f"k{index}", "x" * 60_000) for index in range(80))
    with pytest.raises(GgufError, match="more than 4 MiB of keys"):
        parse_header(model(*many))


def shape_of(header: GgufHeader) -> list[tuple[int, int, int, bool]]:
    return [
        (block.heads, block.key_length, block.value_length, block.windowed)
        for block in model_shape([header]).blocks
    ]


def test_a_plain_model_is_exact() -> None:
    header = parse_header(named_model("llama", {"attention.head_count_kv": (4, 0, 1, 2)}))
    assert shape_of(header) == [(4, 32, 32, False), *((n, 32, 32, False) for n in (0, 1, 2))]
    shape = model_shape([header])
    assert (shape.upper_bounds, shape.window, shape.state_elements) == ((), None, 0)


@pytest.mark.parametrize(
    ("architecture", "pattern", "windowed"),
    [
        ("gpt-oss", {}, (True, False, True, False)),
        ("gemma3", {}, (True, True, True, True)),
        ("gemma3", {"attention.sliding_window_pattern": 3}, (True, True, False, True)),
        (
            "gemma3",
            {"attention.sliding_window_pattern": (False, True, False, True)},
            (False, True, False, True),
        ),
        (
            "gemma4",
            {"attention.sliding_window_pattern": (True, True, False, False)},
            (True, True, False, False),
        ),
    ],
)
def test_windowed_blocks_follow_the_header_then_the_architecture(
    architecture: str, pattern: dict[str, int | tuple[bool, ...]], windowed: tuple[bool, ...]
) -> None:
    header = parse_header(named_model(architecture, {"attention.sliding_window": 512, **pattern}))
    shape = model_shape([header])
    assert tuple(block.windowed for block in shape.blocks) == windowed
    assert (shape.window, shape.upper_bounds) == (512, ())
    if "attention.sliding_window_pattern" not in pattern:
        assert header.cache.window_pattern is None


def test_windowed_blocks_may_have_heads_of_their_own() -> None:
    values: dict[str, Value] = {
        "attention.sliding_window": 512,
        "attention.sliding_window_pattern": (True, True, False, True),
        "attention.key_length_swa": 16,
        "attention.value_length_swa": 8,
        "attention.shared_kv_layers": 1,
    }
    assert shape_of(parse_header(named_model("gemma4", values))) == [
        (4, 16, 8, True),
        (4, 16, 8, True),
        (4, 32, 32, False),
    ]


@pytest.mark.parametrize(
    ("architecture", "values", "says"),
    [
        ("llama", {"attention.sliding_window": 512}, "512 tokens; which blocks of 'llama'"),
        ("gemma4", {"attention.sliding_window": 512}, "counted at full context"),
        ("llama4", {}, "gives 'llama4' a window"),
        ("llama", {"attention.shared_kv_layers": 2}, "2 blocks that share a cache"),
        ("glm4moe", {"nextn_predict_layers": 1}, "1 blocks that predict"),
        ("deepseek32", {"attention.indexer.key_length": 128}, "an indexer"),
        ("deepseek2", {"attention.kv_lora_rank": 512}, "latent attention"),
        ("falcon-h1", {"ssm.inner_size": 64, "ssm.state_size": 16}, "'falcon-h1' are recurrent"),
        ("rwkv7", {"wkv.head_size": 64}, "'rwkv7' are recurrent"),
    ],
)
def test_what_is_not_known_is_counted_in_full_and_said(
    architecture: str, values: dict[str, int], says: str
) -> None:
    shape = model_shape([parse_header(named_model(architecture, values))])
    assert len(shape.upper_bounds) == 1
    assert says in shape.upper_bounds[0]
    if architecture != "rwkv7":
        assert [block.windowed for block in shape.blocks] == [False] * 4


def test_latent_attention_caches_keys_alone() -> None:
    values = {
        "attention.head_count_kv": 1,
        "attention.key_length": 576,
        "attention.value_length": 512,
        "attention.key_length_mla": 192,
        "attention.value_length_mla": 128,
        "attention.kv_lora_rank": 512,
    }
    header = parse_header(named_model("deepseek2", values))
    assert shape_of(header) == [(1, 576, 0, False)] * 4
    assert model_shape([header]).upper_bounds == ()


MAMBA = {"ssm.conv_kernel": 4, "ssm.inner_size": 256, "ssm.state_size": 16, "ssm.group_count": 1}
MAMBA_STATE = 3 * (256 + 2 * 16) + 16 * 256


def test_recurrent_blocks_keep_a_state_instead_of_tokens() -> None:
    def state(architecture: str, values: dict[str, int | tuple[int, ...]]) -> tuple[int, int]:
        shape = model_shape([parse_header(named_model(architecture, values))])
        return len(shape.blocks), shape.state_elements

    assert state("mamba2", {**MAMBA, "attention.head_count": 0}) == (0, 4 * MAMBA_STATE)
    heads = {"attention.head_count_kv": (0, 0, 2, 0)}
    assert state("granitehybrid", {**MAMBA, **heads}) == (1, 3 * MAMBA_STATE)
    assert state("qwen35", {**MAMBA, "full_attention_interval": 2}) == (2, 2 * MAMBA_STATE)
    assert state("falcon-h1", dict(MAMBA)) == (4, 4 * MAMBA_STATE)
    assert state("rwkv7", {"wkv.head_size": 64}) == (0, 4 * 128 * (2 + 64))
    assert state("lfm2", {"shortconv.l_cache": 3, **heads}) == (1, 3 * 128 * 2)
    delta = {"kda.head_dim": 8, "ssm.conv_kernel": 4}
    assert state("kimi-linear", {**delta, **heads}) == (1, 3 * 4 * 8 * (3 * 3 + 8))


def test_sizes_that_differ_by_block_count_as_the_largest() -> None:
    values: dict[str, Value] = {"feed_forward_length": (128, 512, 256, 0), "vocab_size": 777}
    header = parse_header(named_model("llama", values))
    assert (header.feed_forward_length, header.vocab_size) == (512, 777)
