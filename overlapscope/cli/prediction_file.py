"""The file in a run directory that keeps what was predicted from the run, and what later runs measured."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from overlapscope.analysis.prediction_check import Noted, Outcome, Prediction, joined
from overlapscope.errors import InputError, UsageError
from overlapscope.files.atomic import atomic_file
from overlapscope.ingest.run_folder import runs_of
from overlapscope.timeline.store.prediction_file import NAME, read_predictions
from overlapscope.timeline.store.run_directory import is_run_directory


def noted_in(paths: Iterable[Path]) -> Noted:
    """Return what the runs that paths name keep, all together. Raises InputError where a file cannot be understood."""
    found = Noted()
    for path in paths:
        for each in runs_of(path)[0]:
            more = _read(each)
            found = joined(found, more.predictions, more.outcomes)
    return found


def note(run: Path, predictions: Sequence[Prediction] = (), tested: Sequence[Outcome] = ()) -> Path:
    """Add to what a run directory keeps; give the file. Nothing else of the run is touched.

    Raises UsageError where `run` is no run directory, InputError where the file cannot be written or understood.
    """
    require_run_directory(run)
    content = msgspec.json.format(msgspec.json.encode(joined(_read(run), predictions, tested)), indent=1)
    place = run / NAME
    try:
        with atomic_file(place, durable=True) as file:
            file.write(content + b"\n")
    except OSError as error:
        raise InputError(f"{place}: cannot be written: {error.strerror or error}") from error
    return place


def require_run_directory(path: Path) -> None:
    """Raise UsageError where a path is no run directory: only those keep predictions."""
    if not is_run_directory(path):
        raise UsageError(
            f"{path} is no run directory, and only those keep predictions; make one of it: "
            f"overlapscope ingest {path} -o runs/{path.name.partition('.')[0] or 'run'}"
        )


def _read(run: Path) -> Noted:
    return read_predictions(run, Noted) or Noted()


__all__ = ["NAME", "note", "noted_in", "require_run_directory"]
