"""Decode JSON values into columns, and JSON files of moderate size as a whole.

Many small values are decoded in one call; where that fails, one by one, so that an unusual value affects only itself.
"""

import math
import struct
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import numpy as np

from overlapscope.display import display_path
from overlapscope.errors import InputError
from overlapscope.ingest.parsing.gzip_stream import ByteStream
from overlapscope.timeline.columns import NONE, Ints

DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions that decoding damaged text may raise."""
S = TypeVar("S", bound=msgspec.Struct)
GRID_SIDES: Final = 3
MAX_GRID_BLOCKS: Final = 1 << 50
"""Largest plausible number of thread blocks of a grid; a larger one is damage."""
MAX_BYTES = 1 << 30
"""Largest file that is decoded as a whole: decoded values take several times the memory of their text."""


def is_utf8(text: bytes) -> bool:
    """Return whether all of the text is UTF-8: the JSON decoder checks only the values that it keeps."""
    if text.isascii():
        return True
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def decode_args(raws: Sequence[msgspec.Raw], kind: type[S]) -> list[S]:
    """Decode the arguments of many events in one call; one that is null or a list becomes an empty `kind`."""
    try:
        return msgspec.json.decode(b"[" + b",".join(raws) + b"]", type=list[kind])  # type: ignore[valid-type]
    except DECODE_ERRORS:
        pass
    out = []
    for raw in raws:
        try:
            out.append(msgspec.json.decode(raw, type=kind))
        except DECODE_ERRORS:
            out.append(kind())
    return out


def correlation_ids(values: Sequence[Any]) -> Ints:
    """Return int64 correlation ids; NONE for 0, which the profiler writes for "none", and for a value that is no id."""
    try:
        numbers = integer_column(values)
    except NotIntegers:
        numbers = np.array([value if _fits_int64(value) else 0 for value in values], np.int64)
    return np.where(numbers == 0, NONE, numbers)


def _fits_int64(value: object) -> bool:
    return isinstance(value, int) and -(2**63) <= value < 2**63


def grid_blocks(grids: Sequence[object]) -> Ints:
    """Return the number of thread blocks of each grid [x, y, z] as int64; NONE for a missing or impossible grid."""
    rows = [row for row, grid in enumerate(grids) if grid is not None]
    block_counts = np.full(len(grids), NONE)
    known: list[Any] = [grids[row] for row in rows]
    try:
        sides = integer_column(list(chain.from_iterable(known)))
        regular = set(map(len, known)) == {GRID_SIDES}
    except (NotIntegers, TypeError):
        regular = False
    if regular:
        x, y, z = sides.reshape(-1, GRID_SIDES).T
        possible = (x > 0) & (y > 0) & (z > 0) & (x.astype(np.float64) * y * z <= MAX_GRID_BLOCKS)
        block_counts[rows] = np.where(possible, x * y * z, NONE)
    else:
        block_counts[rows] = [_blocks_of_grid(grid) for grid in known]
    return block_counts


def _blocks_of_grid(grid: object) -> int:
    if not isinstance(grid, list) or len(grid) != GRID_SIDES:
        return NONE
    if not all(isinstance(side, int) and 0 < side <= MAX_GRID_BLOCKS for side in grid):
        return NONE
    product: int = grid[0] * grid[1] * grid[2]
    return product if product <= MAX_GRID_BLOCKS else NONE


def hash_of(text: bytes) -> int:
    """Return a hash of a text that is the same in each process; never NONE."""
    found = int.from_bytes(blake2b(text, digest_size=8).digest(), "little", signed=True)
    return found if found != NONE else 0


def decode_shapes(text: bytes) -> object:
    """Return the value of a text of shapes; None of one that is damaged."""
    try:
        return msgspec.json.decode(text)
    except DECODE_ERRORS:
        return None


def elements_of(shapes: object) -> int:
    """Return the number of elements of all tensors of these shapes, which may nest; NONE of what is no list of shapes.

    An empty shape counts nothing: the profiler writes it for numbers and for inputs that are no tensors, too.
    """
    if not isinstance(shapes, list):
        return NONE
    total = 0
    lists = [shapes]
    while lists:
        for each in lists.pop():
            if not isinstance(each, list) or not each:
                continue
            if all(isinstance(side, int) and 0 <= side < MAX_GRID_BLOCKS for side in each):
                total += math.prod(each)
            else:
                lists.append(each)
    return min(total, MAX_GRID_BLOCKS)


class NotIntegers(Exception):  # noqa: N818 - a signal to the caller, not an error for anybody
    """A value is not an integer, or needs more than 64 bits."""


def integer_column(values: Sequence[object]) -> Ints:
    """Return integers as an int64 array, true and false as 1 and 0. Raises NotWhole for any other value.

    `struct` accepts nothing but integers, and takes a third of the time of `numpy.array`.
    """
    try:
        return np.frombuffer(struct.pack(f"{len(values)}q", *values), np.int64)
    except struct.error:
        raise NotIntegers from None


def json_text(path: Path, max_bytes: int, progress: Callable[[int], None] | None) -> tuple[bytes, ByteStream]:
    """Return the content of a file as UTF-8 and the stream it came from; invalid bytes are replaced, with a warning.

    Raises InputError when it cannot be read or is too large.
    """
    stream = ByteStream(path, min(max_bytes, MAX_BYTES), progress)
    return _as_utf8(b"".join(stream.blocks()), stream), stream


def read_json(path: Path, max_bytes: int, progress: Callable[[int], None] | None) -> tuple[Any, ByteStream]:
    """Return the decoded content and the stream it came from; invalid UTF-8 bytes are replaced, with a warning.

    Raises InputError, naming the place, when it cannot be read, is too large, or is not JSON.
    """
    content, stream = json_text(path, max_bytes, progress)
    return _decoded(content, stream), stream


def decode_json(content: bytes, stream: ByteStream) -> Any:
    """Return the decoded content of a stream, whose warnings name replaced bytes. Raises InputError as `read_json`."""
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
        raise InputError(f"{display_path(stream.path)}: is not whole JSON: {error}") from error
