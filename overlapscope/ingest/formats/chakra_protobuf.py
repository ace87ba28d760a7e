"""Know a Chakra execution trace as protocol buffers."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from overlapscope.ingest.protobuf import BYTES, VARINT, NoMessage, fields, varint
from overlapscope.ingest.reading import Head, ReadContext, Reader, Reading

FORMAT: Final = "chakra"
_NODE_TYPES: Final = 64
"""More types of node than this there will not be."""
_NODE_FIELDS: Final = {1: VARINT, 2: BYTES, 3: VARINT, 6: VARINT, 7: VARINT, 8: BYTES, 9: BYTES, 10: BYTES, 11: BYTES}
_NAME: Final = r"^[\x20-\x7e]*$"


def recognises(head: Head) -> bool:
    """Whether the file begins with the schema's metadata, and a node of it follows."""
    messages = _messages_of(head.content)
    try:
        if not _is_metadata(next(messages)):
            return False
        return _is_node(next(messages))
    except (StopIteration, NoMessage):
        return False


def _messages_of(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        length, at = varint(data, at)
        if at + length > len(data):
            raise NoMessage
        yield data[at : at + length]
        at += length


def _is_metadata(message: bytes) -> bool:
    """Whether a message is a GlobalMetadata: a version, attributes with names, and nothing else."""
    for number, kind, value in fields(message):
        if kind != BYTES or number not in (1, 2) or not isinstance(value, bytes):
            return False
        if not _is_attribute(value) and not (number == 1 and len(value) < 64 and _is_name(value)):
            return False
    return True


def _is_attribute(message: bytes) -> bool:
    try:
        first = next(fields(message), None)
    except NoMessage:
        return False
    return first is not None and first[:2] == (1, BYTES) and bool(first[2])


def _is_node(message: bytes) -> bool:
    """Whether a message is a Node: fields of the schema's numbers and types, among them a name and a possible type."""
    found: dict[int, Any] = {}
    for number, kind, value in fields(message):
        if number not in (4, 5) and _NODE_FIELDS.get(number) != kind:
            return False
        found[number] = value
    return 2 in found and _is_name(found[2]) and 0 < found.get(3, 0) < _NODE_TYPES


def _is_name(value: bytes) -> bool:
    return re.match(_NAME, value.decode("utf-8", "replace")) is not None


def read(path: Path, context: ReadContext) -> Reading:
    """Read it, see `ingest.chakra_protobuf`."""
    from overlapscope.ingest.chakra_protobuf import read_chakra  # noqa: PLC0415 - loaded for such a file

    return read_chakra(path, context)


READER = Reader(format=FORMAT, recognises=recognises, read=read)
