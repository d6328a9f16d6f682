"""JUnit and SARIF reports read by programs that are not ours. Run by hand:

    python -m venv /tmp/dev
    /tmp/dev/bin/pip install jsonschema junitparser sarif-tools pytest
    PYTHONPATH=src /tmp/dev/bin/python tests/dev/check_ci_formats.py SARIF_SCHEMA

SARIF_SCHEMA is the JSON schema of SARIF 2.1.0, from OASIS or from the npm package
`@microsoft/jest-sarif` (lib/schemas). Ends with 0 when every line says yes. The recorded output
is in tests/bench/results/ci_formats.txt.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import json
import platform
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jsonschema
import junitparser
import sarif.loader

from batch_invariance.cli.main import main as program
from ci_fixtures import AMBER, CANARY, RED, UNVERIFIED, unchanged, write_cert, write_policy

PACKAGES = ("jsonschema", "junitparser", "sarif-tools")
CELLS = {
    "green": unchanged,
    "amber": AMBER,
    "accepted": AMBER,
    "unverified": UNVERIFIED,
    "red": RED,
    "canary": CANARY,
}
ACCEPT = {"accepted/512/4": {"reason": "known <&>", "signed_off_by": "A. Person"}}
failures: list[str] = []


def say(what: str, good: bool) -> None:
    """Prints whether a check holds."""
    print(f"{'yes' if good else 'NO '}  {what}")
    if not good:
        failures.append(what)


def report(folder: Path) -> tuple[Path, Path]:
    """A folder with a certificate of every colour and a broken one, judged."""
    for model, change in CELLS.items():
        write_cert(folder / "certs", change, model=model)
    (folder / "certs" / "broken.json").write_text("{")
    required = [f"{model}/512/4" for model in CELLS if model != "red"]
    policy = write_policy(folder, *required, "missing/512/4", max_age_days=1, accept_amber=ACCEPT)
    junit, log = folder / "gate.xml", folder / "gate.sarif"
    words = ["gate", str(folder / "certs"), "--policy", str(policy)]
    with contextlib.redirect_stdout(io.StringIO()):
        code = program([*words, "--junit", str(junit), "--sarif", str(log)])
    say("the gate ends with 3", code == 3)
    return junit, log


def main() -> int:
    """The exit status."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES]
    print(f"python {platform.python_version()}, {', '.join(versions)}")
    schema = json.loads(Path(sys.argv[1]).read_bytes())
    print(f"schema {schema.get('$id') or schema.get('id')}")
    with tempfile.TemporaryDirectory() as name:
        junit, log = report(Path(name))
        value = json.loads(log.read_bytes())
        faults = list(jsonschema.validators.validator_for(schema)(schema).iter_errors(value))
        for fault in faults[:5]:
            print(f"    {fault.message[:200]}")
        say("jsonschema finds the SARIF log valid", not faults)
        loaded = sarif.loader.load_sarif_file(str(log))
        rows = value["runs"][0]["results"]
        say(f"sarif-tools reads its {len(rows)} results", loaded.get_result_count() == len(rows))
        suites = junitparser.JUnitXml.fromfile(str(junit))
        cases = [case for suite in suites for case in suite]
        say(f"junitparser reads {len(cases)} test cases", len(cases) == suites.tests)
        failed = sum(isinstance(r, junitparser.Failure) for case in cases for r in case.result)
        errors = sum(isinstance(r, junitparser.Error) for case in cases for r in case.result)
        say(f"  of which {failed} failed", failed == suites.failures)
        say(f"  and {errors} are errors", errors == suites.errors)
    print(f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
