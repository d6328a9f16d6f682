"""`certify-endpoint`: the certifier against an OpenAI-compatible server that someone else runs."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from batch_invariance.cli.ci_output import (
    add_ci_options,
    ci_targets,
    produced_cell,
    write_ci_outputs,
)
from batch_invariance.cli.endpoint_job import (
    Address,
    Job,
    add_lifetime_options,
    certify_once,
    connect,
    run_lifetimes,
    say,
)
from batch_invariance.cli.endpoint_text import notice, notice_as_json
from batch_invariance.cli.exit_codes import ExitCode
from batch_invariance.cli.run_options import (
    add_cell_options,
    add_output_options,
    load_scorer,
    load_workset,
    non_empty,
    prepared,
    read_input,
    settings_from,
)
from batch_invariance.cli.sign_options import SIGN_HELP, add_sign_option, sign_key
from batch_invariance.cli.style import Style
from batch_invariance.cli.summary import as_json, render
from batch_invariance.errors import UsageError
from batch_invariance.invariance_diff.plan import shortfalls
from batch_invariance.invariance_diff.verify import cert_is_green
from batch_invariance.live_invariance.endpoint_client import Limits, base_url, on_loopback
from batch_invariance.live_invariance.endpoint_prepare import amount_of, check_amount
from batch_invariance.live_invariance.endpoint_telemetry import metrics_base
from batch_invariance.live_invariance.produce import Produced

DEFAULT_MAX_TOKENS = 64
EXAMPLES = """examples:
  batch-invariance certify-endpoint --url http://localhost:8000 --model smol \\
      --workset w.json --concurrency 4
  batch-invariance certify-endpoint --url https://gateway.example/v1 --model m \\
      --workset w.json --concurrency 8 --api-key-env GATEWAY_KEY --max-total-tokens 200000

Exits 0 for a GREEN of an endpoint, which is never promotable as live.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the verb."""
    parser = commands.add_parser(
        "certify-endpoint",
        help="certify a server that someone else runs",
        description="Measures an OpenAI-compatible server as it is found. Starts none.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    group = parser.add_argument_group("the endpoint")
    group.add_argument("--url", required=True, metavar="URL", help="with or without /v1")
    group.add_argument(
        "--model", required=True, type=non_empty, metavar="NAME", help="as requests name it"
    )
    group.add_argument("--workset", required=True, type=Path, metavar="W", help="JSON, JSON Lines")
    group.add_argument(
        "--concurrency", required=True, type=int, metavar="N", help="requests at once"
    )
    group.add_argument("--metrics-url", metavar="URL", help="where /metrics is, if not at --url")
    key = group.add_mutually_exclusive_group()
    key.add_argument("--api-key-file", type=Path, metavar="FILE", help="its first line is the key")
    key.add_argument("--api-key-env", metavar="VAR", help="the variable that holds the key")
    group.add_argument(
        "--claims-invariance",
        type=non_empty,
        metavar="TEXT",
        help="a deterministic mode that the server is said to be in, such as a flag",
    )
    _add_limits(parser)
    add_lifetime_options(parser)
    add_cell_options(parser, DEFAULT_MAX_TOKENS)
    parser.add_argument("--dry-run", action="store_true", help="say what would be sent, send none")
    add_sign_option(parser, SIGN_HELP)
    add_output_options(parser)
    add_ci_options(parser)
    parser.set_defaults(run=run)


def _add_limits(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("limits")
    group.add_argument("--max-requests", type=_at_least_one, metavar="K", help="of the run, in all")
    group.add_argument(
        "--max-total-tokens", type=_at_least_one, metavar="K", help="of prompts and answers"
    )


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10**12:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 1 or more")
    return int(text)


def run(args: argparse.Namespace, server_flags: Sequence[str]) -> int:
    """Carries the verb out and returns the exit code."""
    if server_flags:
        raise UsageError("certify-endpoint starts no server: nothing may follow --")
    url, limits = base_url(args.url), Limits(args.max_requests, args.max_total_tokens)
    metrics_url = url
    if args.metrics_url is not None:
        metrics_url = base_url(metrics_base(args.metrics_url), "--metrics-url")
    if (args.lifetimes > 1) is not (args.restart_command is not None):
        raise UsageError("--lifetimes 2 or more and --restart-command need each other")
    settings = settings_from(args, args.concurrency)
    workset, scorer = prepared(load_workset(args.workset), args), load_scorer(args)
    targets = ci_targets(args)
    amount = amount_of(settings, workset.items, args.lifetimes)
    check_amount(amount, limits)
    if args.dry_run:
        said = "\n".join(notice(url, amount, limits))
        print(json.dumps(notice_as_json(url, amount)) if args.json else said)
        return ExitCode.PROMOTABLE
    if not args.quiet:
        say(notice(url, amount, limits))
    for reason in shortfalls(workset.items, args.concurrency, settings.passes, settings.sampling):
        print(f"this run can never be GREEN: {reason}", file=sys.stderr)
    key, signing = _key(args), sign_key(args)
    if key is not None and url.startswith("http:") and not on_loopback(url):
        print("the key goes over the network unencrypted: the address is http", file=sys.stderr)
    targets.clear()
    began = time.monotonic()
    address = Address(url, metrics_url, key)
    job = Job(args, settings, workset, scorer, signing)
    if args.lifetimes > 1:
        return run_lifetimes(job, address, limits, targets)
    produced = certify_once(job, connect(address, limits, args.request_timeout), args.out_dir)
    write_ci_outputs(targets, [produced_cell(produced, time.monotonic() - began)])
    return _finish(args, produced)


def _key(args: argparse.Namespace) -> str | None:
    """The API key. Raises UsageError where it is not where it was said to be."""
    if args.api_key_env is not None:
        key = os.environ.get(args.api_key_env, "").strip()
        where = f"--api-key-env {args.api_key_env}"
    elif args.api_key_file is not None:
        text = read_input(args.api_key_file, "--api-key-file").decode("utf-8", "replace")
        key = text.strip().splitlines()[0].strip() if text.strip() else ""
        where = f"--api-key-file {args.api_key_file}"
    else:
        return None
    if not key or not (key.isascii() and key.isprintable()):
        raise UsageError(f"{where}: holds no key, one line of printable ASCII")
    return key


def _finish(args: argparse.Namespace, produced: Produced) -> int:
    green = cert_is_green(produced.certificate.to_json(), require_source="endpoint")
    code = ExitCode.PROMOTABLE if green else ExitCode.NOT_PROMOTED
    if args.json:
        print(json.dumps(as_json(produced, code)))
    else:
        again = f"batch-invariance verify-cert {shlex.quote(str(produced.paths.certificate))}"
        print(render(produced, Style(sys.stdout), again), end="")
    return code
