"""One side of a comparison: a run, traces, or a folder of runs of the same code."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from overlapscope.display import display_name, display_path, list_some
from overlapscope.errors import InputError
from overlapscope.ingest.options import ReadOptions
from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.run import Run
from overlapscope.timeline.store.run_directory import is_run_directory
from overlapscope.timeline.store.run_folder import explain_interrupted


def find_runs(path: Path) -> tuple[list[Path], list[Path]]:
    """Return the runs that a path names, and the other entries of its folder.

    The runs are the run directories directly inside a folder, else the path itself: a folder of traces is one run, and
    so is a run directory. A link to a run in the same folder is not a second run. Raises InputError.
    """
    try:
        if not path.is_dir() or is_run_directory(path):
            return [path], []
        inside = [entry for entry in sorted(path.iterdir()) if not entry.name.startswith(".")]
        # Links come first, so that their target replaces them if it is in this folder too.
        # os.path.realpath, because Path.resolve raises RuntimeError for links in a circle.
        found = {os.path.realpath(entry): entry for entry in sorted(inside, key=Path.is_symlink, reverse=True)}
        runs = sorted(entry for entry in found.values() if entry.is_dir() and is_run_directory(entry))
    except OSError as error:
        raise InputError(f"{display_path(path)}: cannot be read: {error.strerror or error}") from error
    return (runs, sorted(set(found.values()) - set(runs))) if runs else ([path], [])


def read_side(
    path: Path,
    options: ReadOptions | None = None,
    *,
    progress: Callable[[Path, int], None] | None = None,
    note: Callable[[str], None] | None = None,
    left_out: list[str] | None = None,
) -> Iterator[tuple[str, Run]]:
    """Yield the runs of a side as `read_runs` does, each with its name as text."""
    for run_path, run in read_runs(path, options, progress=progress, note=note, left_out=left_out):
        yield display_path(run_path), run


def read_runs(
    path: Path,
    options: ReadOptions | None = None,
    *,
    progress: Callable[[Path, int], None] | None = None,
    note: Callable[[str], None] | None = None,
    left_out: list[str] | None = None,
) -> Iterator[tuple[Path, Run]]:
    """Yield the runs of a side one after another, each with its path, so that only one need be in memory.

    A run that cannot be read is skipped: `note` is called with a sentence about it, as about entries that are not runs,
    and the reason is appended to `left_out`. Raises InputError when no run can be read.
    """
    paths, others = find_runs(path)
    report = note or (lambda _: None)
    if others:
        few = list_some([display_name(each) for each in others], 3)
        report(f"{display_path(path)}: a folder of {len(paths)} runs; not read: {few}")
    for sentence in explain_interrupted(path):
        report(sentence)
        if left_out is not None:
            left_out.append(sentence)
    usable = 0
    for each in paths:
        try:
            run = read_inputs([each], options, progress=progress, workers=None)
        except InputError as error:
            if each == paths[-1] and not usable:
                raise
            report(f"left out: {error}")
            if left_out is not None:
                left_out.append(" ".join(str(error).split()))
            continue
        usable += 1
        yield each, run
