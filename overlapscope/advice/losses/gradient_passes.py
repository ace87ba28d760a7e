"""The reductions of gradients by passes of backward: whether backward waits for each, and what could run beside them.

A step may have several passes, each followed by its own optimizer or another forward. What is computed between the last
reduction of one and the first of the next is nothing that could run beside them.

Where kernels alone are known of calls, no operation and no size, those of DDP are taken to reduce gradients that it
launches between a forward and the next optimizer, where forwards launch none: what tensor parallelism, FSDP and
SyncBatchNorm send in backward they also send in forward.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from overlapscope.advice.calls.call_rates import MOST_ALIKE
from overlapscope.advice.losses.exposed_calls import REDUCE
from overlapscope.advice.losses.gradient_accumulation import ACCUMULATES, times_in
from overlapscope.advice.rule_input import LARGE_BYTES, NOTHING, RuleInput, Windows, window_of
from overlapscope.analysis.graph.building.stream_waits import WAITS_FOR_EVENT
from overlapscope.analysis.per_rank.optimizers import LATEST, compute_launched, launch_times, optimizer_begins
from overlapscope.timeline.columns import COMM, NONE, RUNTIME, Collectives, Flags, Ints
from overlapscope.timeline.dimensions import BACKWARD, DDP_FORWARD
from overlapscope.timeline.intervals import BusyTime, length, union
from overlapscope.timeline.lazy_host_spans import select_host_spans
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import COMPILED_GRAPH, UNNAMED
from overlapscope.timeline.rows import factorize_rows, largest_by, sort_order, split_by, sum_by
from overlapscope.timeline.run import RankTimeline
from overlapscope.whatif.parallelism import shows_ddp

AT_ONCE: Final = 0.05
"""Calls of a pass whose launches lie within this share of a step are launched together. A choice."""


def backward_waits_ns(given: RuleInput) -> float:
    """Return what backward would gain if it waited once for all reductions of gradients, not for each, at most: what is
    computed between those of a pass, and the exposed time of all but its last, beside which nothing is left to run; ns
    a step, 0 where they are overlapped."""
    found = []
    ran = beside = 0
    for timeline, windows in given.some_ranks():
        compute = BusyTime(given.coverage[timeline.rank].compute)
        rows, which = _by_pass(timeline, windows)
        start, end = timeline.collectives.start_ns[rows], timeline.collectives.end_ns[rows]
        own_ns = compute.within(start, end)
        ran, beside = ran + int((end - start).sum()), beside + int(own_ns.sum())
        goes_on, passes = which[1:] == which[:-1], int(which.max(initial=-1)) + 1
        between = compute.within(end[:-1], np.maximum(start[1:], end[:-1]))
        exposed = (end - start - own_ns)[:-1]
        computes, exposes = (sum_by(which[:-1][goes_on], ns[goes_on], passes) for ns in (between, exposed))
        found.append(int(np.minimum(computes, exposes).sum()) / len(windows))
    return sum(found) / len(found) if ran and beside <= NOTHING * ran else 0.0


def hosts_make_wait(given: RuleInput) -> bool:
    """Return whether hosts make a stream wait after nearly each of these reductions, before they launch what follows:
    for the reduction, as a call does that is not asynchronous.

    Without such waits something else keeps compute from running beside calls. DDP makes compute wait after the last
    call of a pass, and the stream of a call wait before its launch: neither is looked at.
    """
    made = every = 0
    for timeline, windows in given.some_at_hand():
        if timeline.host_is_lost or not any(map(WAITS_FOR_EVENT.search, timeline.names)):
            continue
        rows, which = _by_pass(timeline, windows)
        launch = timeline.collectives.launch_ns[rows]
        launch = launch[(launch != NONE) & (np.append(which[1:], NONE) == which)]
        spans = timeline.spans
        launched = np.flatnonzero(spans.launch_ns != NONE)
        launched = launched[np.argsort(spans.launch_ns[launched], kind="stable")]
        after = np.searchsorted(spans.launch_ns[launched], launch, side="right")
        launch, following = launch[after < launched.size], launched[after[after < launched.size]]
        other = spans.kind[following] != COMM
        host = select_host_spans(timeline.host, (RUNTIME,))
        waits = np.sort(host.start_ns[rows_named(host.name, timeline.names, WAITS_FOR_EVENT.search)])
        first = np.append(waits, LATEST)[np.searchsorted(waits, launch)]
        made += int(np.count_nonzero(other & (first < spans.launch_ns[following])))
        every += int(np.count_nonzero(other))
    return every > 0 and made >= MOST_ALIKE * every


def beside_backward_ns(given: RuleInput) -> float:
    """Return how much of backward could run beside reductions of gradients that are overlapped with nothing, at most;
    ns a step, infinite where that is not known.

    DDP sends buckets in the order in which gradients were ready in its first step, unless it looks for unused
    parameters: those of a pass that it launches at once were ready at once, when backward ended. Beside those between
    which it launches compute, that can run.
    """
    found = after_first_gradient_ns(given)
    ranks = list(given.some_at_hand()) if shows_ddp(given.run) else []
    if not ranks or any(finds_unused_parameters(timeline) for timeline, _ in ranks):
        return found
    at_once = [are_together(apart_in_passes_ns(timeline), given.step_ns) for timeline, _ in ranks]
    if all(at_once):
        return 0.0
    known = all(_by_pass(timeline, windows)[0].size for timeline, windows in ranks)
    return min(found, backward_waits_ns(given)) if known and None not in at_once else found


def after_first_gradient_ns(given: RuleInput) -> float:
    """Return how much compute is launched after the first gradient of a pass was ready, and before its last reduction;
    ns a step, of the rank with most. Infinite where no such pass is known, or it is not known when gradients were
    ready."""
    each = [_launched_after_ns(timeline, windows) / len(windows) for timeline, windows in given.some_at_hand()]
    return max(each, default=np.inf)


def _launched_after_ns(timeline: RankTimeline, windows: Windows) -> float:
    """Return how long the compute lasts that all passes in these windows launch after their first gradients.

    Gradients are ready when autograd stores them. A compiled graph stores all of them at its end, whenever each was
    computed.
    """
    rows, which = _by_pass(timeline, windows)
    stores = times_in(timeline, ACCUMULATES)
    compiled = any(name.startswith(COMPILED_GRAPH) for name in timeline.names)
    if not rows.size or not stores.starts.size or compiled:
        return np.inf
    last = largest_by(which, launch_times(timeline, rows), int(which.max()) + 1)
    marks = _pass_marks(timeline)
    # What was stored before the pass before ended, or an optimizer or a forward began, is of that.
    since = np.maximum(np.append(NONE, last[:-1]), np.append(NONE, marks)[np.searchsorted(marks, last)])
    at = np.searchsorted(stores.starts, since, side="right")
    first, ready = (np.append(times, LATEST)[at] for times in (stores.starts, stores.ends))
    if (first > last).any():
        return np.inf
    return float(compute_launched(timeline, np.minimum(ready, last), last).sum())


def apart_in_passes_ns(timeline: RankTimeline) -> list[int | None]:
    """Return for each pass of a step how far the launches of its large calls lie apart, or for how long none of them
    runs between, if that is longer and times are known; None of a single call."""
    calls = timeline.collectives
    own = np.flatnonzero((calls.launch_ns != NONE) & (calls.bytes >= LARGE_BYTES) & (calls.step != NONE))
    number = np.searchsorted(_pass_marks(timeline), calls.launch_ns[own])
    passes = (own[rows] for rows in split_by(factorize_rows([calls.step[own], number])[0]))
    return [_apart_ns(calls, each) if each.size > 1 else None for each in passes]


def _apart_ns(calls: Collectives, rows: Ints) -> int:
    launch = calls.launch_ns[rows]
    timed = rows[(calls.start_ns[rows] != NONE) & (calls.end_ns[rows] != NONE)]
    start, end = calls.start_ns[timed], calls.end_ns[timed]
    between = int(end.max() - start.min()) - length(union((start, end))) if timed.size else 0
    return max(int(launch.max() - launch.min()), between)


def are_together(apart_ns: Sequence[int | None], step_ns: int) -> bool | None:
    """Return whether each pass launches all its calls at about one time, and one begins as the other ends: a host that
    is ahead launches them together, whenever their data are ready. None where no pass has more than one, or launches or
    sizes are not known."""
    several = [ns for ns in apart_ns if ns is not None]
    return max(several) <= AT_ONCE * step_ns if several else None


def finds_unused_parameters(timeline: RankTimeline) -> bool:
    """Return whether a rank of DDP reduces the map of the parameters it used, as `find_unused_parameters=True` makes
    it do in each step: int32, after the gradients, in backward (torch/csrc/distributed/c10d/reducer.cpp)."""
    calls, names = timeline.collectives, timeline.names
    maps = rows_named(calls.op, names, "all_reduce".__eq__) & rows_named(calls.dtype, names, "int32".__eq__)
    maps &= rows_named(calls.phase, names, BACKWARD.__eq__)
    return bool(maps.any())


def _pass_marks(timeline: RankTimeline) -> Ints:
    """Return when what separates passes of backward began on the host: optimizers, and forwards of DDP; ascending."""
    notes = timeline.annotations
    forwards = notes.start_ns[rows_named(notes.name, timeline.names, DDP_FORWARD.__eq__)]
    return np.sort(np.append(optimizer_begins(timeline), forwards))


def _unnamed_reductions(timeline: RankTimeline) -> Flags:
    """Return which calls of no known operation and size DDP launched between a forward and the next optimizer; none of
    a rank whose forwards launch such calls, too."""
    calls, names, notes = timeline.collectives, timeline.names, timeline.annotations
    launch = calls.launch_ns
    unnamed = rows_named(calls.op, names, UNNAMED.__eq__) & (calls.bytes == NONE) & (launch != NONE)
    forwards = rows_named(notes.name, names, DDP_FORWARD.__eq__)
    begun, ended = np.sort(notes.start_ns[forwards]), np.sort(notes.end_ns[forwards])
    after = np.append(NONE, ended)[np.searchsorted(ended, launch, side="right")]
    in_forward = np.searchsorted(begun, launch, side="right") > np.searchsorted(ended, launch, side="right")
    if (unnamed & in_forward).any():
        return np.zeros_like(unnamed)
    optimizers = optimizer_begins(timeline)
    before = np.append(optimizers, LATEST)[np.searchsorted(optimizers, after)]
    return np.asarray(unnamed & (after != NONE) & (launch < before) & (before < LATEST), np.bool_)


def _by_pass(timeline: RankTimeline, windows: Windows) -> tuple[Ints, Ints]:
    """Return rows of large reductions in backward, by their begin, and the number of the pass of each.

    Only of groups whose like no forward makes, as that of tensor parallelism does, and which nothing is gathered
    between. Of unnamed calls those that can be no others.
    """
    calls, names = timeline.collectives, timeline.names
    unnamed = _unnamed_reductions(timeline)
    sized = unnamed | (calls.bytes >= LARGE_BYTES)
    timed = np.flatnonzero((calls.start_ns != NONE) & (calls.end_ns != NONE) & sized)
    window = window_of(windows, calls.start_ns[timed])
    timed, window = timed[window != NONE], window[window != NONE]
    order = sort_order(window, calls.start_ns[timed])
    timed, window = timed[order], window[order]
    reduces = rows_named(calls.op[timed], names, REDUCE.__contains__)
    backward = rows_named(calls.phase[timed], names, BACKWARD.__eq__)
    in_pass = unnamed[timed] | (reduces & backward)
    kept = np.zeros(timed.size, np.bool_)
    for own in split_by(factorize_rows([calls.group[timed], window])[0]):
        last = int(np.flatnonzero((unnamed[timed] | backward)[own]).max(initial=-1))
        # Whatever the group does until its last call of backward is a reduction of gradients.
        until_last = own[: last + 1]
        kept[until_last] = bool(in_pass[until_last].all())
    rows = timed[kept]
    before = np.searchsorted(_pass_marks(timeline), launch_times(timeline, rows))
    return rows, factorize_rows([window[kept], before])[0]
