"""`canary`: write a toy GGUF model of seeded random weights."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from batch_invariance.cli.exit_codes import ExitCode
from batch_invariance.errors import UsageError
from batch_invariance.formats.toy_gguf import ToySpec, toy_model_bytes
from batch_invariance.invariance_diff.digest import sha256_hex
from batch_invariance.live_invariance.canary import DEFAULT_SPEC
from batch_invariance.live_invariance.store import check_new, write_new

EXAMPLES = """examples:
  batch-invariance canary -o toy.gguf
  batch-invariance canary f16,twins,seed=7 -o twins.gguf

SPEC is a comma list: one of f32, f16, bf16, q8_0, q4_0; moe; twins; seed=N. The bytes depend on it
alone, on every platform.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the verb."""
    parser = commands.add_parser(
        "canary",
        help="write a toy model to test a server with",
        description="Writes a toy GGUF of seeded random weights; run-live --canary makes its own.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("spec", nargs="?", default=DEFAULT_SPEC, metavar="SPEC", help="(q8_0)")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, server_flags: Sequence[str]) -> int:
    """Carries the verb out and returns the exit code."""
    if server_flags:
        raise UsageError("canary starts no server: nothing may follow --")
    spec = ToySpec.parse(args.spec)
    check_new(args.output)
    data = toy_model_bytes(spec)
    write_new(args.output, data)
    digest = sha256_hex(data)
    if args.json:
        report = {"file": str(args.output), "spec": str(spec), "bytes": len(data), "sha256": digest}
        print(json.dumps(report))
    else:
        print(f"{args.output}: {spec}, {len(data)} bytes, sha256 {digest}")
    return ExitCode.PROMOTABLE
