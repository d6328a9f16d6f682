"""`workset boundary`: a work-set with power for one model and one set of server flags."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from batch_invariance.cli.cell_options import add_safety_options, launch_limits
from batch_invariance.cli.exit_codes import ExitCode
from batch_invariance.cli.run_options import positive
from batch_invariance.cli.workset_import import workset_bytes
from batch_invariance.errors import ServerError, UsageError, WorkSetError
from batch_invariance.invariance_diff.boundary_workset import (
    BoundarySet,
    BoundarySpec,
    boundary_workset,
    near_tie_item,
    tie_again,
    ties_of,
)
from batch_invariance.invariance_diff.model import Item
from batch_invariance.invariance_diff.request import Sampling
from batch_invariance.invariance_diff.workset import named_workset
from batch_invariance.live_invariance.flags import UserFlags
from batch_invariance.live_invariance.prepare import (
    RunSettings,
    ServerChoice,
    ServerKnowledge,
    check_settings,
    find_server,
    know_server,
)
from batch_invariance.live_invariance.store import check_new, write_new
from batch_invariance.live_invariance.text import printable
from batch_invariance.live_invariance.token_counter import ask_each, serving, token_counter

TOP_LOGPROBS = 5
MOST_PROMPTS = 4096
TRIES = 2
"""So many positions are asked again, in each round, for each near tie that is wanted: a margin of a
decode is not quite that of a prompt, so the closest of twice as many are taken."""
EXAMPLES = """examples:
  batch-invariance workset boundary --server-bin llama-server --model m.gguf --ctx 2048 \\
      --parallel 4 -o boundary.json
  batch-invariance workset boundary --server-bin llama-server --model m.gguf --ctx 2048 \\
      --parallel 4 --near-tie 16 -o boundary.json -- --flash-attn on

What follows -- goes to the server: pass what the run will pass. Near ties hold for that server.
"""


@dataclass(frozen=True, slots=True)
class _NearTie:
    """A near-tie item and the margin, in nats, with which the server answered it."""

    item: Item
    margin: float


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the verb."""
    parser = commands.add_parser(
        "boundary",
        help="generate prompts that straddle the engine's boundaries",
        description="Generates prompts of exact lengths, and with --near-tie asks where two "
        "tokens are nearly equal.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--server-bin", required=True, metavar="S", help="path or command")
    parser.add_argument("--model", type=Path, required=True, metavar="M", help="a GGUF file")
    parser.add_argument(
        "--ctx", type=int, required=True, metavar="C", help="context per slot, in tokens"
    )
    parser.add_argument("--parallel", type=int, required=True, metavar="N", help="slots under test")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="OUT", help="a new file"
    )
    parser.add_argument("--count", type=int, default=16, metavar="K", help="prompts (16)")
    parser.add_argument("--seed", type=int, default=1, help="chooses the words (1)")
    parser.add_argument(
        "--max-tokens", type=int, default=64, metavar="K", help="generated tokens per prompt (64)"
    )
    parser.add_argument(
        "--near-tie",
        type=int,
        default=0,
        metavar="K",
        help="add K items of one token each, where the best two are nearly equal (0)",
    )
    parser.add_argument(
        "--request-timeout", type=positive, default=600.0, metavar="S", help="per request (600)"
    )
    add_safety_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, server_flags: Sequence[str]) -> int:
    """Carries the verb out and returns the exit code."""
    flags = UserFlags(tuple(server_flags))
    sampling = _check(args)
    check_new(args.output)
    choice = ServerChoice(find_server(args.server_bin), args.model, args.ctx, flags)
    known = know_server(choice, args.parallel)
    limits = launch_limits(args)
    if args.near_tie:
        limits.check(known.footprint.total_bytes)
    spec = BoundarySpec(
        ctx=args.ctx,
        max_tokens=args.max_tokens,
        n_ubatch=flags.ubatch_size,
        parallel=args.parallel,
        count=args.count,
        seed=args.seed,
        slot_ends=not flags.kv_unified,
    )
    with token_counter(choice, known, args.ready_timeout, limits) as count:
        prompts = boundary_workset(spec, count)
    if not prompts.placed:
        raise WorkSetError("boundary work-set", prompts.left_out)
    ties = _near_ties(args, choice, known, sampling, prompts) if args.near_tie else []
    items = [*(one.item for one in prompts.placed), *(tie.item for tie in ties)]
    write_new(args.output, workset_bytes(items))
    if args.json:
        print(json.dumps(_as_json(args.output, prompts, ties)))
    else:
        _print(args, prompts, ties)
    return ExitCode.PROMOTABLE


