"""Edits of a certificate or of its evidence, by hand or by a forger, and what finds them.

Short of a consistent rewrite of everything `verify-cert` finds every edit; against that only a
signature helps.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from batch_invariance.cli.main import main
from batch_invariance.errors import FileFormatError, UsageError
from batch_invariance.invariance_diff.certificate import certify
from batch_invariance.invariance_diff.model import Arm, Trial
from batch_invariance.invariance_diff.signature import Signature, SigningKey, parse_signature
from batch_invariance.invariance_diff.verify import verify_certificate
from batch_invariance.live_invariance.mock_answer import BatchDivergence, MockBehaviour
from batch_invariance.live_invariance.mock_launch import MockLauncher
from batch_invariance.live_invariance.produce import Conduct, Produced, produce, resume
from batch_invariance.live_invariance.recording import StopRules
from batch_invariance.live_invariance.resume import read_interrupted
from batch_invariance.live_invariance.signing import (
    read_key,
    set_aside_signed,
    signature_path,
    write_signature,
)
from batch_invariance.scorer_api import ExactMatch
from core_fixtures import count_tokens, decode, encode, in_arm, on_trials, recount, trial_of
from driver_fixtures import CTX, mock_header

KEY = bytes(range(40))
OTHER_KEY = bytes(range(1, 41))


class _Silent:
    def stage(self, text: str) -> None: ...

    def trial(self, trial: object, divergent: bool) -> None: ...

    def event(self, event: object) -> None: ...

    def note(self, text: str) -> None: ...


CONDUCT = Conduct(_Silent(), 60.0, StopRules())


def _launcher(kind: BatchDivergence = BatchDivergence.NONE) -> MockLauncher:
    return MockLauncher(CTX, MockBehaviour(kind, gather_s=0.005))


def _run(folder: Path, kind: BatchDivergence = BatchDivergence.NONE) -> Produced:
    """A run of the mock; as `live` it may be promoted, which no mock run can be by itself."""
    return produce(mock_header(), _launcher(kind), ExactMatch(), folder, CONDUCT)


@dataclass(frozen=True)
class Files:
    """A certificate and the lines of its evidence."""

    certificate: bytes
    lines: tuple[bytes, ...]
    evidence_name: str

    def lay_out(self, folder: Path, key: SigningKey | None = None, **changed: object) -> Path:
        """Writes both into a folder, changed or not, signed with a key or not, and returns the
        certificate's path."""
        files = replace(self, **changed)  # type: ignore[arg-type]
        certificate = folder / (files.evidence_name.removesuffix(".evidence.jsonl") + ".json")
        certificate.write_bytes(files.certificate)
        (folder / files.evidence_name).write_bytes(b"".join(files.lines))
        if key is not None:
            write_signature(certificate, files.certificate, key)
        return certificate

    def sampled(self) -> list[int]:
        """Positions of lines: the first of each kind, the last, and some more."""
        kinds = {json.loads(line)["kind"]: i for i, line in reversed([*enumerate(self.lines)])}
        more = random.Random(10).sample(range(len(self.lines)), 12)
        return sorted({*kinds.values(), *more, len(self.lines) - 1})


def _files(produced: Produced) -> Files:
    lines = tuple(produced.paths.evidence.read_bytes().splitlines(keepends=True))
    return Files(produced.paths.certificate.read_bytes(), lines, produced.paths.evidence.name)


