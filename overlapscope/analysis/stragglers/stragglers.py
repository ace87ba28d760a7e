"""Find stragglers: ranks that other ranks waited for repeatedly, and more than is likely by chance.

A rank is named only when its blame is a relevant share of the recording, and when it was late more often than one of
equal ranks would be. Overlapping intervals are one occasion: a single pause makes a rank late in all of its groups.
Blame that it passes on, because it waited for another rank itself, belongs to that rank (`lateness`); its cause is what
it did longer than its peers (`straggler_cause`).

The chance: each occasion belongs to some rank and has a cost. If all ranks were equal, each occasion would be any
rank's, and the sum of one rank would be a sum of independent parts. Chernoff's bound (1952) limits how likely such a
sum is this large. The bound is never too low, and exact for occasions of one size that all belong to one rank.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.common.job_identity import host_of_ranks
from overlapscope.analysis.cross_rank.wait_transfer import LEADS_COUNT_NS, Split
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.kernels import RankCompute
from overlapscope.analysis.stragglers.lateness import LateArrivals, attribute_blame, late_arrivals
from overlapscope.analysis.stragglers.straggler_cause import find_straggler_cause
from overlapscope.timeline.columns import Floats, Ints, size
from overlapscope.timeline.intervals import Intervals
from overlapscope.timeline.run import Run

WEIGHS: Final = 0.05
WEIGHS_ON_HOST: Final = 0.1
"""Blame is relevant from this share of the recording (higher without devices: ranks that share cores vary more)."""
CHANCE: Final = 0.01
"""Maximum probability that, among equal ranks, any rank would have this much blame (p times the number of ranks)."""
LASTING: Final = 1.15
OF_COMPUTE: Final = frozenset({"slower_compute", "throttled", "more_work"})
"""With one of these causes and LASTING times its peers' compute over the whole recording, lateness is not by chance,
even with few steps."""
MANY_STEPS: Final = 4
DOMINATES: Final = 0.75
ALONE: Final = 0.1
"""Where one rank has the share DOMINATES of all blame, this probability is allowed: for example two long pauses of one
rank among a dozen."""
TILTS: Final = np.geomspace(0.01, 100, 81)
"""Exponents of Chernoff's bound that are tried, in units of 1 / (largest occasion)."""


class Straggler(msgspec.Struct, kw_only=True, frozen=True):
    """A rank that other ranks waited for, and the cause of its delay.

    `blame_ns` includes blame that other ranks passed on to it.
    """

    rank: int
    held_by: str
    blame_ns: int
    evidence: dict[str, Any]
    host: str | None = None
    """Its host, where the hosts of several are known."""


def stragglers(
    run: Run,
    splits: Sequence[Split],
    coverage: Mapping[int, Coverage],
    work: Mapping[int, RankCompute],
    window_ns: Mapping[int, int | None],
    not_launched: Mapping[int, Intervals],
) -> list[Straggler]:
    """Return the stragglers, the most blame first. `splits` may also hold uneven exchanges."""
    late: dict[int, list[LateArrivals]] = {}
    for each in late_arrivals(run, splits, coverage):
        late.setdefault(each.rank, []).append(each)
    blamed = attribute_blame([each for theirs in late.values() for each in theirs])
    by_step = max((size(timeline.steps) for timeline in run.ranks.values()), default=0) >= MANY_STEPS
    could = len({rank for each in splits for rank in each.block.ranks})
    most = DOMINATES * sum(blamed.values())
    met_whole = {each.block.ranks for each in splits if each.block.whole}
    chance = _chances(late, could, by_step=by_step)
    host = host_of_ranks(run)
    found = []
    for rank, theirs in late.items():
        window = window_ns.get(rank)
        if not window or blamed[rank] < (WEIGHS if run.ranks[rank].has_device else WEIGHS_ON_HOST) * window:
            continue
        cause, evidence = find_straggler_cause(theirs, run, coverage, work, not_launched)
        if cause == "unknown" and not met_whole.issuperset(each.met.ranks for each in theirs):
            continue  # the unknown cause may be a member that was not recorded
        allowed = ALONE if blamed[rank] >= most else CHANCE
        lasting = evidence.get("compute_ns", 0.0) >= LASTING * evidence.get("peers_compute_ns", np.inf)
        if cause is None or (chance[rank] * could > allowed and not (lasting and cause in OF_COMPUTE)):
            continue
        calls = sum(int((each.lead_ns > 0).sum()) for each in theirs)
        known = {"calls": calls, "chance": chance[rank], **evidence}
        found.append(Straggler(rank=rank, held_by=cause, blame_ns=blamed[rank], evidence=known, host=host.get(rank)))
    return sorted(found, key=lambda each: (-each.blame_ns, each.rank))


