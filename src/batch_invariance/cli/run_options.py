"""Options that the verbs which run a cell share, and what they become."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

from batch_invariance.cli.progress import Progress
from batch_invariance.errors import UsageError
from batch_invariance.invariance_diff.codewords import with_codewords
from batch_invariance.invariance_diff.records import Header
from batch_invariance.invariance_diff.request import Sampling
from batch_invariance.invariance_diff.schedule_file import parse_schedule
from batch_invariance.invariance_diff.signature import SigningKey
from batch_invariance.invariance_diff.workset import WorkSet, parse_workset
from batch_invariance.live_invariance.bounded import MAX_INPUT_BYTES, read_at_most
from batch_invariance.live_invariance.prepare import ListedSchedule, RunSettings, check_settings
from batch_invariance.live_invariance.produce import Conduct
from batch_invariance.live_invariance.recording import StopRules
from batch_invariance.scorer_api import ExactMatch, Scorer, resolve_scorer
from batch_invariance.scorers import SHIPPED

MOST = 1e9
DEFAULT_PASSES = 8


def add_cell_options(parser: argparse.ArgumentParser, max_tokens: int) -> None:
    """What the cell is measured with."""
    group = parser.add_argument_group("the measurement")
    group.add_argument("--passes", type=int, metavar="T", help=f"of arm C ({DEFAULT_PASSES})")
    group.add_argument(
        "--schedule",
        type=Path,
        metavar="FILE",
        help="the passes of arm C from a file instead (see the verb schedule)",
    )
    group.add_argument(
        "--max-tokens",
        type=int,
        default=max_tokens,
        metavar="K",
        help=f"generated tokens per item, where it has no limit of its own ({max_tokens})",
    )
    group.add_argument(
        "--top-logprobs", type=int, default=5, metavar="K", help="alternatives recorded (5)"
    )
    group.add_argument(
        "--seed", type=int, default=1, help="seed of the dispatch orders and the requests (1)"
    )
    add_scorer_options(group)
    group.add_argument(
        "--codewords",
        action="store_true",
        help="give each item's system prompt a codeword, to catch one answer's text in another",
    )
    group.add_argument(
        "--logit-drift",
        type=_drift,
        metavar="bits|EPS",
        help="let moved logprobs cost the GREEN: any bit, or more than EPS nats",
    )
    group.add_argument("--stop-on-red", action="store_true", help="end at the first divergence")
    group.add_argument("--stop-on-lost", action="store_true", help="end at the first lost trial")
    group.add_argument(
        "--request-timeout", type=positive, default=600.0, metavar="S", help="per request (600)"
    )


def add_scorer_options(group: argparse._ActionsContainer) -> None:
    """Which scorer, and its parameters."""
    group.add_argument(
        "--scorer",
        metavar="NAME",
        help=f"a shipped one ({', '.join(shipped.name for shipped in SHIPPED)}) or PKG.MOD:NAME, "
        "a Scorer subclass, an instance, or f(text, expected); default: exact_match",
    )
    group.add_argument(
        "--scorer-param",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a parameter of the scorer; may be repeated",
    )


def add_output_options(parser: argparse.ArgumentParser, out_dir: str = "certs") -> None:
    """Where results go, by default the folder `out_dir`, and how much is said."""
    group = parser.add_argument_group("output")
    group.add_argument(
        "--out-dir", type=Path, default=Path(out_dir), metavar="DIR", help=f"(./{out_dir})"
    )
    group.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    group.add_argument("-v", "--verbose", action="store_true", help="a line for every trial")
    group.add_argument("-q", "--quiet", action="store_true", help="no progress, only trouble")


def _drift(text: str) -> str:
    if text == "bits":
        return text
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is neither 'bits' nor a number above 0")
    return repr(value)


def positive(text: str) -> float:
    """An argument that is a number above 0 and no absurd one."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0, at most {MOST:g}")
    return value


def non_empty(text: str) -> str:
    """An argument with something in it."""
    if not text.strip():
        raise argparse.ArgumentTypeError("an empty name")
    return text


def settings_from(args: argparse.Namespace, parallel: int) -> RunSettings:
    """The measurement's settings. Raises UsageError for figures that no run can have."""
    schedule = None if args.schedule is None else load_schedule(args.schedule)
    if schedule is not None and args.passes is not None:
        raise UsageError("--passes: the passes come from --schedule; leave it out")
    built_in = DEFAULT_PASSES if args.passes is None else args.passes
    settings = RunSettings(
        parallel=parallel,
        passes=built_in if schedule is None else len(schedule.passes),
        sampling=Sampling(args.seed, args.max_tokens, args.top_logprobs),
        schedule_seed=args.seed,
        schedule=schedule,
        logit_drift=args.logit_drift,
    )
    check_settings(settings)
    return settings


def conduct_from(
    args: argparse.Namespace, header: Header, key: SigningKey | None = None
) -> tuple[Conduct, Progress]:
    """How the run behaves, and the progress it reports to; `key` signs its certificate."""
    verbosity = 0 if args.quiet else 2 if args.verbose else 1
    progress = Progress(header, sys.stderr, verbosity)
    stop = StopRules(on_lost=args.stop_on_lost, on_red=args.stop_on_red)
    return Conduct(progress, args.request_timeout, stop, key), progress


def load_workset(path: Path) -> WorkSet:
    """Reads and parses a work-set file. Raises UsageError or WorkSetError."""
    return parse_workset(read_input(path, "--workset"), path.name)


def load_schedule(path: Path) -> ListedSchedule:
    """Reads and parses a schedule file. Raises UsageError or ScheduleError."""
    return ListedSchedule(path.name, parse_schedule(read_input(path, "--schedule"), path.name))


def read_input(path: Path, option: str) -> bytes:
    """The bytes of a file named by `option`. Raises UsageError where it is unreadable or absurd."""
    try:
        data = read_at_most(path, MAX_INPUT_BYTES)
    except OSError as error:
        raise UsageError(f"{option} {path}: {error.strerror}; check the path") from error
    if data is None:
        raise UsageError(f"{option} {path}: larger than {MAX_INPUT_BYTES >> 20} MiB")
    return data


def load_scorer(args: argparse.Namespace, default: Scorer | None = None) -> Scorer:
    """The scorer that was named, or the default: exact match unless a profile brings another."""
    if args.scorer is not None:
        return resolve_scorer(args.scorer, args.scorer_param)
    if args.scorer_param:
        raise UsageError("--scorer-param: name its --scorer too")
    return default or ExactMatch()


def prepared(workset: WorkSet, args: argparse.Namespace) -> WorkSet:
    """The work-set as it goes out: with codewords where they are asked for."""
    return with_codewords(workset, args.seed) if args.codewords else workset
