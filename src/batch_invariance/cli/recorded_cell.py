"""The cell of an evidence file, ready to be run again: its server, model and settings."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from batch_invariance.cli.cell_options import ChosenCell
from batch_invariance.cli.run_options import load_scorer
from batch_invariance.errors import EvidenceError, UsageError
from batch_invariance.invariance_diff.evidence import EvidenceReader
from batch_invariance.invariance_diff.model import Arm, ScorerInfo, Source
from batch_invariance.invariance_diff.records import Cell, Header, LifetimeStart
from batch_invariance.live_invariance import canary
from batch_invariance.live_invariance.evidence_file import read_lines
from batch_invariance.live_invariance.flags import UserFlags
from batch_invariance.live_invariance.owned_folder import owned_folder
from batch_invariance.live_invariance.prepare import (
    ListedSchedule,
    RunSettings,
    ServerChoice,
    find_server,
)
from batch_invariance.profiles.spark.scorer import SparkScorer
from batch_invariance.scorer_api import Scorer, describe_scorer, resolve_scorer
from batch_invariance.scorers import SHIPPED


def read_start(path: Path) -> tuple[Header, LifetimeStart | None]:
    """The header of an evidence file and its first lifetime, None without one.

    Raises EvidenceError for a file that is no evidence.
    """
    header: Header | None = None
    for record in EvidenceReader(read_lines(path)):
        if isinstance(record, Header):
            header = record
        elif isinstance(record, LifetimeStart) and header is not None:
            return header, record
    if header is None:
        raise EvidenceError(f"evidence {path.name}", ["not one whole line"])
    return header, None


def read_launch(path: Path) -> tuple[Header, tuple[str, ...]]:
    """The header of an evidence file and the command line of its first launch, () without one.

    Raises EvidenceError for a file that is no evidence.
    """
    header, start = read_start(path)
    return header, () if start is None else start.argv


@contextlib.contextmanager
def recorded_cell(
    args: argparse.Namespace, header: Header, argv: Sequence[str]
) -> Iterator[ChosenCell]:
    """The server and the model that `header` was run with, or those of `--server-bin` and
    `--model`; a canary is made again and lives as long as the context.

    `argv` is the command line of the first launch. Raises UsageError where no server was launched.
    """
    if header.source not in (Source.LIVE, Source.CANARY):
        raise UsageError(
            f"a {header.source.value} run has no server to launch again; a new run takes seconds"
        )
    if args.server_bin is None and not argv:
        raise UsageError("--server-bin, --model: the run was interrupted before its first launch")
    server_bin = argv[0] if args.server_bin is None else args.server_bin
    model = args.model
    if model is None and header.source is Source.LIVE and "--model" in argv[:-1]:
        model = Path(argv[list(argv).index("--model") + 1])
    file = header.subject.model.file
    with recorded_server(header.source, header.cell, file, server_bin, model) as (choice, folder):
        yield ChosenCell(header.source, choice, _settings(header), None, None, (), folder)


@contextlib.contextmanager
def recorded_server(
    source: Source, cell: Cell, model_file: str, server_bin: str, model: Path | None
) -> Iterator[tuple[ServerChoice, Path]]:
    """What to launch for a cell, and a folder that lives as long as the context; in it a canary is
    made anew, which needs no `model`.

    Raises UsageError where there is no server, no model, or no canary of that name.
    """
    found = find_server(server_bin)
    with owned_folder("run-") as folder:
        if source is Source.CANARY:
            if model is not None:
                raise UsageError("--model: a canary's model is made on the spot; leave it out")
            spec = canary.spec_of(model_file)
            if spec is None:
                raise UsageError(f"no canary is called {model_file}")
            model = canary.write_canary(spec, folder)
        elif model is None:
            raise UsageError("--model: needed, where the model lies is not recorded")
        yield ServerChoice(found, model, cell.ctx, UserFlags(cell.server_flags), cell.model), folder


def recorded_scorer(args: argparse.Namespace, info: ScorerInfo) -> Scorer:
    """The scorer that is named, or the recorded one where the tool has it.

    Raises UsageError where it is not the recorded one, ScorerError where it cannot be found.
    """
    default: Scorer | None = None
    if args.scorer is None and info.name == SparkScorer.name:
        default = SparkScorer()
    elif args.scorer is None and info.name in [shipped.name for shipped in SHIPPED]:
        given = {key: value for key, value in info.params.items() if value is not None}
        texts = [f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in given.items()]
        default = resolve_scorer(info.name, texts)
    scorer = load_scorer(args, default)
    if describe_scorer(scorer).sha256 != info.sha256:
        raise UsageError(
            f"--scorer: answers were scored by {info.name}, and this is another; name that one "
            "with the parameters and the source that it had"
        )
    return scorer


def _settings(header: Header) -> RunSettings:
    plan = header.plan
    listed = None if plan.schedule is None else ListedSchedule(plan.schedule, plan.listed)
    return RunSettings(
        parallel=header.cell.dispatch_n,
        passes=sum(p.arm is Arm.C for p in plan.passes),
        sampling=plan.sampling,
        schedule_seed=plan.schedule_seed,
        schedule=listed,
        logit_drift=plan.logit_drift,
        confirm_limit=plan.confirm_limit,
    )
