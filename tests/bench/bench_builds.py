"""What differs between builds of llama-server, as far as this program meets it.

    python tests/bench/bench_builds.py NAME=SERVER [NAME=SERVER ...]

Printed: what each build says of itself, which of the driver's flags it lacks, fields of `/props`,
`/slots`, `/metrics` and of a chat completion that not all builds have, how it ends, what its log
costs, and what the canaries come to on it. Nothing else may run beside it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from batch_invariance.formats.toy_gguf import ToySpec, toy_model_bytes
from batch_invariance.invariance_diff.digest import canonical_json
from batch_invariance.live_invariance.flags import UserFlags
from batch_invariance.live_invariance.host import host_facts
from batch_invariance.live_invariance.http import Client
from batch_invariance.live_invariance.launch import build_argv
from batch_invariance.live_invariance.prepare import ServerChoice, know_server, launch_spec
from batch_invariance.live_invariance.token_counter import serving

CANARIES = ("q8_0", "f16,twins", "f32", "q8_0,moe")
BODY = {
    "messages": [{"role": "user", "content": "Tell me a story of a river and a stone."}],
    "max_tokens": 64,
    "temperature": 0,
    "cache_prompt": False,
    "ignore_eos": True,
    "logprobs": True,
    "top_logprobs": 5,
}


@dataclass(frozen=True)
class Build:
    """One build: what it says, its fields by where they stand, and what it came to."""

    name: str
    version: str
    flags: frozenset[str]
    lacks: tuple[str, ...]
    fields: Mapping[str, frozenset[str]]
    ending: str
    log_bytes_per_token: float
    canaries: Mapping[str, str]


def look_at(name: str, server: Path, folder: Path) -> Build:
    """Starts the build once with a toy model, then runs the canaries on it."""
    model = folder / "toy.gguf"
    model.write_bytes(toy_model_bytes(ToySpec.parse("q8_0")))
    choice = ServerChoice(server, model, 512, UserFlags(("--flash-attn", "off")))
    known = know_server(choice, 1)
    lacks = build_argv(launch_spec(choice, known, 1)).omitted_flags
    with serving(choice, known, 120.0) as running:
        assert running.log_path is not None
        before = running.log_path.stat().st_size
        fields = fields_of(running.client)
        grown = running.log_path.stat().st_size - before
        ended = running.stop()
    return Build(
        name,
        (known.version or "").splitlines()[0],
        known.known_flags or frozenset(),
        lacks,
        fields,
        f"exit code {ended.code}" if ended.signal is None else f"signal {ended.signal}",
        grown / 64,
        {spec: canary(server, spec, folder / spec) for spec in CANARIES},
    )


def fields_of(client: Client) -> dict[str, frozenset[str]]:
    """The names of fields, by what answers."""
    chat = client.post("/v1/chat/completions", canonical_json(BODY), 60.0)
    assert chat.ok, chat
    metrics = client.get("/metrics", 10.0).body.decode()
    return {
        "completion": frozenset(paths(json.loads(chat.body))),
        "/props": frozenset(paths(json.loads(client.get("/props", 10.0).body))),
        "/slots": frozenset(paths(json.loads(client.get("/slots", 10.0).body)[0])),
        "/metrics": frozenset(line.split()[0] for line in metrics.splitlines() if line[:1] != "#"),
    }


def paths(value: object, prefix: str = "") -> set[str]:
    """Every field below a JSON value, lists without their indexes."""
    if isinstance(value, dict):
        found: set[str] = set()
        for key, inner in value.items():
            found |= {f"{prefix}{key}"} | paths(inner, f"{prefix}{key}.")
        return found
    return paths(value[0], prefix) if isinstance(value, list) and value else set()


def canary(server: Path, spec: str, out: Path) -> str:
    """Verdict, witness and the class of a RED."""
    words = ["run-live", "--server-bin", str(server), "--canary", spec, "--passes", "4"]
    words += ["--out-dir", str(out), "--quiet", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "batch_invariance", *words], capture_output=True, text=True
    )
    if done.returncode not in (0, 3):
        return done.stderr.splitlines()[0]
    certificate = json.loads(Path(json.loads(done.stdout)["certificate"]).read_bytes())
    words = [certificate["verdict"], certificate["divergence_class"] or ""]
    return " ".join([*filter(None, words), f"by {certificate['overlap']['witness']}"])


def differing(builds: Sequence[Build], where: str) -> list[str]:
    """One line for every field that not all builds have."""
    every = frozenset[str]().union(*(build.fields[where] for build in builds))
    lines = []
    for field in sorted(every):
        having = [build.name for build in builds if field in build.fields[where]]
        if len(having) < len(builds):
            lines.append(f"  {where:10} {field}: {', '.join(having)}")
    return lines


def main(argv: Sequence[str]) -> int:
    """Prints the comparison."""
    host = host_facts()
    print(f"machine  {host.cpu_model}, {host.cpu_count} cores, {host.system}")
    builds = []
    with tempfile.TemporaryDirectory(prefix="batch-invariance-builds-") as folder:
        for argument in argv:
            name, _, server = argument.partition("=")
            place = Path(folder) / name
            place.mkdir()
            builds.append(look_at(name, Path(server).absolute(), place))
    assert threading.active_count() == 1
    for build in builds:
        print(f"\n{build.name}: {build.version}")
        print(f"  flags in --help   {len(build.flags)}; lacks {' '.join(build.lacks) or 'none'}")
        print(f"  SIGTERM when idle {build.ending}")
        print(f"  log at -lv 5      {build.log_bytes_per_token:.0f} bytes a token, serially")
        for spec, came_to in build.canaries.items():
            print(f"  canary {spec:10} {came_to}")
    print("\nfields that not all have")
    for where in builds[0].fields:
        print("\n".join(differing(builds, where)) or f"  {where:10} none")
    print("\nflags that not all have")
    every = frozenset[str]().union(*(build.flags for build in builds))
    for flag in sorted(every):
        having = [build.name for build in builds if flag in build.flags]
        if len(having) < len(builds):
            print(f"  {flag}: {', '.join(having)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
