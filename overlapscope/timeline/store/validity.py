"""Check that the tables of a rank are possible: with impossible values, every figure could be wrong."""

from typing import Final

import numpy as np

from overlapscope.timeline.columns import NONE, Annotations, Collectives, HostSpans, Ints, Spans, Steps, Syncs, size
from overlapscope.timeline.operations import MAX_COUNT
from overlapscope.timeline.run import DRY_RUN, RankTimeline

MAX_TIME_NS: Final = 1 << 62
"""No time is farther from the epoch, so that the difference of two times fits in int64."""


def check_possible(timeline: RankTimeline) -> None:
    """Raise ValueError if a row points outside its table, or a time or a size is impossible or missing."""
    _check_references(timeline)
    _check_times(timeline)
    _check_order(timeline)
    _check_sizes(timeline)


def check_host_events(name: str, table: HostSpans | Syncs, *, windows: int, lanes: int) -> None:
    """Raise ValueError as `check_possible` does, for a table of a rank with that many windows and lanes."""
    _check_rows(f"{name}.recording", table.recording, windows)
    _check_rows(f"{name}.lane", table.lane[table.lane != NONE] if isinstance(table, Syncs) else table.lane, lanes)
    if isinstance(table, Syncs):
        _check_rows(f"{name}.awaited_lane", table.awaited_lane[table.awaited_lane != NONE], lanes)
    _check_range(f"{name}.start_ns", table.start_ns, -MAX_TIME_NS, MAX_TIME_NS, required=True)
    _check_range(f"{name}.end_ns", table.end_ns, -MAX_TIME_NS, MAX_TIME_NS, required=True)
    _check_forward(name, table)


def _check_references(timeline: RankTimeline) -> None:
    windows, lanes, calls = size(timeline.recordings), size(timeline.lanes), size(timeline.collectives)
    if windows == 0:
        raise ValueError("no recording window")
    spans, operations = timeline.spans, timeline.operations
    if size(timeline.schedule) not in (0, calls):
        raise ValueError(f"schedule has {size(timeline.schedule)} rows for {calls} collectives")
    for name, column, rows in (
        ("spans.recording", spans.recording, windows),
        ("spans.lane", spans.lane, lanes),
        ("spans.collective", spans.collective[spans.collective != NONE], calls),
        ("collectives.recording", timeline.collectives.recording, windows),
        ("steps.recording", timeline.steps.recording, windows),
        ("annotations.recording", timeline.annotations.recording, windows),
        ("operations.collective", operations.collective[operations.collective != NONE], calls),
        ("operations.awaited", operations.awaited[operations.awaited != NONE], size(operations)),
        ("schedule.launch_order", timeline.schedule.launch_order, size(operations)),
        ("annotations.lane", timeline.annotations.lane, lanes),
    ):
        _check_rows(name, column, rows)


def _check_rows(name: str, column: Ints, rows: int) -> None:
    if column.size and not (column.min() >= 0 and column.max() < rows):
        raise ValueError(f"{name} points outside its table of {rows} rows")


def _check_times(timeline: RankTimeline) -> None:
    for name, column, required in (
        ("spans.start_ns", timeline.spans.start_ns, True),
        ("spans.end_ns", timeline.spans.end_ns, True),
        ("spans.launch_ns", timeline.spans.launch_ns, False),
        ("collectives.start_ns", timeline.collectives.start_ns, False),
        ("collectives.end_ns", timeline.collectives.end_ns, False),
        ("collectives.launch_ns", timeline.collectives.launch_ns, False),
        ("steps.start_ns", timeline.steps.start_ns, timeline.basis != DRY_RUN),
        ("steps.end_ns", timeline.steps.end_ns, timeline.basis != DRY_RUN),
        ("annotations.start_ns", timeline.annotations.start_ns, True),
        ("annotations.end_ns", timeline.annotations.end_ns, True),
        ("recordings.start_ns", timeline.recordings.start_ns, False),
        ("recordings.end_ns", timeline.recordings.end_ns, False),
        ("recordings.last_launch_ns", timeline.recordings.last_launch_ns, False),
        ("recordings.lost_launch_ns", timeline.recordings.lost_launch_ns, False),
        ("gradients.ready_ns", timeline.gradients.ready_ns, False),
        ("collectives.waited_ns", timeline.collectives.waited_ns, False),
        ("telemetry.time_ns", timeline.telemetry.time_ns, False),
    ):
        _check_range(name, column, -MAX_TIME_NS, MAX_TIME_NS, required=required)


def _check_sizes(timeline: RankTimeline) -> None:
    for name, column in (
        ("collectives.elements", timeline.collectives.elements),
        ("collectives.bytes", timeline.collectives.bytes),
        ("collectives.received_bytes", timeline.collectives.received_bytes),
        ("collectives.group_size", timeline.collectives.group_size),
        ("gradients.elements", timeline.gradients.elements),
        ("operations.flops", timeline.operations.flops),
        ("operations.read_bytes", timeline.operations.read_bytes),
        ("operations.written_bytes", timeline.operations.written_bytes),
        ("operations.fused_bytes", timeline.operations.fused_bytes),
        ("operations.live_bytes", timeline.operations.live_bytes),
    ):
        _check_range(name, column, -1, MAX_COUNT, required=False)


def _check_range(name: str, column: Ints, above: int, below: int, *, required: bool) -> None:
    if not column.size or (above < column.min() and column.max() < below):
        return
    missing = column == NONE
    if required and missing.any():
        raise ValueError(f"{name} is missing in {int(missing.sum())} of {column.size} rows")
    beyond = ((column <= above) & ~missing) | (column >= below)
    if beyond.any():
        raise ValueError(
            f"{name} of {column[np.argmax(beyond)]} cannot be, in {int(beyond.sum())} of {column.size} rows"
        )


def _check_order(timeline: RankTimeline) -> None:
    for name, table in (
        ("spans", timeline.spans),
        ("collectives", timeline.collectives),
        ("steps", timeline.steps),
        ("annotations", timeline.annotations),
    ):
        _check_forward(name, table)


def _check_forward(name: str, table: Spans | Collectives | Steps | Annotations | HostSpans | Syncs) -> None:
    reversed_rows = (table.end_ns < table.start_ns) & (table.end_ns != NONE) & (table.start_ns != NONE)
    if reversed_rows.any():
        raise ValueError(f"{name}: {int(reversed_rows.sum())} of {reversed_rows.size} rows end before they start")
