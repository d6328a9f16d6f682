"""What only `/proc` and process descriptors can say about the owned server's process tree."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from batch_invariance.live_invariance import guardian

DEATH_LIMIT_S = 5.0

_TCP_LISTEN = "0A"


def process_tree(root: int) -> list[int]:
    """`root`, its descendants and everything in the session it leads. Empty without `/proc`."""
    stats = {pid: stat for pid in guardian.all_pids() if (stat := guardian.proc_stat(pid))}
    tree: list[int] = []
    for pid, stat in stats.items():
        ancestor: int | None = pid
        seen: set[int] = set()
        while ancestor in stats and ancestor != root and ancestor not in seen:
            seen.add(ancestor)
            ancestor = stats[ancestor].parent
        if stat.session == root or (ancestor == root and root in stats):
            tree.append(pid)
    return tree


def kill_tree(root: int, start_ticks: int | None) -> None:
    """Kill the group that `root` leads, and its tree, without the guardian's help, and wait for it.

    `start_ticks` is when `root` started: when `/proc` shows another start time, or no such
    process, the id no longer is the server's and nothing is signalled.
    """
    if start_ticks is not None:
        stat = guardian.proc_stat(root)
        if stat is None or stat.start != start_ticks:
            return
    tree = process_tree(root)
    handles = _death_handles(tree)
    for pid in tree:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
    guardian.signal_group(root, signal.SIGKILL)
    deadline = time.monotonic() + DEATH_LIMIT_S
    for handle in handles:
        watch = select.poll()
        watch.register(handle, select.POLLIN)
        watch.poll(max(0.0, deadline - time.monotonic()) * 1000)
        os.close(handle)


def _death_handles(pids: Iterable[int]) -> list[int]:
    """Descriptors that become readable when their process ends; none where the system has none."""
    handles: list[int] = []
    if sys.platform.startswith("linux"):
        for pid in pids:
            try:
                handles.append(os.pidfd_open(pid))
            except OSError:
                continue
    return handles


def owns_listening_socket(pid_root: int, port: int) -> bool | None:
    """Whether everything that listens on the loopback `port` belongs to `pid_root`'s tree.

    False when nothing listens there, or a stranger does as well. None when this system cannot say:
    no `/proc`, or descriptors of the tree that may not be read.
    """
    if not sys.platform.startswith("linux"):
        return None
    try:
        wanted = _listening_inodes(port)
    except (OSError, ValueError):
        return None
    held, unreadable = _socket_inodes(process_tree(pid_root))
    if wanted and wanted <= held:
        return True
    return None if wanted and unreadable else False


def _hex_v4(address: str) -> str:
    return f"{int.from_bytes(socket.inet_aton(address), sys.byteorder):08X}"


def _listening_inodes(port: int) -> set[str]:
    loopback, anywhere = _hex_v4("127.0.0.1"), _hex_v4("0.0.0.0")
    mapped = "0" * 16 + f"{int.from_bytes(bytes((0, 0, 255, 255)), sys.byteorder):08X}" + loopback
    reachable = {loopback, anywhere, "0" * 32, mapped}
    inodes: set[str] = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        if not table.exists():
            continue
        for line in table.read_text("ascii").splitlines()[1:]:
            fields = line.split()
            address, _, hex_port = fields[1].partition(":")
            if fields[3] == _TCP_LISTEN and int(hex_port, 16) == port and address in reachable:
                inodes.add(fields[9])
    return inodes


def _socket_inodes(pids: Iterable[int]) -> tuple[set[str], bool]:
    """The sockets that `pids` hold, and whether some process would not show its descriptors."""
    inodes: set[str] = set()
    unreadable = False
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except PermissionError:
            unreadable = True
            continue
        except OSError:
            continue
        for name in names:
            try:
                link = os.readlink(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
            if link.startswith("socket:["):
                inodes.add(link[len("socket:[") : -1])
    return inodes, unreadable
