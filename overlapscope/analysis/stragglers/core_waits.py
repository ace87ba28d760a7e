"""Find training threads that waited for a processor core, by the system's account, and who ran meanwhile.

Where each rank has cores of its own, and other threads of the rank ran for as long as its training thread waited, the
rank has too few cores for its own threads. Else ranks share cores, or other programs use them, and who is late may be
the scheduler's choice.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.common.job_identity import ranks_of_hosts
from overlapscope.analysis.common.wording import rank_list
from overlapscope.display import list_some, percent_text
from overlapscope.timeline.readings import ON_CORE, QUEUED, THROTTLED_US, computes_on_one_thread, reading_series
from overlapscope.timeline.run import RankTimeline, Run

MUCH: Final = 0.05
"""Waiting for a core is reported from this share of the time between the first and the last reading."""
WIDESPREAD: Final = 0.4
"""Waiting, or pauses, concern at least this share of the ranks alike, by their effective number (the square of the sum
over the sum of squares) ..."""
FEWEST: Final = 1.5
"""... and so many: of two ranks both, of which one waits at least a quarter as long."""
LIKE_THE_LONGEST: Final = 0.5
"""Where waiting is not alike, the ranks that wait for this share of what the longest waits are named."""
PROCESS_RAN: Final = "process_cpu_ns"
EXPLAINED: Final = 0.8
"""Threads of the same rank may have held all of its cores while the training thread waited if they ran, on each of
them, for at least this share of that time ..."""
FULL: Final = 1.05
"""... and all of its threads for no more than this many times what these cores have: else some ran on others."""

BUSIER: Final = 1.3
"""Ranks wait far longer on their cores than others on theirs from so many times as long."""
MOST_GROUPS: Final = 4
TIMES_OTHERS: Final = 2.0
"""Other threads of a rank are named that ran so many times as long as is usual."""
FILLED: Final = 0.85
"""Threads of a rank that together run for this share of the time, or more, fill one core: the training thread then
waits for the others ..."""
BY_OWN: Final = 0.5
"""... if those ran for at least this share of the time that it waited."""
CORES_EACH: Final = 2
"""Of more cores a rank than this, one may idle while a thread waits for another."""
BY_OTHERS: Final = 0.5
"""Other programs are named that ran for at least this share of what threads waited."""
MAY_DELAY: Final = "the scheduler can make any rank late"


class CoreWait(msgspec.Struct, frozen=True, kw_only=True):
    """How long the training thread of a rank waited for a core, of `of_ns`."""

    waited_ns: int
    of_ns: int
    beside_ns: int | None
    """How long other threads of its process ran; None where that is not known."""
    all_ns: int | None
    """How long all threads of its process ran, likewise."""
    cores: frozenset[int] | None
    """Cores that the thread may use; None where that was not recorded."""

    @property
    def share(self) -> float:
        """How much of the time it waited."""
        return self.waited_ns / self.of_ns

    @property
    def load(self) -> float:
        """How much of one core's time all threads of the rank ran; 0 where that is not known."""
        return 0.0 if self.all_ns is None else self.all_ns / self.of_ns

    @property
    def ran_there(self) -> bool:
        """Whether all threads of the rank may have run on its cores; False where that is not known."""
        if self.beside_ns is None or self.all_ns is None or self.cores is None:
            return False
        return self.all_ns <= FULL * len(self.cores) * self.of_ns

    @property
    def explained(self) -> bool:
        """Whether other threads of the rank ran for so long that they alone may have held all of its cores."""
        if self.beside_ns is None or self.cores is None or not self.ran_there:
            return False
        return self.beside_ns >= EXPLAINED * len(self.cores) * self.waited_ns


def waited_for_cores(ranks: Mapping[int, RankTimeline]) -> dict[int, int]:
    """Return how long the training thread of each rank waited for a core, where the system's account was recorded."""
    return {rank: own.waited_ns for rank, own in _waits(ranks).items()}


def waits_on_their_own(run: Run) -> list[int]:
    """Return the ranks that wait for a core for a reason of their own, not by the scheduler's choice among ranks.

    Where no two ranks may use the same core, these are all that wait much; else, and where ranks are missing that may
    use any core, the few that alone do, and those bound to cores on which ranks wait far longer than on others.
    """
    waits = _waits(run.ranks)
    much = [rank for rank, each in waits.items() if each.share >= MUCH]
    if not run.missing_ranks and _cores_of_their_own(run, waits):
        return much
    own = {*_concentrated_on(waits), *_on_busy_cores(_groups_by_cores(run, waits), waits)}
    return [rank for rank in much if rank in own]


