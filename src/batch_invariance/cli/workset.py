"""`workset`: import, look at and generate work-sets; each in a module of its own."""

from __future__ import annotations

import argparse

from batch_invariance.cli import workset_boundary, workset_import, workset_show

VERBS = (workset_import, workset_show, workset_boundary)
EXAMPLES = """examples:
  batch-invariance workset import requests.jsonl -o set.json
  batch-invariance workset show set.json
  batch-invariance workset boundary --help
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the verb and the verbs under it."""
    parser = commands.add_parser(
        "workset",
        help="import, show or generate a work-set",
        description="Makes work-sets from what you have, and says what a set could show.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    nested = parser.add_subparsers(title="verbs of workset", metavar="VERB", required=True)
    for verb in VERBS:
        verb.add_parser(nested)
