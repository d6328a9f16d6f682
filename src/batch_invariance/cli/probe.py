"""`probe`: one prompt many times at once, and whether the answers differ. No certificate."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from batch_invariance.cli.cell_options import add_safety_options, launcher_of
from batch_invariance.cli.exit_codes import ExitCode
from batch_invariance.cli.probe_text import ProbeProgress, probe_as_json, render_probe
from batch_invariance.cli.run_options import positive
from batch_invariance.cli.style import Style
from batch_invariance.errors import UsageError
from batch_invariance.formats.toy_gguf import ToySpec
from batch_invariance.invariance_diff.builtin_workset import prompt_of
from batch_invariance.invariance_diff.model import Item, Message
from batch_invariance.invariance_diff.probe import ProbeOutcome
from batch_invariance.invariance_diff.request import Sampling
from batch_invariance.invariance_diff.rules import EXACT_COUNTER_LIMIT
from batch_invariance.live_invariance import canary
from batch_invariance.live_invariance.flags import UserFlags
from batch_invariance.live_invariance.owned_folder import owned_folder
from batch_invariance.live_invariance.prepare import (
    RunSettings,
    ServerChoice,
    batch_layout,
    check_settings,
    find_server,
    know_server,
)
from batch_invariance.live_invariance.probe import ProbeRequest, run_probe

MAX_PROMPT_BYTES = 64 << 20
MAX_COUNT = 100_000
TOP_LOGPROBS = 5
CANARY_PROMPT_LENGTH = 192
EXAMPLES = """examples:
  batch-invariance probe --server-bin llama-server --canary f16,twins
  batch-invariance probe --server-bin ./llama-server --model m.gguf --prompt 'Name a river.' \\
      --parallel 8 --count 64
  batch-invariance probe ... --prompt-file p.txt -- --flash-attn off

Everything after -- goes to the server. A probe writes no file and gives no certificate: it shows
whether one prompt has one answer, and run-live judges a cell.
Exit status 0: every answer at once is the serial one. 3: some are not, or it is not proved.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the verb."""
    parser = commands.add_parser(
        "probe",
        help="send one prompt many times at once and count the distinct answers",
        description="Launches llama-server with N slots, sends one prompt again and again, first "
        "one request at a time, then N at once, and says where the answers part.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_server_options(parser)
    group = parser.add_argument_group("the probe")
    group.add_argument("--prompt", metavar="P", help="the text of one user message")
    group.add_argument(
        "--prompt-file", type=Path, metavar="F", help="a UTF-8 file that holds it, to the byte"
    )
    group.add_argument("--parallel", type=int, default=8, metavar="N", help="slots (8)")
    group.add_argument("--count", type=int, default=64, metavar="K", help="answers at once (64)")
    group.add_argument(
        "--serial-count",
        type=int,
        metavar="K",
        help="answers one at a time, over all slots (twice --parallel, at most --count)",
    )
    group.add_argument("--max-tokens", type=int, default=64, metavar="K", help="per answer (64)")
    group.add_argument("--seed", type=int, default=1, help="the requests' seed (1)")
    group.add_argument(
        "--request-timeout", type=positive, default=600.0, metavar="S", help="per request (600)"
    )
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    group.add_argument("-q", "--quiet", action="store_true", help="no progress, only trouble")
    parser.set_defaults(run=run)


def _add_server_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the server")
    group.add_argument("--server-bin", required=True, metavar="S", help="path or command")
    group.add_argument("--model", type=Path, metavar="M", help="a GGUF file")
    group.add_argument(
        "--canary",
        nargs="?",
        const="",
        metavar="SPEC",
        help="a toy model made on the spot instead of --model; brings a prompt of its own",
    )
    group.add_argument(
        "--ctx",
        type=int,
        default=canary.CTX,
        metavar="C",
        help=f"tokens per slot ({canary.CTX})",
    )
    add_safety_options(parser)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The server, the prompt, and the run's own folder, with a canary's model in it."""

    server: ServerChoice
    prompt: str
    folder: Path


