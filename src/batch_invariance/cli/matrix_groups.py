"""From the plan of a matrix to groups of cells that a sweep can run."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from batch_invariance.cli.cell_options import ChosenCell, cell_in, launcher_of
from batch_invariance.cli.cell_workset import fitted_workset, guessed_workset
from batch_invariance.cli.matrix_options import CANARY, is_file
from batch_invariance.cli.run_options import load_scorer, prepared
from batch_invariance.errors import UsageError
from batch_invariance.invariance_diff.matrix_plan import MatrixPlan, PlannedGroup, groups_of
from batch_invariance.invariance_diff.records import Header
from batch_invariance.invariance_diff.workset import WorkSet
from batch_invariance.live_invariance.flags import UserFlags
from batch_invariance.live_invariance.owned_folder import owned_folder
from batch_invariance.live_invariance.prepare import (
    ServerKnowledge,
    know_server,
    live_header,
    plan_shortfalls,
)
from batch_invariance.live_invariance.server import Launcher
from batch_invariance.live_invariance.sweep_state import SweepGroup
from batch_invariance.profiles.spark.scorer import SparkScorer
from batch_invariance.scorer_api import Scorer

KV_FLAGS = ("-ctk", "--cache-type-k", "-ctv", "--cache-type-v")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A group that can be run, the cells it has, and why some of them can never be GREEN."""

    group: SweepGroup
    shortfalls: tuple[str, ...]


def prepare_groups(
    args: argparse.Namespace,
    plan: MatrixPlan,
    common_flags: Sequence[str],
    stack: contextlib.ExitStack,
) -> list[Prepared]:
    """Every group of the plan, checked; models that are made on the spot live as long as `stack`.

    Raises UsageError, or what is wrong with a file that the plan names.
    """
    _check_kv_stated_once(plan, common_flags)
    scorer = load_scorer(args, SparkScorer() if args.profile == "spark" else None)
    own_folder = stack.enter_context(owned_folder("sweep-"))
    found = []
    for planned in groups_of(plan, common_flags):
        own = _arguments(args, plan, planned)
        cells = [
            cell_in(own_folder, _with_slots(own, n), planned.flags)
            for n in plan.parallel or (None,)
        ]
        found.append(_prepared(args, planned.folder, cells, scorer))
    return found


def _check_kv_stated_once(plan: MatrixPlan, common_flags: Sequence[str]) -> None:
    """Raises UsageError where flags state the KV types of which the plan has an axis: the last flag
    wins, and cells would lie in folders of types that they do not have."""
    words = [word for chosen in plan.flag_sets for word in chosen.flags]
    if plan.kv_types and UserFlags((*common_flags, *words)).value(*KV_FLAGS) is not None:
        raise UsageError(
            "KV types are an axis of this plan: leave -ctk and -ctv out of the flags, or the "
            "axis out"
        )


def _arguments(
    args: argparse.Namespace, plan: MatrixPlan, planned: PlannedGroup
) -> argparse.Namespace:
    """What `run-live` would be told for one group."""
    own = argparse.Namespace(**vars(args))
    model = planned.model
    canary = model[len(CANARY) :] if model.startswith(CANARY) else None
    own.server_bin, own.ctx = plan.server_bin, planned.ctx
    own.workset = None if plan.workset is None else Path(plan.workset)
    own.canary, own.model, own.model_alias = canary, None, None
    own.models_file, own.models_dir = None, None
    # What flags a canary adds is in its certificate; it would be said for every cell.
    own.quiet = True
    if canary is None and is_file(model):
        own.model = Path(model)
    elif canary is None:
        own.model_alias = model
        own.models_file = None if plan.models_file is None else Path(plan.models_file)
        own.models_dir = None if plan.models_dir is None else Path(plan.models_dir)
    return own


def _with_slots(own: argparse.Namespace, parallel: int | None) -> argparse.Namespace:
    return argparse.Namespace(**{**vars(own), "parallel": parallel})


def _prepared(
    args: argparse.Namespace, folder: str, cells: Sequence[ChosenCell], scorer: Scorer
) -> Prepared:
    known = [know_server(cell.server, cell.settings.parallel) for cell in cells]
    # The same for all of them: it depends on the model and the context alone.
    guess = prepared(guessed_workset(cells[0]), args)

    def headers(workset: WorkSet) -> tuple[Header, ...]:
        return tuple(
            live_header(cell.source, cell.server, about, cell.settings, workset, scorer)
            for cell, about in zip(cells, known, strict=True)
        )

    def final() -> tuple[Header, ...]:
        return headers(prepared(fitted_workset(args, cells[0], known[0]), args))

    planned = headers(guess)
    beside = cells[0].server.server_bin.resolve().parent
    named = zip(planned, cells, strict=True)
    return Prepared(
        SweepGroup(folder, planned, final, _launchers(args, cells, known), scorer, beside),
        tuple(
            f"{header.cell.model} with {header.cell.dispatch_n} slots ({folder}): {reason}"
            for header, cell in named
            for reason in plan_shortfalls(guess, cell.settings)
        ),
    )


def _launchers(
    args: argparse.Namespace, cells: Sequence[ChosenCell], known: Sequence[ServerKnowledge]
) -> Callable[[int], Launcher]:
    by_slots = {
        cell.settings.parallel: (cell, about) for cell, about in zip(cells, known, strict=True)
    }
    # Arms A and A2 belong to no N: any of the servers started with one slot is theirs.
    smallest = min(by_slots)

    def launcher(parallel: int) -> Launcher:
        cell, about = by_slots.get(parallel, by_slots[smallest])
        return launcher_of(args, cell.server, about, parallel, cell.folder)

    return launcher
