"""What one process read for another: files that nobody else sees, of columns as they are in memory.

The other maps them instead of reading them.
"""

import mmap
import pickle
from pathlib import Path
from typing import Final

from overlapscope.ingest.task import Read, Task, read_task, telling

_WORDS, _COLUMNS = "words", "columns"
_ALIGNED: Final = 64


def read_into(task: Task, number: int) -> bool:
    """Read the file of a task and leave what came of it in the task's folder; False when it cannot be written there.

    Words on its progress are `(number, bytes read)`.
    """
    read = read_task(task, telling(number))
    try:
        save(read, task.folder)
    except OSError:
        return False
    return True


def save(read: Read, folder: Path) -> None:
    """Write what came of a task into its folder, made for it. Raises OSError."""
    folder.mkdir(exist_ok=True)
    buffers: list[pickle.PickleBuffer] = []
    words = pickle.dumps(read, protocol=5, buffer_callback=buffers.append)
    sizes = []
    with open(folder / _COLUMNS, "wb") as file:
        for buffer in buffers:
            with buffer.raw() as raw:
                sizes.append(raw.nbytes)
                file.write(raw)
                file.write(bytes(-raw.nbytes % _ALIGNED))
    (folder / _WORDS).write_bytes(pickle.dumps((sizes, words), protocol=5))


def load(folder: Path) -> Read:
    """Give what was saved; its columns are mapped, so that the folder may go."""
    sizes, words = pickle.loads((folder / _WORDS).read_bytes())
    mapped = memoryview(b"")
    if sum(sizes):
        with open(folder / _COLUMNS, "rb") as file:
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    buffers, at = [], 0
    for size in sizes:
        buffers.append(mapped[at : at + size])
        at += size + -size % _ALIGNED
    read: Read = pickle.loads(words, buffers=buffers)
    return read
