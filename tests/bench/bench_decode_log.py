"""What the log of forward passes costs: a server at `-lv 5` against one at its default level.

    python tests/bench/bench_decode_log.py --server-bin S --model M [--pairs 8]
        [--requests 32] [--tokens 64] [-- FLAGS]

Two servers with the same command line but for the log's level stand side by side; only one works at
a time. A round sends its requests with 4 always in flight, each lane its own slot. The rounds of a
pair alternate in order, because the machine's speed drifts. At the verbose server the log is then
read to its end, which the driver does between passes. Printed: seconds of each round, of the
reading, and the processor time of the servers, which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from batch_invariance.invariance_diff.decode_log import DecodeLogParser, DecodeStep
from batch_invariance.live_invariance.http import Client
from batch_invariance.live_invariance.launch import choose_port, scrub_environment
from batch_invariance.live_invariance.log_reader import DecodeLogReader
from batch_invariance.live_invariance.process import OwnedProcess
from batch_invariance.live_invariance.telemetry import read_counters

LANES = 4
LIMIT_S = 600.0
COMMON = ("--parallel", str(LANES), "-c", "8192", "--no-kv-unified", "--metrics")
VERBOSE = ("-lv", "5", "--log-prefix", "--log-timestamps", "--log-colors", "off")
WORDS = ("river", "stone", "bridge", "cloud", "winter", "garden", "letter", "engine")


class Server:
    """One owned server and its log."""

    def __init__(self, args: argparse.Namespace, folder: Path, flags: Sequence[str]) -> None:
        folder.mkdir()
        self.requests, self.tokens = args.requests, args.tokens
        port = choose_port(frozenset())
        argv = [args.server_bin, "-m", args.model, "--host", "127.0.0.1", "--port", str(port)]
        argv += [*COMMON, "--cache-ram", "0", *flags, *args.flags]
        self.log = folder / "server.log"
        environment = scrub_environment(os.environ)
        self.process = OwnedProcess.spawn(argv, environment, self.log, folder)
        self.client = Client(f"http://127.0.0.1:{port}", None)
        while not self.client.get("/health", 5.0).ok:
            if self.process.wait_exit(0.02) is not None:
                raise SystemExit(f"the server died:\n{self.process.log_tail()}")

    def round(self) -> float:
        """Seconds of the workload."""

        def lane(number: int) -> None:
            for index in range(number, self.requests, LANES):
                word = WORDS[index % len(WORDS)]
                body = (
                    b'{"messages":[{"role":"user","content":"Tell me about a %s."}],"max_tokens":%d'
                    b',"temperature":0,"seed":1,"cache_prompt":false,"ignore_eos":true,"id_slot":%d'
                    b',"logprobs":true,"top_logprobs":5}' % (word.encode(), self.tokens, number)
                )
                exchange = self.client.post("/v1/chat/completions", body, LIMIT_S)
                if not exchange.ok:
                    raise SystemExit(f"status {exchange.status}: {exchange.failure}")

        start = time.monotonic()
        with ThreadPoolExecutor(LANES) as pool:
            list(pool.map(lane, range(LANES)))
        return time.monotonic() - start

    def cpu_s(self) -> float:
        """Processor seconds of the server and its children so far."""
        ticks, waiting = 0, [self.process.pid]
        while waiting:
            pid = waiting.pop()
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                waiting += map(int, children.read_bytes().split())
        return ticks / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Round:
    """Wall seconds of the requests, of reading the log afterwards, processor seconds, steps."""

    wall_s: float
    drain_s: float
    cpu_s: float
    steps: int


def plain_round(server: Server) -> Round:
    """The workload at the default level."""
    before, cpu = decodes(server), server.cpu_s()
    wall = server.round()
    return Round(wall, 0.0, server.cpu_s() - cpu, decodes(server) - before)


def verbose_round(server: Server, reader: DecodeLogReader, steps: list[DecodeStep]) -> Round:
    """The workload at `-lv 5`; the log must agree with the counter."""
    cpu = server.cpu_s()
    wall = server.round()
    cpu = server.cpu_s() - cpu
    counted = decodes(server)
    first = len(steps)
    start = time.monotonic()
    reason = reader.drain_until(counted, LIMIT_S)
    drain = time.monotonic() - start
    if reason is not None:
        raise SystemExit(reason)
    return Round(wall, drain, cpu, len(steps) - first)


def decodes(server: Server) -> int:
    """The server's counter of forward passes."""
    counted = read_counters(server.client).decode_total
    if counted is None:
        raise SystemExit("the server does not count its forward passes")
    return counted


