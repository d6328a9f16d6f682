"""`workset show`: what a work-set holds, and what a run with it could show at best."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from batch_invariance.cli.cell_options import add_launch_options
from batch_invariance.cli.exit_codes import ExitCode
from batch_invariance.cli.run_options import read_input
from batch_invariance.cli.style import Style
from batch_invariance.errors import ServerError, UsageError
from batch_invariance.invariance_diff.model import Item
from batch_invariance.invariance_diff.request import Sampling
from batch_invariance.invariance_diff.stats import median
from batch_invariance.invariance_diff.workset import WorkSet, parse_workset
from batch_invariance.invariance_diff.workset_profile import (
    BoundaryUse,
    Group,
    Profile,
    RunPlan,
    profile_workset,
)
from batch_invariance.live_invariance.flags import UserFlags
from batch_invariance.live_invariance.host import LaunchLimits
from batch_invariance.live_invariance.launch import validate_ctx
from batch_invariance.live_invariance.prepare import (
    RunSettings,
    ServerChoice,
    check_settings,
    find_server,
    know_server,
)
from batch_invariance.live_invariance.text import printable
from batch_invariance.live_invariance.token_counter import COUNTER_CTX, token_counter

BAR = 40
MAX_LISTED = 12
EXAMPLES = """examples:
  batch-invariance workset show set.json
  batch-invariance workset show set.json --server-bin llama-server --model m.gguf --ctx 8192

