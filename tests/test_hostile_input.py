"""Files and names that somebody made in order to break or to fool the tool, case by case.

What chance finds is in test_fuzz; each case here is one that was thought of.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batch_invariance.cli.gate import parse_policy
from batch_invariance.cli.main import main
from batch_invariance.errors import (
    BatchInvarianceError,
    CertificateError,
    EvidenceError,
    FileFormatError,
    GgufError,
    RegistryError,
    ScheduleError,
    WorkSetError,
)
from batch_invariance.formats.dsse import parse_envelope
from batch_invariance.formats.gguf import parse_header
from batch_invariance.formats.intoto import parse_statement
from batch_invariance.invariance_diff.cert_reading import CellName
from batch_invariance.invariance_diff.certificate import certify
from batch_invariance.invariance_diff.evidence import EvidenceReader
from batch_invariance.invariance_diff.model import FailureKind, Source
from batch_invariance.invariance_diff.policy import CellPattern
from batch_invariance.invariance_diff.records import Footer, LifetimeStart
from batch_invariance.invariance_diff.response import parse_response
from batch_invariance.invariance_diff.schedule_file import parse_schedule
from batch_invariance.invariance_diff.signature import parse_signature
from batch_invariance.invariance_diff.strict_json import parse_json
from batch_invariance.invariance_diff.verify import evidence_name, parse_certificate
from batch_invariance.invariance_diff.workset import parse_workset
from batch_invariance.invariance_diff.workset_import import ImportFormat, import_workset
from batch_invariance.live_invariance import bounded, evidence_file
from batch_invariance.live_invariance.bounded import read_at_most
from batch_invariance.live_invariance.evidence_file import read_lines
from batch_invariance.live_invariance.registry_file import RegistryFile, parse_registry
from batch_invariance.live_invariance.store import CellLock, cell_paths, open_evidence
from core_fixtures import EVIDENCE_NAME, Ideal, Records, encode, on_cell, on_header, on_kind
from fuzz import good
from gguf_builder import BASE, model, text

Capture = pytest.CaptureFixture[str]
Parse = Callable[[bytes], object]


def _policy(data: bytes) -> object:
    return parse_policy(data, False, "policy")


def _evidence(data: bytes) -> object:
    return list(EvidenceReader([data + b"\n"]))


def _registry(data: bytes) -> object:
    return parse_registry(RegistryFile("m.toml", None, data))


JSON_PARSERS: list[tuple[Parse, type[BatchInvarianceError]]] = [
    (parse_certificate, CertificateError),
    (_evidence, EvidenceError),
    (lambda data: parse_workset(data, "w.json"), WorkSetError),
    (lambda data: import_workset(data, "w", ImportFormat.LM_EVAL), WorkSetError),
    (lambda data: parse_schedule(data, "s.json"), ScheduleError),
    (_policy, FileFormatError),
    (parse_envelope, FileFormatError),
    (parse_statement, FileFormatError),
    (parse_signature, FileFormatError),
]
IDS = [
    "certificate", "evidence", "workset", "import", "schedule",
    "policy", "envelope", "statement", "signature",
]  # fmt: skip
BOMBS = [
    b"[" * 1_000_000,
    b'{"a":' * 300_000 + b"1" + b"}" * 300_000,
    b'[{"a":' * 990 + b"1" + b"}]" * 990,
    b"9" * 1_000_000,
    b'{"a": -' + b"9" * 400_000 + b"}",
    b"1e" + b"9" * 100_000,
    b'"' + b"\\ud800" * 50_000,
    b"\x00" * 1_000_000,
    b"\xef\xbb\xbf" * 1000,
    json.dumps({"a": 1}).encode("utf-16"),
]


@pytest.mark.parametrize(("parse", "error"), JSON_PARSERS, ids=IDS)
def test_a_bomb_is_one_short_line_at_once(parse: Parse, error: type[Exception]) -> None:
    for data in BOMBS:
        began = time.process_time()
        with pytest.raises(error) as caught:
            parse(data)
        assert time.process_time() - began < 2.0
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"9" * 21])
@pytest.mark.parametrize(("parse", "error"), JSON_PARSERS, ids=IDS)
def test_numbers_that_are_none_are_refused(
    parse: Parse, error: type[Exception], number: bytes
) -> None:
    with pytest.raises(error):
        parse(b'{"version": 1, "schema": "schedule/1", "x": ' + number + b"}")


STRICT = ("certificate", "schedule", "policy", "envelope", "statement", "signature")


def _good(kind: str) -> bytes:
    values = {
        "certificate": good.certificates()[0],
        "schedule": good.SCHEDULES[0],
        "policy": good.POLICIES[0],
        "envelope": good.envelopes()[0],
        "statement": good.STATEMENTS[0],
        "signature": good.signatures()[0],
    }
    return json.dumps(values[kind]).encode()


@pytest.mark.parametrize("kind", STRICT)
def test_a_key_given_twice_is_refused_and_not_chosen_from(kind: str) -> None:
    parse, error = JSON_PARSERS[IDS.index(kind)]
    data = _good(kind)
    parse(data)
    first = next(iter(json.loads(data)))
    again = json.dumps(json.loads(data)[first])
    with pytest.raises(error):
        parse(data[:-1] + f', "{first}": {again}}}'.encode())


def test_a_key_given_twice_in_evidence_is_refused_at_its_line() -> None:
    lines = encode(Ideal([2, 1], n=2, passes=1).records())
    line = next(i for i, text in enumerate(lines) if b'"kind":"trial"' in text)
    lines[line] = lines[line].replace(b'"text":', b'"text":"another","text":', 1)
    with pytest.raises(EvidenceError, match=rf"line {line + 1}: .*key twice"):
        certify(lines, EVIDENCE_NAME)


def test_nesting_is_refused_at_any_depth_that_no_file_has() -> None:
    for depth in (0, 1, 64):
        parse_json("[" * depth + "1" + "]" * depth)
    for depth in (65, 500, 900, 980, 990, 1000, 5000, 100_000):
        for begin, end in (("[", "]"), ('{"a":', "}")):
            with pytest.raises(ValueError, match="nested too deeply"):
                parse_json(begin * depth + "1" + end * depth)


# What evidence says of numbers, and what is made of them.


def _last_footer(records: Records, **changes: Any) -> Records:
    return on_kind(Footer, lambda r: replace(r, **changes))(records)


@pytest.mark.parametrize(
    "change",
    [
        on_cell(ctx=-512),
        on_cell(ctx=0),
        on_cell(dispatch_n=10**19),
        on_cell(n_ubatch=-1),
        lambda records: _last_footer(records, ts=1e300),
    ],
)
def test_figures_that_no_run_has_are_refused(change: Callable[[Records], Records]) -> None:
    records = change(Ideal([2, 1], n=2, passes=1).records())
    with pytest.raises(EvidenceError):
        certify(encode(records), EVIDENCE_NAME)


# Servers.


@pytest.mark.parametrize(
    "body",
    [
        b"\xed\xa0\x80",
        json.dumps({"choices": []}).encode("utf-16"),
        b'{"choices": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"choices": [' + b"9" * 5000 + b"]}",
    ],
)
def test_an_answer_that_is_no_json_in_utf_8_is_a_lost_trial(body: bytes) -> None:
    result = parse_response(200, body, 8)
    assert getattr(result, "kind", None) in (FailureKind.BAD_JSON, FailureKind.BAD_SHAPE)


# GGUF.


@pytest.mark.parametrize("claimed", [1 << 30, (1 << 30) + 1, 1 << 40, (1 << 64) - 1])
def test_a_length_of_a_gigabyte_and_more_is_refused_unread(claimed: int) -> None:
    name = struct.pack("<Q", claimed) + b"general"
    value = text("general.name") + struct.pack("<IQ", 8, claimed)
    strings = text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, claimed)
    for key in (name, value, strings):
        with pytest.raises(GgufError) as caught:
            parse_header(model(*BASE, key))
        assert len(str(caught.value)) < 300


def test_a_name_in_a_model_file_is_shown_short_and_escaped() -> None:
    for name in ("\x1b[2J\n" * 3000, "a" * 60_000):
        key = text(name) + struct.pack("<I", 99)
        with pytest.raises(GgufError) as caught:
            parse_header(model(*BASE, key))
        said = str(caught.value)
        assert "\x1b" not in said
        assert "\n" not in said
        assert len(said) < 700


# Patterns of a policy.


def test_a_pattern_of_many_stars_is_matched_in_no_time() -> None:
    pattern = CellPattern("*a" * 60 + "*b", "*", "*")
    began = time.process_time()
    assert not pattern.matches(CellName("a" * 3000, 512, 4))
    assert pattern.matches(CellName("a" * 3000 + "b", 512, 4))
    assert time.process_time() - began < 2.0


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("*", "", True),
        ("", "", True),
        ("?", "", False),
        ("a*", "a", True),
        ("*a", "ba", True),
        ("a*c", "abcbc", True),
        ("a*c", "abcb", False),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("*.?", "m.1", True),
        ("a.c", "abc", False),
        ("[a]", "a", False),
        ("a*", "a\nb", True),
        ("?", "*", True),
        ("a", "*", False),
        ("**b**", "abc", True),
    ],
)
def test_what_a_pattern_fits(pattern: str, name: str, fits: bool) -> None:
    assert CellPattern(pattern, "*", "*").matches(CellName(name, 512, 4)) is fits


# Names that leave their folder.


@pytest.mark.parametrize(
    "name", ["../../x", "/etc/passwd", "..", ".", "a/../../b", "a\\..\\b", "\0", "\x1b[2J", "-rf"]
)
def test_the_files_of_a_cell_stay_in_their_folder(name: str, tmp_path: Path) -> None:
    paths = cell_paths(tmp_path, name, 512, 4)
    for path in (paths.certificate, paths.evidence, CellLock(paths).path):
        assert path.parent == tmp_path
        assert path.name.isprintable()
        assert not set(path.name) & set("/\\\0")
        assert path.name not in (".", "..")


@pytest.mark.parametrize(
    "alias", ["../x", "a/b", "..", ".hidden", "a..b", "", "a\n", "-x", "a\x1b"]
)
def test_a_model_of_a_registry_cannot_be_called_by_a_path(alias: str) -> None:
    table = f'[models.{json.dumps(alias)}]\ngguf = "/m.gguf"\n'
    with pytest.raises(RegistryError) as caught:
        _registry(table.encode())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["../e.jsonl", "/etc/passwd", "a\\b", "..", ".", "", "a\0b", "x\nPROMOTABLE  c.json", "\x1b[2J",
     "\ud800", None, 7, ["e"]],
)  # fmt: skip
def test_a_certificate_names_no_evidence_outside_its_folder(name: object) -> None:
    with pytest.raises(CertificateError) as caught:
        evidence_name({"evidence": {"file": name}})
    assert "\n" not in str(caught.value)


def test_evidence_that_names_another_model_writes_nothing_elsewhere(
    tmp_path: Path, capsys: Capture
) -> None:
    """Resuming goes by the name of the cell, which the file itself states."""
    folder = tmp_path / "certs"
    folder.mkdir()
    records = on_cell(model="../../escaped")(Ideal([2, 1], n=2, passes=1).records())
    evidence = folder / "x.evidence.jsonl"
    evidence.write_bytes(b"".join(encode(records[:4])))
    assert main(["resume", str(evidence)]) == 2
    assert "rename it first" in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["certs", "x.evidence.jsonl"]


def test_evidence_without_a_model_on_its_command_line_asks_for_one(
    tmp_path: Path, capsys: Capture
) -> None:
    for argv in (("sh", "--model"), ("sh",)):
        changed = on_kind(LifetimeStart, lambda r, argv=argv: replace(r, argv=argv))
        records = changed(Ideal([2, 1], n=2, passes=1).records())
        paths = cell_paths(tmp_path, "toy", 512, 2)
        paths.evidence.write_bytes(b"".join(encode(records[:4])))
        assert main(["resume", str(paths.evidence)]) == 2
        assert "--model: needed" in capsys.readouterr().err


# Links, pipes, devices.


@contextmanager
def _promptly() -> Iterator[None]:
    """Waiting for a pipe that nobody writes to fails."""

    def stop(*_: object) -> None:
        raise AssertionError("still waiting")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(20)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate and its evidence."""
    records = Ideal([2, 1], n=2, passes=1).records()
    lines = encode(records)
    paths = cell_paths(tmp_path, "toy", 512, 2)
    paths.evidence.write_bytes(b"".join(lines))
    paths.certificate.write_bytes(certify(lines, paths.evidence.name).to_bytes())
    return paths.certificate, paths.evidence


