"""Replay the steps of a job under a change: what they would take, all ranks together, from a state as recorded.

Everything before the first of several steps stays as recorded, also how far hosts had run ahead. So a change that only
shortens work never makes the steps longer, and of two such changes the one that shortens more never takes longer.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.common.cause_table import NO_CAUSES
from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.cross_rank.unseen_members import may_not_be_replayed
from overlapscope.analysis.graph.answers import (
    HIDDEN_WAITS,
    REPLAY,
    REPLAY_WITHIN,
    UNKNOWN,
    StepReplay,
    Swap,
)
from overlapscope.analysis.graph.bounds import Bounds, job_bounds, step_runs, whole_bounds, window_of_run
from overlapscope.analysis.graph.building.build import graph_too_large
from overlapscope.analysis.graph.built_graphs import BuiltGraphs
from overlapscope.analysis.graph.model import BEGINS, NO_GAP, Graph, RankPart
from overlapscope.analysis.graph.removal import Replayed
from overlapscope.analysis.graph.replay import replay_part, run_edges
from overlapscope.analysis.graph.scenarios import Change
from overlapscope.analysis.graph.self_test import ALIKE_STEPS, self_test, swap_test
from overlapscope.analysis.graph.walk import Links, binding_edges, chain, links_of
from overlapscope.analysis.per_rank.steps import lack_their_end
from overlapscope.timeline.columns import COMM, COMPUTE, Ints, size
from overlapscope.timeline.intervals import BusyTime, Intervals, clip, difference, intersection, length, union
from overlapscope.timeline.rows import sum_by
from overlapscope.timeline.run import Run

UNSEEN: Final = "unseen"
WHY_NOT: Final = {
    REPLAY: "the replay of its dependency graph misses its steps by more than 0.1 %",
    UNKNOWN: "it does not show what more than 2 % of its launches, or of its critical path, waited for",
    HIDDEN_WAITS: "in more than a quarter of its long pauses the host may wait without a call that shows it",
    UNSEEN: "its calls waited for ranks that were not recorded, and would wait for these in a replay, too",
}
"""Why the graph of a recording may not answer, by the test that fails, or as members are missing."""
NO_HOST_EVENTS: Final = "no host events were recorded"
NO_DEVICE: Final = "its ranks computed on CPUs"
"""Threads of CPU ranks share a link and slow each other, which lags of a graph cannot hold."""
UNLIKE: Final = 1.5
"""A step that takes so many times the median, or the median so many times the step, did other work."""
MOST_STEPS: Final = 16
"""Steps of a recording that are replayed: the last ones."""
MakeChange = Callable[[Graph], Change]


class StepRun(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Steps of a graph that follow each other, as one window."""

    graph: Graph
    window: Bounds
    steps: int
    start_ns: int
    end_ns: int
    edges: slice
    """The edges that a replay of the window needs."""
    path: Ints
    """The edges of the critical path of these steps."""

    @property
    def recorded_ns(self) -> int:
        """What the steps took together."""
        return self.end_ns - self.start_ns

    def times(self, change: Change) -> Ints:
        """Return the time of each node when a change applies from the begin of these steps on."""
        nodes, edges = self.graph.nodes, self.graph.edges
        later = nodes.time_ns > self.start_ns
        lag = np.where(later[edges.node], change.lag_ns, edges.lag_ns)
        return replay_part(self.graph, self.edges, lag, np.where(later, change.own_ns, nodes.own_ns))

    def length_ns(self, value: Ints) -> int:
        """Return what the steps take together for the times of all nodes."""
        return int(value[self.window.end].max()) - self.start_ns

    def took_ns(self, change: Change) -> int:
        """Return what the steps take together under a change."""
        nodes, edges = self.graph.nodes, self.graph.edges
        node = edges.node[self.path]
        kept = (change.lag_ns[self.path] == edges.lag_ns[self.path]).all()
        if kept and (change.own_ns[node] == nodes.own_ns[node]).all():
            # Nothing on the critical path changes: what only shortens other work gains nothing.
            shortens = (change.lag_ns <= edges.lag_ns).all() and (change.own_ns <= nodes.own_ns).all()
            if shortens:
                return self.recorded_ns
        return self.length_ns(self.times(change))


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Steps without communication, with all overlapped that streams allow, and with nothing overlapped; relative to
    what the steps took."""

    no_comm: float
    perfect_overlap: float
    no_overlap: float


class JobReplay(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The steps of a job that pass the tests of their graphs."""

    runs: tuple[StepRun, ...]
    steps_ns: Ints
    """What each step took, from the first rank's start to the last rank's end."""
    replays: tuple[StepReplay, ...]
    swap: Swap | None
    """The error bar of scenarios; None with fewer than three alike steps."""
    annotated: bool
    """False where no step was annotated: the whole recording counts as one."""
    earlier: int
    """Complete steps before these, which are not replayed because there are many."""
    cut_short: int
    """Steps that no step follows and that lack what the others lose before the next one begins: `steps_ns` has them,
    but no change is replayed on them."""
    unlike_windows: tuple[tuple[int, int], ...]
    """Begin and end, on the aligned clock, of steps that took much longer or shorter than the median, and are left out:
    they did other work, or an event made them longer."""

    @property
    def unlike(self) -> int:
        """Return how many these are."""
        return len(self.unlike_windows)

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The graph of each recording window."""
        return tuple({id(each.graph): each.graph for each in self.runs}.values())

    @property
    def replayed(self) -> tuple[Replayed, ...]:
        """The steps of each recording, for `removal`."""
        return tuple(
            Replayed(graph=graph, windows=tuple(each.window for each in self.runs if each.graph is graph))
            for graph in self.graphs
        )

    @property
    def recorded_ns(self) -> int:
        """What all steps took together."""
        return sum(each.recorded_ns for each in self.runs)

    @property
    def replay_error(self) -> float:
        """The median relative error of the replay of a step."""
        return float(np.median([abs(each.error) for each in self.replays]))

    def share(self, change: MakeChange, *, keep_opaque: bool = True) -> float:
        """Return what the steps take under a change, relative to what they took.

        With `keep_opaque` times that no rule explains are kept; where that makes a difference, the answer lies between.
        """
        took = 0
        for run, made in self._changed(change):
            nodes = run.graph.nodes
            opaque = (nodes.gap != NO_GAP) & (nodes.gap != BEGINS)
            own = made.own_ns if keep_opaque else np.where(opaque, 0, made.own_ns)
            took += run.took_ns(replace(made, own_ns=own))
        return took / self.recorded_ns

    def exposed_ns(self, change: MakeChange) -> float:
        """Return the exposed communication of a step under a change, of the rank that has most."""
        exposed = 0
        for run, made in self._changed(change):
            value = run.times(made)
            end_ns = run.start_ns + run.length_ns(value)
            each = [clip(difference(*_busy(part, value)), run.start_ns, end_ns) for part in run.graph.ranks]
            exposed += max(map(length, each), default=0)
        return exposed / sum(run.steps for run in self.runs)

    def limits(self, no_communication: MakeChange) -> Limits:
        """Return the bounds of any overlap: the replay without communication, and what streams and ranks did."""
        busiest = sum(_busiest_stream(run) for run in self.runs) / self.recorded_ns
        hidden = sum(_hidden(run) for run in self.runs) / self.recorded_ns
        nothing = self.share(no_communication)
        return Limits(no_comm=nothing, perfect_overlap=min(max(nothing, busiest), 1.0), no_overlap=1.0 + hidden)

    def _changed(self, change: MakeChange) -> list[tuple[StepRun, Change]]:
        made: dict[int, Change] = {}
        for run in self.runs:
            if id(run.graph) not in made:
                made[id(run.graph)] = change(run.graph)
        return [(run, made[id(run.graph)]) for run in self.runs]


def job_replay(run: Run, cross_rank: CrossRank, graphs: BuiltGraphs | None = None) -> JobReplay | str:
    """Return the replay of a job's steps, or the reason why its graph may not answer."""
    if (why_not := _refusal(run, cross_rank)) is not None:
        return why_not
    ranks, graphs = run.ranks, graphs or BuiltGraphs(run)
    annotated = any(size(each.steps) for each in ranks.values())
    runs: list[StepRun] = []
    replays: list[StepReplay] = []
    steps_ns: list[int] = []
    unlike: list[tuple[int, int]] = []
    earlier, cut_short, swap, why = 0, 0, None, "no step was recorded completely on every rank"
    for recording in range(min(size(each.recordings) for each in ranks.values())):
        graph = graphs.of_ranks(tuple(ranks), cross_rank, recording)
        whole = whole_bounds(graph)
        if whole is None:
            continue
        every = job_bounds(graph, ranks) if annotated else [whole]
        steps = every[-MOST_STEPS:]
        if not steps:  # marked ones in which nothing could be linked to a launch
            continue
        earlier += len(every) - len(steps)
        time = graph.nodes.time_ns
        tested = self_test(graph, steps)
        holds = [step for step, each in zip(steps, tested.windows, strict=True) if abs(each.error) <= REPLAY_WITHIN]
        others = [name for name in tested.failed if name != REPLAY]
        if others or not holds:
            why = WHY_NOT[others[0] if others else REPLAY]
            continue
        links = links_of(graph, binding_edges(graph))
        middle = float(np.median([each.length_ns(time) for each in holds]))
        left_out = [each for each in holds if not _is_like(each.length_ns(time), middle)]
        unlike += [(int(time[each.start].min()), int(time[each.end].max())) for each in left_out]
        holds = [each for each in holds if _is_like(each.length_ns(time), middle)]
        cut = _cut_short(graph, holds)
        cut_short += len(cut)
        whole_steps = [each for each in holds if each.step not in cut]
        runs += [_step_run(graph, window_of_run(run), len(run), links) for run in step_runs(whole_steps)]
        replays += [each for each in tested.windows if abs(each.error) <= REPLAY_WITHIN]
        steps_ns += [each.length_ns(time) for each in holds]
        of_swaps = [each for each in steps if each.length_ns(time) <= UNLIKE * middle and each.step not in cut]
        swap = swap or swap_test(graph, ranks, of_swaps)
    if not runs or min(each.recorded_ns for each in runs) <= 0:
        return why
    return JobReplay(
        runs=tuple(runs),
        steps_ns=np.array(steps_ns, np.int64),
        replays=tuple(replays),
        swap=swap,
        annotated=annotated,
        earlier=earlier,
        cut_short=cut_short,
        unlike_windows=tuple(unlike),
    )


