"""`run-matrix`: many cells, one certificate each, arms A and A2 shared where they can be."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from batch_invariance.cli.cell_options import PROFILES, add_fill_options, add_safety_options
from batch_invariance.cli.cert_files import VerifiedFile, verify_file
from batch_invariance.cli.ci_output import (
    add_ci_options,
    checked_cell,
    ci_targets,
    produced_cell,
    write_ci_outputs,
)
from batch_invariance.cli.exit_codes import ExitCode
from batch_invariance.cli.matrix_groups import Prepared, prepare_groups
from batch_invariance.cli.matrix_options import add_matrix_options, stated_plan
from batch_invariance.cli.matrix_text import SweepProgress, plan_lines, result_lines
from batch_invariance.cli.run_options import add_cell_options, add_output_options, positive
from batch_invariance.cli.sign_options import SIGN_HELP, add_sign_option, sign_key
from batch_invariance.cli.style import Style
from batch_invariance.errors import UsageError
from batch_invariance.invariance_diff.cell_checks import CheckedCell
from batch_invariance.invariance_diff.codec import to_json
from batch_invariance.invariance_diff.matrix_index import INDEX_NAME, CellEntry, MatrixIndex
from batch_invariance.invariance_diff.model import Source, Verdict
from batch_invariance.live_invariance.sweep import Sweep, SweepRules
from batch_invariance.live_invariance.sweep_plan import Costs, tasks_of
from batch_invariance.live_invariance.sweep_state import standing_of

DEFAULT_MAX_TOKENS = 64
EXAMPLES = """examples:
  batch-invariance run-matrix --server-bin llama-server --model canary:q8_0 --parallel 2,4,8
  batch-invariance run-matrix --server-bin llama-server --model a.gguf --model b.gguf \\
      --workset w.json --ctx 2048,8192 --parallel 2,4,8 \\
      --flag-set 'fa-on=--flash-attn on' --flag-set 'fa-off=--flash-attn off'
  batch-invariance run-matrix --plan matrix.toml --time-budget 1800 --out-dir certs

The same command again goes on where the last one ended. Exits 0 when every cell of the plan is a
promotable GREEN (canary: GREEN), else 3.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the verb."""
    parser = commands.add_parser(
        "run-matrix",
        help="certify many cells, one after the other",
        description="Models x contexts x KV types x flag sets x N; one certificate for each cell. "
        "Arms A and A2 run once for all N.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_matrix_options(parser)
    group = parser.add_argument_group("the reference profile")
    group.add_argument(
        "--profile", choices=PROFILES, help="its work-set and its scorer, where none is named"
    )
    add_fill_options(group)
    add_cell_options(parser, DEFAULT_MAX_TOKENS)
    # A plan file may say it; the command line goes first.
    parser.set_defaults(max_tokens=None)
    group = parser.add_argument_group("the sweep")
    group.add_argument(
        "--time-budget",
        type=positive,
        metavar="S",
        help="begin no cell that would end later; the shortest go first",
    )
    group.add_argument(
        "--fresh", action="store_true", help="run every cell again, also those that are done"
    )
    add_safety_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="print the cells and start nothing")
    add_output_options(parser)
    add_sign_option(parser, SIGN_HELP)
    add_ci_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, server_flags: Sequence[str]) -> int:
    """Carries the verb out and returns the exit code."""
    targets, key = ci_targets(args), sign_key(args)
    plan = stated_plan(args)
    args.passes, args.max_tokens = plan.passes, plan.max_tokens or DEFAULT_MAX_TOKENS
    if plan.server_bin is None:
        raise UsageError("--server-bin: needed, here or as server_bin in the plan file")
    with contextlib.ExitStack() as stack:
        groups = prepare_groups(args, plan, server_flags, stack)
        if args.dry_run:
            return _dry_run(args, groups)
        for reason in dict.fromkeys(why for group in groups for why in group.shortfalls):
            print(f"can never be GREEN: {reason}", file=sys.stderr)
        targets.clear()
        progress = SweepProgress(args)
        rules = SweepRules(args.time_budget, args.fresh, key)
        try:
            sweep = Sweep([found.group for found in groups], args.out_dir, progress, rules)
            index = sweep.run()
        finally:
            progress.close()
    if (targets.junit, targets.sarif, targets.step_summary) != (None, None, None):
        write_ci_outputs(targets, list(_checked(args.out_dir, index, progress)))
    return _finish(args, index)


def _dry_run(args: argparse.Namespace, groups: Sequence[Prepared]) -> int:
    found = [prepared.group for prepared in groups]
    tasks = tasks_of(found)
    standing = standing_of(found, args.out_dir, args.fresh, sign_key(args))
    costs = Costs(standing, tasks)
    short = list(dict.fromkeys(why for group in groups for why in group.shortfalls))
    if args.json:
        cells = [{"file": task.file, "seconds": costs.of(task.file)} for task in tasks]
        seconds = costs.together(tasks, ())
        print(json.dumps({"cells": cells, "seconds": seconds, "never_green": short}))
    else:
        print("\n".join((*plan_lines(tasks, costs), *(f"can never be GREEN: {s}" for s in short))))
    return ExitCode.PROMOTABLE


def _finish(args: argparse.Namespace, index: MatrixIndex) -> int:
    good = all(map(_good, index.cells))
    code = ExitCode.PROMOTABLE if good else ExitCode.NOT_PROMOTED
    if args.json:
        print(json.dumps({**to_json(index), "exit_code": code}))
        return code
    folder = shlex.quote(str(args.out_dir))
    print("\n".join(result_lines(index, Style(sys.stdout))))
    print(f"index        {args.out_dir / INDEX_NAME}")
    print(f"next         batch-invariance report {folder} -o report.html")
    return code


def _good(entry: CellEntry) -> bool:
    canary_green = entry.source is Source.CANARY and entry.verdict is Verdict.GREEN
    return entry.promotable is True or canary_green


def _checked(out_dir: Path, index: MatrixIndex, progress: SweepProgress) -> Iterator[CheckedCell]:
    """Every cell for the reports of CI; one without a certificate is an error there."""
    for entry in index.cells:
        seconds = entry.seconds or 0.0
        produced = progress.produced.get(entry.file)
        if produced is not None:
            yield produced_cell(produced, seconds)
        elif entry.verdict is not None:
            yield checked_cell(verify_file(out_dir / entry.file), seconds)
        else:
            why = entry.why or "it was not run"
            yield checked_cell(VerifiedFile(out_dir / entry.file, b"", None, (why,)), seconds)
