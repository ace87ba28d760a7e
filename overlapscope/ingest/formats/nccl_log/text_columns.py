"""Process a block of text as columns: comparisons at many places, numbers, times, and distinct pieces.

Numpy works on all places at once, and on eight bytes at once where possible; Arrow finds equal pieces.
"""

import re
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from overlapscope.timeline.columns import NONE, Codes, Flags, Ints

_U: Final = np.uint64
_EVEN: Final = np.uint8(0xFE)
_STRIP: Final = 1 << 17
_COLORS: Final = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
_PADDING: Final = b"\n" * 48
"""Allows reading bytes behind any place in the block."""
_POINTER_WIDTHS: Final = (14, 5, 16, 13, 12, 11, 10, 18, 15, 17, 9, 8, 7, 6, 4, 3)
"""Lengths of `0x7f0123456789`, `(nil)`, and rarer ones."""
_MAX_DIGITS: Final = 18
_MINUTE: Final = len("2026-04-28 14:14")
_DIGITS: Final = np.full(256, 99, np.int64)
_DIGITS[list(b"0123456789abcdef")] = range(16)


class TextColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column of texts: codes into the distinct texts, which other columns may share."""

    codes: Codes
    distinct: list[bytes]


class TextBlock:
    """The bytes of a block as columns, in reused buffers: allocating new memory costs more than the search."""

    __slots__ = ("_eight", "_masks", "bytes", "data")

    def __init__(self, size: int) -> None:
        self.data = bytearray()
        self._grow(size)

    def _grow(self, size: int) -> None:
        self.data = self.data + bytearray(size - len(self.data))
        self.bytes = np.frombuffer(self.data, np.uint8)
        self._eight = np.ndarray((size - 7,), "<u8", self.data, 0, (1,))
        self._masks = (np.empty(size, np.bool_), np.empty(_STRIP, np.bool_), np.empty(_STRIP, np.uint8))

    def put(self, block: bytes, place: int) -> int:
        """Write a block at `place`, with some bytes behind it that end every number; return where it ends."""
        end = place + len(block)
        if end + len(_PADDING) > len(self.data):
            self._grow(2 * (end + len(_PADDING)))
        self.data[place:end] = block
        self.data[end : end + len(_PADDING)] = _PADDING
        return end

    def make_plain(self, size: int) -> int:
        """Remove colours, and carriage returns before a newline; return the new size."""
        colored = self.data.find(b"\x1b", 0, size) >= 0
        if colored or self.data.find(b"\r", 0, size) >= 0:
            plain = bytes(self.data[:size]).replace(b"\r\n", b"\n")
            return self.put(_COLORS.sub(b"", plain) if colored else plain, 0)
        return size

    def marks(self, size: int) -> Ints:
        """Return the places of the letters B and C and of newlines."""
        letters, newlines, even = self._masks
        for first in range(0, size, _STRIP):  # a strip fits into the processor's cache
            strip = slice(first, min(first + _STRIP, size))
            width = strip.stop - first
            np.bitwise_and(self.bytes[strip], _EVEN, out=even[:width])
            np.equal(even[:width], np.uint8(ord("B")), out=letters[strip])
            np.equal(self.bytes[strip], np.uint8(ord("\n")), out=newlines[:width])
            np.logical_or(letters[strip], newlines[:width], out=letters[strip])
        return np.flatnonzero(letters[:size])

    def has(self, place: Ints, text: bytes) -> Flags:
        """Return whether up to eight bytes of text stand at each place."""
        same: Flags = (self._eight[place] & _U((1 << 8 * len(text)) - 1)) == _number(text)
        return same

    def numbers(self, start: Ints, base: int) -> tuple[Ints, Ints]:
        """Return the numbers that begin at each place, and where they end; -1 where a number exceeds int64."""
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
        number: Ints = value.view(np.int64)
        number[digits > (15 if base == 16 else _MAX_DIGITS)] = -1
        return number, start + digits

    def number_before(self, end: Ints, least: Ints) -> Ints:
        """Return where the digits before each place begin, not before `least`."""
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
        """Return the place behind `text` that follows a pointer at each place; 0 where it does not follow, or for place
        0.
        """
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
        """Decode the times of this shape at each place, in ns; NONE where anything else stands there.

        A time without a zone is read as UTC.
        """
        time_ns = np.full(start.size, NONE)
        rows = np.flatnonzero(wanted)
        if rows.size:
            begin = start[rows]
            near = self._eight[begin] == self._eight[begin[0]]  # most lines share one minute
            near &= self._eight[begin + 8] == self._eight[begin[0] + 8]
            minute = self._minutes(begin[:1])[0]
            time_ns[rows] = NONE if minute == NONE else self._seconds(begin, shape, minute)
            far = ~near if minute != NONE else np.ones(rows.size, np.bool_)
            minutes = self._minutes(begin[far])
            seconds = self._seconds(begin[far], shape, 0)
            time_ns[rows[far]] = np.where((minutes == NONE) | (seconds == NONE), NONE, minutes + seconds)
        return time_ns

    def _minutes(self, begin: Ints) -> Ints:
        """Decode `2026-04-28 14:14` to ns; NONE where it is not a valid time."""
        values, good = self._fields(begin, b"0000-00-00 00:00")
        year, month, day, hour, minute = values
        good &= (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31) & (hour < 24) & (minute < 60)
        good &= (year >= 1971) & (year < 2200)
        year, month, day = (np.where(good, value, other) for value, other in ((year, 1971), (month, 1), (day, 1)))
        months = (year - 1970).astype("datetime64[Y]").astype("datetime64[M]") + (month - 1)
        days = months.astype("datetime64[D]").astype(np.int64) + day - 1
        return np.where(good, ((days * 24 + hour) * 60 + minute) * 60_000_000_000, NONE)

    def _seconds(self, begin: Ints, shape: bytes, minute_ns: int) -> Ints:
        """Decode the text behind the minute, such as `:42.123`, in the given shape, and add it to the minute."""
        values, good = self._fields(begin + _MINUTE, shape[_MINUTE:])
        good &= values[0] <= 60
        part = re.search(rb"\.([0-9]+)", shape)
        part_ns = values[1] * 10 ** (9 - len(part[1])) if part else 0
        return np.where(good, minute_ns + values[0] * 1_000_000_000 + part_ns, NONE)

    def _fields(self, begin: Ints, shape: bytes) -> tuple[list[Ints], Flags]:
        """Decode the numbers where the shape has digits; return also whether the text has the shape."""
        values = []
        good = np.ones(begin.size, np.bool_)
        for part in re.finditer(rb"[0-9]+|[^0-9 T]", shape):
            if not part[0].isdigit():
                good &= self.bytes[begin + part.start()] == part[0][0]
                continue
            value = np.zeros(begin.size, np.int64)
            for place in range(*part.span()):
                digit = _DIGITS[self.bytes[begin + place]]
                good &= digit < 10
                value = value * 10 + digit
            values.append(value)
        return values, good


def _leading_number(words: npt.NDArray[np.uint64], base: int) -> tuple[npt.NDArray[np.uint64], Ints]:
    """Return the number that each eight bytes begin with, and its digits, 0 to 8; all bytes of a word at once."""
    width = _digits_in_front(words, base)
    less = words & _each(0x0F)
    if base == 16:
        less += ((words >> _U(6)) & _each(0x01)) * _U(9)
    less = (less << _SHIFTS[width]) & _KEEPS[width]
    for bits, mask in ((8, 0x00FF00FF00FF00FF), (16, 0x0000FFFF0000FFFF), (32, 0x00000000FFFFFFFF)):
        less = (less * _U(base ** (bits // 8)) + (less >> _U(bits))) & _U(mask)
    return less, width


def _digits_in_front(words: npt.NDArray[np.uint64], base: int) -> Ints:
    """Return how many leading bytes of each eight bytes are digits.

    Sums may carry out of a byte that is not a digit, but only upwards, to bytes behind it, which do not count.
    """
    digit = words ^ _each(0x30)  # 0..9
    other = (digit + _each(0x76)) | digit
    if base == 16:
        letter = words ^ _each(0x60)  # 1..6 for a..f
        other &= (letter + _each(0x79)) | letter | ~(letter + _each(0x7F))
    other &= _each(0x80)
    width: Ints = (np.bitwise_count((other & -other) - _U(1)) >> 3).astype(np.int64)
    return width


def _number(text: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(text, "little"))


def _each(byte: int) -> np.uint64:
    return np.uint64(byte * 0x0101010101010101)


_SHIFTS: Final = np.array([0, *(64 - 8 * width for width in range(1, 9))], np.uint64)
_KEEPS: Final = np.array([0, *[2**64 - 1] * 8], np.uint64)
"""Mask per number of digits: keeps that many bytes at the end of a word, none for 0."""
_POWERS: Final = {base: np.array([base**digits for digits in range(9)], np.uint64) for base in (10, 16)}


def distinct_pieces(data: bytearray, cuts: Codes, wanted: tuple[int, ...]) -> list[TextColumn]:
    """Cut lines into pieces and return the wanted pieces as columns of distinct texts.

    `cuts` has a row for each line, in order: ascending offsets, one more than there are pieces.
    """
    import pyarrow as pa  # noqa: PLC0415 - other logs and traces need no Arrow

    lines, columns = cuts.shape
    flat = cuts.ravel()
    if not lines:
        return [TextColumn(codes=np.zeros(0, np.int32), distinct=[]) for _ in wanted]
    if flat[0] < 0 or flat[-1] > len(data) or (flat[1:] < flat[:-1]).any():
        raise AssertionError("cuts must ascend: Arrow would read beyond the block")
    valid = np.zeros((lines, columns), np.bool_)
    valid[:, wanted] = True
    bits = np.packbits(valid, bitorder="little")
    buffers: list[Any] = [pa.py_buffer(bits), pa.py_buffer(flat), pa.py_buffer(data)]
    encoded = pa.Array.from_buffers(pa.binary(), flat.size - 1, buffers).dictionary_encode()
    codes = np.frombuffer(encoded.indices.buffers()[1], np.int32, flat.size - 1)
    distinct = encoded.dictionary.to_pylist()
    return [TextColumn(codes=codes[column::columns], distinct=distinct) for column in wanted]