def _refusal(run: Run, cross_rank: CrossRank) -> str | None:
    """Return why no graph of a job is built for a replay; None where one is."""
    ranks = run.ranks
    if not ranks or not all(each.has_device for each in ranks.values()):
        return NO_DEVICE
    if not all(each.has_host_events for each in ranks.values()):
        return NO_HOST_EVENTS
    if any(each.ends_early for each in ranks.values()):
        return NO_CAUSES["cut_file"]
    unseen = may_not_be_replayed(run, cross_rank.waited_for_unseen_ns)
    if (why_not := WHY_NOT[UNSEEN] if unseen else graph_too_large(run)) is not None:
        return why_not
    if len(ranks) > 1 and not cross_rank.clocks.comparable(tuple(ranks)):
        return "no collective that could be matched connects all of its ranks, so their clocks cannot be aligned"
    return None


def _is_like(length_ns: int, usual_ns: float) -> bool:
    """Return whether a step took neither much longer nor much shorter than usual."""
    return usual_ns <= UNLIKE * length_ns and length_ns <= UNLIKE * usual_ns


def _cut_short(graph: Graph, steps: Sequence[Bounds]) -> set[int | None]:
    """Return the numbers of the steps that are cut short by the end of the recording, where enough others are left."""
    time = graph.nodes.time_ns
    begin = np.array([time[each.start].min() for each in steps], np.int64)
    end = np.array([time[each.end].max() for each in steps], np.int64)
    compute = [BusyTime(_busy(part, time)[1]).within(begin, end) for part in graph.ranks]
    without = end - begin - np.mean(compute, axis=0)
    cut = lack_their_end((end - begin).tolist(), without.tolist(), [each.followed for each in steps])
    return {steps[at].step for at in cut} if len(steps) - len(cut) >= ALIKE_STEPS else set()


