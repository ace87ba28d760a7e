"""The folder beside a run directory in which it is prepared; what is ready in it outlasts an interruption."""

import errno
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from overlapscope.display import display_path
from overlapscope.errors import InputError, UsageError
from overlapscope.files.temporary_folder import is_same_file, try_lock

_LOCK: Final = "lock"
READ: Final = "read"
"""In it: what files gave. All else is of no use to anybody else."""
ABANDONED_SECONDS: Final = 7 * 24 * 3600.0
"""Nobody goes on with what was interrupted so long ago."""
MAKE_ROOM: Final = (
    "make room, or choose another place: what was read until then is kept, and the same call goes on from there"
)
_TRIES: Final = 100


def work_dir_of(out: Path) -> Path:
    """Return the folder in which the run directory `out` is prepared, and what an interruption leaves."""
    return out.parent / f".{out.name}.ingest"


@contextmanager
def work_dir(out: Path) -> Iterator[Path]:
    """Make the folder for what is prepared for the run directory `out`; it goes with the block.

    When the block fails, what files gave stays for the next time. Raises UsageError when another process prepares the
    same run, InputError when nothing can be written there, or somebody else's folder is there.
    """
    work = work_dir_of(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        lock = _lock(work, out)
        try:
            (work / READ).mkdir(exist_ok=True)
            _remove_unfinished(work)
            _remove_abandoned(out.parent)
            yield work
        except BaseException:  # an interruption above all, which must not leave what nobody goes on with; raised again
            _remove_unfinished(work)
            if not any((work / READ).iterdir()):
                _remove(work)
            raise
        else:
            _remove(work)
        finally:
            os.close(lock)
    except OSError as error:
        room = f"; {MAKE_ROOM}" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise InputError(f"{display_path(out)}: cannot be written: {error.strerror or error}{room}") from error


def _lock(work: Path, out: Path) -> int:
    """Make the folder and lock it. Whoever had the lock may have removed the folder meanwhile, with the lock in it."""
    for _ in range(_TRIES):
        with suppress(FileExistsError):
            work.mkdir()
        with suppress(FileNotFoundError):
            _require_own(work)
            handle = _open_lock(work, os.O_CREAT)
            with suppress(BlockingIOError):
                try_lock(handle)  # where there are no locks, nobody else can be seen either
                if is_same_file(work / _LOCK, handle):
                    return handle
            os.close(handle)
    raise UsageError(f"{display_path(out)}: another process is writing this run; wait for it, or end it")


def _require_own(work: Path) -> None:
    """Raise InputError where others may have put the folder there, for us to go on with: where everybody can write."""
    there, around = os.lstat(work), work.parent.stat()
    foreign = there.st_uid != os.geteuid() and around.st_mode & stat.S_IWOTH
    if foreign or not stat.S_ISDIR(there.st_mode):
        raise InputError(f"{display_path(work)}: is not ours, but where this run is to be prepared; remove it")


def _open_lock(work: Path, how: int = 0) -> int:
    """Open the lock without waiting, were it a pipe. Raises OSError, InputError for what is no file."""
    try:
        return os.open(work / _LOCK, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | how, 0o666)
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.ELOOP, errno.ENXIO):
            raise InputError(f"{display_path(work / _LOCK)}: cannot be written: it is no file; remove it") from error
        raise


def _remove_unfinished(work: Path) -> None:
    """Remove all but whole folders of what files gave."""
    for entry in [*work.iterdir(), *(work / READ).glob(".*")]:
        if entry.is_dir() and entry.name != READ:
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.parent.name == READ:
            entry.unlink()


def _remove(work: Path) -> None:
    """Remove the folder whose lock this process has: at once for others, who may make a new one of its name."""
    with suppress(OSError):
        trash = Path(tempfile.mkdtemp(prefix=f"{work.name}-", suffix=".ingest", dir=work.parent))
        work.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)


def _remove_abandoned(folder: Path) -> None:
    """Remove what other ingests to this folder left long ago."""
    for work in folder.glob(".*.ingest"):
        with suppress(OSError, InputError):  # not as we make them; BlockingIOError: in use
            states = [os.lstat(each) for each in (work, work / READ)]
            own = all(stat.S_ISDIR(each.st_mode) and each.st_uid == os.geteuid() for each in states)
            if own and time.time() - max(each.st_mtime for each in states) > ABANDONED_SECONDS:
                handle = _open_lock(work)
                try:
                    try_lock(handle)
                    if is_same_file(work / _LOCK, handle):
                        _remove(work)
                finally:
                    os.close(handle)
