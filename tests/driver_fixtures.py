"""A small run of the driver against the in-process mock."""

from __future__ import annotations

import json

import core_fixtures
from batch_invariance.invariance_diff.model import Source
from batch_invariance.invariance_diff.records import Cell, Header
from batch_invariance.invariance_diff.request import Sampling
from batch_invariance.invariance_diff.workset import parse_workset
from batch_invariance.live_invariance.prepare import RunSettings, build_header
from batch_invariance.scorer_api import ExactMatch

CTX = 512


def mock_header(
    n_items: int = 10, passes: int = 2, source: Source = Source.LIVE, parallel: int = 4
) -> Header:
    """The header of a cell of four slots unless `parallel` says another number, as if live."""
    entries = [
        {"id": f"q{i}", "prompt": f"Question {i}: " + "word " * (3 + i % 5)} for i in range(n_items)
    ]
    return build_header(
        source,
        Cell("toy", CTX, parallel, "f16", "f16", False, 512, (), {}),
        core_fixtures.SUBJECT,
        RunSettings(parallel, passes, Sampling(0, 16, 3), core_fixtures.SEED),
        parse_workset(json.dumps(entries).encode(), "questions.json"),
        ExactMatch(),
    )
