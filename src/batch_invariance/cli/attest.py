"""`attest`: a certificate as an in-toto statement, signed or ready to be signed; and the check."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from batch_invariance.cli.cert_files import verify_file
from batch_invariance.cli.exit_codes import ExitCode
from batch_invariance.errors import BatchInvarianceError, FileFormatError, UsageError
from batch_invariance.formats.dsse import (
    HMAC_KEY_ID,
    Envelope,
    Signature,
    hmac_fits,
    hmac_signature,
    pae,
    parse_envelope,
)
from batch_invariance.formats.intoto import (
    PAYLOAD_TYPE,
    Artifact,
    Attested,
    Predicate,
    Result,
    parse_statement,
    result_of,
    statement,
)
from batch_invariance.invariance_diff.signature import SigningKey
from batch_invariance.live_invariance.bounded import MAX_INPUT_BYTES, read_at_most
from batch_invariance.live_invariance.digests import file_sha256, split_parts
from batch_invariance.live_invariance.signing import read_key
from batch_invariance.live_invariance.store import check_new, write_new
from batch_invariance.live_invariance.text import printable

EXAMPLES = """examples:
  batch-invariance attest certs/model__ctx8192__N4.json -o statement.json
  batch-invariance attest certs/model__ctx8192__N4.json --key hmac.key -o envelope.json
  batch-invariance attest --verify envelope.json --key hmac.key
  batch-invariance attest certs/model__ctx8192__N4.json --print-pae > to-sign
  batch-invariance attest certs/model__ctx8192__N4.json --signature to-sign.sig -o envelope.json

The certificate is first derived again from the evidence beside it; without that nothing is
attested. Exits 0 where the result is PASSED, 3 where it is WARNED or FAILED.
"""
# No signature of a key pair is as short, and none is made of these characters by chance.
_BASE64 = re.compile(rb"[A-Za-z0-9+/\r\n]{64,}={0,2}\s*")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the verb."""
    parser = commands.add_parser(
        "attest",
        help="state a certificate as an in-toto attestation",
        description="Writes an in-toto Statement v1 about the model file and the server binary.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("certificate", type=Path, nargs="?", metavar="CERT")
    parser.add_argument(
        "--predicate",
        choices=[kind.value for kind in Predicate],
        help="in-toto's result of a test (the default), or the verdict in full",
    )
    parser.add_argument(
        "--model", type=Path, metavar="M", help="the tested model; needed where it is split"
    )
    parser.add_argument("--evidence", type=Path, metavar="FILE", help="where the evidence is")
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--print-pae", action="store_true", help="print the exact bytes that a signature covers"
    )
    how.add_argument(
        "--signature", type=Path, metavar="FILE", help="put this signature into an envelope"
    )
    how.add_argument("--verify", type=Path, metavar="ENVELOPE", help="check its HMAC with --key")
    parser.add_argument(
        "--key", type=Path, metavar="FILE", help="sign with HMAC-SHA256; its bytes are the key"
    )
    parser.add_argument("--keyid", metavar="TEXT", help="hint at the key, with --signature")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write there; never over a file"
    )
    parser.add_argument(
        "--json", action="store_true", help="with -o or --verify: print one JSON object on stdout"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, server_flags: Sequence[str]) -> int:
    """Carries the verb out and returns the exit code."""
    if server_flags:
        raise UsageError("attest starts no server: nothing may follow --")
    _check(args)
    if args.verify is not None:
        return _verify(args)
    attested = _attested(args)
    predicate = Predicate(args.predicate or Predicate.TEST_RESULT.value)
    payload = statement(attested, predicate)
    result = result_of(attested.view)
    data = _document(args, payload)
    code = ExitCode.PROMOTABLE if result is Result.PASSED else ExitCode.NOT_PROMOTED
    if args.output is None:
        sys.stdout.write(data.decode("ascii"))
        return code
    write_new(args.output, data)
    if args.json:
        report = {
            "file": str(args.output),
            "result": result.value,
            "predicate": predicate.value,
            "signature": _signature_word(args),
            "exit_code": int(code),
        }
        print(json.dumps(report))
    else:
        cell = printable(str(attested.view.cell))
        unchecked = "; its signature is unchecked" if args.signature is not None else ""
        print(f"{printable(str(args.output))}: {result.value}, {cell}{unchecked}")
    return code


