"""Find stragglers: ranks without whose own excess the recording would be shorter, more than is likely by chance.

Where the dependency graph of the run may answer, a rank is named for its removal value (`graph/removal.py`): what the
recording gains if it, or a cluster of ranks that are late together, takes for its own work what its peers take. Where
the graph may not answer, it is named for its blame alone, and the removal value is not known. Either way it must have
been late more often than one of equal ranks would be. Overlapping intervals are one occasion: a single pause makes a
rank late in all of its groups. Blame that it passes on, because it waited for another rank itself, belongs to that rank
(`lateness`); its cause is what it did longer than its peers (`straggler_cause`).

The chance: each occasion belongs to some rank and has a cost. If all ranks were equal, each occasion would be any
rank's, and the sum of one rank would be a sum of independent parts. Chernoff's bound (1952) limits how likely such a
sum is this large. The bound is never too low, and exact for occasions of one size that all belong to one rank. Of few
occasions all ways to give them to ranks are counted instead: there, small ones beside a few large would loosen it.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.common.cause_table import NoRemoval
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.common.job_identity import host_of_ranks
from overlapscope.analysis.cross_rank.clock_offsets import Clocks
from overlapscope.analysis.cross_rank.wait_transfer import LEADS_COUNT_NS, RankWait, Split, leads
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.kernels import RankCompute
from overlapscope.analysis.per_rank.steps import step_windows
from overlapscope.analysis.stragglers.core_waits import waited_for_cores
from overlapscope.analysis.stragglers.host_cause import ran_longer_each_time
from overlapscope.analysis.stragglers.late_range import late_range
from overlapscope.analysis.stragglers.lateness import LateArrivals, attribute_blame, late_arrivals
from overlapscope.analysis.stragglers.onset import onset
from overlapscope.analysis.stragglers.straggler_cause import compared_peers, find_straggler_cause, longer_by_step
from overlapscope.analysis.stragglers.work_by_phase import cause_by_phase
from overlapscope.timeline.columns import NONE, Flags, Floats, Ints, size
from overlapscope.timeline.intervals import BusyTime, Intervals, length
from overlapscope.timeline.readings import COLLECTOR, recorded_pauses
from overlapscope.timeline.run import Run

if TYPE_CHECKING:
    from overlapscope.analysis.graph.removal import Removal, RunGraph

WEIGHS: Final = 0.05
WEIGHS_ON_HOST: Final = 0.1
"""Blame is relevant from this share of the recording (higher without devices: ranks that share cores vary more)."""
CHANCE: Final = 0.01
"""Maximum probability that, among equal ranks, any rank would have this much blame (p times the number of ranks)."""
LASTING: Final = 1.15
OF_COMPUTE: Final = frozenset({"slower_compute", "throttled", "more_work", "longer_compute"})
"""With one of these causes and LASTING times its peers' compute over the whole recording, lateness is not by chance,
even with few steps. Without a device ..."""
LONGER: Final = 1.05
IN_STEPS: Final = 0.75
"""... it must also compute LONGER times as long in this share of its steps: long pauses of a host look like compute."""
RECORDED: Final = frozenset({"garbage_collector", "data_loading", "allocator", "throttled"})
"""With one of these causes, which are recorded of the rank itself, a single event is its own, too."""
OF_ITS_OWN: Final = frozenset({"garbage_collector", "busy_core"})
TIMES_ITS_PEERS: Final = 2.0
"""A rank that in all collected garbage, or waited for a core that its own threads took, so many times as long as those
that it delayed is not late for that by chance, from FEWEST_ALIKE steps on in which it delayed them much: by ..."""
MUCH: Final = 0.2
"""... this share of its longest delay."""
PAUSES_TOO: Final = 0.25
"""A rank whose pauses are more than this share of what it delayed others is no slower core: it is not known."""
MANY_STEPS: Final = 4
DOMINATES: Final = 0.75
ALONE: Final = 0.1
"""Where one rank has the share DOMINATES of all blame, this probability is allowed: for example two long pauses of one
rank among a dozen."""
ALIKE: Final = 0.25
"""Where one rank has that share and was late in three steps or more, each time by about as much, or with more time on a
core than its peers each time, this probability is allowed: what happens by chance lasts now longer, now shorter. Three
steps of two ranks, or of three, are then enough."""
FEWEST_ALIKE: Final = 3
AS_MUCH, MOSTLY_ALIKE = 0.8, 0.9
"""Its delays of at least the first share of the largest hold the second share of them all."""
MOST_OF_DELAYS: Final = 0.5
TURNS_NS: Final = 12_000_000
"""It is late by more than two turns on a core in a step, of 2 to 6 ms each: equal hosts that share cores may take them
in the same order each time."""
TILTS: Final = np.geomspace(0.01, 100, 81)
"""Exponents of Chernoff's bound that are tried, in units of 1 / (largest occasion)."""

