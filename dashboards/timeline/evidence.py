"""Where on a timeline a sentence is proven: the longest time of a kind, or what a recommendation rests on."""

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from overlapscope.advice.losses.largest_loss import OF_EXPOSED
from overlapscope.analysis.common.cause_table import CAUSES, WAITS_FOR_ANOTHER_RANK
from overlapscope.analysis.per_rank.occupancy import COMPUTE_ONLY, COPY_ONLY, EXPOSED, IDLE, OVERLAPPED
from overlapscope.analysis.result import Recommendation
from overlapscope.errors import UsageError
from overlapscope.timeline.columns import Ints
from overlapscope.timeline.intervals import union
from overlapscope_dashboards.runs.open_run import OpenRun
from overlapscope_dashboards.timeline.labels import NAMES
from overlapscope_dashboards.timeline.source import TimelineSource

WAITING: Final = "waiting"
STATES: Final = {
    "exposed": EXPOSED, "idle": IDLE, "compute": COMPUTE_ONLY, "hidden": OVERLAPPED, "copy": COPY_ONLY,
}  # fmt: skip
_NAMED: Final = re.compile(r"longest-([a-z0-9_]+)(?:-([0-9]{1,9}))?|(loss)|advice-([a-z0-9_.:]+)")


def named_moment(opened: OpenRun, source: TimelineSource, name: str) -> tuple[int, int] | None:
    """Return rank and moment (ns from the run's start) of what a name stands for; None where it is no name.

    Names are `longest-KIND`, `longest-KIND-RANK` (KIND is one of `STATES`, `waiting` or a cause), `loss`, the longest
    time without compute of a typical step, and `advice-ID`. Raises UsageError where there is no such time.
    """
    given = _NAMED.fullmatch(name)
    if given is None:
        return None
    kind, rank, loss, advice = given.groups()
    if loss:
        return _longest_loss(opened) or _longest(source, "exposed", None)
    if advice:
        return _of_advice(opened, source, advice)
    return _longest(source, kind, None if rank is None else int(rank))


def same_state(source: TimelineSource, rank: int, moment_ns: int) -> tuple[int, int]:
    """Return begin and end (ns from the run's start) of the time around a moment in which a rank has one state."""
    snapshot = source.snapshot
    at_ns = snapshot.occupancy[source.ranks.index(rank)].at_ns
    after = min(max(int(np.searchsorted(at_ns, moment_ns + snapshot.origin_ns, side="right")), 1), at_ns.size - 1)
    return int(at_ns[after - 1]) - snapshot.origin_ns, int(at_ns[after]) - snapshot.origin_ns


def _of_advice(opened: OpenRun, source: TimelineSource, name: str) -> tuple[int, int]:
    found = next((each for each in opened.advice[0] if each.id == name), None)
    if found is None:
        raise UsageError(f"there is no recommendation {name[:40]!r}")
    if found.shown_by is not None:
        middle = (found.shown_by.start_ns + found.shown_by.end_ns) // 2
        return found.shown_by.rank, int(source.aligned(found.shown_by.rank, np.array([middle]))[0])
    return _of_loss(opened, source, found)


def _of_loss(opened: OpenRun, source: TimelineSource, found: Recommendation) -> tuple[int, int]:
    """Return the longest piece of what a recommendation without a place of its own would shorten."""
    if found.id in OF_EXPOSED or opened.analysis.main_figures.exposed_comm_ns:
        loss = _longest_loss(opened) if found.id not in OF_EXPOSED else None
        return loss or _longest(source, "exposed", None)
    return _longest(source, "idle", None)


def _longest_loss(opened: OpenRun) -> tuple[int, int] | None:
    loss = opened.analysis.critical_path.longest_loss
    return None if loss is None else (loss.rank, (loss.start_ns + loss.end_ns) // 2)


def _longest(source: TimelineSource, kind: str, rank: int | None) -> tuple[int, int]:
    if kind not in (*STATES, WAITING, *CAUSES):
        raise UsageError(f"there is no time of kind {kind[:40]!r}; is it one of {', '.join((*STATES, WAITING))}?")
    if rank is not None and rank not in source.ranks:
        raise UsageError(f"no times of rank {rank} were recorded")
    best = max(_longest_of_ranks(source, kind, rank), key=lambda each: (each[0], -each[1]), default=None)
    if best is None:
        raise UsageError(f"no {NAMES.get(kind, kind)} time was recorded" + ("" if rank is None else f" of rank {rank}"))
    _, chosen, moment = best
    return chosen, moment


def _longest_of_ranks(source: TimelineSource, kind: str, rank: int | None) -> Iterator[tuple[int, int, int]]:
    """Yield length, rank and middle of each rank's longest time of a kind, of complete steps where it has any."""
    for each in source.ranks if rank is None else [rank]:
        start, end = _times(source, kind, each)
        if not start.size:
            continue
        inside = np.zeros(start.size, np.bool_)
        for step, begin, stop in source.steps(each):
            inside |= (start >= begin) & (end <= stop) & step.complete
        start, end = (start[inside], end[inside]) if inside.any() else (start, end)
        at = int((end - start).argmax())
        yield int(end[at] - start[at]), each, int(start[at] + end[at]) // 2


def _times(source: TimelineSource, kind: str, rank: int) -> tuple[Ints, Ints]:
    if kind in STATES:
        snapshot = source.snapshot
        own = snapshot.occupancy[source.ranks.index(rank)]
        at = np.flatnonzero(own.state[:-1] == STATES[kind])
        return own.at_ns[at] - snapshot.origin_ns, own.at_ns[at + 1] - snapshot.origin_ns
    if source.figures is None:
        raise UsageError("causes are still being computed; try again")
    causes = WAITS_FOR_ANOTHER_RANK if kind == WAITING else (kind,)
    parts = [source.figures.causes[rank].busy[cause].intervals for cause in causes]
    joined = union((np.concatenate([each.starts for each in parts]), np.concatenate([each.ends for each in parts])))
    return source.aligned(rank, joined.starts), source.aligned(rank, joined.ends)
