"""The tracks of a Perfetto export: slices of what ran on a rank, and of the results of the analysis."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, Self

import msgspec
import numpy as np
import numpy.typing as npt

from overlapscope.analysis.common.cause_table import CAUSES, cause_label
from overlapscope.analysis.cross_rank.across_ranks import Transfers
from overlapscope.analysis.exposure.exposed_causes import Causes
from overlapscope.analysis.graph.path_segments import Segments
from overlapscope.analysis.graph.step_paths import FollowedPath
from overlapscope.analysis.graph.walk import PARTS
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.steps import StepWindow
from overlapscope.errors import HostEventsError
from overlapscope.report.palette import PATH_COLOURS
from overlapscope.report.perfetto.call_args import CallArguments
from overlapscope.report.perfetto.events import Arrow, Slices
from overlapscope.report.perfetto.rank_flows import ArrowEnds
from overlapscope.timeline.columns import (
    DEVICE,
    HOST_SPAN_KINDS,
    NONE,
    OPERATION,
    RUNTIME,
    SPAN_KINDS,
    SPAN_NOTES,
    HostSpans,
    Ints,
    make,
)
from overlapscope.timeline.intervals import Intervals, intersection
from overlapscope.timeline.lazy_host_spans import select_host_spans
from overlapscope.timeline.run import RankTimeline, Run

Mask = npt.NDArray[np.bool_]
LAUNCH: Final = ("launch", "launch")
"""Category and name of the arrow from a call to what it launched."""


def touches(start_ns: Ints, end_ns: Ints, reach: Intervals | None) -> Mask:
    """Return a mask of the spans that overlap the chosen time, those of no length included; None chooses all."""
    if reach is None:
        return np.ones(start_ns.size, np.bool_)
    if not reach.starts.size:
        return np.zeros(start_ns.size, np.bool_)
    at = np.searchsorted(reach.ends, start_ns, side="right")
    inside = at < reach.ends.size
    begins = reach.starts[np.minimum(at, reach.ends.size - 1)]
    return np.asarray(inside & ((begins < end_ns) | (begins <= start_ns)), np.bool_)


def steps_of(windows: Sequence[StepWindow], coverage: Coverage) -> Slices:
    """Return the track of step windows, with their main figures as arguments."""
    shown = [(each, each.window) for each in windows if each.window is not None]

    def args(row: int) -> dict[str, Any]:
        step, window = shown[row]
        figures = coverage.breakdown(window)
        return {
            "complete": step.complete,
            "exposed_comm_ns": figures.exposed_comm_ns,
            "hidden_comm_ns": figures.overlapped_ns,
            "compute_ns": figures.compute_ns,
            "idle_ns": figures.idle_ns,
        }

    return Slices(
        track="steps",
        start_ns=np.array([start for _, (start, _) in shown], np.int64),
        end_ns=np.array([end for _, (_, end) in shown], np.int64),
        category=lambda row: "step",
        name=lambda row: f"step {shown[row][0].step}",
        args=args,
    )


def why_exposed(causes: Causes, chosen: Intervals | None, *, on_cpu: bool) -> Slices:
    """Return the track of exposed time by cause, in the words of `analyze`, cut to the chosen time.

    `on_cpu`: of a run in which no device computes.
    """
    parts = []
    for cause in CAUSES:
        times = causes.busy[cause].intervals
        if chosen is not None:
            times = intersection(times, chosen)
        parts.append(times)
    names = tuple(CAUSES)
    cause_of_row = np.repeat(np.arange(len(names)), [part.starts.size for part in parts])
    return Slices(
        track="why exposed",
        start_ns=np.concatenate([part.starts for part in parts]),
        end_ns=np.concatenate([part.ends for part in parts]),
        category=lambda row: "exposed",
        name=lambda row: cause_label(names[cause_of_row[row]], on_cpu=on_cpu),
        args=lambda row: {"cause": names[cause_of_row[row]]},
        colour=lambda row: CAUSES[names[cause_of_row[row]]].colour,
    )


def shown_spans(timeline: RankTimeline, reach: Intervals | None, steps: frozenset[int] | None) -> Mask:
    """Return a mask of the spans in the chosen time, and of those that were launched in a chosen step."""
    spans = timeline.spans
    shown = touches(spans.start_ns, spans.end_ns, reach)
    return shown if steps is None else shown | np.isin(spans.step, list(steps))


class Launches(msgspec.Struct, frozen=True, kw_only=True):
    """The spans and host calls of a rank that are shown, and which call launched which span."""

    spans: Mask
    """By row in `Spans`."""
    host: HostSpans
    """Operations and calls to the runtime."""
    calls: Mask
    """By row in `host`."""
    call_of_span: Ints
    """Row in `host` of the call that launched a span; NONE without a record."""

    @classmethod
    def of(cls, timeline: RankTimeline, shown: Mask, reach: Intervals | None) -> Self:
        """Choose the calls in the chosen time, and those that launched one of the spans that are shown."""
        spans, host = timeline.spans, host_spans(timeline)
        launched = launching_calls(host, spans.correlation, spans.launch_ns)
        calls = touches(host.start_ns, host.end_ns, reach)
        calls[launched[shown & (launched != NONE)]] = True
        return cls(spans=shown, host=host, calls=calls, call_of_span=launched)


def launching_calls(host: HostSpans, correlation: Ints, launch_ns: Ints) -> Ints:
    """Return for each launch the row of the host call with its start and correlation; NONE where there is none."""
    rows = np.flatnonzero(host.correlation != NONE)
    if not rows.size:
        return np.full(launch_ns.size, NONE, np.int64)
    starts, start = np.unique(host.start_ns[rows], return_inverse=True)
    numbers, number = np.unique(host.correlation[rows], return_inverse=True)
    calls, order = np.unique(start * numbers.size + number, return_index=True)  # threads may call at one time
    at, of = np.searchsorted(starts[:-1], launch_ns), np.searchsorted(numbers[:-1], correlation)
    found = np.minimum(np.searchsorted(calls, at * numbers.size + of), calls.size - 1)
    found = rows[order[found]]
    is_it = (host.start_ns[found] == launch_ns) & (host.correlation[found] == correlation) & (launch_ns != NONE)
    return np.where(is_it, found, NONE)


def host_spans(timeline: RankTimeline) -> HostSpans:
    """Return operations and calls to the runtime; none where host events cannot be read any more."""
    try:
        return select_host_spans(timeline.host, (OPERATION, RUNTIME))
    except HostEventsError:  # all else of the rank can be read
        return make(HostSpans, 0)


def lanes(
    timeline: RankTimeline,
    transfers: Transfers,
    causes: Causes,
    shown: Launches,
    first_arrow: int,
    of_ranks: ArrowEnds | None,
) -> Iterator[Slices]:
    """Yield a track per lane (stream or thread); a launch's arrow has the number of its span, from `first_arrow`."""
    spans = timeline.spans
    call_words = CallArguments(timeline, transfers, causes)
    for lane, rows in _by_lane(spans.lane, shown.spans):
        numbers = np.where(shown.call_of_span[rows] != NONE, rows + first_arrow, NONE).tolist()
        arrows = _with_launches(numbers, None if of_ranks is None else of_ranks.at_rows(rows))
        yield _lane_slices(timeline, lane, rows, call_words, arrows)


