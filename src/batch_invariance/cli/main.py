"""The program: verbs, and the one place where an error becomes a line and an exit code."""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import io
import json
import os
import sys
from collections.abc import Sequence

from batch_invariance import __version__
from batch_invariance.cli.exit_codes import EPILOG
from batch_invariance.cli.style import Speaker
from batch_invariance.errors import BatchInvarianceError, Interrupted, ServerError
from batch_invariance.live_invariance.interrupts import interruptible
from batch_invariance.live_invariance.text import printable, printable_lines

VERBS = (
    "run-live",
    "run-matrix",
    "certify-endpoint",
    "run-mock",
    "resume",
    "verify-cert",
    "show",
    "list",
    "report",
    "compare",
    "golden",
    "gate",
    "attest",
    "plan-n",
    "workset",
    "schedule",
    "profiles",
    "probe",
    "diagnose",
    "minimise",
    "replay",
    "canary",
)
"""In the order of the help."""
MODULES = {"list": "list_certs"}
"""Of verbs that are not called as their module is."""


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The parser with every verb, or with one: a command line loads what it uses."""
    parser = argparse.ArgumentParser(
        prog="batch-invariance",
        description="Does continuous batching change the scored outputs of one llama-server cell?",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"batch-invariance {__version__}")
    commands = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    for verb in VERBS if only is None else (only,):
        module = MODULES.get(verb, verb.replace("-", "_"))
        importlib.import_module(f"batch_invariance.cli.{module}").add_parser(commands)
    return parser


def main(argv: Sequence[str]) -> int:
    """Runs one command line and returns its exit code. Bad arguments exit with 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character gets its escape, never a traceback.
            stream.reconfigure(errors="backslashreplace")
    words = list(argv)
    cut = words.index("--") if "--" in words else len(words)
    verb = words[0] if words and words[0] in VERBS else None
    args = build_parser(verb).parse_args(words[:cut])
    try:
        with interruptible():
            code: int = args.run(args, words[cut + 1 :])
            sys.stdout.flush()
            return code
    except (BatchInvarianceError, Interrupted) as error:
        # Only the end of a server's log has lines of its own.
        show = printable_lines if isinstance(error, ServerError) else printable
        text = show(str(error))
        Speaker(sys.stderr).say(f"batch-invariance: {text}\n")
        if args.json:
            report = {"error": str(error), "exit_code": error.exit_code}
            Speaker(sys.stdout).say(json.dumps(report) + "\n")
        return error.exit_code
    except OSError as error:
        # The pipe or terminal of our output may have gone, and then nobody is left to tell. What is
        # still buffered goes nowhere, or the interpreter's own end would fail at it.
        gone = error.errno in (errno.EPIPE, errno.EIO)
        if not gone:
            place = "" if error.filename is None else f"{error.filename}: "
            text = printable(f"{place}{error.strerror or error}")
            Speaker(sys.stderr).say(f"batch-invariance: {text}\n")
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if gone:
            sys.stderr.close()
        return 1


def entry_point() -> None:
    """The console script."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            # The caller has closed it, as `>&-` does.
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    sys.exit(main(sys.argv[1:]))
