"""Every parser under seeded fuzzing: a value or its one documented error, in bounded time and
memory.

FUZZ_COUNT sets the inputs per parser and FUZZ_SEED the seed; CI feeds 10,000 of each on one Python.
`PYTHONPATH=src:tests python -m fuzz --seed N --count N [PARSER ...]` runs it by hand.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fuzz.harness import MOST_PEAK_BYTES, inputs, peak_bytes, run
from fuzz.targets import Target, targets

COUNT = int(os.environ.get("FUZZ_COUNT", "200"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
FOR_MEMORY = 40

pytestmark = pytest.mark.fuzz
NAMES = [target.name for target in targets(Path())]


def _target(name: str, folder: Path) -> Target:
    return next(target for target in targets(folder) if target.name == name)


@pytest.mark.parametrize("name", NAMES)
def test_every_input_gives_a_value_or_the_one_error(name: str, tmp_path: Path) -> None:
    target = _target(name, tmp_path)
    tally = run(target, SEED, COUNT)
    for error in tally.broken:
        raise error
    # A sample of a few inputs may miss the share by chance.
    if tally.n_inputs >= 1000:
        assert tally.n_accepted >= target.accepted * tally.n_inputs
    assert peak_bytes(target, SEED, FOR_MEMORY) < MOST_PEAK_BYTES


def test_a_seed_gives_the_same_inputs_again(tmp_path: Path) -> None:
    for target in targets(tmp_path):
        assert list(inputs(target, 7, 20)) == list(inputs(target, 7, 20))
        assert list(inputs(target, 7, 20)) != list(inputs(target, 8, 20))
