"""A run as one trace for ui.perfetto.dev: every rank a process, clocks corrected, what was found out as tracks."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from overlapscope.analysis.across import Across, Transfers, across
from overlapscope.analysis.breakdown import Coverage
from overlapscope.analysis.causes import CAUSES, Causes, causes_of, owned
from overlapscope.analysis.clocks import Clocks
from overlapscope.analysis.critical_path import Chosen, follow, name_of
from overlapscope.analysis.path_walk import Segment
from overlapscope.analysis.steps import StepWindow, step_windows
from overlapscope.ingest.perfetto_export import SCHEMA
from overlapscope.report.trace_events import EventWriter, Slices, joined
from overlapscope.timeline.columns import DEVICE, NONE, SPAN_KINDS, SPAN_NOTES, Ints, size
from overlapscope.timeline.intervals import Intervals, clip, union
from overlapscope.timeline.run import RankTimeline, Run

PATH_PROCESS: Final = 1
FIRST_RANK_PROCESS: Final = 2
"""Numbers of processes; viewers treat 0 in their own ways."""
Mask = npt.NDArray[np.bool_]


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
                "clock": "the lowest rank's, counted from base_time_ns; the times of other ranks are moved to it",
                "clock_offset_ns": {str(rank): round(offset) for rank, offset in clocks.offset_ns.items()},
            }
        }
        yield from joined(self._events(writer, figures), head)
        self.events = writer.events

    def _events(self, writer: EventWriter, figures: _Figures) -> Iterator[str]:
        if figures.paths.paths:
            yield writer.process(PATH_PROCESS, "critical path")
            yield from writer.slices(PATH_PROCESS, _path_slices(self.run, figures))
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
        paths=follow(run, windows, together, transfers, choice.steps),
    )


def on_common_clock(clocks: Clocks, rank: int, times_ns: Ints) -> Ints:
    """Give times of a rank as the clock of the lowest rank shows them, to the nanosecond."""
    apart = clocks.offset_ns.get(rank, 0.0) + clocks.drift.get(rank, 0.0) * (times_ns - clocks.reference_ns)
    moved: Ints = times_ns - np.rint(apart).astype(np.int64)
    return moved


def _on_common(clocks: Clocks, rank: int, time_ns: int) -> int:
    return int(on_common_clock(clocks, rank, np.array([time_ns], np.int64))[0])


def _earliest(timeline: RankTimeline, rank: int, clocks: Clocks) -> int:
    starts = [timeline.spans.start_ns, timeline.steps.start_ns, timeline.annotations.start_ns]
    starts += [timeline.telemetry.time_ns[timeline.telemetry.time_ns != NONE]]
    first = [int(each.min()) for each in starts if each.size]
    return int(on_common_clock(clocks, rank, np.array(first, np.int64)).min()) if first else np.iinfo(np.int64).max


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
        return Slices(
            track=shown.track, category=shown.category, name=shown.name, args=shown.args,
            start_ns=on_common_clock(clocks, rank, shown.start_ns), end_ns=on_common_clock(clocks, rank, shown.end_ns),
        )  # fmt: skip

    yield writer.process(process, f"rank {rank}")
    for shown in (
        _step_slices(windows, figures.coverage[rank]),
        _cause_slices(figures.causes[rank], None if steps is None else windows),
        *_lane_slices(timeline, figures.transfers[rank], figures.causes[rank], reach, steps),
        *_annotation_slices(timeline, reach),
    ):
        yield from writer.slices(process, on_clock(shown))
    telemetry = timeline.telemetry
    inside = (telemetry.time_ns != NONE) & (telemetry.name >= 0) & _touches(telemetry.time_ns, telemetry.time_ns, reach)
    for code in np.unique(telemetry.name[inside]).tolist():
        rows = inside & (telemetry.name == code)
        times = on_common_clock(clocks, rank, telemetry.time_ns[rows])
        yield "".join(writer.counter(process, timeline.names[code], times.tolist(), telemetry.value[rows].tolist()))


def _reach(timeline: RankTimeline, windows: Sequence[StepWindow], steps: frozenset[int]) -> Intervals:
    """Give the chosen steps' time: on the device, and on the host, which is ahead of it."""
    chosen = np.isin(timeline.steps.step, list(steps))
    shown = [each.window for each in windows if each.window is not None]
    return union(
        (np.array([start for start, _ in shown], np.int64), np.array([end for _, end in shown], np.int64)),
        (timeline.steps.start_ns[chosen], timeline.steps.end_ns[chosen]),
    )


