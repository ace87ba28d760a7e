"""Split an NCCL log into calls and tuning choices, as columns, and other lines, by position; a block at a time.

A log at subsystem COLL has a line for every call of every rank, gigabytes of them, and only a few bytes differ from
line to line. So whole blocks are searched for two capital letters, numbers are decoded as columns, and each distinct
constant piece around them is returned once. A line that does not have exactly the shape of a call or a choice is left
to the reader of other lines; the readers of the pieces decide whether they make sense.

    HOST:PID:TID [DEV] NCCL INFO AllReduce: opCount 1f sendbuff P recvbuff P count 64 datatype 7 op 0 root 0 comm P ...
    HOST:PID:TID [DEV] NCCL INFO AllReduce: 256 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}
"""

import re
from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np

from overlapscope.ingest.formats.nccl_log.text_columns import TextBlock, TextColumn, distinct_pieces
from overlapscope.ingest.parsing.gzip_stream import BLOCK_BYTES, MAX_LINE_BYTES, ByteStream
from overlapscope.timeline.columns import Ints

_OP_COUNT: Final = b"opCount "
_BYTES: Final = b"Bytes ->"
_NUMBERED: Final = b"Bytes -> Algo 1 proto 2"
"""Text before the estimated time of a choice by number. The time differs from line to line and is not read."""
_BATCH: Final = 4 << 20
"""Smallest number of bytes that are searched at once."""
_TIME: Final = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?[^ ]{0,6} ")
_OWN_TIME: Final = re.compile(_TIME.pattern.replace(b"[^ ]{0,6} ", rb"\] ?(?=[A-Za-z0-9_.-]+:[0-9]+:[0-9]+ \[)"))
"""NCCL's own time stands in brackets directly before the host."""


class LineColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of one shape as columns: their positions, the pieces around their numbers, and the numbers."""

    line: Ints
    """Number of the line in the block."""
    head: TextColumn
    """Text from behind a leading time to the first number."""
    tail: TextColumn
    """Text behind the last number."""
    seq: Ints
    """`opCount` of a call; not of a choice."""
    count: Ints
    """Elements of a call, bytes of a choice."""
    time_ns: Ints
    """NCCL's own time on the line, NONE where it has none; empty where no line has one."""

    def within(self, low: int, high: int) -> "LineColumns":
        """Return the rows of the lines `low` to `high` (exclusive)."""
        cut = slice(low, high)
        return LineColumns(
            line=self.line[cut],
            head=TextColumn(codes=self.head.codes[cut], distinct=self.head.distinct),
            tail=TextColumn(codes=self.tail.codes[cut], distinct=self.tail.distinct),
            seq=self.seq[cut],
            count=self.count[cut],
            time_ns=self.time_ns[cut],
        )


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """One block of whole lines; its bytes are valid until the next block is requested."""

    ends: Ints
    """Offsets of the newlines."""
    calls: LineColumns
    choices: LineColumns
    others: Ints
    """Lines that hold `CC` or `opCount` and are neither calls nor choices, in order."""
    texts: TextColumn
    """The text of these lines from behind a leading time."""
    data: bytearray

    def line(self, number: int) -> bytes:
        """Return the bytes of a line."""
        start = int(self.ends[number - 1]) + 1 if number else 0
        return bytes(self.data[start : int(self.ends[number])])


def scan(stream: ByteStream) -> Iterator[Block]:
    r"""Yield the content in blocks of whole lines, without colours and carriage returns before a newline.

    Lines longer than MAX_LINE_BYTES may be cut there. Raises InputError as `ByteStream.blocks` does.
    """
    text = TextBlock(_BATCH + 2 * BLOCK_BYTES)
    rest = 0
    for block in stream.blocks():
        filled = text.put(block, rest)
        if filled < _BATCH:
            rest = filled
            continue
        cut = text.data.rfind(b"\n", 0, filled) + 1
        left = bytes(text.data[cut : min(filled, cut + MAX_LINE_BYTES)])
        if cut:
            yield _scan(text, cut)
        rest = text.put(left, 0)
    if rest:
        text.put(b"\n", rest)
        yield _scan(text, rest + 1)


