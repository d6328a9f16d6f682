"""A policy file's content, read from the object that JSON or TOML gives."""

from __future__ import annotations

import re
from collections.abc import Mapping

from batch_invariance.errors import FileFormatError
from batch_invariance.invariance_diff.cert_reading import CellName
from batch_invariance.invariance_diff.dates import utc_seconds
from batch_invariance.invariance_diff.json_fields import JsonFields
from batch_invariance.invariance_diff.model import Source
from batch_invariance.invariance_diff.policy import DEFAULT_SOURCES, Acceptance, CellPattern, Policy
from batch_invariance.invariance_diff.workset_json import show

VERSION = 1
KEYS = (
    "version",
    "required",
    "sources",
    "max_age_days",
    "model_sha256",
    "server_sha256",
    "cell_sha256",
    "max_prompt_rate_upper_bound_95",
    "min_horizon_tokens",
    "min_runs",
    "accept_amber",
)
ACCEPT_KEYS = ("reason", "signed_off_by", "expires", "cell_sha256")
_PATTERN = re.compile(r"(.+)/([0-9*?]{1,9})/([0-9*?]{1,9})", re.DOTALL)
_CELL = re.compile(r"([^*?]+)/([0-9]{1,9})/([0-9]{1,9})")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?", re.ASCII)


def read_policy(value: Mapping[str, object], what: str) -> Policy:
    """The policy; `what` names the file in the error.

    Raises FileFormatError with every fault: an unknown key, a wrong type, a missing or empty
    `required`, an empty list of digests or sources, an acceptance without reason or signature.
    """
    fields = JsonFields(value)
    fields.only(KEYS)
    if fields.count("version") != VERSION:
        fields.fault("version", f"must be {VERSION}")
    required = _patterns(fields)
    policy = Policy(
        required=required,
        sources=_sources(fields),
        max_age_days=_from_one(fields, "max_age_days"),
        model_sha256=_digests(fields, "model_sha256"),
        server_sha256=_digests(fields, "server_sha256"),
        cell_sha256=_digests(fields, "cell_sha256"),
        max_bound=_rate(fields, "max_prompt_rate_upper_bound_95"),
        min_horizon_tokens=_from_one(fields, "min_horizon_tokens"),
        min_runs=_from_one(fields, "min_runs"),
        accept_amber=_acceptances(fields, required),
    )
    if fields.issues:
        raise FileFormatError(what, fields.issues)
    return policy


def _patterns(fields: JsonFields) -> tuple[CellPattern, ...]:
    texts = fields.texts("required")
    if not texts:
        fields.fault("required", "name at least one cell as MODEL/CTX/N")
    found = []
    for text in texts:
        match = _PATTERN.fullmatch(text)
        if match is None:
            fields.fault("required", f"{show(text)} is not MODEL/CTX/N, such as my-model/*/4")
        else:
            found.append(CellPattern(*match.groups()))
    return tuple(found)


def _sources(fields: JsonFields) -> tuple[Source, ...]:
    if "sources" not in fields.source:
        return DEFAULT_SOURCES
    texts = fields.texts("sources")
    known = {source.value: source for source in Source}
    for text in texts:
        if text not in known:
            fields.fault("sources", f"{show(text)} is none of {', '.join(known)}")
    if not texts:
        fields.fault("sources", "an empty list allows nothing; leave it out for live")
    return tuple(known[text] for text in texts if text in known)


def _digests(fields: JsonFields, key: str) -> tuple[str, ...]:
    texts = fields.texts(key)
    if key in fields.source and not texts:
        fields.fault(key, "an empty list allows nothing; leave it out to ask for none")
    digests = [_digest(fields, key, text) for text in texts]
    return tuple(digest for digest in digests if digest is not None)


def _digest(fields: JsonFields, key: str, text: str | None) -> str | None:
    """The digest in lower case; None where there is no text, and for one that is no digest."""
    if text is None:
        return None
    if not _DIGEST.fullmatch(text.lower()):
        fields.fault(key, f"{show(text)} is no SHA-256 in hexadecimal")
        return None
    return text.lower()


def _from_one(fields: JsonFields, key: str) -> int | None:
    value = fields.count(key)
    if value == 0 or (key in fields.source and fields.source[key] is None):
        fields.fault(key, "give a whole number from 1")
    return value


def _rate(fields: JsonFields, key: str) -> float | None:
    """A number, or the same in quotes, which is how TOML's subset for Python 3.10 spells it."""
    given = fields.source.get(key)
    quoted = isinstance(given, str) and _NUMBER.fullmatch(given)
    rate = float(str(given)) if quoted else fields.number(key)
    if key in fields.source and (rate is None or not 0 < rate <= 1):
        fields.fault(key, "give a rate above 0, 1 at most")
    return rate


def _acceptances(fields: JsonFields, required: tuple[CellPattern, ...]) -> tuple[Acceptance, ...]:
    entries = fields.part("accept_amber")
    found = []
    for name, value in entries.source.items():
        if not isinstance(value, dict):
            entries.fault(name, "is not a table with reason and signed_off_by")
            continue
        entry = JsonFields(value, fields.issues, f"accept_amber.{name}.")
        entry.only(ACCEPT_KEYS)
        for key in ("expires", "cell_sha256"):
            if key in entry.source and entry.source[key] is None:
                entry.fault(key, "say it, or leave it out")
        expires = entry.text("expires")
        if expires is not None and utc_seconds(f"{expires}T00:00:00Z") is None:
            entry.fault("expires", f"{show(expires)} is no day as YYYY-MM-DD")
        reason, signer = _words(entry, "reason"), _words(entry, "signed_off_by")
        digest = _digest(entry, "cell_sha256", entry.text("cell_sha256"))
        match = _CELL.fullmatch(name)
        if match is None:
            entries.fault(name, "is not one cell as MODEL/CTX/N, without * and ?")
            continue
        cell = CellName(match[1], int(match[2]), int(match[3]))
        if not any(pattern.matches(cell) for pattern in required):
            entries.fault(name, "no entry of required names this cell")
        found.append(Acceptance(cell, reason, signer, expires, digest))
    return tuple(found)


def _words(entry: JsonFields, key: str) -> str:
    text = " ".join((entry.text(key) or "").split())
    if not text:
        entry.fault(key, "say it in words")
    return text