def _signature_word(args: argparse.Namespace) -> str | None:
    """Only the tool that made a signature can check it, so one that is put in stays unchecked."""
    if args.signature is not None:
        return "unchecked"
    return None if args.key is None else HMAC_KEY_ID


def _check(args: argparse.Namespace) -> None:
    if args.verify is not None:
        if args.key is None:
            raise UsageError("--verify needs --key; other signatures are checked by their own tool")
        given = (
            args.certificate,
            args.output,
            args.model,
            args.evidence,
            args.predicate,
            args.keyid,
        )
        if any(value is not None for value in given):
            raise UsageError("--verify reads an envelope: beside it go --key and --json alone")
        return
    if args.certificate is None:
        raise UsageError("name a certificate, or an envelope with --verify")
    if args.key is not None and (args.signature is not None or args.print_pae):
        raise UsageError("--key makes the signature itself: leave --signature and --print-pae out")
    if args.keyid is not None and args.signature is None:
        raise UsageError("--keyid goes with --signature")
    if args.output is not None:
        check_new(args.output)
    if args.json and args.output is None:
        raise UsageError("--json needs -o: without it the document itself goes to stdout")


def _attested(args: argparse.Namespace) -> Attested:
    """The certificate, once its evidence has borne it out."""
    verified = verify_file(args.certificate, args.evidence)
    if verified.view is None or not verified.borne_out:
        raise BatchInvarianceError(
            f"{args.certificate} is not attested, its evidence does not bear it out: "
            + "; ".join(verified.problems)
        )
    parts: tuple[Artifact, ...] = ()
    if args.model is not None:
        files = split_parts(args.model)
        parts = tuple(Artifact(file.name, file_sha256(file)) for file in files)
    return Attested(verified.path.name, verified.data, verified.view, parts)


def _document(args: argparse.Namespace, payload: bytes) -> bytes:
    if args.print_pae:
        return pae(PAYLOAD_TYPE, payload)
    if args.key is not None:
        signature = hmac_signature(_key(args).secret, PAYLOAD_TYPE, payload)
    elif args.signature is not None:
        data = _read(args.signature, "--signature")
        why_not = _no_signature(data, pae(PAYLOAD_TYPE, payload))
        if why_not is not None:
            raise UsageError(f"--signature {args.signature}: {why_not}")
        signature = Signature(data, args.keyid)
    else:
        return payload + b"\n"
    return Envelope(PAYLOAD_TYPE, payload, (signature,)).to_bytes()


def _no_signature(data: bytes, signed: bytes) -> str | None:
    """What is plainly wrong with the bytes of a signature over `signed`; None where nothing is."""
    if not data:
        return "is empty"
    if data == signed:
        return "holds the bytes to sign; sign them, and name what the tool writes"
    if _BASE64.fullmatch(data):
        return "is base64, and an envelope holds the bytes themselves; decode it with base64 -d"
    return None


def _verify(args: argparse.Namespace) -> int:
    envelope = parse_envelope(_read(args.verify, "--verify"))
    if not hmac_fits(_key(args).secret, envelope):
        raise BatchInvarianceError(f"{args.verify}: no signature in it was made with this key")
    if envelope.payload_type != PAYLOAD_TYPE:
        raise FileFormatError(str(args.verify), [f"its payload is not {PAYLOAD_TYPE}"])
    said = parse_statement(envelope.payload)
    passed = said.result is Result.PASSED
    code = ExitCode.PROMOTABLE if passed else ExitCode.NOT_PROMOTED
    result = "unknown" if said.result is None else said.result.value
    if args.json:
        report = {
            "signature": "fits",
            "result": result,
            "predicate_type": said.predicate_type,
            "subjects": {artifact.name: artifact.sha256 for artifact in said.subjects},
            "exit_code": int(code),
        }
        print(json.dumps(report))
    else:
        print(f"{printable(str(args.verify))}: the HMAC fits; it says {result} of")
        for artifact in said.subjects:
            print(f"  {artifact.sha256}  {printable(artifact.name)}")
    return code


def _key(args: argparse.Namespace) -> SigningKey:
    return read_key(args.key, "--key")


def _read(path: Path, option: str) -> bytes:
    try:
        data = read_at_most(path, MAX_INPUT_BYTES)
    except OSError as error:
        raise UsageError(f"{option} {path}: {error.strerror}") from error
    if data is None:
        raise UsageError(f"{option} {path}: larger than {MAX_INPUT_BYTES >> 20} MiB")
    return data