def beside_slow_links(held: Sequence[Straggler], links: Sequence[Finding]) -> list[Straggler]:
    """Remove stragglers of unknown cause where a link is slow: the link is the cause, not the rank.

    A slow link delivers data late to some members, which then begin the next call late.
    """
    return [each for each in held if not links or each.held_by != "unknown"]


def _chances(late: Mapping[int, Sequence[LateArrivals]], could: int, *, by_step: bool) -> dict[int, float]:
    """Return for each rank an upper bound of the probability of its blame if all ranks were equal.

    It is the smaller one of two: equal to all other ranks, or equal to the members of one of its sets of ranks.
    """
    occasions = {rank: _occasions(theirs, by_step=by_step) for rank, theirs in late.items()}
    everybody = np.concatenate(list(occasions.values())) if occasions else np.zeros(0)
    found = {rank: chance_bound(float(own.sum()), everybody, could) for rank, own in occasions.items()}
    sets: dict[tuple[int, ...], dict[int, Floats]] = {}
    for rank, theirs in late.items():
        for each in theirs:
            sets.setdefault(each.met.ranks, {})[rank] = _occasions([each], by_step=by_step)
    for ranks, members in sets.items():
        cross_rank = np.concatenate(list(members.values()))
        for rank, own in members.items():
            within = chance_bound(float(own.sum()), cross_rank, len(ranks)) * len(late[rank])
            found[rank] = min(found[rank], within)
    return found


def _occasions(late: Sequence[LateArrivals], *, by_step: bool) -> Floats:
    """Return the cost of each occasion in nanoseconds: the rank's own leads.

    Of leads that overlap in time, one counts. The leads of one step are one occasion, since a larger batch increases
    all of them; in recordings of few steps each lead is an occasion.
    """
    row = [each.met.ranks.index(each.rank) for each in late]
    begin = np.concatenate([each.met.begin_ns[at] for each, at in zip(late, row, strict=True)])
    end = np.concatenate([each.met.end_ns[at] for each, at in zip(late, row, strict=True)])
    own = np.concatenate([each.own_ns for each in late])
    step = np.concatenate([each.met.step for each in late])
    counts = np.flatnonzero((own > LEADS_COUNT_NS) & (end > begin))
    chosen = counts[select_disjoint(begin[counts], end[counts], own[counts])]
    leads = own[chosen].astype(np.float64)
    if not by_step:
        return leads
    numbers, place = np.unique(step[chosen], return_inverse=True)
    return np.bincount(place, weights=leads, minlength=numbers.size).astype(np.float64)


def chance_bound(gathered: float, occasions: Floats, ranks: int) -> float:
    """Return Chernoff's upper bound of the probability that one of `ranks` equal ranks gets `gathered` of the cost.

    `occasions` holds the cost of each occasion, `gathered` the sum of one rank's, in the same unit.
    """
    largest = float(occasions.max()) if occasions.size else 0.0
    if largest <= 0 or gathered <= occasions.sum() / ranks:
        return 1.0
    tilted = np.multiply.outer(TILTS, occasions / largest)
    # log(1 + (exp(x) - 1) / n), computed without overflow.
    each = tilted + np.log(1 / ranks + (1 - 1 / ranks) * np.exp(-tilted))
    return float(min(1.0, np.exp((each.sum(axis=1) - TILTS * gathered / largest).min())))


def select_disjoint(begin: Ints, end: Ints, weight: Ints) -> Ints:
    """Return the rows of non-overlapping intervals with the largest total weight.

    Weighted interval scheduling by dynamic programming (Kleinberg and Tardos, Algorithm Design, section 6.1), in
    O(n log n).
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