def _touches(start_ns: Ints, end_ns: Ints, reach: Intervals | None) -> Mask:
    """Say of each whether it has a part, or lies, in the chosen time."""
    if reach is None:
        return np.ones(start_ns.size, np.bool_)
    if not reach.starts.size:
        return np.zeros(start_ns.size, np.bool_)
    at = np.searchsorted(reach.ends, start_ns, side="right")
    inside = at < reach.ends.size
    begins = reach.starts[np.minimum(at, reach.ends.size - 1)]
    return np.asarray(inside & ((begins < end_ns) | (begins <= start_ns)), np.bool_)


def _step_slices(windows: Sequence[StepWindow], coverage: Coverage) -> Slices:
    shown = [(each, each.window) for each in windows if each.window is not None]
    figures = [coverage.breakdown(window) for _, window in shown]
    return Slices(
        track="steps",
        category="step",
        start_ns=np.array([start for _, (start, _) in shown], np.int64),
        end_ns=np.array([end for _, (_, end) in shown], np.int64),
        name=[f"step {each.step}" for each, _ in shown],
        args=[
            json.dumps(
                {
                    "complete": each.complete,
                    "exposed_comm_ns": figure.exposed_comm_ns,
                    "hidden_comm_ns": figure.overlapped_ns,
                    "compute_ns": figure.compute_ns,
                    "idle_ns": figure.idle_ns,
                }
            )
            for (each, _), figure in zip(shown, figures, strict=True)
        ],
    )


def _cause_slices(causes: Causes, windows: Sequence[StepWindow] | None) -> Slices:
    """Give exposed time by cause, cut to the chosen steps."""
    parts = []
    for cause in CAUSES:
        times = causes.busy[cause].intervals
        if windows is not None:
            times = union(*(clip(times, *each.window) for each in windows if each.window is not None))
        parts.append(times)
    return Slices(
        track="why exposed",
        category="exposed",
        start_ns=np.concatenate([part.starts for part in parts]),
        end_ns=np.concatenate([part.ends for part in parts]),
        name=[cause for cause, part in zip(CAUSES, parts, strict=True) for _ in range(part.starts.size)],
    )


def _lane_slices(
    timeline: RankTimeline,
    transfers: Transfers,
    causes: Causes,
    reach: Intervals | None,
    steps: frozenset[int] | None,
) -> Iterator[Slices]:
    spans, names = timeline.spans, timeline.names
    chosen = _touches(spans.start_ns, spans.end_ns, reach)
    if steps is not None:
        chosen |= np.isin(spans.step, list(steps))
    of_call = _call_args(timeline, transfers, causes) if size(timeline.collectives) else []
    for lane in np.unique(spans.lane[chosen]).tolist():
        rows = np.flatnonzero(chosen & (spans.lane == lane))
        yield Slices(
            track=_lane_name(timeline, lane),
            category=[SPAN_KINDS[kind] for kind in spans.kind[rows].tolist()],
            start_ns=spans.start_ns[rows],
            end_ns=spans.end_ns[rows],
            name=[names[code] if code >= 0 else "unnamed" for code in spans.name[rows].tolist()],
            args=[_span_args(timeline, row, of_call) for row in rows.tolist()],
        )


def _lane_name(timeline: RankTimeline, lane: int) -> str:
    lanes, names = timeline.lanes, timeline.names

    def word(code: int) -> str:
        return names[code] if code >= 0 else "?"

    kind, process = ("stream", "device") if lanes.kind[lane] == DEVICE else ("thread", "process")
    label = word(int(lanes.label[lane]))
    of = word(int(lanes.process[lane]))
    return (label if not label.isdigit() else f"{kind} {label}") + ("" if of == "?" else f" ({process} {of})")


