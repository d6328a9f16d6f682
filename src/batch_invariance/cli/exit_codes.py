"""What the program's exit status means."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """`PROMOTABLE`: the verdict that was asked for. `NO_VERDICT`: a bad file, an unfit item, a
    failed launch. `REFUSED`: arguments or a guard. `NOT_PROMOTED`: a verdict that does not
    promote. `OTHER_DIVERGENCE`, `OTHER_SUBJECT`: of `replay` alone. A signal ends with 128 plus its
    number."""

    PROMOTABLE = 0
    NO_VERDICT = 1
    REFUSED = 2
    NOT_PROMOTED = 3
    OTHER_DIVERGENCE = 4
    OTHER_SUBJECT = 5


EPILOG = """exit status:
  0  a promotable GREEN (canary, endpoint: GREEN; run-mock: the colour asked for)
  1  no verdict: a bad file, an item that does not fit, a failed launch
  2  arguments or a guard refused; nothing was started, written or renamed
  3  a verdict that does not promote: AMBER, UNVERIFIED or RED
  4, 5  of replay alone: another divergence, another subject
  129, 130, 143  ended by SIGHUP, SIGINT, SIGTERM; the partial evidence is kept
"""
