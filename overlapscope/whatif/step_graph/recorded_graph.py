"""Build a graph of each step of a recording, for any kind of parallelism.

Every step with the same collectives as most steps is kept and later replayed by itself. The differences between steps
are the noise, and no two steps have to be matched piece by piece.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.per_rank.steps import step_windows
from overlapscope.errors import InputError
from overlapscope.timeline.columns import COMPUTE, COPY, NONE, Flags, Ints, size
from overlapscope.timeline.intervals import Intervals, clip, complement, difference, union
from overlapscope.timeline.run import RankTimeline, Run
from overlapscope.whatif.ddp.recorded_steps import GLOO_THREADS, worker_starts
from overlapscope.whatif.replay.graph import P2P, Call, Graph
from overlapscope.whatif.step_graph.graph_calls import (
    CallKind,
    RankStepCalls,
    StepCalls,
    described,
    sharing,
    step_calls,
    usual_alone,
)
from overlapscope.whatif.step_graph.rank_program import RankTimes, main_stream, needed_times, rank_program

MOST_STEPS: Final = 16
MOST_CALLS: Final = 20_000
"""Limit on the calls of all ranks and steps; large jobs are replayed with fewer steps."""
UNPAIRED: Final = 0.02
"""Largest share of the calls that may be unmatched on other recorded ranks."""
DATA_READY_NS: Final = 20_000
"""A collective may be recorded as beginning this much before the computation that it depends on has ended."""
SHORT_SIDE: Final = 0.1
"""Largest share of the main stream's wait for computations on side streams in it to count as short. A choice."""
POSSIBLE_NS: Final = 1 << 62
HOW: Final = "record it on every rank with `overlapscope.profile(path, model=model)` around the training loop"


