"""Opening what may be no file: a pipe would be waited for, a device would never end."""

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

FileState = tuple[int, int, int, int]


def opened_plain(path: Path) -> BinaryIO:
    """Open a file to read it, or what a link leads to. Raises OSError, also for what is no file."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with ExitStack() as failing:
        failing.callback(os.close, handle)
        _must_be_plain(path, os.fstat(handle))
        file = os.fdopen(handle, "rb")
        failing.pop_all()
    return file


def plain_content(path: Path) -> bytes:
    """Return what a file holds. Raises OSError as `opened_plain` does."""
    with opened_plain(path) as file:
        return file.read()


def _must_be_plain(path: Path, state: os.stat_result) -> None:
    if not stat.S_ISREG(state.st_mode):
        raise OSError(f"{path.name}: is no file")


@contextmanager
def own_folder(folder: Path) -> Iterator[int]:
    """Hold a folder open, for the names in it; raises OSError where it is a link or another user's."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _must_be_own(os.fstat(handle), stat.S_IFDIR)
        yield handle
    finally:
        os.close(handle)


def opened_own(file: str | Path, within: int | None = None) -> BinaryIO:
    """Open a file to read it, `within` a folder that is held if given.

    Raises OSError for a link, or for no plain file of this user.
    """
    handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=within)
    with ExitStack() as held:
        held.callback(os.close, handle)
        _must_be_own(os.fstat(handle), stat.S_IFREG)
        opened = os.fdopen(handle, "rb")
        held.pop_all()
    return opened


def _must_be_own(state: os.stat_result, kind: int) -> None:
    if state.st_uid != os.geteuid() or stat.S_IFMT(state.st_mode) != kind:
        raise OSError("another user's, or of another kind")


def file_state(at: os.stat_result) -> FileState:
    """Return size, time of the content, number, and time of the last change of whatever kind, in ns.

    Whoever replaces a file may give the new one the old one's size and time (`cp -p`, `rsync -t`, `touch -r`); its
    number, or the time of the change, nobody can choose. Both may also change without the content, by a link or a
    backup: then something is done once more.
    """
    return at.st_size, at.st_mtime_ns, at.st_ino, at.st_ctime_ns