def waits_for_cores(run: Run) -> list[Finding]:
    """Return a finding where training threads often waited for a core by the system's account; none without it."""
    waits = _waits(run.ranks)
    much = [rank for rank, each in waits.items() if each.share >= MUCH]
    if not much:
        return []
    bound = _cores_of_their_own(run, waits)
    most = max(much, key=lambda rank: waits[rank].share)
    who = (
        f"training threads waited for a CPU core, up to {waits[most].waited_ns / 1e6:.1f} ms on one rank "
        f"({percent_text(waits[most].share)} of its time)"
    )
    evidence: dict[str, Any] = {
        "waited_ns": {str(rank): each.waited_ns for rank, each in waits.items()},
        "median_share": float(np.median([each.share for each in waits.values()])),
        "most_share": waits[most].share,
    }
    if bound:
        evidence |= {
            "cores_of": {str(rank): sorted(each.cores) for rank, each in waits.items() if each.cores is not None},
            "other_threads_ns": {str(rank): each.beside_ns for rank, each in waits.items()},
        }
    alone = _concentrated_on(waits)
    if bound and all(waits[rank].explained for rank in much):
        cores, beside_ns = waits[most].cores or (), waits[most].beside_ns or 0
        number = "one core is" if len(cores) == 1 else f"{len(cores)} cores are"
        title = (
            f"{who}, while other threads of that rank ran for {beside_ns / 1e6:.1f} ms: no two "
            f"{'recorded ' * bool(run.missing_ranks)}ranks share a core, but {number} too few for the threads of a rank"
        )
        return [Finding(id="few_cores", severity="warning", title=title, evidence=evidence, known_from="telemetry")]
    if alone:
        evidence |= {"concentrated_on": alone, "waited_share": waits[most].share}
        rest_ns = max((each.waited_ns for rank, each in waits.items() if rank not in alone), default=0)
        evidence["limit_unknown"] = any(_rose(run.ranks[rank], THROTTLED_US) is None for rank in alone)
        stopped = ", or a limit of CPU time stops it, which was not recorded" if evidence["limit_unknown"] else ""
        title = (
            f"the training thread{'s' * (len(alone) > 1)} of {rank_list(alone)} waited for a CPU core for up to "
            f"{waits[most].waited_ns / 1e6:.1f} ms ({percent_text(waits[most].share)} of the time), those of the "
            f"others for at most {rest_ns / 1e6:.1f} ms: other threads or programs run on the same cores{stopped}"
        )
    elif bound:
        # Workers that load data are processes of their own, which the account of the rank's threads lacks.
        others = "other programs or data loader workers"
        no_other = not run.missing_ranks and all(waits[rank].ran_there for rank in much)
        others = others if no_other else "other threads or programs"
        title = f"{who}: {others} run on the cores to which each rank is bound, and {MAY_DELAY}"
    else:
        what, more = _among_ranks(run, waits, much)
        evidence |= more
        title = f"{who}: {what}"
    return [Finding(id="shared_cores", severity="warning", title=title, evidence=evidence, known_from="telemetry")]


def _among_ranks(run: Run, waits: Mapping[int, CoreWait], much: Sequence[int]) -> tuple[str, dict[str, Any]]:
    """Return what is said of ranks that may use the same cores, of which `much` wait much, and its evidence."""
    evidence: dict[str, Any] = {}
    groups = _groups_by_cores(run, waits)
    what = _by_cores(groups, waits) if len(groups) > 1 else f"{_too_few(run, waits)}, and {MAY_DELAY}"
    what += _of_other_threads(waits)
    taken_ns = taken_by_others_ns(run, waits)
    if taken_ns >= BY_OTHERS * sum(each.waited_ns for each in waits.values()):
        evidence["others_ran_ns"] = taken_ns
        what += f"; other programs or data loader workers ran there for at least {taken_ns / 1e6:.1f} ms meanwhile"
    full = [] if "others_ran_ns" in evidence else _full_ranks(run, waits)
    if full:
        evidence["full_ranks"] = full
        most_full = max(full, key=lambda rank: waits[rank].load)
        what += (
            f"; the threads of rank {most_full} alone ran for {percent_text(waits[most_full].load)} of one core's "
            f"time, so that a core for each rank is not enough"
        )
    on_one = all(computes_on_one_thread(run.ranks[rank]) for rank in much)
    cores = {each.cores for each in waits.values()}
    fewer = _alone_on_a_host(run, waits) and len(cores) == 1 and 0 < len(next(iter(cores)) or ()) < len(waits)
    bind = f"{'' if on_one else 'set OMP_NUM_THREADS and '}bind each rank to its own cores"
    bind = "more cores are needed, or fewer ranks" if fewer else bind
    return f"{what}{'' if full else f'; {bind}'}", evidence


