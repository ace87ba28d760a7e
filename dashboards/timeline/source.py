"""What a run's timeline is drawn from: states of all ranks at once, tables of single ranks when they are looked at.

A small run is read and analysed whole before anything is shown. Of a large run directory the states are shown first,
and what needs all tables (causes, links, and clocks that were not kept) follows when it has been worked out.
"""

from collections.abc import Mapping, Sequence
from threading import Lock, Thread
from typing import Final, Self

import msgspec
import numpy as np

from overlapscope.analysis.across_ranks import Transfers
from overlapscope.analysis.breakdown import Coverage
from overlapscope.analysis.cause_table import CAUSES
from overlapscope.analysis.clock_offsets import Clocks
from overlapscope.analysis.exposed_causes import Causes, causes_of
from overlapscope.analysis.occupancy import Occupancy
from overlapscope.analysis.steps import StepWindow, step_windows, whole_windows
from overlapscope.errors import InputError, OverlapScopeError
from overlapscope.report.perfetto.call_args import CallWords
from overlapscope.report.perfetto.tracks import lane_name, on_common_clock
from overlapscope.timeline.columns import NONE, Ints, size
from overlapscope.timeline.run import RankTimeline, Run
from overlapscope.timeline.store.load_save import load_rank
from overlapscope_dashboards.runs.open_run import Opened
from overlapscope_dashboards.runs.recent import Recent
from overlapscope_dashboards.timeline.cache import Kept, States, keep, occupancy_of_folder
from overlapscope_dashboards.timeline.coarse_sums import Coarse
from overlapscope_dashboards.timeline.heat_map import map_rows, spent_by_row
from overlapscope_dashboards.timeline.lanes import MAX_RANKS, RankLanes, lanes_of
from overlapscope_dashboards.timeline.linked_calls import Links
from overlapscope_dashboards.timeline.window import Window, edges

LARGE: Final = 2_000_000
"""Spans from which on states are shown before the rest is known."""
MAX_LOOKED_AT: Final = 2 * MAX_RANKS
"""Ranks of which tables, lanes and words are kept: those of two views."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What only all ranks together tell."""

    run: Run
    links: Links
    transfers: Mapping[int, Transfers]
    causes: Mapping[int, Causes]


class Aligned(msgspec.Struct, frozen=True, kw_only=True):
    """All ranks on one clock, as far as clocks are known; it is replaced whole, never changed but for kept lanes."""

    clocks: Clocks | None
    """None while they are not known: each rank is then on its own clock."""
    occupancy: tuple[Occupancy, ...]
    coarse: Coarse | None
    origin_ns: int
    whole: Window
    lanes: Recent[RankLanes]
    """What was looked at of single ranks."""

    @classmethod
    def of(cls, kept: Kept) -> Self:
        """Put states together."""
        begin, length = kept.reach_ns
        return cls(
            clocks=kept.clocks,
            occupancy=tuple(Occupancy(*each) for each in kept.states.values()),
            coarse=kept.coarse,
            origin_ns=begin,
            whole=Window(start_ns=0, end_ns=length),
            lanes=Recent(MAX_LOOKED_AT),
        )

    def bins(self, window: Window, pixels: int) -> Ints:
        """Return the edges of the bins of a view, from the begin."""
        return edges(window, pixels, self.coarse.cell_ns if self.coarse else 0)

    def spent(self, bins: Ints) -> Ints:
        """Return the time in each state by row of the heat map and bin, exactly."""
        found = self.coarse.over(bins) if self.coarse else None
        if found is not None:
            return found
        return spent_by_row(self.occupancy, map_rows(len(self.occupancy)), bins + self.origin_ns)


