"""What the calls are that exposed communication consists of: averages of parameters, gradients that go beside backward,
or calls that are all at one bandwidth."""

from typing import Final

import numpy as np

from overlapscope.advice.calls.call_rates import ALIKE, MOST_ALIKE, OTHER_SIZES, exposed_of_calls_ns
from overlapscope.advice.calls.repeated_broadcasts import REDUCE_TO_ONE
from overlapscope.advice.rule_input import LARGE_BYTES, NOTHING, RuleInput, Windows, time_of
from overlapscope.analysis.common.user_ranges import innermost_told
from overlapscope.analysis.exposure.longer_than_like import LIKE_CALLS, LONGER
from overlapscope.analysis.per_rank.optimizers import follow_optimizer, launch_times
from overlapscope.errors import HostEventsError
from overlapscope.timeline.columns import NONE, RUNTIME, Ints
from overlapscope.timeline.dimensions import BACKWARD
from overlapscope.timeline.intervals import BusyTime
from overlapscope.timeline.lazy_host_spans import select_host_spans
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import bus_factor
from overlapscope.timeline.rows import factorize_rows, sort_order, split_by, unique
from overlapscope.timeline.run import RankTimeline

MOSTLY: Final = 0.5
IN_A_ROW_NS: Final = 10_000
"""Calls of a group that follow each other this closely wait for each other, as those of buckets that are ready. A
choice: NCCL's kernels begin a few microseconds apart on a stream."""
MUCH_BESIDE: Final = 0.2
"""Reductions with more than this share beside compute are no calls that compute waits for each time. A choice."""
REDUCE: Final = ("all_reduce", "reduce_scatter")


def average_parameters(given: RuleInput) -> bool:
    """Return whether most exposed time is of calls that follow the optimizer, and in some steps alone: they average
    parameters (local SGD)."""
    averaged = every = 0
    for timeline, windows in given.some_at_hand():
        exposed = exposed_of_calls_ns(given, timeline, windows)
        every += int(exposed.sum())
        averaged += int(exposed[_averages(timeline, windows, exposed)].sum())
    return every > 0 and averaged > MOSTLY * every


def _averages(timeline: RankTimeline, windows: Windows, exposed_ns: Ints) -> Ints:
    """Return the exposed calls that follow the optimizer, where they do so in some steps alone."""
    rows = np.flatnonzero(follow_optimizer(timeline) & (exposed_ns > 0))
    return rows if unique(timeline.collectives.step[rows]).size < len(windows) else rows[:0]


def reduce_after_optimizer(given: RuleInput) -> bool:
    """Return whether most exposed time is of large reductions that follow the optimizer, and of what is sent back after
    these: no gradients of their step."""
    own_ns = every = 0
    for timeline, windows in given.some_at_hand():
        exposed = exposed_of_calls_ns(given, timeline, windows)
        every += int(exposed.sum())
        own_ns += int(exposed[_reductions_after(timeline)].sum())
    return every > 0 and own_ns > MOSTLY * every


def _reductions_after(timeline: RankTimeline) -> Ints:
    """Return the large reductions that follow the optimizer, and the broadcasts after reductions to one rank."""
    calls, names = timeline.collectives, timeline.names
    follow = (calls.bytes >= LARGE_BYTES) & follow_optimizer(timeline)
    to_one, sent = (follow & rows_named(calls.op, names, op.__eq__) for op in (REDUCE_TO_ONE, "broadcast"))
    sent &= np.isin(calls.step, calls.step[to_one])
    return np.flatnonzero(follow & rows_named(calls.op, names, REDUCE.__contains__) | to_one | sent)


def range_after_optimizer(given: RuleInput, *, averages: bool) -> str | None:
    """Return the name of the range, of the user or a framework, that launches more than half of the exposed time of the
    calls after the optimizer: of `averages`, or of large reductions. None where no range does."""
    by_name: dict[str | None, int] = {}
    for timeline, windows in given.some_at_hand():
        exposed = exposed_of_calls_ns(given, timeline, windows)
        rows = _averages(timeline, windows, exposed) if averages else _reductions_after(timeline)
        around = innermost_told(timeline, _launching_lanes(timeline, rows), launch_times(timeline, rows))
        for row, ns in zip(around.tolist(), exposed[rows].tolist(), strict=True):
            name = None if row == NONE else timeline.name(int(timeline.annotations.name[row]))
            by_name[name] = by_name.get(name, 0) + ns
    most = max(by_name, key=by_name.__getitem__, default=None)
    return most if most is not None and 2 * by_name[most] > sum(by_name.values()) else None


def _launching_lanes(timeline: RankTimeline, rows: Ints) -> Ints:
    """Return the thread that launched each of these calls; where no call of the runtime shows it, the one thread that
    has ranges, and NONE where several have."""
    spans, threads = timeline.spans, unique(timeline.annotations.lane)
    lanes = np.full(timeline.collectives.op.size, threads[0] if threads.size == 1 else NONE)
    try:
        host = select_host_spans(timeline.host, (RUNTIME,))
    except HostEventsError:  # the other figures of the rank do not need them
        return lanes[rows]
    launched = np.flatnonzero((spans.collective != NONE) & (spans.correlation != NONE))
    order = np.argsort(host.correlation, kind="stable")
    at = np.searchsorted(host.correlation[order], spans.correlation[launched])
    found = np.append(order, 0)[at]
    known = np.append(host.correlation[order], NONE)[at] == spans.correlation[launched]
    lanes[spans.collective[launched[known]]] = host.lane[found[known]]
    return lanes[rows]


