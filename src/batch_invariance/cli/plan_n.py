"""`plan-n`: how many slots fit this machine, before anything is started."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from batch_invariance.cli.exit_codes import ExitCode
from batch_invariance.cli.plan_n_options import PlanRequest, plan_request
from batch_invariance.cli.plan_n_text import plan_n_as_json, plan_n_text
from batch_invariance.cli.style import Style
from batch_invariance.errors import UsageError
from batch_invariance.invariance_diff.plan_n import Limit, plan_contexts
from batch_invariance.live_invariance.host import (
    MEMORY_FLOOR_BYTES,
    memory_available,
    memory_refusal,
)

EXAMPLES = """examples:
  batch-invariance plan-n --model m.gguf --ctx 8192
  batch-invariance plan-n --model m.gguf --ctx 4096,8192 --ctx 32768 --kv q8_0/f16
  batch-invariance plan-n --ctx 8192 --memory-gb 64 --layers 32 --heads 32 --kv-heads 8 \\
      --head-dim 128 --embedding 4096 --feed-forward 14336 --vocab 128256 --weights-gb 4.6

Sizes in GB are GiB. run-live refuses by the same figures.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the verb. Numbers stay text here, so that all faults are told in one line."""
    parser = commands.add_parser(
        "plan-n",
        help="how many slots fit: memory over N for a model and a context",
        description="Projects the memory of a server with N slots from the model's header.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    group = parser.add_argument_group("the server")
    group.add_argument("--model", type=Path, metavar="M", help="a GGUF file; its header is read")
    group.add_argument(
        "--ctx",
        action="append",
        default=[],
        metavar="C",
        help="context per slot, in tokens; a comma list or several give a grid",
    )
    group.add_argument("--kv", default="f16", metavar="K[/V]", help="KV cache types (f16)")
    group.add_argument(
        "--flash-attn", default="on", metavar="on|off", help="whether flash attention runs (on)"
    )
    group.add_argument(
        "-b", "--batch-size", default="2048", metavar="B", help="tokens of a batch (2048)"
    )
    group.add_argument(
        "-ub", "--ubatch-size", default="512", metavar="B", help="tokens of a micro-batch (512)"
    )
    group.add_argument("--kv-unified", action="store_true", help="all slots share one cache")
    group.add_argument(
        "--swa-full", action="store_true", help="whole contexts in sliding-window blocks too"
    )
    group = parser.add_argument_group("limits")
    group.add_argument("--max-n", default="64", metavar="N", help="look at no more slots (64)")
    group.add_argument("--max-footprint-gb", metavar="G", help="a server may take no more, in GiB")
    group.add_argument(
        "--memory-gb", metavar="G", help="assume that so many GiB are available; default: what is"
    )
    _add_described_model(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.set_defaults(run=run)


def _add_described_model(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("a model whose file is elsewhere, instead of --model")
    group.add_argument("--layers", metavar="L", help="blocks that have a KV cache")
    group.add_argument("--heads", metavar="H", help="query heads of a block")
    group.add_argument("--kv-heads", metavar="H", help="KV heads of a block")
    group.add_argument("--head-dim", metavar="E", help="elements of a head's key and value")
    group.add_argument("--key-length", metavar="E", help="elements of a key, where values differ")
    group.add_argument("--value-length", metavar="E", help="elements of a value, where keys differ")
    group.add_argument("--embedding", metavar="E", help="embedding length")
    group.add_argument(
        "--feed-forward", metavar="E", help="feed-forward length (4 times the embedding)"
    )
    group.add_argument("--vocab", metavar="T", help="tokens of the vocabulary")
    group.add_argument("--weights-gb", metavar="G", help="size of the weights")


def run(args: argparse.Namespace, server_flags: Sequence[str]) -> int:
    """Carries the verb out and returns the exit code."""
    if server_flags:
        raise UsageError("plan-n starts no server: nothing may follow --")
    request = plan_request(args)
    available = memory_available() if request.memory_bytes is None else request.memory_bytes
    plans = plan_contexts(
        request.model.shape,
        request.contexts,
        request.settings,
        request.max_n,
        lambda total: _broken(total, request, available),
    )
    if args.json:
        print(json.dumps(plan_n_as_json(request, available, plans)))
    else:
        print(plan_n_text(request, available, plans, Style(sys.stdout)), end="")
    return ExitCode.PROMOTABLE


def _broken(total: int, request: PlanRequest, available: int | None) -> Limit | None:
    """The guard of run-live, asked about a footprint."""
    refusal = memory_refusal(total, MEMORY_FLOOR_BYTES, request.cap_bytes, available)
    return None if refusal is None else Limit(refusal.guard)
