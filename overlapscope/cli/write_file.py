"""A file written piece by piece that is there whole or not at all."""

import gzip
from collections.abc import Callable, Iterable
from pathlib import Path

from overlapscope.errors import InputError, UsageError
from overlapscope.timeline.whole_file import whole_file

COMPRESSION = 6


def write_file(path: Path, pieces: Iterable[str], *, force: bool) -> int:
    """Write text as UTF-8, gzip where the name ends in `.gz`; give the bytes that the file takes.

    Raises UsageError when the file exists and `force` is not given, or when it is no file; InputError when it cannot
    be written. A failure leaves what stood there before.
    """
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is a folder or a device; name a file")
    empty = False
    try:
        if not force:
            with open(path, "x", encoding="utf-8"):
                empty = True  # the name is ours from here on
        with whole_file(path, durable=True) as file:
            if path.suffix == ".gz":
                with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=COMPRESSION, mtime=0) as packed:
                    _write(packed.write, pieces)
            else:
                _write(file.write, pieces)
        empty = False
    except FileExistsError as error:
        raise UsageError(f"{path} exists already; choose another name, or replace it with -f") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        if empty:
            path.unlink(missing_ok=True)
    return path.stat().st_size


def _write(write: Callable[[bytes], object], pieces: Iterable[str]) -> None:
    for piece in pieces:
        write(piece.encode("utf-8", "replace"))