REMOVAL_STEP: Final = "removal_step_ns"
"""The evidence of what a step gains without the excess of ranks, the mean over steps: the median, the lowest and the
highest over peers."""
COUNTED: Final = 12
"""Up to so many occasions, all ways to give them to ranks are counted."""


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
    removal_ns: int | None = None
    """How much shorter the recording gets if it, together with those in `late_with`, takes for its own work what its
    peers take: the median over peers; null where that is not known."""
    removal_low_ns: int | None = None
    removal_high_ns: int | None = None
    late_with: list[int] = []
    """Other ranks that are late together with it."""
    no_removal_reason: NoRemoval | None = None

    @property
    def late_in(self) -> str:
        """Words to follow others: in how many of the steps that had a late rank this one was late. Empty if in all."""
        late, steps = (self.evidence.get(name, 0) for name in ("late_steps", "steps"))
        return f", in at least {late} of {steps} steps" if 0 < late < steps else ""

    @property
    def since(self) -> str:
        """Words to follow others: since which step a device computes longer than its peers. Empty if it always did, or
        that is not known."""
        step = self.evidence.get("since_step")
        return "" if step is None else f", since step {step}"


class Compared(msgspec.Struct, kw_only=True, frozen=True):
    """What the ranks of a run did, by rank; `splits` may also hold uneven exchanges."""

    run: Run
    splits: Sequence[Split]
    clocks: Clocks
    coverage: Mapping[int, Coverage]
    work: Mapping[int, RankCompute]
    window_ns: Mapping[int, int | None]
    not_launched: Mapping[int, Intervals]
    core_waits: Mapping[int, Intervals] = {}
    """When hosts of CPU runs paused because others had all cores that they share, as far as that is known."""
    paused: Mapping[int, Intervals] = {}
    """When hosts of CPU runs paused inside operations, for whatever reason, as far as that is known."""
    operation_ns: Mapping[int, Mapping[str, int]] = {}
    """How long hosts of CPU runs computed in the operations of each name, as far as that is known."""
    left_out: frozenset[int] = frozenset()
    """Ranks that are late together with the one that is looked at. Who has the most blame of those that are left has it
    by the choice of who is left out: that alone allows no larger probability."""


def stragglers(ranks: Compared, late: "Removal | NoRemoval | None") -> list[Straggler]:
    """Return the stragglers, the most blame first.

    `late` holds the ranks that are late by the dependency graph; None if none is, or why the graph may not answer.
    """
    if late is None:
        return []
    if isinstance(late, str):
        return [replace(each, no_removal_reason=late) for each in _by_blame(ranks)]
    step = late.a_step
    a_step = {} if step is None else {REMOVAL_STEP: [step.gain_ns, step.low_ns, step.high_ns]}
    found = []
    for rank in late.ranks:
        others = [each for each in late.ranks if each != rank]
        alone = replace(
            ranks, splits=_without(ranks.splits, frozenset(others), ranks.clocks), left_out=frozenset(others)
        )
        found += [
            replace(
                each,
                removal_ns=late.gain_ns,
                removal_low_ns=late.low_ns,
                removal_high_ns=late.high_ns,
                late_with=others,
                evidence=each.evidence | a_step,
            )
            for each in _by_blame(alone, named=rank)
        ]
    return sorted(found, key=lambda each: (-each.blame_ns, each.rank))


