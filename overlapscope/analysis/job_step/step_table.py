"""The figures of one run as matrices of ranks by steps, and the steps of its job.

A step of the job lasts from the earliest start to the latest end of one step's windows over the recorded ranks. Each
rank's own window and what it lacks of the job's step add up to it exactly, in integer nanoseconds: what lies before the
first span that the rank recorded is `start_of_recording`, the rest is `outside` (skew between ranks, pipeline stages).
Windows begin on the aligned clock; their lengths are those that the rank's own clock measured.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Self

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.common.cause_table import CAUSES, IDLE_CAUSES
from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.exposure.call_kind import Shares
from overlapscope.analysis.exposure.exposed import ExposedShares
from overlapscope.analysis.per_rank.breakdown import Breakdown
from overlapscope.analysis.per_rank.steps import StepWindow
from overlapscope.timeline.columns import NONE, Flags, Ints, size
from overlapscope.timeline.run import RankTimeline, Run

FIGURES: Final = (
    "window_ns", "comm_ns", "compute_ns", "copy_ns", "overlapped_ns", "exposed_comm_ns", "compute_only_ns",
    "copy_only_ns", "idle_ns", "hidden_wait_ns", "exposed_wait_ns",
)  # fmt: skip
WHOLE: Final = (NONE, 0)
"""Label of the only column of a table of whole recordings."""
Places = Mapping[tuple[int, int], int]
"""Column by (recording, step number)."""
Window = tuple[int, int]


class AlignedWindows(msgspec.Struct, frozen=True, kw_only=True):
    """Windows of ranks and steps on one clock, shape (rank, step, piece); NONE where a rank has no such window.

    A step is one piece; a whole recording has a piece for each part that was recorded.
    """

    start_ns: Ints
    length_ns: Ints
    begun_ns: Ints
    """When the rank's first span in the same part of the recording began."""

    def within(self, rows: Ints, columns: Ints) -> Self:
        """Return the windows of some ranks and steps."""
        here = np.ix_(rows, columns)
        return type(self)(
            start_ns=self.start_ns[here], length_ns=self.length_ns[here], begun_ns=self.begun_ns[here]
        )  # fmt: skip


class JobStep(msgspec.Struct, frozen=True, kw_only=True):
    """The job's step of each column, shape (step,), and what each rank's window lacks of it, shape (rank, step)."""

    step_ns: Ints
    start_of_recording_ns: Ints
    outside_ns: Ints


class RankWindows(msgspec.Struct, frozen=True, kw_only=True):
    """The windows of one rank: its steps with their breakdowns, and its whole recording."""

    steps: Sequence[tuple[StepWindow, Breakdown]]
    """In order of time."""
    whole: Breakdown
    recordings: Sequence[Window]
    """From the first span to the last of each recording that has any."""


class StepFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of every rank (row) and step (column); NONE where a step is incomplete or a figure is not known."""

    ranks: tuple[int, ...]
    steps: tuple[tuple[int, int], ...]
    """(step number, index among the steps with that number) of each column."""
    recorded: Flags
    figures: Mapping[str, Ints]
    """The fields of the breakdown, in a `StepTable` also `blame_ns`."""
    causes: Mapping[str, Ints]
    """Of exposed time."""
    idle_causes: Mapping[str, Ints]
    windows: AlignedWindows | None
    """None where the step of the job is the longest window of a rank: clocks that cannot be aligned, windows of a step
    that lie apart, version 0.1."""

    @property
    def ranks_recorded(self) -> tuple[int, ...]:
        """Ranks with at least one complete step."""
        return tuple(rank for rank, row in zip(self.ranks, self.recorded, strict=True) if row.any())

    @property
    def job(self) -> JobStep:
        """The steps of the job, over the ranks of this table."""
        found = None if self.windows is None else job_step(self.windows)
        return found or longest_window(self.figures["window_ns"], self.recorded)

    def alike(self, ranks: Sequence[int]) -> Self:
        """Return the table of these ranks, and of those steps that the most of these ranks recorded completely.

        So every figure of a step is over equally many ranks; a maximum over fewer ranks would be smaller.
        """
        rows = np.array([self.ranks.index(rank) for rank in ranks], np.int64)
        members = self.recorded[rows].sum(axis=0)
        return self._within(rows, np.flatnonzero((members > 0) & (members == members.max(initial=0))))

    def of_most_ranks(self) -> Self:
        """Return the table of its steps that the most ranks recorded completely, without ranks that completed none."""
        table = self.alike(self.ranks_recorded)
        return table.alike(table.ranks_recorded)

    def _within(self, rows: Ints, columns: Ints) -> Self:
        here = np.ix_(rows, columns)
        windows = None if self.windows is None else self.windows.within(rows, columns)
        return replace(
            self,
            ranks=tuple(self.ranks[row] for row in rows.tolist()),
            steps=tuple(self.steps[column] for column in columns.tolist()),
            recorded=self.recorded[here],
            figures={name: values[here] for name, values in self.figures.items()},
            causes={name: values[here] for name, values in self.causes.items()},
            idle_causes={name: values[here] for name, values in self.idle_causes.items()},
            windows=None if windows is None or job_step(windows) is None else windows,
        )


class StepTable(StepFigures, frozen=True, kw_only=True):
    """The figures of ranks and steps with the calls that they belong to, as a comparison needs them."""

    exposed_ns: tuple[Shares, ...]
    """For each rank, exposed time inside the windows, by kind of the collective that owns it."""
    calls: tuple[Shares, ...]
    """For each rank, the number of calls that each step launched, by kind."""

    def _within(self, rows: Ints, columns: Ints) -> Self:
        return replace(
            super()._within(rows, columns),
            exposed_ns=tuple(self.exposed_ns[row].within(columns) for row in rows.tolist()),
            calls=tuple(self.calls[row].within(columns) for row in rows.tolist()),
        )


def job_step(windows: AlignedWindows) -> JobStep | None:
    """Return the steps of a job, 0 where no rank has a window.

    The result is None where the ranks have different numbers of pieces, or where no chain of windows that overlap or
    touch connects the ranks of a step: then they are not windows of one step of the job.
    """
    there: Flags = windows.start_ns != NONE
    if _differ(there) or _apart(windows, there):
        return None
    far = np.iinfo(np.int64)
    first = np.where(there, windows.start_ns, far.max).min(axis=0, initial=far.max)
    last = np.where(there, windows.start_ns + windows.length_ns, far.min).max(axis=0, initial=far.min)
    lasts = np.where(there.any(axis=0), last - np.minimum(first, last), 0).sum(axis=-1)
    late = np.where(there, windows.start_ns - first, 0)
    unrecorded = np.where(there, np.clip(windows.begun_ns - first, 0, late), 0).sum(axis=-1)
    own = np.where(there, windows.length_ns, 0).sum(axis=-1)
    lacks = np.where(there.any(axis=-1), lasts - own, 0)
    return JobStep(step_ns=lasts, start_of_recording_ns=unrecorded, outside_ns=lacks - unrecorded)


def longest_window(window_ns: Ints, recorded: Flags) -> JobStep:
    """Return the longest window of any rank as the step of the job, where the ranks' windows cannot be put together.

    `window_ns` has the shape (rank, step); what a rank's window lacks of the longest is `outside`.
    """
    own = np.where(recorded, window_ns, 0)
    longest = own.max(axis=0, initial=0)
    lacks = np.where(recorded, longest - own, 0)
    return JobStep(step_ns=longest, start_of_recording_ns=np.zeros_like(lacks), outside_ns=lacks)


def _differ(there: Flags) -> bool:
    """Return whether ranks have different numbers of pieces of a step that both have."""
    pieces = there.sum(axis=-1)
    return bool(((pieces > 0) & (pieces != pieces.max(axis=0, initial=0))).any())


def _apart(windows: AlignedWindows, there: Flags) -> bool:
    """Return whether the windows of some step leave a time in between that none of them covers."""
    far = np.iinfo(np.int64).max
    order = np.argsort(np.where(there, windows.start_ns, far), axis=0, kind="stable")
    start = np.take_along_axis(windows.start_ns, order, axis=0)
    ends = np.take_along_axis(np.where(there, windows.start_ns + windows.length_ns, NONE), order, axis=0)
    known: Flags = np.take_along_axis(there, order, axis=0)
    reached = np.maximum.accumulate(ends, axis=0)
    return bool((known[1:] & (start[1:] > reached[:-1])).any())


def main_figures(ranks: Mapping[int, RankWindows], cross_rank: CrossRank) -> StepFigures:
    """Return what main figures are of: the complete steps of all ranks, or their whole recordings without any."""
    steps = step_figures(ranks, cross_rank)
    return steps if steps.recorded.any() else recording_figures(ranks, cross_rank)


def step_figures(ranks: Mapping[int, RankWindows], cross_rank: CrossRank) -> StepFigures:
    """Return the complete steps of all ranks."""
    chosen = {
        rank: [(step, figures) for step, figures in own.steps if step.complete and step.window is not None]
        for rank, own in ranks.items()
    }
    labels = {rank: _labels([step.step for step, _ in own]) for rank, own in chosen.items()}
    steps = sorted({label for each in labels.values() for label in each})
    column = {label: at for at, label in enumerate(steps)}
    places = {rank: [column[label] for label in each] for rank, each in labels.items()}
    pieces = {rank: [[step.window] for step, _ in own if step.window] for rank, own in chosen.items()}
    begun = {rank: _begun(ranks[rank].recordings, [own for (own,) in each]) for rank, each in pieces.items()}
    return _figures(
        {rank: [figures for _, figures in own] for rank, own in chosen.items()},
        places, tuple(steps), _aligned(pieces, begun, places, len(steps), cross_rank),
    )  # fmt: skip


def recording_figures(ranks: Mapping[int, RankWindows], cross_rank: CrossRank) -> StepFigures:
    """Return the whole recordings of all ranks that have times, as one column."""
    timed = {rank: own for rank, own in ranks.items() if own.whole.window_ns}
    pieces = {rank: [own.recordings] for rank, own in timed.items()}
    begun = {rank: [[start for start, _ in own.recordings]] for rank, own in timed.items()}
    places = {rank: [0] for rank in timed}
    return _figures(
        {rank: [own.whole] for rank, own in timed.items()},
        places,
        (WHOLE,),
        _aligned(pieces, begun, places, 1, cross_rank),
    )


def _labels(steps: Sequence[int]) -> list[tuple[int, int]]:
    """Label the steps of a rank; several of its recordings may use the same step numbers."""
    seen: dict[int, int] = {}
    labels = []
    for step in steps:
        labels.append((step, seen.get(step, 0)))
        seen[step] = labels[-1][1] + 1
    return labels


def _begun(recordings: Sequence[Window], windows: Sequence[Window]) -> list[list[int]]:
    """Return for each window the start of the first span of the recording that it lies in."""
    starts, ends = (np.array([each[side] for each in recordings], np.int64) for side in (0, 1))
    at = np.searchsorted(ends, np.array([start for start, _ in windows], np.int64))
    return [[each] for each in starts[np.minimum(at, len(recordings) - 1)].tolist()] if len(recordings) else []


def _figures(
    breakdowns: Mapping[int, Sequence[Breakdown]],
    places: Mapping[int, Sequence[int]],
    steps: tuple[tuple[int, int], ...],
    windows: AlignedWindows | None,
) -> StepFigures:
    """Return the table whose rank `rank` has the breakdowns in the columns `places[rank]`."""
    shape = len(breakdowns), len(steps)
    recorded = np.zeros(shape, np.bool_)
    figures = {name: np.full(shape, NONE, np.int64) for name in FIGURES}
    causes = {cause: np.zeros(shape, np.int64) for cause in CAUSES}
    idle_causes = {cause: np.zeros(shape, np.int64) for cause in IDLE_CAUSES}
    for row, (rank, own) in enumerate(breakdowns.items()):
        columns = np.array(places[rank], np.int64)
        recorded[row, columns] = True
        for name in FIGURES:
            values = [getattr(each, name) for each in own]
            figures[name][row, columns] = [NONE if value is None else value for value in values]
        for cause in {cause for each in own for cause in each.causes}:
            causes[cause][row, columns] = [each.causes.get(cause, 0) for each in own]
        for cause in {cause for each in own for cause in each.idle_causes}:
            idle_causes[cause][row, columns] = [each.idle_causes.get(cause, 0) for each in own]
    return StepFigures(
        ranks=tuple(breakdowns),
        steps=steps,
        recorded=recorded,
        figures=figures,
        causes=causes,
        idle_causes=idle_causes,
        windows=windows,
    )


def _aligned(
    pieces: Mapping[int, Sequence[Sequence[Window]]],
    begun: Mapping[int, Sequence[Sequence[int]]],
    places: Mapping[int, Sequence[int]],
    columns: int,
    cross_rank: CrossRank,
) -> AlignedWindows | None:
    """Return the windows on the common clock; None where the ranks' clocks cannot be aligned."""
    ranks = [rank for rank, own in pieces.items() if own]
    if len(ranks) > 1 and (cross_rank.clock_set or not cross_rank.clocks.comparable(ranks)):
        return None
    most = max((len(each) for own in pieces.values() for each in own), default=1)
    shape = len(pieces), columns, most
    start, length, first = (np.full(shape, NONE, np.int64) for _ in range(3))
    for row, (rank, own) in enumerate(pieces.items()):
        column = [at for at, each in zip(places[rank], own, strict=True) for _ in each]
        piece = [at for each in own for at in range(len(each))]
        bounds = np.array([window for each in own for window in each], np.int64).reshape(-1, 2)
        began = np.array([at for each in begun[rank] for at in each], np.int64)
        start[row, column, piece] = _on_common_clock(cross_rank, rank, bounds[:, 0])
        first[row, column, piece] = _on_common_clock(cross_rank, rank, began)
        length[row, column, piece] = bounds[:, 1] - bounds[:, 0]
    return AlignedWindows(start_ns=start, length_ns=length, begun_ns=first)


