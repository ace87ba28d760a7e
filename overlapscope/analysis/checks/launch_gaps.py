"""Find launches whose kernels the recorder lost, and device work that was launched before the recording began."""

import msgspec
import numpy as np

from overlapscope.analysis.common.findings import MILLISECOND_NS, Finding
from overlapscope.display import list_some
from overlapscope.ingest.build.launch_links import LAUNCHES_ONE, NO_KERNELS, lost_stretches
from overlapscope.timeline.columns import NONE, RUNTIME, Ints
from overlapscope.timeline.lazy_host_spans import select_host_spans
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import largest_by, smallest_by, values_in
from overlapscope.timeline.run import RankTimeline, Run


class _Lost(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of launches of a rank without a kernel; times on its own clock."""

    launches: int
    of: int
    start_ns: int
    end_ns: int
    first_ns: int
    """The rank's first launch."""
    others: int
    """Such launches in other stretches."""
    steps: list[int]
    """The steps in which launches of any stretch lie, and others that were not recorded completely."""


def launch_gaps(run: Run) -> list[Finding]:
    """Return a finding for each rank of which many launches in a row have no kernel, while others have one."""
    found = {rank: _lost(timeline) for rank, timeline in run.ranks.items()}
    return [_finding(rank, each, run.ranks[rank].basis) for rank, each in found.items() if each is not None]


def _finding(rank: int, lost: _Lost, basis: str) -> Finding:
    begin, end = ((each - lost.first_ns) / MILLISECOND_NS for each in (lost.start_ns, lost.end_ns))
    one = len(lost.steps) == 1
    more = f", nor have {lost.others} more in other stretches" if lost.others else ""
    left_out = f"; step{'' if one else 's'} {list_some(lost.steps)} {'is' if one else 'are'} left out"
    return Finding(
        id=f"lost_kernels:rank{rank}",
        severity="warning",
        title=f"rank {rank}: {lost.launches} launches in a row of {lost.of}, from {begin:.1f} to "
        f"{end:.1f} ms after the first, have no kernel recorded{more}{left_out if lost.steps else ''}",
        evidence={
            "rank": rank, "launches": lost.launches, "of": lost.of, "since_ns": lost.start_ns, "until_ns": lost.end_ns,
            "other_launches": lost.others, "steps": lost.steps,
        },
        known_from=basis,
    )  # fmt: skip


def _lost(timeline: RankTimeline) -> _Lost | None:
    """Return the longest stretch of such launches, with the steps of all, and others that are left out; None
    where the build marked no step, and saw none lost at the end.

    At the end of a recording, launches may wait for their turn on the device: only more than a step of them is lost.
    """
    steps, recordings = timeline.steps, timeline.recordings
    marked = steps.cut.any() or (recordings.lost_launch_ns != NONE).any()
    if not timeline.has_device or not marked or timeline.host_is_lost or any(map(NO_KERNELS.search, timeline.names)):
        return None
    host = select_host_spans(timeline.host, (RUNTIME,))
    rows = np.flatnonzero(rows_named(host.name, timeline.names, LAUNCHES_ONE.search) & (host.correlation != NONE))
    rows = rows[np.argsort(host.start_ns[rows], kind="stable")]
    launch_ns = host.start_ns[rows]
    found = lost_stretches(np.isin(host.correlation[rows], timeline.spans.correlation))
    usual_ns = float(np.median(steps.end_ns - steps.start_ns)) if steps.start_ns.size else np.inf
    found = [
        (first, last) for first, last in found if last < rows.size or launch_ns[last - 1] - launch_ns[first] >= usual_ns
    ]
    if not found:
        return None
    within = steps.cut.copy()
    for first, last in found:
        within |= (steps.start_ns <= launch_ns[last - 1]) & (launch_ns[first] < steps.end_ns)
    first, last = max(found, key=lambda each: each[1] - each[0])
    return _Lost(
        launches=last - first, of=rows.size, start_ns=int(launch_ns[first]), end_ns=int(launch_ns[last - 1]),
        first_ns=int(launch_ns[0]), others=sum(end - begin for begin, end in found) - (last - first),
        steps=values_in(steps.step[within]).tolist(),
    )  # fmt: skip


def launched_before(timeline: RankTimeline) -> bool:
    """Return whether every device span without a launch runs before those with one on its stream; on a stream without
    these, before the first launch: a stream runs what it is given in order, so these were launched before all that are
    recorded."""
    spans, lanes = timeline.spans, int(timeline.spans.lane.max(initial=0)) + 1
    linked = spans.launch_ns != NONE
    if not linked.any():
        return False
    first: Ints = smallest_by(spans.lane[linked], spans.start_ns[linked], lanes)
    has_linked = np.bincount(spans.lane[linked], minlength=lanes) > 0
    first = np.where(has_linked, first, spans.launch_ns[linked].min())
    last: Ints = largest_by(spans.lane[~linked], spans.start_ns[~linked], lanes)
    return bool((last <= first).all())
