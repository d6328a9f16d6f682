"""The parsers: what each is fed, and what it may answer.

Every one of them gives a value or raises its one documented error, in one line. Some go on with the
value, as their callers do, because a value that cannot be used is no success.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

from batch_invariance.cli.gate import parse_policy
from batch_invariance.cli.matrix_options import parse_plan
from batch_invariance.errors import (
    BatchInvarianceError,
    CaseError,
    CertificateError,
    EvidenceError,
    FileFormatError,
    GgufError,
    RegistryError,
    ScheduleError,
    UsageError,
    WorkSetError,
)
from batch_invariance.formats.case_report import case_report
from batch_invariance.formats.case_script import case_script, request_files
from batch_invariance.formats.dsse import parse_envelope
from batch_invariance.formats.gguf import model_shape, read_header
from batch_invariance.formats.intoto import parse_statement
from batch_invariance.formats.toml_subset import read_toml_subset
from batch_invariance.invariance_diff.boundary_workset import ties_of
from batch_invariance.invariance_diff.budget import project
from batch_invariance.invariance_diff.case import parse_case
from batch_invariance.invariance_diff.case_judge import Measured, judge_replay
from batch_invariance.invariance_diff.case_removal import removed
from batch_invariance.invariance_diff.cert_reading import lines_of_gates, read_view
from batch_invariance.invariance_diff.certificate import certify
from batch_invariance.invariance_diff.decode_log import DecodeLogParser
from batch_invariance.invariance_diff.diff import margins
from batch_invariance.invariance_diff.digest import digest_of
from batch_invariance.invariance_diff.evidence import (
    EvidenceEncoder,
    EvidenceReader,
    trial_from_fields,
)
from batch_invariance.invariance_diff.golden import Golden, parse_golden
from batch_invariance.invariance_diff.matrix_index import parse_index
from batch_invariance.invariance_diff.matrix_plan import groups_of
from batch_invariance.invariance_diff.model import Completion
from batch_invariance.invariance_diff.policy import Candidate
from batch_invariance.invariance_diff.policy_judge import judge
from batch_invariance.invariance_diff.response import parse_response
from batch_invariance.invariance_diff.schedule_file import check_matches, parse_schedule
from batch_invariance.invariance_diff.signature import parse_signature
from batch_invariance.invariance_diff.strict_json import parse_json
from batch_invariance.invariance_diff.verify import (
    cert_is_green,
    evidence_name,
    is_promotable,
    parse_certificate,
    verify_certificate,
)
from batch_invariance.invariance_diff.workset import parse_workset, workset_to_json
from batch_invariance.invariance_diff.workset_import import ImportFormat, import_workset
from batch_invariance.live_invariance.http import Exchange
from batch_invariance.live_invariance.registry_file import RegistryFile, parse_registry
from batch_invariance.live_invariance.resume import read_interrupted
from batch_invariance.live_invariance.telemetry import busy_slots, parse_metrics
from batch_invariance.live_invariance.toml_text import parse_toml
from case_fixtures import OTHER, answer
from core_fixtures import EVIDENCE_NAME, a_trial
from fuzz import good
from fuzz.mutation import Mutator

Read = Callable[[bytes], object]


class Never(BatchInvarianceError):
    """Raised by nothing: the refusal of a parser that has none, because anything is data to it."""


@dataclass(frozen=True)
class Target:
    """A parser by name. `make` gives an input, `read` feeds it; `refusal` is the documented error.

    Of inputs `share` are made for each that others get, because reading one costs more. At least
    `accepted` of them (a share of 1) must be read without a fault: with fewer, only the beginning
    of the parser would have been reached.
    """

    name: str
    make: Callable[[Mutator], bytes]
    read: Read
    refusal: type[BatchInvarianceError]
    share: float = 1.0
    accepted: float = 0.02


def from_bytes(files: Sequence[bytes], span: int | None = None) -> Callable[[Mutator], bytes]:
    """Damaged files, and every eighth time noise."""

    def make(mutator: Mutator) -> bytes:
        return mutator.noise() if mutator.rng.random() < 0.125 else mutator.damaged(files, span)

    return make


def from_json(values: Sequence[Any]) -> Callable[[Mutator], bytes]:
    """JSON with odd values in it; every third time damaged as bytes, now and then noise."""
    by_bytes = from_bytes([json.dumps(value, indent=1).encode() for value in values])

    def make(mutator: Mutator) -> bytes:
        return by_bytes(mutator) if mutator.rng.random() < 0.35 else mutator.odd_json(values)

    return make


def from_json_lines(values: Sequence[Sequence[Any]]) -> Callable[[Mutator], bytes]:
    """JSON Lines, one line of them odd; every third time damaged as bytes."""
    by_bytes = from_bytes([b"\n".join(json.dumps(v).encode() for v in rows) for rows in values])

    def make(mutator: Mutator) -> bytes:
        if mutator.rng.random() < 0.35:
            return by_bytes(mutator)
        rows = [json.dumps(value).encode() for value in mutator.rng.choice(values)]
        rows[mutator.rng.randrange(len(rows))] = mutator.odd_json(list(mutator.rng.choice(values)))
        return b"\n".join(rows)

    return make


def rechained(files: Sequence[Sequence[bytes]]) -> Callable[[Mutator], bytes]:
    """Evidence in which one or two records are odd and the chain is right all the same."""
    rows = [[json.loads(line) for line in lines] for lines in files]

    def make(mutator: Mutator) -> bytes:
        rng = mutator.rng
        records = list(rng.choice(rows))
        for _ in range(rng.randrange(1, 3)):
            at = rng.randrange(len(records))
            luck = rng.randrange(10)
            if luck == 0:
                del records[at]
            elif luck == 1:
                records.insert(rng.randrange(len(records)), records[at])
            else:
                record = json.loads(json.dumps(records[at]))
                change = mutator.changed if rng.random() < 0.15 else mutator.similar
                for _ in range(rng.randrange(1, 3)):
                    record = change(record)
                records[at] = record
        return _chained(records)

    return make


def _chained(records: Sequence[Any]) -> bytes:
    prev, lines = "0" * 64, []
    for seq, record in enumerate(records):
        if isinstance(record, dict):
            record = {**record, "seq": seq, "prev": prev}
        line = json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
        prev = hashlib.sha256(line).hexdigest()
        lines.append(line + b"\n")
    return b"".join(lines)


# What is read, and what is done with it.


def _certificate(data: bytes) -> None:
    cert = parse_certificate(data)
    cert_is_green(cert)
    is_promotable(cert)
    lines_of_gates(data)
    view = read_view(cert)
    str(view.cell)
    evidence_name(cert)


def _compared(data: bytes) -> None:
    lines = good.evidence()[0]
    verification = verify_certificate(data, lines)
    assert "\n" not in "".join(verification.problems)
    if verification.borne_out:
        assert data == certify(lines, EVIDENCE_NAME).to_bytes()


def _certify(data: bytes) -> None:
    lines = list(BytesIO(data))
    certificate = certify(lines, EVIDENCE_NAME)
    written = certificate.to_bytes()
    read_view(parse_certificate(written))
    if len(data) % 16 == 0:
        assert verify_certificate(written, lines).borne_out


def _evidence(data: bytes) -> None:
    for _ in EvidenceReader(BytesIO(data)):
        pass


def _resume(folder: Path, data: bytes) -> None:
    path = folder / "e.evidence.jsonl"
    path.write_bytes(data)
    read_interrupted(path)


def _workset(data: bytes) -> None:
    workset = parse_workset(data, "w.json")
    again = json.dumps(workset_to_json(workset.items)).encode("ascii")
    assert parse_workset(again, "w.json").sha256 == workset.sha256


def _import(chosen: ImportFormat | None, data: bytes) -> None:
    imported = import_workset(data, "samples_t_2024-01-01T00-00-00.jsonl", chosen, "p-", 5)
    assert imported.workset.items


def _case(data: bytes) -> None:
    """What is read can be written, shown, sent and judged."""
    case = parse_case(data, "case.json")
    assert parse_case(case.to_bytes(), "case.json") == case
    case_report(removed(case))
    case_report(case)
    case_script(case).encode("utf-8", "backslashreplace")
    request_files(case)
    judge_replay(case, Measured((answer(),), (answer(),), (answer(*OTHER),)))


def _schedule(data: bytes) -> None:
    passes = parse_schedule(data, "s.json")
    for entry in passes:
        list(entry.entries())
    check_matches(passes, 4, 2, "s.json")


def _matrix_plan(data: bytes) -> None:
    with contextlib.suppress(UsageError):
        groups_of(parse_plan(data, Path("plan.json")))


def _matrix_index(data: bytes) -> None:
    parse_index(data, "matrix.json").to_bytes()


def _registry(data: bytes) -> None:
    for model in parse_registry(RegistryFile("models.toml", None, data)).models:
        str(model.heading)


def _policy(is_toml: bool, data: bytes) -> None:
    policy = parse_policy(data, is_toml, "policy p")
    views = [read_view(cert) for cert in good.certificates()]
    candidates = [Candidate(f"{i}.json", view, ()) for i, view in enumerate(views)]
    for violation in judge(policy, candidates, 1.8e9).violations:
        str(violation)


def _toml(read: Callable[[str, str], dict[str, object]], data: bytes) -> None:
    read(data.decode("utf-8", "surrogateescape"), "models.toml")


def _golden(sealed: bool, data: bytes) -> None:
    """A golden file, its own digest as it stands or set right, so that what follows is reached."""
    if sealed:
        data = _sealed(data)
    golden: Golden = parse_golden(data)
    assert parse_golden(golden.to_bytes()) == golden


def _sealed(data: bytes) -> bytes:
    try:
        value = parse_json(data)
    except ValueError:
        return data
    if not isinstance(value, dict) or "content_sha256" not in value:
        return data
    content = {name: entry for name, entry in value.items() if name != "content_sha256"}
    return json.dumps({**content, "content_sha256": digest_of(content)}).encode()


def _gguf(data: bytes) -> None:
    header = read_header(BytesIO(data), len(data) if data[-1:] < b"\x80" else None)
    if header.split_count == 1 and header.split_no == 0:
        assert project(model_shape([header]), 256, 1).total_bytes > 0


def _decode_log(data: bytes) -> None:
    parser = DecodeLogParser()
    for at in range(0, len(data), 1000):
        for step in parser.feed(data[at : at + 1000]):
            assert step.participants


def _response(data: bytes) -> None:
    """What came back can be written as evidence and read again, whatever the server sent."""
    status = 500 if data[-1:] == b"0" else 200
    result = parse_response(status, data, 8)
    trial = a_trial(result)
    line = EvidenceEncoder().encode(trial)
    fields = json.loads(line)
    for name in ("seq", "prev", "kind"):
        del fields[name]
    assert trial_from_fields(fields) == trial
    if isinstance(result, Completion):
        margins(result, 1)


def _telemetry(data: bytes) -> None:
    parse_metrics(data)
    busy_slots(Exchange(200, data, None, 0.0, 0.0))


def targets(folder: Path) -> tuple[Target, ...]:
    """Every parser; `folder` is for those that read a file by name."""
    return (*_of_runs(folder), *_of_inputs(), *_of_servers(), *_of_signatures())


def _of_runs(folder: Path) -> tuple[Target, ...]:
    """What a run leaves behind."""
    certificates, evidence = good.certificates(), good.evidence()
    whole = [b"".join(lines) for lines in evidence]
    begun = [b"".join(lines[: len(lines) // 2]) for lines in evidence]
    resume = partial(_resume, folder)
    return (
        Target("certificate", from_json(certificates), _certificate, CertificateError),
        Target("verify", from_json(certificates), _compared, CertificateError, share=0.1),
        Target("evidence", from_bytes(whole), _evidence, EvidenceError, accepted=0.0),
        Target("certify", rechained(evidence), _certify, EvidenceError, share=0.1),
        Target("resume", from_bytes(begun), resume, EvidenceError, share=0.5, accepted=0.0),
    )


def _of_inputs() -> tuple[Target, ...]:
    """What a user brings."""
    batch, lm_eval = from_json_lines(good.BATCH), from_json_lines(good.LM_EVAL)
    either = from_json_lines(good.BATCH + good.LM_EVAL)
    lines = from_bytes((b"one\ntwo\r\n\nthree",))
    listed = from_json_lines(good.WORK_SETS)
    golden = from_json(good.goldens())
    policy, subset = from_bytes(good.TOML[:1]), partial(_toml, read_toml_subset)
    return (
        Target("work-set", from_json(good.WORK_SETS), _workset, WorkSetError),
        Target("work-set-lines", listed, _workset, WorkSetError),
        Target("openai-batch", batch, partial(_import, ImportFormat.OPENAI_BATCH), WorkSetError),
        Target("lm-eval", lm_eval, partial(_import, ImportFormat.LM_EVAL), WorkSetError),
        Target("lines", lines, partial(_import, ImportFormat.LINES), WorkSetError),
        Target("import", either, partial(_import, None), WorkSetError),
        Target("case", from_json(good.cases()), _case, CaseError),
        Target("schedule", from_json(good.SCHEDULES), _schedule, ScheduleError, accepted=0.01),
        Target("matrix plan", from_json(good.PLANS), _matrix_plan, FileFormatError, accepted=0.01),
        Target("matrix index", from_json(good.INDEXES), _matrix_index, FileFormatError),
        Target("registry", from_bytes(good.TOML[1:]), _registry, RegistryError, accepted=0.01),
        Target("policy-json", from_json(good.POLICIES), partial(_policy, False), FileFormatError),
        Target("policy-toml", policy, partial(_policy, True), FileFormatError, accepted=0.005),
        Target("golden", golden, partial(_golden, False), FileFormatError, accepted=0.005),
        Target("golden-sealed", golden, partial(_golden, True), FileFormatError),
        Target("toml", from_bytes(good.TOML), partial(_toml, parse_toml), RegistryError),
        Target("toml-subset", from_bytes(good.TOML), subset, RegistryError),
        Target("gguf", from_bytes(good.models(), 500), _gguf, GgufError),
    )


def _of_servers() -> tuple[Target, ...]:
    """What a server says; nothing of it may end a run."""
    return (
        Target("decode-log", from_bytes(good.logs()), _decode_log, Never, accepted=1.0),
        Target("response", from_json(good.RESPONSES), _response, Never, accepted=1.0),
        Target("ties", from_json(good.TIES), partial(ties_of, 0), Never, accepted=1.0),
        Target("slots", from_json(good.SLOTS), _telemetry, Never, accepted=1.0),
        Target("metrics", from_bytes(good.METRICS), _telemetry, Never, accepted=1.0),
    )


def _of_signatures() -> tuple[Target, ...]:
    """Signatures and what they are around."""
    signature = from_json(good.signatures())
    return (
        Target("envelope", from_json(good.envelopes()), parse_envelope, FileFormatError),
        Target("statement", from_json(good.STATEMENTS), parse_statement, FileFormatError),
        Target("signature", signature, parse_signature, FileFormatError, accepted=0.005),
    )
