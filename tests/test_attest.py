"""`attest`: the statement, the bytes that are signed, the envelope, and what is refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest

from batch_invariance.cli import attest
from batch_invariance.errors import FileFormatError
from batch_invariance.formats.dsse import (
    Envelope,
    Signature,
    hmac_fits,
    hmac_signature,
    pae,
    parse_envelope,
)
from batch_invariance.formats.intoto import PAYLOAD_TYPE, VERDICT_TYPE, parse_statement
from batch_invariance.invariance_diff.gates import GATES
from ci_fixtures import (
    AMBER,
    CANARY,
    MOCK,
    RED,
    UNVERIFIED,
    call,
    edit,
    on_launches,
    on_model,
    on_subject,
    unchanged,
    write_cert,
)
from core_fixtures import Change, then

Capture = pytest.CaptureFixture[str]
KEY = bytes(range(32))


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "hmac.key"
    path.write_bytes(KEY)
    path.chmod(0o600)
    return path


def stated(capsys: Capture, cert: Path, *words: object) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(call(attest, capsys, cert, *words).stdout)
    return value


# The pre-authentication encoding.


def test_the_published_vector_of_the_encoding() -> None:
    """From protocol.md of https://github.com/secure-systems-lab/dsse."""
    encoded = pae("http://example.com/HelloWorld", b"hello world")
    assert encoded == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"


def test_the_payload_of_the_published_envelope() -> None:
    published = (
        b'{"payload": "aGVsbG8gd29ybGQ=", "payloadType": "http://example.com/HelloWorld",'
        b' "signatures": [{"sig": "A3JqsQGtVsJ2O2xqrI5IcnXip5GToJ3F+FnZ+O88SjtR6rDAajabZKciJTfUiHqJ'
        b'PcIAriEGAHTVeCUjW2JIZA=="}]}'
    )
    envelope = parse_envelope(published)
    assert (envelope.payload_type, envelope.payload) == (
        "http://example.com/HelloWorld",
        b"hello world",
    )
    assert [len(signature.sig) for signature in envelope.signatures] == [64]
    assert json.loads(envelope.to_bytes()) == json.loads(published)


@pytest.mark.parametrize(
    ("kind", "body", "encoded"),
    [
        ("", b"", b"DSSEv1 0  0 "),
        ("t", b"", b"DSSEv1 1 t 0 "),
        ("é", b"x y", "DSSEv1 2 é 3 x y".encode()),
        ("t", b"\x00\xff\n", b"DSSEv1 1 t 3 \x00\xff\n"),
    ],
)
def test_lengths_count_bytes(kind: str, body: bytes, encoded: bytes) -> None:
    assert pae(kind, body) == encoded


def test_no_two_pairs_share_an_encoding() -> None:
    """Moving a byte between type and body, or a length into either, changes the encoding."""
    pairs = [("a", b"bc"), ("ab", b"c"), ("a 2 bc", b""), ("", b"a 2 bc"), ("1 a", b"2 bc")]
    assert len({pae(kind, body) for kind, body in pairs}) == len(pairs)


# The envelope and its HMAC.


def test_the_hmac_is_the_one_of_the_standard() -> None:
    signature = hmac_signature(KEY, "t", b"body")
    wanted = hmac.new(KEY, b"DSSEv1 1 t 4 body", hashlib.sha256).digest()
    assert (signature.sig, signature.keyid) == (wanted, "hmac-sha256")


def test_a_signature_fits_its_own_payload_type_and_key_alone() -> None:
    signature = hmac_signature(KEY, "t", b"body")
    assert hmac_fits(KEY, Envelope("t", b"body", (signature,)))
    assert not hmac_fits(KEY, Envelope("u", b"body", (signature,)))
    assert not hmac_fits(KEY, Envelope("t", b"bodz", (signature,)))
    assert not hmac_fits(KEY[::-1], Envelope("t", b"body", (signature,)))
    assert not hmac_fits(KEY, Envelope("t", b"body", ()))
    assert not hmac_fits(KEY, Envelope("t", b"body", (Signature(signature.sig[:-1]),)))
    others = (Signature(b"other", "x"), Signature(signature.sig, "a hint that lies"))
    assert hmac_fits(KEY, Envelope("t", b"body", others))