def _without(splits: Sequence[Split], left_out: frozenset[int], clocks: Clocks) -> list[Split]:
    """Return the splits without these ranks, so that leads are those over the other members."""
    found = []
    for each in splits:
        kept = [row for row, rank in enumerate(each.block.ranks) if rank not in left_out]
        if len(kept) == len(each.block.ranks):
            found.append(each)
        elif len(kept) > 1:
            block = replace(
                each.block, ranks=tuple(each.block.ranks[row] for row in kept), rows=each.block.rows[kept],
                start_ns=each.block.start_ns[kept], end_ns=each.block.end_ns[kept],
            )  # fmt: skip
            waits = None if each.start_wait_ns is None else each.start_wait_ns[kept]
            found.append(replace(each, block=block, start_wait_ns=waits, **leads(clocks.starts(block), waits)))
    return found


def _by_blame(ranks: Compared, named: int | None = None) -> list[Straggler]:
    """Return the stragglers by blame; with `named`, that rank however small its blame, and no other."""
    run, splits, coverage = ranks.run, ranks.splits, ranks.coverage
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
    causes = partial(
        find_straggler_cause, run=run, coverage=coverage, work=ranks.work, not_launched=ranks.not_launched,
        core_waits=ranks.core_waits, paused=ranks.paused, operation_ns=ranks.operation_ns,
    )  # fmt: skip
    for rank, theirs in late.items():
        window_ns = ranks.window_ns.get(rank) or 0
        weighs = WEIGHS if run.ranks[rank].has_device else WEIGHS_ON_HOST
        if rank != named and (named is not None or not window_ns or blamed[rank] < weighs * window_ns):
            continue
        arrivals, blame_ns = late, blamed[rank]
        cause, evidence = causes(theirs)
        lasts = cause in RECORDED or (cause in OF_COMPUTE and _lasts(ranks, rank, theirs))
        step, event_ns = _one_event(theirs) if by_step and rank != named and not lasts else (NONE, 0)
        if event_ns:
            arrivals, blame_ns = _without_step(late, step), blame_ns - event_ns
            if rank not in arrivals or blame_ns < weighs * (window_ns - event_ns):
                continue
            cause, evidence = causes(arrivals[rank])
        theirs = arrivals[rank]  # noqa: PLW2901 - without the event
        if cause == "unknown" and not met_whole.issuperset(each.met.ranks for each in theirs):
            continue  # the unknown cause may be a member that was not recorded
        by_chance = chance[rank] if arrivals is late else _chances(arrivals, could, by_step=by_step)[rank]
        alone = blamed[rank] >= most and not ranks.left_out
        alike = alone and _each_time(theirs, cause, run, coverage)
        certain = _is_its_own(cause, theirs, run)
        allowed = np.inf if certain else ALIKE if alike else ALONE if alone else CHANCE
        if cause is None or (by_chance * could > allowed and not (cause in OF_COMPUTE and _lasts(ranks, rank, theirs))):
            continue
        pauses_too = evidence.get("paused_more_ns", 0) > PAUSES_TOO * blame_ns  # then all of its phases take longer
        of_phases = cause in {"more_work", "longer_compute"} and "host_op" not in evidence and not pauses_too
        if of_phases and not run.ranks[rank].has_device:
            cause, more = cause_by_phase(cause, rank, compared_peers(theirs), run, blame_ns)
            evidence |= more
        began = onset(rank, compared_peers(theirs), run) if cause in OF_COMPUTE else {}
        calls = sum(int((each.lead_ns > 0).sum()) for each in theirs)
        in_range = late_range(rank, run, [each.met for each in theirs], sum(int(each.lead_ns.sum()) for each in theirs))
        known = {
            "calls": calls,
            "chance": by_chance,
            "alike": alike,
            **_steps(theirs, arrivals),
            **evidence,
            **in_range,
            **began,
        }
        found.append(Straggler(rank=rank, held_by=cause, blame_ns=blame_ns, evidence=known, host=host.get(rank)))
    return sorted(found, key=lambda each: (-each.blame_ns, each.rank))


