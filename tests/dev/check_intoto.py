"""Attestations read, checked and signed by programs that are not ours. Run by hand:

    python -m venv /tmp/dev
    /tmp/dev/bin/pip install in-toto-attestation securesystemslib cryptography pytest
    PYTHONPATH=src /tmp/dev/bin/python tests/dev/check_intoto.py

Needs `openssl` and `ssh-keygen` on the PATH. Ends with 0 when every line says yes. The recorded
output is in tests/bench/results/intoto.txt.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.metadata
import io
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from google.protobuf import json_format
from in_toto_attestation.predicates.test_result.v0 import test_result_pb2
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor
from in_toto_attestation.v1.statement import Statement
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey

from batch_invariance.cli.main import main as program
from batch_invariance.formats.dsse import pae
from ci_fixtures import AMBER, CANARY, RED, UNVERIFIED, unchanged, write_cert

NAMESPACE = "in-toto"
PACKAGES = ("in-toto-attestation", "securesystemslib", "cryptography", "protobuf")
COLOURS = {
    "GREEN": (unchanged, "PASSED"),
    "AMBER": (AMBER, "WARNED"),
    "UNVERIFIED": (UNVERIFIED, "FAILED"),
    "RED": (RED, "FAILED"),
    "a canary's GREEN": (CANARY, "WARNED"),
}
failures: list[str] = []


def say(what: str, check: Callable[[], object]) -> None:
    """Prints whether a check holds; one that raises does not."""
    try:
        good = bool(check())
        why = ""
    except Exception as error:
        good, why = False, f" ({type(error).__name__}: {error})"
    print(f"{'yes' if good else 'NO '}  {what}{why}")
    if not good:
        failures.append(what)


def attest(*words: object) -> bytes:
    """What `attest` prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        program(["attest", *map(str, words)])
    return out.getvalue().encode("utf-8")


def tool(*words: object, stdin: bytes = b"") -> bytes:
    """A public program's output; raises when it fails."""
    done = subprocess.run([str(w) for w in words], input=stdin, capture_output=True, check=True)
    return done.stdout


def read_by_intoto(folder: Path) -> None:
    """Every colour as a statement, with both predicates."""
    for name, (change, result) in COLOURS.items():
        read_one(name, write_cert(folder / name, change), result)


def read_one(name: str, cert: Path, result: str) -> None:
    """One certificate's statements through the package's own types."""
    statement = json_format.Parse(attest(cert).decode("utf-8"), statement_pb2.Statement())
    predicate = json_format.MessageToDict(statement.predicate)
    parsed = json_format.ParseDict(predicate, test_result_pb2.TestResult())
    text = attest(cert, "--predicate", "verdict").decode("utf-8")
    own = json_format.Parse(text, statement_pb2.Statement())

    def configured() -> bool:
        for row in parsed.configuration:
            ResourceDescriptor.copy_from_pb(row).validate()
        return len(parsed.configuration) >= 5

    say(f"in-toto-attestation validates the statement of {name}", lambda: valid(statement))
    say(f"  and its test result, which is {result}", lambda: parsed.result == result)
    say("  and its configuration's descriptors", configured)
    say("  and the statement of our own predicate", lambda: valid(own))


def valid(statement: statement_pb2.Statement) -> bool:
    """The package's own validation, which raises."""
    Statement.copy_from_pb(statement).validate()
    return True