def test_either_alphabet_of_base64_is_read() -> None:
    body = b"\xfb\xff\xbf>?"
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        value = {"payload": encode(body).decode(), "payloadType": "t", "signatures": []}
        assert parse_envelope(json.dumps(value).encode()).payload == body


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "is not a JSON object"),
        (b"{}", "payloadType is not a text; payload is not base64; signatures is not a list"),
        (b'{"payload": "a", "payloadType": "t", "signatures": []}', "payload is not base64"),
        (b'{"payload": "", "payloadType": "\\ud800", "signatures": []}', "payloadType is not"),
        (b'{"payload": "", "payloadType": "t", "signatures": [1]}', "not a list of objects"),
        (b'{"payload": "", "payloadType": "t", "signatures": [{}]}', "signatures[0].sig"),
        (
            b'{"payload": "", "payloadType": "t", "signatures": [{"sig": "", "keyid": 1}]}',
            "signatures[0].keyid",
        ),
    ],
)
def test_what_is_no_envelope(data: bytes, said: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        parse_envelope(data)
    assert said in str(caught.value)


# The statement.


def test_a_statement_of_the_test_result(tmp_path: Path, capsys: Capture) -> None:
    path = write_cert(tmp_path)
    value = stated(capsys, path)
    assert value["_type"] == "https://in-toto.io/Statement/v1"
    assert value["predicateType"] == "https://in-toto.io/attestation/test-result/v0.1"
    assert value["subject"] == [
        {"name": "mock-model.gguf", "digest": {"sha256": "b" * 64}},
        {"name": "llama-server", "digest": {"sha256": "a" * 64}},
        {"name": "llama-server (executable)", "digest": {"sha256": "f" * 64}},
    ]
    predicate = value["predicate"]
    assert predicate["result"] == "PASSED"
    assert predicate["failedTests"] == predicate["warnedTests"] == []
    names = {gate.name for gate in GATES} - {"F4_logit_drift"}
    assert set(predicate["passedTests"]) == names
    rows = {row["name"]: row for row in predicate["configuration"]}
    own = hashlib.sha256(path.read_bytes()).hexdigest()
    assert rows[path.name]["digest"] == {"sha256": own}
    cert = json.loads(path.read_bytes())
    assert rows["cell"]["digest"] == {"sha256": cert["cell_sha256"]}
    assert rows["made-up.json"]["digest"] == {"sha256": cert["workset_sha256"]}
    assert rows["libggml.so"] == {"name": "libggml.so", "digest": {"sha256": "1" * 64}}
    assert rows[cert["evidence"]["file"]]["digest"] == {"sha256": cert["evidence"]["sha256"]}
    assert all(row.get("digest") for row in predicate["configuration"])


@pytest.mark.parametrize(
    ("change", "result", "code", "tests"),
    [
        (unchanged, "PASSED", 0, {}),
        (AMBER, "WARNED", 3, {"warnedTests": ["tokens"]}),
        (RED, "FAILED", 3, {"failedTests": ["F0_score"], "warnedTests": ["tokens"]}),
        (CANARY, "WARNED", 3, {"warnedTests": ["F5_provenance"]}),
    ],
)
def test_what_a_colour_becomes(
    tmp_path: Path, capsys: Capture, change: Change, result: str, code: int, tests: dict[str, Any]
) -> None:
    path = write_cert(tmp_path, change)
    done = call(attest, capsys, path)
    predicate = json.loads(done.stdout)["predicate"]
    assert (done.code, predicate["result"]) == (code, result)
    for name in ("warnedTests", "failedTests"):
        assert predicate[name] == tests.get(name, [])


def test_an_unverified_cell_has_failed(tmp_path: Path, capsys: Capture) -> None:
    predicate = stated(capsys, write_cert(tmp_path, UNVERIFIED))["predicate"]
    assert predicate["result"] == "FAILED"
    assert "lost" in predicate["failedTests"]


def test_our_own_predicate_holds_the_verdict(tmp_path: Path, capsys: Capture) -> None:
    path = write_cert(tmp_path, RED)
    value = stated(capsys, path, "--predicate", "verdict")
    cert = json.loads(path.read_bytes())
    assert value["predicateType"] == VERDICT_TYPE
    predicate = value["predicate"]
    assert predicate["result"] == "FAILED"
    assert predicate["certificate"]["digest"]["sha256"]
    for name in ("verdict", "gates", "decision_reasons", "claims", "sensitivity", "cell_sha256"):
        assert predicate[name] == cert[name]
    assert not {"rows", "divergence_report", "lifetimes"} & set(predicate)


def test_the_same_certificate_gives_the_same_bytes(tmp_path: Path, capsys: Capture) -> None:
    path = write_cert(tmp_path)
    first, second = call(attest, capsys, path).stdout, call(attest, capsys, path).stdout
    assert first == second
    assert first.endswith("}\n")


@pytest.mark.parametrize("field", ["status", "evidence"])
def test_nothing_is_attested_that_its_evidence_does_not_bear_out(
    tmp_path: Path, capsys: Capture, field: str, key: Path
) -> None:
    path = write_cert(tmp_path / "certs", UNVERIFIED)
    if field == "status":
        edit(path, lambda cert: cert.update(status="green", verdict="GREEN", promotable=True))
    else:
        path.with_suffix(".evidence.jsonl").unlink()
    out = tmp_path / "out.json"
    for words in ((), ("--key", key), ("--print-pae",), ("--predicate", "verdict")):
        done = call(attest, capsys, path, *words, "-o", out)
        assert done.code == 1
        assert "is not attested, its evidence does not bear it out" in done.stderr
        assert done.stdout == ""
        assert not out.exists()


def test_the_evidence_may_lie_elsewhere(tmp_path: Path, capsys: Capture) -> None:
    path = write_cert(tmp_path / "certs")
    moved = path.with_suffix(".evidence.jsonl").rename(tmp_path / "moved.jsonl")
    assert call(attest, capsys, path).code == 1
    assert call(attest, capsys, path, "--evidence", moved).code == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (on_subject(server_sha256=None), "names no server binary by digest"),
        (then(MOCK, on_subject(server_sha256=None)), "names no server binary by digest"),
        (on_model(sha256="unknown"), "names no model file by digest"),
    ],
)
def test_without_artifacts_there_is_nothing_to_attest(
    tmp_path: Path, capsys: Capture, change: Change, said: str
) -> None:
    done = call(attest, capsys, write_cert(tmp_path, change))
    assert done.code == 1
    assert said in done.stderr


