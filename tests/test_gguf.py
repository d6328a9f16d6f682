"""The GGUF header reader: what it reads, and that every fault is one GgufError."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from io import BytesIO

import pytest

from batch_invariance.errors import GgufError
from batch_invariance.formats.ggml import FILE_TYPES, GGML_TYPES, GgmlType
from batch_invariance.formats.gguf import (
    GgufHeader,
    model_shape,
    parse_header,
    read_header,
    split_names,
)
from batch_invariance.formats.toy_gguf import ToySpec, toy_model_bytes

U32, F32, STRING, ARRAY = 4, 6, 8, 9


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def u32(name: str, value: int) -> bytes:
    return text(name) + struct.pack("<II", U32, value)


def string(name: str, value: str) -> bytes:
    return text(name) + struct.pack("<I", STRING) + text(value)


def array(name: str, kind: int, count: int, body: bytes) -> bytes:
    return text(name) + struct.pack("<IIQ", ARRAY, kind, count) + body


def tensor(name: str, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    shape = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return text(name) + shape + struct.pack("<IQ", kind, offset)


BASE = (
    string("general.architecture", "llama"),
    u32("llama.block_count", 3),
    u32("llama.context_length", 4096),
    u32("llama.embedding_length", 128),
    u32("llama.attention.head_count", 4),
)


def model(
    *more: bytes,
    keys: tuple[bytes, ...] = BASE,
    tensors: tuple[bytes, ...] = (),
    data: int = 0,
    version: int = 3,
) -> bytes:
    keys = (*keys, *more)
    head = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(keys))
    body = head + b"".join(keys) + b"".join(tensors)
    return body + b"\0" * (-len(body) % 32 + data)


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
            string("tokenizer.chat_template", "{{ x }}" * 20_000),
        )
    )
    assert header.head_count_kv == (2, 2, 2)
    assert (header.key_length, header.value_length, header.sliding_window) == (64, 16, 512)
    assert (header.expert_count, header.expert_used_count, header.is_moe) == (8, 2, True)
    assert header.file_type_name == "Q4_K_M"
    assert header.name == "A name"
    assert header.tokenizer_model == "gpt2"
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
        array("tokenizer.ggml.tokens", STRING, 1 << 29, b""),
        array("tokenizer.ggml.scores", F32, 1 << 30, b""),
        text("general.name") + struct.pack("<IQ", STRING, 1 << 30),
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
    assert shape.block_count == 3
    with pytest.raises(GgufError, match="needs parts 1 to 2, has 1"):
        model_shape([first])
    with pytest.raises(GgufError, match="needs parts 1 to 2, has 2"):
        model_shape([later])


def test_names_of_all_parts() -> None:
    assert split_names("big-00002-of-00003.gguf", 3) == (
        "big-00001-of-00003.gguf",
        "big-00002-of-00003.gguf",
        "big-00003-of-00003.gguf",
    )
    assert split_names("whole.gguf", 1) == ("whole.gguf",)


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


def _stream(label: str) -> Callable[[int], int]:
    """Numbers below a bound, from SHA-256, the same on every run."""
    count = 0

    def below(bound: int) -> int:
        nonlocal count
        count += 1
        digest = hashlib.sha256(f"{label}:{count}".encode()).digest()
        return int.from_bytes(digest[:8], "little") % bound

    return below


def _mutated(data: bytes, header_size: int, below: Callable[[int], int]) -> bytes:
    changed = bytearray(data)
    for _ in range(1 + below(4)):
        at = below(header_size)
        match below(5):
            case 0:
                changed[at] = below(256)
            case 1:
                changed[at : at + 8] = struct.pack("<Q", below(1 << 63))
            case 2:
                del changed[at : at + 1 + below(40)]
            case 3:
                changed[at:at] = bytes(below(256) for _ in range(below(12)))
            case _:
                del changed[at:]
                return bytes(changed)
    return bytes(changed)


def test_no_mutation_raises_anything_else() -> None:
    below = _stream("gguf mutations")
    small = model(
        array("llama.attention.head_count_kv", U32, 3, struct.pack("<3I", 4, 0, 1)),
        array("tokenizer.ggml.tokens", STRING, 3, text("a") + text("bc") + text("def")),
        array("nested", ARRAY, 1, struct.pack("<IQI", U32, 1, 7)),
        string("general.name", "mutant"),
        tensors=(tensor("t", (64, 2), 8, 0), tensor("u", (3,), 0, 160)),
        data=192,
    )
    toy = toy_model_bytes(ToySpec())[:12_000]
    refused = 0
    for round_number in range(2000):
        whole = toy if round_number % 8 == 0 else small
        data = _mutated(whole, len(whole) - 200, below)
        size = len(data) if round_number % 2 else None
        try:
            assert isinstance(read_header(BytesIO(data), size), GgufHeader)
        except GgufError:
            refused += 1
    assert refused > 500
