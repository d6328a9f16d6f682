"""A canary cell: a toy model made on the spot, to test a server binary, its flags, its machine."""

from __future__ import annotations

from pathlib import Path

from batch_invariance.formats.toy_gguf import ToySpec, toy_model_bytes
from batch_invariance.live_invariance.flags import UserFlags
from batch_invariance.live_invariance.store import write_atomic

DEFAULT_SPEC = "q8_0"
NEXT_SPEC = "f16,twins"
DEFAULT_FLAGS = ("--flash-attn", "off")
"""With these the default toy is clean on every processor measured so far; see docs/limits.md."""
CTX = 2048
PARALLEL = 4


def canary_flags(given: UserFlags, default_spec: bool) -> UserFlags:
    """The user's flags; for the default canary with flash attention off unless they say."""
    if not default_spec or given.value("-fa", "--flash-attn") is not None:
        return given
    return UserFlags((*DEFAULT_FLAGS, *given.flags))


def write_canary(spec: ToySpec, folder: Path) -> Path:
    """Writes the toy model into `folder` and returns its path."""
    path = folder / f"{canary_name(spec)}.gguf"
    write_atomic(path, toy_model_bytes(spec))
    return path


def canary_name(spec: ToySpec) -> str:
    """The name of the canary's model, such as `canary-f16-twins-seed0`."""
    return "canary-" + str(spec).replace("=", "").replace(",", "-")
