"""Toy models: the same bytes everywhere, a header that reads back, and how a spec is written."""

from __future__ import annotations

import hashlib
import struct

import pytest

from batch_invariance.errors import UsageError
from batch_invariance.formats.ggml import GgmlType
from batch_invariance.formats.gguf import model_shape, parse_header
from batch_invariance.formats.toy_gguf import ToySpec, ToyWeights, toy_model_bytes
from batch_invariance.formats.toy_vocab import FIRST_PRINTABLE, VOCABULARY
from batch_invariance.formats.toy_weights import draw, pack

DIGESTS: dict[str, str] = {}


@pytest.mark.parametrize("spec", DIGESTS)
def test_bytes_are_the_same_everywhere(spec: str) -> None:
    data = toy_model_bytes(ToySpec.parse(spec))
    assert hashlib.sha256(data).hexdigest() == DIGESTS[spec]


def test_every_kind_has_a_digest() -> None:
    kinds = {(s.weights, s.moe, s.twins) for s in map(ToySpec.parse, DIGESTS)}
    assert len(kinds) == len(ToyWeights) * 4


@pytest.mark.parametrize("weights", list(ToyWeights))
@pytest.mark.parametrize("moe", [False, True])
def test_header_says_what_was_asked(weights: ToyWeights, moe: bool) -> None:
    spec = ToySpec(weights, moe=moe, seed=3)
    header = parse_header(toy_model_bytes(spec))
    assert header.name == f"toy {spec}"
    assert header.architecture == ("qwen3moe" if moe else "llama")
    assert header.file_type_name == weights.name
    assert (header.expert_count, header.expert_used_count) == ((8, 2) if moe else (0, 0))
    assert header.is_moe is moe
    assert header.context_length >= 8192 * 64
    assert header.tensor_types[weights.name] > 10
    assert header.vocab_size == len(VOCABULARY)
    assert model_shape([header]).key_length % 32 == 0


def test_sizes_stay_small() -> None:
    assert len(toy_model_bytes(ToySpec(ToyWeights.Q4_0))) < 100_000
    assert len(toy_model_bytes(ToySpec(ToyWeights.F32, moe=True))) < 1_000_000


def test_seed_changes_the_weights_and_twins_only_the_output() -> None:
    plain, twins = (toy_model_bytes(ToySpec(twins=flag)) for flag in (False, True))
    other = toy_model_bytes(ToySpec(seed=1))
    assert plain != other
    embedding = b"".join(
        struct.pack("<e", number * 2.0**-15) for number in draw("toy:0:token_embd", 16)
    )
    assert embedding in plain
    assert embedding in twins
    assert embedding not in other


def _output_rows(spec: ToySpec) -> list[tuple[float, ...]]:
    data = toy_model_bytes(spec)
    tail = data[-len(VOCABULARY) * 64 * 2 :]
    values = struct.unpack(f"<{len(tail) // 2}e", tail)
    return [values[at : at + 64] for at in range(0, len(values), 64)]


def test_unprintable_tokens_have_zero_rows() -> None:
    rows = _output_rows(ToySpec())
    for row, (piece, _) in zip(rows, VOCABULARY, strict=True):
        printable = piece.replace("▁", " ").isprintable() and not piece.startswith("<")
        assert any(row) or not printable
    assert not any(any(row) for row in rows[:FIRST_PRINTABLE])
    assert all(any(row) for row in rows[FIRST_PRINTABLE:])


def test_twins_differ_in_one_tiny_weight() -> None:
    rows = _output_rows(ToySpec(twins=True))[FIRST_PRINTABLE:]
    for first, second in zip(rows[::2], rows[1::2], strict=False):
        assert first[1:] == second[1:]
        assert 0 < second[0] - first[0] < 1e-5


def test_vocabulary_covers_all_bytes_once() -> None:
    texts = [piece for piece, _ in VOCABULARY]
    assert len(set(texts)) == len(texts)
    assert {f"<0x{value:02X}>" for value in range(256)} <= set(texts)
    assert len(texts) % 32 == 0


def test_packing_is_exact_where_the_format_is() -> None:
    numbers = [-65535, -1, 0, 1, 2, 65535, 4096, -4096] * 4
    assert struct.unpack("<32f", pack(GgmlType.F32, numbers, -3)) == tuple(
        number / 8 for number in numbers
    )
    scale, *quants = struct.unpack("<e32b", pack(GgmlType.Q8_0, numbers, -9))
    assert scale == 1.0
    assert quants[:8] == [-127, 0, 0, 0, 0, 127, 8, -8]
    packed = pack(GgmlType.Q4_0, numbers, -13)
    assert struct.unpack_from("<e", packed)[0] == 1.0
    assert [byte & 15 for byte in packed[2:10]] == [1, 8, 8, 8, 8, 15, 9, 8]
    wide = pack(GgmlType.BF16, [257, 259], 0)
    assert struct.unpack("<2H", wide) == (0x4380, 0x4382)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("f16", "f16,seed=0"),
        ("Q8_0", "q8_0,seed=0"),
        ("twins", "f16,twins,seed=0"),
        (" F16 , Twins, SEED=7", "f16,twins,seed=7"),
        ("twins,moe,bf16", "bf16,moe,twins,seed=0"),
        ("f32,seed=18446744073709551615", "f32,seed=18446744073709551615"),
    ],
)
def test_spec_reads_and_writes(text: str, canonical: str) -> None:
    spec = ToySpec.parse(text)
    assert str(spec) == canonical
    assert ToySpec.parse(str(spec)) == spec


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "f32, f16, bf16, q8_0, q4_0, moe, twins, seed=NUMBER"),
        ("f16,", "'' is none of"),
        ("q5_0", "'q5_0' is none of f32"),
        ("f16,f16", "two weight types"),
        ("f16,q8_0", "two weight types"),
        ("moe,moe", "moe twice"),
        ("seed=1,seed=1", "two seeds"),
        ("seed=-1", "whole number"),
        ("seed=", "whole number"),
        ("seed=１", "whole number"),
        ("seed=18446744073709551616", "at most"),
    ],
)
def test_bad_specs_are_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        ToySpec.parse(text)