def _concentrated_on(waits: Mapping[int, CoreWait]) -> list[int]:
    """Return the ranks that waited, where those are few of all; empty where waiting is spread over the ranks.

    As for pauses of hosts, the effective number of ranks that wait (the square of the sum over the sum of squares) is
    compared with their number.
    """
    every = np.array([each.waited_ns for each in waits.values()], np.float64)
    alike = float(every.sum() ** 2 / max((every**2).sum(), 1.0))
    if len(waits) < 2 or alike >= max(WIDESPREAD * len(waits), FEWEST):
        return []
    least = max(MUCH, LIKE_THE_LONGEST * max(each.share for each in waits.values()))
    return [rank for rank, each in waits.items() if each.share >= least]


def _waits(ranks: Mapping[int, RankTimeline]) -> dict[int, CoreWait]:
    return {rank: own for rank, timeline in ranks.items() if (own := _wait(timeline)) is not None}


def _wait(timeline: RankTimeline) -> CoreWait | None:
    """Return how long a rank's training thread waited for a core; None where that is not known.

    It cannot have waited, or run, for longer than the time that passed: then the counter is damaged.
    """
    time_ns, _ = reading_series(timeline, QUEUED)
    waited_ns, all_ns, own_ns = (_rose(timeline, reading) for reading in (QUEUED, PROCESS_RAN, ON_CORE))
    if waited_ns is None or time_ns[-1] <= time_ns[0] or waited_ns > time_ns[-1] - time_ns[0]:
        return None
    if own_ns is not None and own_ns > time_ns[-1] - time_ns[0]:
        own_ns = None
    beside_ns = None if all_ns is None or own_ns is None else max(0, all_ns - own_ns)
    settings = timeline.recorded.get("settings")
    cores = settings.get("cores") if isinstance(settings, Mapping) else None
    return CoreWait(
        waited_ns=waited_ns,
        of_ns=int(time_ns[-1] - time_ns[0]),
        beside_ns=beside_ns,
        all_ns=all_ns,
        cores=frozenset(cores) if isinstance(cores, list) and all(isinstance(each, int) for each in cores) else None,
    )


def _rose(timeline: RankTimeline, reading: str) -> int | None:
    """Return how much a counter rose; None where it was not recorded twice, or fell: then it is that of another thread,
    or damaged."""
    _, value = reading_series(timeline, reading)
    if value.size < 2 or value.min() < 0 or (value[1:] < value[:-1]).any():
        return None
    return round(float(value[-1] - value[0]))


def _too_few(run: Run, waits: Mapping[int, CoreWait]) -> str:
    """Return how many cores all ranks of a host may use, where that is known and not more than ranks."""
    for ranks in ranks_of_hosts(run).values():
        sets = [waits[rank].cores for rank in ranks if rank in waits]
        known = [each for each in sets if each]
        cores = frozenset().union(*known)
        if len(known) == len(ranks) and 0 < len(cores) <= len(ranks):
            many = "cores" if len(cores) > 1 else "core"
            return f"{len(ranks)} ranks may use {len(cores)} {many} in all ({list_some(sorted(cores))})"
    return "there are more threads than cores"


def _full_ranks(run: Run, waits: Mapping[int, CoreWait]) -> list[int]:
    """Return the ranks that wait much though their own threads fill what each rank could have of these cores; empty
    where that is more than one core, or not known."""
    cores = {each.cores for each in waits.values()}
    if not _alone_on_a_host(run, waits) or len(cores) != 1:
        return []
    if len(next(iter(cores)) or ()) // max(len(waits), 1) != 1:
        return []
    return [
        rank
        for rank, each in waits.items()
        if each.share >= MUCH and each.load >= FILLED and (each.beside_ns or 0) >= BY_OWN * each.waited_ns
    ]


def _alone_on_a_host(run: Run, waits: Mapping[int, CoreWait]) -> bool:
    """Return whether all ranks of the job were recorded on one host, with the system's account, and none was throttled:
    a thread that its control group stops waits for a core while others idle."""
    on_one = [set(ranks) for ranks in ranks_of_hosts(run).values()] == [set(run.ranks)]
    throttled = any(_rose(timeline, THROTTLED_US) for timeline in run.ranks.values())
    return not run.missing_ranks and on_one and set(waits) == set(run.ranks) and not throttled


