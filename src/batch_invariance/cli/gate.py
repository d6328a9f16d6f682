"""`gate`: do certificates fulfil a policy? One line per violation."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from batch_invariance.cli.cert_files import Found, VerifiedFile, find_certificates, verify_file
from batch_invariance.cli.ci_output import (
    add_ci_options,
    checked_cell,
    ci_targets,
    uri_of,
    write_ci_outputs,
)
from batch_invariance.cli.exit_codes import ExitCode
from batch_invariance.cli.sign_options import VERIFY_HELP, add_sign_option, sign_key
from batch_invariance.cli.style import Style
from batch_invariance.errors import BatchInvarianceError, FileFormatError, UsageError
from batch_invariance.invariance_diff.cell_checks import Check, CheckedCell, Finding, Mark
from batch_invariance.invariance_diff.model import Verdict
from batch_invariance.invariance_diff.policy import (
    Candidate,
    Judgement,
    Policy,
    Rule,
    Violation,
)
from batch_invariance.invariance_diff.policy_judge import asked_rules, judge
from batch_invariance.invariance_diff.policy_reading import read_policy
from batch_invariance.invariance_diff.strict_json import parse_json
from batch_invariance.live_invariance.bounded import read_at_most
from batch_invariance.live_invariance.text import printable
from batch_invariance.live_invariance.toml_text import parse_toml

EXAMPLES = """examples:
  batch-invariance gate certs --policy policy.toml
  batch-invariance gate certs/*.json --policy policy.json --junit gate.xml --sarif gate.sarif

Every certificate is first derived again from the evidence beside it. The policy is JSON or TOML,
by the end of its name. A folder is searched with all below it.
"""
ASKED = {
    Rule.EVIDENCE: "the evidence bears the certificate out",
    Rule.SIGNATURE: "signed with the key of --sign-key",
    Rule.REQUIRED: "there is a certificate for every required cell",
    Rule.FOREIGN: "the policy requires the cell",
    Rule.DUPLICATE: "one certificate for each cell, or for each of its runs",
    Rule.RUNS: "each cell run at least min_runs times",
    Rule.SOURCE: "an allowed source",
    Rule.VERDICT: "GREEN, or AMBER and accepted by name",
    Rule.AGE: "no older than max_age_days",
    Rule.MODEL: "a model among model_sha256",
    Rule.SERVER: "a server binary among server_sha256",
    Rule.CELL: "a cell among cell_sha256",
    Rule.BOUND: "a bound of at most max_prompt_rate_upper_bound_95",
    Rule.HORIZON: "at least min_horizon_tokens compared",
}
"""What the policy asks, in words."""
MAX_POLICY_BYTES = 1 << 20


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the verb."""
    parser = commands.add_parser(
        "gate",
        help="hold certificates against a policy",
        description="Exits 0 only where every certificate and every required cell fulfils it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", type=Path, nargs="+", metavar="DIR|CERT")
    parser.add_argument("--policy", type=Path, required=True, metavar="FILE", help="what is asked")
    add_sign_option(parser, VERIFY_HELP)
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    add_ci_options(parser)
    parser.set_defaults(run=run)


@dataclass(frozen=True, slots=True)
class _Gated:
    """What was judged, how long each file took (seconds), and what came of it."""

    policy_file: Path
    policy: Policy
    found: Found
    files: tuple[VerifiedFile, ...]
    seconds: tuple[float, ...]
    judgement: Judgement
    signed: bool
    """Whether signatures were asked for."""


def run(args: argparse.Namespace, server_flags: Sequence[str]) -> int:
    """Carries the verb out and returns the exit code."""
    if server_flags:
        raise UsageError("gate starts no server: nothing may follow --")
    key = sign_key(args)
    policy = load_policy(args.policy)
    found = find_certificates(args.paths)
    targets = ci_targets(args, [args.policy, *found.certificates])
    targets.clear()
    files, seconds = [], []
    for path in found.certificates:
        began = time.monotonic()
        files.append(verify_file(path, key=key))
        seconds.append(time.monotonic() - began)
    candidates = [Candidate(str(f.path), f.view, f.problems, f.signature_fault) for f in files]
    judgement = judge(policy, candidates, time.time())
    took = tuple(seconds)
    gated = _Gated(args.policy, policy, found, tuple(files), took, judgement, key is not None)
    lines = [_head(gated), *map(str, judgement.violations)]
    write_ci_outputs(targets, _checked(gated), lines)
    code = ExitCode.PROMOTABLE if judgement.passed else ExitCode.NOT_PROMOTED
    if args.json:
        print(json.dumps(_as_json(gated, code)))
    else:
        print("\n".join(_text(gated, Style(sys.stdout))))
    return code


def load_policy(path: Path) -> Policy:
    """The policy in a JSON or TOML file.

    Raises UsageError for another kind of file, BatchInvarianceError for one that cannot be read,
    FileFormatError with every fault of its content.
    """
    if path.suffix not in (".json", ".toml"):
        raise UsageError(f"--policy {path}: its name must end in .json or .toml")
    try:
        data = read_at_most(path, MAX_POLICY_BYTES)
    except OSError as error:
        raise BatchInvarianceError(f"--policy {path}: {error.strerror}") from error
    if data is None:
        raise FileFormatError(f"policy {path}", [f"is larger than {MAX_POLICY_BYTES >> 20} MiB"])
    return parse_policy(data, path.suffix == ".toml", f"policy {path}")


def parse_policy(data: bytes, is_toml: bool, what: str) -> Policy:
    """The policy in the bytes of a file that `what` names. Raises FileFormatError with every fault
    of its content."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileFormatError(what, [f"is not UTF-8: byte {error.start}"]) from None
    return read_policy(parse_toml(text, what) if is_toml else _parse_json(text, what), what)


def _parse_json(text: str, what: str) -> dict[str, object]:
    try:
        value = parse_json(text)
    except ValueError as error:
        raise FileFormatError(what, [f"is not JSON: {error}"[:200]]) from None
    if not isinstance(value, dict):
        raise FileFormatError(what, ["is not a JSON object"])
    return value


def _head(gated: _Gated) -> str:
    n = len(gated.judgement.violations)
    files = f"{len(gated.files)} certificate{'s' if len(gated.files) != 1 else ''}"
    if gated.judgement.passed:
        return f"PASSED  {gated.policy_file}: fulfilled by {files}"
    return f"FAILED  {gated.policy_file}: {n} violation{'s' if n != 1 else ''}, {files}"


def _text(gated: _Gated, style: Style) -> list[str]:
    good = gated.judgement.passed
    head = printable(_head(gated))
    word, _, rest = head.partition("  ")
    lines = [f"{style.verdict(Verdict.GREEN if good else Verdict.RED, word)}  {rest}"]
    lines += [f"  - {printable(str(violation))}" for violation in gated.judgement.violations]
    for file in gated.files:
        view = file.view
        if view is None or gated.judgement.of(str(file.path)):
            continue
        note = gated.judgement.accepted.get(str(file.path))
        said = f"{view.cell}, {note}" if note else str(view.cell)
        lines.append(f"  {style.verdict(view.verdict)}  {printable(said)}")
    lines += [f"  left out, no certificate: {printable(str(p))}" for p in gated.found.left_out]
    return lines


def _as_json(gated: _Gated, code: ExitCode) -> dict[str, object]:
    certificates = []
    for file in gated.files:
        view = file.view
        note = gated.judgement.accepted.get(str(file.path))
        certificates.append(
            {
                "file": str(file.path),
                "cell": None if view is None else str(view.cell),
                "verdict": view.verdict.value if view is not None and file.borne_out else None,
                "source": view.source.value if view is not None and file.borne_out else None,
                "accepted": None if note is None else str(note),
                "passed": not gated.judgement.of(str(file.path)),
            }
        )
    return {
        "passed": gated.judgement.passed,
        "violations": [
            {"rule": v.rule.value, "cell": v.cell, "file": v.file, "text": v.text}
            for v in gated.judgement.violations
        ],
        "certificates": certificates,
        "left_out": [str(path) for path in gated.found.left_out],
        "exit_code": int(code),
    }


def _checked(gated: _Gated) -> list[CheckedCell]:
    """A suite for the policy, with a check per required entry, then one per certificate."""
    cells = [_policy_suite(gated)]
    for file, seconds in zip(gated.files, gated.seconds, strict=True):
        name = str(file.path)
        note = gated.judgement.accepted.get(name)
        further: tuple[Check, ...] = ()
        if file.borne_out:
            further = _rule_checks(gated, gated.judgement.of(name))
        cells.append(checked_cell(file, seconds, None if note is None else str(note), further))
    return cells


def _policy_suite(gated: _Gated) -> CheckedCell:
    missing = {v.cell: v for v in gated.judgement.violations if v.rule is Rule.REQUIRED}
    checks = tuple(
        _rule_check(Rule.REQUIRED, missing.get(str(pattern)), f"required {pattern}")
        for pattern in gated.policy.required
    )
    path = gated.policy_file
    return CheckedCell(f"policy {path.name}", str(path), uri_of(path), checks)


def _rule_checks(gated: _Gated, violations: Sequence[Violation]) -> tuple[Check, ...]:
    by_rule = {violation.rule: violation for violation in violations}
    rules = asked_rules(gated.policy, gated.signed)
    if Rule.FOREIGN in by_rule:
        # No more than this was asked of it, and nothing else may show as fulfilled.
        asked = (Rule.FOREIGN, Rule.DUPLICATE, Rule.SIGNATURE)
        rules = tuple(rule for rule in rules if rule in asked)
    return tuple(_rule_check(rule, by_rule.get(rule)) for rule in rules)


def _rule_check(rule: Rule, violation: Violation | None, name: str = "") -> Check:
    rule_name = f"policy_{rule.value}"
    name = name or rule_name
    if violation is None:
        return Check(name, Mark.PASSED, "fulfilled", ASKED[rule], rule=rule_name)
    return Check(name, Mark.FAILED, violation.text, ASKED[rule], Finding.VIOLATION, rule=rule_name)
