"""What one process found for another: files that nobody else sees, of columns as they are in memory.

The other maps them instead of reading them.
"""

import mmap
import pickle
from pathlib import Path
from typing import Any, Final

_WORDS, _COLUMNS = "words", "columns"
_ALIGNED: Final = 64


def save(value: Any, folder: Path) -> None:
    """Write a value that holds columns into its folder, made for it. Raises OSError."""
    folder.mkdir(exist_ok=True)
    buffers: list[pickle.PickleBuffer] = []
    words = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    sizes = []
    with open(folder / _COLUMNS, "wb") as file:
        for buffer in buffers:
            with buffer.raw() as raw:
                sizes.append(raw.nbytes)
                file.write(raw)
                file.write(bytes(-raw.nbytes % _ALIGNED))
    (folder / _WORDS).write_bytes(pickle.dumps((sizes, words), protocol=5))


def load(folder: Path) -> Any:
    """Return what was saved; its columns are mapped, so that the folder may go."""
    sizes, words = pickle.loads((folder / _WORDS).read_bytes())
    mapped = memoryview(b"")
    if sum(sizes):
        with open(folder / _COLUMNS, "rb") as file:
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    buffers, at = [], 0
    for size in sizes:
        buffers.append(mapped[at : at + size])
        at += size + -size % _ALIGNED
    return pickle.loads(words, buffers=buffers)
