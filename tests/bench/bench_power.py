"""How many diverging cells sixteen prompts catch: around the boundaries, against plain ones.

    python tests/bench/bench_power.py --server-bin S

The cells are toys with flash attention on, of five weight types at N = 2, 4 and 8. Each is run with
four sets of 16 for two passes of arm C: `boundary` (of `workset boundary`), `near-tie` (what its
`--near-tie 16` adds, one token each), `plain` (the short example set) and `built-in` (the canary's
own). A cell diverges where any of the four shows another token; a set catches it where that set
does.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from batch_invariance.formats.toy_gguf import ToySpec
from batch_invariance.invariance_diff.builtin_workset import builtin_workset
from batch_invariance.invariance_diff.workset import workset_to_json
from batch_invariance.live_invariance.canary import write_canary
from batch_invariance.live_invariance.host import host_facts

ROOT = Path(__file__).resolve().parents[2]
SPECS = ("f32", "f16", "bf16", "q8_0", "q4_0")
SLOTS = (2, 4, 8)
FLAGS = ("--", "--flash-attn", "on")
SETS = ("boundary", "near-tie", "plain", "built-in")
COUNT = 16


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    """One command line of the program."""
    return subprocess.run(
        [sys.executable, "-m", "batch_invariance", *words], capture_output=True, text=True
    )


def diverging(server: str, model: Path, workset: Path, n: int, out: Path) -> int | None:
    """Ids with another token in arm C; None where the run came to no certificate."""
    words = ["run-live", "--server-bin", server, "--model", str(model), "--workset", str(workset)]
    words += ["--ctx", "2048", "--parallel", str(n), "--passes", "2", "--max-tokens", "32"]
    done = run([*words, "--out-dir", str(out), "-q", "--json", *FLAGS])
    said = json.loads(done.stdout) if done.stdout.startswith("{") else {}
    if "certificate" not in said:
        return None
    cert = json.loads(Path(said["certificate"]).read_text("utf-8"))
    return len(cert["token_divergence_ids"])


def sets_for(server: str, model: Path, n: int, folder: Path) -> dict[str, Path]:
    """The sets; the boundary prompts depend on the model's tokenizer and on N."""
    both = folder / f"both-{model.stem}-{n}.json"
    words = ["workset", "boundary", "--server-bin", server, "--model", str(model)]
    words += ["--ctx", "2048", "--parallel", str(n), "--count", str(COUNT)]
    words += ["--max-tokens", "32", "--near-tie", str(COUNT)]
    done = run([*words, "-o", str(both), *FLAGS])
    if done.returncode:
        sys.exit(f"workset boundary: {done.stderr}")
    items = json.loads(both.read_text("utf-8"))
    boundary, ties = folder / f"boundary-{both.stem}.json", folder / f"ties-{both.stem}.json"
    boundary.write_text(json.dumps(items[:COUNT]))
    ties.write_text(json.dumps(items[COUNT:]))
    builtin = folder / "built-in.json"
    builtin.write_text(json.dumps(workset_to_json(builtin_workset().items)))
    plain = ROOT / "examples" / "workset_short.json"
    return {"boundary": boundary, "near-tie": ties, "plain": plain, "built-in": builtin}


def main() -> None:
    """Runs every cell with every set and counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server-bin", required=True)
    args = parser.parse_args()
    host = host_facts()
    print(f"python {platform.python_version()}, {host.cpu_model}, {host.cpu_count} processors")
    print(f"diverging ids of 16, two passes, flash attention on; server {args.server_bin}")
    print(" | ".join(("weights", "N", *SETS)), flush=True)
    caught = dict.fromkeys(SETS, 0)
    known = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for spec in SPECS:
            model = write_canary(ToySpec.parse(spec), folder)
            for n in SLOTS:
                sets = sets_for(args.server_bin, model, n, folder)
                out = folder / f"{spec}-{n}"
                found = {
                    key: diverging(args.server_bin, model, sets[key], n, out / key) for key in SETS
                }
                known += any(found.values())
                for key, count in found.items():
                    caught[key] += bool(count)
                shown = ["no verdict" if v is None else str(v) for v in found.values()]
                print(" | ".join((spec, str(n), *shown)), flush=True)
    shares = ", ".join(f"{key} {count} of {known}" for key, count in caught.items())
    print(f"diverging cells caught: {shares}")


if __name__ == "__main__":
    main()
