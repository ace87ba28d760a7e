"""Read the events of one Kineto trace as columns: a small file in this process, a large one in several.

Several processes read a file in shares. Each goes through the file from its beginning, cuts the same pieces as all
others, and decodes the pieces of its share: that is divided, while to cut the pieces takes each a seventeenth of the
time of one process, and a seventh where it decompresses. The file is read again by this process alone where a piece
does not decode as it was cut (the others may have cut elsewhere), a process was lost, a process opened another file or
a changed one, or a share does not begin where the previous one ended. So the result is always that of one process.
"""

import re
from collections.abc import Callable
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final, Self

import msgspec
from msgspec.structs import replace

from overlapscope.display import display_path
from overlapscope.errors import InputError
from overlapscope.files.safe_open import FileState
from overlapscope.ingest.build.kernel_names import may_describe_collective
from overlapscope.ingest.build.trace_columns import TraceColumns, concatenate_columns
from overlapscope.ingest.column_handoff import load, save
from overlapscope.ingest.formats.kineto.events import EventCollector
from overlapscope.ingest.formats.kineto.gradients import ACCUMULATE
from overlapscope.ingest.parsing.event_chunks import EventChunks
from overlapscope.ingest.parsing.gzip_stream import ByteStream
from overlapscope.ingest.reader import ReadContext, Sharing

DECODING: Final = 0.94
"""Part of the time of one process that is divided among several ..."""
DECODING_GZIP: Final = 0.86
"""... and of a compressed file, which each must decompress."""
NO_DEVICES: Final = re.compile(rb'"deviceProperties"\s*:\s*\[\s*\]')
"""What Kineto writes before the events where it saw no device."""


def states_no_device(head: bytes) -> bool:
    """Return whether the text before the events says that no device was there: its operations compute themselves."""
    return NO_DEVICES.search(head) is not None


