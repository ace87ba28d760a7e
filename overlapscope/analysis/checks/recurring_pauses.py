"""Find pauses of the host of one rank of a CPU run that come between the same operations in each step, and that other
ranks lack: Python, a sleep or a file in the middle of a forward."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.common.findings import Finding, format_ms
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.host_operations import OperationPieces, operation_pieces
from overlapscope.analysis.per_rank.steps import StepWindow
from overlapscope.errors import HostEventsError
from overlapscope.timeline.columns import take
from overlapscope.timeline.intervals import BusyTime
from overlapscope.timeline.rows import sum_by
from overlapscope.timeline.run import RankTimeline, Run

LEAST_NS: Final = 1_000_000
"""A shorter time between two operations is no pause."""
WORTH: Final = 0.04
"""Least share of a step that its pauses between the same operations take in all."""
FEWEST_STEPS: Final = 3
IN_STEPS: Final = 0.9
"""Share of the steps that have them: a lost core comes now here, now there."""
OF_PEER: Final = 1 / 3
"""A rank has a pause to itself where each other rank does nothing for at most this share of it in the mean step, in
gaps of any length between the same operations."""

Between = tuple[str, str]
"""Names of the operations before and after a gap."""


class _Pauses(msgspec.Struct, frozen=True, kw_only=True):
    """The pauses of a rank between two operations."""

    ns: float
    """In the median step."""
    number: float
    """Of them, in the median step."""
    steps: int


class _Gaps(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a rank between its operations in which it does nothing."""

    pauses: Mapping[Between, _Pauses]
    """That come in each step."""
    mean_ns: Mapping[Between, float]
    """In the mean step, in gaps of any length and in any number of steps."""


def recurring_pauses(
    run: Run, windows: Mapping[int, Sequence[StepWindow]], coverage: Mapping[int, Coverage], step_ns: float | None
) -> list[Finding]:
    """Return a finding for each rank with such pauses, of the operations between which most of them lie.

    Empty where the operations of a rank are not known: it may have the same pauses.
    """
    if len(run.ranks) < 2 or not step_ns:
        return []
    every = {rank: _gaps(timeline, windows[rank], coverage[rank]) for rank, timeline in run.ranks.items()}
    known = {rank: gaps for rank, gaps in every.items() if gaps is not None}
    if len(known) < len(every):
        return []
    found = []
    for rank, gaps in known.items():
        others = [theirs.mean_ns for each, theirs in known.items() if each != rank]
        alone = {
            between: each
            for between, each in gaps.pauses.items()
            if each.ns >= WORTH * step_ns and all(its.get(between, 0) <= OF_PEER * each.ns for its in others)
        }
        if not alone:
            continue
        (before, after), most = max(alone.items(), key=lambda item: item[1].ns)
        times = "" if most.number <= 1 else f" in {most.number:g} pieces"
        found.append(
            Finding(
                id=f"recurring_pause:rank{rank}",
                severity="warning",
                title=f"rank {rank} does nothing that was recorded for {format_ms(most.ns)} of each step{times}, "
                f"between {before} and {after}, and the others next to none there: Python, a sleep, a file, a lock",
                evidence={"rank": rank, "before": before, "after": after, "paused_ns": round(most.ns),
                          "number": most.number, "steps": most.steps},
                known_from=run.ranks[rank].basis,
            )
        )  # fmt: skip
    return found


def _gaps(timeline: RankTimeline, windows: Sequence[StepWindow], cover: Coverage) -> _Gaps | None:
    """Return the gaps between operations of the training thread, by their names; None where they are not known."""
    steps = sorted(each.window for each in windows if each.complete and each.window)
    if len(steps) < FEWEST_STEPS or timeline.host_is_lost:
        return None
    try:
        pieces = operation_pieces(timeline)
    except HostEventsError:
        return None
    if pieces is None or not pieces.lane.size:
        return None
    own = _of_training_thread(pieces)
    start, end = own.end_ns[:-1], own.start_ns[1:]
    begin, until = np.array(steps, np.int64).T
    step = np.searchsorted(begin, start, side="right") - 1
    paused = end - start - BusyTime(cover.comm).within(start, end)
    rows = np.flatnonzero((step >= 0) & (end <= until[np.maximum(step, 0)]) & (paused > 0))
    step, paused = step[rows], paused[rows]
    names = timeline.names
    codes, at = np.unique(own.name[rows].astype(np.int64) * len(names) + own.name[rows + 1], return_inverse=True)
    between = [(names[code // len(names)], names[code % len(names)]) for code in codes.tolist()]
    mean_ns = sum_by(at, paused, len(between)) / begin.size
    long = paused >= LEAST_NS
    pauses = {}
    for pair in np.unique(at[long]).tolist():
        its = long & (at == pair)
        number = np.bincount(step[its], minlength=begin.size)
        if np.count_nonzero(number) >= IN_STEPS * begin.size:
            pauses[between[pair]] = _Pauses(
                ns=float(np.median(sum_by(step[its], paused[its], begin.size))),
                number=float(np.median(number)),
                steps=begin.size,
            )
    return _Gaps(pauses=pauses, mean_ns=dict(zip(between, mean_ns.tolist(), strict=True)))


def _of_training_thread(pieces: OperationPieces) -> OperationPieces:
    """Return the pieces of the thread that computes longest, by start."""
    lanes, at = np.unique(pieces.lane, return_inverse=True)
    busy = sum_by(at.ravel(), pieces.end_ns - pieces.start_ns, lanes.size)
    own = take(pieces, pieces.lane == lanes[busy.argmax()])
    return take(own, np.argsort(own.start_ns, kind="stable"))
