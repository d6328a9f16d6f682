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

DIGESTS = {
    "f32,seed=0": "bc0bfe96dac61c2a5b48950b070ae14798a3cd887c92588766b08dd3cfc1fb7b",
    "f32,twins,seed=0": "25e1b7e05ec5edff2adec0fd67af3e8d2a456028142475fdfa709adad6fc6351",
    "f32,moe,seed=0": "d375b212792f41bfa40ef6c206bdd515c20e9546b80d5f7683290ed1c0280718",
    "f32,moe,twins,seed=0": "8de2752234a91ccaa03924f0883c100394cc30a41c3d3a14afafe6da2ca4de4e",
    "f16,seed=0": "972564f23da92be37d5fbdbcab17c53bd4bfe2532206a9ea449baf4c26574137",
    "f16,twins,seed=0": "66a8651dc811d6e573bcbd401d89d7a5748ab0d36aa40256398c45bf743a77d3",
    "f16,moe,seed=0": "2d0707df507baf20ed9a91e5ccb8c48e39f1c46e47060f6c897e1379faf4ee3a",
    "f16,moe,twins,seed=0": "362e12646927f95b845a633440312f759c61bc7fdc694b8ebce014c5767753cf",
    "bf16,seed=0": "5e8e6fda2bd32969832e5ae4a19cfb6717f391a4c799bce6ec331fd8e188b4b4",
    "bf16,twins,seed=0": "334c3830d780f74f1c55bb06ba16f795a4c43963ee8527df002ed12145cf92a1",
    "bf16,moe,seed=0": "cab908106f7d77e7971071a715c5ba2600f7b111e7c2ea2ea3bd82b00a59aa00",
    "bf16,moe,twins,seed=0": "c87e1e6035e0dfbd7ddd447074b78dd0fcbd6fa511de05360a5cb4bc99d72b06",
    "q8_0,seed=0": "e5a9d5936069341fdc163e3cbbc3edde8547d5ddb583734fd20aec68b12b6a06",
    "q8_0,twins,seed=0": "63afdd47f249d2cfe07b5fb18967f1841c05428d83cb071a0035e6b10e2a3366",
    "q8_0,moe,seed=0": "d2e9c0c2843c7649f488f15919709d259ac38175e0e9bd65594ece335e315da6",
    "q8_0,moe,twins,seed=0": "f1c60092f9da44d72f953c0ff8ae91e44507166a12888fed48f2a5a21c374b25",
    "q4_0,seed=0": "d02afb67c665599d3e6bb390a305a35a2c21633670a8d70c2deb5347e3e56696",
    "q4_0,twins,seed=0": "b23e74d0e5697350d04f57119fafa96bc1fff12d633f135b90e3561f071c8f63",
    "q4_0,moe,seed=0": "cf8101a01b793bbf479f8616925e188f781f1327e71a0f987a9a8b771879a48d",
    "q4_0,moe,twins,seed=0": "93db01edd9bc3f8b321f8e80367fc7433b89f93afbc382e123228476717724f4",
}


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
