"""A temporary folder that goes with this process, however that ends."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from batch_invariance.errors import BatchInvarianceError
from batch_invariance.live_invariance.process import guardian_command


@contextlib.contextmanager
def owned_folder(what: str) -> Iterator[Path]:
    """A new private folder for `what` where the system keeps temporary files, removed on the way
    out.

    A guardian that is told its name before it is made removes it when this process is killed, at
    whatever moment. Raises `BatchInvarianceError` where there is no room for a folder.
    """
    path = Path(tempfile.gettempdir(), f"batch-invariance-{what}{secrets.token_hex(8)}")
    with _guardian_of(path):
        try:
            os.mkdir(path, 0o700)
        except OSError as error:
            raise _no_room(error) from error
        yield path


@contextlib.contextmanager
def _guardian_of(path: Path) -> Iterator[None]:
    """Within it a guardian waits for the end of this process; after it there is no such folder."""
    try:
        guard = subprocess.Popen(
            guardian_command(path),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise _no_room(error) from error
    try:
        yield
    finally:
        shutil.rmtree(path, ignore_errors=True)
        # The end of the pipe is what it waits for; then it finds nothing to remove.
        guard.communicate()


def _no_room(error: OSError) -> BatchInvarianceError:
    return BatchInvarianceError(
        f"cannot make a temporary folder: {error.strerror or error}; free some space, or name "
        "another place in TMPDIR"
    )
