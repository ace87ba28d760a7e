"""Find the part of a recording without marks of steps that repeats, where most of the recording is before it.

A profiler that is begun with the process records its start-up, too: imports, building the model, compilation, the first
steps. No step of a day repeats these.
"""

from collections.abc import Mapping
from statistics import fmean
from typing import Final

import msgspec

from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.cross_rank.optimizer_cycles import optimizer_cycles
from overlapscope.analysis.rank_summary import RankSummary
from overlapscope.timeline.run import Run

MOST_RANKS: Final = 64
"""Of more ranks none are read for it. A choice: a few seconds."""
MOSTLY_BEFORE: Final = 0.5
"""Start-up decides the figures of a whole recording where it is this share of it. A choice."""
FEWEST: Final = 3
"""Cycles that are a repetition."""


class RepeatedPart(msgspec.Struct, kw_only=True, frozen=True):
    """Cycles of the optimizer that are all alike, after a start-up that takes most of the recording; times are means
    over ranks."""

    cycles: int
    """How many there are, on each rank."""
    before_ns: int
    """What was recorded before the first of them."""
    recording_ns: int
    """From the first recorded span to the end of the last one."""
    window_ns: int
    """How long all cycles take together."""
    exposed_comm_ns: int
    """Their exposed communication."""
    idle_ns: int
    """Their idle time."""


def repeated_part(run: Run, clocks: Clocks, alone: Mapping[int, RankSummary]) -> RepeatedPart | None:
    """Return the part that repeats; None where steps are marked, where no alike cycles are known (`optimizer_cycles`),
    and where what is before them is less than half of the recording.

    A first cycle that begins with the recording holds the start-up, whatever else it is like.
    """
    marked = any(own.windows for own in alone.values())
    if marked or len(alone) > MOST_RANKS or not all(own.whole for own in alone.values()):
        return None
    cycles = {
        rank: own[int(own[0][0] <= alone[rank].whole[0][0]) :] for rank, own in optimizer_cycles(run, clocks).items()
    }
    number = min(map(len, cycles.values()), default=0)
    if number < FEWEST:
        return None
    before_ns = fmean(own[0][0] - alone[rank].whole[0][0] for rank, own in cycles.items())
    recording_ns = fmean(alone[rank].whole[-1][1] - alone[rank].whole[0][0] for rank in cycles)
    if before_ns < MOSTLY_BEFORE * recording_ns:
        return None
    figures = [alone[rank].coverage.breakdown(*own) for rank, own in cycles.items()]
    return RepeatedPart(
        cycles=number,
        before_ns=round(before_ns),
        recording_ns=round(recording_ns),
        window_ns=round(fmean(each.window_ns or 0 for each in figures)),
        exposed_comm_ns=round(fmean(each.exposed_comm_ns or 0 for each in figures)),
        idle_ns=round(fmean(each.idle_ns or 0 for each in figures)),
    )
