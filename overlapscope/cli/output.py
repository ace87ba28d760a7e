"""Where `-o` says to write, looked at before the work is done and not after it."""

import argparse
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from overlapscope.display_path import shown, url_of
from overlapscope.errors import InputError, UsageError


def require_output(args: argparse.Namespace) -> None:
    """Raise what writing would raise in the end: UsageError for what may not be replaced, InputError for no place.

    A command whose output is a folder looks at that itself; here it is told only that a URL is none.
    """
    output: Path | None = getattr(args, "output", None)
    if output is None:
        return

    if url_of(output) is not None:
        raise UsageError(
            f"-o {shown(output)}: what is written goes to a disk of this machine; name a path, and copy it then"
        )
    if args.verb in ("ingest", "demo"):
        return
    if output.is_dir():
        raise UsageError(f"{output} is a folder; name a file")
    if output.exists() and not args.force:
        exists = "exists already; choose another name, or replace it with -f"
        raise UsageError(f"{output} {exists}", redacted=f"FILE {exists}")
    if output.is_file() and any(each.exists() and each.samefile(output) for each in _paths(args)):
        raise UsageError(f"{output} is what is to be read; choose another name")
    lacking = _lacking(output.absolute().parent)
    if lacking is not None:
        raise InputError(f"{output}: cannot be written: {os.strerror(lacking)}")


def _paths(args: argparse.Namespace) -> Iterator[Path]:
    """Give the paths that a command is given besides its output."""
    for name, given in vars(args).items():
        if name != "output":
            yield from (each for each in (given if isinstance(given, list) else [given]) if isinstance(each, Path))


def _lacking(folder: Path) -> int | None:
    """Give the number of the error that a file in a folder would meet."""
    if not folder.is_dir():
        return errno.ENOTDIR if folder.exists() else errno.ENOENT
    return None if os.access(folder, os.W_OK | os.X_OK) else errno.EACCES
