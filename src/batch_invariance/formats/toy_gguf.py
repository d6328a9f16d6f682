"""Toy GGUF models: small language models of seeded random weights, for tests and the canary.

They answer any prompt with printable nonsense at hundreds of tokens per second, and they are made
to show one effect each: quantised weights that batching leaves alone, float weights whose logits
drift, and `twins`, pairs of almost equal output rows between which a drift of the last bits
chooses, so that batching changes tokens.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from batch_invariance.errors import UsageError
from batch_invariance.formats.ggml import FILE_TYPES, GgmlType
from batch_invariance.formats.gguf_stream import ValueType
from batch_invariance.formats.toy_vocab import (
    BOS_ID,
    EOS_ID,
    FIRST_PRINTABLE,
    UNKNOWN_ID,
    VOCABULARY,
)
from batch_invariance.formats.toy_weights import draw, pack, quant_step

LAYERS: Final = 2
WIDTH: Final = 64
HEADS: Final = 2
KV_HEADS: Final = 1
HEAD_LENGTH: Final = 32
"""A quantised KV cache needs a multiple of 32."""
DENSE_WIDTH: Final = 128
EXPERTS: Final = 8
EXPERTS_USED: Final = 2
EXPERT_WIDTH: Final = 32
CONTEXT_LENGTH: Final = 1 << 20
ALIGNMENT: Final = 32

EMBEDDING_EXPONENT: Final = -15
OUTPUT_EXPONENT: Final = -16
MATRIX_EXPONENT: Final = -17
"""Large enough that the prompt decides the first tokens already."""
SCORE_EXPONENT: Final = -18
"""Of the query and key matrices: sharper attention would magnify drift until tokens change."""
TWIN_BITS: Final = 5
"""Float output weights are held in units this many bits finer, so that twins can be that close.

Changed replies of 16 with F16 twins at N=4, b10068: 14-16 for 5, 9-15 for 8, 11-13 for 2.
"""
MAX_SEED: Final = (1 << 64) - 1


class ToyWeights(Enum):
    """The type of a toy model's matrices."""

    F32 = GgmlType.F32
    F16 = GgmlType.F16
    BF16 = GgmlType.BF16
    Q8_0 = GgmlType.Q8_0
    Q4_0 = GgmlType.Q4_0


