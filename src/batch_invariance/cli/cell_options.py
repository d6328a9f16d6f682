"""Which cell a verb is about: its options, and what they come to.

A value on the command line beats the registry's. Every value carries where it came from.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from batch_invariance.cli.run_options import load_workset, non_empty, positive, settings_from
from batch_invariance.errors import UsageError
from batch_invariance.formats.toy_gguf import ToySpec
from batch_invariance.invariance_diff.builtin_workset import builtin_workset
from batch_invariance.invariance_diff.model import Source
from batch_invariance.invariance_diff.workset import WorkSet
from batch_invariance.live_invariance import canary
from batch_invariance.live_invariance.cell_choice import (
    COMMAND_LINE,
    CellArguments,
    Setting,
    choose,
)
from batch_invariance.live_invariance.flags import UserFlags
from batch_invariance.live_invariance.host import LaunchLimits
from batch_invariance.live_invariance.owned_folder import owned_folder
from batch_invariance.live_invariance.prepare import (
    RunSettings,
    ServerChoice,
    ServerKnowledge,
    find_server,
    launch_spec,
)
from batch_invariance.live_invariance.registry import Lookup, load_entry
from batch_invariance.live_invariance.server import LaunchSettings, LlamaLauncher
from batch_invariance.profiles.spark.generate import SparkPlan

GIB = 1024**3
MAX_PORT = 65535
PROFILES = ("spark",)


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """The cell: server, model, work-set, context, slots, and where they may be looked up."""
    group = parser.add_argument_group("the cell")
    group.add_argument("--server-bin", metavar="S", help="llama-server, a path or a command")
    group.add_argument("--model", type=Path, metavar="M", help="a GGUF file")
    group.add_argument("--workset", type=Path, metavar="W", help="a JSON or JSON Lines file")
    group.add_argument("--ctx", type=int, metavar="C", help="context per slot, in tokens")
    group.add_argument("--parallel", type=int, metavar="N", help="slots under test")
    group.add_argument(
        "--model-alias",
        type=non_empty,
        metavar="NAME",
        help="with --model its name in the certificate, else a model of the registry",
    )
    group.add_argument(
        "--models-file", type=Path, metavar="FILE", help="the registry (./models.toml, ...)"
    )
    group.add_argument(
        "--models-dir", type=Path, metavar="DIR", help="what {MODELS_DIR} in the registry means"
    )
    group.add_argument(
        "--canary",
        nargs="?",
        const="",
        metavar="SPEC",
        help="a toy model made on the spot instead of --model: q8_0, f16,twins, f32,seed=7, ...",
    )
    group = parser.add_argument_group("the reference profile")
    group.add_argument(
        "--profile", choices=PROFILES, help="its work-set and its scorer, where none is named"
    )
    add_fill_options(group)


def add_fill_options(group: argparse._ActionsContainer) -> None:
    """What shapes the work-set of a profile."""
    group.add_argument(
        "--fills", type=_fills, metavar="F,F", help="shares of the context (0.05,0.3,0.9)"
    )
    group.add_argument(
        "--per-family", type=int, default=1, metavar="K", help="items of a family at a fill (1)"
    )


def add_safety_options(parser: argparse.ArgumentParser) -> None:
    """What a launch may take of this machine."""
    group = parser.add_argument_group("safety")
    add_launch_options(group)
    group.add_argument(
        "--max-footprint-gb", type=positive, metavar="G", help="refuse a larger server, in GiB"
    )
    group.add_argument(
        "--no-memory-guard", action="store_true", help="do not look at the free memory"
    )


def add_launch_options(group: argparse._ActionsContainer) -> None:
    """What concerns any launch, also one that only counts tokens."""
    group.add_argument(
        "--ready-timeout", type=positive, default=600.0, metavar="S", help="per launch (600)"
    )
    group.add_argument(
        "--reserved-port",
        type=port,
        action="append",
        default=[],
        metavar="P",
        help="never use it; may be repeated",
    )


def port(text: str) -> int:
    """An argument that is a TCP port."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MAX_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: give 1 to {MAX_PORT}")
    return int(text)


@dataclass(frozen=True, slots=True)
class ChosenCell:
    """What the arguments come to. `workset` is None where the profile's `spark` plan makes it;
    `folder` is the run's own, for what goes with it; `origins` says where each value stands."""

    source: Source
    server: ServerChoice
    settings: RunSettings
    workset: WorkSet | None
    spark: SparkPlan | None
    origins: tuple[Setting, ...]
    folder: Path


@contextlib.contextmanager
def chosen_cell(args: argparse.Namespace, flags: Sequence[str]) -> Iterator[ChosenCell]:
    """Resolves the arguments; the cell's folder, with a canary's model, lives as long as the
    context.

    Raises UsageError, or what is wrong with a file that they name.
    """
    with owned_folder("run-") as folder:
        yield cell_in(folder, args, flags)


