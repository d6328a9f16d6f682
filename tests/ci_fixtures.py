"""Certificates of every colour with their evidence, written into a folder without a server."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from batch_invariance.errors import BatchInvarianceError
from batch_invariance.invariance_diff.cert_reading import CertView, read_view
from batch_invariance.invariance_diff.certificate import certify
from batch_invariance.invariance_diff.dates import utc_seconds
from batch_invariance.invariance_diff.model import Arm, Source, Trial
from batch_invariance.invariance_diff.records import LifetimeStart
from batch_invariance.live_invariance.store import cell_paths
from core_fixtures import (
    Change,
    Ideal,
    Records,
    confirmed,
    encode,
    in_arm,
    lost,
    on_cell,
    on_header,
    on_kind,
    on_trials,
    then,
    trial_of,
    with_result,
    with_scored,
)

LENGTH = 24
RUN_AT = "2026-01-02T03:04:05Z"
NOW_S = float(utc_seconds(RUN_AT) or 0) + 86_400
"""A day after the run."""


def unchanged(records: Records) -> Records:
    return records


def diverging(change: Callable[[Trial], Trial]) -> Change:
    """One trial of C changed, and its item confirmed alone on the lane where it diverged."""

    def changed(records: Records) -> Records:
        lane = trial_of(records, in_arm(Arm.C, 0, 3)).lane
        records = on_trials(in_arm(Arm.C, 0, 3), change)(records)
        return confirmed((3, lane))(records)

    return changed


ANOTHER_TEXT = with_result(text="another text")
ANOTHER_SCORE = with_scored(extracted_answer="y", score=0.0, passed=False)
RED = diverging(lambda trial: ANOTHER_SCORE(ANOTHER_TEXT(trial)))
AMBER = diverging(ANOTHER_TEXT)
UNVERIFIED = on_trials(in_arm(Arm.C, 0, 3), lost())
CANARY = on_header(lambda header: replace(header, source=Source.CANARY))
MOCK = on_header(lambda header: replace(header, source=Source.MOCK))


def at(ts_utc: str) -> Change:
    return on_header(lambda header: replace(header, ts_utc=ts_utc))


def on_subject(**changes: object) -> Change:
    return on_header(
        lambda h: replace(h, subject=replace(h.subject, **changes))  # type: ignore[arg-type]
    )


def on_model(**changes: object) -> Change:
    return on_header(
        lambda h: replace(
            h,
            subject=replace(h.subject, model=replace(h.subject.model, **changes)),  # type: ignore[arg-type]
        )
    )


def on_launches(**changes: object) -> Change:
    return on_kind(LifetimeStart, lambda r: replace(r, **changes))


@cache
def _ideal() -> Records:
    return Ideal([LENGTH] * 20).records()


def write_cert(folder: Path, change: Change = unchanged, **cell: object) -> Path:
    """The certificate of an ideal run of 20 items at N=4, changed, with its evidence beside it."""
    change = then(change, on_cell(**cell)) if cell else change
    records = change(_ideal())
    header = next(iter(records))
    named = header.cell  # type: ignore[union-attr]
    folder.mkdir(parents=True, exist_ok=True)
    paths = cell_paths(folder, named.model, named.ctx, named.dispatch_n)
    lines = encode(records)
    paths.evidence.write_bytes(b"".join(lines))
    paths.certificate.write_bytes(certify(lines, paths.evidence.name).to_bytes())
    return paths.certificate


def view(path: Path) -> CertView:
    return read_view(json.loads(path.read_bytes()))


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Edits a certificate by hand, in the form in which certificates are written."""
    cert = json.loads(path.read_bytes())
    change(cert)
    path.write_text(json.dumps(cert, sort_keys=True, indent=2) + "\n", "ascii")


def write_policy(folder: Path, *required: str, **asked: object) -> Path:
    path = folder / "policy.json"
    value: Mapping[str, object] = {"version": 1, "required": list(required), **asked}
    path.write_text(json.dumps(value), "utf-8")
    return path


@dataclass(frozen=True)
class Done:
    """What a command line came to."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.stdout)
        return value

    @property
    def lines(self) -> list[str]:
        return self.stdout.splitlines()


def call(verb: Any, capsys: pytest.CaptureFixture[str], *words: object) -> Done:
    """One verb with its words, errors turned into exit codes as the program does."""
    parser = argparse.ArgumentParser()
    verb.add_parser(parser.add_subparsers())
    name = verb.__name__.rpartition(".")[2]
    capsys.readouterr()
    texts: Sequence[str] = [str(word) for word in words]
    try:
        args = parser.parse_args([name, *texts])
        code = int(args.run(args, ()))
        said = ""
    except SystemExit as end:
        code, said = int(end.code or 0), ""
    except BatchInvarianceError as error:
        code, said = error.exit_code, str(error)
    out, err = capsys.readouterr()
    return Done(code, out, err + said)