class Source:
    """The timeline of one run; times it gives are on the common clock, counted from its begin where that is said."""

    def __init__(self, opened: Opened) -> None:
        self._opened, self._lock = opened, Lock()
        self._tables = Recent[RankTimeline](MAX_LOOKED_AT)
        self._words = Recent[CallWords](MAX_LOOKED_AT)
        self._thread: Thread | None = None
        self.figures: Figures | None = None
        self.problem = ""
        """Why figures will not come."""
        self.entries = {entry.rank: entry for entry in opened.entries}
        self.large = opened.folder is not None and sum(each.spans for each in self.entries.values()) >= LARGE
        kept = self._of_large() if self.large else self._of_small()
        if not kept.states:
            raise InputError("no times of what ran were recorded: there is no timeline")
        self.ranks = tuple(kept.states)
        self.now = Aligned.of(kept)
        """Read once for whatever must agree: another one takes its place when clocks become known."""

    def _of_small(self) -> Kept:
        run, clocks = self._opened.run, self._opened.together.clocks
        self.figures = self._figured()
        timelines = {rank: each for rank, each in run.ranks.items() if each.num_spans}
        made = {rank: Occupancy.of(Coverage.of(each.spans), whole_windows(each)) for rank, each in timelines.items()}
        return Kept(states=_states(made, clocks), clocks=clocks, coarse=None)

    def _of_large(self) -> Kept:
        assert self._opened.folder is not None
        return occupancy_of_folder(self._opened.folder, tuple(self.entries.values()), self._opened.revision)

    def _align(self, clocks: Clocks) -> None:
        """Put what was on each rank's own clock on the common one, and keep it so."""
        assert self._opened.folder is not None
        states = _states(dict(zip(self.ranks, self.now.occupancy, strict=True)), clocks)
        self.now = Aligned.of(keep(self._opened.folder, states, clocks, self._opened.revision))

    @property
    def clocks(self) -> Clocks | None:
        """None while they are not known."""
        return self.now.clocks

    @property
    def origin_ns(self) -> int:
        """The begin, on the common clock."""
        return self.now.origin_ns

    @property
    def whole(self) -> Window:
        """All of the run."""
        return self.now.whole

    @property
    def waiting(self) -> bool:
        """Return whether figures are being worked out."""
        return self._thread is not None and self.figures is None and not self.problem

    @property
    def version(self) -> str:
        """Another one whenever what is drawn changed."""
        return f"{self._opened.revision}-{self.clocks is not None}-{self.figures is not None}-{bool(self.problem)}"

    def work_out(self) -> None:
        """Have figures worked out, in the background; does nothing where that was begun."""
        with self._lock:
            if self.figures is None and self._thread is None:
                self._thread = Thread(target=self._work_out, daemon=True)
                self._thread.start()

    def _work_out(self) -> None:
        """Publish figures, or why there are none, whatever happens: who waits for them asks until then."""
        problem = "a fault; the terminal that serves this says what"
        try:
            clocks = self._opened.together.clocks
            if self.now.clocks is None:
                self._align(clocks)
            self.figures = self._figured()
            problem = ""
        except OverlapScopeError as error:
            problem = str(error)
        finally:
            self.problem = problem

    def _figured(self) -> Figures:
        run, together = self._opened.run, self._opened.together
        coverage = {rank: Coverage.of(timeline.spans) for rank, timeline in run.ranks.items()}
        return Figures(
            run=run,
            links=Links(run, together),
            transfers=together.transfers(run),
            causes=causes_of(run, together, coverage),
        )

    def tables(self, rank: int) -> RankTimeline:
        """Return a rank's tables, read when first asked for; raises InputError where they cannot be."""
        if self.figures is not None:
            if rank not in self.figures.run.ranks:
                raise InputError(f"rank {rank} cannot be read")
            return self.figures.run.ranks[rank]
        folder = self._opened.folder
        assert folder is not None
        return self._tables.get(rank, lambda: load_rank(folder, self.entries[rank]))

    def aligned(self, rank: int, times_ns: Ints) -> Ints:
        """Return times of a rank on the common clock, counted from the begin."""
        return _on(self.now, rank, times_ns)

    def lanes(self, rank: int) -> RankLanes:
        """Return a rank's lanes, in time counted from the begin."""
        now = self.now

        def make() -> RankLanes:
            timeline = self.tables(rank)
            labels = [lane_name(timeline, lane).partition(" (")[0] for lane in range(size(timeline.lanes))]
            spans = timeline.spans
            return lanes_of(timeline, _on(now, rank, spans.start_ns), _on(now, rank, spans.end_ns), labels)

        return now.lanes.get(rank, make)

    def causes(self, rank: int, window: Window) -> Sequence[tuple[str, Ints, Ints]]:
        """Give when a rank's communication was exposed in a window, by cause: (cause, starts, ends), from the begin."""
        found = []
        if self.figures is not None:
            for cause in CAUSES:
                times = self.figures.causes[rank].busy[cause].intervals
                start, end = self.aligned(rank, times.starts), self.aligned(rank, times.ends)
                inside = (end > window.start_ns) & (start < window.end_ns)
                if inside.any():
                    found.append((cause, start[inside], end[inside]))
        return found

    def told(self, rank: int, call: int) -> Mapping[str, object]:
        """Tell of one collective; nothing before figures are known."""
        figures = self.figures
        if figures is None:
            return {}
        words = self._words.get(
            rank, lambda: CallWords(figures.run.ranks[rank], figures.transfers[rank], figures.causes[rank])
        )
        return words.told(call)

    def steps(self, rank: int) -> list[tuple[StepWindow, int, int]]:
        """Return a rank's steps with their windows, from the begin."""
        shown = [(each, each.window) for each in step_windows(self.tables(rank)) if each.window is not None]
        return [(each, *self.aligned(rank, np.array(window)).tolist()) for each, window in shown]

    def call_times(self, ranks: Sequence[int], rows: Sequence[int]) -> tuple[Ints, Ints]:
        """Return starts and ends of a call on its ranks, from the begin; NONE where a rank did not time it."""
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
    """Put the states of each rank, on its own clock, on the common one."""
    return {rank: (on_common_clock(clocks, rank, each.at_ns), each.state) for rank, each in occupancy.items()}


def _on(now: Aligned, rank: int, times_ns: Ints) -> Ints:
    return on_common_clock(now.clocks or Clocks(), rank, times_ns) - now.origin_ns


def source_of(opened: Opened) -> Source:
    """Return the timeline of an opened run, made once; raises InputError where it has none."""
    return opened.once("timeline", lambda: Source(opened))
