"""Exposed time by dimension, phase and module of the collectives that own it, and by kind of call.

`ExposedShares` attributes the exposed time of any window of a rank to the kinds of collective.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.exposure.call_kind import Shares, call_kinds
from overlapscope.analysis.exposure.collectives import chosen_rows
from overlapscope.analysis.exposure.owned_comm import own_communication
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.steps import StepWindow
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.intervals import BusyTime, difference
from overlapscope.timeline.rows import sum_by
from overlapscope.timeline.run import RankTimeline

PLACES: Final = ("dimension", "phase", "module")
UNKNOWN: Final = "unknown"
Window = tuple[int, int]


class ExposedBy(msgspec.Struct, kw_only=True, frozen=True):
    """Exposed nanoseconds of a step's calls (without complete steps: of a recording's), mean over steps and ranks.

    Each field splits the same sum, without the cause `start_of_recording`.
    `unknown` holds calls without a value. Empty without timed collectives.
    """

    dimension: dict[str, int] = {}
    phase: dict[str, int] = {}
    module: dict[str, int] = {}


def exposed_by(
    ranks: Mapping[int, RankTimeline], windows: Mapping[int, list[StepWindow]], exposed_ns: Mapping[int, Ints]
) -> ExposedBy:
    """Sum the exposed time that collectives own, the largest first.

    Covers the same calls as the table of collectives: each rank's complete steps where it has any, else all its calls.
    """
    sums: dict[str, dict[str, int]] = {place: {} for place in PLACES}
    number = 0
    for rank, timeline in ranks.items():
        calls, names = timeline.collectives, timeline.names
        rows = chosen_rows(timeline, windows[rank])
        exposed = exposed_ns[rank][rows]
        number += sum(each.complete for each in windows[rank]) or 1
        for place in PLACES if exposed.any() else ():
            codes, at = np.unique(getattr(calls, place)[rows], return_inverse=True)
            totals = sum_by(at, exposed, codes.size)
            for code, total in zip(codes.tolist(), totals.tolist(), strict=True):
                name = names[code] if code >= 0 else UNKNOWN
                sums[place][name] = sums[place].get(name, 0) + total
    return ExposedBy(**{place: _means(found, number) for place, found in sums.items()})


def _means(sums: Mapping[str, int], number: int) -> dict[str, int]:
    ordered = sorted(sums, key=lambda name: (-sums[name], name))
    return {name: round(sums[name] / number) for name in ordered if sums[name]}


class ExposedShares:
    """One rank's communication, each moment owned by one collective, ready to be summed over any windows."""

    __slots__ = ("_exposed", "_kind", "_starts", "_untils", "kind_of", "kinds")

    def __init__(self, timeline: RankTimeline) -> None:
        self.kinds, self.kind_of = call_kinds(timeline)
        own_comm = own_communication(timeline)
        own = np.flatnonzero(own_comm.until_ns > own_comm.start_ns)
        own = own[np.argsort(own_comm.start_ns[own], kind="stable")]
        self._starts, self._untils = own_comm.start_ns[own], own_comm.until_ns[own]
        place = np.where(own_comm.row[own] == NONE, -1, own_comm.row[own])
        self._kind = np.append(self.kind_of, len(self.kinds))[place]
        cover = Coverage.of(timeline.spans)
        self._exposed = BusyTime(difference(cover.comm, cover.compute))

    def within(self, windows: Sequence[tuple[Window, int]]) -> Shares:
        """Return the exposed time of windows by kind of call.

        Each of `windows` is [begin, end) with its column; windows of one column are summed.
        """
        none = np.empty(0, np.int64)
        parts = [(none, none, none)]
        for (begin, end), column in windows:
            first = int(np.searchsorted(self._untils, begin, "right"))
            here = slice(first, int(np.searchsorted(self._starts, end, "left")))
            exposed = self._exposed.within(np.maximum(self._starts[here], begin), np.minimum(self._untils[here], end))
            parts.append((self._kind[here], np.full(exposed.size, column, np.int64), exposed))
        kind, column_of, amount = (np.concatenate(each) for each in zip(*parts, strict=True))
        return Shares.of((*self.kinds, None), kind, column_of, amount)
