"""Store the analysis of a run directory in it, so that it is not computed again.

    RUN/.analysis.json   a line with a checksum of the rest, a line with the lengths of its parts, and the parts: the
                         state of the files and the code it was computed from, the warnings for stderr, the table, the
                         document that `analyze --json` prints

It may be deleted at any time. It is used only if this user wrote it, it is complete (a machine may have crashed while
it was written), and no file of the run or of our code has changed since. A run that cannot be written to has none.

Printing a stored analysis takes little more than starting Python, so this module imports nothing large.
"""

import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import overlapscope
from overlapscope.files.safe_open import file_state, open_own_file
from overlapscope.version import __version__

CACHE_NAME: Final = ".analysis.json"
MIN_SPANS: Final = 5_000
"""Fewest spans of a run whose analysis is stored: smaller ones take half a second, and are often samples in a
repository, where an extra file is not wanted."""
ABANDONED_SECONDS: Final = 3600
"""A half-written file older than this was left by a killed process."""
SUFFIX_LENGTH: Final = 16
"""Random hexadecimal digits in the name of a half-written file."""


class StoredAnalysis(NamedTuple):
    """The output of a run's analysis."""

    warnings: str
    """For stderr: one line per warning."""
    table: str
    document: str
    """The output of `--json`."""


def load_analysis(run: Path) -> StoredAnalysis | None:
    """Return the stored analysis of a run; None where there is none for the present files."""
    try:
        with open_own_file(run / CACHE_NAME) as file:
            checksum, _, rest = file.read().partition(b"\n")
        if checksum + b"\n" != checksum_line(rest):
            return None
        lengths, _, parts = rest.partition(b"\n")
        state, warnings, table = map(int, lengths.split())
        if parts[:state] != _state(run):
            return None
        table_begin, table_end = state + warnings, state + warnings + table
        return StoredAnalysis(
            warnings=parts[state:table_begin].decode(),
            table=parts[table_begin:table_end].decode(),
            document=parts[table_end:].decode(),
        )
    except (OSError, ValueError, RecursionError):
        return None


def load_document(run: Path) -> bytes | None:
    """Return the JSON of the stored analysis of a run; None as for `load_analysis`."""
    found = load_analysis(run)
    return found.document.encode() if found is not None else None


def store_analysis(run: Path, analysis: StoredAnalysis, state: bytes) -> None:
    """Store a run's analysis; `state` is what `state_of` returned before the run was read."""
    temporary = run / f"{CACHE_NAME}.{os.urandom(SUFFIX_LENGTH // 2).hex()}"
    with suppress(OSError, RecursionError):
        if state != _state(run):
            return  # changed meanwhile
        warnings, table, document = (part.encode() for part in analysis)
        lengths = b"%d %d %d\n" % (len(state), len(warnings), len(table))
        parts = lengths, state, warnings, table, document
        try:
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(checksum_line(*parts))
                file.writelines(parts)
            _remove_abandoned(run, temporary.stat().st_mtime)
            os.replace(temporary, run / CACHE_NAME)
        finally:
            with suppress(OSError):
                temporary.unlink()  # it does not exist any more once it was renamed


def checksum_line(*parts: bytes) -> bytes:
    """Return the first line of the file: the CRC-32 of the parts that follow it."""
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return b"%08x\n" % checksum


def state_of(run: Path) -> bytes | None:
    """Return the state of a run's files and of our code, which changes when one of them does; None if not readable."""
    try:
        return _state(run)
    except (OSError, RecursionError):
        return None


def _remove_abandoned(run: Path, now: float) -> None:
    """Remove half-written files of killed processes; `now` is by the clock of the file system, as their times are."""
    with os.scandir(run) as entries:
        for entry in entries:
            if entry.name.startswith(f"{CACHE_NAME}.") and len(entry.name) == len(CACHE_NAME) + 1 + SUFFIX_LENGTH:
                with suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < now - ABANDONED_SECONDS:
                        os.unlink(entry.path)


def _state(run: Path) -> bytes:
    """Return the names and states of all files of a run and of the code, with the run's own name."""
    parts = [f"{__version__}\0{run}\0"]
    for folder in (run, Path(overlapscope.__file__).parent):
        parts += sorted(f"{name}\0{file_state(state)}\0" for name, state in _files(folder, ""))
    return "".join(parts).encode(errors="surrogateescape")


def _files(folder: str | Path, within: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files below a folder, without hidden ones and Python's compiled ones.

    Links are followed only to files. Raises OSError for a link to a folder: changes there would not be noticed.
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