def test_the_executable_is_named_once_where_it_is_the_file(tmp_path: Path, capsys: Capture) -> None:
    value = stated(capsys, write_cert(tmp_path, on_launches(executable_sha256="a" * 64)))
    assert [row["name"] for row in value["subject"]] == ["mock-model.gguf", "llama-server"]


def split_model(folder: Path) -> tuple[Path, list[str], Change]:
    """A model in two parts, their digests, and the change that makes it the one tested."""
    parts = [folder / f"m-0000{i}-of-00002.gguf" for i in (1, 2)]
    for part in parts:
        part.write_bytes(part.name.encode())
    digests = [hashlib.sha256(part.name.encode()).hexdigest() for part in parts]
    combined = hashlib.sha256("".join(f"{d}\n" for d in digests).encode()).hexdigest()
    return parts[0], digests, on_model(file=parts[0].name, sha256=combined)


def test_every_part_of_a_split_model_is_a_subject(tmp_path: Path, capsys: Capture) -> None:
    model, digests, change = split_model(tmp_path)
    path = write_cert(tmp_path / "certs", change)
    refused = call(attest, capsys, path)
    assert refused.code == 1
    assert "name the first part with --model" in refused.stderr
    value = stated(capsys, path, "--model", model)
    assert [(row["name"], row["digest"]["sha256"]) for row in value["subject"][:2]] == [
        ("m-00001-of-00002.gguf", digests[0]),
        ("m-00002-of-00002.gguf", digests[1]),
    ]
    model.write_bytes(b"another")
    done = call(attest, capsys, path, "--model", model)
    assert done.code == 1
    assert "--model: its digest is not the one" in done.stderr


def test_a_model_that_is_named_must_be_the_one_tested(tmp_path: Path, capsys: Capture) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"weights")
    digest = hashlib.sha256(b"weights").hexdigest()
    path = write_cert(tmp_path / "certs", on_model(file="m.gguf", sha256=digest))
    assert stated(capsys, path, "--model", model) == stated(capsys, path)
    model.write_bytes(b"other")
    assert call(attest, capsys, path, "--model", model).code == 1


