"""Ranks that the others waited for, and what held them: what they did more of than their peers since they last met.

A rank is named only when its blame weighs in the recording, was not a single accident, and it is last more often than
chance would have it. Between two calls that a group makes together, each member computes, communicates with others or
is idle; what the last one had more of than the median of its peers is what held it. Where nothing accounts for most of
the time, that is `unknown`; a rank that was longer in other collectives is no culprit itself.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from overlapscope.analysis.breakdown import Coverage
from overlapscope.analysis.held_by_host import SHARED_CORES, Met, clocks_down, noted, recording_cost, retried
from overlapscope.analysis.waiting import LEADS_COUNT_NS, RankWait, Reals, Split
from overlapscope.timeline.columns import COMPUTE, Ints
from overlapscope.timeline.intervals import BusyTime, difference
from overlapscope.timeline.run import RankTimeline, Run

WEIGHS: Final = 0.05
WEIGHS_ON_HOST: Final = 0.1
"""Blame weighs from this share of the recording (without devices, ranks share cores, and chance is larger) ..."""
FEWEST_LEADS: Final = 3
"""... in at least this many calls."""
CHANCE: Final = 0.01
"""A rank of equals would be last so often in at most this share of runs, counting all ranks that could."""
BESIDE_USUAL: Final = 0.25
MOST: Final = 0.5
"""An explanation must account for this share of the leads."""
MORE: Final = 1.05
"""A rank computes more than its peers from this factor of their median."""
EXACT_UP_TO: Final = 500
TILTS: Final = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 20.0)
"""Where Chernoff's bound is tried: at any of them it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A straggler, and what held it.

    `host`, `data_loading`, `garbage_collector`, `allocator`, `throttled`, `more_work`, `slower_compute` or `unknown`.
    """

    rank: int
    held_by: str
    blame_ns: int
    evidence: Mapping[str, Any]


def stragglers(
    run: Run,
    splits: Sequence[Split],
    waits: Mapping[int, RankWait],
    coverage: Mapping[int, Coverage],
    window_ns: Mapping[int, int | None],
) -> list[Held]:
    """Name the ranks whose blame weighs, the most blamed first."""
    found = []
    for rank, wait in waits.items():
        window = window_ns.get(rank)
        weighs = WEIGHS if run.ranks[rank].has_device else WEIGHS_ON_HOST
        if not window or wait.blame_ns < weighs * window or wait.times_last < FEWEST_LEADS:
            continue
        if _by_chance(rank, splits) * len(waits) > CHANCE:
            continue  # somebody is always last; this rank is not so more often than chance has it
        apart = _since_they_met(rank, run, splits, coverage)
        if apart.lead_ns <= 0:
            continue  # nothing lies between the calls it was late for
        evidence: dict[str, Any] = {"calls": wait.times_last, **apart.excess_ns}
        if apart.excess_ns["communicated_more_ns"] > MOST * apart.lead_ns:
            continue
        noted_cause, more = noted(rank, run, apart.met, apart.lead_ns)
        if noted_cause == SHARED_CORES:
            continue  # the system's scheduler chose it, and may choose another one next time
        evidence |= more
        held_by = noted_cause or "unknown"
        if noted_cause is None and apart.excess_ns["computed_more_ns"] > MOST * apart.lead_ns:
            held_by, more = _by_compute(rank, run, splits)
            evidence |= more
        elif noted_cause is None and apart.excess_ns["idle_more_ns"] > MOST * apart.lead_ns:
            held_by = "host"
        if held_by in ("host", "slower_compute"):
            held_by, more = _refined(held_by, rank, run, apart)
            evidence |= more
        found.append(Held(rank=rank, held_by=held_by, blame_ns=wait.blame_ns, evidence=evidence))
    return sorted(found, key=lambda each: (-each.blame_ns, each.rank))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Apart:
    """The stretches from the call before to each call that the rank was last in: its leads, and what it had more of."""

    lead_ns: int
    excess_ns: Mapping[str, int]
    met: Sequence[Met]


def _since_they_met(rank: int, run: Run, splits: Sequence[Split], coverage: Mapping[int, Coverage]) -> _Apart:
    lead = 0
    excess = dict.fromkeys(("computed_more_ns", "communicated_more_ns", "idle_more_ns"), 0)
    met = []
    for ranks in {each.block.ranks for each in splits if rank in each.block.ranks}:
        begin, end, late, rows = _stretches(rank, [each for each in splits if each.block.ranks == ranks])
        row = ranks.index(rank)
        others = [at for at in range(len(ranks)) if at != row]
        met.append(Met(ranks=ranks, begin_ns=begin, end_ns=end, step=run.ranks[rank].collectives.step[rows]))
        # A lead that is longer than the time since they met was there before: calls that are under way together.
        lead += int(np.minimum(late, np.maximum(end[row] - begin[row], 0)).sum())
        compute, comm = _busy(coverage, ranks, begin, end)
        idle = np.maximum(end - begin, 0) - compute - comm
        for name, did in zip(excess, (compute, comm, idle), strict=True):
            excess[name] += round(float((did[row] - np.median(did[others], axis=0)).sum()))
    return _Apart(lead_ns=lead, excess_ns=excess, met=met)


def _stretches(rank: int, splits: Sequence[Split]) -> tuple[Ints, Ints, Ints, Ints]:
    """Give, for the calls that the rank was last in, each member's end of the call before and start.

    And the leads, and the rows of the calls in the rank's `Collectives`.
    """
    row = splits[0].block.ranks.index(rank)
    start = np.concatenate([each.block.start_ns for each in splits], axis=1)
    end = np.concatenate([each.block.end_ns for each in splits], axis=1)
    lead = np.concatenate([np.where(each.last == row, each.lead_ns, 0) for each in splits])
    rows = np.concatenate([each.block.rows[row] for each in splits])
    order = np.argsort(start[row], kind="stable")
    start, end, lead = start[:, order], end[:, order], np.rint(lead[order]).astype(np.int64)
    late = np.flatnonzero((lead > LEADS_COUNT_NS) & (np.arange(lead.size) > 0))
    met = np.maximum.accumulate(end, axis=1)  # calls under way together end in any order
    return met[:, late - 1], start[:, late], lead[late], rows[order][late]


def _busy(coverage: Mapping[int, Coverage], ranks: Sequence[int], begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Give what each member computed in its stretches, and communicated without computing."""
    compute = [BusyTime(coverage[rank].compute).within(b, e) for rank, b, e in zip(ranks, begin, end, strict=True)]
    comm = [
        BusyTime(difference(coverage[rank].comm, coverage[rank].compute)).within(b, e)
        for rank, b, e in zip(ranks, begin, end, strict=True)
    ]
    return np.array(compute), np.array(comm)


