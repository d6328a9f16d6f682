"""One launch as data: the server's command line, environment and port. Nothing starts here."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from batch_invariance.errors import ServerError, UsageError
from batch_invariance.invariance_diff.rules import CTX_STEP
from batch_invariance.live_invariance.flags import UserFlags

LOOPBACK = "127.0.0.1"
ENGINE_PREFIXES = ("GGML_", "CUDA_", "HIP_", "ROCR_", "HSA_", "OMP_", "GOMP_", "MKL_", "OPENBLAS_")
VERBOSE = ("-lv", "5")
"""The level at which the log names the participants of every forward pass. Its reader needs prefix
and time too, which are stated because their defaults changed over versions."""
_PORT_TRIES = 64


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """Everything that one launch's command line is made of.

    `ctx` is per slot, in tokens. `known_flags`: from `parse_known_flags`; None when the build
    could not be asked, which leaves nothing out.
    """

    server_bin: Path
    model: Path
    ctx: int
    parallel: int
    port: int
    api_key_file: Path
    alias: str
    user_flags: UserFlags = field(default_factory=UserFlags)
    known_flags: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """A command line, and the flags left out of it because the build does not know them."""

    argv: tuple[str, ...]
    omitted_flags: tuple[str, ...]


def build_argv(spec: LaunchSpec) -> LaunchCommand:
    """Put the command line together: `-c ctx*parallel`, loopback, caches off, user flags last.

    The model, context, slots, host and port are always passed: no verdict is possible without.
    """
    argv = [str(spec.server_bin), "--model", str(spec.model), "-c", str(spec.ctx * spec.parallel)]
    argv += ["--parallel", str(spec.parallel), "--host", LOOPBACK, "--port", str(spec.port)]
    optional: list[tuple[str, ...]] = [
        ("--api-key-file", str(spec.api_key_file)),
        ("--alias", spec.alias),
        ("--metrics",),
        ("--slots",),
        ("--cache-ram", "0"),
        ("--log-colors", "off"),
        VERBOSE,
        ("--log-prefix",),
        ("--log-timestamps",),
    ]
    if not spec.user_flags.states_kv_unified:
        optional.append(("--no-kv-unified",))
    omitted: list[str] = []
    for words in optional:
        if spec.known_flags is None or words[0] in spec.known_flags:
            argv += words
        else:
            omitted.append(words[0])
    return LaunchCommand((*argv, *spec.user_flags.flags), tuple(omitted))


def scrub_environment(env: Mapping[str, str]) -> dict[str, str]:
    """`env` without the `LLAMA_*` variables, which llama-server reads as flags."""
    return {name: value for name, value in env.items() if not name.startswith("LLAMA_")}


def engine_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that a server inherits and that can change its arithmetic or its devices."""
    return {k: v for k, v in sorted(env.items()) if k.startswith(ENGINE_PREFIXES)}


def choose_port(reserved: frozenset[int]) -> int:
    """A loopback port that is free now and not in `reserved`; `ServerError` when none is found."""
    held: list[socket.socket] = []
    try:
        for _ in range(_PORT_TRIES):
            probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            # Kept open, so that the next try is given another port.
            held.append(probe)
            probe.bind((LOOPBACK, 0))
            port = int(probe.getsockname()[1])
            if port not in reserved:
                return port
    except OSError as error:
        raise ServerError(
            f"no port of {LOOPBACK} can be bound: {error.strerror}; check the network namespace"
        ) from error
    finally:
        for probe in held:
            probe.close()
    raise ServerError(
        f"no free port of {LOOPBACK} outside the reserved set in {_PORT_TRIES} tries; "
        "reserve fewer ports"
    )


def validate_ctx(ctx: int) -> None:
    """Raise `UsageError` unless `ctx` is a positive multiple of 256, naming the two nearest.

    llama-server pads a slot's context to 256 tokens, so that any other value is not what runs.
    """
    if ctx > 0 and ctx % CTX_STEP == 0:
        return
    below = max(CTX_STEP, ctx // CTX_STEP * CTX_STEP)
    raise UsageError(
        f"--ctx {ctx} is no positive multiple of {CTX_STEP}; use {below} or {below + CTX_STEP}"
    )
