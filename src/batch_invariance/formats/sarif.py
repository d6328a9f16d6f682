"""SARIF 2.1.0: a rule for each gate, a result for each gate of a cell that does not pass.

Required by the format are `version`, `runs`, the tool's name, a rule's `id`, a result's `message`
(https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html). GitHub's code scanning also
wants descriptions of the rules, a location with a region, and fingerprints. A result's place is
the line of the certificate file that names the gate.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from batch_invariance.invariance_diff.cell_checks import (
    EVIDENCE_CHECK,
    FINDING_OF,
    VERDICT_CHECK,
    Check,
    CheckedCell,
    Finding,
    Mark,
)
from batch_invariance.invariance_diff.gates import GATES

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
TOOL = "batch-invariance"
SOURCE_ROOT = "%SRCROOT%"
"""The name that relative references hang from; it is the folder in which the program ran."""
FINGERPRINT = "cellGate/v1"
LEVEL_OF = {
    Finding.RED: "error",
    Finding.UNVERIFIED: "error",
    Finding.VIOLATION: "error",
    Finding.AMBER: "warning",
}
COST_OF = {
    None: "A failure bars promotion.",
    Finding.RED: "A cell that fails is RED.",
    Finding.UNVERIFIED: "A cell that fails is UNVERIFIED.",
    Finding.AMBER: "A cell that fails is AMBER.",
    Finding.VIOLATION: "A cell that fails does not fulfil the policy.",
}


def sarif_json(cells: Sequence[CheckedCell], version: str) -> bytes:
    """The log's bytes; `version` is the tool's.

    An AMBER that a policy accepts is a suppressed result with the policy's words.
    """
    rules = _rules(cells)
    places = {rule["id"]: index for index, rule in enumerate(rules)}
    results = [
        _result(cell, check, places[check.rule_name])
        for cell in cells
        for check in cell.checks
        if _is_result(check)
    ]
    log = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": TOOL, "version": version, "rules": rules}},
                "automationDetails": {"id": f"{TOOL}/"},
                "columnKind": "utf16CodeUnits",
                "results": results,
            }
        ],
    }
    return json.dumps(log, indent=2, sort_keys=True).encode("ascii") + b"\n"


def _is_result(check: Check) -> bool:
    """The verdict only sums the gates up; a check that costs no colour is no finding."""
    return (
        check.name != VERDICT_CHECK and check.mark is not Mark.PASSED and check.finding is not None
    )


def _rules(cells: Sequence[CheckedCell]) -> list[dict[str, Any]]:
    """The gates in their order, then whatever else has a result."""
    required: dict[str, tuple[str, Finding | None]] = {
        gate.name: (gate.required, FINDING_OF[gate.colour] if gate.colour else None)
        for gate in GATES
    }
    required[EVIDENCE_CHECK] = ("the evidence bears the certificate out", Finding.UNVERIFIED)
    for cell in cells:
        for check in cell.checks:
            if _is_result(check):
                required.setdefault(check.rule_name, (check.required, check.finding))
    return [_rule(name, text, finding) for name, (text, finding) in required.items()]


def _rule(name: str, required: str, finding: Finding | None) -> dict[str, Any]:
    text = f"{name}: {required}"
    cost = COST_OF[finding]
    return {
        "id": name,
        "name": name,
        "shortDescription": {"text": text},
        "fullDescription": {"text": f"Required: {required}. {cost}"},
        "help": {"text": f"{text}. {cost} `batch-invariance verify-cert` shows every gate."},
        "defaultConfiguration": {"level": "note" if finding is None else LEVEL_OF[finding]},
        "properties": {"tags": ["reproducibility"]},
    }


def _result(cell: CheckedCell, check: Check, rule_index: int) -> dict[str, Any]:
    line = cell.lines.get(check.name, 1)
    location: dict[str, Any] = {"uri": cell.uri}
    if ":" not in cell.uri.split("/")[0]:
        location["uriBaseId"] = SOURCE_ROOT
    result: dict[str, Any] = {
        "ruleId": check.rule_name,
        "ruleIndex": rule_index,
        "kind": "fail",
        "level": "note" if check.finding is None else LEVEL_OF[check.finding],
        "message": {"text": f"{cell.name}: {check.name}: {check.found}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": location,
                    "region": {
                        "startLine": line,
                        "startColumn": 1,
                        "endLine": line + 1,
                        "endColumn": 1,
                    },
                },
                "logicalLocations": [{"name": cell.name, "kind": "resource"}],
            }
        ],
        "partialFingerprints": _fingerprints(cell, check),
        "properties": dict(cell.properties),
    }
    if check.accepted:
        result["suppressions"] = [
            {"kind": "external", "status": "accepted", "justification": check.accepted}
        ]
    return result


def _fingerprints(cell: CheckedCell, check: Check) -> Mapping[str, str]:
    """The same for the same gate of the same cell in the same file, whatever was measured."""
    text = "\n".join((cell.name, cell.uri, check.name))
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return {FINGERPRINT: digest, "primaryLocationLineHash": f"{digest[:16]}:1"}