def _by_chance(rank: int, splits: Sequence[Split]) -> float:
    """Give how likely a rank of equals is last so often, or by so much.

    Small leads are anybody's: only those count that weigh beside the usual nanosecond's lead (the mean by weight). By
    number the chance is binomial; by the sum of the leads it is Chernoff's bound. The lesser decides.
    """
    mine = [each for each in splits if rank in each.block.ranks]
    leads = np.concatenate([each.lead_ns for each in mine])
    own = np.concatenate([each.last == each.block.ranks.index(rank) for each in mine])
    shares = np.concatenate([np.full(each.lead_ns.size, 1 / len(each.block.ranks)) for each in mine])
    weighs_ns = max(float(LEADS_COUNT_NS), BESIDE_USUAL * float((leads**2).sum() / max(leads.sum(), 1.0)))
    much = leads > weighs_ns
    return min(_at_least(int((own & much).sum()), shares[much]), _as_much(leads[own].sum(), leads, shares))


def _as_much(sum_ns: float, leads: Reals, shares: Reals) -> float:
    """Bound how likely the leads that fall to a rank, each with its share as chance, reach a sum (Chernoff 1952)."""
    largest = float(leads.max(initial=0.0))
    if largest <= 0:
        return 1.0
    scaled, reached = leads / largest, sum_ns / largest
    bounds = [float(np.log1p(shares * np.expm1(tilt * scaled)).sum()) - tilt * reached for tilt in TILTS]
    return math.exp(min(bounds))


def _at_least(times_last: int, shares: Reals) -> float:
    """Give how likely a rank is last in at least so many of the calls in which anybody was."""
    calls = shares.size
    share = float(shares.mean()) if calls else 0.0
    usual, spread = calls * share, math.sqrt(calls * share * (1 - share))
    if calls > EXACT_UP_TO:  # the normal approximation, whose error is far below what is decided here
        return 0.5 * math.erfc((times_last - 0.5 - usual) / spread / math.sqrt(2))
    return sum(
        math.comb(calls, times) * share**times * (1 - share) ** (calls - times)
        for times in range(times_last, calls + 1)
    )


def _by_compute(rank: int, run: Run, splits: Sequence[Split]) -> tuple[str, dict[str, Any]]:
    """Tell more work from slower work, by the peers' kernels."""
    peers = sorted({each for split in splits if rank in split.block.ranks for each in split.block.ranks} - {rank})
    spans, time = _work(run.ranks[rank])
    counts, times = zip(*(_work(run.ranks[peer]) for peer in peers), strict=True)
    usual_count, usual_time = float(np.median(counts)), float(np.median(times))
    evidence = {
        "compute_spans": spans, "peers_compute_spans": usual_count,
        "compute_ns": time, "peers_compute_ns": usual_time,
    }  # fmt: skip
    if time < MORE * usual_time:
        return "unknown", evidence  # it computed meanwhile, but in all no more than its peers
    return ("more_work" if spans > MORE * usual_count else "slower_compute"), evidence


def _work(timeline: RankTimeline) -> tuple[int, int]:
    chosen = timeline.spans.kind == COMPUTE
    return int(chosen.sum()), int((timeline.spans.end_ns - timeline.spans.start_ns)[chosen].sum())


def _refined(held_by: str, rank: int, run: Run, apart: _Apart) -> tuple[str, dict[str, Any]]:
    """Look for what made a host late, or computing slow; and whether recording itself may have done it."""
    peers = sorted({each for met in apart.met for each in met.ranks} - {rank})
    if held_by == "slower_compute":
        clocks = clocks_down(rank, peers, run)
        return ("throttled", clocks) if clocks else (held_by, {})
    retries = retried(rank, run, apart.met)
    if retries > 0:
        return "allocator", {"allocator_retries_more": retries}
    cost = recording_cost(run.ranks[rank])
    if cost is None:
        return held_by, {}
    steps = np.unique(np.concatenate([met.step for met in apart.met])).size
    return held_by, {
        "recording_cost_ns": round(cost * steps),
        "recording_may_explain": cost * steps > MOST * apart.lead_ns,
    }
