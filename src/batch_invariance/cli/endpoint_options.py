"""Options of the verbs that talk to a server of somebody else: where it is, the key, the limits."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from batch_invariance.cli.run_options import read_input
from batch_invariance.errors import UsageError
from batch_invariance.live_invariance.endpoint_client import Limits, base_url, on_loopback
from batch_invariance.live_invariance.endpoint_telemetry import metrics_base


def add_address_options(group: argparse._ActionsContainer) -> None:
    """Where the metrics are, and the key."""
    group.add_argument("--metrics-url", metavar="URL", help="where /metrics is, if not at --url")
    key = group.add_mutually_exclusive_group()
    key.add_argument("--api-key-file", type=Path, metavar="FILE", help="its first line is the key")
    key.add_argument("--api-key-env", metavar="VAR", help="the variable that holds the key")


def add_limit_options(group: argparse._ActionsContainer) -> None:
    """The most that may be sent."""
    group.add_argument("--max-requests", type=_at_least_one, metavar="K", help="of the run, in all")
    group.add_argument(
        "--max-total-tokens", type=_at_least_one, metavar="K", help="of prompts and answers"
    )


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10**12:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 1 or more")
    return int(text)


def limits_of(args: argparse.Namespace) -> Limits:
    """The limits that were given."""
    return Limits(args.max_requests, args.max_total_tokens)


def metrics_url_of(args: argparse.Namespace, url: str) -> str:
    """Where the metrics are. Raises UsageError for what is no address."""
    if args.metrics_url is None:
        return url
    return base_url(metrics_base(args.metrics_url), "--metrics-url")


def key_of(args: argparse.Namespace, url: str) -> str | None:
    """The API key, with a warning where it would go out in the open. Raises UsageError where it is
    not where it was said to be."""
    key = _key(args)
    if key is not None and url.startswith("http:") and not on_loopback(url):
        print("the key goes over the network unencrypted: the address is http", file=sys.stderr)
    return key


def _key(args: argparse.Namespace) -> str | None:
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