def test_links_to_both_files_are_followed(
    pair: tuple[Path, Path], tmp_path: Path, capsys: Capture
) -> None:
    certificate, evidence = pair
    folder = tmp_path / "links"
    folder.mkdir()
    for file in pair:
        (folder / file.name).symlink_to(file)
    assert main(["verify-cert", str(folder / certificate.name)]) == 3
    assert "borne out" in capsys.readouterr().out
    evidence.unlink()
    assert main(["verify-cert", str(folder / certificate.name)]) == 1
    assert "no evidence at" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["pipe", "device", "folder", "loop", "nothing"])
def test_evidence_that_is_no_regular_file_is_refused_without_waiting(
    what: str, pair: tuple[Path, Path], capsys: Capture
) -> None:
    certificate, evidence = pair
    evidence.unlink()
    _odd_file(evidence, what)
    with _promptly():
        assert main(["verify-cert", str(certificate)]) == 1
        assert "no evidence at" in capsys.readouterr().err
        with pytest.raises(BatchInvarianceError, match="cannot read the evidence"):
            list(read_lines(evidence))
        assert main(["resume", str(evidence)]) == 1
        capsys.readouterr()


def _odd_file(path: Path, what: str) -> None:
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        path.symlink_to({"device": "/dev/zero", "loop": path.name, "nothing": "nowhere"}[what])