def _steps(theirs: Sequence[LateArrivals], late: Mapping[int, Sequence[LateArrivals]]) -> dict[str, int]:
    """Return in how many steps a rank was late, and in how many any rank was, it included; empty where calls of no step
    are among them."""
    step, own = (np.concatenate(each) for each in ([of.met.step for of in theirs], [of.own_ns for of in theirs]))
    every = {number for each in late.values() for of in each for number in of.met.step[of.own_ns > 0].tolist()}
    if NONE in every or not step.size or own.max() <= 0:
        return {}
    _, place = np.unique(step, return_inverse=True)
    delays = np.bincount(place, weights=own)
    return {"late_steps": int((delays >= MUCH * delays.max()).sum()), "steps": len(every)}


def _one_event(theirs: Sequence[LateArrivals]) -> tuple[int, int]:
    """Return the step that has DOMINATES of all delays of a rank, and how late it was there in ns; (NONE, 0) where none
    has, or some delays are of no step.

    Such a step is an event of its own, which is named as an odd step: it says nothing of the rank in other steps.
    """
    step, own = (np.concatenate([getattr(of, name) for of in each]) for name, each in (
        ("step", [each.met for each in theirs]), ("own_ns", theirs),
    ))  # fmt: skip
    steps, place = np.unique(step, return_inverse=True)
    delays = np.bincount(place, weights=own)
    worst = int(delays.argmax())
    if NONE in steps or not 0 < delays[worst] >= DOMINATES * delays.sum():
        return NONE, 0
    return int(steps[worst]), round(delays[worst])


def _without_step(late: Mapping[int, Sequence[LateArrivals]], step: int) -> dict[int, list[LateArrivals]]:
    """Return the late arrivals of other steps, of those who have some."""
    found = {rank: [_of_steps(each, each.met.step != step) for each in theirs] for rank, theirs in late.items()}
    kept = {rank: [each for each in theirs if each.lead_ns.size] for rank, theirs in found.items()}
    return {rank: theirs for rank, theirs in kept.items() if theirs}


def _of_steps(late: LateArrivals, rows: Flags) -> LateArrivals:
    met = replace(
        late.met, begin_ns=late.met.begin_ns[:, rows], end_ns=late.met.end_ns[:, rows], step=late.met.step[rows]
    )
    return replace(
        late, met=met, lead_ns=late.lead_ns[rows], own_ns=late.own_ns[rows], launched_ns=late.launched_ns[rows],
        passed_ns={rank: passed[rows] for rank, passed in late.passed_ns.items()},
    )  # fmt: skip


def _is_its_own(cause: str | None, theirs: Sequence[LateArrivals], run: Run) -> bool:
    """Return whether a rank was late in several steps for what is recorded of it far more than of those it delayed."""
    delays = _occasions(theirs, by_step=True)
    if cause not in OF_ITS_OWN or (delays >= MUCH * delays.max()).sum() < FEWEST_ALIKE:
        return False
    rank, peers = theirs[0].rank, compared_peers(theirs)
    recorded_ns = (
        waited_for_cores(run.ranks)
        if cause == "busy_core"
        else {each: length(recorded_pauses(run.ranks[each], COLLECTOR)) for each in (rank, *peers)}
    )
    usual_ns = float(np.median([recorded_ns.get(each, 0) for each in peers]))
    return bool(recorded_ns.get(rank, 0) >= TIMES_ITS_PEERS * usual_ns)


def _each_time(theirs: Sequence[LateArrivals], cause: str | None, run: Run, coverage: Mapping[int, Coverage]) -> bool:
    """Return whether a rank was late in several steps, by about as much in each, or ran longer before each late call.

    As much may be how late it was, or how much longer it computed or idled, if that is most of it. Short delays
    beside those do not count.
    """
    delays = _occasions(theirs, by_step=True)
    if delays.size < FEWEST_ALIKE:
        return False
    for did in (delays, *longer_by_step(theirs, coverage)):
        alike = did[did >= AS_MUCH * did.max()]
        most = max(MOSTLY_ALIKE * float(np.abs(did).sum()), MOST_OF_DELAYS * float(delays.sum()))
        if alike.size >= FEWEST_ALIKE and did.max() >= TURNS_NS and alike.sum() >= most:
            return True
    return cause == "more_work" and ran_longer_each_time(theirs[0].rank, run, [each.met for each in theirs])


