"""The folder beside a run directory in which it is prepared; what is ready in it outlasts an interruption."""

import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from overlapscope.errors import InputError, UsageError
from overlapscope.ingest.shown import shown

_LOCK: Final = "lock"
READ: Final = "read"
"""In it: what files gave. All else is of no use to anybody else."""


@contextmanager
def workplace(out: Path) -> Iterator[Path]:
    """Give the folder for what is prepared for the run directory `out`; it goes with the block.

    When the block fails, what files gave stays for the next time. Raises UsageError when another process prepares the
    same run, InputError when nothing can be written there, or somebody else's folder is there.
    """
    work = out.parent / f".{out.name}.ingest"
    try:
        (work / READ).mkdir(parents=True, exist_ok=True)
        _require_own(work)
        with open(os.open(work / _LOCK, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666), "wb") as lock:
            if not _taken(lock):
                raise UsageError(f"{shown(out)}: another process is writing this run; wait for it, or end it")
            _clear(work)
            try:
                yield work
            except BaseException:
                _clear(work)
                if not any((work / READ).iterdir()):
                    shutil.rmtree(work, ignore_errors=True)
                raise
            shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise InputError(f"{shown(out)}: cannot be written: {error.strerror or error}") from error


def _require_own(work: Path) -> None:
    """Raise InputError where others may have put the folder there, for us to go on with: where everybody can write."""
    there, around = os.lstat(work), work.parent.stat()
    foreign = there.st_uid != os.geteuid() and around.st_mode & stat.S_IWOTH
    if foreign or not stat.S_ISDIR(there.st_mode):
        raise InputError(f"{shown(work)}: is not ours, but where this run is to be prepared; remove it")


def _taken(lock: IO[bytes]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks: then nobody else can be seen either
    return True


def _clear(work: Path) -> None:
    """Remove what a killed process left, other than what is ready."""
    for entry in [*work.iterdir(), *(work / READ).glob(".*")]:
        if entry.is_dir() and entry.name != READ:
            shutil.rmtree(entry, ignore_errors=True)
