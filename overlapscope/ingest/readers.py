"""Every reader there is: our own, and those that other packages bring by an entry point."""

import zlib
from dataclasses import replace
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from overlapscope.errors import InputError, OverlapScopeError
from overlapscope.ingest import kineto, nccl_log
from overlapscope.ingest.bytestream import GZIP_MAGIC
from overlapscope.ingest.reading import HEAD_BYTES, Head, ReadContext, Reader, Reading
from overlapscope.ingest.shown import shown

ENTRY_POINTS = "overlapscope.readers"
BUILT_IN: tuple[Reader, ...] = (
    nccl_log.READER,
    kineto.READER,  # last: takes any JSON
)


@cache
def readers() -> tuple[Reader, ...]:
    """Give all readers in the order in which they are asked: those of other packages first.

    Raises InputError, naming the entry point, when one of them cannot be loaded or is no reader.
    """
    brought = []
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        try:
            reader = point.load()
        except Exception as error:  # foreign code: whatever it raises, the user must learn whose it is
            raise InputError(
                f"the reader {point.name!r} ({point.value}) cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(reader, Reader):
            raise InputError(f"the reader {point.name!r} ({point.value}) is no overlapscope.ingest.reading.Reader")
        brought.append(replace(reader, read=_foreign(point.name, reader)))
    return (*brought, *BUILT_IN)


def _foreign(name: str, reader: Reader):  # type: ignore[no-untyped-def]
    def read(path: Path, context: ReadContext) -> Reading:
        try:
            return reader.read(path, context)
        except (OverlapScopeError, MemoryError):
            raise
        except Exception as error:  # foreign code, as above
            raise InputError(f"{shown(path)}: the reader {name!r} failed: {type(error).__name__}: {error}") from error

    return read


def head_of(path: Path) -> Head:
    """Read the beginning of a file. Raises OSError; damaged gzip data gives what precedes the damage."""
    with open(path, "rb") as file:
        content = file.read(HEAD_BYTES)
    if content[:2] == GZIP_MAGIC:
        try:
            content = zlib.decompressobj(wbits=31).decompress(content, HEAD_BYTES)
        except zlib.error:
            content = b""
    return Head(path=path, content=content)


def reader_of(head: Head) -> Reader | None:
    """Give the reader that knows the file; None when none does."""
    return next((reader for reader in readers() if reader.recognises(head)), None)
