"""The data of a run's timeline: the states of all ranks, and the tables of single ranks when they are needed.

A small run is read and analysed completely before anything is shown. For a large run directory the states are shown
first; results that need all tables (causes, matched calls, clocks that are not cached) follow when computed.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock, Thread
from typing import Final, Protocol, Self

import msgspec
import numpy as np

from overlapscope.analysis.common.cause_table import CAUSES
from overlapscope.analysis.cross_rank.across_ranks import CrossRank, Transfers
from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.exposure.exposed_causes import Causes, causes_of
from overlapscope.analysis.graph.explained import RunChains
from overlapscope.analysis.graph.step_paths import follow_paths
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.occupancy import Occupancy
from overlapscope.analysis.per_rank.steps import StepWindow, step_windows, whole_windows
from overlapscope.analysis.stragglers.shared_cores import waits_in_turns
from overlapscope.errors import InputError, OverlapScopeError
from overlapscope.report.perfetto.call_args import CallArguments
from overlapscope.report.perfetto.tracks import lane_name
from overlapscope.timeline.columns import NONE, Ints, size
from overlapscope.timeline.run import RankTimeline, Run
from overlapscope.timeline.store.load_save import load_rank
from overlapscope.timeline.store.manifest import RankEntry
from overlapscope_dashboards.runs.open_run import OpenRun
from overlapscope_dashboards.runs.recent import RecentCache
from overlapscope_dashboards.timeline.cache import RankStates, States, load_states, save_states
from overlapscope_dashboards.timeline.call_links import CallLinks
from overlapscope_dashboards.timeline.coarse_sums import CoarseSums
from overlapscope_dashboards.timeline.heat_map import DOMINATING, map_cells, map_rows, time_by_row
from overlapscope_dashboards.timeline.lanes import MAX_RANKS, RankLanes, lanes_of
from overlapscope_dashboards.timeline.tracks import HostTracks, Track, host_tracks, path_track
from overlapscope_dashboards.timeline.window import TimeWindow, edges

LARGE: Final = 2_000_000
"""Number of spans from which a run is large: its states are shown before the rest is read."""
OVERVIEW_CELLS: Final = 500
"""Cells of a row that shows the whole run; about so many."""
MAX_CACHED_RANKS: Final = 2 * MAX_RANKS
"""Ranks whose tables, lanes and call figures are cached: those of two views."""


class CrossRankFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Results that need the tables of all ranks."""

    run: Run
    links: CallLinks
    transfers: Mapping[int, Transfers]
    causes: Mapping[int, Causes]


class RunOverview(msgspec.Struct, frozen=True, kw_only=True):
    """The whole run as one row."""

    cells: list[int]
    """The state (`STATES`) in which all ranks together spent most of each cell."""
    cell_ns: int


class AlignedStates(msgspec.Struct, frozen=True, kw_only=True):
    """The states of all ranks on one clock, as far as known. Immutable except for the lane cache."""

    clocks: Clocks | None
    """None while not known: then each rank is on its own clock."""
    occupancy: tuple[Occupancy, ...]
    coarse: CoarseSums | None
    origin_ns: int
    whole: TimeWindow
    lanes: RecentCache[RankLanes]
    """Cached lanes of single ranks."""
    hosts: RecentCache[HostTracks]
    """Cached host threads of single ranks."""

    @classmethod
    def of(cls, kept: RankStates) -> Self:
        """Return the aligned states of cached or computed states."""
        begin, length = kept.reach_ns
        return cls(
            clocks=kept.clocks,
            occupancy=tuple(Occupancy(*each) for each in kept.states.values()),
            coarse=kept.coarse,
            origin_ns=begin,
            whole=TimeWindow(start_ns=0, end_ns=length),
            lanes=RecentCache(MAX_CACHED_RANKS),
            hosts=RecentCache(MAX_RANKS),
        )

    def bins(self, window: TimeWindow, pixels: int) -> Ints:
        """Return the bin edges of a view, relative to the run's start."""
        return edges(window, pixels, self.coarse.cell_ns if self.coarse else 0)

    def spent(self, bins: Ints) -> Ints:
        """Return the exact time by heat map row, state and bin."""
        found = self.coarse.over(bins) if self.coarse else None
        if found is not None:
            return found
        return time_by_row(self.occupancy, map_rows(len(self.occupancy)), bins + self.origin_ns)


class TimelineInput(Protocol):
    """What a timeline is made from: an open run, or one in memory, which has neither folder nor entries."""

    @property
    def folder(self) -> Path | None:
        """The run directory."""

    @property
    def entries(self) -> Sequence[RankEntry]:
        """Its ranks."""

    @property
    def run(self) -> Run:
        """The tables."""

    @property
    def cross_rank(self) -> CrossRank:
        """Matched collectives and aligned clocks."""

    @property
    def chains(self) -> RunChains:
        """The dependency graphs."""

    @property
    def revision(self) -> str:
        """Changes with the run."""


