"""Verifying a certificate against its evidence, and the simple rules for a CI job."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import replace
from typing import Any

import pytest

from batch_invariance.errors import CertificateError
from batch_invariance.invariance_diff.certificate import Certificate
from batch_invariance.invariance_diff.digest import sha256_hex
from batch_invariance.invariance_diff.model import Arm, Source, Verdict
from batch_invariance.invariance_diff.rules import RULES_VERSION
from batch_invariance.invariance_diff.verify import (
    REQUIRED_FIELDS,
    cert_is_green,
    evidence_name,
    is_promotable,
    parse_certificate,
    verify_certificate,
)
from core_fixtures import (
    COLOURS,
    EVIDENCE_NAME,
    Ideal,
    Records,
    encode,
    in_arm,
    on_header,
    on_trials,
    recertify,
    with_result,
    with_scored,
)

RECORDS = Ideal([8] * 8).records()
LINES = encode(RECORDS)
CERTIFICATE = recertify(RECORDS)
DATA = CERTIFICATE.to_bytes()
RED_RECORDS = on_trials(in_arm(Arm.C, 0, 3), with_scored(score=0.5))(RECORDS)
RED_LINES = encode(RED_RECORDS)
RED_DATA = recertify(RED_RECORDS).to_bytes()


def _edited(data: bytes = DATA, /, **changes: object) -> bytes:
    return _written({**json.loads(data), **changes})


def _written(document: object) -> bytes:
    """As the tool itself would write it."""
    return json.dumps(document, sort_keys=True, indent=2).encode() + b"\n"


def _problems(data: bytes, lines: list[bytes] = LINES) -> tuple[str, ...]:
    verification = verify_certificate(data, lines)
    assert not verification.promotable or not verification.problems
    return verification.problems


def test_an_untouched_certificate_is_borne_out() -> None:
    verification = verify_certificate(DATA, iter(LINES))
    assert verification.problems == ()
    assert verification.borne_out
    assert verification.promotable
    assert verification.derived == CERTIFICATE


def test_a_red_certificate_is_borne_out_and_not_promotable() -> None:
    verification = verify_certificate(RED_DATA, RED_LINES)
    assert verification.borne_out
    assert not verification.promotable


@pytest.mark.parametrize("source", [Source.MOCK, Source.CANARY])
def test_a_green_that_is_not_live_is_not_promotable(source: Source) -> None:
    records = on_header(lambda h: replace(h, source=source))(RECORDS)
    certificate = recertify(records)
    assert certificate.verdict is Verdict.GREEN
    verification = verify_certificate(certificate.to_bytes(), encode(records))
    assert verification.borne_out
    assert not verification.promotable


def test_failed_edited_to_green_is_refused() -> None:
    data = _edited(
        RED_DATA,
        status="green",
        verdict="GREEN",
        promotable=True,
        decision_reasons=[],
        anomaly=None,
        divergence_class=None,
        gates=json.loads(DATA)["gates"],
    )
    assert cert_is_green(json.loads(data))
    assert is_promotable(json.loads(data))
    verification = verify_certificate(data, RED_LINES)
    assert not verification.borne_out
    assert not verification.promotable
    assert any(
        'status: says "green", the evidence gives "failed"' in p for p in verification.problems
    )


@pytest.mark.parametrize("field", sorted(json.loads(DATA)))
def test_every_edited_field_is_named(field: str) -> None:
    values: tuple[object, ...] = ("edited", None, 17, [], {"x": 1})
    for value in values:
        if field in ("rules_version", "evidence") or json.loads(DATA)[field] == value:
            continue
        problems = _problems(_edited(**{field: value}))
        assert [p.split(":")[0] for p in problems] == [field]
        assert not verify_certificate(_edited(**{field: value}), LINES).promotable


@pytest.mark.parametrize(
    "field", sorted(set(json.loads(DATA)) - {*REQUIRED_FIELDS, "evidence", "rules_version"})
)
def test_every_missing_field_is_named(field: str) -> None:
    document = json.loads(DATA)
    del document[field]
    (problem,) = _problems(_written(document))
    assert problem.startswith(f"{field}: missing, the evidence gives ")


@pytest.mark.parametrize("field", REQUIRED_FIELDS)
def test_without_a_required_field_it_is_no_certificate(field: str) -> None:
    document = json.loads(DATA)
    del document[field]
    with pytest.raises(CertificateError, match=f"lacks '{field}'"):
        verify_certificate(_written(document), LINES)


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [leaf for k, v in value.items() for leaf in _leaves(v, (*path, k))]
    if isinstance(value, list):
        return [leaf for i, v in enumerate(value) for leaf in _leaves(v, (*path, i))]
    return [path]


def test_an_edited_leaf_is_found() -> None:
    """Three hundred of them, drawn by a seed."""
    document = json.loads(DATA)
    for path in random.Random(9).sample(_leaves(document), 300):
        if path in (("rules_version",), ("evidence", "file")):
            continue
        changed = copy.deepcopy(document)
        place = changed
        for step in path[:-1]:
            place = place[step]
        old = place[path[-1]]
        place[path[-1]] = not old if isinstance(old, bool) else f"{old}x"
        problems = _problems(_written(changed))
        assert any(p.startswith(f"{path[0]}: ") for p in problems), path


@pytest.mark.parametrize(
    ("field", "same_in_python"), [("ctx", 512.0), ("promotable", 1), ("n_passes", 4.0)]
)
def test_an_edit_of_the_type_alone_is_found(field: str, same_in_python: object) -> None:
    assert json.loads(DATA)[field] == same_in_python
    (problem,) = _problems(_edited(**{field: same_in_python}))
    assert problem.startswith(f"{field}: says")


def test_an_added_field_is_named() -> None:
    assert _problems(_edited(note="promoted by hand")) == ("note: not a field of a certificate",)


def test_another_form_of_the_same_facts_is_refused() -> None:
    document = json.loads(DATA)
    for data in (
        json.dumps(document).encode(),
        DATA[:-1],
        DATA + b"\n",
        DATA.replace(b"  ", b"\t"),
    ):
        assert _problems(data) == ("the file is not in the form in which certificates are written",)


def test_a_long_value_is_cut_in_the_message() -> None:
    (problem,) = _problems(_edited(model="x" * 500))
    assert len(problem) < 200
    assert "..." in problem


def test_a_certificate_written_by_hand_is_refused() -> None:
    document: dict[str, object] = {"model": "toy", "ctx": 512, "dispatch_n": 4}
    document |= {"status": "green", "source": "live"}
    document["rules_version"] = RULES_VERSION
    verification = verify_certificate(
        _written({**document, "evidence": {"file": EVIDENCE_NAME}}), LINES
    )
    assert not verification.borne_out
    assert any(p.startswith("gates: missing") for p in verification.problems)
    with pytest.raises(CertificateError, match="names no evidence"):
        verify_certificate(_written(document), LINES)


# Evidence that is not the certificate's.


def test_swapped_evidence_is_found() -> None:
    other = on_trials(in_arm(Arm.A, 0, 1), with_result(reasoning="x"))(RECORDS)
    other = on_trials(
        lambda t: t.key.arm is not Arm.A and t.key.item == 1, with_result(reasoning="x")
    )(other)
    problems = _problems(DATA, encode(other))
    assert "evidence: its SHA-256 is not the one in the certificate" in problems
    assert "status" not in " ".join(problems)


def test_the_evidence_of_a_red_under_a_green_certificate() -> None:
    verification = verify_certificate(DATA, RED_LINES)
    assert verification.derived is not None
    assert verification.derived.verdict is Verdict.RED
    named = {p.split(":")[0] for p in verification.problems}
    assert {"evidence", "status", "verdict", "gates", "mismatch", "promotable"} <= named
    assert not verification.promotable


def test_a_forged_digest_of_the_evidence_is_found() -> None:
    document = json.loads(DATA)
    document["evidence"]["sha256"] = sha256_hex(b"x")
    problems = _problems(_written(document))
    assert problems[0] == "evidence: its SHA-256 is not the one in the certificate"


@pytest.mark.parametrize(
    "lines", [[], LINES[1:], [*LINES[:-1], LINES[-1][:-1]], [LINES[0], *LINES[2:]], [b"{}\n"]]
)
def test_broken_evidence_bears_nothing_out(lines: list[bytes]) -> None:
    verification = verify_certificate(DATA, lines)
    assert verification.derived is None
    assert not verification.borne_out
    assert not verification.promotable
    assert len(verification.problems) == 1


def test_evidence_without_its_last_line_gives_another_verdict() -> None:
    verification = verify_certificate(DATA, LINES[:-1])
    assert not verification.borne_out
    assert verification.derived is not None
    assert verification.derived.verdict is Verdict.UNVERIFIED


@pytest.mark.parametrize(
    "version", [0, RULES_VERSION - 1, RULES_VERSION + 1, str(RULES_VERSION), None, 1.5, [1]]
)
def test_unknown_rules_are_never_guessed_at(version: object) -> None:
    verification = verify_certificate(_edited(rules_version=version), LINES)
    assert verification.problems == (f"unknown rules: version {version!r}",)
    assert verification.derived is None
    assert not verification.promotable


def test_rules_version_must_be_the_number() -> None:
    for version in (True, float(RULES_VERSION)):
        assert not verify_certificate(_edited(rules_version=version), LINES).borne_out


def test_evidence_under_unknown_rules_bears_nothing_out() -> None:
    later = RULES_VERSION + 1
    lines = encode(on_header(lambda h: replace(h, rules_version=later))(RECORDS))
    verification = verify_certificate(DATA, lines)
    assert f"unknown rules: version {later}" in verification.problems[0]
    assert verification.derived is None


# Files that are no certificates.


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"green"',
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"status": NaN}',
        b'{"status": Infinity}',
        b'{"status":"failed","status":"green"}',
        b"{}",
        b"9" * 10_000,
    ],
)
def test_what_is_no_certificate(data: bytes) -> None:
    with pytest.raises(CertificateError) as caught:
        verify_certificate(data, LINES)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_key_given_twice_is_refused_anywhere() -> None:
    twice = DATA.replace(b'"status":', b'"status": "green", "status":', 1)
    nested = DATA.replace(b'"generalizes":', b'"generalizes": true, "generalizes":', 1)
    for data in (twice, nested):
        assert data != DATA
        with pytest.raises(CertificateError, match="twice"):
            parse_certificate(data)


def test_nesting_at_any_depth_is_refused_or_compared() -> None:
    for depth in (10, 100, 300, 500, 700, 850, 900, 950, 990, 1500, 5000):
        deep = b"[" * depth + b"]" * depth
        data = DATA.replace(b'"anomaly": null', b'"anomaly": ' + deep, 1)
        assert data != DATA
        try:
            assert not verify_certificate(data, LINES).borne_out
        except CertificateError:
            continue


def test_any_flipped_byte_is_found() -> None:
    rng = random.Random(3)
    for _ in range(200):
        at = rng.randrange(len(DATA))
        data = DATA[:at] + bytes([DATA[at] ^ (1 << rng.randrange(8))]) + DATA[at + 1 :]
        try:
            verification = verify_certificate(data, LINES)
        except CertificateError:
            continue
        name = json.loads(data).get("evidence", {}).get("file")
        # Another plain name is another file, which will not be there.
        assert not verification.borne_out or name != EVIDENCE_NAME


@pytest.mark.parametrize(
    "name",
    [
        "../x.jsonl", "/etc/passwd", "a/b", "a\\b", "..", ".", "", "x\0y", None, 7, [], {},
    ],
)  # fmt: skip
def test_a_name_that_would_leave_the_folder_is_refused(name: object) -> None:
    document = json.loads(DATA)
    document["evidence"]["file"] = name
    with pytest.raises(CertificateError):
        evidence_name(document)
    with pytest.raises(CertificateError):
        verify_certificate(_written(document), LINES)


@pytest.mark.parametrize("evidence", [None, "x", [], {}, {"name": "x"}])
def test_a_certificate_without_evidence_cannot_be_verified(evidence: object) -> None:
    with pytest.raises(CertificateError, match="shown, not verified"):
        verify_certificate(_edited(evidence=evidence), LINES)


def test_a_plain_name_is_taken() -> None:
    for name in ("x.jsonl", "...", "a b", ".hidden", "é"):
        assert evidence_name({"evidence": {"file": name}}) == name


# The simple rules.

GREEN: dict[str, object] = json.loads(DATA)


def _but(**changes: object) -> dict[str, object]:
    return {**GREEN, **changes}


def test_green_is_green() -> None:
    assert cert_is_green(GREEN)
    assert cert_is_green(GREEN, require_source="live")
    assert not cert_is_green(GREEN, require_source="endpoint")
    assert cert_is_green(_but(source="endpoint"), require_source="endpoint")
    assert not cert_is_green(_but(source="endpoint"))
    assert is_promotable(GREEN)


@pytest.mark.parametrize("source", ["mock", "canary", "", "LIVE", "any", None, 1, [], ["live"]])
def test_another_source_cannot_be_asked_for(source: Any) -> None:
    with pytest.raises(ValueError, match="require_source"):
        cert_is_green(GREEN, require_source=source)
    with pytest.raises(ValueError, match="require_source"):
        cert_is_green(None, require_source=source)


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "failed"},
        {"status": "green_with_caveat"},
        {"status": "green_unverified"},
        {"status": "GREEN"},
        {"status": "green "},
        {"status": None},
        {"status": True},
        {"status": ["green"]},
        {"source": "mock"},
        {"source": "canary"},
        {"source": "endpoint"},
        {"source": None},
        {"source": ["live"]},
        {"model": None},
        {"model": 1},
        {"ctx": "512"},
        {"ctx": None},
        {"ctx": True},
        {"ctx": 512.0},
        {"dispatch_n": None},
        {"dispatch_n": "4"},
        {"dispatch_n": True},
    ],
)
def test_what_is_not_literally_green_and_live(changes: dict[str, object]) -> None:
    assert not cert_is_green(_but(**changes))
    assert not is_promotable(_but(**changes))


@pytest.mark.parametrize("field", REQUIRED_FIELDS)
def test_absent_is_not_green(field: str) -> None:
    document = {k: v for k, v in GREEN.items() if k != field}
    assert not cert_is_green(document)
    assert not is_promotable(document)


@pytest.mark.parametrize("cert", [None, [], "green", 1, b"{}", {}, CERTIFICATE, [GREEN], object()])
def test_what_is_no_object_is_false(cert: object) -> None:
    assert not cert_is_green(cert)
    assert not is_promotable(cert)


def _gates(**outcomes: object) -> list[dict[str, object]]:
    return [{"gate": gate, "outcome": outcomes.get(gate, "PASS")} for gate in COLOURS]


def test_a_bare_table_of_passes_is_enough() -> None:
    assert is_promotable(_but(gates=_gates()))
    assert is_promotable(_but(gates=_gates(F4_logit_drift="NOT_APPLICABLE")))


@pytest.mark.parametrize("gate", COLOURS)
def test_a_gate_that_is_absent_or_did_not_pass_is_not_promotable(gate: str) -> None:
    assert not is_promotable(_but(gates=[g for g in _gates() if g["gate"] != gate]))
    for outcome in ("FAIL", "UNKNOWN", "NOT_APPLICABLE", "pass", "", None, True, ["PASS"]):
        allowed = outcome == "NOT_APPLICABLE" and gate == "F4_logit_drift"
        assert is_promotable(_but(gates=_gates(**{gate: outcome}))) is allowed


@pytest.mark.parametrize(
    "gates",
    [
        None,
        {},
        "PASS",
        [],
        [*_gates(), {"gate": "another", "outcome": "PASS"}],
        [*_gates(), {"gate": "lost", "outcome": "PASS"}],
        [*_gates(), {"gate": "lost", "outcome": "FAIL"}],
        [{"gate": "lost", "outcome": "FAIL"}, *_gates()],
        [*_gates()[:-1], {"gate": [], "outcome": "PASS"}],
        [*_gates()[:-1], {"gate": {}, "outcome": "PASS"}],
        [*_gates()[:-1], {"outcome": "PASS"}],
        [*_gates()[:-1], "sample"],
        [*_gates()[:-1], None],
    ],
)
def test_a_malformed_table_is_not_promotable(gates: object) -> None:
    assert cert_is_green(_but(gates=gates))
    assert not is_promotable(_but(gates=gates))


@pytest.mark.parametrize("tag", [None, "", "ab", ["abc_union"], "ABC_UNION"])
def test_another_producer_is_not_promotable(tag: object) -> None:
    assert not is_promotable(_but(gate=tag))


def test_without_its_tag_or_table_it_is_not_promotable() -> None:
    for field in ("gate", "gates"):
        assert not is_promotable({k: v for k, v in GREEN.items() if k != field})


def test_the_simple_rule_and_the_certificate_agree() -> None:
    def told(records: Records) -> Certificate:
        return recertify(records)

    for records in (
        RECORDS,
        RED_RECORDS,
        on_header(lambda h: replace(h, source=Source.MOCK))(RECORDS),
        on_trials(in_arm(Arm.C, 0, 2), with_result(cache_n=1))(RECORDS),
        on_trials(in_arm(Arm.B, 0, 2), with_result(text="x"))(RECORDS),
    ):
        certificate = told(records)
        assert is_promotable(json.loads(certificate.to_bytes())) is certificate.promotable


@pytest.mark.parametrize("field", ["model", "ctx", "dispatch_n", "status", "source"])
def test_a_certificate_without_a_required_field_is_none(field: str) -> None:
    document = json.loads(DATA)
    del document[field]
    with pytest.raises(CertificateError, match=f"lacks '{field}'"):
        parse_certificate(_written(document))
    assert not cert_is_green(document)


def test_what_a_reader_must_see_first_comes_first() -> None:
    edits: dict[str, object] = {"status": "failed", "verdict": "RED", "promotable": False}
    found = _problems(_edited(**edits, anomaly="odd", rows=[]))
    named = [problem.split(":")[0] for problem in found]
    assert named == ["promotable", "status", "verdict", "anomaly", "rows"]


def test_the_order_of_keys_is_form_and_no_figure() -> None:
    document = json.loads(DATA)
    document["evidence"] = dict(reversed(document["evidence"].items()))
    data = json.dumps(document, indent=2).encode() + b"\n"
    assert _problems(data) == ("the file is not in the form in which certificates are written",)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("x" * 58, '"' + "x" * 58 + '"'),
        ("x" * 59, '"' + "x" * 56 + "..."),
        ({"b": 1, "a": 2}, '{"a": 2, "b": 1}'),
    ],
)
def test_a_value_that_does_not_agree_is_shown_in_60_characters(value: object, shown: str) -> None:
    document = {**json.loads(DATA), "gate": value}
    data = json.dumps(document, indent=2).encode() + b"\n"
    (found,) = _problems(data)
    assert found.startswith(f"gate: says {shown}, the evidence gives ")
