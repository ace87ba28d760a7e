"""The analysis of a run directory, kept in it, so that it is not worked out again.

    RUN/.analysis.json   a line that tells whether the rest is whole, a line of how long its parts are, and these: of
                         which files and which code it is, what goes to stderr, the table, what `analyze --json` prints

It may be thrown away. It counts only where this user wrote it, a machine that went down left it whole, and no file of
the run, and none of ours, has changed since. Where the run cannot be written there is none.

Printing it again takes little more than starting Python does, so that nothing here loads anything large.
"""

import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import overlapscope
from overlapscope.files.safe_open import file_state, opened_own
from overlapscope.version import __version__

KEPT: Final = ".analysis.json"
WORTH_SPANS: Final = 5_000
"""Smaller ones take half a second, and are samples, which often lie in a repository, where no file more is wanted."""
LEFT_S: Final = 3600
"""A half-written file that is older than this is a killed process's."""
HEX: Final = 16
"""Length of what tells half-written files apart."""


class Kept(NamedTuple):
    """What a run's analysis prints."""

    aside: str
    """On stderr: a line for each thing that reading left to say."""
    table: str
    document: str
    """With `--json`."""


def kept_analysis(run: Path) -> Kept | None:
    """Return what was kept of a run, None where there is nothing of these files."""
    try:
        with opened_own(run / KEPT) as file:
            whole, _, rest = file.read().partition(b"\n")
        if whole + b"\n" != told_by(rest):
            return None
        lengths, _, parts = rest.partition(b"\n")
        made_of, aside, table = map(int, lengths.split())
        if parts[:made_of] != _made_of(run):
            return None
        aside, table = made_of + aside, made_of + aside + table
        return Kept(
            aside=parts[made_of:aside].decode(),
            table=parts[aside:table].decode(),
            document=parts[table:].decode(),
        )
    except (OSError, ValueError):
        return None


def keep_analysis(run: Path, kept: Kept, made_of: bytes) -> None:
    """Keep what a run's analysis prints, of the files that `state_of` told before they were read."""
    temporary = run / f"{KEPT}.{os.urandom(HEX // 2).hex()}"
    with suppress(OSError):
        if made_of != _made_of(run):
            return  # changed meanwhile
        aside, table, document = (part.encode() for part in (kept.aside, kept.table, kept.document))
        lengths = b"%d %d %d\n" % (len(made_of), len(aside), len(table))
        parts = lengths, made_of, aside, table, document
        try:
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(told_by(*parts))
                file.writelines(parts)
            _remove_left(run, temporary.stat().st_mtime)
            os.replace(temporary, run / KEPT)
        finally:
            with suppress(OSError):
                temporary.unlink()  # there is none once it took its place


def told_by(*parts: bytes) -> bytes:
    """Return the line that tells whether what follows it, part by part, is whole."""
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return b"%08x\n" % checksum


def state_of(run: Path) -> bytes | None:
    """Return what tells whether a run's files are still the same; None where that cannot be told."""
    try:
        return _made_of(run)
    except OSError:
        return None


def _remove_left(run: Path, now: float) -> None:
    """Remove what killed processes left half-written; `now` is by the clock that told when these were."""
    with os.scandir(run) as entries:
        for entry in entries:
            if entry.name.startswith(f"{KEPT}.") and len(entry.name) == len(KEPT) + 1 + HEX:
                with suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < now - LEFT_S:
                        os.unlink(entry.path)


def _made_of(run: Path) -> bytes:
    """Return the names and states of all files of a run and of the code, with the run's own name."""
    told = [f"{__version__}\0{run}\0"]
    for folder in (run, Path(overlapscope.__file__).parent):
        told += sorted(f"{name}\0{file_state(state)}\0" for name, state in _files(folder, ""))
    return "".join(told).encode(errors="surrogateescape")


def _files(folder: str | Path, within: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files below a folder, but hidden ones and what Python compiled.

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
