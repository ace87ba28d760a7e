"""Ranks that the others waited for: who held them up again and again, and more than chance would have it.

A rank is named only when its blame weighs in the recording and it held others up more often than one of equals would.
Stretches of its time that overlap are one occasion: a single pause makes a rank late to every group that it is in. Blame
that it passes on, because it waited for another one itself, is the other's (`leads`); what held it is told by what it
did more of than its peers (`held`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from overlapscope.analysis.breakdown import Coverage
from overlapscope.analysis.held import held_by
from overlapscope.analysis.kernels import work_of
from overlapscope.analysis.leads import Late, blame, late_calls
from overlapscope.analysis.waiting import LEADS_COUNT_NS, Split
from overlapscope.timeline.columns import Ints
from overlapscope.timeline.run import Run

WEIGHS: Final = 0.05
"""Blame weighs from this share of the recording."""
CHANCE: Final = 0.01
"""A rank of equals would hold others up so often in at most this share of runs, counting all ranks that could."""
BESIDE_USUAL: Final = 0.25
EXACT_UP_TO: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A straggler, and what held it, as `held` spells it. `blame_ns` holds what it passed on to others."""

    rank: int
    held_by: str
    blame_ns: int
    evidence: Mapping[str, Any]


def stragglers(
    run: Run,
    splits: Sequence[Split],
    coverage: Mapping[int, Coverage],
    window_ns: Mapping[int, int | None],
) -> list[Held]:
    """Name the ranks whose blame weighs, the most blamed first. `splits` may hold uneven exchanges, too."""
    late: dict[int, list[Late]] = {}
    for each in late_calls(run, splits, coverage):
        late.setdefault(each.rank, []).append(each)
    blamed = blame([each for theirs in late.values() for each in theirs])
    weighs_ns = _usual_lead(late) * BESIDE_USUAL
    occasions = {rank: _occasions(theirs, weighs_ns) for rank, theirs in late.items()}
    could = len({rank for each in splits for rank in each.block.ranks})
    suspects = [
        rank
        for rank, times in occasions.items()
        if (window := window_ns.get(rank))
        and blamed[rank] >= WEIGHS * window
        and _by_chance(times, sum(occasions.values()), could) * could <= CHANCE
    ]
    work = work_of(run.ranks) if suspects else {}
    found = []
    for rank in suspects:
        told, evidence = held_by(late[rank], run, coverage, work)
        if told is not None:
            calls = sum(int((each.lead_ns > 0).sum()) for each in late[rank])
            known = {"calls": calls, "occasions": occasions[rank], **evidence}
            found.append(Held(rank=rank, held_by=told, blame_ns=blamed[rank], evidence=known))
    return sorted(found, key=lambda each: (-each.blame_ns, each.rank))


def _usual_lead(late: Mapping[int, Sequence[Late]]) -> float:
    """Give the lead that the usual nanosecond of all leads is part of: the mean, by weight."""
    own = [each.own_ns.astype(np.float64) for theirs in late.values() for each in theirs]
    leads = np.concatenate(own) if own else np.zeros(0)
    return float((leads**2).sum() / max(leads.sum(), 1.0))


def _occasions(late: Sequence[Late], weighs_ns: float) -> int:
    """Count how often the rank held others up by a lead of its own that weighs; what overlaps is one occasion."""
    weighs = [each.own_ns > max(weighs_ns, float(LEADS_COUNT_NS)) for each in late]
    row = [each.met.ranks.index(each.rank) for each in late]
    begin = np.concatenate([each.met.begin_ns[at][chosen] for each, at, chosen in zip(late, row, weighs, strict=True)])
    end = np.concatenate([each.met.end_ns[at][chosen] for each, at, chosen in zip(late, row, weighs, strict=True)])
    return _disjoint(begin, end)


def _disjoint(begin: Ints, end: Ints) -> int:
    """Give how many of the stretches can be chosen so that none overlaps another: always the next that ends first."""
    order = np.argsort(end, kind="stable")
    count, over = 0, np.iinfo(np.int64).min
    for start, stop in zip(begin[order].tolist(), end[order].tolist(), strict=True):
        if start >= over:
            count, over = count + 1, stop
    return count


def _by_chance(times: int, occasions: int, could: int) -> float:
    """Give how likely one of so many equal ranks is to blame so often (binomial)."""
    share = 1 / max(could, 1)
    if occasions > EXACT_UP_TO:  # the normal approximation, whose error is far below what is decided here
        usual, spread = occasions * share, math.sqrt(occasions * share * (1 - share))
        return 0.5 * math.erfc((times - 0.5 - usual) / max(spread, 1e-9) / math.sqrt(2))
    return sum(
        math.comb(occasions, each) * share**each * (1 - share) ** (occasions - each)
        for each in range(times, occasions + 1)
    )
