"""`verify-cert`: derive a certificate again from its evidence; may it be promoted?"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from batch_invariance.cli.ci_output import (
    add_ci_options,
    ci_targets,
    verification_cell,
    write_ci_outputs,
)
from batch_invariance.cli.exit_codes import ExitCode
from batch_invariance.cli.style import Style
from batch_invariance.cli.summary import gate_lines
from batch_invariance.errors import BatchInvarianceError, UsageError
from batch_invariance.invariance_diff.model import Source
from batch_invariance.invariance_diff.verify import (
    Verification,
    evidence_name,
    parse_certificate,
    verify_certificate,
)
from batch_invariance.live_invariance.evidence_file import read_lines
from batch_invariance.live_invariance.text import printable

EXAMPLES = """examples:
  batch-invariance verify-cert certs/model__ctx8192__N4.json
  batch-invariance verify-cert --evidence elsewhere/e.jsonl cert.json

The evidence is looked for beside the certificate, under the name that it gives.
"""
NOT_LIVE = {
    Source.CANARY: "its source is canary: no run of a real cell",
    Source.MOCK: "its source is mock: no run of a real cell",
    Source.ENDPOINT: (
        "its source is endpoint: green for that server as it was found, never for a cell; ask "
        "cert_is_green with require_source=endpoint"
    ),
}
"""What a GREEN without a single reason is short of."""
MAX_CERT_BYTES = 1 << 30
MAX_PROBLEMS = 10


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the verb."""
    parser = commands.add_parser(
        "verify-cert",
        help="derive a certificate again from its evidence",
        description="Exits 0 only for a promotable certificate that its evidence bears out.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("certificate", type=Path, metavar="CERT")
    parser.add_argument("--evidence", type=Path, metavar="FILE", help="where the evidence is")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    add_ci_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, server_flags: Sequence[str]) -> int:
    """Carries the verb out and returns the exit code."""
    if server_flags:
        raise UsageError("verify-cert starts no server: nothing may follow --")
    data = _read(args.certificate)
    cert = parse_certificate(data)
    evidence = args.evidence or args.certificate.parent / evidence_name(cert)
    if not os.path.isfile(evidence):
        raise BatchInvarianceError(
            f"no evidence at {evidence}: without it a certificate can be shown, not verified"
        )
    targets = ci_targets(args, [args.certificate, evidence])
    targets.clear()
    began = time.monotonic()
    result = verify_certificate(data, read_lines(evidence))
    cell = verification_cell(args.certificate, data, result, time.monotonic() - began)
    write_ci_outputs(targets, [cell])
    code = _code(result)
    if args.json:
        print(json.dumps(_as_json(result, code)))
    else:
        print("\n".join(_lines(args.certificate, result, Style(sys.stdout))))
    return code


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_CERT_BYTES:
            raise UsageError(f"{path}: larger than {MAX_CERT_BYTES >> 20} MiB, no certificate")
        return path.read_bytes()
    except OSError as error:
        raise BatchInvarianceError(f"cannot read {path}: {error.strerror}") from error


def _code(result: Verification) -> ExitCode:
    if result.promotable:
        return ExitCode.PROMOTABLE
    return ExitCode.NOT_PROMOTED if result.borne_out else ExitCode.NO_VERDICT


def _lines(path: Path, result: Verification, style: Style) -> list[str]:
    derived = result.derived
    lines = []
    if result.promotable and derived is not None:
        lines.append(f"{style.verdict(derived.verdict, 'PROMOTABLE')}  {path}")
    elif result.borne_out and derived is not None:
        verdict = style.verdict(derived.verdict)
        lines.append(f"NOT PROMOTABLE  {path}: borne out by its evidence, {verdict}")
        lines += [f"  - {printable(reason)}" for reason in derived.decision_reasons]
        if not derived.decision_reasons:
            lines.append(f"  - {NOT_LIVE.get(derived.source, 'it is not promotable')}")
    else:
        lines.append(f"REFUSED  {path}: its evidence does not bear it out")
        lines += [f"  - {printable(problem)}" for problem in result.problems[:MAX_PROBLEMS]]
        if len(result.problems) > MAX_PROBLEMS:
            lines.append(f"  - and {len(result.problems) - MAX_PROBLEMS} more")
    if derived is not None:
        lines += gate_lines(derived.gates, style)
    return lines


def _as_json(result: Verification, code: ExitCode) -> dict[str, object]:
    derived = result.derived
    return {
        "promotable": result.promotable,
        "borne_out": result.borne_out,
        "problems": list(result.problems),
        "verdict": None if derived is None else derived.verdict.value,
        "source": None if derived is None else derived.source.value,
        "gates": {} if derived is None else {g.gate: g.outcome.value for g in derived.gates},
        "exit_code": int(code),
    }
