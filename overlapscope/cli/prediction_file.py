"""Read and write the file in a run directory with predictions made from the run, and what later runs measured."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from overlapscope.analysis.compare.prediction_check import Noted, Outcome, Prediction, add_outcomes
from overlapscope.errors import InputError, UsageError
from overlapscope.files.atomic import atomic_file
from overlapscope.ingest.run_folder import find_runs
from overlapscope.timeline.store.prediction_file import NAME, read_predictions
from overlapscope.timeline.store.run_directory import is_run_directory


def read_noted(paths: Iterable[Path]) -> Noted:
    """Return the predictions of all runs in `paths`, joined. Raises InputError if a file cannot be decoded."""
    found = Noted()
    for path in paths:
        for each in find_runs(path)[0]:
            more = _read(each)
            found = add_outcomes(found, more.predictions, more.outcomes)
    return found


def add_noted(run: Path, predictions: Sequence[Prediction] = (), tested: Sequence[Outcome] = ()) -> Path:
    """Add predictions and outcomes to the file of a run directory; return the file. Nothing else of the run changes.

    Raises UsageError if `run` is not a run directory, InputError if the file cannot be written or decoded.
    """
    require_run_directory(run)
    content = msgspec.json.format(msgspec.json.encode(add_outcomes(_read(run), predictions, tested)), indent=1)
    place = run / NAME
    try:
        with atomic_file(place, durable=True) as file:
            file.write(content + b"\n")
    except OSError as error:
        raise InputError(f"{place}: cannot be written: {error.strerror or error}") from error
    return place


def require_run_directory(path: Path) -> None:
    """Raise UsageError if a path is not a run directory: only those store predictions."""
    if not is_run_directory(path):
        raise UsageError(
            f"{path} is not a run directory, and only those store predictions; make one: "
            f"overlapscope ingest {path} -o runs/{path.name.partition('.')[0] or 'run'}"
        )


def _read(run: Path) -> Noted:
    return read_predictions(run, Noted) or Noted()
