"""A file that is written under a temporary name and takes its place whole, or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from overlapscope.timeline.flushed import flush_file, umask


@contextmanager
def whole_file(path: Path, *, durable: bool) -> Iterator[BinaryIO]:
    """Give a file that becomes `path` when the block succeeds, in place of an older one, and goes when it fails.

    If it is to be `durable`, it is on disk before it takes the older one's place. Raises OSError.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            if durable:
                flush_file(file)
        os.chmod(temporary, 0o666 & ~umask())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)  # there is none once it took its place
