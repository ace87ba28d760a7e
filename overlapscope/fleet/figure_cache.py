"""Keep the figures of a fleet's runs in its folder, so that only new and changed runs are read the next time.

    FOLDER/.fleet.json   for each run: the state of its files, and its figures; with a digest of the code

It may be deleted at any time. It is used only if this user wrote it; a folder that cannot be written to has none.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from overlapscope.analysis.compare.fleet import FleetRun
from overlapscope.files.atomic import atomic_file
from overlapscope.files.safe_open import file_state, open_own_file
from overlapscope.files.source_digest import source_digest

CACHE_NAME: Final = ".fleet.json"
CODE: Final = ("overlapscope.fleet", "overlapscope.analysis", "overlapscope.timeline")
"""Packages that the figures of a run directory depend on."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run, and the state of the files that they were computed from."""

    state: str
    run: FleetRun


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    runs: dict[str, Kept]


def load_figures(folder: Path) -> dict[str, Kept]:
    """Return the stored figures by the key of the run; nothing where there are none of this code."""
    try:
        with open_own_file(folder / CACHE_NAME) as file:
            content = msgspec.json.decode(file.read(), type=_Content)
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError):  # msgspec 0.19's are no ValueErrors
        return {}
    return content.runs if content.code == source_digest(*CODE) else {}


def store_figures(folder: Path, runs: Mapping[str, Kept]) -> None:
    """Store the figures in place of the earlier ones; a folder that cannot be written to is left as it is."""
    content = _Content(code=source_digest(*CODE), runs=dict(runs))
    with suppress(OSError), atomic_file(folder / CACHE_NAME, durable=False) as file:
        file.write(msgspec.json.encode(content))


def run_key(run: Path, folder: Path) -> str:
    """Return the key of a run's figures: its path below the folder, different for different bytes."""
    below = os.fsencode(os.path.relpath(run, folder))
    return below.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def run_state(run: Path) -> str | None:
    """Return a digest that changes when a file of a run does; None where its files cannot be listed.

    Hidden files do not count, and links are followed only to files, as in a run's stored analysis.
    """
    try:
        parts = sorted(f"{name}\0{file_state(state)}\0" for name, state in _files(run, ""))
    except (OSError, RecursionError):
        return None
    content = "".join(parts).encode(errors="surrogateescape")
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _files(folder: str | Path, within: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files of a run. Raises OSError for a link to a folder: changes there would not be noticed."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path, f"{within}{entry.name}/")
            elif entry.is_dir():
                raise IsADirectoryError(entry.path)
            else:
                yield within + entry.name, entry.stat()
