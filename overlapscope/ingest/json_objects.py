"""JSON objects that stand behind each other in a file: one a line, pretty-printed, or the items of one array."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from overlapscope.ingest.bytestream import ByteStream
from overlapscope.ingest.json_scan import object_end
from overlapscope.ingest.lines import lines

MAX_OBJECT_BYTES = 256 << 10
"""A longer object is taken for damage; one that spans lines is looked at anew with each of them."""
_BETWEEN = b" \t\r\n,"


@dataclass(slots=True)
class JsonObjects:
    """Yields the objects of a file as dictionaries; afterwards the counts tell what it took."""

    stream: ByteStream
    mend: Callable[[bytes], bytes] | None = None
    """Tried on text that is no JSON, for what the writer is known to do wrong."""
    repaired: int = 0
    dropped: int = 0
    truncated: bool = False
    """The file ends within an object."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield each object in order. Raises InputError as the stream does."""
        parts: list[bytes] = []
        size = depth = try_at = 0
        for line in lines(self.stream):
            text = line.strip(_BETWEEN)
            if parts:
                alone = self._decoded(text, count=False) if line[:1] == b"{" else None
                if alone is not None:  # what came before was cut
                    self.dropped += 1
                    parts = []
            if not parts:
                text = text[1:].lstrip(_BETWEEN) if text[:1] == b"[" else text
                if text in (b"", b"]", b"{}]", b"{}"):
                    continue
                size = depth = try_at = 0
            parts.append(text)
            size += len(text) + 1
            # Braces within strings make this count wrong: it only tells when it is worth to look.
            depth += text.count(b"{") - text.count(b"}")
            if (depth <= 0 and size >= try_at) or size > MAX_OBJECT_BYTES:
                found, rest = self._split(b"\n".join(parts))
                yield from found
                parts = [rest] if rest else []
                size, try_at = len(rest), 2 * len(rest)
        found, rest = self._split(b"\n".join(parts))
        yield from found
        if rest:
            self.truncated = True
            self.dropped += 1

    def _split(self, text: bytes) -> tuple[list[dict[str, Any]], bytes]:
        """Give the whole objects at the beginning of a text, and what follows them."""
        whole = self._decoded(text)
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

    def _decoded(self, text: bytes, *, count: bool = True) -> dict[str, Any] | None:
        for repaired in (False, True):
            if repaired and self.mend is None:
                return None
            try:
                value = msgspec.json.decode(self.mend(text) if repaired and self.mend else text)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            if isinstance(value, dict):
                self.repaired += repaired and count
                return value
        return None
