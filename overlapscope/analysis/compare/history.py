"""The history of many runs (`overlapscope.history/1`): every metric of each run, and what changed between runs."""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from overlapscope.analysis.compare.compare import common_steps
from overlapscope.analysis.compare.measured_run import MeasuredRun
from overlapscope.analysis.compare.prediction_check import Outcome
from overlapscope.analysis.job_step.headline import StepsBy
from overlapscope.analysis.job_step.metrics import metrics

SCHEMA: Literal["overlapscope.history/1"] = "overlapscope.history/1"
Count = Annotated[int, msgspec.Meta(ge=0)]


class IdentityChange(msgspec.Struct, kw_only=True, frozen=True):
    """A key of a run's identity that differs from the run before; null where it was not recorded."""

    key: str
    before: str | None
    after: str | None


class HistoryRun(msgspec.Struct, kw_only=True, frozen=True):
    """One run of a history."""

    name: str
    world_size: int | None
    ranks: list[int]
    missing_ranks: list[int]
    steps: Count
    """Complete steps that the figures are computed from; 0 for a whole recording."""
    values: dict[str, int | float | None]
    """Values by metric, as `compare` defines them: medians over steps."""
    changes: list[IdentityChange]
    """Differences from the run before; empty for the first run."""


class History(msgspec.Struct, kw_only=True, frozen=True, rename={"schema_": "schema"}):
    """The content of `overlapscope.history/1`. Missing is null."""

    schema_: Literal["overlapscope.history/1"] = SCHEMA
    window: Literal["step", "recording"] | None
    """Whether figures are of steps or of whole recordings, as in a comparison."""
    ranks: list[int]
    """Ranks that all runs have; the figures cover only these. Empty (all ranks of each run) where there are none."""
    runs: list[HistoryRun]
    """In the given order."""
    predictions: list[Outcome] = []
    """Predictions made from a run (`advise --record`) that other runs tested: stored with the run, or found here."""
    steps_by: StepsBy = "longest_window"
    """How step times are measured, as in a comparison."""


def history(runs: Sequence[MeasuredRun]) -> History:
    """Return the metrics of the runs over the same ranks and windows, so that they are comparable."""
    chosen = common_steps(runs, runs)
    tables = chosen.tables[0]
    found = metrics(tables, tables, of_steps=chosen.window == "step")
    return History(
        window=chosen.window,
        ranks=list(chosen.ranks),
        steps_by=chosen.steps_by,
        runs=[
            HistoryRun(
                name=run.name,
                world_size=run.world_size,
                ranks=list(run.ranks),
                missing_ranks=list(run.missing_ranks),
                steps=len(tables[at].steps) if chosen.window == "step" else 0,
                values={each.name: each.base.by_run[at] for each in found},
                changes=_changes(runs[at - 1], run) if at else [],
            )
            for at, run in enumerate(runs)
        ],
    )


def _changes(before: MeasuredRun, after: MeasuredRun) -> list[IdentityChange]:
    keys = sorted({*before.identity, *after.identity})
    pairs = ((key, before.identity.get(key), after.identity.get(key)) for key in keys)
    return [IdentityChange(key=key, before=was, after=now) for key, was, now in pairs if was != now]
