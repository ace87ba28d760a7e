"""The lines of an NCCL log by kind, a block at a time: calls and choices as columns, the others by where they stand.

A log at subsystem COLL has a line for every call of every rank, gigabytes of them, and only a few bytes differ from
line to line. So whole blocks are searched for two capital letters, numbers are decoded as columns, and of the constant
pieces around them each distinct one is given once. A line that has not exactly the shape of a call or a choice is not
claimed here; whether the pieces make sense is for their reader to say.

    HOST:PID:TID [DEV] NCCL INFO AllReduce: opCount 1f sendbuff P recvbuff P count 64 datatype 7 op 0 root 0 comm P ...
    HOST:PID:TID [DEV] NCCL INFO AllReduce: 256 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}
"""

import re
from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np

from overlapscope.ingest.formats.nccl_log.text_columns import Text, Texts, distinct_pieces
from overlapscope.ingest.parsing.gzip_stream import BLOCK_BYTES, MAX_LINE_BYTES, ByteStream
from overlapscope.timeline.columns import Ints

_OP_COUNT: Final = b"opCount "
_BYTES: Final = b"Bytes ->"
_NUMBERED: Final = b"Bytes -> Algo 1 proto 2"
"""What stands before the estimated time of a choice by number, which differs from line to line and is not read."""
_BATCH: Final = 4 << 20
"""Bytes that are searched at once, at least."""
_TIME: Final = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?[^ ]{0,6} ")
_OWN_TIME: Final = re.compile(_TIME.pattern.replace(b"[^ ]{0,6} ", rb"\] ?(?=[A-Za-z0-9_.-]+:[0-9]+:[0-9]+ \[)"))
"""The library's own time stands in brackets right before the host."""


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of one shape: where they start, the pieces around their numbers, and the numbers."""

    line: Ints
    """Which line of the block."""
    head: Texts
    """From behind a leading time to the first number."""
    tail: Texts
    """What stands behind the last number."""
    seq: Ints
    """`opCount` of a call; not of a choice."""
    count: Ints
    """Elements of a call, bytes of a choice."""
    time_ns: Ints
    """The library's own time on the line, NONE where it has none; empty where no line has one."""

    def within(self, low: int, high: int) -> "Rows":
        """Return the rows from `low` to before `high`."""
        cut = slice(low, high)
        return Rows(
            line=self.line[cut],
            head=Texts(codes=self.head.codes[cut], distinct=self.head.distinct),
            tail=Texts(codes=self.tail.codes[cut], distinct=self.tail.distinct),
            seq=self.seq[cut],
            count=self.count[cut],
            time_ns=self.time_ns[cut],
        )


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """One block of whole lines; its bytes hold until the next block is asked for."""

    ends: Ints
    """Offsets of the newlines."""
    calls: Rows
    choices: Rows
    others: Ints
    """Lines that hold `CC` or `opCount` and are neither calls nor choices, in order."""
    texts: Texts
    """These lines from behind a leading time."""
    data: bytearray

    def line(self, number: int) -> bytes:
        """Return a line."""
        start = int(self.ends[number - 1]) + 1 if number else 0
        return bytes(self.data[start : int(self.ends[number])])


def scan(stream: ByteStream) -> Iterator[Block]:
    r"""Yield the content in blocks of whole lines, without colours and carriage returns before a newline.

    Lines longer than MAX_LINE_BYTES may be cut there. Raises InputError as `ByteStream.blocks` does.
    """
    text = Text(_BATCH + 2 * BLOCK_BYTES)
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


def _scan(text: Text, size: int) -> Block:
    """Find the calls and choices of the first `size` bytes, which end in a newline, and other lines worth a look."""
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


def _calls(text: Text, ends: Ints, line: Ints, at: Ints) -> Rows:
    """Read the lines with `opCount` at these places; only those that have the shape of a call."""
    line, at = _alone(line, at)
    first = at + len(_OP_COUNT)
    seq, end = text.numbers(first, 16)
    sends = np.where((end > first) & text.has(end, b" sendbuf") & text.has(end + 8, b"f "), end + 10, 0)
    receives = text.behind_pointer(sends, b" recvbuf")
    receives = np.where((receives > 0) & text.has(receives + 8, b"f "), receives + 10, 0)
    counted = text.behind_pointer(receives, b" count ")
    if (odd := np.flatnonzero((counted == 0) & (receives > 0))).size:  # RCCL's sum with a bias has one pointer more
        biases = text.behind_pointer(receives[odd], b" acc ")
        counted[odd] = text.behind_pointer(np.where(biases > 0, biases + len(b" acc "), 0), b" count ")
    counted = np.where(counted > 0, counted + len(b" count "), 0)
    count, tail = text.numbers(counted, 10)
    good = (counted > 0) & (tail > counted) & (seq >= 0) & (count >= 0) & (tail < ends[line])
    columns = (line, first, tail, seq, count)
    return _rows(text, ends, *(columns if good.all() else (column[good] for column in columns)))


def _choices(text: Text, ends: Ints, line: Ints, at: Ints) -> Rows:
    """Read the lines with `Bytes ->` at these places."""
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
    text: Text, ends: Ints, line: Ints, first: Ints, tail: Ints, seq: Ints, count: Ints, until: Ints | None = None
) -> Rows:
    """Cut the lines into head, middle and tail; leave out a leading time, which differs from line to line.

    The tail goes to the end of the line, or to before `until`.
    """
    begin, time_ns = _behind_time(text, np.append(-1, ends)[line] + 1, first)
    cuts = np.empty((line.size, 4), np.int32)
    cuts[:, 0], cuts[:, 1], cuts[:, 2], cuts[:, 3] = (
        begin, first, tail, ends[line] if until is None else until,
    )  # fmt: skip
    head, rest = distinct_pieces(text.data, cuts, (0, 2))
    return Rows(line=line, head=head, tail=rest, seq=seq, count=count, time_ns=time_ns)


def _behind_time(text: Text, start: Ints, until: Ints) -> tuple[Ints, Ints]:
    """Return where each line goes on behind a leading time, one of the shape that the first line has; and the times.

    Times are the library's own; empty where it writes none.
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