def _scan(text: TextBlock, size: int) -> Block:
    """Find the calls and choices of the first `size` bytes, which end in a newline, and other lines worth reading."""
    size = text.make_plain(size)
    at = text.marks(size)
    here, before = text.bytes[at], text.bytes[at - 1]
    newline = here == ord("\n")
    line: Ints = np.cumsum(newline)
    ends = at[newline]
    counted = np.flatnonzero((before == ord("p")) & (here == ord("C")))
    counted = counted[text.has(at[counted] - 2, _OP_COUNT)]
    chosen = np.flatnonzero(here == ord("B"))
    chosen = chosen[text.has(at[chosen], _BYTES)]
    calls = _calls(text, ends, line[counted], at[counted] - 2)
    known = np.zeros(ends.size + 1, np.bool_)
    known[calls.line] = True
    chosen = chosen[~known[line[chosen]]]
    choices = _choices(text, ends, line[chosen], at[chosen])
    known[choices.line] = True
    worth = np.zeros(ends.size + 1, np.bool_)
    worth[line[(before == ord("C")) & (here == ord("C"))]] = True
    worth[line[counted]] = True
    others = np.flatnonzero(worth & ~known)
    until = ends[others]
    begin, _ = _behind_time(text, np.append(-1, ends)[others] + 1, until)
    (texts,) = distinct_pieces(text.data, np.stack((begin, until), axis=1).astype(np.int32), (0,))
    return Block(ends=ends, calls=calls, choices=choices, others=others, texts=texts, data=text.data)


def _calls(text: TextBlock, ends: Ints, line: Ints, at: Ints) -> LineColumns:
    """Parse the lines with `opCount` at these places; only those that have the shape of a call."""
    line, at = _alone(line, at)
    first = at + len(_OP_COUNT)
    seq, end = text.numbers(first, 16)
    sends = np.where((end > first) & text.has(end, b" sendbuf") & text.has(end + 8, b"f "), end + 10, 0)
    receives = text.behind_pointer(sends, b" recvbuf")
    receives = np.where((receives > 0) & text.has(receives + 8, b"f "), receives + 10, 0)
    counted = text.behind_pointer(receives, b" count ")
    if (odd := np.flatnonzero((counted == 0) & (receives > 0))).size:  # RCCL's sum with a bias has one more pointer
        biases = text.behind_pointer(receives[odd], b" acc ")
        counted[odd] = text.behind_pointer(np.where(biases > 0, biases + len(b" acc "), 0), b" count ")
    counted = np.where(counted > 0, counted + len(b" count "), 0)
    count, tail = text.numbers(counted, 10)
    good = (counted > 0) & (tail > counted) & (seq >= 0) & (count >= 0) & (tail < ends[line])
    columns = (line, first, tail, seq, count)
    return _rows(text, ends, *(columns if good.all() else (column[good] for column in columns)))


def _choices(text: TextBlock, ends: Ints, line: Ints, at: Ints) -> LineColumns:
    """Parse the lines with `Bytes ->` at these places."""
    line, at = _alone(line, at)
    start = np.append(-1, ends)[line] + 1
    first = text.number_before(at - 1, start)
    count, end = text.numbers(first, 10)
    good = (end == at - 1) & (first < end) & (count >= 0) & (first > start)
    if not good.all():
        line, at, first, count = (column[good] for column in (line, at, first, count))
    until = np.where(text.has(at + len(_NUMBERED), b" time "), at + len(_NUMBERED), ends[line])
    return _rows(text, ends, line, first, at - 1, np.zeros(0, np.int64), count, until)


def _alone(line: Ints, at: Ints) -> tuple[Ints, Ints]:
    """Return the places that are the only ones on their lines."""
    same = line[1:] == line[:-1]
    if not same.any():
        return line, at
    several = np.zeros(line.size, np.bool_)
    several[1:] |= same
    several[:-1] |= same
    return line[~several], at[~several]


def _rows(
    text: TextBlock, ends: Ints, line: Ints, first: Ints, tail: Ints, seq: Ints, count: Ints, until: Ints | None = None
) -> LineColumns:
    """Cut the lines into head, middle and tail, without a leading time, which differs from line to line.

    The tail goes to the end of the line, or to `until` (exclusive).
    """
    begin, time_ns = _behind_time(text, np.append(-1, ends)[line] + 1, first)
    cuts = np.empty((line.size, 4), np.int32)
    cuts[:, 0], cuts[:, 1], cuts[:, 2], cuts[:, 3] = (
        begin, first, tail, ends[line] if until is None else until,
    )  # fmt: skip
    head, rest = distinct_pieces(text.data, cuts, (0, 2))
    return LineColumns(line=line, head=head, tail=rest, seq=seq, count=count, time_ns=time_ns)


def _behind_time(text: TextBlock, start: Ints, until: Ints) -> tuple[Ints, Ints]:
    """Return where each line continues behind a leading time of the same shape as in the first line; and the times.

    Times are NCCL's own; empty where it writes none.
    """
    times = np.zeros(0, np.int64)
    found = _TIME.search(text.data, int(start[0]), int(until[0])) if start.size else None
    if found is None:
        return start, times
    width = found.end() - int(start[0])
    behind = np.minimum(start + width, until)
    begin = np.where(text.bytes[behind - 1] == ord(" "), behind, start)
    own = _OWN_TIME.search(text.data, int(start[0]), int(until[0]))
    if own:
        times = text.times(begin - width + own.start() - int(start[0]), begin > start, own[0])
    return begin, times