class RecordedGraphs(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The equal steps of one recording."""

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    graphs: tuple[Graph, ...]
    moving: Mapping[int, Intervals]
    """By rank, when collectives moved data in these steps, on its own clock."""
    left_out: int
    earlier: bool
    """Whether equal steps before these are not used, because there are many."""


class _Rank(msgspec.Struct, frozen=True, eq=False):
    """The data of a rank for all steps. Times are on its own clock."""

    timeline: RankTimeline
    call: Ints
    """Call number of each row of its collectives, the same on all members."""
    busy: Intervals
    start_ns: Ints
    launched_ns: Ints
    """Launch times of compute, ascending; `run_until_ns` is when all compute launched until then had ended."""
    run_until_ns: Ints
    launch_of_span_ns: Ints


def recorded_graphs(run: Run, cross_rank: CrossRank) -> RecordedGraphs:
    """Return the graphs of the equal steps. Raises InputError, which says what is missing and what to do."""
    if not run.ranks:
        raise InputError(f"no rank was recorded; {HOW}")
    if len(run.ranks) > 1 and not cross_rank.clocks.comparable(tuple(run.ranks)):
        raise InputError(
            "no collective that could be matched connects all of its ranks, so the clocks of some cannot be aligned "
            "with those of others, and waits between them are not known"
        )
    numbers = _numbers(run, cross_rank)
    ranks = {rank: _rank(each, numbers[rank]) for rank, each in run.ranks.items()}
    windows = {rank: _windows(each) for rank, each in ranks.items()}
    common = sorted(set.intersection(*(set(each) for each in windows.values())))
    if not common:
        raise InputError(f"no step was recorded completely on every rank; {HOW}, with `scope.step()` around each step")
    signature = {step: _signature(run, step) for step in common}
    usual, often = Counter(signature.values()).most_common(1)[0]
    if not usual or not any(usual):
        raise InputError("no collective with times was recorded in its steps: there is nothing to replay")
    if often < max(len(common) / 2, 1):
        raise InputError("its steps differ: fewer than half have the same collectives")
    equal = [step for step in common if signature[step] == usual]
    count = sum(len(each) for each in usual)
    chosen = equal[-max(min(MOST_STEPS, MOST_CALLS // max(count, 1)), 1) :]
    device = any(each.has_device for each in run.ranks.values())
    taken = []
    for step in chosen:
        base = min(windows[rank][step][0] for rank in ranks)
        seen = {
            rank: _seen(each, step, windows[rank][step], _zero(cross_rank, rank, base)) for rank, each in ranks.items()
        }
        made = step_calls(seen, on_host=not device)
        taken.append((seen, made, described(run, made)))
    usual_ns = usual_alone([(calls, made) for _, made, calls in taken])
    steps = [_step(ranks, seen, made, calls, usual_ns) for seen, made, calls in taken]
    return RecordedGraphs(
        ranks=tuple(run.ranks),
        steps=tuple(chosen),
        graphs=tuple(graph for graph, _ in steps),
        moving={rank: union(*((each[rank].starts, each[rank].ends) for _, each in steps)) for rank in ranks},
        left_out=len(common) - len(equal),
        earlier=len(equal) > len(chosen),
    )


def _numbers(run: Run, cross_rank: CrossRank) -> dict[int, Ints]:
    """Return a number for each call, the same on all its members. Raises InputError where too many are unmatched."""
    found = {rank: np.full(size(each.collectives), NONE, np.int64) for rank, each in run.ranks.items()}
    count = 0
    for block in (*cross_rank.matching.blocks, *cross_rank.matching.uneven, *cross_rank.rooted):
        for rank, rows in zip(block.ranks, block.rows, strict=True):
            found[rank][rows] = count + np.arange(block.calls)
        count += block.calls
    for pair in cross_rank.pairs.pairs:
        found[pair.sender][pair.send_rows] = found[pair.receiver][pair.recv_rows] = count + np.arange(
            pair.send_rows.size
        )
        count += pair.send_rows.size
    alone = sum(int((each == NONE).sum()) for each in found.values())
    total = sum(each.size for each in found.values())
    if len(run.ranks) > 1 and alone > UNPAIRED * total:
        reasons = (*cross_rank.matching.reasons, *cross_rank.pairs.reasons)
        why = f" ({reasons[0]})" if reasons else ""
        raise InputError(
            f"{alone} of its {total} collective calls could not be matched with those of other ranks, so waits between "
            f"ranks are not known{why}"
        )
    for numbers in found.values():
        lone = np.flatnonzero(numbers == NONE)
        numbers[lone] = count + np.arange(lone.size)
        count += lone.size
    return found


def _windows(rank: _Rank) -> dict[int, tuple[int, int]]:
    """Return the window of each complete step, without what belongs to the next step already.

    A device's window lasts until the first computation of the next step. Where that waits for a call of its own step,
    as for FSDP's first gather, the window ends when the call begins: a step starts with its own first call, which
    would count twice.
    """
    timeline = rank.timeline
    found = {
        each.step: each.window
        for each in step_windows(timeline)
        if each.complete and each.window is not None and each.window[1] > each.window[0]
    }
    if not timeline.has_device:
        return found
    step_of = {start: step for step, (start, _) in found.items()}
    for step, (start, end) in found.items():
        if end not in step_of:
            continue
        begins = timeline.collectives.start_ns[_rows(timeline, step_of[end])]
        last = int(np.searchsorted(rank.busy.starts, end, side="left")) - 1
        computed = int(rank.busy.ends[last]) if last >= 0 else start
        found[step] = (start, min(max(int(begins.min(initial=end)), computed), end))
    return found


def _usable(timeline: RankTimeline) -> Flags:
    calls = timeline.collectives
    known: Flags = (calls.op >= 0) & (calls.start_ns != NONE) & (calls.end_ns != NONE)
    known &= (calls.end_ns >= calls.start_ns) & (calls.end_ns >= np.where(calls.launch_ns == NONE, 0, calls.launch_ns))
    return known


def _rows(timeline: RankTimeline, step: int) -> Ints:
    calls = timeline.collectives
    rows = np.flatnonzero(_usable(timeline) & (calls.step == step))
    launched = np.where(calls.launch_ns[rows] == NONE, calls.start_ns[rows], calls.launch_ns[rows])
    return rows[np.argsort(launched, kind="stable")]


def _signature(run: Run, step: int) -> tuple[tuple[tuple[str, int], ...], ...]:
    """Return the operations and sizes of a step on every rank, sorted; equal steps have the same."""
    found = []
    for timeline in run.ranks.values():
        calls = timeline.collectives
        rows = _rows(timeline, step)
        found.append(
            tuple(
                sorted(
                    (timeline.names[op], many)
                    for op, many in zip(calls.op[rows].tolist(), calls.bytes[rows].tolist(), strict=True)
                )
            )
        )
    return tuple(found)


def _rank(timeline: RankTimeline, numbers: Ints) -> _Rank:
    spans = timeline.spans
    lanes = np.unique(spans.lane[spans.kind == COMPUTE])
    works = (spans.kind == COMPUTE) | ((spans.kind == COPY) & np.isin(spans.lane, lanes))
    rows = np.flatnonzero(works & (spans.end_ns > spans.start_ns))
    if timeline.has_device and rows.size:
        rows = rows[~_beside_a_wait(timeline, rows)]
    busy = union((spans.start_ns[rows], spans.end_ns[rows]))
    if not timeline.has_device and timeline.basis == "trace":
        busy = difference(busy, _blocked_in_ranges(timeline))
    rows = rows[np.argsort(spans.start_ns[rows], kind="stable")]
    launch = spans.launch_ns[rows] if timeline.has_device else np.full(rows.size, NONE, np.int64)
    known = np.flatnonzero(launch != NONE)
    known = known[np.argsort(launch[known], kind="stable")]
    return _Rank(
        timeline=timeline,
        call=numbers,
        busy=busy,
        start_ns=spans.start_ns[rows],
        launched_ns=launch[known],
        run_until_ns=np.maximum.accumulate(spans.end_ns[rows][known]) if known.size else launch[known],
        launch_of_span_ns=launch,
    )


def _beside_a_wait(timeline: RankTimeline, rows: Ints) -> Flags:
    """Return which of a device's computations are short ones on side streams that nothing recorded waits for.

    The main stream waits for a call that began before they ended, and goes on only after it: FSDP copies so, beside the
    next call, what it reduced before, and what it gathers later. They must not divide the wait in two.
    """
    spans, calls = timeline.spans, timeline.collectives
    start, end, computes = spans.start_ns[rows], spans.end_ns[rows], main_stream(timeline)
    main = np.isin(spans.lane[rows], np.unique(spans.lane[computes]))
    idle = complement(union((start[main], end[main])), int(start.min()), int(end.max()))
    if not idle.starts.size:
        return np.zeros(rows.size, np.bool_)
    known = _usable(timeline)
    begun, done = np.sort(calls.start_ns[known]), np.sort(calls.end_ns[known])
    at = np.maximum(np.searchsorted(idle.starts, start, side="right") - 1, 0)
    found: Flags = ~main & (idle.starts[at] <= start) & (end < idle.ends[at])
    found &= np.searchsorted(begun, end, side="left") > np.searchsorted(done, end, side="right")
    taken = np.bincount(at[found], (end - start)[found].astype(np.float64), idle.starts.size)
    return found & (taken <= SHORT_SIDE * (idle.ends - idle.starts))[at]


def _zero(cross_rank: CrossRank, rank: int, base: int) -> int:
    """Return the time of a rank's own clock when the shared clock shows `base`; drift within a step is ignored."""
    first = cross_rank.clocks.reference_ns
    here = float(cross_rank.clocks.aligned(rank, np.array([base], np.int64))[0])
    zero = base - round(here - (base - first)) if isfinite(here) else POSSIBLE_NS
    if abs(zero) >= POSSIBLE_NS:
        raise InputError(f"the times of rank {rank} cannot be right: its clock cannot be aligned with the others")
    return zero


def _blocked_in_ranges(timeline: RankTimeline) -> Intervals:
    """Return when a CPU thread was blocked in a range of FSDP until the call that it made there had ended.

    torch's profiler has no span for such a wait: in backward the operation around it looks like compute.
    """
    notes, calls = timeline.annotations, timeline.collectives
    wanted = [
        code
        for code, name in enumerate(timeline.names)
        if name.startswith(("FSDP::all_gather (", "FSDP::post_backward_reduce")) or name == "FSDP::all_gather"
    ]
    rows = np.flatnonzero(np.isin(notes.name, wanted))
    rows = rows[np.argsort(notes.start_ns[rows], kind="stable")]
    made = np.flatnonzero(_usable(timeline) & (calls.launch_ns != NONE))
    if not rows.size or not made.size:
        return union()
    at = np.searchsorted(notes.start_ns[rows], calls.launch_ns[made], side="right") - 1
    inside = (at >= 0) & (calls.end_ns[made] <= notes.end_ns[rows[np.maximum(at, 0)]])
    return union((calls.launch_ns[made[inside]], calls.end_ns[made[inside]]))


def _step(
    ranks: Mapping[int, _Rank],
    seen: Mapping[int, RankStepCalls],
    calls: StepCalls,
    described_calls: Sequence[Call],
    usual_ns: Mapping[CallKind, float],
) -> tuple[Graph, dict[int, Intervals]]:
    origin = min(min(each.window[0], int(each.begin_ns.min(initial=each.window[0]))) for each in seen.values())
    end = max(each.window[1] for each in seen.values())
    busy = {rank: _moved_by(clip(ranks[rank].busy, *_own(each)), -each.zero_ns) for rank, each in seen.items()}
    device = any(each.timeline.has_device for each in ranks.values())
    shared = sharing(described_calls, busy, calls, usual_ns)
    place = {number: at for at, number in enumerate(calls.number.tolist())}
    programmes, moving = {}, {}
    for rank, each in seen.items():
        mine = np.array([place[number] for number in each.call.tolist()], np.int64)
        moved = union((calls.begun_ns[mine], each.end_ns))
        moving[rank] = _moved_by(moved, each.zero_ns)
        own = [shared[at] for at in mine.tolist()]
        lane = _lane(ranks[rank], each, mine, calls.done_ns[mine], busy[rank], moved, own, origin)
        programmes[rank] = rank_program(lane)
    graph = Graph(
        calls=tuple(shared),
        programmes=programmes,
        measured_ns=float(end - origin),
        width=1 if device else GLOO_THREADS,
    )
    return graph, moving


def _moved_by(times: Intervals, shift_ns: int) -> Intervals:
    return Intervals(times.starts + shift_ns, times.ends + shift_ns)


def _own(seen: RankStepCalls) -> tuple[int, int]:
    start, end = seen.window
    return start + seen.zero_ns, end + seen.zero_ns


def _seen(rank: _Rank, step: int, window: tuple[int, int], zero: int) -> RankStepCalls:
    timeline, calls = rank.timeline, rank.timeline.collectives
    rows = _rows(timeline, step)
    launch = np.where(calls.launch_ns[rows] == NONE, calls.start_ns[rows], calls.launch_ns[rows])
    begin, end = calls.start_ns[rows].copy(), calls.end_ns[rows]
    message = np.array([timeline.names[op] in P2P for op in calls.op[rows].tolist()], np.bool_)
    if not timeline.has_device:
        # A call that waits for one of gloo's workers does not move data; waiting for a CPU core is part of the call.
        for group in np.unique(calls.group[rows]).tolist():
            chosen = np.flatnonzero((calls.group[rows] == group) & ~message)
            begin[chosen] = worker_starts(launch[chosen], end[chosen], GLOO_THREADS)
    begin = np.minimum(begin, end)
    if timeline.has_device:
        launch = _compute_reached(rank, launch, begin)
        for group in np.unique(calls.group[rows]).tolist():
            # One stream runs in launch order, the same on all members.
            chosen = np.flatnonzero((calls.group[rows] == group) & ~message)
            launch[chosen] = np.maximum.accumulate(launch[chosen])
    shown = (window[0] - zero, window[1] - zero)
    return RankStepCalls(zero, shown, rows, rank.call[rows], launch - zero, begin - zero, end - zero, message)


def _compute_reached(rank: _Rank, launch: Ints, begin: Ints) -> Ints:
    """Return when the device's compute had reached each launch of a collective.

    A collective waits for compute that was launched before it, unless it began earlier: then it does not depend on it.
    """
    if not rank.launched_ns.size:
        return np.minimum(launch, begin)
    at = np.searchsorted(rank.launched_ns, launch, side="right") - 1
    until = np.where(at >= 0, rank.run_until_ns[np.maximum(at, 0)], launch)
    needs = until <= begin + DATA_READY_NS
    return np.where(needs, np.maximum(np.minimum(until, begin), np.minimum(launch, begin)), np.minimum(launch, begin))


def _lane(
    rank: _Rank,
    seen: RankStepCalls,
    mine: Ints,
    done: Ints,
    busy: Intervals,
    moved: Intervals,
    calls: Sequence[Call],
    origin: int,
) -> RankTimes:
    start, end = seen.window
    low, high = (int(np.searchsorted(rank.start_ns, each)) for each in _own(seen))
    spans = rank.start_ns[low:high] - seen.zero_ns
    launched = rank.launch_of_span_ns[low:high]
    wanted = needed_times(rank.timeline, calls, seen.launch_ns, seen.end_ns, spans, busy, end, seen.zero_ns)
    return RankTimes(
        on_device=rank.timeline.has_device,
        start_ns=min(start, int(seen.launch_ns.min(initial=start))) - origin,
        end_ns=end - origin,
        busy=_moved_by(busy, -origin),
        moving=_moved_by(moved, -origin),
        call=mine,
        launch_ns=seen.launch_ns - origin,
        end_of_call_ns=seen.end_ns - origin,
        done_ns=done - origin,
        needed_ns=np.where(wanted == NONE, NONE, wanted - origin),
        span_start_ns=spans - origin,
        span_launch_ns=np.where(launched == NONE, NONE, launched - seen.zero_ns - origin),
    )
