"""Every reader there is: our own, and those that other packages bring by an entry point."""

import zlib
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from overlapscope.errors import InputError, OverlapScopeError
from overlapscope.ingest import kineto
from overlapscope.ingest.bytestream import GZIP_MAGIC
from overlapscope.ingest.reading import HEAD_BYTES, Head, ReadContext, Reader, Reading
from overlapscope.ingest.shown import shown

ENTRY_POINTS = "overlapscope.readers"
BUILT_IN: tuple[Reader, ...] = (
    kineto.READER,  # last: takes any JSON
)


@cache
def readers() -> tuple[Reader, ...]:
    """Give all readers in the order in which they are asked: those of other packages first.

    Raises InputError, naming the entry point, when one of them cannot be loaded or is no reader.
    """
    points = sorted(entry_points(group=ENTRY_POINTS), key=lambda point: (point.name, point.value))
    return (*(_guarded(_whose(point), _loaded(point)) for point in points), *BUILT_IN)


def _whose(point: EntryPoint) -> str:
    package = f" of {point.dist.name}" if point.dist is not None else ""
    return f"the reader {point.name!r}{package} ({point.value})"


def _loaded(point: EntryPoint) -> Reader:
    try:
        reader = point.load()
    except Exception as error:  # foreign code: whatever it raises, the user must learn whose it is
        raise InputError(f"{_whose(point)} cannot be loaded: {_said(error)}; update or uninstall it") from error
    if not isinstance(reader, Reader):
        raise InputError(f"{_whose(point)} is no overlapscope.ingest.reading.Reader; update or uninstall it")
    return reader


def _guarded(whose: str, reader: Reader) -> Reader:
    """Give a reader whose failures are errors of ours that name the file and the reader."""

    def recognises(head: Head) -> bool:
        try:
            return bool(reader.recognises(head))
        except (OverlapScopeError, OSError, MemoryError):
            raise
        except Exception as error:  # foreign code, as above
            raise InputError(f"{shown(head.path)}: {whose} failed to look at it: {_said(error)}") from error

    def read(path: Path, context: ReadContext) -> Reading:
        try:
            reading = reader.read(path, context)
        except (OverlapScopeError, MemoryError):
            raise
        except Exception as error:  # foreign code, as above
            raise InputError(f"{shown(path)}: {whose} failed: {_said(error)}") from error
        if not isinstance(reading, Reading):
            raise InputError(f"{shown(path)}: {whose} gave no Reading but {type(reading).__name__}")
        return reading

    return replace(reader, recognises=recognises, read=read)


def _said(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


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
