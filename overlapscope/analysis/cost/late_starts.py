"""Find how long devices had begun nothing yet while others of the job had, though their hosts were recorded.

A rank's window begins with its first kernel. Where its loader, or other work of its host, delays that kernel, others
wait for the rank, exposed, in windows of their own; that its device was idle meanwhile lies in no window.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.exposure.activities import AHEAD_NS
from overlapscope.analysis.per_rank.steps import StepWindow
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import RankTimeline, Run

LEAST_NS: Final = 3_000_000
"""A rank begins late from this time on, beyond what its clock may be off. A choice: the length of a long pause."""
WORTH: Final = 0.02
"""Late begins count from this share of the time of all ranks on. A choice: two recordings of unchanged code differ by
as much."""
Window = tuple[int, int]


class LateStarts(msgspec.Struct, kw_only=True, frozen=True):
    """Idle time before the first kernels of ranks, which no window holds."""

    rank: int
    """The rank that has most of it."""
    most_ns: int
    """How much that is."""
    mean_ns: int
    """Mean over the ranks that figures are of."""


def late_starts(
    run: Run,
    clocks: Clocks | None,
    wholes: Mapping[int, Sequence[Window]],
    steps: Mapping[int, Sequence[StepWindow]],
    of_ns: float,
) -> LateStarts | None:
    """Return for how long ranks had begun nothing while others had; None where that is little of the time of all ranks,
    `of_ns`, or not known.

    `wholes` are the parts of each rank's recording, from its first span to its last, and `steps` those of its steps
    that figures are of, without any where they are of the whole. Time counts from the first moment that figures of
    another rank are of, and from the first mark or range of the rank's own host on: before it nothing shows that the
    job had begun. A first span that had waited for its stream shows that the device was busy with earlier work.
    """
    if clocks is None or len(wholes) < 2 or not clocks.comparable(list(wholes)):
        return None
    if not all(run.ranks[rank].has_device for rank in wholes):
        return None
    begun = {rank: _aligned(clocks, rank, own[0][0]) for rank, own in wholes.items()}
    counted = [_aligned(clocks, rank, each.window[0]) for rank, own in steps.items() for each in own[:1] if each.window]
    first = min(counted or begun.values())
    least_ns = LEAST_NS + (clocks.residual_ns or 0.0)
    found = {}
    for rank, at in begun.items():
        shown_ns = _host_begun_ns(run.ranks[rank], wholes[rank][0][0]) if at - first >= least_ns else None
        if shown_ns is None:
            continue
        late_ns = at - max(first, _aligned(clocks, rank, shown_ns)) - _ends_with_ns(steps.get(rank, ()))
        if late_ns >= least_ns:
            found[rank] = late_ns
    if not found or sum(found.values()) < WORTH * of_ns:
        return None
    most = max(found, key=found.__getitem__)
    return LateStarts(rank=most, most_ns=round(found[most]), mean_ns=round(sum(found.values()) / len(wholes)))


def _aligned(clocks: Clocks, rank: int, ns: int) -> float:
    return float(clocks.aligned(rank, np.array([ns], np.int64))[0])


def _host_begun_ns(timeline: RankTimeline, first_span_ns: int) -> int | None:
    """Return when the first mark of a step, or named range of the host, began in the recording of a rank's first span;
    None without any, and where that span was not launched in the recording, or had waited for its stream."""
    rows = np.flatnonzero(timeline.spans.start_ns == first_span_ns)
    launches = timeline.spans.launch_ns[rows]
    if (launches == NONE).any() or (first_span_ns - launches >= AHEAD_NS).any():
        return None
    recording = timeline.spans.recording[rows[0]]
    begins = (table.start_ns[table.recording == recording] for table in (timeline.steps, timeline.annotations))
    return min((int(each.min()) for each in begins if each.size), default=None)


def _ends_with_ns(steps: Sequence[StepWindow]) -> int:
    """Return how long the last of these steps lasts behind its own work: that is what delays the step after it, which
    is not counted. So the windows hold as many such delays as there are steps, without that of the first."""
    return steps[-1].behind_its_work_ns if steps else 0
