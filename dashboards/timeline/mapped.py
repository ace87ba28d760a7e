"""Columns of numbers that are kept in files, mapped: of a large one a view looks at little."""

import re
from typing import Any, Final

import numpy as np

from overlapscope.timeline.own_files import opened_own

_HEADER: Final = re.compile(rb"{'descr': '(.{3})', 'fortran_order': False, 'shape': \(([0-9]{1,15}),\), } *\n")
"""What `numpy.save` writes of one column: no more is understood, so that a broken one is never taken for Python."""


def mapped(folder: int, name: str, dtype: type) -> "np.ndarray[Any, Any]":
    """Map the one column that a `.npy` file holds; raises OSError, or ValueError where it is another array."""
    with opened_own(name, folder) as file:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError(f"{name}: another format")
        told = _HEADER.fullmatch(file.read(int.from_bytes(file.read(2), "little")))
        if told is None or told[1].decode("latin-1") != np.dtype(dtype).str:
            raise ValueError(f"{name}: another array")
        length = int(told[2])
        if length == 0:
            return np.empty(0, dtype)
        return np.asarray(np.memmap(file, dtype, "r", offset=file.tell(), shape=length))  # parts of it are made faster
