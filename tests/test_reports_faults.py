"""Every fault of a server in the list, and that the page is the list."""

from __future__ import annotations

import pytest

import fault_runs
from fault_cases import CASES


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.by_hand])
def test_a_fault_is_met_as_the_list_says(name: str) -> None:
    fault_runs.check(CASES[name], fault_runs.of_run(name))