class TimelineSource:
    """The timeline of one run. Times are on the common clock, relative to the run's start where stated."""

    def __init__(self, opened: TimelineInput) -> None:
        self._opened, self._lock = opened, Lock()
        self._tables = RecentCache[RankTimeline](MAX_CACHED_RANKS)
        self._words = RecentCache[CallArguments](MAX_CACHED_RANKS)
        self._thread: Thread | None = None
        self._following: Thread | None = None
        self.path: Track | None = None
        """The critical path; None while it is not known."""
        self.no_path = ""
        """Why there is none; empty if there is one, or it is not known."""
        self.figures: CrossRankFigures | None = None
        self.problem = ""
        """Why `figures` cannot be computed; empty if they can."""
        self.entries = {entry.rank: entry for entry in opened.entries}
        self.large = opened.folder is not None and sum(each.spans for each in self.entries.values()) >= LARGE
        kept = self._of_large() if self.large else self._of_small()
        if not kept.states:
            raise InputError("no span times were recorded, so there is no timeline")
        self.ranks = tuple(kept.states)
        self._overview: tuple[AlignedStates, RunOverview] | None = None
        self.snapshot = AlignedStates.of(kept)
        """Read it once for values that must be consistent: it is replaced when clocks become known."""

    def _of_small(self) -> RankStates:
        run, clocks = self._opened.run, self._opened.cross_rank.clocks
        self.figures = self._compute_figures()
        timelines = {rank: each for rank, each in run.ranks.items() if each.num_spans}
        made = {rank: Occupancy.of(Coverage.of(each.spans), whole_windows(each)) for rank, each in timelines.items()}
        return RankStates(states=_states(made, clocks), clocks=clocks, coarse=None)

    def _of_large(self) -> RankStates:
        assert self._opened.folder is not None
        return load_states(self._opened.folder, tuple(self.entries.values()), self._opened.revision)

    def _align(self, clocks: Clocks) -> None:
        """Convert the states from each rank's own clock to the common one, and cache them."""
        assert self._opened.folder is not None
        states = _states(dict(zip(self.ranks, self.snapshot.occupancy, strict=True)), clocks)
        self.snapshot = AlignedStates.of(save_states(self._opened.folder, states, clocks, self._opened.revision))

    @property
    def clocks(self) -> Clocks | None:
        """The clocks; None while not known."""
        return self.snapshot.clocks

    @property
    def origin_ns(self) -> int:
        """The run's start on the common clock."""
        return self.snapshot.origin_ns

    @property
    def whole(self) -> TimeWindow:
        """The window of the whole run."""
        return self.snapshot.whole

    @property
    def overview(self) -> "RunOverview":
        """The whole run as one row of cells, computed once for each snapshot."""
        snapshot = self.snapshot
        if self._overview is None or self._overview[0] is not snapshot:
            bins = snapshot.bins(snapshot.whole, OVERVIEW_CELLS)
            cells = map_cells(snapshot.spent(bins).sum(axis=0, keepdims=True), DOMINATING)[0]
            self._overview = snapshot, RunOverview(cells=cells.tolist(), cell_ns=int(bins[1] - bins[0]))
        return self._overview[1]

    @property
    def is_working(self) -> bool:
        """Return whether `figures` are being computed."""
        return self._thread is not None and self.figures is None and not self.problem

    @property
    def version(self) -> str:
        """Changes whenever the drawn data change."""
        known = (self.clocks is not None, self.figures is not None, bool(self.problem), self.path is not None)
        return f"{self._opened.revision}-{known}"

    @property
    def is_following(self) -> bool:
        """Return whether the critical path is being followed."""
        return self._following is not None and self.path is None and not self.no_path

    def start_path(self) -> None:
        """Start following the critical path in a background thread, once."""
        with self._lock:
            if self._following is None:
                self._following = Thread(target=self.follow_path, daemon=True)
                self._following.start()

    def follow_path(self) -> None:
        """Follow the critical path: set `path` or `no_path`, whatever happens, because the page polls until then."""
        problem = "an internal error, see the terminal that runs the server"
        try:
            run, cross_rank, chains = self._opened.run, self._opened.cross_rank, self._opened.chains
            windows = {rank: step_windows(timeline) for rank, timeline in run.ranks.items()}
            found = follow_paths(run, windows, cross_rank, chains.graphs)
            problem = found.reason or ""
            if found.paths:
                self.path = path_track(run, found, chains.origin_ns)
        except OverlapScopeError as error:
            problem = str(error)
        finally:
            self.no_path = problem

    def start_analysis(self) -> None:
        """Start computing `figures` in a background thread, once."""
        with self._lock:
            if self.figures is None and self._thread is None:
                self._thread = Thread(target=self._analyse, daemon=True)
                self._thread.start()

    def _analyse(self) -> None:
        """Set `figures` or `problem`, whatever happens, because the page polls until then."""
        problem = "an internal error, see the terminal that runs the server"
        try:
            clocks = self._opened.cross_rank.clocks
            if self.snapshot.clocks is None:
                self._align(clocks)
            self.figures = self._compute_figures()
            problem = ""
        except OverlapScopeError as error:
            problem = str(error)
        finally:
            self.problem = problem

    def _compute_figures(self) -> CrossRankFigures:
        run, cross_rank = self._opened.run, self._opened.cross_rank
        coverage = {rank: Coverage.of(timeline.spans) for rank, timeline in run.ranks.items()}
        return CrossRankFigures(
            run=run,
            links=CallLinks(run, cross_rank),
            transfers=cross_rank.transfers(run),
            causes=causes_of(run, cross_rank, coverage, turns=waits_in_turns(run, coverage, cross_rank.clocks)),
        )

    def tables(self, rank: int) -> RankTimeline:
        """Return a rank's tables, read on first use; raises InputError where they cannot be read."""
        if self.figures is not None:
            if rank not in self.figures.run.ranks:
                raise InputError(f"rank {rank} cannot be read")
            return self.figures.run.ranks[rank]
        folder = self._opened.folder
        assert folder is not None
        return self._tables.get(rank, lambda: load_rank(folder, self.entries[rank]))

    def aligned(self, rank: int, times_ns: Ints) -> Ints:
        """Return times of a rank on the common clock, relative to the run's start."""
        return _to_common_clock(self.snapshot, rank, times_ns)

    def lanes(self, rank: int) -> RankLanes:
        """Return a rank's lanes, with times relative to the run's start."""
        snapshot = self.snapshot

        def make() -> RankLanes:
            timeline = self.tables(rank)
            labels = [lane_name(timeline, lane).partition(" (")[0] for lane in range(size(timeline.lanes))]
            spans = timeline.spans
            return lanes_of(
                timeline,
                _to_common_clock(snapshot, rank, spans.start_ns),
                _to_common_clock(snapshot, rank, spans.end_ns),
                labels,
            )

        return snapshot.lanes.get(rank, make)

    def host(self, rank: int) -> HostTracks:
        """Return a rank's host threads, with times relative to the run's start."""
        snapshot = self.snapshot
        return snapshot.hosts.get(
            rank,
            lambda: host_tracks(self.tables(rank), lambda times_ns: _to_common_clock(snapshot, rank, times_ns)),
        )

    def causes(self, rank: int, window: TimeWindow) -> Sequence[tuple[str, Ints, Ints]]:
        """Return the exposed intervals of a rank in a window as (cause, starts, ends), relative to the run's start."""
        found = []
        if self.figures is not None:
            for cause in CAUSES:
                times = self.figures.causes[rank].busy[cause].intervals
                start, end = self.aligned(rank, times.starts), self.aligned(rank, times.ends)
                inside = (end > window.start_ns) & (start < window.end_ns)
                if inside.any():
                    found.append((cause, start[inside], end[inside]))
        return found

    def call_figures(self, rank: int, call: int) -> Mapping[str, object]:
        """Return the figures of one collective by name; empty before `figures` are computed."""
        figures = self.figures
        if figures is None:
            return {}
        words = self._words.get(
            rank, lambda: CallArguments(figures.run.ranks[rank], figures.transfers[rank], figures.causes[rank])
        )
        return words.told(call)

    def steps(self, rank: int) -> list[tuple[StepWindow, int, int]]:
        """Return a rank's steps with start and end relative to the run's start."""
        shown = [(each, each.window) for each in step_windows(self.tables(rank)) if each.window is not None]
        return [(each, *self.aligned(rank, np.array(window)).tolist()) for each, window in shown]

    def call_times(self, ranks: Sequence[int], rows: Sequence[int]) -> tuple[Ints, Ints]:
        """Return starts and ends of a call on its ranks, from the run's start; NONE where a rank has no times."""
        assert self.figures is not None
        starts, ends = [], []
        for rank, row in zip(ranks, rows, strict=True):
            calls = self.figures.run.ranks[rank].collectives
            pair = np.array([calls.start_ns[row], calls.end_ns[row]])
            start, end = (NONE, NONE) if NONE in pair else self.aligned(rank, pair).tolist()
            starts.append(start)
            ends.append(end)
        return np.array(starts, np.int64), np.array(ends, np.int64)


def _states(occupancy: Mapping[int, Occupancy], clocks: Clocks) -> States:
    """Return the states of each rank converted from its own clock to the common one."""
    return {rank: (clocks.aligned_ns(rank, each.at_ns), each.state) for rank, each in occupancy.items()}


def _to_common_clock(snapshot: AlignedStates, rank: int, times_ns: Ints) -> Ints:
    return (snapshot.clocks or Clocks()).aligned_ns(rank, times_ns) - snapshot.origin_ns


def source_of(opened: OpenRun) -> TimelineSource:
    """Return the timeline of an open run, created once; raises InputError where it has none."""
    return opened.once("timeline", lambda: TimelineSource(opened))