@pytest.fixture(scope="module")
def green(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return _files(_run(tmp_path_factory.mktemp("green")))


@pytest.fixture(scope="module")
def red(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return _files(_run(tmp_path_factory.mktemp("red"), BatchDivergence.SCORE))


Capture = pytest.CaptureFixture[str]


def _verify(certificate: Path, capsys: Capture, *options: str) -> tuple[int, str]:
    code = main(["verify-cert", *options, str(certificate)])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def _problems(files: Files, lines: Sequence[bytes]) -> str:
    verification = verify_certificate(files.certificate, lines)
    assert not verification.promotable
    assert not verification.borne_out
    return "; ".join(verification.problems)


def _rechained(lines: Sequence[bytes]) -> tuple[bytes, ...]:
    """The lines as a forger would write them, who knows how the chain is made."""
    prev, out = "0" * 64, []
    for seq, line in enumerate(lines):
        row = {**json.loads(line), "seq": seq, "prev": prev}
        whole = json.dumps(row, sort_keys=True, separators=(",", ":")).encode()
        prev = hashlib.sha256(whole).hexdigest()
        out.append(whole + b"\n")
    return tuple(out)


def test_what_nobody_touched_is_promotable(green: Files, tmp_path: Path, capsys: Capture) -> None:
    code, said = _verify(green.lay_out(tmp_path), capsys)
    assert (code, "PROMOTABLE" in said) == (0, True)
    assert _rechained(green.lines) == green.lines


# The evidence, line by line.


def _leaves(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _leaves(inner, (*path, index))
    else:
        yield path


def _other(value: object) -> object:
    """Another value of the same type, so that no type check gives it away."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    return "x" if value is None else f"{value}x"


def _edited(line: bytes, rng: random.Random) -> bytes:
    """The line with one of its values changed, in the form in which the tool writes lines."""
    row = json.loads(line)
    path = rng.choice([p for p in _leaves(row) if p[0] not in ("seq", "prev")])
    place = row
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = _other(place[path[-1]])
    return json.dumps(row, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def test_an_edit_of_any_line_is_found_there_or_at_the_next(green: Files) -> None:
    rng = random.Random(11)
    last = len(green.lines) - 1
    for position in green.sampled():
        lines = list(green.lines)
        lines[position] = _edited(lines[position], rng)
        assert lines[position] != green.lines[position]
        said = _problems(green, lines)
        if position == last:
            assert "SHA-256" in said or f"line {last + 1}: " in said
        else:
            assert f"line {position + 1}: " in said or (
                f"line {position + 2}: breaks the chain: the line before it was changed" in said
            )


def test_an_edited_answer_is_found_at_the_next_line(
    green: Files, tmp_path: Path, capsys: Capture
) -> None:
    position = next(
        i
        for i, line in enumerate(green.lines)
        if b'"arm":"C"' in line and b'"kind":"trial"' in line
    )
    row = json.loads(green.lines[position])
    row["text"] = "what the server never said"
    lines = list(green.lines)
    lines[position] = json.dumps(row, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    code, said = _verify(green.lay_out(tmp_path, lines=tuple(lines)), capsys)
    assert code == 1
    assert f"line {position + 2}: breaks the chain: the line before it was changed" in said


def test_a_line_that_is_removed_repeated_or_moved_is_named(green: Files) -> None:
    lines, last = green.lines, len(green.lines) - 1
    for position in green.sampled()[1:-1]:
        without = [*lines[:position], *lines[position + 1 :]]
        repeated = [*lines[:position], lines[position], *lines[position:]]
        moved = [*lines[:position], lines[last], *lines[position:last]]
        assert f"line {position + 1}: is out of sequence" in _problems(green, without)
        assert f"line {position + 2}: is out of sequence" in _problems(green, repeated)
        assert f"line {position + 1}: is out of sequence" in _problems(green, moved)


def test_lines_that_are_renumbered_break_the_chain(green: Files) -> None:
    """A forger who repairs `seq` and not `prev`."""
    for position in (1, len(green.lines) // 2):
        kept = [*green.lines[:position], *green.lines[position + 1 :]]
        lines = []
        for seq, line in enumerate(kept):
            row = {**json.loads(line), "seq": seq}
            lines.append(json.dumps(row, sort_keys=True, separators=(",", ":")).encode() + b"\n")
        assert f"line {position + 1}: breaks the chain" in _problems(green, lines)


def test_a_file_that_was_cut_short_is_found(green: Files, tmp_path: Path, capsys: Capture) -> None:
    for n in green.sampled():
        said = _problems(green, green.lines[:n])
        assert "SHA-256" in said or "empty" in said
    cut = (*green.lines[:7], green.lines[7][:-9])
    code, said = _verify(green.lay_out(tmp_path, lines=cut), capsys)
    assert (code, "line 8: is cut short" in said) == (1, True)


def test_the_evidence_of_another_run_is_found(
    green: Files, red: Files, tmp_path: Path, capsys: Capture
) -> None:
    code, said = _verify(green.lay_out(tmp_path, lines=red.lines), capsys)
    assert code == 1
    assert "evidence: its SHA-256 is not the one in the certificate" in said
    assert 'status: says "green", the evidence gives "failed"' in said
    assert main(["verify-cert", "--evidence", str(tmp_path / "none"), str(tmp_path / "x")]) == 1


def test_an_edit_with_the_chain_made_right_again_does_not_fit_the_certificate(
    green: Files,
) -> None:
    """Whatever is edited, the digest in the certificate is that of the file it came from."""
    rng = random.Random(12)
    for position in green.sampled():
        lines = list(green.lines)
        lines[position] = _edited(lines[position], rng)
        said = _problems(green, _rechained(lines))
        assert re.search(r"SHA-256 is not the one|line \d+: ", said)


def test_a_line_taken_out_with_the_chain_made_right_again_does_not_fit(green: Files) -> None:
    for position in green.sampled()[1:]:
        lines = [*green.lines[:position], *green.lines[position + 1 :]]
        said = _problems(green, _rechained(lines))
        assert re.search(r"SHA-256 is not the one|line \d+: ", said)


# The certificate.


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("status", "green"),
        ("verdict", "GREEN"),
        ("promotable", True),
        ("source", "endpoint"),
        ("mismatch", []),
        ("decision_reasons", []),
        ("gates", []),
        ("ts_utc", "2020-01-01T00:00:00Z"),
        ("model", "another"),
        ("ctx", 1024),
    ],
)
def test_an_edited_certificate_is_refused_by_the_field(
    field: str, value: object, red: Files, tmp_path: Path, capsys: Capture
) -> None:
    document = {**json.loads(red.certificate), field: value}
    data = json.dumps(document, sort_keys=True, indent=2).encode() + b"\n"
    code, said = _verify(red.lay_out(tmp_path, certificate=data), capsys)
    assert (code, f"{field}: says" in said, "REFUSED" in said) == (1, True, True)


def test_a_figure_edited_in_any_field_is_found(green: Files) -> None:
    rng = random.Random(13)
    document = json.loads(green.certificate)
    for field, content in document.items():
        paths = [p for p in _leaves(content, (field,)) if p != ("evidence", "file")]
        if field == "rules_version" or not paths:
            continue
        changed = json.loads(green.certificate)
        *steps, last = rng.choice(paths)
        place = changed
        for step in steps:
            place = place[step]
        place[last] = _other(place[last])
        data = json.dumps(changed, sort_keys=True, indent=2).encode() + b"\n"
        verification = verify_certificate(data, green.lines)
        assert any(p.startswith(f"{field}: ") for p in verification.problems), (steps, last)


def test_another_certificate_over_the_same_evidence_is_refused(
    green: Files, red: Files, tmp_path: Path, capsys: Capture
) -> None:
    code, said = _verify(red.lay_out(tmp_path, certificate=green.certificate), capsys)
    assert (code, "REFUSED" in said) == (1, True)


# A consistent rewrite of the whole, and what a signature does about it.


def _forged(red: Files) -> Files:
    """The RED run told as a GREEN one: every answer under load is A's, no confirm trial was ever
    sent, the counters fit, and the certificate is made of that."""
    records = decode(red.lines)

    def as_a(trial: Trial) -> Trial:
        a = trial_of(records, in_arm(Arm.A, 0, trial.key.item))
        return replace(trial, result=a.result, scored=a.scored)

    def of_confirm(record: object) -> bool:
        arm = record.key.arm if isinstance(record, Trial) else getattr(record, "arm", None)
        return arm is Arm.CONFIRM

    def under_load(trial: Trial) -> bool:
        return trial.key.arm in (Arm.C, Arm.P) and not trial.perturbed

    told = on_trials(under_load, as_a)(records)
    told = count_tokens(recount(tuple(r for r in told if not of_confirm(r))))
    lines = tuple(encode(told))
    return Files(certify(lines, red.evidence_name).to_bytes(), lines, red.evidence_name)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    return _key_file(tmp_path / "key", KEY)


def _key_file(path: Path, key: bytes) -> Path:
    path.write_bytes(key)
    path.chmod(0o600)
    return path


def test_a_rewrite_of_the_whole_passes_without_a_key_and_fails_with_one(
    red: Files, tmp_path: Path, key_file: Path, capsys: Capture
) -> None:
    certificate = red.lay_out(tmp_path, read_key(key_file))
    with_key = ("--sign-key", str(key_file))
    assert _verify(certificate, capsys, *with_key)[0] == 3
    _forged(red).lay_out(tmp_path)
    code, said = _verify(certificate, capsys)
    assert code == 0
    assert "was not checked" in said
    code, said = _verify(certificate, capsys, *with_key)
    assert code == 3
    assert "does not fit: the certificate was changed after it was signed" in said


def test_a_signed_certificate_is_promotable_with_its_key(
    green: Files, tmp_path: Path, key_file: Path, capsys: Capture
) -> None:
    certificate = green.lay_out(tmp_path, read_key(key_file))
    code, said = _verify(certificate, capsys, "--sign-key", str(key_file))
    assert (code, f"signed with the key {SigningKey(KEY).id}" in said) == (0, True)
    code, said = _verify(certificate, capsys)
    assert code == 0
    assert f"the signature in {certificate.name}.hmac was not checked" in said
    main(["verify-cert", "--json", "--sign-key", str(key_file), str(certificate)])
    assert json.loads(capsys.readouterr().out)["signature"] == "fits"


def test_a_run_signs_what_it_wrote(tmp_path: Path, key_file: Path, capsys: Capture) -> None:
    """With the HMAC of the file's bytes, so that anybody with the key can check it elsewhere."""
    run = ["run-mock", "-q", "--passes", "2", "--parallel", "2", "--json"]
    assert main([*run, "--sign-key", str(key_file), "--out-dir", str(tmp_path)]) == 0
    report = json.loads(capsys.readouterr().out)
    certificate, signature = Path(report["certificate"]), Path(report["signature"])
    assert signature == certificate.with_name(certificate.name + ".hmac")
    document = json.loads(signature.read_bytes())
    expected = hmac.new(KEY, certificate.read_bytes(), hashlib.sha256).hexdigest()
    assert document["hmac"] == expected
    assert document["algorithm"] == "HMAC-SHA256"
    assert KEY not in signature.read_bytes()
    assert document["key_id"] != hashlib.sha256(KEY).hexdigest()[:16]
    code, said = _verify(certificate, capsys, "--sign-key", str(key_file))
    assert (code, "signed with the key" in said) == (3, True)


def test_a_run_that_goes_on_signs_what_it_wrote(
    green: Files, tmp_path: Path, key_file: Path, capsys: Capture
) -> None:
    """All but the end of the run was there; the certificate is that of the whole."""
    certificate = green.lay_out(tmp_path, lines=green.lines[:-3])
    certificate.unlink()
    evidence = tmp_path / green.evidence_name
    key = read_key(key_file)
    resume(
        read_interrupted(evidence), _launcher(), ExactMatch(), tmp_path, replace(CONDUCT, key=key)
    )
    assert _verify(certificate, capsys, "--sign-key", str(key_file))[0] == 0


def test_the_verbs_that_run_refuse_a_bad_key_before_anything_starts(
    tmp_path: Path, capsys: Capture
) -> None:
    key = str(_key_file(tmp_path / "key", b"short"))
    out = tmp_path / "out"
    for words in (
        ["run-mock", "--out-dir", str(out)],
        ["run-live", "--server-bin", "none", "--canary", "--out-dir", str(out)],
        ["resume", str(out / "e.jsonl")],
    ):
        assert main([*words, "--sign-key", key]) == 2
        assert "5 bytes, needs 32" in capsys.readouterr().err
    assert not out.exists()


def test_no_report_is_written_over_a_key_or_a_signature(
    green: Files, tmp_path: Path, key_file: Path, capsys: Capture
) -> None:
    certificate = green.lay_out(tmp_path, read_key(key_file))
    signature = signature_path(certificate)
    for file in (key_file, signature):
        before = file.read_bytes()
        with_key = ("--sign-key", str(key_file), "--junit", str(file))
        assert _verify(certificate, capsys, *with_key)[0] == 2
        assert file.read_bytes() == before


# The policy.


def _gate(folder: Path, capsys: Capture, *options: str) -> tuple[int, str]:
    policy = folder / "policy.toml"
    policy.write_text('version = 1\nrequired = ["toy/512/4"]\n')
    code = main(["gate", str(folder), "--policy", str(policy), *options])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_the_gate_asks_for_signatures_where_it_has_a_key(
    green: Files, tmp_path: Path, key_file: Path, capsys: Capture
) -> None:
    folder = tmp_path / "certs"
    folder.mkdir()
    report = tmp_path / "gate.xml"
    with_key = ("--sign-key", str(key_file), "--junit", str(report))
    certificate = green.lay_out(folder)
    assert _gate(folder, capsys)[0] == 0
    code, said = _gate(folder, capsys, *with_key)
    assert code == 3
    assert "toy/512/4: signature: it is not signed" in said
    assert "it is not signed" in report.read_text("utf-8")
    write_signature(certificate, green.certificate, SigningKey(OTHER_KEY))
    code, said = _gate(folder, capsys, *with_key)
    assert (code, "names another key" in said) == (3, True)
    write_signature(certificate, green.certificate, SigningKey(KEY))
    assert _gate(folder, capsys, *with_key)[0] == 0
    assert 'name="policy_signature"' in report.read_text("utf-8")


def _strip(signature: Path) -> None:
    signature.unlink()


def _not_json(signature: Path) -> None:
    signature.write_bytes(b"signed, honestly")


def _another_key(signature: Path) -> None:
    data = signature.with_suffix("").read_bytes()
    signature.write_bytes(SigningKey(OTHER_KEY).sign(data).to_bytes())


def _another_key_under_this_name(signature: Path) -> None:
    data = signature.with_suffix("").read_bytes()
    made = SigningKey(OTHER_KEY).sign(data)
    signature.write_bytes(Signature(SigningKey(KEY).id, made.hmac).to_bytes())


def _of_another_file(signature: Path) -> None:
    signature.write_bytes(SigningKey(KEY).sign(b"another certificate").to_bytes())


def _a_folder(signature: Path) -> None:
    signature.unlink()
    signature.mkdir()


def _too_long(signature: Path) -> None:
    signature.write_bytes(signature.read_bytes() + b" " * 10_000)


@pytest.mark.parametrize(
    ("change", "says", "word"),
    [
        (_strip, "it is not signed: there is no", "absent"),
        (_not_json, "signature: is not JSON", "unreadable"),
        (_another_key, "names another key", "does_not_fit"),
        (_another_key_under_this_name, "does not fit", "does_not_fit"),
        (_of_another_file, "does not fit", "does_not_fit"),
        (_a_folder, "cannot read", "unreadable"),
        (_too_long, "signature: is larger than", "unreadable"),
    ],
)
def test_a_signature_that_is_missing_or_wrong_bars_promotion(
    change: Callable[[Path], None],
    says: str,
    word: str,
    green: Files,
    tmp_path: Path,
    key_file: Path,
    capsys: Capture,
) -> None:
    certificate = green.lay_out(tmp_path, read_key(key_file))
    change(signature_path(certificate))
    report = tmp_path / "report.xml"
    with_key = ("--sign-key", str(key_file), "--junit", str(report))
    code, said = _verify(certificate, capsys, *with_key)
    assert (code, "NOT PROMOTABLE" in said) == (3, True)
    assert says in said
    assert 'name="signature"' in report.read_text("utf-8")
    assert says in report.read_text("utf-8")
    main(["verify-cert", "--json", *with_key[:2], str(certificate)])
    document = json.loads(capsys.readouterr().out)
    assert (document["signature"], document["promotable"]) == (word, False)
    assert (document["borne_out"], document["exit_code"]) == (True, 3)


def test_a_signature_does_not_make_up_for_evidence(
    green: Files, tmp_path: Path, key_file: Path, capsys: Capture
) -> None:
    certificate = green.lay_out(tmp_path, read_key(key_file), lines=green.lines[:-1])
    code, said = _verify(certificate, capsys, "--sign-key", str(key_file))
    assert (code, "REFUSED" in said) == (1, True)


def test_without_a_key_and_a_signature_nothing_is_said_of_either(
    green: Files, tmp_path: Path, capsys: Capture
) -> None:
    certificate = green.lay_out(tmp_path)
    assert "signature" not in _verify(certificate, capsys)[1]
    main(["verify-cert", "--json", str(certificate)])
    assert json.loads(capsys.readouterr().out)["signature"] == "none"


# Older files.


def test_an_older_signature_goes_with_its_certificate(
    green: Files, red: Files, tmp_path: Path, key_file: Path
) -> None:
    key = read_key(key_file)
    red.lay_out(tmp_path, key)
    set_aside_signed(green.lay_out(tmp_path, key))
    previous = tmp_path / "toy__ctx512__N4.previous.json"
    assert previous.read_bytes() == green.certificate
    assert key.fits(parse_signature(signature_path(previous).read_bytes()), green.certificate)
    moved = set_aside_signed(red.lay_out(tmp_path, key), [tmp_path / red.evidence_name])
    evidence = tmp_path / "toy__ctx512__N4.previous.evidence.jsonl"
    assert moved == (previous, signature_path(previous), evidence)
    assert key.fits(parse_signature(signature_path(previous).read_bytes()), red.certificate)


def test_a_signature_never_stays_beside_another_certificate(
    green: Files, red: Files, tmp_path: Path, key_file: Path
) -> None:
    certificate = green.lay_out(tmp_path, read_key(key_file))
    set_aside_signed(certificate)
    previous = tmp_path / "toy__ctx512__N4.previous.json"
    assert not signature_path(certificate).exists()
    assert signature_path(previous).exists()
    set_aside_signed(red.lay_out(tmp_path))
    assert previous.read_bytes() == red.certificate
    assert not signature_path(previous).exists()


def test_a_run_without_a_key_leaves_no_older_signature(tmp_path: Path) -> None:
    certificate = tmp_path / "toy__ctx512__N4.json"
    write_signature(certificate, b"older", SigningKey(KEY))
    assert _run(tmp_path).paths.certificate == certificate
    assert not signature_path(certificate).exists()


# Keys.


@pytest.mark.parametrize(
    ("data", "mode", "says"),
    [
        (KEY[:31], 0o600, "31 bytes, needs 32"),
        (b"", 0o600, "0 bytes, needs 32"),
        (b"k" * 70_000, 0o600, "larger than 64 KiB"),
        (KEY, 0o644, "everybody can read or replace it"),
        (KEY, 0o604, "everybody can read or replace it"),
    ],
)
def test_a_file_that_is_no_key_is_refused_before_anything_starts(
    data: bytes, mode: int, says: str, green: Files, tmp_path: Path, capsys: Capture
) -> None:
    path = _key_file(tmp_path / "key", data)
    path.chmod(mode)
    code, said = _verify(green.lay_out(tmp_path), capsys, "--sign-key", str(path))
    assert code == 2
    assert says in said
    assert said.count("\n") == 1


def test_a_key_that_is_not_there_is_refused(green: Files, tmp_path: Path, capsys: Capture) -> None:
    certificate = green.lay_out(tmp_path)
    for path in (tmp_path / "none", tmp_path):
        assert _verify(certificate, capsys, "--sign-key", str(path))[0] == 2


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o640])
def test_a_key_of_its_owner_or_its_group_is_taken(mode: int, tmp_path: Path) -> None:
    path = _key_file(tmp_path / "key", KEY)
    path.chmod(mode)
    assert read_key(path) == SigningKey(KEY)


def test_a_key_from_a_pipe_is_taken() -> None:
    """As `--sign-key <(command)` gives it."""
    reading, writing = os.pipe()
    os.write(writing, KEY)
    os.close(writing)
    try:
        assert read_key(Path(f"/dev/fd/{reading}")) == SigningKey(KEY)
    finally:
        os.close(reading)


def test_a_key_never_shows() -> None:
    assert "secret" not in repr(SigningKey(KEY))
    assert repr(KEY)[2:10] not in repr(SigningKey(KEY))
    with pytest.raises(UsageError, match="31 bytes"):
        SigningKey(KEY[:31])


@pytest.mark.parametrize("key", [KEY, bytes(32), KEY * 10])
def test_a_signature_comes_back_from_its_file(key: bytes) -> None:
    made = SigningKey(key).sign(b"certificate")
    assert parse_signature(made.to_bytes()) == made
    assert SigningKey(key).fits(made, b"certificate")
    assert not SigningKey(key).fits(made, b"certificate ")
    assert not SigningKey(OTHER_KEY).fits(made, b"certificate")


GOOD = json.loads(SigningKey(KEY).sign(b"x").to_bytes())


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {**GOOD, "extra": 1},
        {k: v for k, v in GOOD.items() if k != "hmac"},
        *(
            {**GOOD, name: value}
            for name in GOOD
            for value in (
                None,
                "",
                1,
                [],
                {},
                "\x1b[31m",
                GOOD[name] + "0",
                GOOD[name].upper() + "A",
            )
        ),
    ],
)
def test_what_is_no_signature_is_refused(document: object) -> None:
    with pytest.raises(FileFormatError) as caught:
        parse_signature(json.dumps(document).encode())
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"\xff", b"{", b"[" * 100_000, b'{"hmac":' * 9_000])
def test_bytes_that_are_no_signature_are_refused(data: bytes) -> None:
    with pytest.raises(FileFormatError, match="signature: is not JSON"):
        parse_signature(data)
