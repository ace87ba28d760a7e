"""Temporary folders that are locked by their process, so that folders left by killed processes can be removed.

A folder without a lock was left behind. The lock is on the folder itself, so that the folder contains nothing else and
may be renamed.
"""

import fcntl
import glob
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

READER_PREFIX: Final = "overlapscope-read-"
"""Prefix of temporary folders that are needed while files are read."""
UNLOCKED_SECONDS: Final = 24 * 3600.0
"""On a file system without folder locks (NFS), a folder that was not changed for so long is abandoned."""
RANDOM: Final = "[a-z0-9_]" * 8
"""Pattern of the part of a temporary folder's name that `tempfile` chooses."""
_TRIES: Final = 100


@contextmanager
def locked_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Yield a new locked folder whose name begins with `prefix`; it is removed after the block, unless it was renamed.

    Folders with the same prefix that killed processes of this user left are removed first. Raises OSError.
    """
    remove_abandoned(parent, prefix)
    folder, handle = make_locked_folder(parent, prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def remove_abandoned_reader_folders() -> None:
    """Remove the temporary folders that killed reading processes left, if there is a folder for temporary files."""
    with suppress(OSError):
        remove_abandoned(Path(tempfile.gettempdir()), READER_PREFIX)


def remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove this user's folders with this prefix that no living process has locked."""
    for folder in parent.glob(glob.escape(prefix) + RANDOM):
        with suppress(OSError), hold_folder(folder):
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def hold_folder(folder: Path, unlocked_seconds: float = UNLOCKED_SECONDS) -> Iterator[None]:
    """Lock a folder during the block. Raises BlockingIOError if another process may use it, OSError if it is gone."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        there = os.fstat(handle)
        if not is_own(there):
            raise BlockingIOError(f"{folder}: belongs to another user")
        if not try_lock(handle) and time.time() - there.st_mtime < unlocked_seconds:
            raise BlockingIOError(f"{folder}: may be in use")
        yield
    finally:
        os.close(handle)


def is_own(there: os.stat_result) -> bool:
    """Return whether a file or folder belongs to the user of this process."""
    return there.st_uid == os.geteuid()


def try_lock(handle: int) -> bool:
    """Lock an open file or folder; return False where locks are not supported.

    Raises BlockingIOError if another process has locked it.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def is_same_file(path: Path, handle: int) -> bool:
    """Return whether a path is still the file or folder that was opened as `handle`."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(handle))
    except FileNotFoundError:
        return False


def make_locked_folder(parent: Path, prefix: str) -> tuple[Path, int]:
    """Create a folder whose name begins with `prefix`; it is locked until the handle is closed. Raises OSError."""
    # Until it is locked, another process may take it for an abandoned one and remove it.
    for _ in range(_TRIES):
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        with suppress(FileNotFoundError):
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            with suppress(BlockingIOError):
                try_lock(handle)
                if is_same_file(folder, handle):
                    return folder, handle
            os.close(handle)
    raise OSError(f"{parent}: each new temporary folder there is removed at once by something else")