def _check(args: argparse.Namespace) -> Sampling:
    """The sampling of the run that the set is for. Raises UsageError for impossible figures."""
    sampling = Sampling(args.seed, args.max_tokens, TOP_LOGPROBS)
    check_settings(
        RunSettings(parallel=args.parallel, passes=1, sampling=sampling, schedule_seed=args.seed)
    )
    if not 1 <= args.count <= MOST_PROMPTS:
        raise UsageError(f"--count {args.count}: give 1 to {MOST_PROMPTS}")
    if not 0 <= args.near_tie <= MOST_PROMPTS:
        raise UsageError(f"--near-tie {args.near_tie}: give 0 to {MOST_PROMPTS}")
    if args.max_tokens >= args.ctx:
        raise UsageError(f"--max-tokens {args.max_tokens}: leaves no prompt in --ctx {args.ctx}")
    return sampling


def _near_ties(
    args: argparse.Namespace,
    choice: ServerChoice,
    known: ServerKnowledge,
    sampling: Sampling,
    prompts: BoundarySet,
) -> list[_NearTie]:
    """The closest positions of a serial run, each asked again to see that it is a tie there too.

    Raises ServerError where there is none.
    """
    asked = [one.item for one in prompts.placed]
    found: list[_NearTie] = []
    with serving(choice, known, args.ready_timeout, launch_limits(args)) as server:
        print(f"asking {len(asked)} prompts serially", file=sys.stderr)
        ties = []
        for index, exchange in enumerate(ask_each(server, asked, sampling, args.request_timeout)):
            answered = ties_of(index, exchange.body) if exchange.ok else []
            # The first token of an answer is asked for by the prompt itself.
            ties += [tie for tie in answered if tie.before]
        ties.sort(key=lambda tie: (tie.margin, tie.item, tie.position))
        step = TRIES * args.near_tie
        for start in range(0, len(ties), step):
            some = ties[start : start + step]
            items = [near_tie_item(asked[tie.item], tie) for tie in some]
            print(f"asking {len(items)} positions again", file=sys.stderr)
            answers = ask_each(server, items, sampling, args.request_timeout)
            before = len(found)
            for tie, item, answer in zip(some, items, answers, strict=True):
                margin = tie_again(tie, answer.body) if answer.ok else None
                if margin is not None:
                    found.append(_NearTie(item, margin))
            if len(found) >= args.near_tie or len(found) == before:
                break
    if not found:
        raise ServerError(
            f"no near tie: of {len(ties)} positions none of the closest came again when asked for "
            "by itself; the server must give logprobs and continue an assistant's message"
        )
    found.sort(key=lambda tie: (tie.margin, tie.item.id))
    return found[: args.near_tie]


def _as_json(output: Path, prompts: BoundarySet, ties: Sequence[_NearTie]) -> dict[str, object]:
    items = [*(one.item for one in prompts.placed), *(tie.item for tie in ties)]
    return {
        "file": str(output),
        "n_items": len(items),
        "sha256": named_workset(items, output.name).sha256,
        "prompts": [
            {
                "id": one.item.id,
                "family": one.item.family,
                "wanted_tokens": one.wanted,
                "reached_tokens": one.reached,
            }
            for one in prompts.placed
        ],
        "near_ties": [{"id": tie.item.id, "margin_nats": tie.margin} for tie in ties],
        "left_out": list(prompts.left_out),
    }


def _print(args: argparse.Namespace, prompts: BoundarySet, ties: Sequence[_NearTie]) -> None:
    lengths: dict[str, list[int]] = {}
    for one in prompts.placed:
        lengths.setdefault(one.item.family or "", []).append(one.reached)
    print(f"{args.output}: {len(prompts.placed)} prompts, {len(ties)} near ties")
    for family, reached in sorted(lengths.items(), key=lambda pair: min(pair[1])):
        print(f"  {family:12} {', '.join(map(str, sorted(reached)))} tokens")
    if ties:
        print(f"  near-tie     margins {ties[0].margin:.6f} to {ties[-1].margin:.6f} nats")
    for one in prompts.placed:
        if one.reached != one.wanted:
            print(f"note: {one.item.id} has {one.reached} tokens; no words reached {one.wanted}")
    if len(ties) < args.near_tie:
        print(f"note: {len(ties)} near ties of the {args.near_tie} asked for could be found")
    for note in prompts.left_out:
        print(f"note: left out: {printable(note)}")