def _on_common_clock(cross_rank: CrossRank, rank: int, times_ns: Ints) -> Ints:
    aligned: Ints = np.rint(cross_rank.clocks.aligned(rank, times_ns)).astype(np.int64)
    return aligned


def step_table(
    run: Run,
    found: StepFigures,
    ranks: Mapping[int, RankWindows],
    cross_rank: CrossRank,
    exposed: Mapping[int, ExposedShares],
) -> StepTable:
    """Add to complete steps, or to whole recordings, the calls that they belong to."""
    whole = found.steps == (WHOLE,)
    blame = np.full(found.recorded.shape, NONE, np.int64)
    shares, calls = [], []
    for row, rank in enumerate(found.ranks):
        windows: list[tuple[Window, int]] = [(window, 0) for window in ranks[rank].recordings]
        places: Places | None = None
        if not whole:
            chosen = [step for step, _ in ranks[rank].steps if step.complete and step.window is not None]
            column = {label: at for at, label in enumerate(found.steps)}
            at = [column[label] for label in _labels([step.step for step in chosen])]
            windows = [(step.window or (0, 0), place) for step, place in zip(chosen, at, strict=True)]
            places = {(step.recording, step.step): place for step, place in zip(chosen, at, strict=True)}
        communication = exposed[rank]
        shares.append(communication.within(windows))
        columns = _columns(run.ranks[rank], places)
        launched = np.flatnonzero(columns >= 0)
        once = np.ones(launched.size, np.int64)
        calls.append(Shares.of(communication.kinds, communication.kind_of[launched], columns[launched], once))
        if cross_rank.splits or cross_rank.uneven:
            blame[row] = np.where(found.recorded[row], _blame(cross_rank, rank, columns, len(found.steps)), NONE)
    figures = {**found.figures, "blame_ns": blame}
    return StepTable(
        ranks=found.ranks, steps=found.steps, recorded=found.recorded, figures=figures, causes=found.causes,
        idle_causes=found.idle_causes, windows=found.windows, exposed_ns=tuple(shares), calls=tuple(calls),
    )  # fmt: skip


def _blame(cross_rank: CrossRank, rank: int, columns: Ints, count: int) -> Ints:
    """Return the rank's leads over the second-latest rank, summed over the calls of each column."""
    blame = np.zeros(count, np.float64)
    for split in cross_rank.splits:
        if rank in split.block.ranks:
            row = split.block.ranks.index(rank)
            late = split.last == row
            at = columns[split.block.rows[row, late]]
            np.add.at(blame, at[at >= 0], split.lead_ns[late][at >= 0])
    return np.rint(blame).astype(np.int64)


def _columns(timeline: RankTimeline, places: Places | None) -> Ints:
    """Return for each call the column of the step that launched it, -1 for none; without `places` always column 0."""
    calls = timeline.collectives
    if places is None:
        return np.zeros(size(calls), np.int64)
    keys = zip(calls.recording.tolist(), calls.step.tolist(), strict=True)
    return np.fromiter((places.get(key, -1) for key in keys), np.int64, size(calls))
