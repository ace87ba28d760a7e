"""The wire format of protocol buffers, as far as a reader needs it: fields of a message, values of a few types.

https://protobuf.dev/programming-guides/encoding/. Values stay bytes or plain integers; nothing is allocated that the
message does not hold.
"""

from collections.abc import Iterator
from typing import Final

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MAX_VARINT_BYTES: Final = 10
_SIGN: Final = 1 << 63


class NoMessage(Exception):  # noqa: N818 - a signal to the reader, who knows the file and the place
    """The bytes are no message of the wire format."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Give the unsigned number at `at` and the place behind it. Raises NoMessage when none is there."""
    value = 0
    for place in range(MAX_VARINT_BYTES):
        if at + place >= len(data):
            raise NoMessage
        byte = data[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value & (2**64 - 1), at + place + 1
    raise NoMessage


def fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield (number, wire type, value) of each field in order. Raises NoMessage where the bytes are no field."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise NoMessage
        if kind == VARINT:
            value, at = varint(data, at)
            yield number, kind, value
            continue
        if kind == BYTES:
            length, at = varint(data, at)
        elif kind in (FIXED32, FIXED64):
            length = 4 if kind == FIXED32 else 8
        else:
            raise NoMessage
        if at + length > len(data):
            raise NoMessage
        yield number, kind, data[at : at + length]
        at += length


def signed(value: int) -> int:
    """Give a number of type int32 or int64 with its sign."""
    return value - 2**64 if value & _SIGN else value
