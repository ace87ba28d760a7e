"""Many runs in their order to `overlapscope.history/1`: every metric of each, and what changed from one to the next."""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from overlapscope.analysis.compare import alike
from overlapscope.analysis.measured_run import Replicate
from overlapscope.analysis.metrics import metrics
from overlapscope.analysis.prediction_check import Outcome

SCHEMA: Literal["overlapscope.history/1"] = "overlapscope.history/1"
Count = Annotated[int, msgspec.Meta(ge=0)]


class IdentityChange(msgspec.Struct, kw_only=True, frozen=True):
    """A key of what a run was that is not as in the run before; null where a run does not know it."""

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
    """Complete steps behind the figures; 0 for a whole recording."""
    values: dict[str, int | float | None]
    """By metric, as `compare` defines them: medians over steps."""
    changes: list[IdentityChange]
    """Against the run before; none for the first."""


class History(msgspec.Struct, kw_only=True, frozen=True, rename={"schema_": "schema"}):
    """The content of `overlapscope.history/1`. Missing is null."""

    schema_: Literal["overlapscope.history/1"] = SCHEMA
    window: Literal["step", "recording"] | None
    """What the figures are of, as in a comparison."""
    ranks: list[int]
    """Ranks that all runs have, and that the figures are of; all of each run where there are none."""
    runs: list[HistoryRun]
    """In the order in which they were given."""
    predictions: list[Outcome] = []
    """What was predicted from a run (`advise --record`) and others measured: as kept with it, and as found here."""


def history(runs: Sequence[Replicate]) -> History:
    """Measure the runs by the same ranks and windows, so that they can be laid side by side."""
    chosen = alike(runs, runs)
    tables = chosen.tables[0]
    found = metrics(tables, tables, of_steps=chosen.window == "step")
    return History(
        window=chosen.window,
        ranks=list(chosen.ranks),
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


def _changes(before: Replicate, after: Replicate) -> list[IdentityChange]:
    keys = sorted({*before.identity, *after.identity})
    pairs = ((key, before.identity.get(key), after.identity.get(key)) for key in keys)
    return [IdentityChange(key=key, before=was, after=now) for key, was, now in pairs if was != now]
