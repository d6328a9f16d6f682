"""A golden file: the serial answers of a work-set as digests, for later runs to be held against.

It holds no prompt and no answer. Its own digest tells a damaged file from a whole one; it is no
signature. Form and fields: docs/over-time.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from batch_invariance.errors import BatchInvarianceError, FileFormatError
from batch_invariance.invariance_diff.codec import to_json
from batch_invariance.invariance_diff.digest import digest_of
from batch_invariance.invariance_diff.json_fields import JsonFields
from batch_invariance.invariance_diff.model import Source
from batch_invariance.invariance_diff.reference_digests import (
    AnswerDigests,
    Gap,
    reference_faults,
)
from batch_invariance.invariance_diff.strict_json import parse_json
from batch_invariance.invariance_diff.subject_facts import Fact, FactKind, Run, facts_of

GOLDEN_SCHEMA = "golden/1"
_HEX = re.compile(r"[0-9a-f]{64}")
_DIGESTS = ("request_sha256", "text_sha256", "tokens_sha256", "logprobs_sha256")
_ITEM = ("id", *_DIGESTS, "gap")
_FACT = ("kind", "name", "values")
_FILE = (
    *("schema", "model", "source", "ts_utc", "evidence_sha256"),
    *("facts", "items", "content_sha256"),
)


@dataclass(frozen=True, slots=True)
class Golden:
    """What was recorded: the model's name, the source and the start of the run (UTC), the SHA-256
    of its evidence, what is known of the subject, and one entry per item in work-set order."""

    model: str
    source: Source
    ts_utc: str
    evidence_sha256: str
    facts: tuple[Fact, ...]
    items: tuple[AnswerDigests, ...]

    def to_bytes(self) -> bytes:
        """The file's bytes: sorted keys, two spaces, one newline at the end."""
        content = {"schema": GOLDEN_SCHEMA, **to_json(self)}
        content["content_sha256"] = digest_of(content)
        return json.dumps(content, sort_keys=True, indent=2).encode("ascii") + b"\n"

    @property
    def gaps(self) -> Mapping[str, Gap]:
        """The items that no later answer can be held against, by id."""
        return {item.id: item.gap for item in self.items if item.gap is not None}


def record_golden(run: Run, items: tuple[AnswerDigests, ...]) -> Golden:
    """The golden file of a run whose reference has these digests.

    Raises BatchInvarianceError where the serial answers are no reference, or none of them was the
    same twice.
    """
    cert = run.certificate
    faults = reference_faults(cert)
    if faults:
        raise BatchInvarianceError(
            f"nothing recorded, its serial answers are no reference: {'; '.join(faults)}"
        )
    golden = Golden(
        cert.model, cert.source, cert.ts_utc, cert.evidence.sha256, facts_of(run), items
    )
    if len(golden.gaps) == len(items):
        raise BatchInvarianceError("nothing recorded: no item was answered the same way twice")
    return golden


def parse_golden(data: bytes, what: str = "golden file") -> Golden:
    """The golden file in these bytes; `what` names it.

    Raises FileFormatError with every fault: a field that is absent, unknown or of a wrong type,
    another schema, an id given twice, no item at all, a digest that is not that of the content.
    """
    try:
        value = parse_json(data)
    except ValueError as error:
        raise FileFormatError(what, [f"is not JSON: {error}"[:200]]) from None
    if not isinstance(value, dict):
        raise FileFormatError(what, ["is not a JSON object"])
    if value.get("schema") != GOLDEN_SCHEMA:
        raise FileFormatError(what, [f"its schema is not {GOLDEN_SCHEMA!r}, which this reads"])
    fields = JsonFields(value)
    golden = _golden(fields)
    if golden is None or fields.issues:
        raise FileFormatError(what, fields.issues)
    content = {name: entry for name, entry in value.items() if name != "content_sha256"}
    if value["content_sha256"] != digest_of(content):
        raise FileFormatError(what, ["content_sha256 is not that of its content: it was changed"])
    return golden


def _golden(fields: JsonFields) -> Golden | None:
    """The file's content; None, with the faults on the list, where something is missing."""
    _exactly(fields, _FILE)
    facts = tuple(_fact(row) for row in fields.rows("facts"))
    items = tuple(_item(row) for row in fields.rows("items"))
    _once(fields, "items", [item.id for item in items])
    _once(fields, "facts", [f"{fact.kind.value} {fact.name}" for fact in facts])
    if not items:
        fields.fault("items", "there is none")
    _digest(fields, "content_sha256")
    evidence = _digest(fields, "evidence_sha256")
    model, source = _text(fields, "model"), fields.word("source", Source)
    ts_utc = _text(fields, "ts_utc")
    if source is None or evidence is None:
        return None
    return Golden(model, source, ts_utc, evidence, facts, items)


def _fact(fields: JsonFields) -> Fact:
    _exactly(fields, _FACT)
    kind = fields.word("kind", FactKind)
    if kind is None:
        fields.fault("kind", "is missing")
    values = None if fields.source.get("values") is None else fields.texts("values")
    return Fact(kind or FactKind.MODEL, _text(fields, "name"), values)


def _item(fields: JsonFields) -> AnswerDigests:
    _exactly(fields, _ITEM)
    gap = fields.word("gap", Gap)
    request, text, tokens, logprobs = (_digest(fields, name) for name in _DIGESTS)
    if gap is not None and (text or tokens or logprobs):
        fields.fault("gap", "is given beside digests of an answer")
    if gap is None and (request is None or text is None):
        fields.fault("gap", "is not given, and neither are the digests of request and text")
    return AnswerDigests(_text(fields, "id"), request, text, tokens, logprobs, gap)


def _exactly(fields: JsonFields, names: tuple[str, ...]) -> None:
    fields.only(names)
    for name in names:
        if name not in fields.source:
            fields.fault(name, "is missing")


def _text(fields: JsonFields, name: str) -> str:
    value = fields.text(name)
    if not value and fields.source.get(name) in (None, ""):
        fields.fault(name, "is empty")
    return value or ""


def _digest(fields: JsonFields, name: str) -> str | None:
    value = fields.text(name)
    if value is not None and not _HEX.fullmatch(value):
        fields.fault(name, "is not 64 lower-case hex digits")
    return value


def _once(fields: JsonFields, path: str, names: Sequence[str]) -> None:
    seen: set[str] = set()
    for i, name in enumerate(names):
        if name in seen:
            fields.fault(f"{path}[{i}]", "is there twice")
        seen.add(name)
