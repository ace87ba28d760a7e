"""Export a run as one trace for ui.perfetto.dev: one process per rank, clocks corrected, results as extra tracks."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.across_ranks import CrossRank, Transfers, match_and_align
from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.exposure.exposed_causes import Causes, causes_of
from overlapscope.analysis.graph.built_graphs import BuiltGraphs
from overlapscope.analysis.graph.step_paths import FollowedPaths, follow_paths
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.steps import StepWindow, step_windows
from overlapscope.analysis.stragglers.shared_cores import waits_in_turns
from overlapscope.ingest.formats.perfetto_export import SCHEMA
from overlapscope.report.perfetto import tracks
from overlapscope.report.perfetto.events import EventWriter, Slices, join_events
from overlapscope.report.perfetto.rank_flows import ArrowEnds, arrows_between_ranks
from overlapscope.timeline.columns import NONE, size
from overlapscope.timeline.intervals import Intervals, intersection, union
from overlapscope.timeline.run import RankTimeline, Run

PATH_PROCESS: Final = 1
FIRST_RANK_PROCESS: Final = 2
"""Process ids; 0 is avoided, as viewers treat it differently."""


class ExportSelection(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a run to export; None means everything."""

    ranks: frozenset[int] | None = None
    steps: frozenset[int] | None = None
    window: tuple[int, int] | None = None
    """Only what overlaps [start, end) on the common clock, in nanoseconds."""


class _Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The results of the analysis that the tracks show."""

    windows: Mapping[int, Sequence[StepWindow]]
    coverage: Mapping[int, Coverage]
    together: CrossRank
    transfers: Mapping[int, Transfers]
    causes: Mapping[int, Causes]
    paths: FollowedPaths
    on_cpu: bool
    """Whether no device computes: causes have other words then."""


class PerfettoTrace(msgspec.Struct):
    """An export of a run; after `pieces` has yielded its text, `events` is the number of events in it."""

    run: Run
    choice: ExportSelection
    version: str
    base_ns: int = 0
    events: int = 0
    together: CrossRank | None = None
    """The result of `across` for the run, if the caller has it already."""

    @property
    def ranks(self) -> list[int]:
        """Return the exported ranks."""
        chosen = self.choice.ranks
        return [rank for rank in self.run.ranks if chosen is None or rank in chosen]

    @property
    def is_empty(self) -> bool:
        """Return whether the exported ranks have neither spans nor annotations."""
        timelines = [self.run.ranks[rank] for rank in self.ranks]
        return not any(each.num_spans or size(each.annotations) for each in timelines)

    def pieces(self) -> Iterator[str]:
        """Yield the JSON text piece by piece."""
        figures = _figures(self.run, self.choice, self.together)
        clocks = figures.together.clocks
        starts = [_earliest(self.run.ranks[rank], rank, clocks) for rank in self.ranks]
        starts += [each.start_ns for each in figures.paths.paths]
        self.base_ns = min(starts, default=0)
        writer = EventWriter(base_ns=self.base_ns)
        head = {
            "otherData": {
                "schema": SCHEMA,
                "version": self.version,
                "base_time_ns": self.base_ns,
                "clock": "the reference rank's, relative to base_time_ns; times of other ranks are shifted to it",
                "clock_offset_ns": {str(rank): round(offset) for rank, offset in clocks.offset_ns.items()},
            }
        }
        yield from join_events(self._events(writer, figures), head)
        self.events = writer.events

    def _events(self, writer: EventWriter, figures: _Figures) -> Iterator[str]:
        if figures.paths.paths:
            yield writer.process(PATH_PROCESS, "critical path")
            for shown in tracks.critical_paths(self.run, figures.paths.paths):
                yield from writer.slices(PATH_PROCESS, shown)
        parts = {rank: _part(self.run.ranks[rank], rank, figures, self.choice) for rank in self.ranks}
        spans, processes = {rank: part.spans for rank, part in parts.items()}, {rank: _process(rank) for rank in parts}
        arrows = arrows_between_ranks(self.run, figures.together, spans, processes)
        for rank, part in parts.items():
            yield from _rank_events(writer, self.run.ranks[rank], rank, figures, part, arrows.get(rank))


def _figures(run: Run, choice: ExportSelection, known: CrossRank | None) -> _Figures:
    windows = {rank: step_windows(timeline) for rank, timeline in run.ranks.items()}
    coverage = {rank: Coverage.of(timeline.spans) for rank, timeline in run.ranks.items()}
    together = known or match_and_align(run)
    transfers, graphs = together.transfers(run), BuiltGraphs(run)
    return _Figures(
        windows=windows,
        coverage=coverage,
        together=together,
        transfers=transfers,
        causes=causes_of(run, together, coverage, graphs, waits_in_turns(run, coverage, together.clocks)),
        paths=follow_paths(run, windows, together, graphs, _steps(windows, choice, together.clocks)),
        on_cpu=not any(each.has_device for each in run.ranks.values()),
    )


def _own_window(window: tuple[int, int], clocks: Clocks, rank: int) -> Intervals:
    """Return a window of the common clock on a rank's own clock, to about a microsecond if the clock drifts."""
    edges = np.array(window, np.int64)
    start, end = 2 * edges - clocks.aligned_ns(rank, edges)
    return Intervals(np.array([start]), np.array([end]))