@pytest.mark.parametrize("what", ["pipe", "device", "folder", "loop", "nothing"])
def test_a_certificate_that_is_no_regular_file_is_refused_in_bounded_memory(
    what: str, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "certs" / "c.json"
    path.parent.mkdir()
    _odd_file(path, what)
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps(good.POLICIES[1]))
    with _promptly():
        if what != "pipe":
            assert main(["verify-cert", str(path)]) == 1
        assert main(["gate", str(path.parent), "--policy", str(policy)]) == 3
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err


def test_what_has_no_end_is_read_up_to_a_limit(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "MAX_INPUT_BYTES", 1 << 20)
    monkeypatch.setattr("batch_invariance.cli.run_options.MAX_INPUT_BYTES", 1 << 20)
    assert main(["run-mock", "--workset", "/dev/zero", "--out-dir", str(tmp_path / "o")]) == 2
    assert "/dev/zero: larger than 1 MiB" in capsys.readouterr().err
    assert main(["gate", str(tmp_path), "--policy", "/dev/zero"]) == 2
    zeros = tmp_path / "p.json"
    zeros.symlink_to("/dev/zero")
    assert main(["gate", str(tmp_path), "--policy", str(zeros)]) == 1
    assert read_at_most(Path("/dev/zero"), 1000) is None
    assert read_at_most(Path("/dev/null"), 0) == b""


