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
        list(pool.map(_flush_file, (name for name, is_folder in below if not is_folder)))
        list(pool.map(flush_folder, [*(name for name, is_folder in below if is_folder), folder]))


def flush_file(file: BinaryIO) -> None:
    """Have what was written to a file on disk. Raises OSError."""
    file.flush()
    os.fsync(file.fileno())


def flush_folder(folder: str | Path) -> None:
    """Have the names in a folder on disk. Raises OSError; a file system that cannot is no error."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def _flush_file(file: str) -> None:
    handle = os.open(file, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _below(folder: str) -> Iterator[tuple[str, bool]]:
    with os.scandir(folder) as inside:
        for each in inside:
            if each.is_dir(follow_symlinks=False):
                yield from _below(each.path)
                yield each.path, True
            elif each.is_file(follow_symlinks=False):
                yield each.path, False
