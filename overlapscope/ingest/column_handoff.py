"""Hand a value with large columns from one process to another through private files.

The columns are written as they are in memory (pickle protocol 5, out of band), and the other process maps the file
instead of reading it.
"""

import mmap
import os
import pickle
from pathlib import Path
from typing import Any, Final

_PICKLE, _COLUMNS = "pickle", "columns"
_ALIGNMENT_BYTES: Final = 64


def save(value: Any, folder: Path) -> None:
    """Write a picklable value into `folder`, which is created. Raises OSError.

    Each file takes its place whole: another process may have mapped what a first try of the same task wrote.
    """
    folder.mkdir(exist_ok=True)
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    sizes = []
    columns = folder / f".{_COLUMNS}.{os.getpid()}"
    with open(columns, "wb") as file:
        for buffer in buffers:
            with buffer.raw() as raw:
                sizes.append(raw.nbytes)
                file.write(raw)
                file.write(bytes(-raw.nbytes % _ALIGNMENT_BYTES))
    os.replace(columns, folder / _COLUMNS)
    described = folder / f".{_PICKLE}.{os.getpid()}"
    described.write_bytes(pickle.dumps((sizes, pickled), protocol=5))
    os.replace(described, folder / _PICKLE)


def load(folder: Path) -> Any:
    """Return the saved value; its columns are memory-mapped, so the folder may be deleted afterwards."""
    sizes, pickled = pickle.loads((folder / _PICKLE).read_bytes())
    mapped = memoryview(b"")
    if sum(sizes):
        with open(folder / _COLUMNS, "rb") as file:
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    buffers, at = [], 0
    for size in sizes:
        buffers.append(mapped[at : at + size])
        at += size + -size % _ALIGNMENT_BYTES
    return pickle.loads(pickled, buffers=buffers)
