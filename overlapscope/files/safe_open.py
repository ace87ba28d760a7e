"""Open files safely: only regular files, and for our own files only those of this user.

Opening a pipe would wait for a writer, and reading a device would never end. Anyone who may write into a run directory
can put a link there under any name: a link, or another user's file, is neither read nor written as one of our own.
"""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

FileState = tuple[int, int, int, int]
"""Size, modification time (ns), inode number and change time (ns): see `file_state`."""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file, or the target of a link, for reading. Raises OSError, also for anything but a file."""
    return _open_checked(os.open(path, os.O_RDONLY | os.O_NONBLOCK), partial(_must_be_plain, path))


def read_regular(path: Path) -> bytes:
    """Return the content of a regular file. Raises OSError as `open_regular` does."""
    with open_regular(path) as file:
        return file.read()


def _must_be_plain(path: Path, state: os.stat_result) -> None:
    if not stat.S_ISREG(state.st_mode):
        raise OSError(f"{path.name}: not a regular file")


@contextmanager
def open_own_folder(folder: Path) -> Iterator[int]:
    """Yield a handle of a folder, to open files in it. Raises OSError if it is a link or another user's."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _must_be_own(os.fstat(handle), stat.S_IFDIR)
        yield handle
    finally:
        os.close(handle)


def open_own_file(file: str | Path, within: int | None = None) -> BinaryIO:
    """Open a file for reading; `within` is the handle of its folder, if given.

    Raises OSError for a link, or for anything but a regular file of this user.
    """
    handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=within)
    return _open_checked(handle, partial(_must_be_own, kind=stat.S_IFREG))


def _open_checked(handle: int, check: Callable[[os.stat_result], None]) -> BinaryIO:
    """Return the file of a handle whose state passes `check`; else the handle is closed."""
    try:
        check(os.fstat(handle))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _must_be_own(state: os.stat_result, kind: int) -> None:
    if state.st_uid != os.geteuid() or stat.S_IFMT(state.st_mode) != kind:
        raise OSError("it belongs to another user, or is of another kind")


def file_state(at: os.stat_result) -> FileState:
    """Return what changes when a file changes: size, modification time (ns), inode number, change time (ns).

    A file can be replaced by one with the same size and modification time (`cp -p`, `rsync -t`, `touch -r`); its inode
    number and its change time cannot be chosen. Those two may also change without the content, by a link or a backup:
    then something is computed once more than necessary.
    """
    return at.st_size, at.st_mtime_ns, at.st_ino, at.st_ctime_ns