With a server and a model the prompts are counted by the server's own template and tokenizer; the
model is mapped, not loaded. What follows -- goes to that server.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the verb."""
    parser = commands.add_parser(
        "show",
        help="say what a work-set holds and what it could show",
        description="Counts, prompt lengths, engine boundaries, and the best bound within reach.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a work-set")
    parser.add_argument("--server-bin", metavar="S", help="path or command: counts tokens")
    parser.add_argument("--model", type=Path, metavar="M", help="a GGUF file: counts tokens")
    parser.add_argument("--ctx", type=int, metavar="C", help="context per slot, in tokens")
    parser.add_argument("--parallel", type=int, default=4, metavar="N", help="slots (4)")
    parser.add_argument("--passes", type=int, default=8, metavar="T", help="passes of arm C (8)")
    parser.add_argument(
        "--max-tokens", type=int, default=64, metavar="K", help="generated tokens per item (64)"
    )
    add_launch_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, server_flags: Sequence[str]) -> int:
    """Carries the verb out and returns the exit code."""
    flags = UserFlags(tuple(server_flags))
    plan = _plan(args, flags)
    choice = _server(args, flags)
    workset = parse_workset(read_input(args.file, "FILE"), args.file.name)
    tokens = _count(choice, workset.items, args) if choice is not None else None
    profile = profile_workset(workset.items, tokens, plan)
    if args.json:
        print(json.dumps(_as_json(workset, profile)))
    else:
        sys.stdout.writelines(f"{line}\n" for line in _text(workset, profile, plan))
    return ExitCode.PROMOTABLE


def _plan(args: argparse.Namespace, flags: UserFlags) -> RunPlan:
    sampling = Sampling(seed=1, max_tokens=args.max_tokens, top_logprobs=5)
    check_settings(
        RunSettings(parallel=args.parallel, passes=args.passes, sampling=sampling, schedule_seed=1)
    )
    if args.ctx is not None:
        validate_ctx(args.ctx)
    return RunPlan(args.parallel, args.passes, sampling, args.ctx, flags.ubatch_size)


def _server(args: argparse.Namespace, flags: UserFlags) -> ServerChoice | None:
    given = args.server_bin is not None, args.model is not None
    if given == (False, False):
        if flags.flags:
            raise UsageError("without --server-bin no server starts: nothing may follow --")
        if args.ctx is not None:
            raise UsageError("--ctx is compared with tokens: give --server-bin and --model too")
        return None
    if given != (True, True):
        raise UsageError("--server-bin and --model count tokens together: give both")
    return ServerChoice(find_server(args.server_bin), args.model, args.ctx or COUNTER_CTX, flags)


def _count(choice: ServerChoice, items: Sequence[Item], args: argparse.Namespace) -> list[int]:
    known = know_server(choice, args.parallel)
    limits = LaunchLimits(frozenset(args.reserved_port))
    counts = []
    with token_counter(choice, known, args.ready_timeout, limits) as count:
        for item in items:
            try:
                counts.append(count(item.messages))
            except ServerError as error:
                raise ServerError(f"item {item.id}: {error}") from error
    return counts


def _as_json(workset: WorkSet, profile: Profile) -> dict[str, object]:
    boundaries = [
        {**asdict(use), "crossed": use.crossed, "straddled": use.straddled}
        for use in profile.boundaries
    ]
    together = profile.together
    return {
        "name": workset.name,
        "sha256": workset.sha256,
        **asdict(profile),
        "lengths": dict(zip([i.id for i in workset.items], profile.lengths, strict=True)),
        "boundaries": boundaries,
        "together": together and {**asdict(together), "crossed": together.crossed},
    }


def _text(workset: WorkSet, profile: Profile, plan: RunPlan) -> Iterator[str]:
    style = Style(sys.stdout)
    yield style.bold(printable(workset.name)) + (
        f": {profile.n_items} items, {profile.n_distinct} distinct prompts, "
        f"{profile.n_scored} with an expected answer, sha256 {workset.sha256[:16]}..."
    )
    yield from _groups("family", profile.families)
    yield from _groups("fill", profile.fills)
    yield from _lengths(profile)
    yield from _boundaries(profile, plan)
    yield from _bounds(profile, plan)
    if profile.too_long:
        named = ", ".join(printable(item) for item in profile.too_long[:MAX_LISTED])
        more = len(profile.too_long) - MAX_LISTED
        rest = f" and {more} more" if more > 0 else ""
        yield f"warning: longer than {plan.ctx} tokens with their answer: {named}{rest}"
    for warning in profile.warnings:
        yield f"warning: {warning}"
    for reason in profile.shortfalls:
        yield f"a run with it can never be GREEN: {reason}"


def _groups(what: str, groups: Sequence[Group]) -> Iterator[str]:
    if [group.name for group in groups] == [None]:
        return
    yield f"by {what}"
    names = ["none" if group.name is None else printable(group.name) for group in groups]
    width = max(map(len, names))
    for name, group in zip(names, groups, strict=True):
        yield f"  {name:{width}}  {group.n_items:5} items, {group.n_scored} with an expected answer"


def _lengths(profile: Profile) -> Iterator[str]:
    low, middle, high = min(profile.lengths), median(profile.lengths), max(profile.lengths)
    span = f"{low} to {high}, median {middle:g}"
    if profile.in_tokens:
        yield f"prompt length in tokens, counted by the server with its chat template: {span}"
    else:
        yield f"prompt length in bytes of text: {span}"
        yield "  an upper bound on the text's tokens; the chat template comes on top"
    most = max(bucket.n_items for bucket in profile.histogram)
    for bucket in profile.histogram:
        bar = "#" * -(-bucket.n_items * BAR // most)
        yield f"  {bucket.low:7}-{bucket.high - 1:<7} {bucket.n_items:5}  {bar}".rstrip()


def _boundaries(profile: Profile, plan: RunPlan) -> Iterator[str]:
    if profile.together is None:
        yield "engine boundaries: unknown without --server-bin and --model"
        return
    yield "engine boundaries"
    yield from map(_boundary, profile.boundaries)
    together = profile.together
    word = "crossed" if together.crossed else "not crossed"
    yield (
        f"  {word:11} n_ubatch {together.n_ubatch}: {plan.parallel} prompts together have "
        f"{together.least} to {together.most} tokens"
    )


def _boundary(use: BoundaryUse) -> str:
    word = "not crossed"
    if use.straddled:
        word = "straddled"
    elif use.crossed:
        word = "crossed"
    elif use.while_generating:
        word = "by answers"
    return (
        f"  {word:11} {use.tokens} tokens: {use.below} prompts below, {use.at_or_above} not; "
        f"{use.tokens - 1}/{use.tokens}/{use.tokens + 1}: "
        f"{use.just_below}/{use.exactly}/{use.just_above}; "
        f"{use.while_generating} may reach it while generating"
    )


def _bounds(profile: Profile, plan: RunPlan) -> Iterator[str]:
    trials = profile.n_items * plan.passes
    yield f"at best, after {plan.passes} passes without a divergence (95 %)"
    yield (
        f"  at most {profile.prompt_bound:.2%} of such prompts diverge: exact, "
        f"{profile.n_distinct} distinct prompts ({profile.prompt_rule_of_three:.2%} by the rule of "
        "three)"
    )
    yield (
        f"  {profile.trial_rule_of_three:.2%} by the rule of three over {trials} trials, which "
        "are not independent"
    )
