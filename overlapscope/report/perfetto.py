"""A run as one trace for ui.perfetto.dev: every rank a process, clocks corrected, what was found out as tracks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from overlapscope.analysis.across import Across, Transfers, across
from overlapscope.analysis.breakdown import Coverage
from overlapscope.analysis.causes import Causes, causes_of
from overlapscope.analysis.clocks import Clocks
from overlapscope.analysis.critical_path import Chosen, follow
from overlapscope.analysis.steps import StepWindow, step_windows
from overlapscope.ingest.perfetto_export import SCHEMA
from overlapscope.report import perfetto_tracks as tracks
from overlapscope.report.trace_events import EventWriter, Slices, joined
from overlapscope.timeline.columns import NONE, size
from overlapscope.timeline.intervals import Intervals, union
from overlapscope.timeline.run import RankTimeline, Run

PATH_PROCESS: Final = 1
FIRST_RANK_PROCESS: Final = 2
"""Numbers of processes; viewers treat 0 in their own ways."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What to export; None is everything."""

    ranks: frozenset[int] | None = None
    steps: frozenset[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figures:
    """What the tracks are made of."""

    windows: Mapping[int, Sequence[StepWindow]]
    coverage: Mapping[int, Coverage]
    together: Across
    transfers: Mapping[int, Transfers]
    causes: Mapping[int, Causes]
    paths: Chosen


@dataclass(slots=True)
class PerfettoTrace:
    """An export; `pieces` gives its text, after which `events` is how many events it holds."""

    run: Run
    choice: Choice
    version: str
    base_ns: int = 0
    events: int = 0

    @property
    def ranks(self) -> list[int]:
        """The ranks in it."""
        chosen = self.choice.ranks
        return [rank for rank in self.run.ranks if chosen is None or rank in chosen]

    @property
    def is_empty(self) -> bool:
        """Whether nothing that ran has times."""
        timelines = [self.run.ranks[rank] for rank in self.ranks]
        return not any(size(each.spans) or size(each.annotations) for each in timelines)

    def pieces(self) -> Iterator[str]:
        """Give the text, piece by piece."""
        figures = _figures(self.run, self.choice)
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
            yield from _rank_events(writer, self.run.ranks[rank], rank, figures, self.choice.steps)


def _figures(run: Run, choice: Choice) -> _Figures:
    windows = {rank: step_windows(timeline) for rank, timeline in run.ranks.items()}
    coverage = {rank: Coverage.of(timeline.spans) for rank, timeline in run.ranks.items()}
    together = across(run)
    transfers = together.transfers(run)
    return _Figures(
        windows=windows,
        coverage=coverage,
        together=together,
        transfers=transfers,
        causes=causes_of(run, together, coverage),
        paths=follow(run, windows, together, choice.steps),
    )


def _on_common(clocks: Clocks, rank: int, time_ns: int) -> int:
    return int(tracks.on_common_clock(clocks, rank, np.array([time_ns], np.int64))[0])


def _earliest(timeline: RankTimeline, rank: int, clocks: Clocks) -> int:
    starts = [timeline.spans.start_ns, timeline.steps.start_ns, timeline.annotations.start_ns]
    starts += [timeline.telemetry.time_ns[timeline.telemetry.time_ns != NONE]]
    first = [int(each.min()) for each in starts if each.size]
    return min((_on_common(clocks, rank, each) for each in first), default=np.iinfo(np.int64).max)


def _rank_events(
    writer: EventWriter, timeline: RankTimeline, rank: int, figures: _Figures, steps: frozenset[int] | None
) -> Iterator[str]:
    process = FIRST_RANK_PROCESS + rank
    clocks = figures.together.clocks
    windows = [
        each for each in figures.windows[rank] if each.window is not None and (steps is None or each.step in steps)
    ]
    reach = None if steps is None else _reach(timeline, windows, steps)

    def on_clock(shown: Slices) -> Slices:
        start, end = (tracks.on_common_clock(clocks, rank, times) for times in (shown.start_ns, shown.end_ns))
        return replace(shown, start_ns=start, end_ns=end)

    yield writer.process(process, f"rank {rank}")
    for shown in (
        tracks.steps_of(windows, figures.coverage[rank]),
        tracks.why_exposed(figures.causes[rank], None if steps is None else windows),
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
    """Give the chosen steps' time: on the device, and on the host, which is ahead of it."""
    chosen = np.isin(timeline.steps.step, list(steps))
    shown = [each.window for each in windows if each.window is not None]
    return union(
        (np.array([start for start, _ in shown], np.int64), np.array([end for _, end in shown], np.int64)),
        (timeline.steps.start_ns[chosen], timeline.steps.end_ns[chosen]),
    )