def _step_run(graph: Graph, window: Bounds, steps: int, links: Links) -> StepRun:
    time = graph.nodes.time_ns
    start_ns, end_ns = int(time[window.start].min()), int(time[window.end].max())
    edges = slice(0, graph.num_edges)
    if not graph.levels.size:  # a wide graph is sorted by level, not by time
        inside = np.flatnonzero((time[graph.edges.node] > start_ns) & (time[graph.edges.node] <= end_ns))
        edges = slice(int(inside[0]), int(inside[-1]) + 1) if inside.size else slice(0, 0)
    return StepRun(
        graph=graph, window=window, steps=steps, start_ns=start_ns, end_ns=end_ns, edges=edges,
        path=chain(graph, links, window.last(time), start_ns),
    )  # fmt: skip


def _busiest_stream(run: StepRun) -> int:
    """Return the time that transfers need on the stream that has most."""
    most = 0
    for part in run.graph.ranks:
        end = run.graph.nodes.time_ns[part.ends()]
        mine = np.flatnonzero((part.span_kind == COMM) & (end > run.start_ns) & (end <= run.end_ns))
        if mine.size:
            alone = run.graph.edges.lag_ns[run_edges(run.graph, part)][mine]
            most = max(most, int(sum_by(part.span_lane[mine], alone, int(part.span_lane.max()) + 1).max()))
    return most


def _hidden(run: StepRun) -> int:
    time = run.graph.nodes.time_ns
    each = [clip(intersection(*_busy(part, time)), run.start_ns, run.end_ns) for part in run.graph.ranks]
    return max(map(length, each), default=0)


def _busy(part: RankPart, value: Ints) -> tuple[Intervals, Intervals]:
    """Return when a rank communicated, and when it computed."""
    start, end = value[part.starts()], value[part.ends()]
    comm, compute = (np.flatnonzero(part.span_kind == kind) for kind in (COMM, COMPUTE))
    return union((start[comm], end[comm])), union((start[compute], end[compute]))
