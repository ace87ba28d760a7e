"""Write files atomically and durably.

A file is written under a temporary name and then renamed, so that it is complete or not there. What must survive a
power cut is flushed to disk (fsync) before it is renamed.
"""

import errno
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

FLUSH_THREADS: Final = 16
"""Disks and journals merge flushes that are requested at the same time."""


def flush_tree(folder: Path) -> None:
    """Flush all files below a folder to disk, then the folders with their names. Raises OSError."""
    below = [*folder.rglob("*"), folder]
    with ThreadPoolExecutor(FLUSH_THREADS) as pool:
        list(pool.map(flush_path, filter(Path.is_file, below)))
        list(pool.map(flush_path, filter(Path.is_dir, below)))


def flush_path(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk. Raises OSError as `_flush` does."""
    handle = os.open(path, os.O_RDONLY)
    try:
        _flush(handle)
    finally:
        os.close(handle)


def _flush(handle: int) -> None:
    """Flush an open file to disk. Raises OSError, but not where the file system does not support it."""
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def umask() -> int:
    """Return the process's file creation mask.

    Where the system does not state it, it is set for a moment, which the other threads of a process may notice.
    """
    with (
        suppress(OSError, StopIteration),
        open("/proc/thread-self/status", encoding="utf-8", errors="replace") as lines,
    ):
        return int(next(line for line in lines if line.startswith("Umask:")).split()[1], 8)
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


@contextmanager
def atomic_file(path: Path, *, durable: bool) -> Iterator[BinaryIO]:
    """Yield a temporary file that replaces `path` when the block succeeds, and is removed when it fails.

    If `durable`, it is on disk before it is renamed. Raises OSError.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            if durable:
                file.flush()
                _flush(file.fileno())
        os.chmod(temporary, 0o666 & ~umask())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)  # missing once it was renamed
