"""Which executable and which libraries a server really runs, read from the process itself.

The path that was given may be a script, and a build may keep its arithmetic in shared libraries:
only the running process tells. On systems without /proc nothing is known.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from batch_invariance.errors import BatchInvarianceError
from batch_invariance.live_invariance.digests import ModelDigestCache
from batch_invariance.live_invariance.procfs import process_tree

LIBRARY_WORDS = ("ggml", "llama", "mtmd")


@dataclass(frozen=True, slots=True)
class RunningBinary:
    """SHA-256 of the executable and, by file name, of the engine's libraries."""

    executable_sha256: str | None = None
    libraries: Mapping[str, str] = field(default_factory=dict)


def running_binary(pid: int) -> RunningBinary:
    """Digests what the process tree of `pid` has mapped.

    Where several processes run (a wrapper and its server), the one with engine libraries counts,
    or else the last of the tree.
    """
    chosen: tuple[Path, dict[str, Path]] | None = None
    for member in process_tree(pid):
        executable, libraries = _mapped(member)
        if executable is None or (chosen is not None and chosen[1] and not libraries):
            continue
        chosen = (executable, libraries)
    if chosen is None:
        return RunningBinary()
    cache = ModelDigestCache()
    try:
        digests = {name: cache.digest(path).sha256 for name, path in sorted(chosen[1].items())}
        return RunningBinary(cache.digest(chosen[0]).sha256, digests)
    except BatchInvarianceError:
        return RunningBinary()


def replaced_libraries(libraries: Iterable[tuple[str, str]], folder: Path) -> list[str]:
    """The names of those libraries, name and digest, that are another file in `folder` by now, or
    one that cannot be read.

    What does not lie there, as under a wrapper script, is not known to be another. The names come
    from evidence: one that would leave the folder is none.
    """
    cache = ModelDigestCache()

    def is_another(path: Path, digest: str) -> bool:
        try:
            return cache.digest(path).sha256 != digest
        except BatchInvarianceError:
            return True

    return sorted(
        name
        for name, digest in libraries
        if os.path.basename(name) == name
        and os.path.isfile(folder / name)
        and is_another(folder / name, digest)
    )


def _mapped(pid: int) -> tuple[Path | None, dict[str, Path]]:
    libraries: dict[str, Path] = {}
    try:
        executable = Path(os.readlink(f"/proc/{pid}/exe"))
        maps = Path(f"/proc/{pid}/maps").read_text("utf-8", "replace")
    except OSError:
        return None, {}
    for line in maps.splitlines():
        parts = line.split(maxsplit=5)
        if len(parts) < 6 or "x" not in parts[1] or not parts[5].startswith("/"):
            continue
        path = Path(parts[5])
        if path != executable and any(word in path.name for word in LIBRARY_WORDS):
            libraries[path.name] = path
    return executable, libraries
