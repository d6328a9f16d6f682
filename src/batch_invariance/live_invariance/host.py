"""The machine: what it is, what it has free, and the guards that refuse a run it cannot bear."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from batch_invariance.errors import GuardRefused

MEMORY_FLOOR_BYTES: Final = 512 * 1024 * 1024
"""What must remain of the available memory beside a server: for the driver and its evidence."""

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What the observer's machine is, without names of users or hosts.

    `cpu_model` is None where the system does not tell; `cpu_count` is what this process may use.
    """

    system: str
    machine: str
    cpu_model: str | None
    cpu_count: int
    python_version: str


@dataclass(frozen=True, slots=True)
class _CgroupFiles:
    """Names in a control group's folder: its limits, its usage, and the line of `memory.stat` that
    counts the file cache that could go."""

    limits: tuple[str, ...]
    usage: str
    cache: str


def host_facts() -> HostFacts:
    """The facts of this machine."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    return HostFacts(
        system=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        cpu_model=_cpu_model(_PROC),
        cpu_count=count,
        python_version=platform.python_version(),
    )


def _cpu_model(proc: Path) -> str | None:
    for line in _lines(proc / "cpuinfo"):
        name, _, value = line.partition(":")
        if name.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or None


def format_bytes(count: int) -> str:
    """A number of bytes for people, in binary units, as in `1.5 GiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if abs(size) < 1024:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _sysconf(name: str) -> int:
    if not hasattr(os, "sysconf"):
        raise ValueError(name)
    return os.sysconf(name)


def memory_available(
    proc: Path = _PROC, cgroup: Path = _CGROUP, sysconf: Callable[[str], int] = _sysconf
) -> int | None:
    """Bytes a new process could use without swapping, read anew; None where nothing tells.

    MemAvailable of `/proc/meminfo`, or what a control group leaves where that is less: its limit,
    or the usage above which the kernel slows it down, minus its usage, not counting the file cache
    that the kernel would give back. Off Linux the free pages, where `sysconf` knows them, which
    macOS does not.
    """
    host = _meminfo_available(proc)
    if host is None:
        host = _pages("SC_AVPHYS_PAGES", sysconf)
    amounts = [host, *_cgroup_rooms(proc, cgroup)]
    known = [amount for amount in amounts if amount is not None]
    return max(0, min(known)) if known else None


def memory_installed(sysconf: Callable[[str], int] = _sysconf) -> int | None:
    """Bytes of memory that this machine has in all; None where the system does not say."""
    return _pages("SC_PHYS_PAGES", sysconf)


def _pages(name: str, sysconf: Callable[[str], int]) -> int | None:
    try:
        pages, size = sysconf(name), sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None
    return pages * size if pages > 0 and size > 0 else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []


def _meminfo_available(proc: Path) -> int | None:
    for line in _lines(proc / "meminfo"):
        words = line.split()
        if len(words) > 1 and words[0] == "MemAvailable:" and words[1].isdigit():
            return int(words[1]) * 1024
    return None


def _cgroup_rooms(proc: Path, cgroup: Path) -> Iterator[int]:
    """What each control group around this process leaves, for version 2 and version 1."""
    for line in _lines(proc / "self" / "cgroup"):
        _, colon, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if colon and controllers == "":
            root, names = (
                cgroup,
                _CgroupFiles(("memory.max", "memory.high"), "memory.current", "inactive_file"),
            )
        elif "memory" in controllers.split(","):
            root = cgroup / "memory"
            names = _CgroupFiles(
                ("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"
            )
        else:
            continue
        group = root / path.strip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(root):
                yield from _room(folder, names)


def _room(folder: Path, names: _CgroupFiles) -> Iterator[int]:
    usage = _number(folder / names.usage)
    if usage is None:
        return
    cached = 0
    for line in _lines(folder / "memory.stat"):
        name, _, value = line.partition(" ")
        if name == names.cache and value.isdigit():
            cached = int(value)
    for limit in (_number(folder / name) for name in names.limits):
        if limit is not None:
            yield limit - usage + min(cached, usage)


def _number(file: Path) -> int | None:
    """The number in a file; None where it says `max` or is not there."""
    lines = _lines(file)
    return int(lines[0]) if lines and lines[0].isdigit() else None


def disk_free(path: Path) -> int:
    """Free bytes for this user on the disk of `path`, or of its nearest existing parent."""
    existing = next(
        (folder for folder in (path, *path.parents) if os.path.exists(folder)), Path(".")
    )
    return shutil.disk_usage(existing).free


def check_memory(
    projected_bytes: int, floor_bytes: int, max_footprint_bytes: int | None, enabled: bool
) -> None:
    """Refuse a server whose weights and KV cache come to `projected_bytes` if that is too much.

    Too much is what `memory_refusal` says; where the free memory is unknown, all that is installed
    is the bound. `enabled` False turns the look at the memory off; the cap stands.
    """
    available = memory_available() if enabled else None
    installed = memory_installed() if enabled and available is None else None
    if installed is not None and installed - projected_bytes < floor_bytes:
        raise GuardRefused(
            "memory",
            f"this machine has {format_bytes(installed)} in all, weights and KV cache need about "
            f"{format_bytes(projected_bytes)}, and {format_bytes(floor_bytes)} must remain",
            "Lower --ctx or --parallel, or use a smaller model.",
        )
    refusal = memory_refusal(projected_bytes, floor_bytes, max_footprint_bytes, available)
    if refusal is not None:
        raise refusal


def memory_refusal(
    projected_bytes: int,
    floor_bytes: int,
    max_footprint_bytes: int | None,
    available_bytes: int | None,
) -> GuardRefused | None:
    """Why a server of `projected_bytes` is too much; None where it is not.

    Too much is more than `max_footprint_bytes`, or so much that less than `floor_bytes` of the
    `available_bytes` would remain. None stands for no cap, and for unknown memory, which refuses
    nothing.
    """
    if max_footprint_bytes is not None and projected_bytes > max_footprint_bytes:
        return GuardRefused(
            "footprint",
            f"weights and KV cache need about {format_bytes(projected_bytes)}, "
            f"more than the {format_bytes(max_footprint_bytes)} allowed",
            "Lower --ctx or --parallel, or raise --max-footprint-gb.",
        )
    if available_bytes is not None and available_bytes - projected_bytes < floor_bytes:
        return GuardRefused(
            "memory",
            f"{format_bytes(available_bytes)} are available, weights and KV cache need about "
            f"{format_bytes(projected_bytes)}, and {format_bytes(floor_bytes)} must remain",
            "Free some memory, lower --ctx or --parallel, or use a smaller model.",
        )
    return None


@dataclass(frozen=True, slots=True)
class LaunchLimits:
    """What a launch may take of this machine: ports never to be used, the largest server in bytes,
    and whether to look at the free memory."""

    reserved_ports: frozenset[int] = frozenset()
    max_footprint_bytes: int | None = None
    memory_guard: bool = True

    def check(self, projected_bytes: int) -> None:
        """Look at the memory as it is now. Raises `GuardRefused`."""
        check_memory(
            projected_bytes, MEMORY_FLOOR_BYTES, self.max_footprint_bytes, self.memory_guard
        )


NO_LIMITS: Final = LaunchLimits()
"""No cap and no reserved port; the free memory is looked at."""


def check_disk(path: Path, need: int) -> None:
    """Refuse when the disk of `path` has less than `need` bytes free."""
    free = disk_free(path)
    if free < need:
        raise GuardRefused(
            "disk",
            f"{path} has {format_bytes(free)} free and the run may write {format_bytes(need)}",
            "Free some space or choose another folder.",
        )
