"""One side of a comparison: a run, traces, or a folder of runs of the same code."""

from collections.abc import Callable, Iterator
from pathlib import Path

from overlapscope.errors import InputError
from overlapscope.ingest.read import ReadOptions, read_inputs
from overlapscope.ingest.shown import shown
from overlapscope.timeline.run import Run, is_run_directory


def runs_of(path: Path) -> list[Path]:
    """Give the runs that a path names: the run directories right inside a folder, else the path itself.

    A folder of traces is one run, as is a run directory; a link to a run that stands beside it is no second one.
    """
    try:
        if not path.is_dir() or is_run_directory(path):
            return [path]
        inside = [entry for entry in sorted(path.iterdir()) if entry.is_dir() and not entry.name.startswith(".")]
        found = {entry.resolve(): entry for entry in sorted(inside, key=Path.is_symlink, reverse=True)}
        runs = sorted(entry for entry in found.values() if is_run_directory(entry))
    except OSError as error:
        raise InputError(f"{shown(path)}: cannot be read: {error.strerror or error}") from error
    return runs or [path]


def read_side(
    path: Path,
    options: ReadOptions | None = None,
    *,
    progress: Callable[[Path, int], None] | None = None,
    failed: Callable[[InputError], None] | None = None,
) -> Iterator[tuple[str, Run]]:
    """Read the runs of a side one after another, each with its name, so that only one need be in memory.

    One of several that cannot be read costs only itself, and `failed` is told. Raises InputError when none can.
    """
    paths = runs_of(path)
    usable = 0
    for each in paths:
        try:
            run = read_inputs([each], options, progress=progress)
        except InputError as error:
            if each == paths[-1] and not usable:
                raise
            if failed:
                failed(error)
            continue
        usable += 1
        yield shown(each), run
