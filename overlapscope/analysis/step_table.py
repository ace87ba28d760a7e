"""The figures of one run as matrices of ranks by steps, from which a comparison takes means and medians."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.across_ranks import CrossRank
from overlapscope.analysis.breakdown import Breakdown
from overlapscope.analysis.call_kind import Shares
from overlapscope.analysis.cause_table import CAUSES, WAITS_FOR_LATE_RANK
from overlapscope.analysis.exposed import ExposedShares
from overlapscope.analysis.result import RankInfo
from overlapscope.analysis.steps import StepWindow, whole_windows
from overlapscope.timeline.columns import NONE, Flags, Ints, size
from overlapscope.timeline.run import RankTimeline, Run

FIGURES: Final = (
    "window_ns", "comm_ns", "compute_ns", "copy_ns", "overlapped_ns", "exposed_comm_ns", "compute_only_ns",
    "copy_only_ns", "idle_ns", "hidden_wait_ns",
)  # fmt: skip
WHOLE: Final = (NONE, 0)
"""Label of the only column of a table of whole recordings."""
Places = Mapping[tuple[int, int], int]
"""Column by (recording, step number)."""


class StepTable(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of every rank (row) and step (column); NONE where a step is incomplete or a figure is not known."""

    ranks: tuple[int, ...]
    steps: tuple[tuple[int, int], ...]
    """(step number, index among the steps with that number) of each column."""
    recorded: Flags
    figures: Mapping[str, Ints]
    """The fields of the breakdown, `blame_ns` and `exposed_wait_ns`."""
    causes: Mapping[str, Ints]
    exposed_ns: tuple[Shares, ...]
    """For each rank, exposed time inside the windows, by kind of the collective that owns it."""
    calls: tuple[Shares, ...]
    """For each rank, the number of calls that each step launched, by kind."""

    @property
    def ranks_recorded(self) -> tuple[int, ...]:
        """Ranks with at least one complete step."""
        return tuple(rank for rank, row in zip(self.ranks, self.recorded, strict=True) if row.any())

    def alike(self, ranks: Sequence[int]) -> "StepTable":
        """Return the table of these ranks, and of those steps that the most of these ranks recorded completely.

        So every figure of a step is over equally many ranks; a maximum over fewer ranks would be smaller.
        """
        rows = np.array([self.ranks.index(rank) for rank in ranks], np.int64)
        members = self.recorded[rows].sum(axis=0)
        columns = np.flatnonzero((members > 0) & (members == members.max(initial=0)))
        here = np.ix_(rows, columns)
        kept = rows.tolist()
        return StepTable(
            ranks=tuple(ranks),
            steps=tuple(self.steps[column] for column in columns.tolist()),
            recorded=self.recorded[here],
            figures={name: values[here] for name, values in self.figures.items()},
            causes={name: values[here] for name, values in self.causes.items()},
            exposed_ns=tuple(self.exposed_ns[row].within(columns) for row in kept),
            calls=tuple(self.calls[row].within(columns) for row in kept),
        )


def step_table(
    run: Run,
    infos: Sequence[RankInfo],
    windows: Mapping[int, Sequence[StepWindow]],
    cross_rank: CrossRank,
    exposed: Mapping[int, ExposedShares],
) -> StepTable:
    """Return the complete steps of the ranks `infos`, which are from the analysis of `run`."""
    of_rank: dict[int, list[tuple[StepWindow, Breakdown]]] = {}
    for info in infos:
        pairs = zip(windows[info.rank], info.steps, strict=True)
        of_rank[info.rank] = [(step, figures) for step, figures in pairs if step.complete and step.window]
    labels = {rank: _labels([step.step for step, _ in chosen]) for rank, chosen in of_rank.items()}
    steps = sorted({label for each in labels.values() for label in each})
    column = {label: at for at, label in enumerate(steps)}
    filling = _Filling(tuple(of_rank), tuple(steps), cross_rank, run, exposed)
    for rank, chosen in of_rank.items():
        columns = [column[label] for label in labels[rank]]
        filling.add(
            rank,
            [(figures, at) for (_, figures), at in zip(chosen, columns, strict=True)],
            [(step.window or (0, 0), at) for (step, _), at in zip(chosen, columns, strict=True)],
            {(step.recording, step.step): at for (step, _), at in zip(chosen, columns, strict=True)},
        )
    return filling.done()


