"""Files that are on disk, not only with the system: what a power cut must find whole is flushed before it is named."""

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
"""Disks and journals take what many ask for at once in one go."""
BACKGROUND_THREADS: Final = 2
"""Fewer where nobody waits: threads of this process are taken from who reads."""


class Flushing:
    """Brings files to disk while other work goes on; with the block it is done with, or given up when that fails."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(BACKGROUND_THREADS)
        self._begun: list[Future[int]] = []

    def begin(self, files: Iterable[Path]) -> None:
        """Have files on disk some time that nobody writes any more."""
        self._begun += [self._pool.submit(_flush_path, each) for each in files]

    def done(self) -> frozenset[int]:
        """Wait until they are, and give their inode numbers. Raises OSError where one cannot be."""
        return frozenset(each.result() for each in self._begun)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=kind is not None)


def flush_below(folder: Path, but: Container[int] = frozenset()) -> None:
    """Have all files below a folder on disk, and then their names.

    Files whose inode numbers are in `but` were flushed under other names. Raises OSError.
    """
    below = list(_below(os.fspath(folder)))
    with ThreadPoolExecutor(FLUSH_THREADS) as pool:
        list(pool.map(_flush_path, (each.path for each in below if not each.is_dir() and each.inode() not in but)))
        list(pool.map(flush_folder, [*(each.path for each in below if each.is_dir()), folder]))


def flush_file(file: BinaryIO) -> None:
    """Have what was written to a file on disk. Raises OSError; a file system that cannot is no error."""
    file.flush()
    _flush(file.fileno())


def flush_folder(folder: str | Path) -> None:
    """Have the names in a folder on disk, as `flush_file` does."""
    _flush_path(folder, os.O_RDONLY | os.O_DIRECTORY)


def _flush_path(path: str | Path, how: int = os.O_RDONLY) -> int:
    """Flush what stands at a path, and give its inode number."""
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
    """Yield the files and folders below a folder, each folder behind what is in it; links and pipes are neither."""
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
    """Yield a file that becomes `path` when the block succeeds, in place of an older one, and goes when it fails.

    If it is to be `durable`, it is on disk before it takes the older one's place. Raises OSError.
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
        temporary.unlink(missing_ok=True)  # there is none once it took its place
