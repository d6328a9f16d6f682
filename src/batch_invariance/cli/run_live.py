"""`run-live`: one cell against a real llama-server, from launch to certificate."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from batch_invariance.cli.exit_codes import ExitCode
from batch_invariance.cli.plan_text import plan_as_json, plan_text
from batch_invariance.cli.run_options import (
    add_cell_options,
    add_output_options,
    conduct_from,
    load_scorer,
    load_workset,
    non_empty,
    positive,
    settings_from,
)
from batch_invariance.cli.style import Style
from batch_invariance.cli.summary import as_json, render
from batch_invariance.errors import UsageError
from batch_invariance.formats.toy_gguf import ToySpec
from batch_invariance.invariance_diff.builtin_workset import builtin_workset
from batch_invariance.invariance_diff.model import Source, Verdict
from batch_invariance.invariance_diff.workset import WorkSet
from batch_invariance.live_invariance import canary
from batch_invariance.live_invariance.flags import UserFlags
from batch_invariance.live_invariance.host import check_memory
from batch_invariance.live_invariance.prepare import (
    RunSettings,
    ServerChoice,
    ServerKnowledge,
    find_server,
    know_server,
    launch_spec,
    live_header,
    plan_shortfalls,
)
from batch_invariance.live_invariance.produce import Produced, produce
from batch_invariance.live_invariance.server import LaunchSettings, LlamaLauncher

MEMORY_FLOOR_BYTES = 512 * 1024 * 1024
GIB = 1024**3
DEFAULT_MAX_TOKENS = 64
EXAMPLES = """examples:
  batch-invariance run-live --server-bin llama-server --canary
  batch-invariance run-live --server-bin ./llama-server --model m.gguf --workset w.json \\
      --ctx 8192 --parallel 4 --cert-source live --out-dir ./certs
  batch-invariance run-live ... -- --flash-attn off --threads 8

Everything after -- goes to the server and is part of the cell.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the verb."""
    parser = commands.add_parser(
        "run-live",
        help="certify one cell on a real llama-server",
        description="Launches llama-server, runs the arms, writes evidence and a certificate.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    group = parser.add_argument_group("the cell")
    group.add_argument("--server-bin", required=True, metavar="S", help="path or command")
    group.add_argument("--model", type=Path, metavar="M", help="a GGUF file")
    group.add_argument("--workset", type=Path, metavar="W", help="a JSON or JSON Lines file")
    group.add_argument("--ctx", type=int, metavar="C", help="context per slot, in tokens")
    group.add_argument("--parallel", type=int, metavar="N", help="slots under test")
    group.add_argument(
        "--model-alias", type=non_empty, metavar="NAME", help="the model's name in the certificate"
    )
    group.add_argument(
        "--canary",
        nargs="?",
        const="",
        metavar="SPEC",
        help="a toy model made on the spot instead of --model: q8_0, f16,twins, f32,seed=7, ...",
    )
    group.add_argument(
        "--cert-source", metavar="SOURCE", help="state the certificate's source; it must be true"
    )
    add_cell_options(parser, DEFAULT_MAX_TOKENS)
    group = parser.add_argument_group("safety")
    group.add_argument(
        "--ready-timeout", type=positive, default=600.0, metavar="S", help="per launch (600)"
    )
    group.add_argument(
        "--max-footprint-gb", type=positive, metavar="G", help="refuse a larger server, in GiB"
    )
    group.add_argument(
        "--reserved-port", type=int, action="append", default=[], metavar="P", help="never use it"
    )
    group.add_argument(
        "--no-memory-guard", action="store_true", help="do not look at the free memory"
    )
    group.add_argument("--dry-run", action="store_true", help="print the plan and start nothing")
    add_output_options(parser)
    parser.set_defaults(run=run)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """What the arguments come to; `folder` is the run's own, where it has one."""

    source: Source
    server: ServerChoice
    settings: RunSettings
    workset: WorkSet
    folder: Path | None = None


