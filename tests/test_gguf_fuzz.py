"""Seeded fuzzing of the GGUF header reader: a header or one GgufError, in bounded memory."""

from __future__ import annotations

import hashlib
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from io import BytesIO

from batch_invariance.errors import GgufError
from batch_invariance.formats.gguf import GgufHeader, model_shape, read_header
from batch_invariance.formats.toy_gguf import ToySpec, toy_model_bytes
from batch_invariance.invariance_diff.budget import project
from gguf_builder import ARRAY, STRING, U32, array, model, string, tensor, text, u32

INPUTS = 10_000
MAX_PEAK_BYTES = 24 << 20
"""Well above what the reader holds at its worst: chunks of 256 KiB and 4 MiB of keys."""
MAGIC = struct.pack("<4sI", b"GGUF", 3)
Below = Callable[[int], int]


def _numbers(label: str) -> Below:
    """Numbers below a bound, from SHA-256, the same on every run."""
    count = 0

    def below(bound: int) -> int:
        nonlocal count
        count += 1
        digest = hashlib.sha256(f"{label}:{count}".encode()).digest()
        return int.from_bytes(digest[:8], "little") % bound

    return below


def _seeds() -> list[tuple[bytes, int]]:
    """Valid files, each with the length of its header."""
    tensors = (tensor("t", (64, 2), 8, 0), tensor("u", (3,), 0, 160))
    small = model(
        array("llama.attention.head_count_kv", U32, 3, struct.pack("<3I", 4, 0, 1)),
        array("tokenizer.ggml.tokens", STRING, 3, text("a") + text("bc") + text("def")),
        array("nested", ARRAY, 1, struct.pack("<IQI", U32, 1, 7)),
        u32("llama.attention.sliding_window", 512),
        u32("llama.attention.sliding_window_pattern", 6),
        string("general.name", "mutant"),
        tensors=tensors,
        data=192,
    )
    toys = [toy_model_bytes(ToySpec.parse(spec))[:12_000] for spec in ("f16", "q8_0,moe")]
    return [(small, len(small) - 200), *((toy, len(toy)) for toy in toys)]


def _mutated(data: bytes, header_size: int, below: Below) -> bytes:
    changed = bytearray(data)
    for _ in range(1 + below(4)):
        at = below(header_size)
        match below(6):
            case 0:
                changed[at] = below(256)
            case 1:
                changed[at : at + 8] = struct.pack("<Q", below(1 << 63))
            case 2:
                changed[at : at + 4] = struct.pack("<I", 1 << below(32))
            case 3:
                del changed[at : at + 1 + below(40)]
            case 4:
                changed[at:at] = bytes(below(256) for _ in range(below(12)))
            case _:
                del changed[at:]
                return bytes(changed)
    return bytes(changed)


def _inputs(count: int) -> Iterator[bytes]:
    """Mutations of valid files, and every fourth time bytes by chance, half with a magic number."""
    below = _numbers("gguf")
    seeds = _seeds()
    for number in range(count):
        if number % 4 == 3:
            noise = hashlib.shake_256(str(number).encode()).digest(below(400))
            yield (MAGIC if number % 8 == 3 else b"") + noise
        else:
            whole, header_size = seeds[0] if number % 16 else seeds[1 + number // 16 % 2]
            yield _mutated(whole, header_size, below)


def _read(data: bytes, size: int | None) -> bool:
    """Whether a header came out."""
    try:
        header = read_header(BytesIO(data), size)
    except GgufError as error:
        caught = error
    else:
        return _usable(header)
    assert len(caught.issues) == 1
    assert "\n" not in str(caught)
    return False


def _usable(header: GgufHeader) -> bool:
    """The numbers of a header are good for a projection."""
    assert isinstance(header, GgufHeader)
    if header.split_count == 1 and header.split_no == 0:
        shape = model_shape([header])
        assert project(shape, 256, 1).total_bytes > 0
    return True


def test_every_input_gives_a_header_or_one_error() -> None:
    headers = 0
    for number, data in enumerate(_inputs(INPUTS)):
        size = len(data) if number % 2 else None
        headers += _read(data, size)
    assert 100 < headers < INPUTS - 1000


def test_memory_stays_bounded() -> None:
    inputs = list(_inputs(400))
    tracemalloc.start()
    try:
        for data in inputs:
            _read(data, None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MAX_PEAK_BYTES
