"""SHA-256 of model files, computed once and remembered by device, inode, size and mtime."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Literal, NamedTuple

from batch_invariance.errors import BatchInvarianceError, UsageError
from batch_invariance.live_invariance.store import write_atomic

_BLOCK = 1 << 20
# A cache line is about 120 bytes; the newest are kept.
_CACHE_LIMIT = 256
_SPLIT_NAME = re.compile(r"(?P<stem>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf")


class ModelDigest(NamedTuple):
    """A model's digest and where it comes from: hashed just now, or remembered."""

    sha256: str
    sha256_from: Literal["computed", "cache"]


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal. Raises `UsageError` when it cannot be read."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    except OSError as error:
        raise _unreadable(path, error) from error
    return digest.hexdigest()


def _unreadable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot read {path}: {error.strerror}; check the path and its permissions")


def split_parts(path: Path) -> list[Path]:
    """All parts of a split model in order, or just `path` when its name is not a part's.

    Raises `UsageError` when `path` is not the first part, which is what a server loads, or when
    parts are missing.
    """
    match = _SPLIT_NAME.fullmatch(path.name)
    if match is None or not 1 <= int(match["index"]) <= int(match["count"]):
        return [path]
    stem, count = match["stem"], int(match["count"])
    parts = [
        path.with_name(f"{stem}-{index:05d}-of-{count:05d}.gguf") for index in range(1, count + 1)
    ]
    if int(match["index"]) != 1:
        first = f"{stem}-00001-of-{match['count']}.gguf"
        raise UsageError(f"{path} is a later part of a split model; name {first}")
    missing = [part.name for part in parts if not os.path.exists(part)]
    if missing:
        shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise UsageError(f"{len(missing)} parts of the split model {path} are missing: {shown}")
    return parts


def default_cache_path() -> Path | None:
    """`model-digests.json` in the user's cache folder; None for a user without a home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        folder = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    except RuntimeError:
        return None
    return folder / "batch-invariance" / "model-digests.json"


class ModelDigestCache:
    """Model digests across runs. A cache that cannot be read or written only costs time."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or default_cache_path()

    def digest(self, model: Path) -> ModelDigest:
        """The SHA-256 of a model.

        Of a split model it is the SHA-256 of its parts' hexadecimal digests, in order, each
        followed by a newline. Raises `UsageError` when a file cannot be read.
        """
        parts = split_parts(model)
        known = self._load()
        fresh: dict[str, str] = {}
        digests: list[str] = []
        computed = False
        for part in parts:
            key = self._key(part)
            digest = known.get(key)
            if digest is None:
                computed = True
                digest = file_sha256(part)
                # A file that changed while it was read must not be remembered.
                if self._key(part) == key:
                    fresh[key] = digest
            digests.append(digest)
        if fresh:
            self._save(known | fresh)
        if len(parts) > 1:
            lines = "".join(f"{digest}\n" for digest in digests)
            digests = [hashlib.sha256(lines.encode("ascii")).hexdigest()]
        return ModelDigest(digests[0], "computed" if computed else "cache")

    @staticmethod
    def _key(path: Path) -> str:
        try:
            stat = path.stat()
        except OSError as error:
            raise _unreadable(path, error) from error
        return f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}"

    def _load(self) -> dict[str, str]:
        if self.path is None:
            return {}
        try:
            stored = json.loads(self.path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(stored, dict):
            return {}
        return {
            key: value
            for key, value in stored.items()
            if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value)
        }

    def _save(self, entries: dict[str, str]) -> None:
        if self.path is None:
            return
        newest = dict(list(entries.items())[-_CACHE_LIMIT:])
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self.path, json.dumps(newest, indent=1).encode("ascii"), 0o600)
        except (OSError, BatchInvarianceError):
            return
