"""Reads pytest's JUnit report and fails unless live tests ran and every one of them passed.

Silent when they did, so that pytest's own summary stays the last thing to see.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree


def live_results(report: str) -> tuple[int, list[str]]:
    """How many live tests passed, and the names of those that did not."""
    passed, others = 0, []
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("properties/property[@name='live']") is None:
            continue
        if any(case.find(tag) is not None for tag in ("failure", "error", "skipped")):
            others.append(f"{case.get('classname')}::{case.get('name')}")
        else:
            passed += 1
    return passed, others


def main() -> int:
    """The exit status for the report named on the command line."""
    passed, others = live_results(sys.argv[1])
    if others:
        print(f"live tests that did not pass: {', '.join(others)}", file=sys.stderr)
    if not passed:
        print("no live test passed", file=sys.stderr)
    return 1 if others or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