def run(args: argparse.Namespace, server_flags: Sequence[str]) -> int:
    """Carries the verb out and returns the exit code."""
    with _chosen(args, UserFlags(tuple(server_flags))) as chosen:
        if args.cert_source not in (None, chosen.source.value):
            raise UsageError(
                f"--cert-source {args.cert_source}: this run's source is {chosen.source.value}"
            )
        known = know_server(chosen.server, chosen.settings.parallel)
        scorer = load_scorer(args)
        header = live_header(
            chosen.source, chosen.server, known, chosen.settings, chosen.workset, scorer
        )
        short = plan_shortfalls(chosen.workset, chosen.settings)
        if args.dry_run:
            if args.json:
                print(json.dumps(plan_as_json(header, chosen.server, known, short)))
            else:
                print(plan_text(header, chosen.server, known, short), end="")
            return ExitCode.PROMOTABLE
        for reason in short:
            print(f"this run can never be GREEN: {reason}", file=sys.stderr)
        launcher = _launcher(args, chosen, known)
        conduct, progress = conduct_from(args, header)
        try:
            produced = produce(header, launcher, scorer, args.out_dir, conduct)
        finally:
            progress.close()
    return _finish(args, produced, chosen)


@contextlib.contextmanager
def _chosen(args: argparse.Namespace, flags: UserFlags) -> Iterator[_Chosen]:
    """Resolves the arguments; a canary's model lives as long as the context."""
    server_bin = find_server(args.server_bin)
    if args.canary is None:
        missing = [
            f"--{name}"
            for name in ("model", "workset", "ctx", "parallel")
            if vars(args)[name] is None
        ]
        if missing:
            raise UsageError(f"{', '.join(missing)}: needed unless --canary is given")
        choice = ServerChoice(server_bin, args.model, args.ctx, flags, args.model_alias)
        settings = settings_from(args, args.parallel)
        yield _Chosen(Source.LIVE, choice, settings, load_workset(args.workset))
        return
    if args.model is not None:
        raise UsageError("--canary makes its own model: leave --model out")
    spec = ToySpec.parse(args.canary or canary.DEFAULT_SPEC)
    settings = settings_from(args, canary.PARALLEL if args.parallel is None else args.parallel)
    workset = load_workset(args.workset) if args.workset else builtin_workset()
    own = canary.canary_flags(flags, spec)
    if own != flags and not args.quiet:
        added = shlex.join(own.flags[: len(own.flags) - len(flags.flags)])
        print(
            f"canary {spec}: its own server flags {added}; to replace them state --flash-attn "
            "or a KV type after --",
            file=sys.stderr,
        )
    folder = Path(tempfile.mkdtemp(prefix="batch-invariance-canary-"))
    try:
        choice = ServerChoice(
            server_bin,
            canary.write_canary(spec, folder),
            canary.CTX if args.ctx is None else args.ctx,
            own,
            args.model_alias or canary.canary_name(spec),
        )
        yield _Chosen(Source.CANARY, choice, settings, workset, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _launcher(args: argparse.Namespace, chosen: _Chosen, known: ServerKnowledge) -> LlamaLauncher:
    """The launcher, once the memory guard lets the largest server through."""
    cap = None if args.max_footprint_gb is None else int(args.max_footprint_gb * GIB)

    def guard(parallel: int) -> None:
        check_memory(known.footprint.total_bytes, MEMORY_FLOOR_BYTES, cap, not args.no_memory_guard)

    guard(chosen.settings.parallel)
    spec = launch_spec(chosen.server, known, chosen.settings.parallel)
    reserved = frozenset(args.reserved_port)
    return LlamaLauncher(LaunchSettings(spec, reserved, args.ready_timeout, guard, chosen.folder))


def _finish(args: argparse.Namespace, produced: Produced, chosen: _Chosen) -> int:
    cert = produced.certificate
    canary_green = chosen.source is Source.CANARY and cert.verdict is Verdict.GREEN
    good = cert.promotable or canary_green
    code = ExitCode.PROMOTABLE if good else ExitCode.NOT_PROMOTED
    if args.json:
        print(json.dumps(as_json(produced, code)))
    else:
        print(render(produced, Style(sys.stdout), _next(args, produced)), end="")
    return code


def _next(args: argparse.Namespace, produced: Produced) -> str:
    """The command that most people want next."""
    if args.canary == "" and produced.certificate.verdict is Verdict.GREEN:
        server = shlex.quote(args.server_bin)
        return f"batch-invariance run-live --server-bin {server} --canary {canary.NEXT_SPEC}"
    return f"batch-invariance verify-cert {shlex.quote(str(produced.paths.certificate))}"
