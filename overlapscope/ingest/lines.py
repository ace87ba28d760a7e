"""The lines of a text file, streamed."""

from collections.abc import Iterator

from overlapscope.ingest.bytestream import ByteStream

MAX_LINE_BYTES = 1 << 20
"""Longer lines are cut there: no format here has them, a binary file does."""


def lines(stream: ByteStream) -> Iterator[bytes]:
    r"""Yield each line without its end (`\n` or `\r\n`), the last one also when it has none.

    A line longer than MAX_LINE_BYTES is given cut. Raises InputError as `ByteStream.blocks` does.
    """
    rest = b""
    for block in stream.blocks():
        whole = (rest + block).split(b"\n")
        rest = whole.pop()
        if len(rest) > MAX_LINE_BYTES:
            rest = rest[:MAX_LINE_BYTES]
        for line in whole:
            yield line[:MAX_LINE_BYTES].removesuffix(b"\r")
    if rest:
        yield rest.removesuffix(b"\r")