def test_a_line_of_evidence_without_an_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence_file, "MAX_LINE_BYTES", 1 << 20)
    path = tmp_path / "e.jsonl"
    path.write_bytes(b"{}\n" + b"x" * (1 << 20) + b"\n")
    with pytest.raises(EvidenceError, match="line 2: longer than 1 MiB"):
        list(read_lines(path))
    path.write_bytes(b"{}\n" + b"x" * ((1 << 20) - 1) + b"\n")
    assert len(list(read_lines(path))) == 2


def test_nothing_is_written_through_a_link(tmp_path: Path, capsys: Capture) -> None:
    """A link under the name of a file that a run writes is renamed or refused, never followed."""
    target = tmp_path / "precious"
    target.write_bytes(b"precious")
    out = tmp_path / "out"
    out.mkdir()
    paths = cell_paths(out, "mock", 2048, 2)
    for path in (paths.certificate, paths.evidence):
        path.symlink_to(target)
    run = ["run-mock", "-q", "--passes", "1", "--parallel", "2", "--out-dir", str(out)]
    assert main(run) == 3
    capsys.readouterr()
    assert target.read_bytes() == b"precious"
    assert not paths.certificate.is_symlink()
    assert not paths.evidence.is_symlink()
    assert paths.previous_certificate.is_symlink()


