"""The analysis of a large run directory, kept in it, so that it is not worked out again.

    RUN/.analysis.json   of which files and which code it is, what tells whether it is whole, each a line, then what
                         `analyze --json` prints

It may be thrown away. It counts only where this user wrote it, a machine that went down left it whole, and no file of
the run, and none of ours, has changed since. Where the run cannot be written there is none.
"""

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

import overlapscope
from overlapscope.timeline.own_files import opened_own
from overlapscope.version import __version__

KEPT: Final = ".analysis.json"
WORTH_SPANS: Final = 50_000
"""With fewer it takes well under a second."""


class _Source(msgspec.Struct):
    path: str
    warnings: list[str]


class _Told(msgspec.Struct):
    sources: list[_Source]


def sources_of(content: str) -> list[_Source]:
    """Give what of an analysis goes to stderr, without the rest of it."""
    return msgspec.json.decode(content, type=_Told).sources


def kept_analysis(run: Path) -> str | None:
    """Give the JSON that was kept of a run, None where there is none of these files."""
    try:
        with opened_own(run / KEPT) as file:
            if file.readline(200) != _made_of(run):
                return None
            told_by_whole, content = file.readline(200), file.read()
            return content.decode() if told_by_whole == told_by(content) else None
    except (OSError, UnicodeDecodeError):
        return None


def keep_analysis(run: Path, content: str, made_of: bytes) -> None:
    """Keep the JSON of a run, of the files that `state_of` told before they were read."""
    temporary = run / f"{KEPT}.{secrets.token_hex(8)}"
    with suppress(OSError):
        if made_of != _made_of(run):
            return  # changed meanwhile
        try:
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(made_of + told_by(content.encode()) + content.encode())
            os.replace(temporary, run / KEPT)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise


def told_by(content: bytes) -> bytes:
    """Give the line that tells whether what follows it is whole."""
    return hashlib.blake2b(content, digest_size=16).hexdigest().encode() + b"\n"


def state_of(run: Path) -> bytes | None:
    """Give what tells whether a run's files are still the same; None where that cannot be told."""
    try:
        return _made_of(run)
    except OSError:
        return None


def _made_of(run: Path) -> bytes:
    told = hashlib.blake2b(f"{__version__}\0{run}\0".encode(errors="surrogateescape"), digest_size=16)
    for folder in (run, Path(overlapscope.__file__).parent):
        for name, state in sorted(_files(folder, "")):
            told.update(f"{name}\0{state.st_mtime_ns}\0{state.st_size}\0".encode(errors="surrogateescape"))
    return told.hexdigest().encode() + b"\n"


def _files(folder: str | Path, within: str) -> Iterator[tuple[str, os.stat_result]]:
    """Give the files below a folder, but hidden ones and what Python compiled.

    Links are followed to files alone. Raises OSError for a link to a folder: what changes there would not be seen.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith((".", "__pycache__")):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path, f"{within}{entry.name}/")
            elif entry.is_dir():
                raise IsADirectoryError(entry.path)
            else:
                yield within + entry.name, entry.stat()
