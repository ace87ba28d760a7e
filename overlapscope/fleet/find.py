"""Find the run directories below a folder, and name their jobs."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from overlapscope.display import display_path
from overlapscope.errors import InputError
from overlapscope.timeline.store.run_directory import is_run_directory

MAX_DEPTH: Final = 6
"""Levels of folders below the given one that are searched."""
_WORD: Final = r"(?:runs?|jobs?|attempt|try|build|night|seed)"
_NUMBER: Final = re.compile(
    rf"(?:(?<![0-9])\.|(?<![0-9]e)[-+]|[_,@ ])[-_.,@+ ]*(?:{_WORD}[-_.]?)?[0-9][-_.:+0-9TZ]*$", re.IGNORECASE
)
"""A number, a date or a time at the end of a name, behind a separator; with a word that only announces a number.

The points of `0.1` and `v1.2` and the sign of `1e-4` are no separators: runs of a sweep are not one job.
"""
_ONLY_NUMBER: Final = re.compile(rf"{_WORD}?[-_.]?(?:[0-9][-_.:+0-9TZ]*)?", re.IGNORECASE)
"""A name that is only such a word, only a number, or both."""


class RunPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A run directory of a fleet."""

    path: Path
    name: str
    """Its path below the folder, as shown; no two places have the same."""
    job: str


def runs_below(folder: Path) -> list[RunPlace]:
    """Return the run directories below a folder, at most MAX_DEPTH levels down, by name.

    Links to folders are not followed, so that no run counts twice. Raises InputError where there is no run.
    """
    if not folder.is_dir():
        raise InputError(f"{display_path(folder)}: is no folder; name a folder with run directories below it")
    if is_run_directory(folder):
        raise InputError(f"{display_path(folder)}: is a run itself; name a folder with run directories below it")
    places = [place_of(path, folder) for path in sorted(_search(folder, 1))]
    if not places:
        raise InputError(
            f"{display_path(folder)}: no run directory lies below it; `overlapscope ingest TRACES -o RUN` makes one of "
            "traces"
        )
    names = unique_names([each.name for each in places])
    found = [msgspec.structs.replace(each, name=name) for each, name in zip(places, names, strict=True)]
    return sorted(found, key=lambda each: each.name)


def unique_names(names: Sequence[str]) -> list[str]:
    """Return names with a number behind those that came before: paths of different bytes may look the same."""
    given = set(names)
    taken: set[str] = set()
    found = []
    for name in names:
        own, number = name, 1
        while own in taken or (number > 1 and own in given):
            number += 1
            own = f"{name} ({number})"
        taken.add(own)
        found.append(own)
    return found


def place_of(path: Path, folder: Path) -> RunPlace:
    """Return a run directory below a folder with its name and the name of its job."""
    below = path.relative_to(folder)
    return RunPlace(path=path, name=display_path(below), job=job_name(below.parts, folder.resolve().name))


def job_name(parts: tuple[str, ...], folder: str) -> str:
    """Return the name of the job of a run at a path below `folder`: the path without numbers and dates.

    Of each part, numbers, dates and times at the end are removed if a separator stands before them; a part that is
    nothing else, or only says `run-12`, is left out. Where nothing is left, the folder's own name is the job's.
    """
    kept = [name for part in parts if (name := _without_number(part))]
    return display_path(Path(*kept)) if kept else display_path(Path(folder))


def _without_number(part: str) -> str:
    name = part
    while not _ONLY_NUMBER.fullmatch(name):
        shorter = _NUMBER.sub("", name)
        if shorter == name:
            return name
        name = shorter
    return ""


def _search(folder: Path, depth: int) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            inside = sorted(each.name for each in entries if each.is_dir(follow_symlinks=False))
    except OSError:
        return  # an unreadable folder hides only its own runs
    for name in inside:
        if name.startswith("."):
            continue
        if is_run_directory(folder / name):
            yield folder / name
        elif depth < MAX_DEPTH:
            yield from _search(folder / name, depth + 1)