def _span_args(timeline: RankTimeline, row: int, of_call: Sequence[dict[str, Any]]) -> str:
    spans = timeline.spans
    told: dict[str, Any] = {}
    if spans.step[row] != NONE:
        told["step"] = int(spans.step[row])
    if spans.launch_ns[row] != NONE:
        told["after_launch_ns"] = int(spans.start_ns[row] - spans.launch_ns[row])
    if spans.host_op[row] >= 0:
        told["host_op"] = timeline.names[int(spans.host_op[row])]
    if spans.note[row]:
        told["note"] = SPAN_NOTES[spans.note[row]]
    if spans.collective[row] != NONE:
        told |= of_call[int(spans.collective[row])]
    return json.dumps(told) if told else ""


def _call_args(timeline: RankTimeline, transfers: Transfers, causes: Causes) -> list[dict[str, Any]]:
    """Give what is known of each collective; of a call that was not matched, neither transfer nor waiting."""
    calls, names = timeline.collectives, timeline.names
    worded = ("op", "executed_op", "group", "dtype", "algorithm", "protocol", "dimension", "phase", "module")
    counted = ("seq", "bytes", "group_size", "channels")
    cause = _main_causes(timeline, causes)
    found = []
    for row in range(size(calls)):
        told: dict[str, Any] = {}
        for name in worded:
            code = int(getattr(calls, name)[row])
            if code >= 0:
                told[name] = names[code]
        for name in counted:
            value = int(getattr(calls, name)[row])
            if value != NONE:
                told[name] = value
        if transfers.transfer_ns[row] != NONE:
            told["transfer_ns"] = int(transfers.transfer_ns[row])
            told["wait_ns"] = int(calls.end_ns[row] - calls.start_ns[row] - transfers.transfer_ns[row])
            told["last_rank"] = int(transfers.last[row])
        told["exposed_ns"] = int(causes.exposed_ns[row])
        if cause[row] is not None:
            told["cause"] = cause[row]
        found.append(told)
    return found


def _main_causes(timeline: RankTimeline, causes: Causes) -> list[str | None]:
    """Give for each collective the cause of most of its exposed time; None where none of it is exposed."""
    mine = owned(timeline)
    of_call = np.flatnonzero(mine.row != NONE)
    shares = np.array([causes.busy[each].within(mine.start_ns[of_call], mine.until_ns[of_call]) for each in CAUSES])
    found: list[str | None] = [None] * size(timeline.collectives)
    most = shares.argmax(axis=0)
    for at, row in enumerate(mine.row[of_call].tolist()):
        if shares[most[at], at]:
            found[row] = CAUSES[most[at]]
    return found


def _annotation_slices(timeline: RankTimeline, reach: Intervals | None) -> Iterator[Slices]:
    notes, names = timeline.annotations, timeline.names
    chosen = _touches(notes.start_ns, notes.end_ns, reach)
    for lane in np.unique(notes.lane[chosen]).tolist():
        rows = np.flatnonzero(chosen & (notes.lane == lane))
        yield Slices(
            track=f"annotations of {_lane_name(timeline, lane)}",
            category="annotation",
            start_ns=notes.start_ns[rows],
            end_ns=notes.end_ns[rows],
            name=[names[code] if code >= 0 else "unnamed" for code in notes.name[rows].tolist()],
        )


def _path_slices(run: Run, figures: _Figures) -> Slices:
    """Give the segments of all paths that were followed, on the common clock."""
    starts, ends, names, args = [], [], [], []
    for path in figures.paths.paths:
        edges = np.array([path.start_ns, *(each.end_ns for each in path.segments)], np.int64)
        moved = on_common_clock(figures.together.clocks, path.rank, edges)
        starts.append(moved[:-1])
        ends.append(moved[1:])
        for each in path.segments:
            names.append(_said(run, each))
            args.append(json.dumps({"step": path.step, "part": each.part, "rank": each.rank}))
    return Slices(
        track="critical path",
        category="critical_path",
        start_ns=np.concatenate(starts),
        end_ns=np.concatenate(ends),
        name=names,
        args=args,
    )


def _said(run: Run, segment: Segment) -> str:
    what = "" if segment.row == NONE else f" {name_of(run.ranks[segment.rank], segment.part, segment.row)}"
    return f"rank {segment.rank} {segment.part}{what}"