@dataclass(frozen=True, slots=True)
class ToySpec:
    """Which toy model.

    `moe`: a mixture of 8 experts, 2 used, instead of a dense model. `twins`: output rows in pairs
    that differ in one tiny weight. Models of one `seed` draw the same weights in every type.
    """

    weights: ToyWeights = ToyWeights.F16
    moe: bool = False
    twins: bool = False
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> ToySpec:
        """Read a comma list such as `f16,twins,seed=7`; what is left out takes its default.

        Raises:
            UsageError: a word is unknown, stands twice, or contradicts another.
        """
        weights: ToyWeights | None = None
        seed: int | None = None
        flags: set[str] = set()
        for word in (part.strip().lower() for part in text.split(",")):
            if word.upper() in ToyWeights.__members__:
                if weights is not None:
                    raise UsageError(f"toy model {text!r} names two weight types; give one")
                weights = ToyWeights[word.upper()]
            elif word in ("moe", "twins"):
                if word in flags:
                    raise UsageError(f"toy model {text!r} says {word} twice; give it once")
                flags.add(word)
            elif word.startswith("seed="):
                if seed is not None:
                    raise UsageError(f"toy model {text!r} names two seeds; give one")
                seed = _parse_seed(word[5:], text)
            else:
                raise UsageError(f"toy model {text!r}: {word!r} is none of {_valid_words()}")
        return cls(weights or ToyWeights.F16, "moe" in flags, "twins" in flags, seed or 0)

    def __str__(self) -> str:
        """The canonical spelling, which `parse` reads back."""
        flags = [name for name, on in (("moe", self.moe), ("twins", self.twins)) if on]
        return ",".join([self.weights.name.lower(), *flags, f"seed={self.seed}"])


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One tensor: `dims` as the file lists them, the row length first."""

    name: str
    dims: tuple[int, ...]
    kind: GgmlType
    data: bytes


def toy_model_bytes(spec: ToySpec) -> bytes:
    """The whole GGUF file of a toy model; equal specs give equal bytes everywhere."""
    tensors = list(_tensors(spec))
    keys = list(_keys(spec))
    head = [struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(keys)), *keys]
    offset = 0
    for tensor in tensors:
        dims = struct.pack(f"<I{len(tensor.dims)}Q", len(tensor.dims), *tensor.dims)
        place = struct.pack("<IQ", tensor.kind.number, offset)
        head.append(_text(tensor.name) + dims + place)
        offset += len(_padded(tensor.data))
    body = (_padded(tensor.data) for tensor in tensors)
    return _padded(b"".join(head)) + b"".join(body)


def _parse_seed(digits: str, text: str) -> int:
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 20):
        raise UsageError(f"toy model {text!r}: the seed must be a whole number from 0 up")
    if int(digits) > MAX_SEED:
        raise UsageError(f"toy model {text!r}: the seed must be at most {MAX_SEED}")
    return int(digits)


def _valid_words() -> str:
    return ", ".join(
        [*(name.lower() for name in ToyWeights.__members__), "moe, twins, seed=NUMBER"]
    )


def _keys(spec: ToySpec) -> Iterator[bytes]:
    arch = "qwen3moe" if spec.moe else "llama"
    file_type = next(n for n, name in FILE_TYPES.items() if name == spec.weights.name)
    numbers = {
        "general.file_type": file_type,
        f"{arch}.block_count": LAYERS,
        f"{arch}.context_length": CONTEXT_LENGTH,
        f"{arch}.embedding_length": WIDTH,
        f"{arch}.feed_forward_length": DENSE_WIDTH,
        f"{arch}.attention.head_count": HEADS,
        f"{arch}.attention.head_count_kv": KV_HEADS,
        f"{arch}.attention.key_length": HEAD_LENGTH,
        f"{arch}.attention.value_length": HEAD_LENGTH,
        "tokenizer.ggml.bos_token_id": BOS_ID,
        "tokenizer.ggml.eos_token_id": EOS_ID,
        "tokenizer.ggml.unknown_token_id": UNKNOWN_ID,
    }
    if spec.moe:
        numbers[f"{arch}.expert_count"] = EXPERTS
        numbers[f"{arch}.expert_used_count"] = EXPERTS_USED
        numbers[f"{arch}.expert_feed_forward_length"] = EXPERT_WIDTH
    yield _key("general.architecture", ValueType.STRING, _text(arch))
    yield _key("general.name", ValueType.STRING, _text(f"toy {spec}"))
    for name, number in numbers.items():
        yield _key(name, ValueType.UINT32, struct.pack("<I", number))
    epsilon = struct.pack("<f", 1e-5)
    yield _key(f"{arch}.attention.layer_norm_rms_epsilon", ValueType.FLOAT32, epsilon)
    yield _key("tokenizer.ggml.model", ValueType.STRING, _text("llama"))
    texts = [_text(text) for text, _ in VOCABULARY]
    yield _array("tokenizer.ggml.tokens", ValueType.STRING, texts)
    scores = [struct.pack("<f", -float(rank)) for rank in range(len(VOCABULARY))]
    yield _array("tokenizer.ggml.scores", ValueType.FLOAT32, scores)
    types = [struct.pack("<i", kind) for _, kind in VOCABULARY]
    yield _array("tokenizer.ggml.token_type", ValueType.INT32, types)


def _tensors(spec: ToySpec) -> Iterator[_Tensor]:
    yield _matrix(spec, "token_embd", (WIDTH, len(VOCABULARY)), EMBEDDING_EXPONENT)
    for layer in range(LAYERS):
        yield from _layer(spec, f"blk.{layer}.")
    yield _ones("output_norm", WIDTH)
    yield _output(spec)


def _layer(spec: ToySpec, at: str) -> Iterator[_Tensor]:
    queries, values = HEADS * HEAD_LENGTH, KV_HEADS * HEAD_LENGTH
    shapes: dict[str, tuple[int, ...]] = {
        "attn_q": (WIDTH, queries),
        "attn_k": (WIDTH, values),
        "attn_v": (WIDTH, values),
        "attn_output": (queries, WIDTH),
    }
    yield _ones(f"{at}attn_norm", WIDTH)
    yield _ones(f"{at}ffn_norm", WIDTH)
    if spec.moe:
        yield _ones(f"{at}attn_q_norm", HEAD_LENGTH)
        yield _ones(f"{at}attn_k_norm", HEAD_LENGTH)
        yield _matrix(spec, f"{at}ffn_gate_inp", (WIDTH, EXPERTS), MATRIX_EXPONENT, GgmlType.F32)
        shapes["ffn_gate_exps"] = (WIDTH, EXPERT_WIDTH, EXPERTS)
        shapes["ffn_up_exps"] = (WIDTH, EXPERT_WIDTH, EXPERTS)
        shapes["ffn_down_exps"] = (EXPERT_WIDTH, WIDTH, EXPERTS)
    else:
        shapes["ffn_gate"] = (WIDTH, DENSE_WIDTH)
        shapes["ffn_up"] = (WIDTH, DENSE_WIDTH)
        shapes["ffn_down"] = (DENSE_WIDTH, WIDTH)
    for name, dims in shapes.items():
        exponent = SCORE_EXPONENT if name in ("attn_q", "attn_k") else MATRIX_EXPONENT
        yield _matrix(spec, at + name, dims, exponent)


def _output(spec: ToySpec) -> _Tensor:
    """The output matrix: zero for tokens that must not come out, and twins where asked for.

    A zero row's logit is 0, which the best of the printable tokens exceeds. Twins are equal but
    for one weight, 0 in the one and the smallest step in the other: for floats the difference of
    their logits is then of the size of a rounding error.
    """
    kind = spec.weights.value
    step = quant_step(kind)
    fine_bits = 0 if step else TWIN_BITS
    count = (len(VOCABULARY) - FIRST_PRINTABLE) * WIDTH
    rows = [number << fine_bits for number in draw(_label(spec, "output"), count)]
    if spec.twins:
        for at in range(0, count - WIDTH, 2 * WIDTH):
            rows[at] = 0
            rows[at + WIDTH : at + 2 * WIDTH] = [step or 1, *rows[at + 1 : at + WIDTH]]
    data = pack(kind, [0] * (FIRST_PRINTABLE * WIDTH) + rows, OUTPUT_EXPONENT - fine_bits)
    return _Tensor("output.weight", (WIDTH, len(VOCABULARY)), kind, data)


def _matrix(
    spec: ToySpec,
    name: str,
    dims: tuple[int, ...],
    exponent: int,
    kind: GgmlType | None = None,
) -> _Tensor:
    count = 1
    for dim in dims:
        count *= dim
    kind = kind or spec.weights.value
    numbers = draw(_label(spec, name), count)
    return _Tensor(f"{name}.weight", dims, kind, pack(kind, numbers, exponent))


def _ones(name: str, length: int) -> _Tensor:
    data = struct.pack(f"<{length}f", *([1.0] * length))
    return _Tensor(f"{name}.weight", (length,), GgmlType.F32, data)


def _label(spec: ToySpec, name: str) -> str:
    return f"toy:{spec.seed}:{name}"


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _key(name: str, kind: ValueType, value: bytes) -> bytes:
    return _text(name) + struct.pack("<I", kind) + value


def _array(name: str, kind: ValueType, values: Sequence[bytes]) -> bytes:
    head = struct.pack("<IQ", kind, len(values))
    return _key(name, ValueType.ARRAY, head + b"".join(values))


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % ALIGNMENT)
