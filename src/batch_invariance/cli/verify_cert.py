"""`verify-cert`: derive a certificate again from its evidence; may it be promoted?"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from batch_invariance.cli.cert_files import read_certificate
from batch_invariance.cli.ci_output import (
    add_ci_options,
    ci_targets,
    verification_cell,
    write_ci_outputs,
)
from batch_invariance.cli.exit_codes import ExitCode
from batch_invariance.cli.sign_options import VERIFY_HELP, add_sign_option, sign_key
from batch_invariance.cli.style import Style
from batch_invariance.cli.summary import gate_lines
from batch_invariance.errors import BatchInvarianceError, UsageError
from batch_invariance.invariance_diff.cell_checks import Check, CheckedCell, Finding, Mark
from batch_invariance.invariance_diff.model import Source
from batch_invariance.invariance_diff.verify import (
    Verification,
    evidence_name,
    parse_certificate,
    verify_parsed,
)
from batch_invariance.live_invariance.evidence_file import read_lines
from batch_invariance.live_invariance.signing import SignatureCheck, Signed, check_signature
from batch_invariance.live_invariance.text import printable

EXAMPLES = """examples:
  batch-invariance verify-cert certs/model__ctx8192__N4.json
  batch-invariance verify-cert --evidence elsewhere/e.jsonl cert.json
  batch-invariance verify-cert --sign-key hmac.key certs/model__ctx8192__N4.json

The evidence is looked for beside the certificate, under the name that it gives, and the signature
under the certificate's own name and .hmac.
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
MAX_PROBLEMS = 10


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the verb."""
    parser = commands.add_parser(
        "verify-cert",
        help="derive a certificate again from its evidence",
        description="Exits 0 only for a promotable certificate that its evidence bears out and, "
        "where a key is given, whose signature fits.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("certificate", type=Path, metavar="CERT")
    parser.add_argument("--evidence", type=Path, metavar="FILE", help="where the evidence is")
    add_sign_option(parser, VERIFY_HELP)
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    add_ci_options(parser)
    parser.set_defaults(run=run)


@dataclass(frozen=True, slots=True)
class _Checked:
    """A certificate file as its evidence and its signature leave it."""

    path: Path
    evidence: Verification
    signature: SignatureCheck

    @property
    def code(self) -> ExitCode:
        """What the verb ends with."""
        if not self.evidence.borne_out:
            return ExitCode.NO_VERDICT
        good = self.evidence.promotable and self.signature.holds
        return ExitCode.PROMOTABLE if good else ExitCode.NOT_PROMOTED


def run(args: argparse.Namespace, server_flags: Sequence[str]) -> int:
    """Carries the verb out and returns the exit code."""
    if server_flags:
        raise UsageError("verify-cert starts no server: nothing may follow --")
    key = sign_key(args)
    data = read_certificate(args.certificate)
    cert = parse_certificate(data)
    evidence = args.evidence or args.certificate.parent / evidence_name(cert)
    if not os.path.isfile(evidence):
        raise BatchInvarianceError(
            f"no evidence at {evidence}: without it a certificate can be shown, not verified"
        )
    targets = ci_targets(args, [args.certificate, evidence])
    targets.clear()
    began = time.monotonic()
    result = verify_parsed(cert, data, read_lines(evidence))
    checked = _Checked(args.certificate, result, check_signature(args.certificate, data, key))
    cell = verification_cell(args.certificate, data, result, time.monotonic() - began)
    write_ci_outputs(targets, [_with_signature(cell, checked.signature)])
    if args.json:
        print(json.dumps(_as_json(checked)))
    else:
        print("\n".join(_lines(checked, Style(sys.stdout))))
    return checked.code


def _with_signature(cell: CheckedCell, signature: SignatureCheck) -> CheckedCell:
    """The cell with a check of its signature, where a key asked for one."""
    if signature.signed in (Signed.NONE, Signed.NOT_CHECKED):
        return cell
    required = "signed with the key of --sign-key"
    if signature.holds:
        check = Check("signature", Mark.PASSED, signature.text, required)
    else:
        check = Check("signature", Mark.ERROR, signature.text, required, Finding.UNVERIFIED)
    return replace(cell, checks=(*cell.checks, check))


def _lines(checked: _Checked, style: Style) -> list[str]:
    path, result = printable(str(checked.path)), checked.evidence
    signature = checked.signature
    derived = result.derived
    lines = []
    if result.promotable and derived is not None:
        if signature.holds:
            lines.append(f"{style.verdict(derived.verdict, 'PROMOTABLE')}  {path}")
        else:
            lines.append(f"NOT PROMOTABLE  {path}: its evidence bears it out, its signature fails")
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
    if signature.text:
        lines.append(f"  - {printable(signature.text)}")
    if derived is not None:
        lines += gate_lines(derived.gates, style)
    return lines


def _as_json(checked: _Checked) -> dict[str, object]:
    result = checked.evidence
    derived = result.derived
    return {
        "promotable": checked.code is ExitCode.PROMOTABLE,
        "borne_out": result.borne_out,
        "problems": list(result.problems),
        "verdict": None if derived is None else derived.verdict.value,
        "source": None if derived is None else derived.source.value,
        "gates": {} if derived is None else {g.gate: g.outcome.value for g in derived.gates},
        "signature": checked.signature.signed.value,
        "exit_code": int(checked.code),
    }
