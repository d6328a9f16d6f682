"""Fixtures that several test files share; others add to it too, so each part stays small."""

from __future__ import annotations

import functools
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

import core_fixtures
import live_equipment
from batch_invariance.invariance_diff.model import Source
from batch_invariance.invariance_diff.records import Cell
from batch_invariance.invariance_diff.request import Sampling
from batch_invariance.invariance_diff.workset import parse_workset
from batch_invariance.live_invariance.mock_answer import MockBehaviour
from batch_invariance.live_invariance.mock_launch import MockLauncher
from batch_invariance.live_invariance.prepare import RunSettings, build_header
from batch_invariance.live_invariance.produce import Conduct, produce
from batch_invariance.live_invariance.recording import StopRules
from batch_invariance.scorer_api import ExactMatch
from company import gathered


def pytest_configure() -> None:
    """A background job of a script ignores SIGINT, and one under `nohup` SIGHUP; the runs that are
    ended here would inherit that and, rightly, not end."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True, scope="session")
def _waves_are_whole() -> Iterator[None]:
    with gathered():
        yield


@dataclass(frozen=True)
class DriverEvidence:
    """What a real run of the driver against the in-process mock left behind."""

    lines: tuple[bytes, ...]
    records: core_fixtures.Records
    certificate_bytes: bytes


class _Silent:
    def stage(self, text: str) -> None: ...

    def trial(self, trial: object, divergent: bool) -> None: ...

    def event(self, event: object) -> None: ...

    def note(self, text: str) -> None: ...


@pytest.fixture(scope="session")
def driver_evidence(tmp_path_factory: pytest.TempPathFactory) -> DriverEvidence:
    """A GREEN run of 20 items at N=4, written as if live: the tests judge the rules with it."""
    entries = [
        {
            "id": f"q{i:02d}",
            "prompt": f"Question {i}: " + "word " * (3 + i % 7),
            "expected_answer": f"answer {i}" if i % 2 else None,
            "family": "odd" if i % 2 else None,
            "fill": 0.25 if i < 10 else None,
        }
        for i in range(20)
    ]
    workset = parse_workset(json.dumps(entries).encode(), "questions.json")
    settings = RunSettings(4, 4, Sampling(0, 24, 3), core_fixtures.SEED)
    header = build_header(
        Source.LIVE,
        Cell("toy", 512, 4, "f16", "f16", False, 512, (), {}),
        core_fixtures.SUBJECT,
        settings,
        workset,
        ExactMatch(),
    )
    produced = produce(
        header,
        MockLauncher(512, MockBehaviour(gather_s=0.005)),
        ExactMatch(),
        tmp_path_factory.mktemp("driver"),
        Conduct(_Silent(), 60.0, StopRules()),
    )
    lines = tuple(produced.paths.evidence.read_bytes().splitlines(keepends=True))
    records = core_fixtures.decode(lines)
    return DriverEvidence(lines, records, produced.paths.certificate.read_bytes())


@functools.cache
def _server() -> live_equipment.Found:
    return live_equipment.find_server()


def _missing(config: pytest.Config, found: live_equipment.Found) -> NoReturn:
    """Live tests that were asked for must not pass over missing equipment in silence."""
    required = os.environ.get(live_equipment.REQUIRE_VARIABLE) == "1"
    if required or found.named or config.getoption("markexpr") == "live":
        pytest.fail(f"live test asked for: {found.why_not}", pytrace=False)
    pytest.skip(f"live test: {found.why_not}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks live tests in the JUnit report, where .ci/run counts them."""
    for item in items:
        if item.get_closest_marker("live") is not None:
            item.user_properties.append(("live", "1"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("live") is not None and _server().path is None:
        _missing(item.config, _server())


@pytest.fixture(scope="session")
def live_server(pytestconfig: pytest.Config) -> Path:
    """A llama-server that was seen to serve on this machine."""
    found = _server()
    return found.path or _missing(pytestconfig, found)


@pytest.fixture(scope="session")
def live_model(pytestconfig: pytest.Config) -> Path:
    """A small real model, SmolLM2-135M-Instruct in Q4_1 unless the environment names another."""
    found = live_equipment.find_model()
    return found.path or _missing(pytestconfig, found)
