"""The memory that is projected beside the memory that a real llama-server reports at start.

    python tests/bench/bench_budget.py --server-bin S --model SmolLM2-135M-Instruct.Q4_1.gguf

One line a setting, sizes in MiB: what the server's log lists (model, KV, compute and output
buffers), what is projected for the same, and by how much the projected total is off. After the
model given come small models of other architectures, which `gguf_architectures.py` writes; of those
the KV cache is of interest, the weights are zeros.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from batch_invariance.live_invariance.host import host_facts
from gguf_architectures import WRITERS
from server_memory import (
    LAYOUT_SETTINGS,
    SMOLLM2_SETTINGS,
    Reported,
    Setting,
    projected,
    projected_mib,
    reported,
)

COLUMNS = ("model", "ctx", "N", "K/V", "fa", "-b", "-ub", "unified")
SIDES = ("reported", "projected")
PARTS = ("model", "KV", "compute", "output", "total")
WIDTH = 8


def head(server: Path, model: Path) -> list[str]:
    """Where, when and with what."""
    facts = host_facts()
    asked = subprocess.run([server, "--version"], capture_output=True, text=True, check=False)
    version = (asked.stdout + asked.stderr).strip().splitlines()[0]
    return [
        f"# {time.strftime('%Y-%m-%d')}, {facts.cpu_model}, {facts.cpu_count} cores, "
        f"{facts.system}, Python {platform.python_version()}",
        f"# llama-server {version}, {model.name}; MiB",
        f"# {'':72}" + "".join(f"{side:<{WIDTH * len(PARTS)}}" for side in SIDES).rstrip(),
        "# " + _cells(COLUMNS) + "".join(f"{part:>{WIDTH}}" for part in PARTS * 2) + "  off by",
    ]


def line(name: str, setting: Setting, said: Reported, ours: Reported) -> str:
    """One setting."""
    names = (
        name,
        str(setting.ctx),
        str(setting.parallel),
        f"{setting.k}/{setting.v}",
        "on" if setting.flash else "off",
        str(setting.batch),
        str(setting.ubatch),
        "yes" if setting.unified else "no",
    )
    sizes = [size for side in (said, ours) for size in (*_parts(side), side.total)]
    # Adding zero turns a negative zero into a positive one.
    off = round(100 * (ours.total - said.total) / said.total, 1) + 0.0
    return "  " + _cells(names) + "".join(f"{s:>{WIDTH}.2f}" for s in sizes) + f"  {off:+5.1f} %"


def _parts(side: Reported) -> tuple[float, float, float, float]:
    return side.model, side.kv, side.compute, side.output


def _cells(names: tuple[str, ...]) -> str:
    widths = (16, 6, 5, 14, 5, 7, 7, 9)
    return "".join(f"{name:>{width}}" for name, width in zip(names, widths, strict=True))


def compare(server: Path, name: str, model: Path, settings: tuple[Setting, ...]) -> None:
    """Starts the server with every setting and prints a line for each."""
    for setting in settings:
        said = reported(server, model, setting)
        ours = projected_mib(projected(model, setting))
        print(line(name, setting, said, ours), flush=True)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server-bin", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    args = parser.parse_args()
    print("\n".join(head(args.server_bin, args.model)), flush=True)
    compare(args.server_bin, "SmolLM2", args.model, SMOLLM2_SETTINGS)
    with tempfile.TemporaryDirectory() as folder:
        for name, write in WRITERS.items():
            model = Path(folder) / f"{name}.gguf"
            write(model)
            compare(args.server_bin, name, model, LAYOUT_SETTINGS)


if __name__ == "__main__":
    main()
