"""Opening what may be no file: a pipe would be waited for, a device would never end."""

import os
import stat
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO


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
    """Give what a file holds. Raises OSError as `opened_plain` does."""
    with opened_plain(path) as file:
        return file.read()


def _must_be_plain(path: Path, state: os.stat_result) -> None:
    if not stat.S_ISREG(state.st_mode):
        raise OSError(f"{path.name}: is no file")