def test_new_evidence_and_a_canary_do_not_follow_a_link_to_nothing(
    tmp_path: Path, capsys: Capture
) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BatchInvarianceError, match="exists already"):
        open_evidence(link)
    assert main(["canary", "-o", str(link)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert link.is_symlink()
    assert not (tmp_path / "elsewhere").exists()


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    paths = cell_paths(tmp_path, "m", 512, 4)
    lock = CellLock(paths)
    lock.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BatchInvarianceError, match="cannot lock"), lock:
        pass
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("what", ["loop", "nothing", "device"])
def test_an_out_dir_that_is_no_folder_is_refused(
    what: str, tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "out"
    _odd_file(out, what)
    assert main(["run-mock", "-q", "--out-dir", str(out)]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "--out-dir" in captured.err


def test_an_out_dir_may_be_a_link_to_a_folder(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "real")
    run = ["run-mock", "-q", "--passes", "1", "--parallel", "2", "--out-dir"]
    assert main([*run, str(tmp_path / "out")]) == 3
    capsys.readouterr()
    assert len(list((tmp_path / "real").glob("mock__*.json"))) == 1


# What goes to the terminal.

SPOOF = "x\nPROMOTABLE  c.json\x1b[2J\x1b]0;t\x07\u202e\r\x9b31m"


def _shown_safely(shown: str) -> None:
    assert not [c for c in shown if c != "\n" and not c.isprintable()]
    assert not [line for line in shown.splitlines() if line.startswith("PROMOTABLE")]


def test_no_text_of_evidence_reaches_the_terminal_raw(tmp_path: Path, capsys: Capture) -> None:
    """Names, ids and words of evidence that somebody made, in every verb that shows them."""
    records = Ideal([2, 1], n=2, passes=1).records()
    changes = (
        on_cell(model=SPOOF),
        on_header(lambda h: replace(h, source=Source.CANARY)),
        on_kind(Footer, lambda r: replace(r, ended=SPOOF)),
    )
    for change in changes:
        records = change(records)
    lines = encode(records)
    paths = cell_paths(tmp_path, "toy", 512, 2)
    paths.evidence.write_bytes(b"".join(lines))
    paths.certificate.write_bytes(certify(lines, paths.evidence.name).to_bytes())
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({**good.POLICIES[1], "required": [f"{SPOOF}/*/*"]}))
    assert main(["verify-cert", str(paths.certificate)]) == 3
    assert main(["gate", str(tmp_path), "--policy", str(policy)]) == 3
    assert main(["attest", str(paths.certificate), "-o", str(tmp_path / "s")]) == 3
    paths.certificate.write_bytes(
        json.dumps(
            {**json.loads(paths.certificate.read_bytes()), SPOOF: SPOOF, "model": SPOOF}
        ).encode()
    )
    assert main(["verify-cert", str(paths.certificate)]) == 1
    captured = capsys.readouterr()
    assert "\\x1b[2J" in captured.out
    _shown_safely(captured.out + captured.err)


def test_no_name_of_a_file_reaches_the_terminal_raw(tmp_path: Path, capsys: Capture) -> None:
    odd = tmp_path / "x\nPROMOTABLE  c\x1b[2J.json"
    odd.write_bytes(b"{")
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps(good.POLICIES[1]))
    assert main(["verify-cert", str(odd)]) == 1
    assert main(["verify-cert", str(tmp_path / SPOOF)]) == 1
    assert main(["gate", str(odd), "--policy", str(policy)]) == 3
    assert main(["gate", str(odd), "--policy", str(odd)]) == 1
    assert main(["workset", "show", str(odd)]) == 1
    assert main(["run-mock", "--workset", str(odd), "--out-dir", str(tmp_path / SPOOF)]) == 1
    captured = capsys.readouterr()
    _shown_safely(captured.out + captured.err)
