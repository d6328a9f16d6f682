"""A canary cell: a toy model made on the spot, to test a server binary, its flags, its machine."""

from __future__ import annotations

from pathlib import Path

from batch_invariance.errors import UsageError
from batch_invariance.formats.toy_gguf import ToySpec, ToyWeights, toy_model_bytes
from batch_invariance.live_invariance.flags import UserFlags
from batch_invariance.live_invariance.store import write_atomic

DEFAULT_SPEC = "q8_0"
CACHE_TYPE_K = ("-ctk", "--cache-type-k")
CACHE_TYPE_V = ("-ctv", "--cache-type-v")
NEXT_SPEC = "f16,twins"
CALM_FLAGS = ("--flash-attn", "off")
F32_FLAGS = ("-ctk", "f32", "-ctv", "f32")
"""Flash attention adds up in half precision and rounds by the shape of the batch, and so does a
half-precision KV cache; without both, F32 weights drift in their last bits and flip no token. The
runs behind this: tests/bench/results/cells.txt."""
CTX = 2048
PARALLEL = 4


def canary_flags(given: UserFlags, spec: ToySpec) -> UserFlags:
    """The user's flags, after those under which a canary without twins keeps its tokens.

    None are added to twins, which are made to diverge, nor where the user states flash attention
    or a KV type.
    """
    stated = given.value("-fa", "--flash-attn", *CACHE_TYPE_K, *CACHE_TYPE_V) is not None
    if spec.twins or stated:
        return given
    own = CALM_FLAGS + (F32_FLAGS if spec.weights is ToyWeights.F32 else ())
    return UserFlags((*own, *given.flags))


def write_canary(spec: ToySpec, folder: Path) -> Path:
    """Writes the toy model into `folder` and returns its path."""
    path = folder / f"{canary_name(spec)}.gguf"
    write_atomic(path, toy_model_bytes(spec))
    return path


def spec_of(model_file: str) -> ToySpec | None:
    """The canary that `write_canary` named so; None for another name."""
    name = model_file.removesuffix(".gguf")
    words = name.removeprefix("canary-").replace("-", ",").replace("seed", "seed=")
    try:
        spec = ToySpec.parse(words)
    except UsageError:
        return None
    return spec if canary_name(spec) == name else None


def canary_name(spec: ToySpec) -> str:
    """The name of the canary's model, such as `canary-f16-twins-seed0`."""
    return "canary-" + str(spec).replace("=", "").replace(",", "-")
