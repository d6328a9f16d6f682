"""`--sign-key`, for the verbs that write a certificate or verify one."""

from __future__ import annotations

import argparse
from pathlib import Path

from batch_invariance.invariance_diff.signature import SigningKey
from batch_invariance.live_invariance.signing import read_key

SIGN_HELP = "sign the certificate with the key in this file (HMAC-SHA256)"
VERIFY_HELP = "demand that it was signed with the key in this file (HMAC-SHA256)"


def add_sign_option(parser: argparse.ArgumentParser | argparse._ArgumentGroup, what: str) -> None:
    """The option; `what` says what the verb does with the key."""
    parser.add_argument("--sign-key", type=Path, metavar="FILE", help=what)


def sign_key(args: argparse.Namespace) -> SigningKey | None:
    """The key that was named; None for none. Raises UsageError for a file that is no key."""
    return None if args.sign_key is None else read_key(args.sign_key)