# Signing and checking.


def test_a_signed_envelope_is_checked(tmp_path: Path, capsys: Capture, key: Path) -> None:
    path, out = write_cert(tmp_path / "certs"), tmp_path / "e.json"
    assert call(attest, capsys, path, "--key", key, "-o", out).code == 0
    envelope = parse_envelope(out.read_bytes())
    assert envelope.payload_type == PAYLOAD_TYPE
    assert envelope.payload == call(attest, capsys, path).stdout.rstrip("\n").encode()
    done = call(attest, capsys, "--verify", out, "--key", key)
    assert done.code == 0
    assert done.lines[0].endswith("the HMAC fits; it says PASSED of")
    assert f"  {'b' * 64}  mock-model.gguf" in done.lines
    report = call(attest, capsys, "--verify", out, "--key", key, "--json").json
    assert (report["signature"], report["result"], report["exit_code"]) == ("fits", "PASSED", 0)
    assert report["subjects"]["llama-server"] == "a" * 64


@pytest.mark.parametrize("predicate", ["test-result", "verdict"])
def test_a_checked_envelope_of_a_red_cell_exits_3(
    tmp_path: Path, capsys: Capture, key: Path, predicate: str
) -> None:
    path, out = write_cert(tmp_path / "certs", RED), tmp_path / "e.json"
    words = (path, "--key", key, "--predicate", predicate, "-o", out)
    assert call(attest, capsys, *words).code == 3
    done = call(attest, capsys, "--verify", out, "--key", key)
    assert done.code == 3
    assert "it says FAILED of" in done.stdout


def test_a_changed_envelope_or_another_key_is_refused(
    tmp_path: Path, capsys: Capture, key: Path
) -> None:
    path, out = write_cert(tmp_path / "certs", RED), tmp_path / "e.json"
    call(attest, capsys, path, "--key", key, "-o", out)
    value = json.loads(out.read_bytes())
    payload = base64.b64decode(value["payload"]).replace(b'"FAILED"', b'"PASSED"')
    value["payload"] = base64.b64encode(payload).decode()
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(value))
    done = call(attest, capsys, "--verify", changed, "--key", key)
    assert (done.code, done.stdout) == (1, "")
    assert "no signature in it was made with this key" in done.stderr
    key.write_bytes(bytes(32))
    assert call(attest, capsys, "--verify", out, "--key", key).code == 1


def test_a_signed_payload_of_another_kind_is_refused(
    tmp_path: Path, capsys: Capture, key: Path
) -> None:
    out = tmp_path / "e.json"
    for kind, body, said in (
        ("text/plain", b"{}", "its payload is not application/vnd.in-toto+json"),
        (PAYLOAD_TYPE, b"{}", "is not an in-toto Statement v1 of this tool"),
    ):
        envelope = Envelope(kind, body, (hmac_signature(KEY, kind, body),))
        out.write_bytes(envelope.to_bytes())
        done = call(attest, capsys, "--verify", out, "--key", key)
        assert done.code == 1
        assert said in done.stderr


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"{}", b'{"subject": 3}', b'{"subject": [{"name": "x"}]}',
        b'{"_type": "https://in-toto.io/Statement/v1", "subject": [], '
        b'"predicateType": "https://in-toto.io/attestation/test-result/v0.1", "predicate": {}}',
    ],
)  # fmt: skip
def test_what_is_no_statement(data: bytes) -> None:
    with pytest.raises(FileFormatError):
        parse_statement(data)


def test_a_signature_from_elsewhere_is_put_in(tmp_path: Path, capsys: Capture, key: Path) -> None:
    """Signed outside the program over the printed bytes, as openssl or cosign would."""
    path, out = write_cert(tmp_path / "certs"), tmp_path / "e.json"
    to_sign, signed = tmp_path / "to-sign", tmp_path / "to-sign.sig"
    assert call(attest, capsys, path, "--print-pae", "-o", to_sign).code == 0
    assert call(attest, capsys, path, "--print-pae").stdout.encode() == to_sign.read_bytes()
    signed.write_bytes(hmac.new(KEY, to_sign.read_bytes(), hashlib.sha256).digest())
    words = ("--signature", signed, "--keyid", "release", "-o", out)
    done = call(attest, capsys, path, *words)
    assert (done.code, "its signature is unchecked" in done.stdout) == (0, True)
    envelope = parse_envelope(out.read_bytes())
    assert envelope.signatures == (Signature(signed.read_bytes(), "release"),)
    assert pae(envelope.payload_type, envelope.payload) == to_sign.read_bytes()
    assert call(attest, capsys, "--verify", out, "--key", key).code == 0


