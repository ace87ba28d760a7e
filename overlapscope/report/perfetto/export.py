"""A run as one trace for ui.perfetto.dev: every rank a process, clocks corrected, what was found out as tracks."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.across_ranks import Across, Transfers, across
from overlapscope.analysis.breakdown import Coverage
from overlapscope.analysis.clock_offsets import Clocks
from overlapscope.analysis.critical_path import Chosen, follow
from overlapscope.analysis.exposed_causes import Causes, causes_of
from overlapscope.analysis.steps import StepWindow, step_windows
from overlapscope.ingest.formats.perfetto_export import SCHEMA
from overlapscope.report.perfetto import tracks
from overlapscope.report.perfetto.events import EventWriter, Slices, joined
from overlapscope.timeline.columns import NONE, size
from overlapscope.timeline.intervals import Intervals, intersection, union
from overlapscope.timeline.run import RankTimeline, Run

PATH_PROCESS: Final = 1
FIRST_RANK_PROCESS: Final = 2
"""Numbers of processes; viewers treat 0 in their own ways."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What to export; None is everything."""

    ranks: frozenset[int] | None = None
    steps: frozenset[int] | None = None
    window: tuple[int, int] | None = None
    """What has a part in [start, end) of the common clock."""


class _Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What the tracks are made of."""

    windows: Mapping[int, Sequence[StepWindow]]
    coverage: Mapping[int, Coverage]
    together: Across
    transfers: Mapping[int, Transfers]
    causes: Mapping[int, Causes]
    paths: Chosen


class PerfettoTrace(msgspec.Struct):
    """An export; `pieces` gives its text, after which `events` is how many events it holds."""

    run: Run
    choice: Choice
    version: str
    base_ns: int = 0
    events: int = 0
    together: Across | None = None
    """What `across` gives for the run, where the caller has it already."""

    @property
    def ranks(self) -> list[int]:
        """The ranks in it."""
        chosen = self.choice.ranks
        return [rank for rank in self.run.ranks if chosen is None or rank in chosen]

    @property
    def is_empty(self) -> bool:
        """Return whether nothing that ran has times."""
        timelines = [self.run.ranks[rank] for rank in self.ranks]
        return not any(each.num_spans or size(each.annotations) for each in timelines)

    def pieces(self) -> Iterator[str]:
        """Yield the text, piece by piece."""
        figures = _figures(self.run, self.choice, self.together)
        clocks = figures.together.clocks
        starts = [_earliest(self.run.ranks[rank], rank, clocks) for rank in self.ranks]
        starts += [_on_common(clocks, each.rank, each.start_ns) for each in figures.paths.paths]
        self.base_ns = min(starts, default=0)
        writer = EventWriter(base_ns=self.base_ns)
        head = {
            "otherData": {
                "schema": SCHEMA,
                "version": self.version,
                "base_time_ns": self.base_ns,
                "clock": "the middle one of the ranks', counted from base_time_ns; the others' times are moved to it",
                "clock_offset_ns": {str(rank): round(offset) for rank, offset in clocks.offset_ns.items()},
            }
        }
        yield from joined(self._events(writer, figures), head)
        self.events = writer.events

    def _events(self, writer: EventWriter, figures: _Figures) -> Iterator[str]:
        if figures.paths.paths:
            yield writer.process(PATH_PROCESS, "critical path")
            yield from writer.slices(
                PATH_PROCESS, tracks.critical_paths(self.run, figures.paths.paths, figures.together.clocks)
            )
        for rank in self.ranks:
            yield from _rank_events(writer, self.run.ranks[rank], rank, figures, self.choice)


def _figures(run: Run, choice: Choice, known: Across | None) -> _Figures:
    windows = {rank: step_windows(timeline) for rank, timeline in run.ranks.items()}
    coverage = {rank: Coverage.of(timeline.spans) for rank, timeline in run.ranks.items()}
    together = known or across(run)
    transfers = together.transfers(run)
    return _Figures(
        windows=windows,
        coverage=coverage,
        together=together,
        transfers=transfers,
        causes=causes_of(run, together, coverage),
        paths=follow(run, windows, together, _steps(windows, choice, together.clocks)),
    )


def _own_window(window: tuple[int, int], clocks: Clocks, rank: int) -> Intervals:
    """Give a window of the common clock as a rank's own clock shows it, to about a microsecond of a drifting clock."""
    edges = np.array(window, np.int64)
    start, end = 2 * edges - tracks.on_common_clock(clocks, rank, edges)
    return Intervals(np.array([start]), np.array([end]))