def signed_by_openssl(folder: Path) -> None:
    """The printed bytes signed by openssl, the envelope read by securesystemslib."""
    cert, key, pub = write_cert(folder / "certs"), folder / "ec.pem", folder / "ec.pub"
    to_sign, sig, out = folder / "to-sign", folder / "to-sign.sig", folder / "envelope.json"
    to_sign.write_bytes(attest(cert, "--print-pae"))
    tool("openssl", "ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", key)
    tool("openssl", "ec", "-in", key, "-pubout", "-out", pub)
    tool("openssl", "dgst", "-sha256", "-sign", key, "-out", sig, to_sign)
    attest(cert, "--signature", sig, "--keyid", "ec", "-o", out)
    public = {"public": pub.read_text("ascii")}
    ours = SSlibKey("ec", "ecdsa", "ecdsa-sha2-nistp256", public)
    envelope = Envelope.from_dict(json.loads(out.read_bytes()))
    say("securesystemslib encodes the same bytes", lambda: envelope.pae() == to_sign.read_bytes())
    say("  and accepts the envelope that openssl signed", lambda: envelope.verify([ours], 1))
    value = json.loads(out.read_bytes())
    payload = base64.b64decode(value["payload"]).replace(b"PASSED", b"FAILED")
    value["payload"] = base64.b64encode(payload).decode("ascii")
    changed = Envelope.from_dict(value)

    def refuses() -> bool:
        try:
            changed.verify([ours], 1)
        except Exception:
            return True
        return False

    say("  and refuses it changed", refuses)
    kept = json.loads(out.read_bytes())
    body = base64.b64decode(kept["payload"])
    again = folder / "again"
    again.write_bytes(pae(kept["payloadType"], body))
    raw = folder / "raw.sig"
    raw.write_bytes(base64.b64decode(kept["signatures"][0]["sig"]))
    words = ("openssl", "dgst", "-sha256", "-verify", pub, "-signature", raw, again)
    say("openssl accepts what it signed, taken out again", lambda: b"OK" in tool(*words))
    tool("openssl", "genpkey", "-algorithm", "ed25519", "-out", key)
    tool("openssl", "pkey", "-in", key, "-pubout", "-out", pub)
    tool("openssl", "pkeyutl", "-sign", "-rawin", "-inkey", key, "-in", to_sign, "-out", sig)
    words = ("openssl", "pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", pub)
    words = (*words, "-sigfile", sig, "-in", to_sign)
    say("openssl signs with ed25519 too", lambda: b"Success" in tool(*words))


def hmac_by_openssl(folder: Path) -> None:
    """Our HMAC against openssl's."""
    cert, key, out = write_cert(folder / "hmac"), folder / "hmac.key", folder / "hmac.json"
    tool("openssl", "rand", "-out", key, 32)
    attest(cert, "--key", key, "-o", out)
    to_sign = attest(cert, "--print-pae")
    words = ("openssl", "dgst", "-sha256", "-mac", "HMAC", "-binary")
    words = (*words, "-macopt", f"hexkey:{key.read_bytes().hex()}")
    sig = base64.b64decode(json.loads(out.read_bytes())["signatures"][0]["sig"])
    say("openssl computes the same HMAC", lambda: tool(*words, stdin=to_sign) == sig)


def signed_by_ssh(folder: Path) -> None:
    """The printed bytes signed and checked by ssh-keygen."""
    cert, key = write_cert(folder / "ssh"), folder / "id"
    to_sign, out = folder / "ssh-to-sign", folder / "ssh.json"
    to_sign.write_bytes(attest(cert, "--print-pae"))
    tool("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "a@b", "-f", key)
    tool("ssh-keygen", "-Y", "sign", "-f", key, "-n", NAMESPACE, to_sign)
    sig = to_sign.with_name(to_sign.name + ".sig")
    attest(cert, "--signature", sig, "--keyid", "ssh", "-o", out)
    value = json.loads(out.read_bytes())
    again = folder / "ssh-again.sig"
    again.write_bytes(base64.b64decode(value["signatures"][0]["sig"]))
    allowed = folder / "allowed"
    allowed.write_text("a@b " + key.with_suffix(".pub").read_text("ascii"), "ascii")
    words = ("ssh-keygen", "-Y", "verify", "-f", allowed, "-I", "a@b", "-n", NAMESPACE)
    body = pae(value["payloadType"], base64.b64decode(value["payload"]))
    words = (*words, "-s", again)
    say("ssh-keygen accepts what it signed", lambda: b"Good" in tool(*words, stdin=body))


def main() -> int:
    """The exit status."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES]
    print(f"python {platform.python_version()}, {', '.join(versions)}")
    print(tool("openssl", "version").decode("ascii").strip())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        read_by_intoto(folder)
        signed_by_openssl(folder)
        hmac_by_openssl(folder)
        signed_by_ssh(folder)
    print(f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
