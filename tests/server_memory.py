"""What a real llama-server says at start that it allocates, beside what is projected."""

from __future__ import annotations

import os
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from batch_invariance.formats.gguf import model_shape
from batch_invariance.invariance_diff.budget import Footprint, KvType, ServerSettings, project
from batch_invariance.live_invariance.http import Client
from batch_invariance.live_invariance.launch import choose_port, scrub_environment
from batch_invariance.live_invariance.model_file import read_model
from batch_invariance.live_invariance.process import OwnedProcess

READY_SECONDS = 120.0
MIB = 1 << 20
BUFFER = re.compile(r"(model|KV|RS|compute|output) buffer size =\s*([0-9.]+) MiB")


@dataclass(frozen=True)
class Setting:
    """A command line: tokens per slot, slots, and what else a user would say."""

    ctx: int
    parallel: int
    k: str = "f16"
    v: str = "f16"
    flash: bool = True
    batch: int = 2048
    ubatch: int = 512
    unified: bool = False

    def __str__(self) -> str:
        flags = [f"ub{self.ubatch}"] if self.ubatch != 512 else []
        flags += [f"b{self.batch}"] if self.batch != 2048 else []
        flags += ["fa-off"] if not self.flash else []
        flags += ["unified"] if self.unified else []
        return "-".join([f"ctx{self.ctx}", f"N{self.parallel}", self.k, self.v, *flags])

    @property
    def flags(self) -> list[str]:
        """The server's flags."""
        flags = ["-c", str(self.ctx * self.parallel), "--parallel", str(self.parallel)]
        flags += ["-ctk", self.k, "-ctv", self.v, "-fa", "on" if self.flash else "off"]
        flags += ["-b", str(self.batch), "-ub", str(self.ubatch)]
        return [*flags, "--kv-unified" if self.unified else "--no-kv-unified"]

    @property
    def settings(self) -> ServerSettings:
        """The same for the projection."""
        return ServerSettings(
            k_type=KvType.parse(self.k),
            v_type=KvType.parse(self.v),
            flash_attention=self.flash,
            batch_tokens=self.batch,
            ubatch_tokens=self.ubatch,
            kv_unified=self.unified,
        )


@dataclass(frozen=True)
class Reported:
    """The buffers of a start log in MiB; `kv` includes recurrent state."""

    model: float
    kv: float
    compute: float
    output: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.model + self.kv + self.compute + self.output


SMOLLM2_SETTINGS = (
    Setting(2048, 1),
    Setting(8192, 4),
    Setting(8192, 1, flash=False),
    Setting(2048, 4, flash=False),
    Setting(2048, 4, "q8_0", "q8_0"),
    Setting(2048, 2, "q4_0", "q5_1"),
    Setting(2048, 4, "f32", "bf16"),
    Setting(2048, 2, "iq4_nl", "q4_1"),
    Setting(4096, 2, "q5_0", "f16", flash=False),
    Setting(8192, 1, ubatch=128),
    Setting(2048, 2, ubatch=2048),
    Setting(8192, 2, batch=64),
    Setting(2048, 4, unified=True),
    Setting(256, 64),
)
LAYOUT_SETTINGS = (
    Setting(8192, 4),
    Setting(1024, 2, flash=False),
    Setting(4096, 4, "q8_0", "q8_0", ubatch=128, unified=True),
)
"""For the models of `gguf_architectures`."""


def projected(model: Path, setting: Setting) -> Footprint:
    """What the tool projects."""
    headers, _ = read_model(model)
    return project(model_shape(headers), setting.ctx, setting.parallel, setting.settings)


def projected_mib(footprint: Footprint) -> Reported:
    """The parts of a footprint that a server logs, in MiB."""
    parts = (footprint.weights_bytes, footprint.kv_bytes)
    return Reported(
        *(size / MIB for size in (*parts, footprint.compute_bytes, footprint.output_bytes))
    )


def reported(server: Path, model: Path, setting: Setting) -> Reported:
    """Starts the server, reads its log once it is ready, and stops it.

    Weights are left as they lie in the file: a repacked copy would be listed beside the mapping.
    """
    argv = [str(server), "-m", str(model), *setting.flags, "--no-repack", "--no-warmup"]
    argv += ["--cache-ram", "0", "-lv", "4", "--host", "127.0.0.1"]
    with tempfile.TemporaryDirectory(prefix="batch-invariance-memory-") as folder:
        log, port = Path(folder) / "server.log", choose_port(frozenset())
        argv += ["--port", str(port)]
        with OwnedProcess.spawn(argv, scrub_environment(os.environ), log, Path(folder)) as process:
            _wait_ready(process, Client(f"http://127.0.0.1:{port}", ""))
            return read_log(log.read_text("utf-8", "replace"))


def read_log(text: str) -> Reported:
    """The buffers that a start log lists, added up by kind."""
    sizes = dict.fromkeys(("model", "KV", "RS", "compute", "output"), 0.0)
    for kind, size in BUFFER.findall(text):
        sizes[kind] += float(size)
    return Reported(sizes["model"], sizes["KV"] + sizes["RS"], sizes["compute"], sizes["output"])


def _wait_ready(process: OwnedProcess, client: Client) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not client.get("/health", 5.0).ok:
        if process.wait_exit(0.02) is not None:
            raise AssertionError(f"the server ended: {process.log_tail()}")
        if time.monotonic() > deadline:
            raise AssertionError(f"the server was not ready: {process.log_tail()}")