def run(args: argparse.Namespace, server_flags: Sequence[str]) -> int:
    """Carries the verb out and returns the exit code."""
    sampling = Sampling(args.seed, args.max_tokens, TOP_LOGPROBS)
    n_serial = _check_counts(args, sampling)
    with _chosen(args, UserFlags(tuple(server_flags))) as chosen:
        known = know_server(chosen.server, args.parallel)
        request = ProbeRequest(
            item=Item("prompt", (Message("user", chosen.prompt),)),
            sampling=sampling,
            parallel=args.parallel,
            n_serial=n_serial,
            n_concurrent=args.count,
            ctx=chosen.server.ctx,
            model_file=chosen.server.model.name,
            request_timeout_s=args.request_timeout,
            layout=batch_layout(chosen.server, known),
        )
        launcher = launcher_of(args, chosen.server, known, args.parallel, chosen.folder)
        progress = ProbeProgress(request, sys.stderr, quiet=args.quiet)
        try:
            end = run_probe(request, launcher, progress)
        finally:
            progress.close()
    same = end.result.outcome is ProbeOutcome.SAME
    code = ExitCode.PROMOTABLE if same else ExitCode.NOT_PROMOTED
    if args.json:
        print(json.dumps(probe_as_json(end, chosen.server, known, request, code)))
    else:
        print(render_probe(end, chosen.server, Style(sys.stdout)), end="")
    return code


def _check_counts(args: argparse.Namespace, sampling: Sampling) -> int:
    """The number of serial requests. Raises UsageError for figures that no probe can have."""
    check_settings(RunSettings(args.parallel, 1, sampling, args.seed))
    if args.parallel < 2:
        raise UsageError("--parallel 1: nothing runs at once; give 2 or more")
    if not args.parallel <= args.count <= MAX_COUNT:
        raise UsageError(f"--count {args.count}: give {args.parallel} (--parallel) to {MAX_COUNT}")
    default = min(args.count, 2 * args.parallel)
    n_serial: int = default if args.serial_count is None else args.serial_count
    if not 2 <= n_serial <= MAX_COUNT:
        raise UsageError(f"--serial-count {n_serial}: give 2 to {MAX_COUNT}")
    tokens = (args.count + n_serial) * args.max_tokens
    if tokens >= EXACT_COUNTER_LIMIT:
        print(
            f"up to {tokens} tokens from one server, whose counters are exact below "
            f"{EXACT_COUNTER_LIMIT}: overlap may stay unproved; use fewer answers or tokens",
            file=sys.stderr,
        )
    return n_serial


@contextlib.contextmanager
def _chosen(args: argparse.Namespace, flags: UserFlags) -> Iterator[_Chosen]:
    """Resolves the arguments; a canary's model lives as long as the context."""
    server_bin = find_server(args.server_bin)
    prompt = _prompt(args)
    if args.canary is None:
        missing = ["--model"] if args.model is None else []
        missing += ["--prompt or --prompt-file"] if prompt is None else []
        if args.model is None or prompt is None:
            raise UsageError(f"{', '.join(missing)}: needed unless --canary is given")
        with owned_folder("probe-") as folder:
            yield _Chosen(ServerChoice(server_bin, args.model, args.ctx, flags), prompt, folder)
        return
    if args.model is not None:
        raise UsageError("--canary makes its own model: leave --model out")
    spec = ToySpec.parse(args.canary or canary.DEFAULT_SPEC)
    with owned_folder("probe-") as folder:
        model = canary.write_canary(spec, folder)
        own = canary.canary_flags(flags, spec)
        choice = ServerChoice(server_bin, model, args.ctx, own, canary.canary_name(spec))
        yield _Chosen(choice, prompt or prompt_of(CANARY_PROMPT_LENGTH), folder)


def _prompt(args: argparse.Namespace) -> str | None:
    if args.prompt_file is None:
        prompt: str | None = args.prompt
        return prompt
    path: Path = args.prompt_file
    if args.prompt is not None:
        raise UsageError("--prompt and --prompt-file: give one of them")
    try:
        if path.stat().st_size > MAX_PROMPT_BYTES:
            raise UsageError(f"--prompt-file {path}: larger than {MAX_PROMPT_BYTES >> 20} MiB")
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise UsageError(f"--prompt-file {path}: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"--prompt-file {path}: not UTF-8 at byte {error.start}; save it as UTF-8"
        ) from error
