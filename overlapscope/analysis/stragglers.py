"""Ranks that the others waited for: who held them up again and again, and more than chance would have it.

A rank is named only when its blame weighs in the recording and it held others up more often than one of equals would.
Stretches of its time that overlap are one occasion: a single pause makes a rank late to every group that it is in.
Blame that it passes on, since it waited for another one itself, is the other's (`leads`); what held it is told by what
it did more of than its peers (`held`).
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from overlapscope.analysis.breakdown import Coverage
from overlapscope.analysis.findings import Finding
from overlapscope.analysis.kernels import Work
from overlapscope.analysis.lateness import Late, blame, late_calls
from overlapscope.analysis.straggler_cause import held_by
from overlapscope.analysis.wait_transfer import LEADS_COUNT_NS, Split
from overlapscope.timeline.columns import Ints, size
from overlapscope.timeline.intervals import Intervals
from overlapscope.timeline.run import Run

WEIGHS: Final = 0.05
WEIGHS_ON_HOST: Final = 0.1
"""Blame weighs from this share of the recording (without devices, ranks share cores, and chance is larger)."""
CHANCE: Final = 0.01
"""A rank of equals would hold others up so often in at most this share of runs, counting all ranks that could."""
LASTING: Final = 1.15
OF_COMPUTE: Final = frozenset({"slower_compute", "throttled", "more_work"})
"""What makes a rank compute so many times what its peers do, over the whole recording, is no chance, however few steps
there are."""
MANY_STEPS: Final = 4
DOMINATES: Final = 0.75
ALONE: Final = 0.1
"""Where one rank has this share of all blame, so much chance is allowed: two long pauses of one rank among a dozen."""
Reals = npt.NDArray[np.float64]
TILTS: Final = np.geomspace(0.01, 100, 81)
"""Exponents that are tried, over the largest occasion."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A straggler, and what held it, as `held` spells it. `blame_ns` holds what it passed on to others."""

    rank: int
    held_by: str
    blame_ns: int
    evidence: Mapping[str, Any]


def stragglers(
    run: Run,
    splits: Sequence[Split],
    coverage: Mapping[int, Coverage],
    work: Mapping[int, Work],
    window_ns: Mapping[int, int | None],
    not_launched: Mapping[int, Intervals],
) -> list[Held]:
    """Name the ranks whose blame weighs, the most blamed first. `splits` may hold uneven exchanges, too."""
    late: dict[int, list[Late]] = {}
    for each in late_calls(run, splits, coverage):
        late.setdefault(each.rank, []).append(each)
    blamed = blame([each for theirs in late.values() for each in theirs])
    by_step = max((size(timeline.steps) for timeline in run.ranks.values()), default=0) >= MANY_STEPS
    could = len({rank for each in splits for rank in each.block.ranks})
    most = DOMINATES * sum(blamed.values())
    met_whole = {each.block.ranks for each in splits if each.block.whole}
    chance = _chances(late, could, by_step=by_step)
    found = []
    for rank, theirs in late.items():
        window = window_ns.get(rank)
        if not window or blamed[rank] < (WEIGHS if run.ranks[rank].has_device else WEIGHS_ON_HOST) * window:
            continue
        told, evidence = held_by(theirs, run, coverage, work, not_launched)
        if told == "unknown" and not met_whole.issuperset(each.met.ranks for each in theirs):
            continue  # what is not understood may be of the members that were not recorded
        allowed = ALONE if blamed[rank] >= most else CHANCE
        lasting = evidence.get("compute_ns", 0.0) >= LASTING * evidence.get("peers_compute_ns", np.inf)
        if told is None or (chance[rank] * could > allowed and not (lasting and told in OF_COMPUTE)):
            continue
        calls = sum(int((each.lead_ns > 0).sum()) for each in theirs)
        known = {"calls": calls, "chance": chance[rank], **evidence}
        found.append(Held(rank=rank, held_by=told, blame_ns=blamed[rank], evidence=known))
    return sorted(found, key=lambda each: (-each.blame_ns, each.rank))


