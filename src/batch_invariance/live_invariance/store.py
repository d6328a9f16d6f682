"""Files that must not be half written, lost or shared: certificates, evidence, out-dir locks."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from batch_invariance.errors import BatchInvarianceError, UsageError

EVIDENCE_SUFFIX = ".evidence.jsonl"
SIGNATURE_SUFFIX = ".json.hmac"
TEMPORARY_PREFIX = ".tmp-"
LOCK_NAME = ".batch-invariance.lock"
# File systems allow 255 bytes; this leaves room for the cell's figures and the longest suffix.
MODEL_NAME_LIMIT = 120


def require_posix(what: str) -> None:
    """Raise `UsageError` unless this is a POSIX system; `what` names the thing that needs it."""
    if os.name != "posix":
        raise UsageError(f"{what} needs Linux or macOS; this system is {os.name!r}")


def write_atomic(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write `data` to `path` so that a reader sees the old file or the new one, never a part.

    Raises `BatchInvarianceError` when it cannot; the old file and no temporary file remain then.
    """
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}-{path.name[-64:]}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    except OSError as error:
        raise BatchInvarianceError(
            f"cannot write {path}: {error.strerror}; free some space or choose another folder"
        ) from error


def temporary_folder(what: str, parent: Path | None = None) -> Path:
    """A new private folder for `what`, in `parent` or where the system keeps temporary files.

    Raises `BatchInvarianceError` where there is no room for one.
    """
    try:
        return Path(tempfile.mkdtemp(prefix=f"batch-invariance-{what}", dir=parent))
    except OSError as error:
        raise BatchInvarianceError(
            f"cannot make a temporary folder: {error.strerror or error}; free some space, or name "
            "another place in TMPDIR"
        ) from error


def check_new(path: Path) -> None:
    """Raise `UsageError` where `path` exists or lies in no folder, before any work is done."""
    if os.path.lexists(path):
        raise UsageError(f"{path} exists already; choose another file")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}; make it first")


def write_new(path: Path, data: bytes) -> None:
    """Write a file that was not there.

    Raises `UsageError` where it is by now, and `BatchInvarianceError` where it cannot be written;
    no part of it remains then.
    """
    try:
        file = path.open("xb")
    except FileExistsError as error:
        raise UsageError(f"{path} exists already; choose another file") from error
    except OSError as error:
        raise BatchInvarianceError(f"cannot write {path}: {error.strerror}") from error
    try:
        with file:
            file.write(data)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise BatchInvarianceError(f"cannot write {path}: {error.strerror}") from error


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable; a file system that cannot is left as it is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def prepare_out_dir(path: Path) -> None:
    """Create the output folder and prove that a file can be written there, else `UsageError`."""
    probe = path / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        probe.unlink()
    except FileExistsError as error:
        raise UsageError(f"--out-dir {path} is a file; name a folder") from error
    except OSError as error:
        raise UsageError(
            f"--out-dir {path} cannot be written: {error.strerror}; name a folder that can"
        ) from error


@dataclass(frozen=True, slots=True)
class CellPaths:
    """Where one cell's files lie: certificate, evidence, and what the older ones are renamed to."""

    certificate: Path
    evidence: Path
    previous_certificate: Path
    previous_evidence: Path


def safe_model_name(name: str) -> str:
    """`name` as a part of a file name: ASCII letters, digits and `._+-`, no leading dot, bounded.

    A name that had to be changed gets a digest of the original, so that two models never share a
    certificate.
    """
    safe = re.sub(r"[^A-Za-z0-9._+-]", "_", name)
    safe = re.sub(r"^\.", "_", safe)[:MODEL_NAME_LIMIT]
    if safe == name and safe:
        return safe
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{safe or 'model'}-{digest}"


def cell_paths(out_dir: Path, model: str, ctx: int, n: int) -> CellPaths:
    """The file names of the cell (`model`, `ctx` tokens per slot, `n` slots) in `out_dir`."""
    return _paths_of(out_dir, f"{safe_model_name(model)}__ctx{ctx}__N{n}")


