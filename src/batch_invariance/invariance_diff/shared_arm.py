"""Arms A and A2 run once and shared by every N of a sweep: what must be equal, and how it is bound.

Neither arm depends on N: both run on one slot, with the bodies that every arm sends. They are run
in an evidence file of their own, the origin, and each cell's evidence holds a copy of its records.
From the copy the origin is put together again, header and footer included, and its digest must
come out. So a copy that was changed, that lacks a record or that is another cell's is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from batch_invariance.errors import EvidenceError
from batch_invariance.invariance_diff.codec import to_json
from batch_invariance.invariance_diff.evidence import EvidenceEncoder
from batch_invariance.invariance_diff.model import Arm, Trial
from batch_invariance.invariance_diff.records import (
    ControlPlan,
    Footer,
    Header,
    Observer,
    PassStart,
    Record,
    SharedArm,
)

SHARED = (Arm.A, Arm.A2)
_COPIED = (*SHARED, Arm.WARMUP)
_OWN_RECORDS = (ControlPlan, Footer, Header, SharedArm)
_MACHINE = ("machine", "processor", "cpu_count")
"""What of the observer must be equal: the arithmetic of one machine is not another's."""


@dataclass(frozen=True, slots=True)
class SharedArmRef:
    """Where a cell's arms A and A2 come from: the origin's file, its digest, when and by whom it
    was run, and how many of its records the evidence copies."""

    file: str
    sha256: str
    n_records: int
    ts_utc: str
    observer: Observer


def shared_header(header: Header) -> Header:
    """The header under which arms A and A2 of a cell run alone, on one slot, for every N."""
    plan = replace(
        header.plan,
        passes=tuple(p for p in header.plan.passes if p.arm in SHARED),
        confirm_limit=0,
        logit_drift=None,
        schedule=None,
        listed=(),
    )
    return replace(header, cell=replace(header.cell, dispatch_n=1), plan=plan)


def sharing_faults(header: Header, origin: Header) -> list[str]:
    """Why `origin` is not the shared arm of the cell of `header`; empty where it is.

    All that could change what the arms record must be equal: model, server, context per slot,
    flags, environment, sampling, work-set, scorer, rules and machine.
    """
    wanted, found = comparable(shared_header(header)), comparable(origin)
    faults = [
        f"{name} is {_short(found.get(name))}, the cell has {_short(wanted.get(name))}"
        for name in sorted(wanted.keys() | found.keys())
        if wanted.get(name) != found.get(name)
    ]
    return faults + _other_machine(header.observer, origin.observer)


def comparable(header: Header) -> Mapping[str, object]:
    """What a run is about, by dotted names: all of its header but when and by whom it is run."""
    fields = to_json(header)
    for name in ("ts_utc", "observer"):
        del fields[name]
    del fields["subject"]["model"]["sha256_from"]
    # The items are long, and their digest is that of the work-set.
    del fields["workset"]["items"]
    flat: dict[str, object] = {}
    _flatten(fields, "", flat)
    return flat


def _flatten(value: Mapping[str, Any], prefix: str, into: dict[str, object]) -> None:
    for name, inner in value.items():
        if isinstance(inner, dict):
            _flatten(inner, f"{prefix}{name}.", into)
        else:
            into[prefix + name] = inner


def _other_machine(own: Observer, origin: Observer) -> list[str]:
    return [
        f"observer.{name} is {getattr(origin, name)}, this machine has {getattr(own, name)}"
        for name in _MACHINE
        if getattr(own, name) != getattr(origin, name)
    ]


def _short(value: object, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


class CopiedArm:
    """Follows the copied records of one evidence file and checks them against their origin."""

    def __init__(self, header: Header, record: SharedArm) -> None:
        """Raises EvidenceError for a record that no sweep writes."""
        self.record = record
        self._left = record.n_records
        self._n_trials = 0
        self._encoder = EvidenceEncoder()
        model = replace(header.subject.model, sha256_from=record.model_sha256_from)
        origin = replace(
            shared_header(header),
            ts_utc=record.ts_utc,
            observer=record.observer,
            subject=replace(header.subject, model=model),
        )
        if record.n_records < 1:
            raise self._refused("nothing was copied")
        other = _other_machine(header.observer, record.observer)
        if other:
            raise self._refused("; ".join(other))
        self._digest = hashlib.sha256(self._encoder.encode(origin))

    def take(self, record: Record) -> bool:
        """Takes the next record; whether it was the last of the copy.

        Raises EvidenceError for one that arms A and A2 do not write, and at the last one where the
        origin's digest does not come out.
        """
        foreign = isinstance(record, PassStart) and record.arm not in _COPIED
        if foreign or isinstance(record, _OWN_RECORDS):
            raise self._refused("a copied record is not of arms A and A2")
        self._n_trials += isinstance(record, Trial)
        self._digest.update(self._encoder.encode(record))
        self._left -= 1
        if self._left:
            return False
        footer = self.record.footer
        if footer.n_trials != self._n_trials:
            raise self._refused(f"it has {self._n_trials} trials, its footer {footer.n_trials}")
        self._digest.update(self._encoder.encode(footer))
        if self._digest.hexdigest() != self.record.sha256:
            raise self._refused("the copied records are not those of its origin for this cell")
        return True

    def cut_off(self) -> EvidenceError:
        """The error for a file that ends inside the copy."""
        return self._refused(f"{self._left} of {self.record.n_records} records are missing")

    def _refused(self, why: str) -> EvidenceError:
        return EvidenceError("evidence", [f"shared arm {_short(self.record.file)}: {why}"])


def reference_of(record: SharedArm) -> SharedArmRef:
    """What a certificate says of a shared arm."""
    return SharedArmRef(
        record.file, record.sha256, record.n_records, record.ts_utc, record.observer
    )
