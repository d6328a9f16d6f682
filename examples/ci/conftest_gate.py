"""Lets a test suite run only against a certified cell. Copy to `conftest.py` beside the tests.

    CERTIFICATE=certs/model__ctx8192__N4.json pytest

No test runs unless the certificate is promotable and its evidence, beside it, bears it out. A test
that talks to the server asks for `certificate`, to compare the server with what was certified.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from batch_invariance import is_promotable, verify_certificate
from batch_invariance.errors import BatchInvarianceError

VARIABLE = "CERTIFICATE"
STOPPED = 3


def pytest_sessionstart() -> None:
    """Ends the session before the first test where the certificate does not pass."""
    name = os.environ.get(VARIABLE)
    reason = reason_against(Path(name)) if name else f"{VARIABLE} names none"
    if reason:
        pytest.exit(f"the cell is not certified: {reason}", returncode=STOPPED)


def reason_against(path: Path) -> str | None:
    """Why the certificate does not pass; None when it does."""
    try:
        data = path.read_bytes()
        name = json.loads(data)["evidence"]["file"]
        with (path.parent / Path(name).name).open("rb") as lines:
            result = verify_certificate(data, lines)
    except (BatchInvarianceError, OSError, ValueError, LookupError, TypeError) as error:
        return f"{path}: {error}"
    if not result.borne_out:
        return f"{path}: {'; '.join(result.problems)}"
    if not is_promotable(json.loads(data)):
        reasons = result.derived.decision_reasons if result.derived else ()
        return f"{path}: {'; '.join(reasons) or 'is not promotable'}"
    return None


@pytest.fixture(scope="session")
def certificate() -> dict[str, Any]:
    """The certificate: `model`, `ctx`, `dispatch_n`, `subject`, ..."""
    value: dict[str, Any] = json.loads(Path(os.environ[VARIABLE]).read_bytes())
    return value
