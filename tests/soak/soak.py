"""A canary cell again and again, a third of the runs ended at random: what is left behind?

    python tests/soak/soak.py --server-bin S [--runs 200] [--seed 1] [--work DIR] [--results FILE]

Every third run is ended at a random moment by a random signal; a half of those that can go on are
resumed. After each run nothing of it may be left: no process that was started for it, no port that
answers, no temporary file, no evidence that cannot be read, no certificate of another verdict than
GREEN, which is what the canary comes to; on a busy machine it may miss the proof that batches
formed. The first fault ends the soak with exit 1.

What is done is a matter of the seed and the number of the run alone; when, of the machine. The
results so far are in DIR (default: a folder for temporary files, removed at the end): the same
command goes on there, up to `--runs`. Linux only, because it reads `/proc`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from soak_checks import (  # noqa: E402
    SoakFault,
    expected_codes,
    ports,
    processes_with,
    stage_of,
    tally,
    whole_records,
)

from batch_invariance.invariance_diff.verify import verify_certificate  # noqa: E402
from batch_invariance.live_invariance.evidence_file import read_lines  # noqa: E402
from batch_invariance.live_invariance.host import host_facts  # noqa: E402
from batch_invariance.live_invariance.resume import read_interrupted  # noqa: E402
from live_equipment import find_server  # noqa: E402

TOKEN = "BATCH_INVARIANCE_SOAK"
"""A variable that every process of a run inherits, and by which it is found again."""
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGKILL", "SIGINT twice")
GONE_S = 5.0
"""How long a server may outlive a driver that was killed."""
UNMET = {"F1_overlap", "F3_coverage", "sample"}
"""Gates that an honest run may fail on a busy machine: its requests met too seldom."""
LENGTH = ("--passes", "4", "--max-tokens", "48")
TWICE_S = 0.2
RUN_LIMIT_S = 600.0
RESULTS = Path(__file__).with_name("results.txt")
FOLDERS = ("certs", "tmp", "cache")


@dataclass(frozen=True)
class Done:
    """What became of one run. `after`: at which of its seconds it was ended, `stage`: how far its
    evidence had come by then. `resumed`: it was ended and went on to its verdict."""

    index: int
    planned: str
    after: float
    exit_code: int
    stage: str
    verdict: str
    resumed: bool
    seconds: float


class Soak:
    """The folders of the soak and what was done in them."""

    def __init__(self, server: Path, seed: int, work: Path) -> None:
        self.server = server
        self.seed = seed
        self.work = work
        self.certs, self.tmp = work / "certs", work / "tmp"
        self.journal = work / "journal.jsonl"
        for name in FOLDERS:
            (work / name).mkdir(parents=True, exist_ok=True)
        lines = self.journal.read_text().splitlines() if self.journal.exists() else []
        self.done = [Done(**json.loads(line)) for line in lines]

    def run(self) -> Done:
        """One more run, and all that is checked after it."""
        index = len(self.done)
        rng = random.Random(f"{self.seed}:{index}")
        whole = [d.seconds for d in self.done if d.planned == "none"]
        ended = index % 3 == 2
        planned = rng.choice(SIGNALS) if ended else "none"
        # The first two runs are whole, so that the length of one is known.
        after = rng.uniform(0.0, 1.05) * statistics.median(whole) if ended else 0.0
        token, before = uuid.uuid4().hex, self._stands()
        began = time.monotonic()
        code = self._command(token, self._cell(), planned, after)
        seconds = time.monotonic() - began
        self._check_left(token)
        if before and self._stands() == before:
            # Ended before it touched anything: the older run's files stand, as they should.
            stage, verdict = "nothing", "none"
        else:
            stage, verdict = self._check_files()
        self._check_code(planned, code, verdict)
        resumed = ended and verdict == "none" and stage != "nothing" and rng.random() < 0.5
        if resumed:
            self._resume(stage)
        done = Done(index, planned, after, code, stage, verdict, resumed, seconds)
        with self.journal.open("a") as file:
            file.write(json.dumps(asdict(done)) + "\n")
        self.done.append(done)
        return done

    def _cell(self) -> list[str]:
        words = ["run-live", "--server-bin", str(self.server), "--canary", *LENGTH]
        return [*words, "--out-dir", str(self.certs), "--quiet"]

    def _command(self, token: str, words: Sequence[str], planned: str, after: float) -> int:
        """Runs the program, ends it as planned, and returns its exit status."""
        environment = {
            **os.environ,
            TOKEN: token,
            "PYTHONPATH": str(ROOT / "src"),
            "TMPDIR": str(self.tmp),
            "XDG_CACHE_HOME": str(self.work / "cache"),
        }
        with (self.work / "output.txt").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "batch_invariance", *words],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            try:
                if planned != "none":
                    self._end(process, planned, after)
                return process.wait(RUN_LIMIT_S)
            finally:
                process.kill()

    def _end(self, process: subprocess.Popen[bytes], planned: str, after: float) -> None:
        name, _, twice = planned.partition(" ")
        for wait_s in (after, TWICE_S) if twice else (after,):
            try:
                process.wait(wait_s)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.Signals[name])

    def _check_left(self, token: str) -> None:
        """Neither a process nor a temporary file."""
        needle = f"{TOKEN}={token}".encode()
        deadline = time.monotonic() + GONE_S
        while True:
            left = [*processes_with(needle), *(str(path) for path in self.tmp.iterdir())]
            if not left:
                break
            if time.monotonic() > deadline:
                raise SoakFault(f"left behind: {', '.join(left)}")
            time.sleep(0.02)
        halves = [path.name for path in self.certs.glob(".tmp-*")]
        if halves:
            raise SoakFault(f"half written: {', '.join(halves)}")

    def _evidence(self) -> Path | None:
        found = [p for p in self.certs.glob("*.evidence.jsonl") if ".previous." not in p.name]
        return found[0] if found else None

    def _stands(self) -> dict[str, bytes]:
        """The files of the latest run that wrote any."""
        return {p.name: p.read_bytes() for p in self.certs.iterdir() if ".previous." not in p.name}

    def _check_code(self, planned: str, code: int, verdict: str) -> None:
        expected = expected_codes(planned)
        if code not in expected:
            raise SoakFault(f"exit status {code} after {planned}, not one of {sorted(expected)}")
        # A signal may come when the certificate is written and the program not yet at its end.
        if (code == 0 and verdict != "GREEN") or (
            verdict == "GREEN" and code and planned == "none"
        ):
            raise SoakFault(f"exit status {code} beside the verdict {verdict}")

    def _check_files(self) -> tuple[str, str]:
        """(how far the evidence came, the certificate's verdict), after looking at both."""
        evidence = self._evidence()
        records = [] if evidence is None else whole_records(evidence)
        for port in ports(records):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    raise SoakFault(f"port {port} still answers")
        certificates = [p for p in self.certs.glob("*.json") if ".previous." not in p.name]
        verdict = "none"
        for path in certificates:
            data = path.read_bytes()
            certificate = json.loads(data)
            verdict = certificate["verdict"]
            gates = {reason.partition(":")[0] for reason in certificate["decision_reasons"]}
            problems = (
                () if evidence is None else verify_certificate(data, read_lines(evidence)).problems
            )
            unmet = verdict == "UNVERIFIED" and gates <= UNMET
            if not (verdict == "GREEN" or unmet) or evidence is None or problems:
                raise SoakFault(f"{path.name} is {verdict}: {sorted(gates)}; {'; '.join(problems)}")
        # One that lacks its certificate alone gets it from `resume`.
        if verdict == "none" and evidence is not None and records and stage_of(records) != "end":
            read_interrupted(evidence)
        return stage_of(records), verdict

    def _resume(self, stage: str) -> None:
        evidence = self._evidence()
        token = uuid.uuid4().hex
        code = self._command(token, ["resume", str(evidence), "--quiet"], "none", 0.0)
        self._check_left(token)
        # Without a first launch nothing says which server it was.
        wanted = {2} if stage == "header" else {0, 3}
        if code not in wanted:
            raise SoakFault(f"resume ends with {code} after {stage}, not one of {sorted(wanted)}")
        if stage != "header":
            self._check_files()


def report(soak: Soak, fault: str | None) -> str:
    """What the soak came to."""
    host = host_facts()
    done = soak.done
    ended = [d for d in done if d.planned != "none"]
    whole = [d for d in done if d.planned == "none"]
    seconds = [d.seconds for d in whole] or [0.0]
    version = subprocess.run([soak.server, "--version"], capture_output=True, text=True)
    lines = [
        f"machine     {host.cpu_model}, {host.cpu_count} cores, {host.system}",
        f"python      {platform.python_version()}",
        f"server      {soak.server.name}: {(version.stderr + version.stdout).splitlines()[0]}",
        f"command     python tests/soak/soak.py --runs {len(done)} --seed {soak.seed}",
        f"runs        {len(done)}, of which {len(whole)} were left alone: "
        f"{tally(d.verdict for d in whole)}, median {statistics.median(seconds):.1f} s",
        f"ended       {len(ended)}: {tally(d.planned for d in ended)}",
        f"came to     {tally(d.stage for d in ended)}",
        f"exit status {tally(str(d.exit_code) for d in ended)}",
        f"resumed     {sum(d.resumed for d in done)}, each to its verdict",
        f"fault       {fault or 'none: no process, port, temporary file, unreadable evidence or'}",
    ]
    if fault is None:
        lines.append("            wrong verdict was left by any run")
    return "\n".join(lines) + "\n"


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--server-bin", type=Path, help="default: that of the live tests")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=Path, help="a folder to go on in")
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """The exit status: 1 at the first fault."""
    args = parse(argv)
    found = args.server_bin or find_server().path
    if found is None:
        print("no server: name one with --server-bin", file=sys.stderr)
        return 2
    work = args.work or Path(tempfile.mkdtemp(prefix="batch-invariance-soak-"))
    soak = Soak(Path(found).absolute(), args.seed, work)
    fault: str | None = None
    try:
        while len(soak.done) < args.runs and fault is None:
            try:
                done = soak.run()
            except SoakFault as error:
                fault = f"run {len(soak.done)}: {error}"
            else:
                print(f"{done.index}: {done.planned}, {done.stage}, {done.verdict}", flush=True)
        text = report(soak, fault)
        args.results.write_text(text)
        print(text, end="")
    finally:
        if args.work is None and fault is None:
            shutil.rmtree(work, ignore_errors=True)
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