class EventFile(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a whole file."""

    columns: TraceColumns
    head: bytes
    """Text before the event array."""
    tail: bytes
    """Text behind the event array."""
    is_array: bool
    closed: bool
    """Whether the event array was closed."""
    truncated: bool
    """Whether the compressed data ended early."""
    warnings: tuple[str, ...]
    state: FileState | None
    """Identity and state of the file that was read."""


def read_events(path: Path, context: ReadContext) -> EventFile:
    """Read a file to its end. Raises InputError when it cannot be read, NotATraceError when it holds no events."""
    if context.sharing is not None:
        progress = _ReportedProgress(context.progress)
        found = _read_in_shares(path, replace(context, progress=progress), context.sharing)
        if found is not None:
            return found
        progress.take_back()
    return _read_from(_Share.of(0, None, stacks=context.stacks), path, context)


class _Share(msgspec.Struct, kw_only=True):
    """The pieces of a file that one process decodes, from the first piece at which `begin` bytes were read."""

    begin: int
    end: int | None = None
    """Beginning of the next share; None for the last share, to which the rest of the file belongs."""
    passed: int = 0
    """Bytes of events in the pieces so far."""
    begun: int | None = None
    """Bytes of events in the pieces before the share."""
    collector: EventCollector

    @classmethod
    def of(cls, begin: int, end: int | None, *, stacks: bool) -> Self:
        """Return a share of which nothing was read yet."""
        collector = EventCollector(may_describe_collective, tensors_of=ACCUMULATE, stacks=stacks)
        return cls(begin=begin, end=end, collector=collector)

    def read(self, stream: ByteStream, chunks: EventChunks) -> None:
        """Decode the pieces of this share.

        Raises _EndOfShare at the first piece of the next share, and _NotShared for a piece that does not decode while
        other shares are read.
        """

        def take(array: bytes) -> bool:
            if self.begun is None and stream.consumed >= self.begin:
                self.begun = self.passed
            if self.end is not None and stream.consumed >= self.end:
                raise _EndOfShare
            self.collector.keeps_shapes = states_no_device(chunks.head)
            taken = self.begun is None or self.collector.take(array)
            if self.end is not None and not taken:
                raise _NotShared
            self.passed += len(array)
            return taken

        for piece in chunks.pieces(take):
            if self.end is not None or (self.begin and self.begun is None):
                raise _NotShared
            self.collector.take_broken(piece)


class _ReportedProgress(msgspec.Struct):
    """Counts the reported bytes, so that the report can be taken back when the shared reading failed."""

    progress: Callable[[int], None] | None
    read: int = 0

    def __call__(self, read: int) -> None:
        self.read += read
        if self.progress is not None:
            self.progress(read)

    def take_back(self) -> None:
        self(-self.read)


class _ShareResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one process: its columns, the bytes of events its share spans, and the state of its file."""

    begun: int | None
    ended: int
    state: FileState | None
    columns: TraceColumns


class _EndOfShare(Exception):  # noqa: N818 - a signal, not an error for anybody
    """Raised when the next piece belongs to the next share."""


class _NotShared(Exception):  # noqa: N818 - a signal, not an error for anybody
    """Raised when the file cannot be read in shares."""


def _read_from(share: _Share, path: Path, context: ReadContext) -> EventFile:
    """Read the last share, and the text around the events."""
    stream = ByteStream(path, context.max_bytes, context.progress)
    chunks = EventChunks(stream.blocks(), display_path(path))
    share.read(stream, chunks)
    share.collector.keeps_shapes = states_no_device(chunks.head)
    tail, closed = share.collector.add_last(chunks.tail, is_array=chunks.is_array)
    return EventFile(
        columns=share.collector.columns(),
        head=chunks.head,
        tail=tail,
        is_array=chunks.is_array,
        closed=closed,
        truncated=stream.truncated,
        warnings=tuple(stream.warnings),
        state=stream.state,
    )


def _read_in_shares(path: Path, context: ReadContext, sharing: Sharing) -> EventFile | None:
    """Read the last share here and the others in other processes; None when the parts do not make up the whole file."""
    try:
        size = path.stat().st_size
        bounds = [0, *(round(size * each) for each in _ends(sharing.shares, gzip=path.suffix == ".gz"))]
        folders = [sharing.folder / f"share{number}" for number in range(sharing.shares - 1)]
        try:
            others = [
                sharing.executor.submit(read_share, path, begin, end, context.max_bytes, folder, stacks=context.stacks)
                for (begin, end), folder in zip(pairwise(bounds), folders, strict=True)
            ]
        except RuntimeError:  # the system cannot start the thread that waits for one more process
            return None
        last = _Share.of(bounds[-1], None, stacks=context.stacks)
        found = _read_from(last, path, context)
        if any(each.exception() is not None or not each.result() for each in others):
            return None
        shares: list[_ShareResult] = [load(folder) for folder in folders]
        if [each.begun for each in shares] + [last.begun] != [0, *(each.ended for each in shares)]:
            return None
        if any(each.state != found.state for each in shares):
            return None
        return replace(found, columns=concatenate_columns([*(each.columns for each in shares), found.columns]))
    except (OSError, _NotShared):
        return None


def _ends(shares: int, *, gzip: bool) -> list[float]:
    """Return where the shares end, except the last, as fractions of the file, such that all take equally long."""
    divided = DECODING_GZIP if gzip else DECODING
    passed = list(accumulate(divided**number for number in range(shares)))
    return [each / passed[-1] for each in passed[:-1]]


def read_share(path: Path, begin: int, end: int, max_bytes: int, folder: Path, *, stacks: bool) -> bool:
    """Read a share other than the last and save its columns in `folder`; False when that is not possible."""
    stream = ByteStream(path, max_bytes)
    share = _Share.of(begin, end, stacks=stacks)
    try:
        share.read(stream, EventChunks(stream.blocks(), display_path(path)))
    except _EndOfShare:
        pass
    except (InputError, _NotShared):
        return False
    else:
        return False
    try:
        columns = share.collector.columns()
        save(_ShareResult(begun=share.begun, ended=share.passed, state=stream.state, columns=columns), folder)
    except OSError:
        return False
    return True
