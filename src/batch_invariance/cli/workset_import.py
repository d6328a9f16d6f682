"""`workset import`: files that people have already become work-sets."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from batch_invariance.cli.exit_codes import ExitCode
from batch_invariance.cli.run_options import read_input
from batch_invariance.errors import UsageError
from batch_invariance.invariance_diff.model import Item
from batch_invariance.invariance_diff.workset import workset_to_json
from batch_invariance.invariance_diff.workset_import import ImportFormat, import_workset
from batch_invariance.live_invariance.store import check_new, write_new
from batch_invariance.live_invariance.text import printable

AUTO = "auto"
EXAMPLES = """examples:
  batch-invariance workset import requests.jsonl -o set.json
  batch-invariance workset import samples_gsm8k_2025-01-31T10-00-00.jsonl --limit 100 -o set.json
  batch-invariance workset import prompts.txt --format lines > set.json

openai-batch: JSON Lines of chat completion requests. lm-eval: what lm-evaluation-harness writes
with its option log_samples. lines: plain text, one prompt a line.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the verb."""
    parser = commands.add_parser(
        "import",
        help="turn a file of prompts into a work-set",
        description="Reads OpenAI batch requests, lm-evaluation-harness samples or plain lines.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="what to read")
    formats = (AUTO, *(member.value for member in ImportFormat))
    parser.add_argument(
        "--format", choices=formats, default=AUTO, help="what FILE is (auto: told by its content)"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="OUT", help="a new file (stdout)")
    parser.add_argument("--id-prefix", default="", metavar="P", help="goes before every id")
    parser.add_argument("--limit", type=int, metavar="N", help="take the first N items")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, server_flags: Sequence[str]) -> int:
    """Carries the verb out and returns the exit code."""
    if server_flags:
        raise UsageError("workset import starts no server: nothing may follow --")
    if args.limit is not None and args.limit < 1:
        raise UsageError(f"--limit {args.limit}: give 1 or more")
    if not args.id_prefix.isprintable():
        raise UsageError(f"--id-prefix {args.id_prefix!r}: give printable characters")
    if args.json and args.output is None:
        raise UsageError("--json needs -o: without it the work-set itself goes to stdout")
    if args.output is not None:
        check_new(args.output)
    chosen = None if args.format == AUTO else ImportFormat(args.format)
    data = read_input(args.file, "FILE")
    imported = import_workset(data, args.file.name, chosen, args.id_prefix, args.limit)
    workset = imported.workset
    text = workset_bytes(workset.items)
    if args.output is None:
        sys.stdout.write(text.decode("ascii"))
    else:
        write_new(args.output, text)
    if args.json:
        report = {
            "file": str(args.output),
            "format": imported.format.value,
            "n_items": len(workset.items),
            "sha256": workset.sha256,
            "notes": list(imported.notes),
        }
        print(json.dumps(report))
        return ExitCode.PROMOTABLE
    where = "" if args.output is None else f" in {args.output}"
    print(f"{imported.format.value}: {len(workset.items)} items{where}", file=sys.stderr)
    for note in imported.notes:
        print(f"note: {printable(note)}", file=sys.stderr)
    return ExitCode.PROMOTABLE


def workset_bytes(items: Sequence[Item]) -> bytes:
    """A work-set file: a JSON list, an item to a few lines, ASCII."""
    return (json.dumps(workset_to_json(items), indent=1) + "\n").encode("ascii")
