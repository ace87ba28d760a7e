"""Look further into a text than its head: a training log's telling lines may begin after megabytes of others."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from overlapscope.errors import InputError
from overlapscope.ingest.bytestream import ByteStream
from overlapscope.ingest.reading import HEAD_BYTES, Head, Reader

FURTHER_BYTES = 4 << 20
"""How far a text is searched: some ten milliseconds a file, so that a folder of logs stays quick to open."""
_OVERLAP = 4 << 10
"""What is looked for may lie across the end of a part; none of it is longer."""
_CONTROL = bytes(byte for byte in range(0x20) if byte not in b"\t\n\r\b\f\x1b")


def in_later_text(head: Head, readers: Sequence[Reader]) -> list[Reader]:
    """Give the readers that recognise a later part of a text; none where the file is no text."""
    found: list[Reader] = []
    if not readers or len(head.content) < HEAD_BYTES or not is_text(head.content):
        return found
    try:
        for part in _parts(head.path):
            later = Head(path=head.path, content=part)
            found += [reader for reader in readers if reader not in found and reader.recognises(later)]
            if len(found) == len(readers):
                break
    except InputError:
        pass  # reading it will tell what is wrong
    return found


def in_text(head: Head, holds: Callable[[Head], bool]) -> bool:
    """Whether a text's beginning, or a later part of it, is what `holds` looks for; no where the file is no text."""
    if not is_text(head.content):
        return False
    if len(head.content) < HEAD_BYTES:
        return holds(head)
    try:
        return any(holds(Head(path=head.path, content=part)) for part in _parts(head.path))
    except InputError:
        return False  # reading it will tell what is wrong


def _parts(path: Path) -> Iterator[bytes]:
    """Give the text from its beginning, in parts that overlap."""
    seen = 0
    before = b""
    for block in ByteStream(path).blocks():
        yield before + block
        seen += len(block)
        if seen >= FURTHER_BYTES:
            return
        before = block[-_OVERLAP:]


def is_text(content: bytes) -> bool:
    """Whether the beginning of a file has hardly a byte that no text has."""
    return len(content) - len(content.translate(None, _CONTROL)) <= len(content) // 1000