def cell_in(folder: Path, args: argparse.Namespace, flags: Sequence[str]) -> ChosenCell:
    """The same in a folder that is there; a canary of the same name in it is the same."""
    if args.canary is not None:
        return _canary_cell(folder, args, flags)
    entry = None
    if args.model is None and args.model_alias is not None:
        entry = load_entry(
            args.model_alias, Lookup(args.models_file, args.models_dir, args.profile)
        )
    elif args.models_file is not None or args.models_dir is not None:
        raise UsageError(
            "--models-file, --models-dir: name a model of the registry with --model-alias, and no "
            "--model"
        )
    given = CellArguments(args.server_bin, args.model, args.ctx, args.parallel, tuple(flags))
    found = choose(given, entry)
    values = {
        "server-bin": found.server_bin,
        "model": found.model,
        "workset": args.workset or args.profile,
        "ctx": found.ctx,
        "parallel": found.parallel,
    }
    missing = [f"--{name}" for name, value in values.items() if value is None]
    if missing:
        raise UsageError(
            f"{', '.join(missing)}: needed unless --canary is given or the registry says it"
        )
    assert found.server_bin is not None
    assert found.model is not None
    assert found.ctx is not None
    assert found.parallel is not None
    server = find_server(found.server_bin)
    choice = ServerChoice(server, found.model, found.ctx, UserFlags(found.flags), args.model_alias)
    settings = settings_from(args, found.parallel)
    workset, spark = _task(args, found.ctx)
    return ChosenCell(Source.LIVE, choice, settings, workset, spark, found.settings, folder)


def _task(args: argparse.Namespace, ctx: int) -> tuple[WorkSet | None, SparkPlan | None]:
    """The work-set that is named, or the plan of the profile's."""
    if args.workset is not None or args.profile is None:
        if args.fills is not None or args.per_family != 1:
            raise UsageError("--fills, --per-family: they shape the work-set of --profile alone")
        return (load_workset(args.workset) if args.workset is not None else None), None
    fills = {} if args.fills is None else {"fills": args.fills}
    return None, SparkPlan(
        args.seed, ctx, per_family=args.per_family, max_tokens=args.max_tokens, **fills
    )


def _canary_cell(folder: Path, args: argparse.Namespace, flags: Sequence[str]) -> ChosenCell:
    for option in ("model", "models_file", "models_dir"):
        if getattr(args, option) is not None:
            name = option.replace("_", "-")
            raise UsageError(f"--canary makes its own model: leave --{name} out")
    if args.server_bin is None:
        raise UsageError("--server-bin: needed, a canary tests a server")
    server_bin = find_server(args.server_bin)
    spec = ToySpec.parse(args.canary or canary.DEFAULT_SPEC)
    settings = settings_from(args, canary.PARALLEL if args.parallel is None else args.parallel)
    ctx = canary.CTX if args.ctx is None else args.ctx
    workset, spark = _task(args, ctx)
    if workset is None and spark is None:
        workset = builtin_workset()
    given = UserFlags(tuple(flags))
    own = canary.canary_flags(given, spec)
    if own != given and not args.quiet:
        added = shlex.join(own.flags[: len(own.flags) - len(given.flags)])
        print(
            f"canary {spec}: its own server flags {added}; to replace them state --flash-attn "
            "or a KV type after --",
            file=sys.stderr,
        )
    model = canary.write_canary(spec, folder)
    name = args.model_alias or canary.canary_name(spec)
    choice = ServerChoice(server_bin, model, ctx, own, name)
    origins = _canary_origins(args, choice, settings.parallel, given)
    return ChosenCell(Source.CANARY, choice, settings, workset, spark, origins, folder)


def _canary_origins(
    args: argparse.Namespace, choice: ServerChoice, parallel: int, given: UserFlags
) -> tuple[Setting, ...]:
    own = "the canary"
    rows = [
        Setting("--server-bin", str(choice.server_bin), COMMAND_LINE),
        Setting("--model", choice.model.name, own),
        Setting("--ctx", str(choice.ctx), own if args.ctx is None else COMMAND_LINE),
        Setting("--parallel", str(parallel), own if args.parallel is None else COMMAND_LINE),
    ]
    n_own = len(choice.flags.flags) - len(given.flags)
    for words, origin in ((choice.flags.flags[:n_own], own), (given.flags, COMMAND_LINE)):
        if words:
            rows.append(Setting("--", shlex.join(words), origin))
    return tuple(rows)


def guarded_launcher(
    args: argparse.Namespace, cell: ChosenCell, known: ServerKnowledge
) -> LlamaLauncher:
    """The launcher, once the memory guard lets the largest server through. Raises GuardRefused."""
    return launcher_of(args, cell.server, known, cell.settings.parallel, cell.folder)


def launcher_of(
    args: argparse.Namespace,
    server: ServerChoice,
    known: ServerKnowledge,
    parallel: int,
    folder: Path | None,
) -> LlamaLauncher:
    """The same for a server with `parallel` slots; `folder` is the run's own, where it has one."""
    limits = launch_limits(args)

    def guard(_: int) -> None:
        limits.check(known.footprint.total_bytes)

    guard(parallel)
    spec = launch_spec(server, known, parallel)
    return LlamaLauncher(
        LaunchSettings(spec, limits.reserved_ports, args.ready_timeout, guard, folder)
    )


def launch_limits(args: argparse.Namespace) -> LaunchLimits:
    """What the safety options allow."""
    cap = None if args.max_footprint_gb is None else int(args.max_footprint_gb * GIB)
    return LaunchLimits(frozenset(args.reserved_port), cap, not args.no_memory_guard)


def _fills(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list such as 0.05,0.3,0.9") from None
