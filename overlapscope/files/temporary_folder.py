"""Temporary folders that a living process holds: what a killed one left is known by that nobody does, and removed.

The process holds a lock on the folder itself, so that there is nothing in it but what it is for, and it may be renamed.
"""

import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

WHILE_READING: Final = "overlapscope-read-"
"""How folders begin whose files are needed while files are read, among the temporary ones."""
UNLOCKED_SECONDS: Final = 24 * 3600.0
"""Where a file system has no locks for folders (NFS), one that was not changed for so long is nobody's."""
_TRIES: Final = 100


@contextmanager
def held_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Yield a new folder whose name begins so; it goes with the block, unless it was renamed.

    Folders of the same prefix that killed processes of this user left are removed first. Raises OSError.
    """
    remove_abandoned(parent, prefix)
    folder, handle = make_locked_folder(parent, prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def remove_left_by_readers() -> None:
    """Remove what killed processes that read left among the temporary files, if there is a place for these."""
    with suppress(OSError):
        remove_abandoned(Path(tempfile.gettempdir()), WHILE_READING)


def remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove the folders of a prefix that no living process holds."""
    for folder in list_temporary_folders(parent, prefix):
        with suppress(OSError), hold_folder(folder):
            shutil.rmtree(folder, ignore_errors=True)


def list_temporary_folders(parent: Path, prefix: str) -> list[Path]:
    """Return this user's folders whose names are made of a prefix as `held_folder` makes them, held or not."""
    named = re.compile(re.escape(prefix) + "[a-z0-9_]{8}")
    try:
        with os.scandir(parent) as inside:
            return sorted(
                Path(each.path)
                for each in inside
                if named.fullmatch(each.name) and _is_own(each.stat(follow_symlinks=False))
            )
    except OSError:
        return []  # what cannot be listed cannot be tidied


@contextmanager
def hold_folder(folder: Path, unlocked_seconds: float = UNLOCKED_SECONDS) -> Iterator[None]:
    """Hold a folder that nobody else holds; raises BlockingIOError where somebody may, OSError where it is gone."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        there = os.fstat(handle)
        if not _is_own(there):
            raise BlockingIOError(f"{folder}: another user's")
        if not locked(handle) and time.time() - there.st_mtime < unlocked_seconds:
            raise BlockingIOError(f"{folder}: may be in use")
        yield
    finally:
        os.close(handle)


def locked(handle: int) -> bool:
    """Lock an open file or folder; False where that is impossible. BlockingIOError says that somebody else has."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def is_same(path: Path, handle: int) -> bool:
    """Return whether a path still leads to what was opened."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(handle))
    except FileNotFoundError:
        return False


def make_locked_folder(parent: Path, prefix: str) -> tuple[Path, int]:
    """Make a new folder whose name begins so; it is held until the handle is closed. Raises OSError."""
    # Until it is locked, another process may take it for one that nobody holds.
    for _ in range(_TRIES):
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        with suppress(FileNotFoundError):
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            with suppress(BlockingIOError):
                locked(handle)
                if is_same(folder, handle):
                    return folder, handle
            os.close(handle)
    raise OSError(f"{parent}: a folder that was made there is removed at once, again and again")


def _is_own(state: os.stat_result) -> bool:
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid()
