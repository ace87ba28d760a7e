"""Read a Chakra execution trace (`.et`): length-delimited messages, one GlobalMetadata, then a Node each.

Schema: mlcommons/chakra schema/protobuf/et_def.proto. Read are the nodes that communicate: type, size, group. The
rank stands in the file's name, as Chakra's tools write it: `trace.3.et`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from overlapscope.display_path import shown
from overlapscope.errors import InputError
from overlapscope.ingest.bytestream import ByteStream
from overlapscope.ingest.call_log import call_timeline
from overlapscope.ingest.chakra_calls import ChakraNode, calls_of, rank_in_name
from overlapscope.ingest.formats.chakra_protobuf import FORMAT
from overlapscope.ingest.protobuf import VARINT, NoMessage, fields, signed, varint
from overlapscope.ingest.reading import ReadContext, Reading
from overlapscope.timeline.run import Source
from overlapscope.timeline.size_text import size_text

MAX_MESSAGE_BYTES: Final = 64 << 20
_INTEGERS: Final = frozenset({7, 9, 11, 13, 27})
_ZIGZAG: Final = frozenset({15, 17})
_STRINGS: Final = frozenset({29, 31})


def read_chakra(path: Path, context: ReadContext) -> Reading:
    """Read one trace. Raises InputError, naming the place, when it holds no whole node."""
    stream = ByteStream(path, context.max_bytes, context.progress)
    nodes: list[ChakraNode] = []
    total = dropped = 0
    warnings = []
    ended = True
    messages = _messages(stream, path)
    next(messages, None)  # the metadata
    for message in messages:
        if message is None:
            ended = False
            break
        try:
            node = _node(message)
        except NoMessage:
            dropped += 1
            continue
        total += 1
        if node.communicates:
            nodes.append(node)
    if not total:
        raise InputError(f"{shown(path)}: holds no whole node; is it a Chakra execution trace?")
    if not ended:
        warnings.append("the file ends in the middle of a node; read up to the last whole one")
    calls = calls_of(nodes)
    if not calls:
        warnings.append("no node of it communicates")
    return Reading(
        timelines=(call_timeline(calls, shown(path), rank_in_name(path)),),
        source=Source(
            path=shown(path),
            format=FORMAT,
            events=total,
            dropped=dropped,
            truncated=not ended or stream.truncated,
            warnings=(*stream.warnings, *warnings),
        ),
    )


def _messages(stream: ByteStream, path: Path) -> Iterator[bytes | None]:
    """Yield each message; None last when the file ends inside one. Raises InputError for an impossible length."""
    buffer = bytearray()
    done = 0
    for block in stream.blocks():
        buffer += block
        at = 0
        while True:
            try:
                length, begin = varint(bytes(buffer[at : at + 10]), 0)
            except NoMessage:
                if len(buffer) - at >= 10:
                    raise InputError(f"{shown(path)}: byte {done + at}: no length of a message stands here") from None
                break
            if length > MAX_MESSAGE_BYTES:
                raise InputError(f"{shown(path)}: byte {done + at}: a node of {size_text(length)} is none")
            if at + begin + length > len(buffer):
                break
            yield bytes(buffer[at + begin : at + begin + length])
            at += begin + length
        del buffer[:at]
        done += at
    if buffer:
        yield None


def _node(message: bytes) -> ChakraNode:
    number = sort = 0
    name = ""
    attributes: dict[str, Any] = {}
    for place, kind, value in fields(message):
        if place == 1 and kind == VARINT and isinstance(value, int):
            number = value
        elif place == 2 and isinstance(value, bytes):
            name = _text(value)
        elif place == 3 and kind == VARINT and isinstance(value, int):
            sort = value
        elif place == 10 and isinstance(value, bytes) and ChakraNode.sort_communicates(sort):
            attributes.update(_attribute(value))
    return ChakraNode(number=number, name=name, sort=sort, attributes=attributes)


def _attribute(message: bytes) -> dict[str, Any]:
    """Give name and value of one attribute; only single integers and texts are of use."""
    name, told = "", None
    for number, kind, value in fields(message):
        if number == 1 and isinstance(value, bytes):
            name = _text(value)
        elif number in _INTEGERS and kind == VARINT and isinstance(value, int):
            told = signed(value)
        elif number in _ZIGZAG and kind == VARINT and isinstance(value, int):
            told = (value >> 1) ^ -(value & 1)
        elif number in _STRINGS and isinstance(value, bytes):
            told = _text(value)  # type: ignore[assignment]
    return {name: told} if name and told is not None else {}


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