def taken_by_others_ns(run: Run, waits: Mapping[int, CoreWait]) -> int:
    """Return for how long other processes at least ran on the cores of the ranks while training threads waited; 0 where
    that is not known: not all ranks recorded, of several hosts, with fewer cores than ranks.

    While a thread waits for a core, others run on all that it may use, so that of n training threads on n cores or
    more, of which w wait, at most n - w cores run training threads, and w or more something else. Threads of the ranks
    that do not train ran for `beside_ns`, at most all of it then. It is assumed that no core idles while a thread waits
    for one.
    """
    if not _alone_on_a_host(run, waits):
        return 0
    beside = [each.beside_ns for each in waits.values() if each.beside_ns is not None]
    cores = {each.cores for each in waits.values()}
    allowed = len(next(iter(cores)) or ())
    if len(beside) < len(waits) or len(cores) != 1 or not len(waits) <= allowed <= CORES_EACH * len(waits):
        return 0
    return max(sum(each.waited_ns for each in waits.values()) - sum(beside), 0)


def _groups_by_cores(run: Run, waits: Mapping[int, CoreWait]) -> list[list[int]]:
    """Return the ranks that may use the same cores together, the busiest cores first; empty where ranks are missing, or
    are of several hosts, or the cores of one are not known."""
    if run.missing_ranks or len(ranks_of_hosts(run)) != 1 or set(waits) != set(run.ranks):
        return []
    groups: list[tuple[frozenset[int], list[int]]] = []
    for rank, each in waits.items():
        if not each.cores:
            return []
        same = [group for group in groups if group[0] & each.cores]
        cores, ranks = each.cores.union(*(own for own, _ in same)), [rank, *(one for _, own in same for one in own)]
        groups = [*(group for group in groups if group not in same), (cores, ranks)]
    return sorted((sorted(ranks) for _, ranks in groups), key=lambda ranks: -max(waits[rank].share for rank in ranks))


def _on_busy_cores(groups: Sequence[Sequence[int]], waits: Mapping[int, CoreWait]) -> list[int]:
    """Return the ranks of groups by cores in which each waits BUSIER times as long, and MUCH longer, than any of the
    others."""
    found: list[int] = []
    for group in groups:
        others = [waits[rank].share for other in groups if other is not group for rank in other]
        least = min(waits[rank].share for rank in group)
        if others and least >= max(BUSIER * max(others), MUCH + max(others)):
            found += group
    return found


def _by_cores(groups: Sequence[Sequence[int]], waits: Mapping[int, CoreWait]) -> str:
    """Return who shares which cores and waits how much."""
    parts = []
    for ranks in groups[:MOST_GROUPS]:
        cores = sorted(frozenset().union(*(waits[rank].cores or () for rank in ranks)))
        least, most = (choose(waits[rank].share for rank in ranks) for choose in (min, max))
        waited = percent_text(most)
        if waited != percent_text(least):
            waited = f"{percent_text(least).removesuffix(' %')} to {waited}"
        on = f"core{'s' * (len(cores) > 1)} {list_some(cores)}"
        parts.append(f"{rank_list(ranks)} {'share' if len(ranks) > 1 else 'has'} {on} ({waited})")
    left_out = len(groups) - MOST_GROUPS
    if left_out > 0:
        many = "groups of ranks, which wait" if left_out > 1 else "group of ranks, which waits"
        parts.append(f"{left_out} more {many} less or as long, {'have' if left_out > 1 else 'has'} others")
    return ", ".join(parts)


def _of_other_threads(waits: Mapping[int, CoreWait]) -> str:
    """Return whose other threads ran by far the longest, for the end of a sentence; empty where nobody's did."""
    beside = {rank: each.beside_ns for rank, each in waits.items() if each.beside_ns is not None}
    if len(beside) < max(len(waits), 2):
        return ""
    longest = max(beside, key=beside.__getitem__)
    usual_ns = float(np.median([ns for rank, ns in beside.items() if rank != longest]))
    if beside[longest] < max(TIMES_OTHERS * usual_ns, MUCH * waits[longest].of_ns):
        return ""
    return f", and other threads of rank {longest} ran for {beside[longest] / 1e6:.1f} ms"


def _cores_of_their_own(run: Run, waits: Mapping[int, CoreWait]) -> bool:
    """Return whether no two recorded ranks of a host may use the same core: known of all, or False."""
    hosts = ranks_of_hosts(run)
    if {rank for ranks in hosts.values() for rank in ranks} != set(run.ranks) or set(waits) != set(run.ranks):
        return False
    return all(_disjoint([waits[rank].cores for rank in ranks]) for ranks in hosts.values())


def _disjoint(sets: Collection[frozenset[int] | None]) -> bool:
    known = [each for each in sets if each]
    return len(known) == len(sets) and sum(map(len, known)) == len(frozenset().union(*known))
