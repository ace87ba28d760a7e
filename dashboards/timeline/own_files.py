"""Files beside a run that are this user's own: a link, or what another user put there, is neither read nor written.

Whoever may write into a run directory may put a link there under any name; what would go through it goes nowhere.
"""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

_HEADER: Final = re.compile(rb"{'descr': '(.{3})', 'fortran_order': False, 'shape': \(([0-9]{1,15}),\), } *\n")
"""What `numpy.save` writes of one column: no more is understood, so that a broken one is never taken for Python."""


@contextmanager
def own_folder(folder: Path) -> Iterator[int]:
    """Hold a folder open, for the names in it; raises OSError where it is a link or another user's."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _must_be_own(os.fstat(handle), stat.S_IFDIR)
        yield handle
    finally:
        os.close(handle)


def opened_own(folder: int, name: str) -> BinaryIO:
    """Open a file in a folder that is held to read it; raises OSError for a link, or for no plain file of this user."""
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        _must_be_own(os.fstat(handle), stat.S_IFREG)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def mapped(folder: int, name: str, dtype: type) -> "np.ndarray[Any, Any]":
    """Map the one column that a `.npy` file holds; raises OSError, or ValueError where it is another array."""
    with opened_own(folder, name) as file:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError(f"{name}: another format")
        told = _HEADER.fullmatch(file.read(int.from_bytes(file.read(2), "little")))
        if told is None or told[1].decode("latin-1") != np.dtype(dtype).str:
            raise ValueError(f"{name}: another array")
        length = int(told[2])
        if length == 0:
            return np.empty(0, dtype)
        return np.asarray(np.memmap(file, dtype, "r", offset=file.tell(), shape=length))  # parts of it are made faster


def _must_be_own(state: os.stat_result, kind: int) -> None:
    if state.st_uid != os.geteuid() or stat.S_IFMT(state.st_mode) != kind:
        raise OSError("another user's, or of another kind")
