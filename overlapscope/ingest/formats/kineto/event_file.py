"""The events of one Kineto trace as columns: of a small one by this process, of a large one in shares by several.

Who reads a share goes through the file from its beginning, cuts the same pieces as all others, and decodes those of the
share: to decompress and cut takes a sixth of the time, the rest is divided. A piece that does not decode where it was
cut means that the others may have cut elsewhere; then, where a process was lost, where one opened another file or the
same one after a change, or a share does not begin where the one before it ended, the file is read anew by this process
alone: what is found is always what one process finds.
"""

from collections.abc import Callable
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from overlapscope.display import shown
from overlapscope.errors import InputError
from overlapscope.files.safe_open import FileState
from overlapscope.ingest.build.kernel_names import speaks_of_comm
from overlapscope.ingest.build.trace_columns import TraceColumns, behind_each_other
from overlapscope.ingest.column_handoff import load, save
from overlapscope.ingest.formats.kineto.events import EventCollector
from overlapscope.ingest.formats.kineto.gradients import ACCUMULATE
from overlapscope.ingest.parsing.event_chunks import EventChunks
from overlapscope.ingest.parsing.gzip_stream import ByteStream
from overlapscope.ingest.reader import ReadContext, Sharing

DECODING: Final = 0.84
"""What is divided of the time that one process takes."""


class EventFile(msgspec.Struct, frozen=True, kw_only=True):
    """What a whole file holds."""

    columns: TraceColumns
    head: bytes
    """The text before the events ..."""
    tail: bytes
    """... and behind them."""
    is_array: bool
    closed: bool
    """Whether the array of events ended."""
    truncated: bool
    """Whether the compressed data ended too early."""
    warnings: tuple[str, ...]
    state: FileState | None
    """Which file it was."""


def read_events(path: Path, context: ReadContext) -> EventFile:
    """Read a file to its end. Raises InputError when it cannot be read, NotATraceError when it holds no events."""
    if context.sharing is not None:
        told = _Told(context.progress)
        found = _read_in_shares(path, replace(context, progress=told), context.sharing)
        if found is not None:
            return found
        told.take_back()
    return _read_from(_Share(begin=0), path, context)


class _Share(msgspec.Struct):
    """The pieces of a file that one process decodes: from the first at which so many bytes of the file were read."""

    begin: int
    end: int | None = None
    """The next share's first; None for the last share, to which the rest of the file belongs."""
    passed: int = 0
    """How many bytes of events the pieces before the next one hold ..."""
    begun: int | None = None
    """... and how many those before the share held."""
    collector: EventCollector = msgspec.field(
        default_factory=lambda: EventCollector(lambda name: name == ACCUMULATE or speaks_of_comm(name))
    )

    def read(self, stream: ByteStream, chunks: EventChunks) -> None:
        """Take the pieces. Raises _NotShared for what does not decode where other shares are read, and _EndOfShare."""

        def take(array: bytes) -> bool:
            if self.begun is None and stream.consumed >= self.begin:
                self.begun = self.passed
            if self.end is not None and stream.consumed >= self.end:
                raise _EndOfShare
            taken = self.begun is None or self.collector.take(array)
            if self.end is not None and not taken:
                raise _NotShared
            self.passed += len(array)
            return taken

        for piece in chunks.pieces(take):
            if self.end is not None or (self.begin and self.begun is None):
                raise _NotShared
            self.collector.take_broken(piece)


class _Told(msgspec.Struct):
    """How much was said to have been read, for a reading that may have been in vain."""

    progress: Callable[[int], None] | None
    read: int = 0

    def __call__(self, read: int) -> None:
        self.read += read
        if self.progress is not None:
            self.progress(read)

    def take_back(self) -> None:
        self(-self.read)


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a process found in its share, between which bytes of events, and of which file."""

    begun: int | None
    ended: int
    state: FileState | None
    columns: TraceColumns


class _EndOfShare(Exception):  # noqa: N818 - a signal, not an error for anybody
    """The next piece is of the next share."""


class _NotShared(Exception):  # noqa: N818 - a signal, not an error for anybody
    """The file cannot be read in shares."""


def _read_from(share: _Share, path: Path, context: ReadContext) -> EventFile:
    """Read the last share, and what is around the events."""
    stream = ByteStream(path, context.max_bytes, context.progress)
    chunks = EventChunks(stream.blocks(), shown(path))
    share.read(stream, chunks)
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
    """Read the last share here, the others elsewhere; None where that does not give the whole file."""
    try:
        size = path.stat().st_size
        bounds = [0, *(round(size * each) for each in _ends(sharing.shares))]
        folders = [sharing.folder / f"share{number}" for number in range(sharing.shares - 1)]
        try:
            others = [
                sharing.executor.submit(read_share, path, begin, end, context.max_bytes, folder)
                for (begin, end), folder in zip(pairwise(bounds), folders, strict=True)
            ]
        except RuntimeError:  # the system starts no thread to wait for one more process
            return None
        last = _Share(begin=bounds[-1])
        found = _read_from(last, path, context)
        if any(each.exception() is not None or not each.result() for each in others):
            return None
        shares: list[_Found] = [load(folder) for folder in folders]
        if [each.begun for each in shares] + [last.begun] != [0, *(each.ended for each in shares)]:
            return None
        if any(each.state != found.state for each in shares):
            return None
        return replace(found, columns=behind_each_other([*(each.columns for each in shares), found.columns]))
    except (OSError, _NotShared):
        return None


def _ends(shares: int) -> list[float]:
    """Return where in the file the shares end but for the last, as parts of 1, so that all take as long."""
    passed = list(accumulate(DECODING**number for number in range(shares)))
    return [each / passed[-1] for each in passed[:-1]]


def read_share(path: Path, begin: int, end: int, max_bytes: int, folder: Path) -> bool:
    """Read a share that is not the last, and leave its columns in `folder`; False where that cannot be done."""
    stream = ByteStream(path, max_bytes)
    share = _Share(begin=begin, end=end)
    try:
        share.read(stream, EventChunks(stream.blocks(), shown(path)))
    except _EndOfShare:
        pass
    except (InputError, _NotShared):
        return False
    else:
        return False
    try:
        columns = share.collector.columns()
        save(_Found(begun=share.begun, ended=share.passed, state=stream.state, columns=columns), folder)
    except OSError:
        return False
    return True
