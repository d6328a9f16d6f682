"""A llama-server that is not one: its command line, the mock's answers, and planted faults.

`write_fake_server` makes the executable that the driver launches; see `fake_server_main`:

    server = write_fake_server(tmp_path, slots_override=4)
    subprocess.run([server, "-m", "any.gguf", "-c", "8192", "--parallel", "1", "--port", "0"])
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shlex
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import batch_invariance
from batch_invariance.live_invariance.mock_wire import Identity
from fake_faults import Faults, die, flood_stderr
from fake_faulty_server import FaultyServer

VERSION = "version: 1 (fa4e000)\nbuilt with the standard library for any machine\n"

HELP = """\
----- common params -----

-h,    --help, --usage                  print usage and exit
--version                               show version and build info
-t,    --threads N                      number of CPU threads to use (default: -1)
                                        (env: LLAMA_ARG_THREADS)
-c,    --ctx-size N                     size of the prompt context (default: 0)
                                        (env: LLAMA_ARG_CTX_SIZE)
-b,    --batch-size N                   logical maximum batch size (default: 2048)
                                        (env: LLAMA_ARG_BATCH)
-ub,   --ubatch-size N                  physical maximum batch size (default: 512)
                                        (env: LLAMA_ARG_UBATCH)
-fa,   --flash-attn [on|off|auto]       set Flash Attention use (default: 'auto')
                                        (env: LLAMA_ARG_FLASH_ATTN)
-ctk,  --cache-type-k TYPE              KV cache data type for K
                                        (default: f16)
-ctv,  --cache-type-v TYPE              KV cache data type for V
                                        (default: f16)
-ngl,  --gpu-layers, --n-gpu-layers N   max. number of layers to store in VRAM
                                        (default: auto)
-m,    --model FNAME                    model path to load
                                        (env: LLAMA_ARG_MODEL)
--log-file FNAME                        Log to file
--log-colors [on|off|auto]              Set colored logging (default: 'auto')
                                        (env: LLAMA_ARG_LOG_COLORS)
--log-prefix, --no-log-prefix           Enable prefix in log messages
--log-timestamps, --no-log-timestamps   Enable timestamps in log messages

----- sampling params -----

-s,    --seed SEED                      RNG seed (default: -1, use random seed for -1)
--temp, --temperature N                 temperature (default: 0.80)

----- server-specific params -----

-cram, --cache-ram N                    set the maximum cache size in MiB
                                        (default: 8192, -1 - no limit, 0 - disable)
-kvu,  --kv-unified, -no-kvu, --no-kv-unified
                                        use single unified KV buffer
                                        (default: enabled if number of slots is auto)
--warmup, --no-warmup                   whether to perform warmup (default: enabled)
-np,   --parallel N                     number of server slots (default: -1, -1 = auto)
                                        (env: LLAMA_ARG_N_PARALLEL)
-cb,   --cont-batching, -nocb, --no-cont-batching
                                        whether to enable continuous batching
                                        (default: enabled)
-a,    --alias STRING                   set model name aliases, comma-separated (to be used by API)
--host HOST                             ip address to listen (default: 127.0.0.1)
                                        (env: LLAMA_ARG_HOST)
--port PORT                             port to listen (default: 8080)
                                        (env: LLAMA_ARG_PORT)
--api-key KEY                           API key to use for authentication
                                        (env: LLAMA_API_KEY)
--api-key-file FNAME                    path to file containing API keys, one per line
                                        (env: LLAMA_ARG_API_KEY_FILE)
--metrics                               enable metrics endpoint (default: disabled)
                                        (env: LLAMA_ARG_ENDPOINT_METRICS)
--slots, --no-slots                     expose slots endpoint (default: enabled)
                                        (env: LLAMA_ARG_ENDPOINT_SLOTS)
--jinja, --no-jinja                     whether to use jinja (default: enabled)
                                        (env: LLAMA_ARG_JINJA)
"""

OLD_HELP = """\
usage: llama-server [options]

