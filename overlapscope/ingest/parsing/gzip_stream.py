"""Stream the bytes or lines of a file, decompressed where it is gzip, with limits that stop a decompression bomb."""

import os
import zlib
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

import msgspec

from overlapscope.display import display_path, size_text
from overlapscope.errors import InputError
from overlapscope.files.safe_open import FileState, file_state

BLOCK_BYTES = 1 << 20
GZIP_MAGIC = b"\x1f\x8b"
MAX_BYTES = 256 << 30
"""More decompressed bytes than this from one file are refused."""
MAX_RATIO = 300
"""Deflate can reach 1032:1; traces reach 20 to 60. Above this ratio a file is treated as a decompression bomb."""
RATIO_GRACE_BYTES = 64 << 20
"""The ratio is checked only after this much output: a small file of blanks is harmless."""
DAMAGED = "gzip data is damaged; read up to the damage"
DIFFERS = "gzip data does not match its own checksum: some of it may be wrong"
MAX_LINE_BYTES = 1 << 20
"""Longer lines are cut at this length: no text format here has them, only binary files."""


class ByteStream(msgspec.Struct):
    """The decompressed bytes of a file in blocks; after the last block, `truncated` and `warnings` describe the end."""

    path: Path
    max_bytes: int = MAX_BYTES
    progress: Callable[[int], None] | None = None
    """Called with the size of each block."""
    consumed: int = 0
    """Bytes of the file used for the blocks so far; starts again from 0 where data is damaged."""
    state: FileState | None = None
    """Identity of the file when it was opened."""
    truncated: bool = False
    warnings: list[str] = []

    def blocks(self) -> Iterator[bytes]:
        """Yield the content in order, of damaged gzip data the part before the damage.

        Raises InputError when the file cannot be read or exceeds the limits.
        """
        try:
            with open(self.path, "rb") as file:
                self.state = file_state(os.fstat(file.fileno()))
                compressed = file.read(2) == GZIP_MAGIC
                for total, block in _running_total(self._inflated(file) if compressed else self._plain(file)):
                    if total > self.max_bytes:
                        raise InputError(
                            f"{display_path(self.path)}: holds more than {size_text(self.max_bytes)}; "
                            "raise --max-gib if that is meant"
                        )
                    if self.progress:
                        self.progress(len(block))
                    yield block
        except OSError as error:
            raise InputError(f"{display_path(self.path)}: cannot be read: {error.strerror or error}") from error

    def _plain(self, file: BinaryIO) -> Iterator[bytes]:
        for block in _blocks_from_start(file):
            self.consumed += len(block)
            yield block

    def _inflated(self, file: BinaryIO) -> Iterator[bytes]:
        """Decompress one or several concatenated gzip members."""
        yielded_bytes = 0
        fast = _fast_gzip()
        if fast is not None:
            blocks = self._inflate_quickly(_blocks_from_start(file), fast)
            try:
                while True:
                    block = next(blocks)
                    yielded_bytes += len(block)
                    yield block
            except StopIteration as end:
                if end.value:
                    return
        yield from _skip_bytes(self._inflate(_blocks_from_start(file)), yielded_bytes)

    def _inflate_quickly(self, raw: Iterator[bytes], library: ModuleType) -> Generator[bytes, None, bool]:
        """Decompress whole or cut data and return True; return False for damaged data.

        This library does not report how much of damaged data is sound. Before a cut it keeps back up to two bytes that
        the standard library would return, but it is three times as fast.
        """
        member = library.decompressobj(wbits=31)
        bytes_in = bytes_out = 0
        begun = False
        for block in raw:
            bytes_in += len(block)
            data = block
            while data:
                if member.eof:
                    member, begun = library.decompressobj(wbits=31), False
                try:
                    out = member.decompress(data, BLOCK_BYTES)
                except (library.error, EOFError):
                    return False
                begun = begun or bool(out)
                bytes_out += len(out)
                self._refuse_bomb(bytes_in, bytes_out)
                data = member.unused_data if member.eof else member.unconsumed_tail
                self.consumed = bytes_in - len(data)
                if out:
                    yield out
        if begun and not member.eof:
            self._note_cut()
        return begun or bool(member.eof)

    def _note_cut(self) -> None:
        self.truncated = True
        self.warnings.append("gzip data ends in the middle; read up to there")

    def _refuse_bomb(self, bytes_in: int, bytes_out: int) -> None:
        if bytes_out > RATIO_GRACE_BYTES and bytes_out > MAX_RATIO * bytes_in:
            raise InputError(
                f"{display_path(self.path)}: expands more than {MAX_RATIO} times, like a decompression bomb; "
                "decompress it yourself if it is meant"
            )

    def _inflate(self, raw: Iterator[bytes]) -> Iterator[bytes]:
        """Decompress with the standard library, which can return to the place where damage begins."""
        member = zlib.decompressobj(wbits=31)
        bytes_in = bytes_out = 0
        begun = fed = False
        for block in raw:
            bytes_in += len(block)
            data = block
            while data:
                before, fed = member.copy(), True
                try:
                    out = member.decompress(data, BLOCK_BYTES)
                except zlib.error as error:
                    if begun or bytes_out == 0:
                        self.truncated = True
                        yield _up_to_damage(before, data)
                        self.warnings.append(DIFFERS if "check" in str(error) else DAMAGED)
                    else:
                        self.warnings.append("bytes after the gzip data were left out")
                    return
                begun = begun or bool(out)
                bytes_out += len(out)
                self._refuse_bomb(bytes_in, bytes_out)
                self.consumed = bytes_in - len(member.unused_data if member.eof else member.unconsumed_tail)
                if out:
                    yield out
                data = member.unconsumed_tail
                if member.eof:
                    data = member.unused_data
                    member, begun, fed = zlib.decompressobj(wbits=31), False, False
        if fed and not begun and bytes_out:
            self.warnings.append("bytes after the gzip data were left out")
        elif fed:
            yield member.flush()
            if not member.eof:
                self._note_cut()


@cache
def _fast_gzip() -> ModuleType | None:
    """Return a library that decompresses three times as fast as zlib; None where there is none for the processor."""
    try:
        from isal import isal_zlib  # noqa: PLC0415 - for gzip alone
    except ImportError:
        return None
    return isal_zlib


def _blocks_from_start(file: BinaryIO) -> Iterator[bytes]:
    file.seek(0)
    return iter(lambda: file.read(BLOCK_BYTES), b"")


def _skip_bytes(blocks: Iterator[bytes], skipped: int) -> Iterator[bytes]:
    """Yield the blocks without the first `skipped` bytes."""
    for block in blocks:
        if skipped < len(block):
            yield block[skipped:] if skipped else block
        skipped = max(skipped - len(block), 0)


def _up_to_damage(member: "zlib._Decompress", data: bytes) -> bytes:
    """Return the bytes before the damage.

    An error loses the output of its own call, so the calls get 512 bytes each, then one byte each.
    """
    out = bytearray()
    for size in (512, 1):
        before = member.copy()
        try:
            while data and not member.eof:
                before = member.copy()
                out += member.decompress(data, size)
                data = member.unconsumed_tail
        except zlib.error:
            member = before
    return bytes(out)


def _running_total(blocks: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    total = 0
    for block in blocks:
        total += len(block)
        yield total, block


def iter_lines(stream: ByteStream) -> Iterator[bytes]:
    r"""Yield each line without its end (`\n` or `\r\n`), also a last line that has no end.

    Lines are cut at MAX_LINE_BYTES. Raises InputError as `ByteStream.blocks` does.
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