def certificates_of(out_dir: Path, model: str, n: int) -> tuple[Path, ...]:
    """The certificates in `out_dir` of a model at `n` slots, at whatever context, that stand; none
    where there is no such folder."""
    name = re.compile(rf"{re.escape(safe_model_name(model))}__ctx\d+__N{n}\.json")
    try:
        found = [entry for entry in os.listdir(out_dir) if name.fullmatch(entry)]
    except (FileNotFoundError, NotADirectoryError):
        return ()
    return tuple(out_dir / entry for entry in sorted(found))


def shared_arm_path(out_dir: Path, model: str, ctx: int) -> Path:
    """The evidence of arms A and A2 that all N of (`model`, `ctx`) share."""
    return out_dir / f"{safe_model_name(model)}__ctx{ctx}__A{EVIDENCE_SUFFIX}"


def _paths_of(out_dir: Path, stem: str) -> CellPaths:
    certificate, evidence = out_dir / f"{stem}.json", out_dir / f"{stem}{EVIDENCE_SUFFIX}"
    return CellPaths(certificate, evidence, previous_path(certificate), previous_path(evidence))


def previous_path(path: Path) -> Path:
    """`x.json` as `x.previous.json`, `x.evidence.jsonl` as `x.previous.evidence.jsonl`."""
    long = (EVIDENCE_SUFFIX, SIGNATURE_SUFFIX)
    suffix = next((end for end in long if path.name.endswith(end)), path.suffix)
    return path.with_name(f"{path.name.removesuffix(suffix)}.previous{suffix}")


def set_aside(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Rename those of `paths` that exist to their previous names, over an older previous.

    Returns the new names. Name the certificate first: an interruption then leaves no certificate
    standing. Raises `UsageError` when a file cannot be renamed.
    """
    moved: list[Path] = []
    for path in paths:
        target = previous_path(path)
        try:
            os.replace(path, target)
            sync_folder(path.parent)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UsageError(
                f"cannot rename the older {path} to {target.name}: {error.strerror}; "
                "move it away or choose another --out-dir"
            ) from error
        moved.append(target)
    return tuple(moved)


def reopen_evidence(path: Path, size: int) -> BinaryIO:
    """Open an evidence file to go on after its first `size` bytes; what follows them is cut off.

    Raises `BatchInvarianceError` when it cannot.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        file = os.fdopen(descriptor, "ab")
        file.truncate(size)
    except OSError as error:
        raise BatchInvarianceError(
            f"cannot go on with the evidence {path}: {error.strerror}; check the file"
        ) from error
    return file


def open_evidence(path: Path) -> BinaryIO:
    """A new evidence file, mode 0600, that can only be appended to.

    Raises `UsageError` when it exists already or cannot be created.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
    try:
        return os.fdopen(os.open(path, flags, 0o600), "ab")
    except FileExistsError as error:
        raise UsageError(f"{path} exists already; evidence is never written over") from error
    except OSError as error:
        raise UsageError(
            f"cannot create {path}: {error.strerror}; choose another --out-dir"
        ) from error


class OutDirLock:
    """The right to write certificates and evidence in one folder: held by one driver at a time.

    The system lets go of it when that process dies. A context manager; entering raises `UsageError`
    when another driver holds the folder, and removes the half of a certificate that a driver left
    that was killed in the middle of writing it.
    """

    def __init__(self, out_dir: Path) -> None:
        self.path = out_dir / LOCK_NAME
        self._descriptor: int | None = None

    def __enter__(self) -> OutDirLock:
        require_posix("Locking a folder")
        try:
            while self._descriptor is None:
                self._descriptor = self._try_lock()
        except BlockingIOError as error:
            raise UsageError(
                f"another run is writing in {self.path.parent}; wait for it or choose another "
                "--out-dir"
            ) from error
        except OSError as error:
            raise UsageError(
                f"cannot lock {self.path}: {error.strerror}; choose an --out-dir on a local disk"
            ) from error
        for leftover in self.path.parent.glob(f"{TEMPORARY_PREFIX}*.json"):
            leftover.unlink(missing_ok=True)
        return self

    def _try_lock(self) -> int | None:
        import fcntl

        # A link there would have us make or lock a file elsewhere.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        descriptor = os.open(self.path, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last holder may have removed the file between our open and our lock.
            if os.path.samestat(os.fstat(descriptor), os.stat(self.path)):
                return descriptor
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._descriptor is not None:
            self.path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None