def beside_slow_links(held: Sequence[Held], links: Sequence[Finding]) -> list[Held]:
    """Leave out who is held by nothing known where a link is slow: that is the link's, not the rank's.

    Its data comes late to some members, who then begin the next call late.
    """
    return [each for each in held if not links or each.held_by != "unknown"]


def _chances(late: Mapping[int, Sequence[Late]], could: int, *, by_step: bool) -> dict[int, float]:
    """Return how likely chance alone makes each rank hold others up so much, were it like the others.

    Like all others, or like the members of one of its sets of ranks: whichever says more.
    """
    occasions = {rank: _occasions(theirs, by_step=by_step) for rank, theirs in late.items()}
    everybody = np.concatenate(list(occasions.values())) if occasions else np.zeros(0)
    found = {rank: chance_of(float(own.sum()), everybody, could) for rank, own in occasions.items()}
    sets: dict[tuple[int, ...], dict[int, Reals]] = {}
    for rank, theirs in late.items():
        for each in theirs:
            sets.setdefault(each.met.ranks, {})[rank] = _occasions([each], by_step=by_step)
    for ranks, members in sets.items():
        together = np.concatenate(list(members.values()))
        for rank, own in members.items():
            within = chance_of(float(own.sum()), together, len(ranks)) * len(late[rank])
            found[rank] = min(found[rank], within)
    return found


def _occasions(late: Sequence[Late], *, by_step: bool) -> Reals:
    """Return what the rank's own leads come to, occasion by occasion.

    Of leads that overlap in time, one counts. What comes in one step is one occasion, since a batch makes all of it
    larger; in recordings of few steps each lead is one.
    """
    row = [each.met.ranks.index(each.rank) for each in late]
    begin = np.concatenate([each.met.begin_ns[at] for each, at in zip(late, row, strict=True)])
    end = np.concatenate([each.met.end_ns[at] for each, at in zip(late, row, strict=True)])
    own = np.concatenate([each.own_ns for each in late])
    step = np.concatenate([each.met.step for each in late])
    counts = np.flatnonzero((own > LEADS_COUNT_NS) & (end > begin))
    chosen = counts[apart(begin[counts], end[counts], own[counts])]
    leads = own[chosen].astype(np.float64)
    if not by_step:
        return leads
    numbers, place = np.unique(step[chosen], return_inverse=True)
    return np.bincount(place, weights=leads, minlength=numbers.size).astype(np.float64)


def chance_of(gathered: float, occasions: npt.NDArray[np.float64], ranks: int) -> float:
    """Return an upper bound of how likely one of so many equal ranks gathers so much of these occasions."""
    largest = float(occasions.max()) if occasions.size else 0.0
    if largest <= 0 or gathered <= occasions.sum() / ranks:
        return 1.0
    tilted = np.multiply.outer(TILTS, occasions / largest)
    # log(1 + (exp(x) - 1) / n), without overflow.
    each = tilted + np.log(1 / ranks + (1 - 1 / ranks) * np.exp(-tilted))
    return float(min(1.0, np.exp((each.sum(axis=1) - TILTS * gathered / largest).min())))


def apart(begin: Ints, end: Ints, weight: Ints) -> Ints:
    """Choose stretches of which none overlaps another, so that they weigh most together; give their rows.

    The textbook's weighted interval scheduling, in O(n log n).
    """
    order = np.argsort(end, kind="stable")
    starts, ends, weights = begin[order].tolist(), end[order].tolist(), weight[order].tolist()
    best = [0]
    before = []
    for at, start in enumerate(starts):
        before.append(bisect_right(ends, start, hi=at))
        best.append(max(best[-1], best[before[-1]] + weights[at]))
    chosen = []
    at = len(starts)
    while at:
        if best[at] == best[at - 1]:
            at -= 1
        else:
            chosen.append(int(order[at - 1]))
            at = before[at - 1]
    return np.array(chosen[::-1], np.int64)