def _with_launches(numbers: Sequence[int], others: Callable[[int], list[Arrow]] | None) -> Callable[[int], list[Arrow]]:
    def arrows(at: int) -> list[Arrow]:
        own = [] if numbers[at] == NONE else [Arrow(numbers[at], False, *LAUNCH)]
        return own if others is None else own + others(at)

    return arrows


def _lane_slices(
    timeline: RankTimeline, lane: int, rows: Ints, call_words: CallArguments, arrows: Callable[[int], list[Arrow]]
) -> Slices:
    spans = timeline.spans
    return Slices(
        track=lane_name(timeline, lane),
        start_ns=spans.start_ns[rows],
        end_ns=spans.end_ns[rows],
        category=lambda at: SPAN_KINDS[spans.kind[rows[at]]],
        name=lambda at: _name(timeline, int(spans.name[rows[at]])),
        args=lambda at: _span_args(timeline, int(rows[at]), call_words),
        arrows=arrows,
    )


def host_threads(timeline: RankTimeline, shown: Launches, first_arrow: int) -> Iterator[Slices]:
    """Yield a track per host thread with its operations and calls; arrows begin in the calls that launched."""
    host = shown.host
    launched = np.flatnonzero(shown.spans & (shown.call_of_span != NONE))
    launched = launched[np.argsort(shown.call_of_span[launched], kind="stable")]
    calls = shown.call_of_span[launched]
    for lane, rows in _by_lane(host.lane, shown.calls):
        first, last = (np.searchsorted(calls, rows, side) for side in ("left", "right"))
        yield _host_slices(timeline, host, lane, rows, [launched + first_arrow, first, last])


