"""Every reader there is: our own, and those that other packages bring by an entry point."""

import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from overlapscope.display_path import shown
from overlapscope.errors import InputError, OverlapScopeError
from overlapscope.ingest.bytestream import GZIP_MAGIC
from overlapscope.ingest.entry_points import may_be_brought
from overlapscope.ingest.formats import (
    ascend,
    ascend_communication,
    ascend_database,
    ascend_info,
    ascend_kernels,
    ascend_step_times,
    c10d_watchdog,
    execution_trace,
    flight_recorder,
    horovod,
    kineto,
    measured_tables,
    nccl_log,
    nccl_profiler,
    nccl_tests,
    nsight,
    perfetto_export,
    rocprof,
    topo_matrix,
    topo_xml,
    training_log,
)
from overlapscope.ingest.reading import HEAD_BYTES, Head, ReadContext, Reader, Reading
from overlapscope.ingest.text_head import in_later_text, in_text

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS = "overlapscope.readers"
HEAD_STEP_BYTES = 512
BUILT_IN: tuple[Reader, ...] = (
    nsight.READER,
    rocprof.READER,
    flight_recorder.READER,
    ascend.READER,
    ascend_step_times.READER,
    ascend_kernels.READER,
    ascend_communication.READER,
    ascend_info.READER,
    ascend_database.READER,
    execution_trace.READER,
    horovod.READER,
    nccl_log.READER,
    training_log.READER,
    c10d_watchdog.READER,
    nccl_tests.READER,
    nccl_profiler.READER,
    topo_matrix.READER,
    topo_xml.READER,
    measured_tables.READER,
    perfetto_export.READER,
    kineto.READER,  # last: takes any JSON
)


@cache
def readers() -> tuple[Reader, ...]:
    """Give all readers in the order in which they are asked: those of other packages first.

    Raises InputError, naming the entry point, when one of them cannot be loaded or is no reader.
    """
    if not may_be_brought(ENTRY_POINTS):
        return BUILT_IN
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow to load

    points = sorted(entry_points(group=ENTRY_POINTS), key=lambda point: (point.name, point.value))
    return (*(_guarded(_whose(point), _loaded(point)) for point in points), *BUILT_IN)


def _whose(point: "EntryPoint") -> str:
    package = f" of {point.dist.name}" if point.dist is not None else ""
    return f"the reader {point.name!r}{package} ({point.value})"


def _loaded(point: "EntryPoint") -> Reader:
    with _blamed(f"{_whose(point)} cannot be loaded", "; update or uninstall it"):
        reader = point.load()
    if not isinstance(reader, Reader):
        raise InputError(f"{_whose(point)} is no overlapscope.ingest.reading.Reader; update or uninstall it")
    return reader


def _guarded(whose: str, reader: Reader) -> Reader:
    """Give a reader whose failures are errors of ours that name the file and the reader."""

    def guarded(looks: Callable[[Head], bool], head: Head) -> bool:
        what = f"{shown(head.path)}: {whose} failed to look at it"
        with _blamed(what, but=(OverlapScopeError, OSError, MemoryError)):
            return bool(looks(head))

    def read(path: Path, context: ReadContext) -> Reading:
        with _blamed(f"{shown(path)}: {whose} failed", but=(OverlapScopeError, MemoryError)):
            reading = reader.read(path, context)
        if not isinstance(reading, Reading):
            raise InputError(f"{shown(path)}: {whose} gave no Reading but {type(reading).__name__}")
        return reading

    holds_some = None if reader.holds_some is None else partial(guarded, reader.holds_some)
    return replace(reader, recognises=partial(guarded, reader.recognises), holds_some=holds_some, read=read)


@contextmanager
def _blamed(what: str, todo: str = "", *, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Raise what another package's code raises as an InputError that says whose it is, `but` errors that say enough."""
    try:
        yield
    except but:
        raise
    except Exception as error:  # foreign code: whatever it raises, the user must learn whose it is
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{what}: {said}{todo}") from error


def head_of(path: Path) -> Head:
    """Read the beginning and end of a file. Raises OSError; damaged gzip data gives what precedes the damage."""
    tail = b""
    with open(path, "rb") as file:
        content = file.read(HEAD_BYTES)
        if content[:2] != GZIP_MAGIC and (size := os.fstat(file.fileno()).st_size) > HEAD_BYTES:
            file.seek(max(HEAD_BYTES, size - HEAD_BYTES))
            tail = file.read(HEAD_BYTES)
    return replace(head_within(path, content), tail=tail)


def head_within(path: Path, content: bytes) -> Head:
    """Give the head of a file that begins with `content`, decompressed where that is gzip."""
    if content[:2] == GZIP_MAGIC:
        content = _inflated(content)
    return Head(path=path, content=content)


def _inflated(data: bytes) -> bytes:
    """Decompress what a head needs; of damaged data what precedes the damage, but for the last call's output."""
    content, member = b"", zlib.decompressobj(wbits=31)
    with suppress(zlib.error):
        while data and not member.eof and len(content) < HEAD_BYTES:
            content += member.decompress(data, min(HEAD_STEP_BYTES, HEAD_BYTES - len(content)))
            data = member.unconsumed_tail
    return content


def reader_of(head: Head) -> Reader | None:
    """Give the first reader that knows the file; None when none does."""
    return next(iter(readers_of(head)), None)


def readers_of(head: Head) -> list[Reader]:
    """Give the readers that know the file: one, or all whose lines stand in a log, which may be of several."""
    known = next((reader for reader in readers() if reader.recognises(head)), None)
    if known is not None and not known.anywhere:
        return [known]
    of_lines = [reader for reader in readers() if reader.anywhere]
    found = [reader for reader in of_lines if reader.recognises(head)]
    found += in_later_text(head, [reader for reader in of_lines if reader not in found])
    return found + (_in_part(head) if found else [])


def named_readers_of(head: Head) -> list[Reader]:
    """Give the readers that know a file that the user has named: where none does, the first whose lines stand in it."""
    return readers_of(head) or _in_part(head)[:1]


def _in_part(head: Head) -> list[Reader]:
    """Give the readers whose tables stand in a text among other things, such as what a benchmark printed into a log."""
    of_some = [(reader, reader.holds_some) for reader in readers() if reader.holds_some is not None]
    return [reader for reader, holds_some in of_some if in_text(head, holds_some)]