def measure(args: argparse.Namespace) -> None:
    """Runs the pairs and prints them."""
    steps: list[DecodeStep] = []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        plain = Server(args, folder / "plain", ())
        stack.enter_context(plain.process)
        verbose = Server(args, folder / "verbose", VERBOSE)
        stack.enter_context(verbose.process)
        dead = threading.Event()
        verbose.process.on_exit(dead.set)
        reader = stack.enter_context(DecodeLogReader(verbose.log, steps.append, dead))
        # The whole log is parsed once more at the end.
        reader.reclaims = False
        plain.round()
        verbose.round()
        reader.drain_until(decodes(verbose), LIMIT_S)
        before, first = reader.offset, len(steps)
        found = []
        columns = ("plain s", "-lv 5 s", "reading s", "ratio", "plain cpu", "-lv 5 cpu", "load")
        print("".join(f"{column:>11}" for column in columns))
        for index in range(args.pairs):
            if index % 2:
                ours = verbose_round(verbose, reader, steps)
                other = plain_round(plain)
            else:
                other = plain_round(plain)
                ours = verbose_round(verbose, reader, steps)
            found.append((other, ours))
            ratio = (ours.wall_s + ours.drain_s) / other.wall_s
            print(
                f"{other.wall_s:11.2f}{ours.wall_s:11.2f}{ours.drain_s:11.3f}{ratio:11.3f}"
                f"{other.cpu_s:11.2f}{ours.cpu_s:11.2f}{os.getloadavg()[0]:11.1f}",
                flush=True,
            )
        size, count = reader.offset - before, len(steps) - first
        summary(found)
        print(f"log: {size / count:.0f} bytes per pass, {count} passes, {size / 1e6:.1f} MB")
        parsing(verbose.log)


def summary(found: Sequence[tuple[Round, Round]]) -> None:
    """Medians, spreads and minima of all pairs."""
    for what, ratios in (
        ("wall", [ours.wall_s / other.wall_s for other, ours in found]),
        ("wall and reading", [(b.wall_s + b.drain_s) / a.wall_s for a, b in found]),
        ("processor", [ours.cpu_s / other.cpu_s for other, ours in found]),
        (
            "processor per pass",
            [(b.cpu_s / b.steps) / (a.cpu_s / a.steps) for a, b in found],
        ),
    ):
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        print(f"ratio of {what}: median {middle:.3f}, quartiles {low:.3f} to {high:.3f}")
    fast = min(a.wall_s for a, _ in found), min(b.wall_s + b.drain_s for _, b in found)
    print(f"fastest rounds: {fast[0]:.2f} s, with log and reading {fast[1]:.2f} s, ", end="")
    print(f"ratio {fast[1] / fast[0]:.3f}")


def parsing(log: Path) -> None:
    """Processor time of the parser alone over the whole log, the best of five."""
    data = log.read_bytes()
    times = []
    for _ in range(5):
        parser = DecodeLogParser()
        start = time.process_time()
        for at in range(0, len(data), 1 << 20):
            parser.feed(data[at : at + (1 << 20)])
        times.append(time.process_time() - start)
    print(
        f"parser: {len(data) / min(times) / 1e6:.0f} MB/s of processor time, "
        f"{min(times) / parser.n_steps * 1e6:.0f} us per pass"
    )


def main() -> None:
    """Reads the command line and measures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server-bin", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("flags", nargs="*", help="flags for both servers, after --")
    args = parser.parse_args()
    print(
        f"# {time.strftime('%Y-%m-%d', time.gmtime())}, {os.cpu_count()} cores, "
        f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    )
    print(f"# python {' '.join(sys.argv)}")
    measure(args)


if __name__ == "__main__":
    main()
