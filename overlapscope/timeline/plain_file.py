"""Opening what may be no file: a pipe would be waited for, a device would never end."""

import os
import stat
from pathlib import Path
from typing import BinaryIO


def opened_plain(path: Path) -> BinaryIO:
    """Open a file to read it, or what a link leads to. Raises OSError, also for what is no file."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        _must_be_plain(path, os.fstat(handle))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def plain_content(path: Path) -> bytes:
    """Give what a file holds. Raises OSError as `opened_plain` does."""
    with opened_plain(path) as file:
        return file.read()


def _must_be_plain(path: Path, state: os.stat_result) -> None:
    if not stat.S_ISREG(state.st_mode):
        raise OSError(f"{path.name}: is no file")
