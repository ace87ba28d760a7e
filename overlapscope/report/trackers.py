"""Log a run's figures with TensorBoard, wandb or MLflow, each through its own interface.

Each logs one value a step of the job for its length and its parts, in ms, and the headline: medians over the steps,
and means where these are the main figure.
Where a tracker reports about itself to its makers by default, that is off unless the environment says otherwise.
"""

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from overlapscope.analysis.job_step.headline import PARTS, Headline
from overlapscope.analysis.result import Analysis, MeanStep
from overlapscope.errors import InputError, UsageError

PREFIX: Final = "overlapscope/"
MLFLOW_RETRIES: Final = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
_RATIOS: Final = ("exposed_fraction", "overlap_efficiency")


def steps(analysis: Analysis) -> dict[int, dict[str, float]]:
    """Return for each step of the job its length and its parts in ms, by name; without those that are not known."""
    return {
        each.step: _in_ms({name: getattr(each, name) for name in ("step_ns", *PARTS)})
        for each in analysis.headline.job_steps
        if each.step is not None
    }


def totals(analysis: Analysis) -> dict[str, float]:
    """Return the headline: medians in ms, exposed and idle time also by cause, ratios; without what is not known.

    Where the mean step is the main figure, `mean_` stands before its own.
    """
    names = ("step_ns", "exposed_wait_ns", *PARTS)
    mains = {"median_": analysis.headline} | ({} if analysis.mean_step is None else {"mean_": analysis.mean_step})
    found: dict[str, float] = {}
    for before, main in mains.items():
        found |= _in_ms({f"{before}{name}": getattr(main, name) for name in names})
        found |= _shares(main, before.removeprefix("median_"))
    return found


def _shares(main: Headline | MeanStep, before: str) -> dict[str, float]:
    """Return exposed and idle time by cause in ms, and ratios."""
    found = _in_ms({f"{before}exposed_by_cause/{cause}_ns": ns for cause, ns in main.causes.items()})
    found |= _in_ms({f"{before}idle_by_cause/{cause}_ns": ns for cause, ns in main.idle_causes.items()})
    ratios = {f"{PREFIX}{before}{name}": getattr(main, name) for name in _RATIOS}
    return found | {name: value for name, value in ratios.items() if value is not None}


def to_tensorboard(analysis: Analysis, name: str, place: str | None) -> str:
    """Write an event file into a sub-folder of `place` (default: `tensorboard`), and return that folder."""
    from tensorboard.summary import Writer  # noqa: PLC0415 - an extra

    folder = os.path.join(place or "tensorboard", name)
    writer = Writer(folder)
    try:
        by_step = steps(analysis)
        for step, values in by_step.items():
            for tag, value in values.items():
                writer.add_scalar(tag, value, step)
        for tag, value in totals(analysis).items():
            writer.add_scalar(tag, value, max(by_step, default=0))
    finally:
        writer.close()
    return folder


def to_wandb(analysis: Analysis, name: str, place: str | None) -> str:
    """Log to the wandb run of this process, else to a new one in the folder `place`, offline unless WANDB_MODE says
    otherwise; return where it is."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    wandb = _installed("wandb")

    if place is not None:
        os.makedirs(place, exist_ok=True)
    try:
        mine = wandb.run is None
        mode = os.environ.get("WANDB_MODE", "offline")
        run = wandb.init(project=os.environ.get("WANDB_PROJECT", "overlapscope"), name=name, dir=place, mode=mode,
                         settings=wandb.Settings(silent=True)) if mine else wandb.run  # fmt: skip
        run.define_metric(f"{PREFIX}*", step_metric=f"{PREFIX}step")  # the run of a training counts steps of its own
        for step, values in steps(analysis).items():
            run.log({f"{PREFIX}step": step, **values})
        run.summary.update(totals(analysis))
        if mine:
            run.finish()
    except (wandb.errors.Error, ValueError) as error:  # ValueError: of a setting, such as another WANDB_MODE
        raise InputError(f"wandb: {error}") from error
    return "nowhere, wandb is disabled" if run.disabled else str(run.dir).removesuffix(f"{os.sep}files")


def to_mlflow(analysis: Analysis, name: str, place: str | None) -> str:
    """Log to the MLflow run of this process, else to a new one at the tracking URI `place` (default: MLflow's own, by
    MLFLOW_TRACKING_URI); return where it is."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow = _installed("mlflow")

    impatient = MLFLOW_RETRIES not in os.environ  # by default a server that is not there is asked for minutes
    if impatient:
        os.environ[MLFLOW_RETRIES] = "2"
    active, status = mlflow.active_run(), "FAILED"
    try:
        if place is not None:
            mlflow.set_tracking_uri(place)
        run = active or mlflow.start_run(run_name=name)
        for step, values in steps(analysis).items():
            mlflow.log_metrics(values, step=step, run_id=run.info.run_id)
        mlflow.log_metrics(totals(analysis), run_id=run.info.run_id)
        status = "FINISHED"
    except mlflow.exceptions.MlflowException as error:
        raise InputError(f"mlflow: {error}") from error
    finally:
        if active is None:
            mlflow.end_run(status)
        if impatient:
            del os.environ[MLFLOW_RETRIES]
    return f"{mlflow.get_tracking_uri()}, run {run.info.run_id}"


TRACKERS: Final[Mapping[str, Callable[[Analysis, str, str | None], str]]] = {
    "tensorboard": to_tensorboard,
    "wandb": to_wandb,
    "mlflow": to_mlflow,
}


def log(analysis: Analysis, name: str, to: str) -> str:
    """Log with the tracker of `to`, TRACKER or TRACKER=PLACE, as `name`; return where it is.

    Raises UsageError for another tracker, or one that is not installed; InputError where it refuses, where its place
    cannot be written, and where the run has no times.
    """
    tracker, _, place = to.partition("=")
    if tracker not in TRACKERS:
        raise UsageError(f"there is no tracker {tracker[:40]!r}; it is one of {', '.join(TRACKERS)}")
    if not totals(analysis):
        raise InputError("the run has no times, so there is nothing to log")
    try:
        return TRACKERS[tracker](analysis, name, place or None)
    except OSError as error:
        raise InputError(f"{tracker}: {error.filename or place}: {error.strerror or error}") from error
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] != tracker:
            raise
        raise UsageError(f"{tracker} is not installed: pip install {tracker}") from missing


def _installed(name: str) -> Any:
    """Return a module; raise ModuleNotFoundError where its name is only a folder's, as wandb leaves one of its name."""
    module = import_module(name)
    if getattr(module, "__file__", None) is None:
        raise ModuleNotFoundError(name=name)
    return module


def _in_ms(values: Mapping[str, int | None]) -> dict[str, float]:
    return {f"{PREFIX}{name.removesuffix('_ns')}_ms": ns / 1e6 for name, ns in values.items() if ns is not None}
