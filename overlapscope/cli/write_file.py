"""A file written piece by piece that is there whole or not at all."""

import gzip
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from overlapscope.errors import InputError, UsageError
from overlapscope.timeline.flushed import flush_file
from overlapscope.timeline.run_folder import umask

COMPRESSION = 6


def write_file(path: Path, pieces: Iterable[str], *, force: bool) -> int:
    """Write text as UTF-8, gzip where the name ends in `.gz`; give the bytes that the file takes.

    Raises UsageError when the file exists and `force` is not given, or when it is no file; InputError when it cannot
    be written. A failure leaves what stood there before.
    """
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is a folder or a device; name a file")
    new = False
    temporary = None
    try:
        if not force:
            with open(path, "x", encoding="utf-8"):
                new = True  # the name is ours from here on
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            if path.suffix == ".gz":
                with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=COMPRESSION, mtime=0) as packed:
                    for piece in pieces:
                        packed.write(piece.encode("utf-8", "replace"))
            else:
                for piece in pieces:
                    file.write(piece.encode("utf-8", "replace"))
            flush_file(file)  # before it takes the place of an older one
        os.chmod(temporary, 0o666 & ~umask())
        os.replace(temporary, path)
    except FileExistsError as error:
        raise UsageError(f"{path} exists already; choose another name, or replace it with -f") from error
    except OSError as error:
        _clean(temporary, path if new else None)
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error
    except BaseException:
        _clean(temporary, path if new else None)
        raise
    return path.stat().st_size


def _clean(*paths: Path | None) -> None:
    for path in paths:
        if path is not None:
            path.unlink(missing_ok=True)
