"""The work-set of a cell: the file's, or the profile's, which fits its prompts to a model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from batch_invariance.cli.cell_options import ChosenCell, launch_limits
from batch_invariance.invariance_diff.model import Message
from batch_invariance.invariance_diff.workset import WorkSet
from batch_invariance.live_invariance.prepare import ServerKnowledge
from batch_invariance.live_invariance.text import printable
from batch_invariance.live_invariance.token_counter import token_counter
from batch_invariance.profiles.spark.generate import generate

GUESSED_CHARACTERS = 4
"""Characters per token where no server may be asked."""


def fitted_workset(args: argparse.Namespace, cell: ChosenCell, known: ServerKnowledge) -> WorkSet:
    """The work-set of the cell; the profile's is fitted by the server's own tokenizer.

    Raises what the launch of that server raises.
    """
    if cell.workset is not None:
        return cell.workset
    assert cell.spark is not None
    say = _silent if args.quiet else _aside
    say("profile spark: fitting prompts with the server's tokenizer")
    limits = launch_limits(args)
    with token_counter(cell.server, known, args.ready_timeout, limits) as count:
        made = generate(cell.spark, count)
    floors = [entry.item_id for entry in made.calibration if entry.floor]
    say(f"profile spark: {len(made.workset.items)} items, each within 3 % of its length")
    if floors:
        say(f"longer than their fill even without filler: {printable(', '.join(floors))}")
    return made.workset


def guessed_workset(cell: ChosenCell) -> WorkSet:
    """The same without a server: where the profile's has to be fitted, its lengths are a guess."""
    if cell.workset is not None:
        return cell.workset
    assert cell.spark is not None
    return generate(cell.spark, _guess).workset


def _aside(text: str) -> None:
    print(text, file=sys.stderr)


def _silent(text: str) -> None:
    """What `--quiet` makes of a remark."""


def _guess(messages: Sequence[Message]) -> int:
    return sum(len(m.content) for m in messages) // GUESSED_CHARACTERS
