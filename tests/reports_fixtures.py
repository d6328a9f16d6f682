"""A user's run of the command line against a fake llama-server, and what it left behind."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import batch_invariance
from batch_invariance.cli.main import main
from batch_invariance.formats.toy_gguf import ToySpec, toy_model_bytes
from batch_invariance.invariance_diff.evidence import EvidenceReader
from batch_invariance.invariance_diff.model import Trial
from batch_invariance.invariance_diff.records import Event, Footer, LifetimeStart, Record
from batch_invariance.live_invariance.evidence_file import read_lines
from fake_faults import Faults
from fake_llama_server import write_fake_server
from in_process import LAUNCHER, InProcessLauncher

N_ITEMS = 8
QUICK = {"gather_s": 0.02, "tick_s": 0.0}
"""An idle fake waits this long for a wave's second request, also on a busy machine."""
CTX = 512

Prompts = Sequence[str] | Sequence[Mapping[str, object]]


@dataclass(frozen=True)
class Outcome:
    """What a user sees of one finished run: exit code, both streams, and the files."""

    code: int
    stdout: str
    stderr: str
    out_dir: Path

    @property
    def certificate_path(self) -> Path:
        (path,) = (p for p in self.certificates() if ".previous." not in p.name)
        return path

    @property
    def evidence_path(self) -> Path:
        (path,) = (p for p in self.out_dir.glob("*.evidence.jsonl") if ".previous." not in p.name)
        return path

    def certificates(self) -> list[Path]:
        return sorted(self.out_dir.glob("*.json")) if self.out_dir.is_dir() else []

    @property
    def cert(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.certificate_path.read_bytes())
        return document

    @property
    def verdict(self) -> str:
        return str(self.cert["verdict"])

    def gate(self, name: str) -> dict[str, Any]:
        (row,) = (row for row in self.cert["gates"] if row["gate"] == name)
        return dict(row)

    def not_passed(self) -> dict[str, str]:
        """Every gate that is neither passed nor not applicable, with its reason."""
        return {
            row["gate"]: row["reason"]
            for row in self.cert["gates"]
            if row["outcome"] in ("FAIL", "UNKNOWN")
        }

    def lost_kinds(self) -> set[str]:
        return {lost["kind"] for lost in self.cert["lost_trials"]}

    def records(self) -> list[Record]:
        return list(EvidenceReader(read_lines(self.evidence_path)))

    def trials(self) -> list[Trial]:
        return [record for record in self.records() if isinstance(record, Trial)]

    def events(self) -> list[Event]:
        return [record for record in self.records() if isinstance(record, Event)]

    def starts(self) -> list[LifetimeStart]:
        return [record for record in self.records() if isinstance(record, LifetimeStart)]

    def footer(self) -> Footer:
        last = self.records()[-1]
        assert isinstance(last, Footer)
        return last


def cli(*words: object, out_dir: Path | None = None) -> Outcome:
    """Run one command line in this process, away from the user's cache of model digests."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        cache = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("XDG_CACHE_HOME", cache)
        try:
            code = int(main([str(word) for word in words]))
        except SystemExit as end:
            code = int(end.code or 0)
    return Outcome(code, out.getvalue(), err.getvalue(), out_dir or Path("no-out-dir"))


def prompts(n: int = N_ITEMS) -> list[dict[str, object]]:
    return [{"id": f"q{i}", "prompt": f"Question {i}: name a river, say why."} for i in range(n)]


@dataclass(frozen=True)
class Cell:
    """A cell in a folder of its own: model, work-set, server and output folder.

    `words` is the `run-live` command line with `--parallel 2`, or as `more` overrides it.
    `in_process`: the faults of a fake that `run` keeps in this process.
    """

    folder: Path
    server: Path
    in_process: Faults | None = None

    @property
    def out_dir(self) -> Path:
        return self.folder / "certs"

    @property
    def model(self) -> Path:
        return self.folder / "toy.gguf"

    @property
    def workset(self) -> Path:
        return self.folder / "set.json"

    @property
    def journal_path(self) -> Path:
        return self.folder / "journal"

    def words(self, *more: object) -> list[str]:
        words: list[object] = ["run-live", "--server-bin", self.server, "--model", self.model]
        words += ["--workset", self.workset, "--ctx", CTX, "--parallel", 2, "--passes", 3]
        words += ["--max-tokens", 16, "--out-dir", self.out_dir, *more]
        return [str(word) for word in words]

    def run(self, *more: object) -> Outcome:
        return self._cli(*self.words(*more))

    def resume(self, evidence: Path, *more: object) -> Outcome:
        return self._cli("resume", evidence, *more)

    def _cli(self, *words: object) -> Outcome:
        with pytest.MonkeyPatch.context() as patch:
            if self.in_process is not None:
                patch.setattr(LAUNCHER, partial(InProcessLauncher, faults=self.in_process))
            return cli(*words, out_dir=self.out_dir)

    def journal(self) -> list[dict[str, Any]]:
        return read_journal(self.journal_path)

    def starts(self) -> list[dict[str, Any]]:
        return [entry for entry in self.journal() if "pid" in entry]

    def bodies(self) -> list[str]:
        return [entry["body"] for entry in self.journal() if "body" in entry]


def read_journal(path: Path) -> list[dict[str, Any]]:
    """What the fake wrote down; empty before its first start."""
    if not path.exists():
        return []
    # A line that is still being written has no end yet.
    lines = path.read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines]


@functools.cache
def toy_model() -> bytes:
    return toy_model_bytes(ToySpec.parse("q8_0"))


def make_cell(
    folder: Path, items: Prompts | None = None, in_process: bool = False, **faults: Any
) -> Cell:
    """A cell against a fake with these faults; every fake keeps a journal."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "toy.gguf").write_bytes(toy_model())
    (folder / "set.json").write_text(json.dumps(prompts() if items is None else list(items)))
    quick = {"behaviour": {**QUICK, **faults.pop("behaviour", {})}}
    planted = {**quick, "journal": str(folder / "journal"), **faults}
    server = write_fake_server(folder, **planted)
    return Cell(folder, server, Faults(**planted) if in_process else None)


def light_cell(folder: Path, items: Prompts | None = None, **faults: Any) -> Cell:
    """A cell whose fake runs in this process: for faults that need no process of their own."""
    return make_cell(folder, items, in_process=True, **faults)


def start_cli(words: Sequence[str], tmp_dir: Path, stderr: Path) -> subprocess.Popen[bytes]:
    """Start one command line as a process of its own, with `tmp_dir` for its temporary files."""
    tmp_dir.mkdir()
    with stderr.open("wb") as sink:
        return subprocess.Popen(
            [sys.executable, "-m", "batch_invariance", *words],
            env=cli_environment(tmp_dir),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
        )


def cli_environment(tmp_dir: Path) -> dict[str, str]:
    """What a command line in a process of its own needs of the environment."""
    return {
        **os.environ,
        "PYTHONPATH": str(Path(batch_invariance.__file__).parents[1]),
        "TMPDIR": str(tmp_dir),
        "XDG_CACHE_HOME": str(tmp_dir.parent / "cache"),
    }
