"""From when on a rank's compute needs the result of a collective, where it was never seen to stand still for it."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from overlapscope.timeline.columns import COMPUTE, NONE, Ints
from overlapscope.timeline.dimensions import DATA
from overlapscope.timeline.run import RankTimeline
from overlapscope.whatif.graph import Call

OPTIMIZER: Final = ("Optimizer.step#", "optimizer")
"""How torch's profiler marks an optimizer's step, and our own capture in `events` mode."""


def needed(
    timeline: RankTimeline,
    calls: Sequence[Call],
    launch_ns: Ints,
    end_of_call_ns: Ints,
    span_start_ns: Ints,
    end_ns: int,
    zero_ns: int,
) -> Ints:
    """Give for each of a rank's calls when its result is needed; never before it was there.

    Reduced gradients are needed by the next reduce-scatter (FSDP2 then gives its buffer back), at last by the
    optimizer. Gathered parameters where the next gather of the same phase is launched: FSDP2 does that when it has
    them. Whatever else by the next computation that begins after it: no later than it must be, which a slower link may
    show to be too early.
    """
    found = np.empty(len(calls), np.int64)
    optimizer = _optimizer(timeline, span_start_ns, end_ns, zero_ns)
    scatters = np.sort(launch_ns[[each.op == "reduce_scatter" for each in calls]])
    gathers = {
        phase: np.sort(launch_ns[[each.op == "all_gather" and each.phase == phase for each in calls]])
        for phase in {each.phase for each in calls}
    }
    for at, each in enumerate(calls):
        ended = int(end_of_call_ns[at])
        if each.op == "reduce_scatter":
            found[at] = min(_next(scatters, ended, end_ns), max(optimizer, ended))
        elif each.op == "all_reduce" and each.dimension == DATA:
            found[at] = max(optimizer, ended)
        else:
            follows = _next(span_start_ns, ended, end_ns)
            found[at] = _next(gathers[each.phase], ended, follows) if each.op == "all_gather" else follows
    return np.where(found > end_ns, NONE, found)


def _next(times: Ints, after: int, otherwise: int) -> int:
    at = int(np.searchsorted(times, after, side="left"))
    return int(times[at]) if at < times.size else max(otherwise, after)


def _optimizer(timeline: RankTimeline, span_start_ns: Ints, end_ns: int, zero_ns: int) -> int:
    """Give when the optimizer's first computation of the step began; its end where that is not told."""
    if not span_start_ns.size:
        return end_ns
    begin = int(span_start_ns[0])
    codes = [code for code, name in enumerate(timeline.names) if name.startswith(OPTIMIZER)]
    notes, spans = timeline.annotations, timeline.spans
    marked = notes.start_ns[np.isin(notes.name, codes)] - zero_ns
    marked = marked[(marked >= begin) & (marked < end_ns)]
    if marked.size:
        after = spans.launch_ns - zero_ns if timeline.has_device else spans.start_ns - zero_ns
        known = (spans.kind == COMPUTE) & (spans.launch_ns != NONE if timeline.has_device else after >= 0)
        mine = known & (after >= marked.min()) & (after < end_ns)
        return int((spans.start_ns[mine] - zero_ns).min(initial=end_ns))
    own = spans.start_ns[(spans.kind == COMPUTE) & np.isin(spans.name, codes)] - zero_ns
    own = own[(own >= begin) & (own < end_ns)]
    return int(own.min(initial=end_ns))
