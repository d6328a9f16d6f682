"""What the tool costs beside the server: `run-live` against a bare loop of the same requests.

    python tests/bench/bench_overhead.py --server-bin S --model M [--pairs 3]

Each pair runs the reference cell (16 items, 32 tokens, N=4, 8 passes, ctx 2048) with `run-live`,
then sends the same bodies in the same order from a loop that records nothing: two launches of the
same command line, every pass of the evidence, answers read and thrown away. The order within a
pair alternates, because the machine's speed drifts. Printed: seconds of both, and the ratio.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import io
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from batch_invariance.cli.main import main as batch_invariance
from batch_invariance.invariance_diff.evidence import EvidenceReader
from batch_invariance.invariance_diff.model import Arm
from batch_invariance.invariance_diff.records import (
    ControlPlan,
    Header,
    LifetimeStart,
    PassStart,
)
from batch_invariance.invariance_diff.request import Body, ban_token, build_body
from batch_invariance.invariance_diff.schedule import DispatchKind
from batch_invariance.live_invariance.launch import choose_port, scrub_environment
from batch_invariance.live_invariance.passes import WARMUP_TOKENS

CHAT = "/v1/chat/completions"
WORKSET = Path(__file__).parents[2] / "examples" / "workset_short.json"

Step = tuple[PassStart, Callable[[int, int], Body]]


def run_live(args: argparse.Namespace, out_dir: Path) -> float:
    """Seconds of one `run-live` of the reference cell."""
    start = time.monotonic()
    with contextlib.redirect_stdout(io.StringIO()):
        batch_invariance(
            [
                "run-live",
                *("--server-bin", args.server_bin, "--model", args.model),
                *("--workset", str(WORKSET), "--ctx", "2048", "--parallel", "4"),
                *("--max-tokens", "32", "--passes", "8"),
                *("--out-dir", str(out_dir), "--quiet", "--json"),
            ]
        )
    return time.monotonic() - start


def recorded(evidence: Path) -> tuple[list[tuple[str, ...]], list[list[Step]]]:
    """(command line, steps) of each server lifetime of a finished run."""
    commands: list[tuple[str, ...]] = []
    lifetimes: list[list[Step]] = []
    header: Header | None = None
    control: ControlPlan | None = None
    with open(evidence, "rb") as file:
        for record in EvidenceReader(file):
            if isinstance(record, Header):
                header = record
            elif isinstance(record, LifetimeStart):
                commands.append(record.argv)
                lifetimes.append([])
            elif isinstance(record, ControlPlan):
                control = record
            elif isinstance(record, PassStart):
                assert header is not None
                lifetimes[-1].append((record, bodies_of(header, record, control)))
    return commands, lifetimes


def bodies_of(
    header: Header, start: PassStart, control: ControlPlan | None
) -> Callable[[int, int], Body]:
    """(item, occurrence) -> body, as the pass sent it."""
    items, sampling = header.workset.items, header.plan.sampling
    plain = [build_body(item, sampling) for item in items]

    def body(item: int, occurrence: int) -> Body:
        if start.arm is Arm.WARMUP:
            override: dict[str, object] = {"ignore_eos": True, "max_tokens": WARMUP_TOKENS}
            return build_body(items[item], sampling, override)
        if start.arm is Arm.P and control and (item, occurrence) == (control.item, 0):
            return build_body(items[item], sampling, ban_token(control.banned_token))
        return plain[item]

    return body


def bare(commands: Sequence[tuple[str, ...]], lifetimes: Sequence[Sequence[Step]]) -> float:
    """Seconds of the same requests from a loop that records nothing."""
    start = time.monotonic()
    for command, steps in zip(commands, lifetimes, strict=True):
        with tempfile.TemporaryDirectory() as folder:
            serve(command, steps, Path(folder))
    return time.monotonic() - start


def serve(command: tuple[str, ...], steps: Sequence[Step], folder: Path) -> None:
    """One launch and its passes."""
    port, key = choose_port(frozenset()), "bench"
    key_file = folder / "key"
    key_file.write_text(key)
    argv = list(command)
    argv[argv.index("--port") + 1] = str(port)
    argv[argv.index("--api-key-file") + 1] = str(key_file)
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(argv, stdout=log, stderr=log, env=scrub_environment(os.environ))
    try:
        while not healthy(port):
            time.sleep(0.01)
        for record, body in steps:
            send_pass(record, body, port, key)
    finally:
        server.terminate()
        server.wait()


def healthy(port: int) -> bool:
    """Whether the server is ready."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def post(port: int, key: str, body: bytes) -> None:
    """One request; the answer is read and thrown away."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    connection.request("POST", CHAT, body, headers)
    response = connection.getresponse()
    data = response.read()
    connection.close()
    if response.status != 200:
        raise SystemExit(f"the bare loop got {response.status}: {data[:200]!r}")


def send_pass(start: PassStart, body: Callable[[int, int], Body], port: int, key: str) -> None:
    """All requests of one pass in their order."""
    schedule = start.schedule
    entries = list(schedule.entries())
    if schedule.kind is DispatchKind.SATURATE:
        waiting = deque(entries)

        def lane(number: int) -> None:
            while True:
                try:
                    entry = waiting.popleft()
                except IndexError:
                    return
                post(port, key, body(entry.item, entry.occurrence).for_slot(number))

        with ThreadPoolExecutor(schedule.lanes) as pool:
            list(pool.map(lane, range(schedule.lanes)))
        return
    position = 0
    for group in schedule.groups:
        chunk = entries[position : position + len(group)]
        position += len(group)
        barrier = threading.Barrier(len(chunk))

        def one(index: int, chunk: list = chunk, barrier: threading.Barrier = barrier) -> None:
            entry = chunk[index]
            data = body(entry.item, entry.occurrence).for_slot(entry.lane or 0)
            barrier.wait()
            post(port, key, data)

        with ThreadPoolExecutor(len(chunk)) as pool:
            list(pool.map(one, range(len(chunk))))


def pairs(args: argparse.Namespace) -> Iterator[tuple[float, float]]:
    """(run-live, bare) seconds, one pair after the other."""
    with tempfile.TemporaryDirectory() as folder:
        out_dir = Path(folder)
        run_live(args, out_dir)
        evidence = next(p for p in out_dir.glob("*.evidence.jsonl") if "previous" not in p.name)
        commands, lifetimes = recorded(evidence)
        for index in range(args.pairs):
            if index % 2:
                other = bare(commands, lifetimes)
                yield run_live(args, out_dir), other
            else:
                ours = run_live(args, out_dir)
                yield ours, bare(commands, lifetimes)


def main() -> None:
    """Prints every pair and the median ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server-bin", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--pairs", type=int, default=3)
    args = parser.parse_args()
    print(
        f"# {time.strftime('%Y-%m-%d', time.gmtime())}, {os.cpu_count()} cores, "
        f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    )
    print(f"# python {' '.join(sys.argv)}")
    print(f"{'run-live s':>11}{'bare s':>9}{'ratio':>8}")
    ratios = []
    for ours, other in pairs(args):
        ratios.append(ours / other)
        print(f"{ours:11.2f}{other:9.2f}{ours / other:8.3f}", flush=True)
    print(f"median ratio {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