def _host_slices(timeline: RankTimeline, host: HostSpans, lane: int, rows: Ints, arrows: Sequence[Ints]) -> Slices:
    numbers, first, last = arrows
    return Slices(
        track=f"operations of {lane_name(timeline, lane)}",
        start_ns=host.start_ns[rows],
        end_ns=host.end_ns[rows],
        category=lambda at: HOST_SPAN_KINDS[host.kind[rows[at]]],
        name=lambda at: _name(timeline, int(host.name[rows[at]])),
        arrows=lambda at: [Arrow(number, True, *LAUNCH) for number in numbers[first[at] : last[at]].tolist()],
    )


def annotations(timeline: RankTimeline, reach: Intervals | None) -> Iterator[Slices]:
    """Yield a track per host thread with its annotations (named ranges)."""
    notes = timeline.annotations
    for lane, rows in _by_lane(notes.lane, touches(notes.start_ns, notes.end_ns, reach)):
        yield _note_slices(timeline, lane, rows)


def _note_slices(timeline: RankTimeline, lane: int, rows: Ints) -> Slices:
    notes = timeline.annotations
    return Slices(
        track=f"annotations of {lane_name(timeline, lane)}",
        start_ns=notes.start_ns[rows],
        end_ns=notes.end_ns[rows],
        category=lambda at: "annotation",
        name=lambda at: _name(timeline, int(notes.name[rows[at]])),
    )


def _by_lane(lanes: Ints, chosen: Mask) -> Iterator[tuple[int, Ints]]:
    """Yield each lane with the numbers of its chosen rows."""
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(lanes[rows], kind="stable")]
    found, first = np.unique(lanes[rows], return_index=True)
    if rows.size:
        yield from zip(found.tolist(), np.split(rows, first[1:]), strict=True)


def _name(timeline: RankTimeline, code: int) -> str:
    return timeline.names[code] if code >= 0 else "unnamed"


def lane_name(timeline: RankTimeline, lane: int) -> str:
    """Return the name of a lane as its source writes it: a stream of a device, or a thread of a process."""
    lanes, names = timeline.lanes, timeline.names
    kind, process = ("stream", "device") if lanes.kind[lane] == DEVICE else ("thread", "process")
    label, owner = int(lanes.label[lane]), int(lanes.process[lane])
    name = names[label] if label >= 0 else "?"
    shown = f"{kind} {name}" if label < 0 or name.isdigit() else name
    return f"{shown} ({process} {names[owner]})" if owner >= 0 else shown


def _span_args(timeline: RankTimeline, row: int, call_words: CallArguments) -> dict[str, Any]:
    spans = timeline.spans
    args: dict[str, Any] = {}
    if spans.step[row] != NONE:
        args["step"] = int(spans.step[row])
    if spans.launch_ns[row] != NONE:
        args["after_launch_ns"] = int(spans.start_ns[row] - spans.launch_ns[row])
    if spans.host_op[row] >= 0:
        args["host_op"] = timeline.names[int(spans.host_op[row])]
    if spans.note[row]:
        args["note"] = SPAN_NOTES[spans.note[row]]
    if spans.collective[row] != NONE:
        args |= call_words.told(int(spans.collective[row]))
    return args


def critical_paths(run: Run, paths: Sequence[FollowedPath]) -> Iterator[Slices]:
    """Yield the track of all critical paths, on the common clock; two where steps of the job overlap."""
    overlaps = any(after.start_ns < before.end_ns for before, after in pairwise(paths))
    yield _paths(run, paths[::2] if overlaps else paths, "critical path")
    if overlaps:
        yield _paths(run, paths[1::2], "critical path of every other step")


def _paths(run: Run, paths: Sequence[FollowedPath], track: str) -> Slices:
    labels: list[str] = []
    args: list[dict[str, Any]] = []
    for path in paths:
        for rank, part, name in _segments(run, path.segments):
            labels.append(f"rank {rank} {part}{name}")
            args.append({"step": path.step, "part": part, "rank": rank})
    return Slices(
        track=track,
        start_ns=np.concatenate([path.segments.start_ns for path in paths]),
        end_ns=np.concatenate([path.segments.end_ns for path in paths]),
        category=lambda row: "critical_path",
        name=labels.__getitem__,
        args=args.__getitem__,
        colour=lambda row: PATH_COLOURS[args[row]["part"]],
    )


def _segments(run: Run, segments: Segments) -> Iterator[tuple[int, str, str]]:
    """Yield rank, part and the name, where it has one, of each segment of a path."""
    words = np.full(segments.row.size, "", object)
    for rank in np.unique(segments.rank).tolist():
        own = np.flatnonzero((segments.rank == rank) & (segments.name >= 0))
        names = run.ranks[rank].names
        words[own] = [f" {names[code]}" for code in segments.name[own].tolist()]
    parts = [PARTS[part] for part in segments.part.tolist()]
    return zip(segments.rank.tolist(), parts, words.tolist(), strict=True)
