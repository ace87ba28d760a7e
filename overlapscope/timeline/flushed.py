"""Files that are on disk, not only with the system: what a power cut must find whole is flushed before it is named."""

import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, Final

AT_ONCE: Final = 16
"""Disks and journals take what many ask for at once in one go."""


def flush_below(folder: Path) -> None:
    """Have all files below a folder on disk, and then their names. Raises OSError."""
    below = list(_below(os.fspath(folder)))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(_flush_opened, (name for name, is_folder in below if not is_folder)))
        list(pool.map(flush_folder, [*(name for name, is_folder in below if is_folder), folder]))


def flush_file(file: BinaryIO) -> None:
    """Have what was written to a file on disk. Raises OSError; a file system that cannot is no error."""
    file.flush()
    _flush(file.fileno())


def flush_folder(folder: str | Path) -> None:
    """Have the names in a folder on disk, as `flush_file` does."""
    _flush_opened(folder, os.O_RDONLY | os.O_DIRECTORY)


def _flush_opened(path: str | Path, how: int = os.O_RDONLY) -> None:
    handle = os.open(path, how)
    try:
        _flush(handle)
    finally:
        os.close(handle)


def _flush(handle: int) -> None:
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def _below(folder: str) -> Iterator[tuple[str, bool]]:
    with os.scandir(folder) as inside:
        for each in inside:
            if each.is_dir(follow_symlinks=False):
                yield from _below(each.path)
                yield each.path, True
            elif each.is_file(follow_symlinks=False):
                yield each.path, False
