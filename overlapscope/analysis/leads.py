"""Who came late by how much, and how much of it was itself waiting for another rank elsewhere.

A rank that comes to a call later than the other members holds these up: its lead over the second-latest is its blame.
Since the members last met it computed, waited in calls of other groups, or was idle; as far as it waited there longer
than its peers did, the blame is not its own but belongs to the rank that came last there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from overlapscope.analysis.breakdown import Coverage
from overlapscope.analysis.held_by_host import Met
from overlapscope.analysis.waiting import LEADS_COUNT_NS, Split
from overlapscope.timeline.columns import Ints
from overlapscope.timeline.intervals import BusyTime, Intervals, difference, intersection, union
from overlapscope.timeline.run import Run

ROUNDS: Final = 100
"""Blame is passed on so often at most; it never passes whole in a circle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """The calls of one set of ranks that one of them came late to."""

    rank: int
    met: Met
    """From where the members met before to where they met late, for every member."""
    lead_ns: Ints
    """How much later than the second-latest, but no longer than since they met before."""
    own_ns: Ints
    """What is left of each lead without what the rank communicated elsewhere longer than its peers."""
    launched_ns: Ints
    """When the late rank launched each call, on its own clock."""
    passed_ns: Mapping[int, Ints]
    """How much of each lead was waiting for another rank in other groups, by that rank."""


def late_calls(run: Run, splits: Sequence[Split], coverage: Mapping[int, Coverage]) -> list[Late]:
    """Give what each rank came late to, by more than clocks and noise explain, one for each set of ranks."""
    together: dict[tuple[int, ...], list[Split]] = {}
    for each in splits:
        together.setdefault(each.block.ranks, []).append(each)
    waited = _waits(splits)
    exposed = {rank: BusyTime(difference(cover.comm, cover.compute)) for rank, cover in coverage.items()}
    found = []
    for ranks, theirs in together.items():
        start = np.concatenate([each.block.start_ns for each in theirs], axis=1)
        end = np.concatenate([each.block.end_ns for each in theirs], axis=1)
        lead = np.concatenate([each.lead_ns for each in theirs])
        last = np.concatenate([each.last for each in theirs])
        rows = np.concatenate([each.block.rows for each in theirs], axis=1)
        order = np.argsort(start[0], kind="stable")
        met = np.maximum.accumulate(end[:, order], axis=1)  # calls under way together end in any order
        begun = np.array([[run.ranks[rank].recordings.start_ns[0]] for rank in ranks])  # nothing is known of before
        late = np.flatnonzero(lead[order] > LEADS_COUNT_NS)
        begin, until = np.concatenate([begun, met], axis=1)[:, late], start[:, order[late]]
        lead, last, rows = np.rint(lead[order[late]]).astype(np.int64), last[order[late]], rows[:, order[late]]
        # A lead that is longer than the time since they met was there before: calls that are under way together.
        since = np.maximum(until - begin, 0)[last, np.arange(late.size)]
        lead = np.minimum(lead, since)
        comm = np.array([_within(exposed[rank], b, u) for rank, b, u in zip(ranks, begin, until, strict=True)])
        for row in np.unique(last).tolist():
            mine = last == row
            begun, came = begin[:, mine], until[:, mine]
            usual = np.median(np.delete(comm, row, axis=0)[:, mine], axis=0)
            elsewhere = np.rint(np.clip(comm[row, mine] - usual, 0, lead[mine])).astype(np.int64)
            calls = run.ranks[ranks[row]].collectives
            found.append(
                Late(
                    rank=ranks[row],
                    met=Met(
                        ranks=ranks,
                        begin_ns=begun,
                        end_ns=came,
                        step=calls.step[rows[row, mine]],
                    ),
                    lead_ns=lead[mine],
                    own_ns=lead[mine] - elsewhere,
                    launched_ns=calls.launch_ns[rows[row, mine]],
                    passed_ns=_passed(
                        waited.get(ranks[row], {}), coverage[ranks[row]].compute, begun[row], came[row], elsewhere
                    ),
                )
            )
    return found


def blame(late: Sequence[Late]) -> dict[int, int]:
    """Give what each rank is to blame for: its leads, and what others pass on to it, less what it passes on itself.

    What a rank waited for in calls that could not be split is nobody's.
    """
    ranks = sorted({each.rank for each in late} | {other for each in late for other in each.passed_ns})
    place = {rank: at for at, rank in enumerate(ranks)}
    direct, own, passes = np.zeros(len(ranks)), np.zeros(len(ranks)), np.zeros((len(ranks), len(ranks)))
    for each in late:
        direct[place[each.rank]] += float(each.lead_ns.sum())
        own[place[each.rank]] += float(each.own_ns.sum())
        for other, passed in each.passed_ns.items():
            passes[place[each.rank], place[other]] += float(passed.sum())
    share = passes / np.maximum(direct, 1.0)[:, None]
    kept, moving = np.zeros(len(ranks)), direct
    for _ in range(ROUNDS):
        kept = kept + moving * np.where(direct > 0, own / np.maximum(direct, 1.0), 1.0)
        moving = moving @ share
        if moving.sum() < 1:
            break
    return {rank: round(float(value)) for rank, value in zip(ranks, kept, strict=True)}


def _waits(splits: Sequence[Split]) -> dict[int, dict[int, Intervals]]:
    """Give, for each rank, when it waited for which other one, where waiting is known."""
    found: dict[int, list[tuple[Ints, Ints, Ints]]] = {}
    for each in splits:
        if not each.block.even:
            continue
        last = np.array(each.block.ranks)[each.last]
        for row, rank in enumerate(each.block.ranks):
            mine = np.flatnonzero((each.last != row) & (each.wait_ns[row] > LEADS_COUNT_NS))
            until = each.block.end_ns[row, mine] - each.transfer_ns[mine]
            found.setdefault(rank, []).append((last[mine], each.block.start_ns[row, mine], until))
    return {
        rank: _by_other(*(np.concatenate(each) for each in zip(*parts, strict=True))) for rank, parts in found.items()
    }


def _by_other(others: Ints, begin: Ints, until: Ints) -> dict[int, Intervals]:
    if not others.size:
        return {}
    order = np.argsort(others, kind="stable")
    names, first = np.unique(others[order], return_index=True)
    parts = (np.split(each[order], first[1:]) for each in (begin, until))
    return {other: union((starts, ends)) for other, starts, ends in zip(names.tolist(), *parts, strict=True)}


def _within(busy: BusyTime, begin: Ints, until: Ints) -> Ints:
    return busy.within(begin, np.maximum(begin, until))


def _passed(
    waited: Mapping[int, Intervals], compute: Intervals, begin: Ints, until: Ints, elsewhere: Ints
) -> dict[int, Ints]:
    """Share out what the late rank spent elsewhere beyond its peers over those whom it waited for there.

    Not what it computed while it waited.
    """
    mine = {
        other: _within(BusyTime(times), begin, until) - _within(BusyTime(intersection(times, compute)), begin, until)
        for other, times in waited.items()
    }
    mine = {other: times for other, times in mine.items() if times.any()}
    total = sum(mine.values(), np.zeros_like(elsewhere))
    part = np.minimum(elsewhere / np.maximum(total, 1), 1.0)
    return {other: np.floor(times * part).astype(np.int64) for other, times in mine.items()}