def test_what_is_plainly_no_signature_is_not_put_in(tmp_path: Path, capsys: Capture) -> None:
    path, out = write_cert(tmp_path / "certs"), tmp_path / "e.json"
    to_sign, given = tmp_path / "to-sign", tmp_path / "to-sign.sig"
    assert call(attest, capsys, path, "--print-pae", "-o", to_sign).code == 0
    for data, why in (
        (b"", "is empty"),
        (to_sign.read_bytes(), "holds the bytes to sign"),
        (base64.b64encode(bytes(range(64))) + b"\n", "is base64"),
        (base64.encodebytes(bytes(range(71))), "is base64"),
    ):
        given.write_bytes(data)
        done = call(attest, capsys, path, "--signature", given, "-o", out)
        assert (done.code, why in done.stderr, out.exists()) == (2, True, False), why


@pytest.mark.parametrize("how", ["--key", "--signature", None])
def test_json_says_whether_a_signature_was_checked(
    tmp_path: Path, capsys: Capture, key: Path, how: str | None
) -> None:
    words = [] if how is None else [how, key]
    out = tmp_path / "e.json"
    done = call(attest, capsys, write_cert(tmp_path / "certs"), "-o", out, "--json", *words)
    said = {"--key": "hmac-sha256", "--signature": "unchecked", None: None}
    assert done.json["signature"] == said[how]


def test_a_key_must_be_long_enough(tmp_path: Path, capsys: Capture, key: Path) -> None:
    key.write_bytes(bytes(31))
    done = call(attest, capsys, write_cert(tmp_path / "certs"), "--key", key)
    assert done.code == 2
    assert "the key has 31 bytes, needs 32: openssl rand" in done.stderr


def test_a_key_that_everybody_can_read_is_no_key(
    tmp_path: Path, capsys: Capture, key: Path
) -> None:
    path, out = write_cert(tmp_path / "certs"), tmp_path / "e.json"
    assert call(attest, capsys, path, "--key", key, "-o", out).code == 0
    key.chmod(0o644)
    for words in ((path, "--key", key), ("--verify", out, "--key", key)):
        done = call(attest, capsys, *words)
        assert (done.code, done.stdout) == (2, "")
        assert f"--key {key}: everybody can read or replace it" in done.stderr


def test_no_file_is_written_over(tmp_path: Path, capsys: Capture, key: Path) -> None:
    path, out = write_cert(tmp_path / "certs"), tmp_path / "e.json"
    out.write_text("mine")
    done = call(attest, capsys, path, "--key", key, "-o", out)
    assert done.code == 2
    assert "exists already" in done.stderr
    assert out.read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name a certificate, or an envelope"),
        (("c.json", "--verify", "e.json"), "--verify needs --key"),
        (("c.json", "--verify", "e.json", "--key", "k"), "go --key and --json alone"),
        (("--verify", "e.json", "--key", "k", "--model", "m"), "go --key and --json alone"),
        (("--verify", "e.json", "--key", "k", "--predicate", "verdict"), "--key and --json alone"),
        (("c.json", "-o", "nowhere/s.json"), "there is no folder nowhere"),
        (("--verify", "none.json", "--key", "k"), "--verify none.json: No such file"),
        (("c.json", "--key", "k", "--print-pae"), "--key makes the signature itself"),
        (("c.json", "--key", "k", "--signature", "s"), "--key makes the signature itself"),
        (("c.json", "--keyid", "k"), "--keyid goes with --signature"),
        (("c.json", "--json"), "--json needs -o"),
        (("c.json", "--print-pae", "--signature", "s"), "not allowed with"),
        (("c.json", "--predicate", "other"), "invalid choice"),
    ],
)
def test_arguments_that_cannot_be(
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = call(attest, capsys, *words)
    assert done.code == 2
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []
