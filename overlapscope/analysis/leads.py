"""Who came late by how much, and how much of it was itself waiting for another rank elsewhere.

A rank that comes to a call later than the other members holds these up: its lead over the second-latest is its blame.
Since the members last met it computed, waited in calls of other groups, or was idle; as far as it waited there longer
than its peers did, the blame is not its own but belongs to the rank that came last there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from overlapscope.analysis.breakdown import Coverage
from overlapscope.analysis.held_by_host import Met
from overlapscope.analysis.waiting import LEADS_COUNT_NS, Split
from overlapscope.timeline.columns import Ints
from overlapscope.timeline.intervals import BusyTime, Intervals, difference, union
from overlapscope.timeline.run import Run

ROUNDS: Final = 100
"""Blame is passed on so often at most; it never passes whole in a circle."""
Reals = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """The calls of one set of ranks that one of them came late to."""

    rank: int
    met: Met
    """From where the members met before to where they met late, for every member."""
    lead_ns: Ints
    """How much later than the second-latest, but no longer than since they met before."""
    passed_ns: Mapping[int, Ints]
    """How much of each lead was waiting for another rank in other groups, by that rank."""

    @property
    def own_ns(self) -> Ints:
        """What is left of each lead."""
        left: Ints = self.lead_ns - sum(self.passed_ns.values(), np.zeros_like(self.lead_ns))
        return left


def late_calls(run: Run, splits: Sequence[Split], coverage: Mapping[int, Coverage]) -> list[Late]:
    """Give what each rank came late to, by more than clocks and noise explain, one for each set of ranks."""
    together: dict[tuple[int, ...], list[Split]] = {}
    for each in splits:
        together.setdefault(each.block.ranks, []).append(each)
    waited = _waits(splits, coverage)
    anybody = {rank: BusyTime(union(*theirs.values())) for rank, theirs in waited.items()}
    found = []
    for ranks, theirs in together.items():
        start = np.concatenate([each.block.start_ns for each in theirs], axis=1)
        end = np.concatenate([each.block.end_ns for each in theirs], axis=1)
        lead = np.concatenate([each.lead_ns for each in theirs])
        last = np.concatenate([each.last for each in theirs])
        rows = np.concatenate([each.block.rows for each in theirs], axis=1)
        order = np.argsort(start[0], kind="stable")
        met = np.maximum.accumulate(end[:, order], axis=1)  # calls under way together end in any order
        late = np.flatnonzero((lead[order] > LEADS_COUNT_NS) & (np.arange(lead.size) > 0))
        begin, until = met[:, late - 1], start[:, order[late]]
        lead, last, rows = np.rint(lead[order[late]]).astype(np.int64), last[order[late]], rows[:, order[late]]
        # A lead that is longer than the time since they met was there before: calls that are under way together.
        since = np.maximum(until - begin, 0)[last, np.arange(late.size)]
        lead = np.minimum(lead, since)
        waits = np.array([_within(anybody.get(rank), b, u) for rank, b, u in zip(ranks, begin, until, strict=True)])
        for row in np.unique(last).tolist():
            mine = last == row
            begun, came, peers = begin[:, mine], until[:, mine], np.median(np.delete(waits, row, axis=0)[:, mine], axis=0)
            found.append(
                Late(
                    rank=ranks[row],
                    met=Met(
                        ranks=ranks,
                        begin_ns=begun,
                        end_ns=came,
                        step=run.ranks[ranks[row]].collectives.step[rows[row, mine]],
                    ),
                    lead_ns=lead[mine],
                    passed_ns=_passed(waited.get(ranks[row], {}), begun[row], came[row], lead[mine], peers),
                )
            )
    return found


def blame(late: Sequence[Late]) -> dict[int, int]:
    """Give what each rank is to blame for: its leads, and what others pass on to it, less what it passes on itself."""
    ranks = sorted({each.rank for each in late} | {other for each in late for other in each.passed_ns})
    place = {rank: at for at, rank in enumerate(ranks)}
    direct, passes = np.zeros(len(ranks)), np.zeros((len(ranks), len(ranks)))
    for each in late:
        direct[place[each.rank]] += float(each.lead_ns.sum())
        for other, passed in each.passed_ns.items():
            passes[place[each.rank], place[other]] += float(passed.sum())
    share = passes / np.maximum(direct, 1.0)[:, None]
    kept, moving = np.zeros(len(ranks)), direct
    for _ in range(ROUNDS):
        kept = kept + moving * (1 - share.sum(axis=1))
        moving = moving @ share
        if moving.sum() < 1:
            break
    return {rank: round(float(value)) for rank, value in zip(ranks, kept + moving, strict=True)}


def _waits(splits: Sequence[Split], coverage: Mapping[int, Coverage]) -> dict[int, dict[int, Intervals]]:
    """Give, for each rank, when it waited for which other one and did not compute, where waiting is known."""
    found: dict[int, dict[int, list[tuple[Ints, Ints]]]] = {}
    for each in splits:
        if each.block.uneven:
            continue
        for row, rank in enumerate(each.block.ranks):
            until = each.block.end_ns[row] - each.transfer_ns
            for other in np.unique(each.last).tolist():
                if other != row:
                    mine = (each.last == other) & (each.wait_ns[row] > LEADS_COUNT_NS)
                    times = (each.block.start_ns[row][mine], until[mine])
                    found.setdefault(rank, {}).setdefault(each.block.ranks[other], []).append(times)
    return {
        rank: {other: difference(union(*times), coverage[rank].compute) for other, times in theirs.items()}
        for rank, theirs in found.items()
    }


def _within(busy: BusyTime | None, begin: Ints, until: Ints) -> Ints:
    return np.zeros_like(begin) if busy is None else busy.within(begin, np.maximum(begin, until))


def _passed(
    waited: Mapping[int, Intervals], begin: Ints, until: Ints, lead: Ints, peers: Reals
) -> dict[int, Ints]:
    """Share out what the late rank waited elsewhere beyond its peers, at most its lead, over those it waited for."""
    mine = {other: _within(BusyTime(times), begin, until) for other, times in waited.items()}
    mine = {other: times for other, times in mine.items() if times.any()}
    total = sum(mine.values(), np.zeros_like(lead))
    passed = np.clip(total - peers, 0, lead)
    return {other: np.floor(passed * (times / np.maximum(total, 1))).astype(np.int64) for other, times in mine.items()}