-h,    --help, --usage                  print usage and exit
--version                               show version and build info
-t,    --threads N                      number of threads to use during generation (default: -1)
-c,    --ctx-size N                     size of the prompt context (default: 4096)
-m,    --model FNAME                    model path
--log-colors                            Enable colored logging
-a,    --alias STRING                   set alias for model name (to be used by REST API)
--host HOST                             ip address to listen (default: 127.0.0.1)
--port PORT                             port to listen (default: 8080)
-np,   --parallel N                     number of parallel sequences to decode (default: 1)
--api-key KEY                           API key to use for authentication (default: none)
--api-key-file FNAME                    path to file containing API keys (default: none)
--metrics                               enable prometheus compatible metrics endpoint
--slots                                 enable slots monitoring endpoint (default: disabled)
"""
"""The flags of a build of 2024, as far as they concern the driver."""


FAULTS_FILE = "faults.json"


def plant_faults(directory: Path, **faults: Any) -> Faults:
    """Says which faults the next start of the fake in `directory` has."""
    planted = Faults(**faults)
    (directory / FAULTS_FILE).write_text(json.dumps(asdict(planted)))
    return planted


def write_fake_server(directory: Path, **faults: Any) -> Path:
    """Write an executable `llama-server` into `directory` that has these faults; give its path."""
    planted = plant_faults(directory, **faults)
    settings = directory / FAULTS_FILE
    package_root = Path(batch_invariance.__file__).parents[1]
    program = Path(__file__).resolve().with_name("fake_server_main.py")
    words = [sys.executable, "-S", program, package_root, "--faults", settings]
    launcher = directory / "llama-server"
    # Told by the shell, which is much faster than starting Python for them.
    (directory / "help.txt").write_text(OLD_HELP if planted.old_build else HELP)
    (directory / "version.txt").write_text(VERSION)
    texts = shlex.quote(str(directory))
    launcher.write_text(
        "#!/bin/sh\n"
        f'case "$1" in\n--help) exec cat {texts}/help.txt;;\n'
        f"--version) exec cat {texts}/version.txt >&2;;\nesac\n"
        f'{"" if planted.launcher_without_exec else "exec "}{shlex.join(map(str, words))} "$@"\n'
    )
    launcher.chmod(0o755)
    return launcher


VALUE_FLAGS = {
    "--faults": "faults",
    "-m": "model",
    "--model": "model",
    "-c": "ctx",
    "--ctx-size": "ctx",
    "-np": "parallel",
    "--parallel": "parallel",
    "--host": "host",
    "--port": "port",
    "--api-key": "api_key",
    "--api-key-file": "api_key_file",
}
SWITCHES = {
    "--metrics": "metrics",
    "--no-slots": "no_slots",
    "-kvu": "unified",
    "--kv-unified": "unified",
}


@dataclass
class CommandLine:
    """The flags that matter; all others are tolerated."""

    faults: str = ""
    model: str = ""
    ctx: str = "4096"
    parallel: str = "-1"
    host: str = "127.0.0.1"
    port: str = "8080"
    api_key: str = ""
    api_key_file: str = ""
    metrics: bool = False
    no_slots: bool = False
    unified: bool = False


def parse_command_line(argv: Sequence[str]) -> CommandLine:
    """Read `--flag value`, `--flag=value` and switches."""
    line = CommandLine()
    words = iter(argv)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag in VALUE_FLAGS:
            setattr(line, VALUE_FLAGS[flag], value if equals else next(words, ""))
        elif word in SWITCHES:
            setattr(line, SWITCHES[word], True)
    return line


def launch_identity(line: CommandLine, faults: Faults) -> Identity:
    """What this launch is: the flags as given, bent by the faults."""
    slots = int(line.parallel) if int(line.parallel) > 0 else 4
    slots = faults.slots_override or min(slots, faults.cap_parallel or slots)
    share = int(line.ctx) if line.unified else int(line.ctx) // slots
    key = Path(line.api_key_file).read_text().strip() if line.api_key_file else line.api_key
    return Identity(
        slots=slots,
        slot_ctx=faults.wrong_ctx or (share + 255) // 256 * 256,
        model_path=line.model,
        api_key=key or None,
    )


def log(text: str) -> None:
    """Write one line to stderr, as the real server logs; a full disk is not its trouble."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def leave_the_parent() -> None:
    """Go on as an orphan in a session of its own, as a daemon does."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)


def limit_log(n_bytes: int) -> None:
    """Let no file of this process grow beyond this, as on a disk that is full."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, resource.RLIM_INFINITY))


