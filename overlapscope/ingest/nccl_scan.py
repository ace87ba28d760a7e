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
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from overlapscope.ingest.bytestream import BLOCK_BYTES, ByteStream
from overlapscope.ingest.lines import MAX_LINE_BYTES
from overlapscope.timeline.columns import NONE, Codes, Flags, Ints

OP_COUNT: Final = b"opCount "
BYTES: Final = b"Bytes ->"
_NUMBERED: Final = b"Bytes -> Algo 1 proto 2"
"""What stands before the estimated time of a choice by number, which differs from line to line and is not read."""
_U: Final = np.uint64
_EVEN: Final = np.uint8(0xFE)
_BATCH: Final = 4 << 20
"""Bytes that are searched at once, at least."""
_STRIP: Final = 1 << 17
_COLORS: Final = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
_TIME: Final = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?[^ ]{0,6} ")
_OWN_TIME: Final = re.compile(_TIME.pattern.replace(b"[^ ]{0,6} ", rb"\] ?(?=[A-Za-z0-9_.-]+:[0-9]+:[0-9]+ \[)"))
"""The library's own time stands in brackets right before the host."""
_PADDING: Final = b"\n" * 48
"""So that bytes behind any place in the block can be read."""
_POINTER_WIDTHS: Final = (14, 5, 16, 13, 12, 11, 10, 18, 15, 17, 9, 8, 7, 6, 4, 3)
"""Of `0x7f0123456789`, `(nil)`, and rarer ones."""
_MAX_DIGITS: Final = 18
_DIGITS: Final = np.full(256, 99, np.int64)
_DIGITS[list(b"0123456789abcdef")] = range(16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """A column of texts: codes into the distinct ones, among which there may be those of other columns."""

    codes: Codes
    distinct: list[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
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
        """Give the rows from `low` to before `high`."""
        cut = slice(low, high)
        return Rows(
            line=self.line[cut],
            head=Texts(codes=self.head.codes[cut], distinct=self.head.distinct),
            tail=Texts(codes=self.tail.codes[cut], distinct=self.tail.distinct),
            seq=self.seq[cut],
            count=self.count[cut],
            time_ns=self.time_ns[cut],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
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
        """Give a line."""
        start = int(self.ends[number - 1]) + 1 if number else 0
        return bytes(self.data[start : int(self.ends[number])])


def scan(stream: ByteStream) -> Iterator[Block]:
    r"""Yield the content in blocks of whole lines, without colours and carriage returns before a newline.

    Lines longer than MAX_LINE_BYTES are cut there. Raises InputError as `ByteStream.blocks` does.
    """
    text = _Text()
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


def _scan(text: "_Text", size: int) -> Block:
    """Find the calls and choices of the first `size` bytes, which end in a newline, and other lines worth a look."""
    size = text.make_plain(size)
    at = text.marks(size)
    here, before = text.bytes[at], text.bytes[at - 1]
    newline = here == ord("\n")
    line = np.cumsum(newline, dtype=np.int32)
    ends = at[newline]
    counted = np.flatnonzero((before == ord("p")) & (here == ord("C")))
    counted = counted[text.has(at[counted] - 2, OP_COUNT)]
    chosen = np.flatnonzero(here == ord("B"))
    chosen = chosen[text.has(at[chosen], BYTES)]
    calls = _calls(text, ends, line[counted], at[counted] - 2)
    known = np.zeros(ends.size + 1, np.bool_)
    known[calls.line] = True
    chosen = chosen[~known[line[chosen]]]
    choices = _choices(text, ends, line[chosen], at[chosen])
    known[choices.line] = True
    worth = np.zeros(ends.size + 1, np.bool_)
    worth[line[(before == ord("C")) & (here == ord("C"))]] = True
    worth[line[counted]] = True
    worth &= ~known
    others = np.flatnonzero(worth)
    until = ends[others]
    begin, _ = _behind_time(text, np.append(-1, ends)[others] + 1, until)
    (texts,) = distinct_pieces(text.data, np.stack((begin, until), axis=1).astype(np.int32), (0,))
    return Block(ends=ends, calls=calls, choices=choices, others=others, texts=texts, data=text.data)


def _calls(text: "_Text", ends: Ints, line: Ints, at: Ints) -> Rows:
    """Read the lines with `opCount` at these places; only those that have the shape of a call."""
    line, at = _alone(line, at)
    first = at + len(OP_COUNT)
    seq, end = text.numbers(first, 16)
    sends = np.where((end > first) & text.has(end, b" sendbuf") & text.has(end + 8, b"f "), end + 10, 0)
    receives = text.behind_pointer(sends, b" recvbuf")
    receives = np.where((receives > 0) & text.has(receives + 8, b"f "), receives + 10, 0)
    counted = text.behind_pointer(receives, b" count ")
    counted = np.where(counted > 0, counted + len(b" count "), 0)
    count, tail = text.numbers(counted, 10)
    good = (counted > 0) & (tail > counted) & (seq >= 0) & (count >= 0) & (tail < ends[line])
    columns = (line, first, tail, seq, count)
    return _rows(text, ends, *(columns if good.all() else (column[good] for column in columns)))


def _choices(text: "_Text", ends: Ints, line: Ints, at: Ints) -> Rows:
    """Read the lines with `Bytes ->` at these places."""
    line, at = _alone(line, at)
    start = np.append(-1, ends)[line] + 1
    first = text.number_before(at - 1, start)
    count, end = text.numbers(first, 10)
    good = (end == at - 1) & (first < end) & (count >= 0) & (first > start)
    line, at, first, count = (column[good] for column in (line, at, first, count))
    until = np.where(text.has(at + len(_NUMBERED), b" time "), at + len(_NUMBERED), ends[line])
    return _rows(text, ends, line, first, at - 1, np.zeros(0, np.int64), count, until)


def _alone(line: Ints, at: Ints) -> tuple[Ints, Ints]:
    """Give the places that are the only ones on their lines."""
    same = line[1:] == line[:-1]
    if not same.any():
        return line, at
    several = np.zeros(line.size, np.bool_)
    several[1:] |= same
    several[:-1] |= same
    return line[~several], at[~several]


def _rows(
    text: "_Text", ends: Ints, line: Ints, first: Ints, tail: Ints, seq: Ints, count: Ints, until: Ints | None = None
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


def _behind_time(text: "_Text", start: Ints, until: Ints) -> tuple[Ints, Ints]:
    """Give where each line goes on behind a leading time, one of the shape that the first line has; and the times.

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


class _Text:
    """The bytes of a block as columns, in buffers that are used again: fresh memory costs more than the search."""

    __slots__ = ("_eight", "_masks", "bytes", "data")

    def __init__(self) -> None:
        self.data = bytearray()
        self._grow(_BATCH + 2 * BLOCK_BYTES)

    def _grow(self, size: int) -> None:
        self.data = self.data + bytearray(size - len(self.data))
        self.bytes = np.frombuffer(self.data, np.uint8)
        self._eight = np.ndarray((size - 7,), "<u8", self.data, 0, (1,))
        self._masks = (np.empty(size, np.bool_), np.empty(_STRIP, np.bool_), np.empty(_STRIP, np.uint8))

    def put(self, block: bytes, place: int) -> int:
        """Write a block there, with some bytes behind it that end every number; give where it ends."""
        end = place + len(block)
        if end + len(_PADDING) > len(self.data):
            self._grow(2 * (end + len(_PADDING)))
        self.data[place:end] = block
        self.data[end : end + len(_PADDING)] = _PADDING
        return end

    def make_plain(self, size: int) -> int:
        """Leave out colours, and carriage returns before a newline; give the new size."""
        colored = self.data.find(b"\x1b", 0, size) >= 0
        if colored or self.data.find(b"\r", 0, size) >= 0:
            plain = bytes(self.data[:size]).replace(b"\r\n", b"\n")
            return self.put(_COLORS.sub(b"", plain) if colored else plain, 0)
        return size

    def marks(self, size: int) -> Ints:
        """Give the places of the letters B and C and of newlines."""
        letters, newlines, even = self._masks
        for first in range(0, size, _STRIP):  # which stays in the processor's cache
            strip = slice(first, min(first + _STRIP, size))
            width = strip.stop - first
            np.bitwise_and(self.bytes[strip], _EVEN, out=even[:width])
            np.equal(even[:width], np.uint8(ord("B")), out=letters[strip])
            np.equal(self.bytes[strip], np.uint8(ord("\n")), out=newlines[:width])
            np.logical_or(letters[strip], newlines[:width], out=letters[strip])
        return np.flatnonzero(letters[:size])

    def has(self, place: Ints, text: bytes) -> Flags:
        """Whether up to eight bytes of text stand at each place."""
        same: Flags = (self._eight[place] & _U((1 << 8 * len(text)) - 1)) == _number(text)
        return same

    def numbers(self, start: Ints, base: int) -> tuple[Ints, Ints]:
        """Give the numbers that begin at each place, and where they end; -1 where no int64 holds it."""
        value, width = _leading_number(self._eight[start], base)
        digits = width
        going = np.flatnonzero(width == 8)
        for _ in range(2):
            if not going.size:
                break
            part, width = _leading_number(self._eight[start[going] + digits[going]], base)
            value[going] = value[going] * _POWERS[base][width] + part
            digits[going] += width
            going = going[width == 8]
        value = value.view(np.int64)
        value[digits > (15 if base == 16 else _MAX_DIGITS)] = -1
        return value, start + digits

    def number_before(self, end: Ints, least: Ints) -> Ints:
        """Give where the digits begin that stand before each place, at `least` or behind it."""
        first = end.copy()
        going = np.arange(end.size)
        for _ in range(3):
            width = _digits_in_front(self._eight[np.maximum(first[going] - 8, 0)].byteswap(), 10)
            first[going] -= width
            going = going[width == 8]
            if not going.size:
                break
        return np.maximum(first, least)

    def behind_pointer(self, start: Ints, text: bytes) -> Ints:
        """Give where `text` stands behind a pointer that begins at each place; 0 where it does not, or for place 0."""
        place = np.zeros(start.size, np.int64)
        left = np.flatnonzero(start)
        for width in _POINTER_WIDTHS:
            there = self.has(start[left] + width, text)
            place[left[there]] = start[left[there]] + width
            left = left[~there]
            if not left.size:
                break
        return place

    def times(self, start: Ints, wanted: Flags, shape: bytes) -> Ints:
        """Decode the times of this shape that stand at each place; NONE where something else stands there.

        A time without a zone is read as UTC.
        """
        start = np.where(wanted, start, 0)
        good = wanted.copy()
        values = []
        for part in re.finditer(rb"[0-9]+", shape):
            value = np.zeros(start.size, np.int64)
            for place in range(*part.span()):
                digit = _DIGITS[self.bytes[start + place]]
                good &= digit < 10
                value = value * 10 + digit
            values.append(value * 10 ** (9 - len(part[0])) if len(values) == 6 else value)
        for mark in re.finditer(rb"[^0-9]", shape):
            good &= self.bytes[start + mark.start()] == mark[0][0]
        year, month, day, hour, minute, second = values[:6]
        good &= (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31) & (hour < 24) & (minute < 60) & (second <= 60)
        good &= (year >= 1971) & (year < 2200)
        year, month, day = (np.where(good, value, 1971) for value in (year, month, day))
        months = (year - 1970).astype("datetime64[Y]").astype("datetime64[M]") + (np.where(good, month, 1) - 1)
        days = months.astype("datetime64[D]").astype(np.int64) + np.where(good, day, 1) - 1
        seconds = ((days * 24 + hour) * 60 + minute) * 60 + second
        part_ns = values[6] if len(values) > 6 else np.zeros(start.size, np.int64)
        return np.where(good, seconds * 1_000_000_000 + part_ns, NONE)


def _leading_number(words: npt.NDArray[np.uint64], base: int) -> tuple[npt.NDArray[np.uint64], Ints]:
    """Give the number that each eight bytes begin with, and its digits, 0 to 8; all bytes of a word at once."""
    width = _digits_in_front(words, base)
    less = words & _each(0x0F)
    if base == 16:
        less += ((words >> _U(6)) & _each(0x01)) * _U(9)
    less = (less << _SHIFTS[width]) & _KEEPS[width]
    for bits, mask in ((8, 0x00FF00FF00FF00FF), (16, 0x0000FFFF0000FFFF), (32, 0x00000000FFFFFFFF)):
        less = (less * _U(base ** (bits // 8)) + (less >> _U(bits))) & _U(mask)
    return less, width


def _digits_in_front(words: npt.NDArray[np.uint64], base: int) -> Ints:
    """Give how many of each eight bytes are digits, up to the first that is none.

    Sums may carry out of a byte that is no digit, but only upwards, to bytes behind it, which do not count.
    """
    digit = words ^ _each(0x30)  # 0..9
    other = (digit + _each(0x76)) | digit
    if base == 16:
        letter = words ^ _each(0x60)  # 1..6 for a..f
        other &= (letter + _each(0x79)) | letter | ~(letter + _each(0x7F))
    other &= _each(0x80)
    return (np.bitwise_count((other & -other) - _U(1)) >> 3).astype(np.int64)


def _number(text: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(text, "little"))


def _each(byte: int) -> np.uint64:
    return np.uint64(byte * 0x0101010101010101)


_SHIFTS: Final = np.array([0, *(64 - 8 * width for width in range(1, 9))], np.uint64)
_KEEPS: Final = np.array([0, *[2**64 - 1] * 8], np.uint64)
"""To move the digits of a word of that width to its end, and to leave nothing of a word without any."""
_POWERS: Final = {base: np.array([base**digits for digits in range(9)], np.uint64) for base in (10, 16)}


def distinct_pieces(data: bytearray, cuts: Codes, wanted: tuple[int, ...]) -> list[Texts]:
    """Cut lines into pieces and give the wanted ones, equal ones told once.

    `cuts` has a row for each line, in order: ascending offsets, one more than there are pieces.
    """
    import pyarrow as pa  # noqa: PLC0415 - other logs and traces need no Arrow

    lines, columns = cuts.shape
    flat = cuts.ravel()
    if not lines:
        return [Texts(codes=np.zeros(0, np.int32), distinct=[]) for _ in wanted]
    if flat[0] < 0 or flat[-1] > len(data) or (flat[1:] < flat[:-1]).any():
        raise AssertionError("cuts must ascend: Arrow would read beyond the block")
    valid = np.zeros((lines, columns), np.bool_)
    valid[:, wanted] = True
    bits = np.packbits(valid, bitorder="little")
    buffers: list[Any] = [pa.py_buffer(bits), pa.py_buffer(flat), pa.py_buffer(data)]
    encoded = pa.Array.from_buffers(pa.binary(), flat.size - 1, buffers).dictionary_encode()
    codes = np.frombuffer(encoded.indices.buffers()[1], np.int32, flat.size - 1)
    distinct = encoded.dictionary.to_pylist()
    return [Texts(codes=codes[column::columns], distinct=distinct) for column in wanted]
