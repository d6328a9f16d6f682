"""The projection against what a real llama-server says at start that it allocates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import gguf_architectures
from server_memory import (
    LAYOUT_SETTINGS,
    SMOLLM2_SETTINGS,
    Reported,
    Setting,
    projected,
    projected_mib,
    reported,
)

pytestmark = pytest.mark.live

ROUNDING_MIB = 0.011
"""Sizes are logged to a hundredth of a MiB, the KV cache in up to two lines."""


def _check(said: Reported, ours: Reported) -> None:
    assert said.compute > 0
    assert abs(ours.model - said.model) <= ROUNDING_MIB
    assert abs(ours.kv - said.kv) <= ROUNDING_MIB
    assert abs(ours.output - said.output) <= ROUNDING_MIB
    assert abs(ours.total - said.total) <= 0.1 * said.total


@pytest.mark.parametrize("setting", SMOLLM2_SETTINGS, ids=str)
def test_smollm2_takes_what_is_projected(
    setting: Setting, live_server: Path, live_model: Path
) -> None:
    _check(
        reported(live_server, live_model, setting), projected_mib(projected(live_model, setting))
    )


@pytest.mark.parametrize(
    "write", gguf_architectures.WRITERS.values(), ids=gguf_architectures.WRITERS.keys()
)
@pytest.mark.parametrize(
    "setting",
    LAYOUT_SETTINGS,
    ids=str,
)
def test_other_layouts_of_the_cache_are_exact(
    write: Callable[[Path], None], setting: Setting, live_server: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model.gguf"
    write(model)
    said = reported(live_server, model, setting)
    ours = projected_mib(projected(model, setting))
    assert said.kv > 0
    assert abs(ours.kv - said.kv) <= ROUNDING_MIB
    assert said.compute <= 1.01 * ours.compute
    assert ours.compute <= 2 * said.compute
