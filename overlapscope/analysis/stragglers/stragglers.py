"""Find stragglers: ranks without whose own excess the recording would be shorter, more than is likely by chance.

Where the dependency graph of the run may answer, a rank is named for its removal value (`graph/removal.py`): what the
recording gains if it, or a cluster of ranks that are late together, takes for its own work what its peers take. Where
the graph may not answer, it is named for its blame alone, and the removal value is not known. Either way it must have
been late more often than one of equal ranks would be (`chance`), or for a reason of its own (`own_reason`). Overlapping
intervals are one occasion: a single pause makes a rank late in all of its groups. Blame that it passes on, because it
waited for another rank itself, belongs to that rank (`lateness`); its cause is what it did longer than its peers
(`straggler_cause`).
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.common.cause_table import NoRemoval
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.common.job_identity import host_of_ranks
from overlapscope.analysis.common.wording import short
from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.cross_rank.wait_transfer import RankWait, Split, leads
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.interference import interference
from overlapscope.analysis.per_rank.kernels import RankCompute
from overlapscope.analysis.stragglers.chance import chances
from overlapscope.analysis.stragglers.late_range import late_range
from overlapscope.analysis.stragglers.lateness import LateArrivals, attribute_blame, late_arrivals
from overlapscope.analysis.stragglers.one_event import DOMINATES, one_event, without_step
from overlapscope.analysis.stragglers.onset import ENDS_THERE, ONLY_STEP, onset
from overlapscope.analysis.stragglers.own_pauses import own_pauses
from overlapscope.analysis.stragglers.own_reason import MUCH, OF_COMPUTE, computes_longer, is_its_own, late_alike
from overlapscope.analysis.stragglers.shared_cores import HostTimes
from overlapscope.analysis.stragglers.slow_in_steps import (
    AS_USUAL_STEPS,
    SLOW_STEPS,
    TIMES_IN_SLOW_STEPS,
    is_interrupted,
)
from overlapscope.analysis.stragglers.straggler_cause import MOST, compared_peers, find_straggler_cause
from overlapscope.analysis.stragglers.work_by_phase import cause_by_phase
from overlapscope.display import list_some
from overlapscope.timeline.columns import NONE, size
from overlapscope.timeline.intervals import Intervals
from overlapscope.timeline.run import Run

if TYPE_CHECKING:
    from overlapscope.analysis.graph.removal import Removal, RunGraph

WEIGHS: Final = 0.05
WEIGHS_ON_HOST: Final = 0.1
"""Blame is relevant from this share of the recording (higher without devices: ranks that share cores vary more)."""
CHANCE: Final = 0.01
"""Maximum probability that, among equal ranks, any rank would have this much blame (p times the number of ranks)."""
RECORDED: Final = frozenset({"garbage_collector", "data_loading", "allocator", "throttled"})
"""With one of these causes, which are recorded of the rank itself, a single event is its own, too."""
PAUSES_TOO: Final = 0.25
"""A rank whose pauses are more than this share of what it delayed others is no slower core: it is not known."""
MANY_STEPS: Final = 4
ALONE: Final = 0.1
"""Where one rank has the share DOMINATES of all blame, this probability is allowed: for example two long pauses of one
rank among a dozen."""
ALIKE: Final = 0.25
"""Where one rank has that share and was late in three steps or more, each time by about as much, or with more time on a
core than its peers each time, this probability is allowed: what happens by chance lasts now longer, now shorter. Three
steps of two ranks, or of three, are then enough."""
MOST_MEASURED: Final = 8
"""Ranks whose slowdown beside communication is measured for the value of late ones."""
REMOVAL_STEP: Final = "removal_step_ns"
"""The evidence of what a step gains without the excess of ranks, the mean over steps: the median, the lowest and the
highest over peers."""
REMOVAL_SINCE: Final = "removal_since_ns"
"""The same of the steps since which its device is slower, where it was not before."""


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
        return f", in at least {late} of {steps} steps in which any rank was late" if 0 < late < steps else ""

    @property
    def paused(self) -> str:
        """Words to follow others: at which place its host pauses again and again, how often, and for how long. Empty if
        that is not known."""
        first, last = map(short, self.evidence.get("paused_between", ("", "")))
        if not first and not last:
            return ""
        where = f"between {first} and {last}" if first and last else f"after {first}" if first else f"before {last}"
        least, most = (f"{ns / 1e6:.1f}" for ns in self.evidence["pauses_ns"])
        return f"{where}, {self.evidence['pauses']} times, for {least} to {most} ms"

    @property
    def since(self) -> str:
        """Words to follow others: since which step a device computes longer than its peers. Empty if it always did, or
        that is not known."""
        step = self.evidence.get("since_step")
        return "" if step is None else f", since step {step}"

    @property
    def alone_in(self) -> str:
        """Words to follow others: in which single step a device computes longer than its peers. Empty if it does so in
        several, or that is not known."""
        step = self.evidence.get(ONLY_STEP)
        last = ", the last one recorded" if self.evidence.get(ENDS_THERE) else ""
        return "" if step is None else f", in step {step} alone{last}"

    @property
    def slow_in(self) -> str:
        """Words to follow others: in which steps a device ran the same kernels slower, and how much. Empty if it always
        did, or does so since some step, or that is not known."""
        steps = self.evidence.get(SLOW_STEPS, ())
        if self.since or not self.evidence.get(AS_USUAL_STEPS):
            return ""
        times = self.evidence[TIMES_IN_SLOW_STEPS]
        return f", in steps {list_some(steps)}, where its kernels take {times:.2f} times as long as its peers'"


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
    hosts: Mapping[int, HostTimes] = {}
    """What the hosts of devices did, as far as that is known."""
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
    a_step, since = (
        {} if each is None else {name: [each.gain_ns, each.low_ns, each.high_ns]}
        for name, each in ((REMOVAL_STEP, late.a_step), (REMOVAL_SINCE, late.since))
    )
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
                evidence=each.evidence | a_step | (since if each.since else {}),
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


class _AllLate(msgspec.Struct, kw_only=True, frozen=True):
    """The late arrivals of all ranks, and what is known of them together."""

    arrivals: Mapping[int, Sequence[LateArrivals]]
    blamed_ns: Mapping[int, int]
    chance: Mapping[int, float]
    by_step: bool
    """Whether there are enough steps for each to be an occasion."""
    could: int
    """Ranks that could have been late."""
    whole: frozenset[tuple[int, ...]]
    """Sets of ranks all of which were recorded."""


def _by_blame(ranks: Compared, named: int | None = None) -> list[Straggler]:
    """Return the stragglers by blame; with `named`, that rank however small its blame, and no other."""
    late: dict[int, list[LateArrivals]] = {}
    for each in late_arrivals(ranks.run, ranks.splits, ranks.coverage):
        late.setdefault(each.rank, []).append(each)
    by_step = max((size(timeline.steps) for timeline in ranks.run.ranks.values()), default=0) >= MANY_STEPS
    could = len({rank for each in ranks.splits for rank in each.block.ranks})
    every = _AllLate(
        arrivals=late, blamed_ns=attribute_blame([each for theirs in late.values() for each in theirs]),
        chance=chances(late, could, by_step=by_step), by_step=by_step, could=could,
        whole=frozenset(each.block.ranks for each in ranks.splits if each.block.whole),
    )  # fmt: skip
    chosen = [rank for rank in late if named is None or rank == named]
    found = [held for rank in chosen if (held := _judged(ranks, every, rank, named)) is not None]
    return sorted(found, key=lambda each: (-each.blame_ns, each.rank))


def _judged(ranks: Compared, every: _AllLate, rank: int, named: int | None) -> Straggler | None:
    """Return a rank as a straggler; None where its blame is little, or by chance, or of others."""
    arrivals, blame_ns, chance = every.arrivals, every.blamed_ns[rank], every.chance[rank]
    window_ns = ranks.window_ns.get(rank) or 0
    weighs = WEIGHS if ranks.run.ranks[rank].has_device else WEIGHS_ON_HOST
    if rank != named and (not window_ns or blame_ns < weighs * window_ns):
        return None
    cause, evidence = _cause(ranks, arrivals[rank])
    single = every.by_step and rank != named and cause not in RECORDED and not _lasts(ranks, cause, arrivals[rank])
    step, event_ns = one_event(arrivals[rank]) if single else (NONE, 0)
    if event_ns:
        arrivals, blame_ns = without_step(arrivals, step), blame_ns - event_ns
        if rank not in arrivals or blame_ns < weighs * (window_ns - event_ns):
            return None
        cause, evidence = _cause(ranks, arrivals[rank])
        chance = chances(arrivals, every.could, by_step=every.by_step)[rank]
    theirs = arrivals[rank]
    if cause is None or (cause == "unknown" and not every.whole.issuperset(each.met.ranks for each in theirs)):
        return None  # the unknown cause may be a member that was not recorded
    if cause == "unknown" and _left_late(ranks, theirs):
        return None  # it was woken late there, or its link is slow
    alone = every.blamed_ns[rank] >= DOMINATES * sum(every.blamed_ns.values()) and not ranks.left_out
    alike = alone and late_alike(theirs, cause, ranks.run, ranks.coverage)
    of_host = own_pauses(rank, compared_peers(theirs), ranks.run, ranks.hosts, blame_ns) if cause == "host" else {}
    slow_alone = alone and SLOW_STEPS in evidence  # devices that are slower in turn are no straggler
    certain = bool(of_host) or slow_alone or is_its_own(cause, theirs, ranks.run)
    allowed = np.inf if certain else ALIKE if alike else ALONE if alone else CHANCE
    if chance * every.could > allowed and not _lasts(ranks, cause, theirs):
        return None
    cause, more = _explained(ranks, cause, evidence, theirs, blame_ns)
    calls = sum(int((each.lead_ns > 0).sum()) for each in theirs)
    known = {
        "calls": calls,
        "chance": chance,
        "alike": alike,
        **_steps(theirs, arrivals),
        **evidence,
        **of_host,
        **more,
    }
    return Straggler(
        rank=rank, held_by=cause, blame_ns=blame_ns, evidence=known, host=host_of_ranks(ranks.run).get(rank)
    )


def _left_late(ranks: Compared, theirs: Sequence[LateArrivals]) -> bool:
    """Return whether a rank without a device was late mostly as it had left the calls before later than its peers."""
    if ranks.run.ranks[theirs[0].rank].has_device:
        return False
    explained, leads = 0.0, 0.0
    for each in theirs:
        left = ranks.clocks.rows(each.met.ranks, each.met.begin_ns)
        own = each.met.ranks.index(each.rank)
        later = left[own] - np.delete(left, own, axis=0).max(axis=0)
        explained += float(np.clip(later, 0, each.lead_ns).sum())
        leads += float(each.lead_ns.sum())
    return explained > MOST * leads


def _cause(ranks: Compared, theirs: Sequence[LateArrivals]) -> tuple[str | None, dict[str, Any]]:
    return find_straggler_cause(
        theirs, ranks.run, ranks.coverage, ranks.work, ranks.not_launched, ranks.core_waits, ranks.paused,
        ranks.operation_ns,
    )  # fmt: skip


def _lasts(ranks: Compared, cause: str | None, theirs: Sequence[LateArrivals]) -> bool:
    """Return whether what makes a rank late is that it computes longer over the whole recording."""
    return cause in OF_COMPUTE and computes_longer(theirs[0].rank, theirs, ranks.run, ranks.coverage, ranks.work)


def _explained(
    ranks: Compared, cause: str, evidence: Mapping[str, Any], theirs: Sequence[LateArrivals], blame_ns: int
) -> tuple[str, dict[str, Any]]:
    """Return the cause of a straggler, refined by the phases of its steps on a CPU, and more evidence: the range that
    it was late in, and since when."""
    run, rank, peers = ranks.run, theirs[0].rank, compared_peers(theirs)
    lead_ns = sum(int(each.lead_ns.sum()) for each in theirs)
    more: dict[str, Any] = {}
    pauses_too = evidence.get("paused_more_ns", 0) > PAUSES_TOO * blame_ns  # then all of its phases take longer
    of_phases = cause in {"more_work", "longer_compute"} and "host_op" not in evidence and not pauses_too
    if of_phases and not run.ranks[rank].has_device:
        cause, more = cause_by_phase(cause, rank, peers, run, blame_ns)
    began = onset(rank, peers, run) if cause in OF_COMPUTE and not is_interrupted(evidence) else {}
    on_device = cause == "more_work" and run.ranks[rank].has_device
    return cause, more | late_range(rank, run, [each.met for each in theirs], lead_ns, on_device=on_device) | began


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


def may_be_late(waits: Mapping[int, RankWait], window_ns: Mapping[int, int | None]) -> bool:
    """Return whether any rank waited for others long enough: nobody can be worth more than the longest wait."""
    longest = max((each.wait_ns - each.start_wait_ns for each in waits.values()), default=0)
    return longest >= WEIGHS * max((window or 0 for window in window_ns.values()), default=0)


def late_ranks(run: Run, whole: "RunGraph") -> "Removal | NoRemoval | None":
    """Return the ranks that are late, and what they are worth; None if that is not much, or why it is not known."""
    from overlapscope.analysis.graph.removal import late_together, needed, of_a_step, programs_of, removal, with_relief  # noqa: PLC0415 - a recording without host events needs no graph

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
    slowdown = measured_slowdown(run, found.ranks)
    a_step = of_a_step(whole, run.ranks, found.ranks, programs, slowdown=slowdown)
    since = _since(run, whole, found.ranks, programs, slowdown)
    return replace(with_relief(whole.replayed, found, programs, slowdown), a_step=a_step, since=since)


def measured_slowdown(run: Run, late: Sequence[int]) -> float | None:
    """Return how many times as long compute takes beside communication on ranks that are not late, in the median; None
    where it was measured on none of them."""
    others = [timeline for rank, timeline in run.ranks.items() if rank not in late][:MOST_MEASURED]
    measured = [interference(each.spans).value for each in others]
    return median([each.times for each in measured if not isinstance(each, str)] or [0.0]) or None


def _since(
    run: Run, whole: "RunGraph", ranks: Sequence[int], programs: Mapping[int, object], slowdown: float | None
) -> "Removal | None":
    """Return what a step gains without the excess of one rank, since its device is slower; None where it always was."""
    from overlapscope.analysis.graph.removal import of_a_step  # noqa: PLC0415 - a recording without host events needs no graph

    if len(ranks) != 1:
        return None
    (rank,) = ranks
    alike = [each for each in run.ranks if each != rank and programs[each] == programs[rank]]
    step = onset(rank, alike, run).get("since_step")
    return None if step is None else of_a_step(whole, run.ranks, ranks, programs, step, slowdown)


def beside_slow_links(held: Sequence[Straggler], links: Sequence[Finding]) -> list[Straggler]:
    """Remove stragglers of unknown cause where a link is slow: the link is the cause, not the rank.

    A slow link delivers data late to some members, which then begin the next call late.
    """
    return [each for each in held if not links or each.held_by != "unknown"]
