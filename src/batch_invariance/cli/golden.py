"""`golden`: record the serial answers of a work-set, and hold later runs against them."""

from __future__ import annotations

import argparse

from batch_invariance.cli import golden_check, golden_record

VERBS = (golden_record, golden_check)
EXAMPLES = """examples:
  batch-invariance golden record certs/model__ctx8192__N4.json -o golden.json
  batch-invariance golden check golden.json later/model__ctx8192__N4.json
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the verb and the verbs under it."""
    parser = commands.add_parser(
        "golden",
        help="record serial answers as digests, and check later runs against them",
        description="Did the answers to a work-set change since they were recorded?",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    nested = parser.add_subparsers(title="verbs of golden", metavar="VERB", required=True)
    for verb in VERBS:
        verb.add_parser(nested)
