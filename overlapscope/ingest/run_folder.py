"""One side of a comparison: a run, traces, or a folder of runs of the same code."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from overlapscope.display import listed, shown, shown_name
from overlapscope.errors import InputError
from overlapscope.ingest.options import ReadOptions
from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.run import Run
from overlapscope.timeline.store.run_directory import is_run_directory
from overlapscope.timeline.store.run_folder import put_aside


def runs_of(path: Path) -> tuple[list[Path], list[Path]]:
    """Give the runs that a path names: the run directories right inside a folder, else itself; and what is beside them.

    A folder of traces is one run, as is a run directory; a link to a run that stands beside it is no second one.
    """
    try:
        if not path.is_dir() or is_run_directory(path):
            return [path], []
        inside = [entry for entry in sorted(path.iterdir()) if not entry.name.startswith(".")]
        # Links first: what they point to takes their place, if it is here too.
        # Path.resolve raises RuntimeError for links in a circle.
        found = {os.path.realpath(entry): entry for entry in sorted(inside, key=Path.is_symlink, reverse=True)}
        runs = sorted(entry for entry in found.values() if entry.is_dir() and is_run_directory(entry))
    except OSError as error:
        raise InputError(f"{shown(path)}: cannot be read: {error.strerror or error}") from error
    return (runs, sorted(set(found.values()) - set(runs))) if runs else ([path], [])


def read_side(
    path: Path,
    options: ReadOptions | None = None,
    *,
    progress: Callable[[Path, int], None] | None = None,
    note: Callable[[str], None] | None = None,
    left_out: list[str] | None = None,
) -> Iterator[tuple[str, Run]]:
    """Read the runs of a side as `read_runs` does, each with its name as text."""
    for place, run in read_runs(path, options, progress=progress, note=note, left_out=left_out):
        yield shown(place), run


def read_runs(
    path: Path,
    options: ReadOptions | None = None,
    *,
    progress: Callable[[Path, int], None] | None = None,
    note: Callable[[str], None] | None = None,
    left_out: list[str] | None = None,
) -> Iterator[tuple[Path, Run]]:
    """Read the runs of a side one after another, each with its path, so that only one need be in memory.

    One of several that cannot be read costs only itself; `note` is told, as it is of what is no run, and `left_out`
    takes the reason. Raises InputError when none can be read.
    """
    paths, others = runs_of(path)
    tell = note or (lambda _: None)
    if others:
        few = listed([shown_name(each) for each in others], 3)
        tell(f"{shown(path)}: a folder of {len(paths)} runs; not read: {few}")
    for words in put_aside(path):
        tell(words)
        if left_out is not None:
            left_out.append(words)
    usable = 0
    for each in paths:
        try:
            run = read_inputs([each], options, progress=progress, workers=None)
        except InputError as error:
            if each == paths[-1] and not usable:
                raise
            tell(f"left out: {error}")
            if left_out is not None:
                left_out.append(" ".join(str(error).split()))
            continue
        usable += 1
        yield each, run
