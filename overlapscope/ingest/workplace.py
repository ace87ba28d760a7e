"""The folder beside a run directory in which it is prepared; what is ready in it outlasts an interruption."""

import errno
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from overlapscope.display_path import shown
from overlapscope.errors import InputError, UsageError
from overlapscope.timeline.held_folder import is_same, locked

_LOCK: Final = "lock"
READ: Final = "read"
"""In it: what files gave. All else is of no use to anybody else."""
ABANDONED_SECONDS: Final = 7 * 24 * 3600.0
"""Nobody goes on with what was interrupted so long ago."""
MAKE_ROOM: Final = (
    "make room, or choose another place: what was read until then is kept, and the same call goes on from there"
)
_NAMED: Final = re.compile(r"\..+\.ingest", re.DOTALL)
_TRIES: Final = 100


def place_beside(out: Path) -> Path:
    """Give the folder in which the run directory `out` is prepared; after an interruption, where there is anything."""
    return out.parent / f".{out.name}.ingest"


@contextmanager
def workplace(out: Path) -> Iterator[Path]:
    """Give the folder for what is prepared for the run directory `out`; it goes with the block.

    When the block fails, what files gave stays for the next time. Raises UsageError when another process prepares the
    same run, InputError when nothing can be written there, or somebody else's folder is there.
    """
    work = place_beside(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        lock = _locked(work, out)
        try:
            (work / READ).mkdir(exist_ok=True)
            _clear(work)
            _remove_abandoned(out.parent)
            with ExitStack() as failing:
                failing.callback(_leave_what_is_read, work)
                yield work
                failing.pop_all()
            _remove(work)
        finally:
            os.close(lock)
    except OSError as error:
        room = f"; {MAKE_ROOM}" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise InputError(f"{shown(out)}: cannot be written: {error.strerror or error}{room}") from error


def _leave_what_is_read(work: Path) -> None:
    _clear(work)
    if not any((work / READ).iterdir()):
        _remove(work)


def _locked(work: Path, out: Path) -> int:
    """Make the folder and take its lock, which is another one as soon as whoever had it removed the folder."""
    for _ in range(_TRIES):
        with suppress(FileExistsError):
            work.mkdir()
        _require_own(work, out)
        with suppress(FileNotFoundError):  # the folder was removed meanwhile
            handle = _opened_lock(work, os.O_CREAT)
            if _is_ours(handle) and is_same(work / _LOCK, handle):
                return handle
            os.close(handle)
    raise UsageError(f"{shown(out)}: another process is writing this run; wait for it, or end it")


def _opened_lock(work: Path, how: int = 0) -> int:
    """Open the lock without waiting, were it a pipe. Raises OSError, InputError for what is no file."""
    try:
        return os.open(work / _LOCK, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | how, 0o666)
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.ELOOP, errno.ENXIO):
            raise InputError(f"{shown(work / _LOCK)}: cannot be written: it is no file; remove it") from error
        raise


def _is_ours(handle: int) -> bool:
    """Lock a file; where there are no locks, nobody else can be seen either."""
    try:
        locked(handle)
    except BlockingIOError:
        return False
    return True


def _require_own(work: Path, out: Path) -> None:
    """Raise InputError where others may have put the folder there, for us to go on with: where everybody can write."""
    try:
        there, around = os.lstat(work), work.parent.stat()
    except FileNotFoundError:
        return  # removed meanwhile: its lock will not be there either
    foreign = there.st_uid != os.geteuid() and around.st_mode & stat.S_IWOTH
    if foreign or not stat.S_ISDIR(there.st_mode):
        raise InputError(f"{shown(work)}: is not ours, but where this run is to be prepared; remove it")


def _clear(work: Path) -> None:
    """Remove what a killed process left, other than what is ready."""
    for entry in [*work.iterdir(), *(work / READ).glob(".*")]:
        if entry.is_dir() and entry.name != READ:
            shutil.rmtree(entry, ignore_errors=True)


def _remove(work: Path) -> None:
    """Remove the folder whose lock this process has: the lock last, so that nobody else makes anything in it before."""
    for entry in work.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name != _LOCK:
            with suppress(OSError):
                entry.unlink()
    with suppress(OSError):
        if [each.name for each in work.iterdir()] == [_LOCK]:  # by it others know whose the rest is
            (work / _LOCK).unlink()
            work.rmdir()  # unless somebody has taken a new lock in it


def _remove_abandoned(folder: Path) -> None:
    """Remove what other ingests to this folder left long ago."""
    with os.scandir(folder) as inside:
        others = [Path(each.path) for each in inside if _NAMED.fullmatch(each.name)]
    for work in others:
        with suppress(OSError, InputError):
            _remove_if_abandoned(work)


def _remove_if_abandoned(work: Path) -> None:
    """Raises OSError, InputError for a folder that is not as we make them, BlockingIOError for one in use."""
    states = [os.lstat(each) for each in (work, work / READ)]
    own = all(stat.S_ISDIR(each.st_mode) and each.st_uid == os.geteuid() for each in states)
    if not own or time.time() - max(each.st_mtime for each in states) < ABANDONED_SECONDS:
        return
    handle = _opened_lock(work)
    try:
        locked(handle)
        if is_same(work / _LOCK, handle):
            _remove(work)
    finally:
        os.close(handle)
