"""JSON objects that stand behind each other in a file: one a line, pretty-printed, or the items of one array."""

from collections.abc import Iterator
from typing import Any

import msgspec

from overlapscope.ingest.bytestream import ByteStream
from overlapscope.ingest.json_scan import object_end
from overlapscope.ingest.lines import lines

MAX_OBJECT_BYTES = 256 << 10
"""A longer object is taken for damage; one that spans lines is looked at anew with each of them."""
_BETWEEN = b" \t\r\n,"


class JsonObjects(msgspec.Struct):
    """Yields the objects of a file as dictionaries; afterwards the counts tell what it took."""

    stream: ByteStream
    dropped: int = 0
    truncated: bool = False
    """The file ends within an object."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield each object in order. Raises InputError as the stream does."""
        parts: list[bytes] = []
        size = depth = balanced_at = closed_at = 0
        for line in lines(self.stream):
            text = line.strip(_BETWEEN)
            if parts and self._begins_anew(line, text, parts):
                self.dropped += 1
                parts = []
            piece = line
            if not parts:
                piece = line.lstrip(_BETWEEN)
                piece = piece[1:].lstrip(_BETWEEN) if piece[:1] == b"[" else piece
                if piece.rstrip(_BETWEEN) in (b"", b"]", b"{}]", b"{}"):
                    continue
                if b"{" not in piece:
                    self.dropped += 1
                    continue
                size = depth = balanced_at = closed_at = 0
            parts.append(piece)
            size += len(piece) + 1
            depth += line.count(b"{") - line.count(b"}")
            # When it is worth to look for the end: braces within strings make their count wrong. What disappoints is
            # looked at again when twice as long, so that no file takes more than its length times a logarithm.
            alone = len(parts) == 1 and text.endswith(b"}")
            balanced, closed = depth <= 0 and size >= balanced_at, line[:1] == b"}" and size >= closed_at
            if alone or balanced or closed or size > MAX_OBJECT_BYTES:
                found, rest = self._split(b"\n".join(parts))
                yield from found
                parts = [rest] if rest else []
                size = len(rest)
                balanced_at = 2 * size if balanced else balanced_at
                closed_at = 2 * size if closed else closed_at
        found, rest = self._split(b"\n".join(parts))
        yield from found
        if rest:
            self.truncated = True
            self.dropped += 1

    def _begins_anew(self, line: bytes, text: bytes, parts: list[bytes]) -> bool:
        """Whether a line begins the next object, which tells that the last one was cut.

        It does when it is whole after a single other line, or opens one without the indentation that lines had before.
        """
        if line[:1] != b"{":
            return False
        if len(parts) == 1:
            return self._decoded(text) is not None
        return text == b"{" and parts[1][:1] in (b" ", b"\t")

    def _split(self, text: bytes) -> tuple[list[dict[str, Any]], bytes]:
        """Give the whole objects at the beginning of a text, and what follows them."""
        whole = self._decoded(text.strip(_BETWEEN))
        if whole is not None:
            return [whole], b""
        found: list[dict[str, Any]] = []
        at, stop = 0, len(text.rstrip(_BETWEEN + b"]"))
        while at < stop:
            if text[at : at + 1] != b"{":
                begin = text.find(b"{", at)
                if text[at : begin if begin >= 0 else len(text)].strip(_BETWEEN + b"]"):
                    self.dropped += 1
                if begin < 0:
                    return found, b""
                at = begin
            end = object_end(text, at, MAX_OBJECT_BYTES)
            if end is None:
                if len(text) - at < MAX_OBJECT_BYTES:
                    return found, text[at:]
                self.dropped += 1
                return found, b""
            value = self._decoded(text[at:end])
            if value is None:
                self.dropped += 1
            elif value:
                found.append(value)
            at = end
        return found, b""

    def _decoded(self, text: bytes) -> dict[str, Any] | None:
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return value if isinstance(value, dict) else None
