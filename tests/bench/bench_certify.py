"""How long `certify` takes and how much memory it needs, by the number of trials.

    python tests/bench/bench_certify.py [--sizes 1000,10000,100000] [--keep DIR]

Writes synthetic evidence (see `synthetic_run`), then measures, each time in a fresh process:
reading the file's lines and nothing else; `EvidenceReader`, which parses, checks types and
verifies the chain; `certify`; and the certificate's bytes. Times are processor seconds, which
other work on the machine disturbs less than the clock on the wall. Every verdict is asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

SRC = Path(__file__).resolve().parents[2] / "src"
sys.path.insert(0, str(SRC))

from synthetic_run import Variant  # noqa: E402

VERDICTS = {Variant.CLEAN: "GREEN", Variant.DIVERGENT: "RED", Variant.HOSTILE: "RED"}
DEFAULT_SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)
HOSTILE_SIZES = (3_000, 30_000)
REPEATS = 3
STAGES = ("lines", "reader", "certify")
WRITE = "write"
TITLES = (
    f"{'variant':<10}{'trials':>8}{'MB':>7} |{'lines s':>9}{'reader s':>10}{'certify s':>11}"
    f"{'beyond lines s':>16}{'wall s':>8} |{'us/trial':>10}{'ratio':>7} |{'bytes s':>9}"
    f"{'peak MB':>9}"
)


@dataclass(frozen=True)
class Sample:
    """One measurement in one process: seconds by processor and by wall, peak resident memory in
    MB; for the reader the number of trials; for `certify` the verdict and the processor seconds for
    the certificate's bytes."""

    cpu_s: float
    wall_s: float
    peak_mb: float
    n_trials: int = 0
    verdict: str | None = None
    bytes_s: float = 0.0


def measure_stage(stage: str, path: Path) -> Sample:
    """Carries one stage out in this process."""
    from batch_invariance.invariance_diff.certificate import certify
    from batch_invariance.invariance_diff.evidence import EvidenceReader
    from batch_invariance.invariance_diff.model import Trial

    certificate, n_trials, bytes_s = None, 0, 0.0
    cpu, wall = time.process_time(), time.perf_counter()
    with open(path, "rb") as lines:
        if stage == "lines":
            for _ in lines:
                pass
        elif stage == "reader":
            n_trials = sum(isinstance(record, Trial) for record in EvidenceReader(lines))
        else:
            certificate = certify(lines, path.name)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    if certificate is not None:
        before = time.process_time()
        certificate.to_bytes()
        bytes_s = time.process_time() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    verdict = None if certificate is None else certificate.verdict.value
    return Sample(cpu, wall, peak, n_trials, verdict, bytes_s)


def in_fresh_process(stage: str, path: Path, *more: str) -> str:
    """Carries one stage out in a process of its own and gives what it prints. Writing is such a
    stage too: a child's peak memory begins at its parent's, so this process has to stay small."""
    command = [sys.executable, __file__, "--stage", stage, str(path), *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{stage} on {path} failed:\n{done.stderr}")
    return done.stdout


def write_evidence(path: Path, n_trials: int, variant: Variant) -> None:
    """Streams a synthetic run to `path`."""
    from synthetic_run import SyntheticRun

    from batch_invariance.invariance_diff.evidence import EvidenceEncoder

    encoder = EvidenceEncoder()
    with open(path, "wb") as file:
        for record in SyntheticRun(n_trials, variant).records():
            file.write(encoder.encode(record))


def bench_file(path: Path, variant: Variant) -> dict[str, Sample]:
    """The median sample of each stage on one file. Ends the program on a wrong verdict."""
    found = {}
    for stage in STAGES:
        printed = [in_fresh_process(stage, path) for _ in range(REPEATS)]
        samples = [Sample(**json.loads(text)) for text in printed]
        if stage == "certify" and {s.verdict for s in samples} != {VERDICTS[variant]}:
            raise SystemExit(f"{path}: {samples[0].verdict}, not {VERDICTS[variant]}")
        median = statistics.median(s.cpu_s for s in samples)
        found[stage] = next(s for s in samples if s.cpu_s == median)
    return found


def report(path: Path, variant: Variant, base: float | None) -> float:
    """Measures one file and prints its row; gives the microseconds per trial."""
    found = bench_file(path, variant)
    lines, reader, certify = (found[stage] for stage in STAGES)
    each = certify.cpu_s / reader.n_trials * 1e6
    print(
        f"{variant.label:<10}{reader.n_trials:>8}{path.stat().st_size / 1e6:>7.0f} |"
        f"{lines.cpu_s:>9.2f}{reader.cpu_s:>10.2f}{certify.cpu_s:>11.2f}"
        f"{certify.cpu_s - lines.cpu_s:>16.2f}{certify.wall_s:>8.2f} |"
        f"{each:>10.1f}{each / (base or each):>7.2f} |"
        f"{certify.bytes_s:>9.2f}{certify.peak_mb:>9.0f}",
        flush=True,
    )
    return each


def processor() -> str:
    """The processor's name where the system shows it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or "unknown processor"
    names = [line.split(":", 1)[1].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else "unknown processor"


def run(sizes: Sequence[int], folder: Path, keep: bool) -> None:
    """All variants and sizes, one row each."""
    day = time.strftime("%Y-%m-%d", time.gmtime())
    print(f"# {day} UTC, {processor()}, {os.cpu_count()} cores")
    print(f"# {platform.system()} {platform.machine()}, Python {platform.python_version()}")
    print(f"# load average before: {os.getloadavg()[0]:.1f}; median of {REPEATS}, processor time")
    print(f"# python tests/bench/bench_certify.py --sizes {','.join(map(str, sizes))}")
    print(TITLES)
    for variant in Variant:
        chosen = HOSTILE_SIZES if variant is Variant.HOSTILE else sizes
        base = None
        for size in chosen:
            path = folder / f"{variant.label}-{size}.evidence.jsonl"
            if not (keep and path.exists()):
                in_fresh_process(WRITE, path, str(size), variant.name)
            each = report(path, variant, base)
            base = base or each
            if not keep:
                path.unlink()


def main(argv: Sequence[str] | None = None) -> None:
    """Parses the arguments and runs; `--stage` is what the fresh processes are started with."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--sizes", default=",".join(map(str, DEFAULT_SIZES)))
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep and reuse the files here")
    parser.add_argument("--stage", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.stage:
        stage, path, *more = args.stage
        if stage == WRITE:
            write_evidence(Path(path), int(more[0]), Variant[more[1]])
        else:
            print(json.dumps(asdict(measure_stage(stage, Path(path)))))
        return
    sizes = [int(size) for size in args.sizes.split(",")]
    if args.keep:
        args.keep.mkdir(parents=True, exist_ok=True)
        run(sizes, args.keep, keep=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        run(sizes, Path(folder), keep=False)


if __name__ == "__main__":
    main()
