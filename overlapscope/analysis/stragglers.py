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
from overlapscope.analysis.waiting import LEADS_COUNT_NS, RankWait, Split
from overlapscope.timeline.columns import COMPUTE, Ints
from overlapscope.timeline.intervals import BusyTime, Intervals, difference, intersection, length, union
from overlapscope.timeline.run import RankTimeline, Run

WEIGHS: Final = 0.05
"""Blame weighs from this share of the recording ..."""
FEWEST_LEADS: Final = 3
"""... in at least this many calls."""
CHANCE: Final = 0.01
"""A rank of equals would be last so often in at most this share of runs, counting all ranks that could."""
MOST: Final = 0.5
"""An explanation must account for this share of the leads."""
MORE: Final = 1.05
"""A rank computes more than its peers from this factor of their median."""
EXACT_UP_TO: Final = 500
BETWEEN_STEPS, COLLECTOR = "between_steps_ns", "gc_pause_ns"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A straggler, and what held it.

    `host`, `data_loading`, `garbage_collector`, `more_work`, `slower_compute` or `unknown`.
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
        if not window or wait.blame_ns < WEIGHS * window or wait.times_last < FEWEST_LEADS:
            continue
        if _by_chance(rank, wait.times_last, splits) * len(waits) > CHANCE:
            continue  # somebody is always last; this rank is not so more often than chance has it
        apart = _since_they_met(rank, splits, coverage)
        if apart.lead_ns <= 0:
            continue  # nothing lies between the calls it was late for
        evidence: dict[str, Any] = {"calls": wait.times_last, **apart.excess_ns}
        if apart.excess_ns["communicated_more_ns"] > MOST * apart.lead_ns:
            continue
        held_by = "unknown"
        more: dict[str, Any] = {}
        if apart.excess_ns["computed_more_ns"] > MOST * apart.lead_ns:
            held_by, more = _by_compute(rank, run, splits)
        elif apart.excess_ns["idle_more_ns"] > MOST * apart.lead_ns:
            held_by, more = _by_host(run.ranks[rank], apart)
        found.append(Held(rank=rank, held_by=held_by, blame_ns=wait.blame_ns, evidence={**evidence, **more}))
    return sorted(found, key=lambda each: (-each.blame_ns, each.rank))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Apart:
    """The stretches from the call before to each call that the rank was last in: its leads, and what it had more of."""

    lead_ns: int
    excess_ns: Mapping[str, int]
    stretches: Intervals


def _since_they_met(rank: int, splits: Sequence[Split], coverage: Mapping[int, Coverage]) -> _Apart:
    lead = 0
    excess = dict.fromkeys(("computed_more_ns", "communicated_more_ns", "idle_more_ns"), 0)
    stretches = []
    for ranks in {each.block.ranks for each in splits if rank in each.block.ranks}:
        begin, end, late = _stretches(rank, [each for each in splits if each.block.ranks == ranks])
        row = ranks.index(rank)
        others = [at for at in range(len(ranks)) if at != row]
        stretches.append((begin[row], end[row]))
        lead += int(late.sum())
        compute, comm = _busy(coverage, ranks, begin, end)
        idle = np.maximum(end - begin, 0) - compute - comm
        for name, did in zip(excess, (compute, comm, idle), strict=True):
            excess[name] += round(float((did[row] - np.median(did[others], axis=0)).sum()))
    return _Apart(lead_ns=lead, excess_ns=excess, stretches=union(*stretches))


def _stretches(rank: int, splits: Sequence[Split]) -> tuple[Ints, Ints, Ints]:
    """Give, for the calls that the rank was last in, each member's end of the call before and start; and the leads."""
    row = splits[0].block.ranks.index(rank)
    start = np.concatenate([each.block.start_ns for each in splits], axis=1)
    end = np.concatenate([each.block.end_ns for each in splits], axis=1)
    lead = np.concatenate([np.where(each.last == row, each.lead_ns, 0) for each in splits])
    order = np.argsort(start[row], kind="stable")
    start, end, lead = start[:, order], end[:, order], np.rint(lead[order]).astype(np.int64)
    late = np.flatnonzero((lead > LEADS_COUNT_NS) & (np.arange(lead.size) > 0))
    return end[:, late - 1], start[:, late], lead[late]


def _busy(coverage: Mapping[int, Coverage], ranks: Sequence[int], begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Give what each member computed in its stretches, and communicated without computing."""
    compute = [BusyTime(coverage[rank].compute).within(b, e) for rank, b, e in zip(ranks, begin, end, strict=True)]
    comm = [
        BusyTime(difference(coverage[rank].comm, coverage[rank].compute)).within(b, e)
        for rank, b, e in zip(ranks, begin, end, strict=True)
    ]
    return np.array(compute), np.array(comm)


def _by_chance(rank: int, times_last: int, splits: Sequence[Split]) -> float:
    """Give how likely a rank of equals is last at least so often (binomial, over the calls in which anybody was)."""
    mine = [each for each in splits if rank in each.block.ranks]
    decided = [int((each.lead_ns > LEADS_COUNT_NS).sum()) for each in mine]
    calls = sum(decided)
    share = sum(count / len(each.block.ranks) for count, each in zip(decided, mine, strict=True)) / max(calls, 1)
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


def _by_host(timeline: RankTimeline, apart: _Apart) -> tuple[str, dict[str, Any]]:
    """Look into what capture noted of the host meanwhile; without such notes it is the host, whatever it did."""
    evidence: dict[str, Any] = {}
    held_by = "host"
    for reading, name in ((BETWEEN_STEPS, "data_loading"), (COLLECTOR, "garbage_collector")):
        covered = length(intersection(_pauses(timeline, reading), apart.stretches))
        if covered:
            evidence[f"{name}_ns"] = covered
        if covered > MOST * apart.lead_ns:
            held_by = name
    return held_by, evidence


def _pauses(timeline: RankTimeline, reading: str) -> Intervals:
    """Give the times of a pause that telemetry notes at its end, with its length."""
    if reading not in timeline.names:
        return union()
    telemetry = timeline.telemetry
    rows = telemetry.name == timeline.names.index(reading)
    ends = telemetry.time_ns[rows]
    return union((ends - np.rint(telemetry.value[rows]).astype(np.int64), ends))