def _lasts(ranks: Compared, rank: int, late: Sequence[LateArrivals]) -> bool:
    """Return whether a rank computes LASTING times as long as the peers that it delayed, without a device in most
    steps."""
    peers = [each for each in compared_peers(late) if each in ranks.work]
    usual = float(np.median([ranks.work[each].compute_ns for each in peers])) if peers else np.inf
    if rank not in ranks.work or ranks.work[rank].compute_ns < LASTING * usual:
        return False
    return ranks.run.ranks[rank].has_device or _computes_longer_in_steps(ranks, rank, peers)


def _computes_longer_in_steps(ranks: Compared, rank: int, peers: Sequence[int]) -> bool:
    """Return whether a rank computes LONGER times its peers' median in most of the steps; True where none is known."""
    took: dict[int, dict[int, int]] = {}
    for each in (rank, *peers):
        known = [(own.step, own.window) for own in step_windows(ranks.run.ranks[each]) if own.window and own.complete]
        starts, ends = (np.array([window[side] for _, window in known], np.int64) for side in (0, 1))
        computed = BusyTime(ranks.coverage[each].compute).within(starts, ends)
        took[each] = dict(zip([step for step, _ in known], computed.tolist(), strict=True))
    longer = []
    for step, own_ns in took[rank].items():
        others = [took[each][step] for each in peers if step in took[each]]  # of a rank not all steps may be recorded
        if others:
            longer.append(own_ns >= LONGER * np.median(others))
    return not longer or float(np.mean(longer)) >= IN_STEPS


def may_be_late(waits: Mapping[int, RankWait], window_ns: Mapping[int, int | None]) -> bool:
    """Return whether any rank waited for others long enough: nobody can be worth more than the longest wait."""
    longest = max((each.wait_ns - each.start_wait_ns for each in waits.values()), default=0)
    return longest >= WEIGHS * max((window or 0 for window in window_ns.values()), default=0)


def late_ranks(run: Run, whole: "RunGraph") -> "Removal | NoRemoval | None":
    """Return the ranks that are late, and what they are worth; None if that is not much, or why it is not known."""
    from overlapscope.analysis.graph.removal import late_together, needed, of_a_step, programs_of, removal  # noqa: PLC0415 - a recording without host events needs no graph

    programs = programs_of(run.ranks)
    late = late_together(whole.graph, programs)
    if max(late.values(), default=0) < WEIGHS * whole.window.length_ns(whole.graph.nodes.time_ns):
        return None
    found = removal(whole.replayed, list(late), programs)
    if found is None:
        return "no_like_peer"
    found = needed(whole.replayed, found, programs)
    if found.low_ns <= 0 or found.gain_ns < WEIGHS * found.aligned_ns:
        return None
    return replace(found, a_step=of_a_step(whole, run.ranks, found.ranks, programs))


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
    """Return an upper bound of the probability that one of `ranks` equal ranks gets `gathered` of the cost: the
    probability itself where there are few occasions, else Chernoff's bound.

    `occasions` holds the cost of each occasion, `gathered` the sum of one rank's, in the same unit.
    """
    largest = float(occasions.max()) if occasions.size else 0.0
    if largest <= 0 or gathered <= occasions.sum() / ranks:
        return 1.0
    if occasions.size <= COUNTED:
        return _counted_chance(gathered, occasions, ranks)
    tilted = np.multiply.outer(TILTS, occasions / largest)
    # log(1 + (exp(x) - 1) / n), computed without overflow.
    each = tilted + np.log(1 / ranks + (1 - 1 / ranks) * np.exp(-tilted))
    return float(min(1.0, np.exp((each.sum(axis=1) - TILTS * gathered / largest).min())))


def _counted_chance(gathered: float, occasions: Floats, ranks: int) -> float:
    """Return the probability that one of `ranks` equal ranks gets `gathered` of the cost, over all ways to get some."""
    sums, likely = np.zeros(1), np.ones(1)
    for cost in occasions:
        sums = np.concatenate([sums, sums + cost])
        likely = np.concatenate([likely * (1 - 1 / ranks), likely / ranks])
    rounding = 1e-9 * float(occasions.sum())
    return float(min(1.0, likely[sums >= gathered - rounding].sum()))


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