def _meets(choice: Choice, clocks: Clocks, rank: int, window: tuple[int, int]) -> bool:
    if choice.window is None:
        return True
    start, end = tracks.on_common_clock(clocks, rank, np.array(window, np.int64)).tolist()
    return bool(start < choice.window[1] and end > choice.window[0])


def _steps(windows: Mapping[int, Sequence[StepWindow]], choice: Choice, clocks: Clocks) -> frozenset[int] | None:
    """Return the steps whose paths are followed: those chosen, of a window those with a part in it."""
    if choice.window is None:
        return choice.steps
    inside = {
        each.step
        for rank, own in windows.items()
        for each in own
        if each.window is not None and _meets(choice, clocks, rank, each.window)
    }
    return frozenset(inside if choice.steps is None else inside & choice.steps)


def _on_common(clocks: Clocks, rank: int, time_ns: int) -> int:
    return int(tracks.on_common_clock(clocks, rank, np.array([time_ns], np.int64))[0])


def _earliest(timeline: RankTimeline, rank: int, clocks: Clocks) -> int:
    starts = [timeline.spans.start_ns, timeline.steps.start_ns, timeline.annotations.start_ns]
    starts += [timeline.telemetry.time_ns[timeline.telemetry.time_ns != NONE]]
    first = [int(each.min()) for each in starts if each.size]
    return min((_on_common(clocks, rank, each) for each in first), default=np.iinfo(np.int64).max)


def _rank_events(
    writer: EventWriter, timeline: RankTimeline, rank: int, figures: _Figures, choice: Choice
) -> Iterator[str]:
    process = FIRST_RANK_PROCESS + rank
    clocks, steps = figures.together.clocks, choice.steps
    windows = [
        each
        for each in figures.windows[rank]
        if each.window is not None
        and (steps is None or each.step in steps)
        and _meets(choice, clocks, rank, each.window)
    ]
    exposed = None if steps is None else _union(windows)
    reach = None if steps is None else _reach(timeline, windows, steps)
    if choice.window is not None:
        own = _own_window(choice.window, clocks, rank)
        reach = own if reach is None else intersection(reach, own)
        exposed = own if exposed is None else intersection(exposed, own)

    def on_clock(shown: Slices) -> Slices:
        start, end = (tracks.on_common_clock(clocks, rank, times) for times in (shown.start_ns, shown.end_ns))
        return replace(shown, start_ns=start, end_ns=end)

    yield writer.process(process, f"rank {rank}")
    for shown in (
        tracks.steps_of(windows, figures.coverage[rank]),
        tracks.why_exposed(figures.causes[rank], exposed),
        *tracks.lanes(timeline, figures.transfers[rank], figures.causes[rank], reach, steps),
        *tracks.annotations(timeline, reach),
    ):
        yield from writer.slices(process, on_clock(shown))
    yield from _counters(writer, process, timeline, rank, clocks, reach)


def _counters(
    writer: EventWriter, process: int, timeline: RankTimeline, rank: int, clocks: Clocks, reach: Intervals | None
) -> Iterator[str]:
    readings = timeline.telemetry
    inside = (readings.time_ns != NONE) & (readings.name >= 0)
    inside &= tracks.touches(readings.time_ns, readings.time_ns, reach)
    for code in np.unique(readings.name[inside]).tolist():
        rows = inside & (readings.name == code)
        times = tracks.on_common_clock(clocks, rank, readings.time_ns[rows])
        yield from writer.counter(process, timeline.names[code], times.tolist(), readings.value[rows].tolist())


def _reach(timeline: RankTimeline, windows: Sequence[StepWindow], steps: frozenset[int]) -> Intervals:
    """Return the chosen steps' time: on the device, and on the host, which is ahead of it."""
    chosen = np.isin(timeline.steps.step, list(steps))
    return union(_union(windows), (timeline.steps.start_ns[chosen], timeline.steps.end_ns[chosen]))


def _union(windows: Sequence[StepWindow]) -> Intervals:
    shown = [each.window for each in windows if each.window is not None]
    return union((np.array([start for start, _ in shown], np.int64), np.array([end for _, end in shown], np.int64)))
