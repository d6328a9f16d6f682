"""The check of the whole repository cannot pass without live tests that ran and passed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import live_equipment

ROOT = Path(__file__).resolve().parent.parent
LIVE = '<properties><property name="live" value="1"/></properties>'
PASSED = f'<testcase classname="t" name="live_one">{LIVE}</testcase>'
SKIPPED = f'<testcase classname="t" name="live_two">{LIVE}<skipped/></testcase>'
FAILED = f'<testcase classname="t" name="live_three">{LIVE}<failure/></testcase>'
PLAIN = '<testcase classname="t" name="plain"/>'


@pytest.mark.parametrize(
    ("cases", "code", "said"),
    [
        ([PLAIN, PASSED], 0, ""),
        ([PLAIN], 1, "no live test passed"),
        ([], 1, "no live test passed"),
        ([PASSED, SKIPPED], 1, "t::live_two"),
        ([PASSED, FAILED], 1, "t::live_three"),
    ],
)
def test_the_report_must_show_live_tests_that_passed(
    cases: list[str], code: int, said: str, tmp_path: Path
) -> None:
    report = tmp_path / "report.xml"
    suite = f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>"
    report.write_text(suite, "utf-8")
    check = [sys.executable, str(ROOT / ".ci" / "check_live.py"), str(report)]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert said in done.stderr
    assert done.stdout == ""


def test_a_server_that_was_named_and_does_not_run_is_a_failure(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += [str(ROOT / "tests" / "test_live_toy.py"), "-k", "quantised", "--rootdir", str(ROOT)]
    env = {**os.environ, live_equipment.SERVER_VARIABLE: str(tmp_path / "nothing")}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "live test asked for" in done.stdout
    assert "is no executable" in done.stdout


def test_a_probe_says_how_a_server_ended(tmp_path: Path) -> None:
    server = tmp_path / "server"
    server.write_text("#!/bin/sh\necho no such model\nexit 7\n", "utf-8")
    server.chmod(0o755)
    reason = live_equipment.probe(server)
    assert reason is not None
    assert "status 7" in reason
    assert "no such model" in reason


def test_a_probe_names_the_signal_of_a_foreign_instruction(tmp_path: Path) -> None:
    server = tmp_path / "server"
    server.write_text("#!/bin/sh\nkill -ILL $$\n", "utf-8")
    server.chmod(0o755)
    reason = live_equipment.probe(server)
    assert reason is not None
    assert "SIGILL" in reason
