"""Gate on a certificate: `python gate.py certs/model__ctx8192__N4.json`.

Ends with 0 for a live green certificate that its evidence bears out, with 1 for any other.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from batch_invariance import cert_is_green, verify_certificate
from batch_invariance.errors import BatchInvarianceError


def gate(certificate: Path, evidence: Path) -> list[str]:
    """Why the certificate does not pass; empty when it does."""
    data = certificate.read_bytes()
    # 1. The file says what its evidence says. cert_is_green alone would trust the file.
    try:
        with evidence.open("rb") as lines:
            result = verify_certificate(data, lines)
    except (BatchInvarianceError, OSError) as error:
        return [str(error)]
    if not result.borne_out:
        return list(result.problems)
    # 2. What it says is green, and of a live run.
    if not cert_is_green(json.loads(data)):
        return list(result.derived.decision_reasons if result.derived else ()) or ["not live green"]
    return []


def main() -> int:
    """The exit status for the certificate named on the command line."""
    certificate = Path(sys.argv[1])
    reasons = gate(certificate, certificate.with_suffix(".evidence.jsonl"))
    for reason in reasons:
        print(f"{certificate}: {reason}", file=sys.stderr)
    return 1 if reasons else 0


if __name__ == "__main__":
    sys.exit(main())
