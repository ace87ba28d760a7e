"""Write files atomically and durably.

A file is written under a temporary name and then renamed, so that it is complete or not there. What must survive a
power cut is flushed to disk (fsync) before it is renamed.
"""

import errno
import os
import tempfile
from collections.abc import Container, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

FLUSH_THREADS: Final = 16
"""Disks and journals merge flushes that are requested at the same time."""
BACKGROUND_THREADS: Final = 2
"""Fewer while nobody waits: these threads take time from the threads that read."""


class BackgroundFlush:
    """Flushes files to disk in the background; a context manager that waits at its end, or cancels on an exception."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(BACKGROUND_THREADS)
        self._begun: list[Future[int]] = []

    def begin(self, files: Iterable[Path]) -> None:
        """Start flushing files that are complete."""
        self._begun += [self._pool.submit(_flush_path, each) for each in files]

    def done(self) -> frozenset[int]:
        """Wait until all files are on disk, and return their inode numbers. Raises OSError if one cannot be flushed."""
        return frozenset(each.result() for each in self._begun)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=kind is not None)


def flush_tree(folder: Path, but: Container[int] = frozenset()) -> None:
    """Flush all files below a folder to disk, then the folders with their names.

    Files whose inode numbers are in `but` were flushed already, under other names. Raises OSError.
    """
    below = list(_below(os.fspath(folder)))
    with ThreadPoolExecutor(FLUSH_THREADS) as pool:
        list(pool.map(_flush_path, (each.path for each in below if not each.is_dir() and each.inode() not in but)))
        list(pool.map(flush_folder, [*(each.path for each in below if each.is_dir()), folder]))


def flush_file(file: BinaryIO) -> None:
    """Flush a file to disk. Raises OSError, but not where the file system does not support it."""
    file.flush()
    _flush(file.fileno())


def flush_folder(folder: str | Path) -> None:
    """Flush the names in a folder to disk, as `flush_file` does."""
    _flush_path(folder, os.O_RDONLY | os.O_DIRECTORY)


def _flush_path(path: str | Path, how: int = os.O_RDONLY) -> int:
    """Flush the file or folder at a path, and return its inode number."""
    handle = os.open(path, how)
    try:
        _flush(handle)
        return os.fstat(handle).st_ino
    finally:
        os.close(handle)


def _flush(handle: int) -> None:
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def _below(folder: str) -> Iterator["os.DirEntry[str]"]:
    """Yield the files and folders below a folder, each folder after its content; links and pipes are left out."""
    with os.scandir(folder) as inside:
        for each in inside:
            if each.is_dir(follow_symlinks=False):
                yield from _below(each.path)
                yield each
            elif each.is_file(follow_symlinks=False):
                yield each


def umask() -> int:
    """Return the process's file creation mask."""
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
                flush_file(file)
        os.chmod(temporary, 0o666 & ~umask())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)  # missing once it was renamed
