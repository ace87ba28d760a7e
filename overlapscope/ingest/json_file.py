"""A JSON file of moderate size, decoded whole."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from overlapscope.display_path import shown
from overlapscope.errors import InputError
from overlapscope.ingest.bytestream import ByteStream

MAX_BYTES = 1 << 30
"""Decoded values take several times their text; a format that gets larger than this must be streamed."""


def json_text(path: Path, max_bytes: int, progress: Callable[[int], None] | None) -> tuple[bytes, ByteStream]:
    """Give the content of a file as UTF-8 and the stream it came from; other bytes are replaced, with a warning.

    Raises InputError when it cannot be read or is too large.
    """
    stream = ByteStream(path, min(max_bytes, MAX_BYTES), progress)
    return _as_utf8(b"".join(stream.blocks()), stream), stream


def read_json(path: Path, max_bytes: int, progress: Callable[[int], None] | None) -> tuple[Any, ByteStream]:
    """Give the decoded content and the stream it came from; bytes that are no UTF-8 are replaced, with a warning.

    Raises InputError, naming the place, when it cannot be read, is too large, or is not JSON.
    """
    content, stream = json_text(path, max_bytes, progress)
    return _decoded(content, stream), stream


def decode_json(content: bytes, stream: ByteStream) -> Any:
    """Give the decoded content of a stream, of which it notes what was replaced. Raises InputError as `read_json`."""
    return _decoded(_as_utf8(content, stream), stream)


def _as_utf8(content: bytes, stream: ByteStream) -> bytes:
    try:
        content.decode()
    except UnicodeDecodeError:
        stream.warnings.append("bytes that are no UTF-8 were replaced")
        content = content.decode("utf-8", "replace").encode()
    return content.removeprefix(b"\xef\xbb\xbf")


def _decoded(content: bytes, stream: ByteStream) -> Any:
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"{shown(stream.path)}: is not whole JSON: {error}") from error
