"""Every fault of a server in the list, and that the page is the list."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import fault_runs
from fault_cases import CASES, Group

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.by_hand])
def test_a_fault_is_met_as_the_list_says(name: str) -> None:
    fault_runs.check(CASES[name], fault_runs.of_run(name))


def test_every_fault_that_is_planted_by_hand_has_its_test() -> None:
    """The ends of a run have one that goes through all of them."""
    sources = "".join(path.read_text("utf-8") for path in ROOT.glob("tests/test_*.py"))
    checked = set(re.findall(r'CASES\["(\w+)"\]', sources))
    by_hand = {n for n, c in CASES.items() if c.by_hand and c.group is not Group.OWNERSHIP}
    assert by_hand <= checked


def test_the_page_is_the_list() -> None:
    command = [sys.executable, "docs/generate_reliability.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, check=False)
    assert done.returncode == 0, "run python docs/generate_reliability.py"


FOUND_AS = {
    "never_ready": "the server was not ready after ... s",
    "dies_at_start": "the server died at start",
    "daemon": "it put itself into the background",
    "wrong_context": "the server gives a slot ... tokens of context, ... were asked",
    "stands_still": "answers nothing any more",
    "hang_busy": "lane_lost",
    "one_id_fails": "lost trial",
    "prompt_cache": "came out of a prompt cache",
    "ignored_ban": "positive_control",
    "all_reasoning": "F2_completion_floor",
}
"""What stands in troubleshooting instead of the words that are printed."""
FOUND_FOR = {Group.OWNERSHIP: "After an interruption", Group.DEATH: "The server dies"}


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c.sees not in ("", "GREEN")])
def test_what_is_printed_is_found_again_in_troubleshooting(name: str) -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    case = CASES[name]
    words = FOUND_AS.get(name) or FOUND_FOR.get(case.group) or case.sees.strip(": ")
    assert words in re.sub(r"\s+", " ", page)