def _overlaps(choice: ExportSelection, clocks: Clocks, rank: int, window: tuple[int, int]) -> bool:
    if choice.window is None:
        return True
    start, end = clocks.aligned_ns(rank, np.array(window, np.int64)).tolist()
    return bool(start < choice.window[1] and end > choice.window[0])


def _steps(
    windows: Mapping[int, Sequence[StepWindow]], choice: ExportSelection, clocks: Clocks
) -> frozenset[int] | None:
    """Return the steps whose critical paths are followed: the chosen ones that overlap the window; None for all."""
    if choice.window is None:
        return choice.steps
    inside = {
        each.step
        for rank, own in windows.items()
        for each in own
        if each.window is not None and _overlaps(choice, clocks, rank, each.window)
    }
    return frozenset(inside if choice.steps is None else inside & choice.steps)


def _to_common_clock(clocks: Clocks, rank: int, time_ns: int) -> int:
    return int(clocks.aligned_ns(rank, np.array([time_ns], np.int64))[0])


def _earliest(timeline: RankTimeline, rank: int, clocks: Clocks) -> int:
    tables = timeline.spans, timeline.steps, timeline.annotations, tracks.host_spans(timeline)
    starts = [each.start_ns for each in tables]
    starts += [timeline.telemetry.time_ns[timeline.telemetry.time_ns != NONE]]
    first = [int(each.min()) for each in starts if each.size]
    return min((_to_common_clock(clocks, rank, each) for each in first), default=np.iinfo(np.int64).max)


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    """What of a rank is exported, on its own clock; None is all of it."""

    windows: Sequence[StepWindow]
    exposed: Intervals | None
    reach: Intervals | None
    spans: tracks.Mask


def _part(timeline: RankTimeline, rank: int, figures: _Figures, choice: ExportSelection) -> _Part:
    clocks, steps = figures.together.clocks, choice.steps
    windows = [
        each
        for each in figures.windows[rank]
        if each.window is not None
        and (steps is None or each.step in steps)
        and _overlaps(choice, clocks, rank, each.window)
    ]
    exposed = None if steps is None else _union(windows)
    reach = None if steps is None else _selected_time(timeline, windows, steps)
    if choice.window is not None:
        own = _own_window(choice.window, clocks, rank)
        reach = own if reach is None else intersection(reach, own)
        exposed = own if exposed is None else intersection(exposed, own)
    return _Part(windows=windows, exposed=exposed, reach=reach, spans=tracks.shown_spans(timeline, reach, steps))


def _process(rank: int) -> int:
    return FIRST_RANK_PROCESS + rank


def _rank_events(
    writer: EventWriter, timeline: RankTimeline, rank: int, figures: _Figures, part: _Part, of_ranks: ArrowEnds | None
) -> Iterator[str]:
    process, clocks = _process(rank), figures.together.clocks

    def on_clock(shown: Slices) -> Slices:
        start, end = (clocks.aligned_ns(rank, times) for times in (shown.start_ns, shown.end_ns))
        return replace(shown, start_ns=start, end_ns=end)

    launches, first_arrow = tracks.Launches.of(timeline, part.spans, part.reach), process << 32
    yield writer.process(process, f"rank {rank}")
    for shown in (
        tracks.steps_of(part.windows, figures.coverage[rank]),
        tracks.why_exposed(figures.causes[rank], part.exposed, on_cpu=figures.on_cpu),
        *tracks.host_threads(timeline, launches, first_arrow),
        *tracks.lanes(timeline, figures.transfers[rank], figures.causes[rank], launches, first_arrow, of_ranks),
        *tracks.annotations(timeline, part.reach),
    ):
        yield from writer.slices(process, on_clock(shown))
    yield from _counters(writer, process, timeline, rank, clocks, part.reach)


def _counters(
    writer: EventWriter, process: int, timeline: RankTimeline, rank: int, clocks: Clocks, reach: Intervals | None
) -> Iterator[str]:
    telemetry = timeline.telemetry
    inside = (telemetry.time_ns != NONE) & (telemetry.name >= 0)
    inside &= tracks.touches(telemetry.time_ns, telemetry.time_ns, reach)
    for code in np.unique(telemetry.name[inside]).tolist():
        rows = inside & (telemetry.name == code)
        times = clocks.aligned_ns(rank, telemetry.time_ns[rows])
        yield from writer.counter(process, timeline.names[code], times.tolist(), telemetry.value[rows].tolist())


def _selected_time(timeline: RankTimeline, windows: Sequence[StepWindow], steps: frozenset[int]) -> Intervals:
    """Return the time of the chosen steps on the device and on the host, which runs ahead of the device."""
    chosen = np.isin(timeline.steps.step, list(steps))
    return union(_union(windows), (timeline.steps.start_ns[chosen], timeline.steps.end_ns[chosen]))


def _union(windows: Sequence[StepWindow]) -> Intervals:
    shown = [each.window for each in windows if each.window is not None]
    return union((np.array([start for start, _ in shown], np.int64), np.array([end for _, end in shown], np.int64)))