def go_beside_backward(given: RuleInput) -> bool:
    """Return whether reductions that begin in backward, or that Horovod makes, are overlapped in part: gradients go
    beside it already."""
    horovod = "horovod" in given.job.frameworks  # its own thread launches calls, of gradients alone, in no phase
    ran = beside = 0
    for timeline, _ in given.some_at_hand():
        calls, names = timeline.collectives, timeline.names
        backward = rows_named(calls.phase, names, BACKWARD.__eq__) | (horovod & (calls.phase < 0))
        rows = rows_named(calls.op, names, REDUCE.__contains__) & backward
        rows &= (calls.start_ns != NONE) & (calls.end_ns != NONE)
        start, end = calls.start_ns[rows], calls.end_ns[rows]
        ran += int((end - start).sum())
        beside += int(BusyTime(given.coverage[timeline.rank].compute).within(start, end).sum())
    return beside > NOTHING * ran


def run_on_in_rows(given: RuleInput) -> bool:
    """Return whether reductions of which no phase is known are overlapped in part, and nearly all of their exposed time
    is of rows of calls that begin beside compute and run on after it, as buckets that are reduced beside backward do.
    """
    ran = beside = exposed_ns = in_rows_ns = 0
    for timeline, windows in given.some_at_hand():
        calls, names = timeline.collectives, timeline.names
        exposed = exposed_of_calls_ns(given, timeline, windows)
        rows = rows_named(calls.op, names, REDUCE.__contains__) & (calls.start_ns != NONE) & (calls.end_ns != NONE)
        if (calls.phase[rows] >= 0).any():
            return False
        own = np.flatnonzero(rows)
        own = own[sort_order(calls.group[own], calls.start_ns[own])]
        start, end, group = calls.start_ns[own], calls.end_ns[own], calls.group[own]
        compute = BusyTime(given.coverage[timeline.rank].compute)
        computed = compute.within(start, end)
        ran, beside = ran + int((end - start).sum()), beside + int(computed.sum())
        follows = (group[1:] == group[:-1]) & (start[1:] - end[:-1] <= IN_A_ROW_NS)
        begins = np.append(True, ~follows)[: own.size]
        row, first = np.cumsum(begins) - 1, np.flatnonzero(begins)
        begins_beside = compute.within(start[first], start[first] + 1) > 0
        runs_on = begins_beside & (np.bincount(row, minlength=first.size) > 1)
        exposed_ns += int(exposed[own].sum())
        in_rows_ns += int(exposed[own][runs_on[row]].sum())
    return beside > MUCH_BESIDE * ran and in_rows_ns >= MOST_ALIKE * exposed_ns > 0


def one_bandwidth_gbs(given: RuleInput) -> float | None:
    """Return the bus bandwidth at which nearly all large calls transfer, of whatever size, where transfer takes most of
    a step, and longer than compute; None elsewhere, or where it is not known."""
    took, speeds, sizes, windows_seen = [], [], [], 0
    for timeline, windows in given.some_ranks():
        calls, names = timeline.collectives, timeline.names
        transfer = given.transfers[timeline.rank].transfer_ns
        rows = (calls.bytes >= LARGE_BYTES) & (transfer > 0) & (calls.start_ns != NONE)
        own = np.flatnonzero(rows)
        own = own[BusyTime(time_of(windows)).within(calls.start_ns[own], calls.start_ns[own] + 1) > 0]
        kind, first = factorize_rows([calls.op[own], calls.group_size[own]])
        kinds = zip(calls.op[own[first]].tolist(), calls.group_size[own[first]].tolist(), strict=True)
        factors = [bus_factor(names[op], ranks) if ranks > 0 else 1.0 for op, ranks in kinds]
        took.append(transfer[own])
        speeds.append(calls.bytes[own] * np.array(factors, np.float64)[kind] / transfer[own])
        sizes.append(calls.bytes[own])
        windows_seen += len(windows)
    every, speed, bytes_ = (np.concatenate(each) if each else np.empty(0) for each in (took, speeds, sizes))
    per_step = float(every.sum()) / max(windows_seen, 1)
    if per_step <= max(given.figures.compute_ns or 0, MOSTLY * given.step_ns):
        return None
    order = np.argsort(speed)
    usual = float(speed[order][np.searchsorted(np.cumsum(every[order]), every.sum() / 2)])
    alike = np.abs(speed - usual) <= ALIKE * usual
    of_sizes = bytes_[alike].max() >= OTHER_SIZES * bytes_[alike].min()
    return usual if of_sizes and every[alike].sum() >= MOST_ALIKE * every.sum() else None


def take_alike(given: RuleInput) -> bool:
    """Return whether nearly all exposed time is of calls that take about as long as the shortest of their like: of
    those of one operation, group, type and size the second shortest, as one that is too short may be damage."""
    alike = every = 0
    for timeline, windows in given.some_at_hand():
        calls, exposed = timeline.collectives, exposed_of_calls_ns(given, timeline, windows)
        every += int(exposed.sum())
        own = np.flatnonzero((calls.start_ns != NONE) & (calls.end_ns != NONE) & (calls.bytes != NONE))
        took = (calls.end_ns - calls.start_ns)[own]
        kind, _ = factorize_rows([calls.op[own], calls.group[own], calls.dtype[own], calls.bytes[own]])
        for rows in split_by(kind):
            if rows.size >= LIKE_CALLS:
                shortest = np.partition(took[rows], 1)[1]
                alike += int(exposed[own[rows]][took[rows] <= LONGER * shortest].sum())
    return every > 0 and alike >= MOST_ALIKE * every
