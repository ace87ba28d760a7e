"""Windows of a graph: the steps of its ranks and the whole recording, as nodes."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.graph.model import Graph, RankPart, once_a_graph
from overlapscope.analysis.per_rank.steps import StepWindow, complete_steps, step_windows
from overlapscope.timeline.columns import COMM, COMPUTE, Ints
from overlapscope.timeline.run import RankTimeline


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """A step of one rank, or the whole recording of all: it ends with the latest of its last nodes."""

    step: int | None
    rank: int | None
    start: Ints
    """Nodes; the window begins with the earliest."""
    end: Ints
    followed: bool = False
    """Whether it ends where the compute of the step after it begins."""

    def length_ns(self, value_ns: Ints) -> int:
        """Return the length of the window for the times of all nodes, as recorded or replayed."""
        return int(value_ns[self.end].max() - value_ns[self.start].min())

    def last(self, value_ns: Ints) -> int:
        """Return the node that ends the window."""
        return int(self.end[value_ns[self.end].argmax()])


class JobWindow(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the job: from the earliest start to the latest end of its windows, on the aligned clock."""

    step: int
    recording: int
    start_ns: int
    end_ns: int
    ranks: Mapping[int, tuple[int, int]]
    """The ranks' own windows, on the aligned clock."""


def job_windows(windows: Mapping[int, Sequence[StepWindow]], clocks: Clocks) -> list[JobWindow]:
    """Return the steps that the most ranks recorded completely, in order of time; all steps where none is complete."""
    known = {rank: [each for each in own if each.window and each.window[1] > each.window[0]]
             for rank, own in windows.items()}  # fmt: skip
    found = complete_steps({rank: [(each.step, each.complete, each) for each in own] for rank, own in known.items()})
    found = found or complete_steps({rank: [(each.step, True, each) for each in own] for rank, own in known.items()})
    steps = []
    for column in found:
        ranks = {rank: _aligned(clocks, rank, each) for rank, each in column.items()}
        first = next(iter(column.values()))
        steps.append(
            JobWindow(
                step=first.step, recording=first.recording, ranks=ranks,
                start_ns=min(start for start, _ in ranks.values()), end_ns=max(end for _, end in ranks.values()),
            )
        )  # fmt: skip
    return sorted(steps, key=lambda each: each.start_ns)


def _aligned(clocks: Clocks, rank: int, each: StepWindow) -> tuple[int, int]:
    start, end = clocks.aligned_ns(rank, np.array(each.window, np.int64)).tolist()
    return start, end


def window_bounds(graph: Graph, window: JobWindow) -> Bounds:
    """Return a step of the job as nodes: those where the windows of its ranks begin and end."""
    found = [_nodes_of(graph, part, *window.ranks[part.rank]) for part in graph.ranks if part.rank in window.ranks]
    return Bounds(
        step=window.step, rank=None,
        start=np.array([start for start, _ in found], np.int64), end=np.array([end for _, end in found], np.int64),
    )  # fmt: skip


def _nodes_of(graph: Graph, part: RankPart, start_ns: int, end_ns: int) -> tuple[int, int]:
    """Return the first node of a rank's window and its last: the compute that begins there, or what ended last."""
    start, end = graph.nodes.time_ns[part.starts()], graph.nodes.time_ns[part.ends()]
    computes = part.span_kind == COMPUTE
    first = int(np.where(start >= start_ns, start, np.iinfo(np.int64).max).argmin())
    follows = np.flatnonzero(computes & (start == end_ns))
    if follows.size and part.on_device:
        return part.starts().start + first, part.starts().start + int(follows[0])
    ended = end <= end_ns
    if not part.on_device:  # a thread does not wait for what still communicates
        ended &= part.span_kind != COMM
    last = int(np.where(ended, end, np.iinfo(np.int64).min).argmax())
    return part.starts().start + first, part.ends().start + last


@once_a_graph
def whole_bounds(graph: Graph) -> Bounds | None:
    """Return the window from the first span's start to the last span's end over all ranks; None without spans."""
    if not any(part.spans for part in graph.ranks):
        return None
    starts, ends = (
        np.concatenate([np.arange(nodes.start, nodes.stop) for nodes in found])
        for found in ([part.starts() for part in graph.ranks], [part.ends() for part in graph.ranks])
    )
    return Bounds(step=None, rank=None, start=starts, end=ends)


def job_bounds(graph: Graph, ranks: Mapping[int, RankTimeline]) -> list[Bounds]:
    """Return the steps that all ranks recorded completely, each over all of them, in order of time."""
    by_step: dict[int | None, list[Bounds]] = {}
    for each in step_bounds(graph, ranks):
        by_step.setdefault(each.step, []).append(each)
    found = [_joined(each, step) for step, each in by_step.items() if len(each) == len(graph.ranks)]
    return sorted(found, key=lambda each: int(graph.nodes.time_ns[each.start].min()))


def _joined(steps: Sequence[Bounds], step: int | None) -> Bounds:
    return Bounds(
        step=step, rank=None, start=np.concatenate([each.start for each in steps]),
        end=np.concatenate([each.end for each in steps]), followed=all(each.followed for each in steps),
    )  # fmt: skip


def step_runs(steps: Sequence[Bounds]) -> list[list[Bounds]]:
    """Return the runs of steps that follow each other; `steps` are in order of time."""
    runs: list[list[Bounds]] = []
    for each in steps:
        last = runs[-1][-1] if runs else None
        if last and last.step is not None and each.step == last.step + 1:
            runs[-1].append(each)
        else:
            runs.append([each])
    return runs


def window_of_run(run: Sequence[Bounds]) -> Bounds:
    """Return a run of steps as one window."""
    return Bounds(step=run[0].step if len(run) == 1 else None, rank=None, start=run[0].start, end=run[-1].end)


def step_bounds(graph: Graph, ranks: Mapping[int, RankTimeline]) -> list[Bounds]:
    """Return the complete steps of each rank that have a window."""
    return [bounds for part in graph.ranks for bounds in _of_rank(part, ranks[part.rank])]


def _of_rank(part: RankPart, timeline: RankTimeline) -> Sequence[Bounds]:
    spans = timeline.spans
    start, step = spans.start_ns[part.span_row], spans.step[part.span_row]
    computes = part.span_kind == COMPUTE
    windows = [each for each in step_windows(timeline) if each.recording == part.recording and each.window]
    begins = {}
    for each in windows:
        assert each.window is not None
        # On a CPU the step is its annotation; its first operation begins a little later.
        first_of_step = start == each.window[0] if timeline.has_device else start >= each.window[0]
        at = np.flatnonzero(computes & first_of_step & (step == each.step))
        if at.size:
            begins[each.step] = int(at[0])
    found = []
    for each in windows:
        if each.step not in begins or not each.complete:
            continue
        first = part.starts().start
        follows = begins.get(each.step + 1)
        if each.unmarked_follows and each.window is not None:
            follows = next(iter(np.flatnonzero(computes & (start == each.window[1])).tolist()), None)
        end = part.ends().start + np.flatnonzero(step == each.step) if follows is None else np.array([first + follows])
        found.append(
            Bounds(
                step=each.step, rank=part.rank, start=np.array([first + begins[each.step]]), end=end,
                followed=follows is not None,
            )
        )  # fmt: skip
    return found
