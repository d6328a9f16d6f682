"""The axes of a matrix: its options, and the plan file that says the same."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from batch_invariance.cli.run_options import non_empty, read_input
from batch_invariance.errors import FileFormatError, UsageError
from batch_invariance.invariance_diff.matrix_plan import (
    MOST,
    FlagSet,
    MatrixPlan,
    flag_set,
    kv_pair,
    read_plan,
)
from batch_invariance.invariance_diff.strict_json import parse_json
from batch_invariance.live_invariance.toml_text import parse_toml

CANARY = "canary:"
"""What a model begins with that is made on the spot; the rest is its specification."""
GGUF = ".gguf"

T = TypeVar("T")


def add_matrix_options(parser: argparse.ArgumentParser) -> None:
    """The plan file, the axes, and what all cells have in common."""
    group = parser.add_argument_group("the cells")
    group.add_argument("--plan", type=Path, metavar="FILE", help="TOML or JSON; see docs/sweeps.md")
    group.add_argument("--server-bin", metavar="S", help="llama-server, a path or a command")
    group.add_argument(
        "--model",
        action="append",
        type=non_empty,
        metavar="M",
        help="a GGUF file, a name of the registry or canary:SPEC; may be repeated",
    )
    group.add_argument("--ctx", type=_numbers, metavar="C,C", help="contexts per slot, in tokens")
    group.add_argument("--parallel", type=_numbers, metavar="N,N", help="slots under test")
    group.add_argument(
        "--kv-type",
        action="append",
        type=_checked(kv_pair),
        metavar="K[/V]",
        help="types of the KV cache, such as f16 or q8_0/q4_0; may be repeated",
    )
    group.add_argument(
        "--flag-set",
        action="append",
        type=_checked(_named_flags),
        metavar="NAME=FLAGS",
        help="server flags under a name, such as 'fa-off=--flash-attn off'; may be repeated",
    )
    group.add_argument("--workset", type=Path, metavar="W", help="a JSON or JSON Lines file")
    group.add_argument(
        "--models-file", type=Path, metavar="FILE", help="the registry (./models.toml, ...)"
    )
    group.add_argument(
        "--models-dir", type=Path, metavar="DIR", help="what {MODELS_DIR} in the registry means"
    )


def stated_plan(args: argparse.Namespace) -> MatrixPlan:
    """The plan of the file, with what the command line states in the place of what that says.

    Raises UsageError or FileFormatError.
    """
    plan = MatrixPlan() if args.plan is None else _plan_of(args.plan)
    stated = {
        "models": None if args.model is None else tuple(args.model),
        "ctx": args.ctx,
        "parallel": args.parallel,
        "kv_types": None if args.kv_type is None else tuple(args.kv_type),
        "flag_sets": None if args.flag_set is None else tuple(args.flag_set),
        "server_bin": args.server_bin,
        "workset": None if args.workset is None else str(args.workset),
        "models_file": None if args.models_file is None else str(args.models_file),
        "models_dir": None if args.models_dir is None else str(args.models_dir),
        "passes": args.passes,
        "max_tokens": args.max_tokens,
    }
    return replace(plan, **{name: value for name, value in stated.items() if value is not None})


def is_file(model: str) -> bool:
    """Whether a model of a plan is meant as a path and not as a name of the registry."""
    return model.endswith(GGUF) or "/" in model or os.sep in model


def parse_plan(data: bytes, path: Path) -> MatrixPlan:
    """The plan in a file's bytes, TOML where the file is called so and JSON elsewhere.

    Raises FileFormatError with every fault.
    """
    what = f"plan {path.name}"
    try:
        text = data.decode("utf-8")
        value: object = parse_toml(text, what) if path.suffix == ".toml" else parse_json(text)
    except UnicodeDecodeError as error:
        raise FileFormatError(what, [f"not UTF-8 at byte {error.start}"]) from error
    except ValueError as error:
        raise FileFormatError(what, [f"not JSON: {error}"]) from error
    if not isinstance(value, dict):
        raise FileFormatError(what, ["is not an object"])
    return read_plan(value, what)


def _plan_of(path: Path) -> MatrixPlan:
    """A plan file, its paths made relative to where this program runs."""
    plan = parse_plan(read_input(path, "--plan"), path)

    def beside(name: str) -> str:
        return os.path.join(path.parent, os.path.expanduser(name))

    def there(name: str | None) -> str | None:
        return None if name is None else beside(name)

    return replace(
        plan,
        models=tuple(
            beside(m) if is_file(m) and not m.startswith(CANARY) else m for m in plan.models
        ),
        server_bin=(
            there(plan.server_bin)
            if plan.server_bin and "/" in plan.server_bin
            else plan.server_bin
        ),
        workset=there(plan.workset),
        models_file=there(plan.models_file),
        models_dir=there(plan.models_dir),
    )


def _numbers(text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(w.isascii() and w.isdigit() and 1 <= int(w) <= MOST for w in words):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list such as 2,4,8")
    return tuple(int(word) for word in words)


def _named_flags(text: str) -> FlagSet:
    name, equals, flags = text.partition("=")
    if not equals:
        raise UsageError(f"{text!r} is not NAME=FLAGS, such as 'fa-off=--flash-attn off'")
    try:
        return flag_set(name, shlex.split(flags))
    except ValueError as error:
        raise UsageError(f"{text!r}: {error}") from error


def _checked(parse: Callable[[str], T]) -> Callable[[str], T]:
    """`parse` for argparse, which takes no error of ours."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parsed