def unknown_flag(argv: Sequence[str], help_text: str) -> str | None:
    """The first flag that the help text does not list."""
    known = set(help_text.replace(",", " ").split()) | {"--faults"}
    return next((word for word in argv if word.startswith("-") and word not in known), None)


def note_start(line: CommandLine, faults: Faults) -> None:
    """Put into the journal how this server was started."""
    key_file = Path(line.api_key_file) if line.api_key_file else None
    faults.note(
        pid=os.getpid(),
        guardian=os.getppid(),
        argv=sys.argv[1:],
        environment=sorted(os.environ),
        key=key_file.read_text().strip() if key_file else line.api_key,
        key_file_mode=oct(key_file.stat().st_mode & 0o777) if key_file else None,
    )


def heed_signals(server: FaultyServer, faults: Faults, stop: threading.Event) -> None:
    """SIGINT and SIGTERM set `stop`, unless the faults say otherwise."""

    def on_term(signum: int, frame: object) -> None:
        faults.note(signal=signum)
        if faults.ignore_sigterm:
            return
        if asked:
            os._exit(1)
        asked.append(signum)
        if not faults.busy_ignores_sigterm or not server.busy():
            stop.set()

    asked: list[int] = []
    signal.signal(signal.SIGINT, lambda signum, frame: stop.set())
    signal.signal(signal.SIGTERM, on_term)


def serve(line: CommandLine, faults: Faults) -> int:
    """Serve until SIGTERM or SIGINT; give the exit code."""
    note_start(line, faults)
    stop = threading.Event()
    identity = launch_identity(line, faults)
    log(f"I srv    load_model: loading model '{identity.model_path}'")
    flood_stderr(faults.stderr_flood_bytes)
    try:
        server = FaultyServer(identity, int(line.port), faults)
    except OSError:
        log(f"E start: couldn't bind HTTP server socket, hostname: {line.host}, port: {line.port}")
        return 1
    unified = "true" if line.unified else "false"
    log(
        f"I srv    load_model: initializing, n_slots = {identity.slots}, "
        f"n_ctx_slot = {identity.slot_ctx}, kv_unified = '{unified}'"
    )
    heed_signals(server, faults, stop)
    with server:
        stop.wait(faults.ready_delay_s)
        log("I srv  llama_server: model loaded")
        log(f"I srv  llama_server: listening on http://127.0.0.1:{server.port}")
        stop.wait()
    return 0


def as_asked(line: CommandLine, faults: Faults) -> Faults:
    """The faults, and the endpoints that the command line leaves off."""
    if not line.metrics:
        faults = replace(faults, no_metrics=True)
    if line.no_slots:
        faults = replace(faults, slots_shape="501")
    return faults


def main() -> int:
    line = parse_command_line(sys.argv[1:])
    faults = Faults(**json.loads(Path(line.faults).read_text()))
    faults = faults.for_launch(int(line.parallel))
    if faults.die_at_start is not None:
        die(faults.die_at_start, faults.die_message)
    unknown = unknown_flag(sys.argv[1:], OLD_HELP) if faults.old_build else None
    if unknown is not None:
        die(1, f"error: invalid argument: {unknown}")
    if faults.daemonise:
        leave_the_parent()
    if faults.log_limit_bytes is not None:
        limit_log(faults.log_limit_bytes)
    return serve(line, as_asked(line, faults))