def whole_table(
    run: Run, infos: Sequence[RankInfo], cross_rank: CrossRank, exposed: Mapping[int, ExposedShares]
) -> StepTable:
    """Return the whole recordings of these ranks as one column."""
    filling = _Filling(tuple(info.rank for info in infos), (WHOLE,), cross_rank, run, exposed)
    for info in infos:
        windows = [(window, 0) for window in whole_windows(run.ranks[info.rank])]
        filling.add(info.rank, [(info.whole, 0)], windows, None)
    return filling.done()


def _labels(steps: Sequence[int]) -> list[tuple[int, int]]:
    """Label the steps of a rank; several of its recordings may use the same step numbers."""
    seen: dict[int, int] = {}
    labels = []
    for step in steps:
        labels.append((step, seen.get(step, 0)))
        seen[step] = labels[-1][1] + 1
    return labels


class _Filling:
    """A table that is filled rank by rank."""

    def __init__(
        self,
        ranks: tuple[int, ...],
        steps: tuple[tuple[int, int], ...],
        cross_rank: CrossRank,
        run: Run,
        exposed: Mapping[int, ExposedShares],
    ) -> None:
        self._ranks, self._steps, self._run, self._together, self._exposed_of = ranks, steps, run, cross_rank, exposed
        self._shape = len(ranks), len(steps)
        self._recorded = np.zeros(self._shape, np.bool_)
        self._figures = {
            name: np.full(self._shape, NONE, np.int64) for name in (*FIGURES, "exposed_wait_ns", "blame_ns")
        }
        self._causes = {cause: np.zeros(self._shape, np.int64) for cause in CAUSES}
        self._exposed: list[Shares] = []
        self._calls: list[Shares] = []

    def add(
        self,
        rank: int,
        figures: Sequence[tuple[Breakdown, int]],
        windows: Sequence[tuple[tuple[int, int], int]],
        places: Places | None,
    ) -> None:
        """Add the next rank: breakdown and windows of each of its columns, and the column of each step."""
        row = self._ranks.index(rank)
        for each, column in figures:
            self._recorded[row, column] = True
            for name in FIGURES:
                value = getattr(each, name)
                self._figures[name][row, column] = NONE if value is None else value
            for cause, ns in each.causes.items():
                self._causes[cause][row, column] = ns
        communication = self._exposed_of[rank]
        exposed, unsplit = communication.within(windows, self._shape[1])
        self._exposed.append(exposed)
        at = _columns(self._run.ranks[rank], places)
        launched = np.flatnonzero(at >= 0)
        once = np.ones(launched.size, np.int64)
        self._calls.append(Shares.of(communication.kinds, communication.kind_of[launched], at[launched], once))
        here = self._recorded[row]
        waited = sum(self._causes[cause][row] for cause in WAITS_FOR_LATE_RANK)
        self._figures["exposed_wait_ns"][row] = np.where(here & (unsplit == 0), waited, NONE)
        self._figures["blame_ns"][row] = np.where(here & bool(self._together.matched), self._blame(rank, at), NONE)

    def done(self) -> StepTable:
        """Return the filled table."""
        return StepTable(
            ranks=self._ranks,
            steps=self._steps,
            recorded=self._recorded,
            figures=self._figures,
            causes=self._causes,
            exposed_ns=tuple(self._exposed),
            calls=tuple(self._calls),
        )

    def _blame(self, rank: int, at: Ints) -> Ints:
        """Return the rank's leads over the second-latest rank, summed over the calls of each column."""
        blame = np.zeros(self._shape[1], np.float64)
        for split in self._together.splits:
            if rank in split.block.ranks:
                row = split.block.ranks.index(rank)
                late = split.last == row
                columns = at[split.block.rows[row, late]]
                np.add.at(blame, columns[columns >= 0], split.lead_ns[late][columns >= 0])
        return np.rint(blame).astype(np.int64)


def _columns(timeline: RankTimeline, places: Places | None) -> Ints:
    """Return for each call the column of the step that launched it, -1 for none; without `places` always column 0."""
    calls = timeline.collectives
    if places is None:
        return np.zeros(size(calls), np.int64)
    keys = zip(calls.recording.tolist(), calls.step.tolist(), strict=True)
    return np.fromiter((places.get(key, -1) for key in keys), np.int64, size(calls))
