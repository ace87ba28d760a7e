"""Find which ranks share the clock of one host, so that no offset is estimated between them."""

from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from typing import Final

import numpy as np

from overlapscope.analysis.common.job_identity import ranks_of_hosts
from overlapscope.analysis.cross_rank.aligned_clocks import Clocks, connected
from overlapscope.analysis.cross_rank.matched_calls import MatchedCalls
from overlapscope.analysis.cross_rank.matching.point_to_point import called_ns, match_pairs
from overlapscope.display import list_some
from overlapscope.timeline.columns import HOST, Ints
from overlapscope.timeline.hosts import clock_of
from overlapscope.timeline.operations import ROOTED
from overlapscope.timeline.run import RankTimeline, Run

TOGETHER_NS: Final = 200_000
"""A call whose ends on two ranks are no further apart than this ended together. Of ranks on one clock ..."""
FEWEST: Final = 2
OFTEN: Final = 0.1
"""... at least so many calls do, and this share of all: others end apart, as the thread that sees an end waits ..."""
FEWEST_OF_SETS: Final = 3
"""Of several ranks some may end together by chance: so many calls do, and as many as one distance apart. Two ranks of
which so many end one distance apart, and ..."""
VETO: Final = 2
"""... so many times as many as together, and as OFTEN of all, have two clocks."""
MOST_OFTEN: Final = 0.5
"""... and at least this share of those that end any one distance apart, which is how far two clocks would be."""
SCATTERED: Final = 0.4
FEWEST_SCATTERED: Final = 5
"""Of so many calls or more, no distance has more than this share: two clocks would be one distance apart. A slow link
lets some members see the end later than others do, each time by another length, and by more than ..."""
FAR_NS: Final = 10_000_000
"""... clocks of two machines mostly are apart that the network sets."""
FEWEST_AGAINST: Final = 4
"""So many matched calls of two recordings that name one clock contradict it ..."""
AGAINST: Final = 0.9
"""... where this share of them end one distance apart, but not together, and no other calls of the two end together as
often (`MOST_OFTEN`), as those would that are paired with the one before or after. A choice: a call may be seen late."""
ABOVE: Final = 16
"""Processes of one system that were started one after another have numbers at most so far apart: a system gives the
next free one to each process and each thread. A choice: launchers start all ranks of a host at once."""
MOST_THREADS: Final = 1 << 22
"""Linux gives no process or thread a higher number (`PID_MAX_LIMIT`): higher ones are addresses."""
EARLY_NS: Final = 100_000
"""By this much a call may end, as recorded, before its last member began, and a message arrive before it was sent."""
SOON_NS: Final = 1_000_000
"""FEWEST messages or more arrive so soon after they were sent, in both directions: no clock can be further ahead."""


def shared_clocks(run: Run, blocks: Sequence[MatchedCalls], *, by_rooted: bool = False) -> dict[int, str]:
    """Return the host of each rank that shares a clock with the other ranks of that host.

    Those are the ranks that one profiler recorded together, or OverlapScope's own capture, but for recordings whose
    matched calls contradict the clock that they name; and those of CPU runs whose host another source names, where the
    matched calls and messages agree with it: containers on two nodes may have one name. With `by_rooted` only calls
    with a root are asked, of which enough must end together: where all-reduces end late now here, now there, as on busy
    cores, their ends say nothing.
    """
    found = {}
    for rank, timeline in run.ranks.items():
        settings = timeline.recorded.get("settings")
        host = settings.get("host") if isinstance(settings, dict) else None
        clock = clock_of(timeline) or host
        if isinstance(clock, str):
            found[rank] = clock
    found = _not_contradicted(run, found, blocks)
    for host, ranks in ranks_of_hosts(run).items():
        named = [rank for rank in ranks if rank not in found and not run.ranks[rank].has_device]
        sets = _agreeing(run, named, blocks, by_rooted=by_rooted) if len(named) > 1 else []
        for members in sets:
            found |= dict.fromkeys(members, host if len(sets) == 1 else f"{host}, rank {members[0]}")
    return found


def clock_reasons(run: Run, hosts: Mapping[int, str]) -> tuple[str, ...]:
    """Return a reason where recordings name one clock and `hosts`, as `shared_clocks` returns them, do not."""
    apart = [rank for rank, timeline in run.ranks.items() if clock_of(timeline) not in (None, hosts.get(rank))]
    if not apart:
        return ()
    return (
        f"ranks {list_some(apart)}: their source says that recordings have one clock, but their calls end one distance "
        "apart, as on several: the clocks are aligned by these",
    )


def _not_contradicted(run: Run, named: dict[int, str], blocks: Sequence[MatchedCalls]) -> dict[int, str]:
    """Return the clocks of ranks as their sources name them, with other names where matched calls contradict them:
    several recordings may state one clock, as those of sessions that began at one moment by two clocks."""
    sources = {rank: _sources(run.ranks[rank]) for rank in named}
    ends: dict[tuple[int, int], list[Ints]] = {}
    for block in blocks:
        if block.op in ROOTED:  # whose root may leave before another member comes
            continue
        first: dict[str, int] = {}
        for at, rank in enumerate(block.ranks):
            place = first.setdefault(named[rank], at) if rank in named else at
            one = block.ranks[place]
            if place != at and sources[one] != sources[rank]:
                ends.setdefault((one, rank), []).append(block.end_ns[[place, at]])
    against = {pair for pair, its in ends.items() if _end_one_distance_apart(np.concatenate(its, axis=1))}
    if not against:
        return named
    found = dict(named)
    agree = [pair for pair in ends if pair not in against]
    for clock in {named[rank] for pair in against for rank in pair}:
        own = [rank for rank, each in named.items() if each == clock]
        for members in connected([*([rank] for rank in own), *(pair for pair in agree if pair[0] in own)]):
            found |= dict.fromkeys(members, f"{clock}, rank {members[0]}")
    return found


def _sources(timeline: RankTimeline) -> list[str | None]:
    return [timeline.name(code) for code in timeline.recordings.source.tolist()]


def _end_one_distance_apart(ends_ns: Ints) -> bool:
    """Return whether calls, by their ends on two ranks (rows), show that these have two clocks."""
    if ends_ns.shape[1] < FEWEST_AGAINST:
        return False
    apart = ends_ns[1] - ends_ns[0]
    middle = np.median(apart)
    alike = np.abs(apart - middle) <= TOGETHER_NS
    if abs(middle) <= 2 * TOGETHER_NS or alike.mean() < AGAINST:
        return False
    order = np.sort(ends_ns[0])
    near = np.searchsorted(order, ends_ns[1] + TOGETHER_NS, "right") - np.searchsorted(order, ends_ns[1] - TOGETHER_NS)
    return bool((near > 0).mean() < MOST_OFTEN)


def _agreeing(run: Run, ranks: Sequence[int], blocks: Sequence[MatchedCalls], *, by_rooted: bool) -> list[list[int]]:
    """Return the sets of ranks that calls or messages connect, if these end as on one clock.

    Messages count only between ranks that share no call: paired by order, some may be paired with one sent after them.
    """
    apart: dict[tuple[int, int], list[Ints]] = {}
    every: list[tuple[list[int], Ints]] = []
    for block in blocks:
        places = [at for at, rank in enumerate(block.ranks) if rank in ranks]
        if len(places) < 2:
            continue
        start, end = block.start_ns[places], block.end_ns[places]
        rooted = block.op in ROOTED  # whose root may leave before another member comes
        if not rooted and (start.max(axis=0) - end.min(axis=0) > EARLY_NS).any():
            return []
        every.append(([block.ranks[at] for at in places], end))
        if by_rooted and not rooted:
            continue
        for one, other in combinations(range(len(places)), 2):
            pair = block.ranks[places[one]], block.ranks[places[other]]
            apart.setdefault(pair, []).append(end[other] - end[one])
    messages = _messages(run, ranks).items()
    took = {ways: each for ways, each in messages if ways not in apart and ways[::-1] not in apart}
    if any((each < -EARLY_NS).any() for each in took.values()):
        return []
    answered = [ways for ways in took if ways[::-1] in took]
    known = {pair: np.sort(np.concatenate(each)) for pair, each in apart.items()}
    one_system = _are_numbered_together(run, ranks)
    together = all(_end_together(each, by_rooted=by_rooted, one_system=one_system) for each in known.values())
    together = together or _sets_end_together(known, every)
    agree = together and all(_arrive_soon(took[ways]) for ways in answered)
    return connected([*apart, *answered]) if agree else []


def _sets_end_together(apart: Mapping[tuple[int, int], Ints], calls: Sequence[tuple[Sequence[int], Ints]]) -> bool:
    """Return whether ranks that end together in pairs make one set, or several between any two of which calls end
    together on some rank of either as often as one distance apart, or none is made; and no pair ends apart by one
    distance far more often than together, as on two clocks.

    `apart` holds how far apart calls end on two ranks, in order; `calls` the ranks of calls and their ends: a rank a
    row, a call a column.
    """
    counted = {pair: _near_and_elsewhere(each) for pair, each in apart.items()}
    if any(
        elsewhere >= max(FEWEST_OF_SETS, VETO * near, VETO * OFTEN * apart[pair].size)
        for pair, (near, elsewhere) in counted.items()
    ):
        return False
    alike = [pair for pair, (near, elsewhere) in counted.items()
             if near >= max(FEWEST_OF_SETS, OFTEN * apart[pair].size, elsewhere)]  # fmt: skip
    sets = connected([*alike, *((rank, rank) for rank in sorted({rank for pair in apart for rank in pair}))])
    for one, other in combinations(sets, 2):
        nearest: list[int] = []
        distances: list[Ints] = []
        for members, ends in calls:
            mine, theirs = ([at for at, rank in enumerate(members) if rank in own] for own in (one, other))
            if mine and theirs:
                between = (ends[theirs][:, None] - ends[mine][None]).reshape(-1, ends.shape[1])
                nearest += np.abs(between).min(axis=0).tolist()
                distances += [np.unique(each // (2 * TOGETHER_NS)) for each in between.T]
        if not distances:
            continue  # no call says anything of their clocks
        near = int((np.array(nearest) <= TOGETHER_NS).sum())
        most = int(np.unique(np.concatenate(distances), return_counts=True)[1].max())
        if near < max(FEWEST_OF_SETS, OFTEN * len(nearest), most):
            return False
    return True


def _near_and_elsewhere(apart_ns: Ints) -> tuple[int, int]:
    """Return how many calls ended together, and how many at most another one distance apart; `apart_ns` in order."""
    elsewhere = apart_ns[np.abs(apart_ns) > TOGETHER_NS]
    until = np.searchsorted(elsewhere, elsewhere + 2 * TOGETHER_NS, side="right")
    return apart_ns.size - elsewhere.size, int((until - np.arange(elsewhere.size)).max(initial=0))


def _messages(run: Run, ranks: Sequence[int]) -> dict[tuple[int, int], Ints]:
    """Return how long after they were sent the messages from one rank to another arrived, each by its own clock."""
    took: dict[tuple[int, int], list[Ints]] = {}
    for pair in match_pairs(run, Clocks()).pairs:
        if pair.both_ways or not {pair.sender, pair.receiver} <= set(ranks):
            continue
        sent = called_ns(run.ranks[pair.sender].collectives, pair.send_rows)
        ended = run.ranks[pair.receiver].collectives.end_ns[pair.recv_rows]
        took.setdefault((pair.sender, pair.receiver), []).append(ended - sent)
    return {ways: np.concatenate(each) for ways, each in took.items()}


def _arrive_soon(took_ns: Ints) -> bool:
    return int((took_ns <= SOON_NS).sum()) >= FEWEST


def _are_numbered_together(run: Run, ranks: Sequence[int]) -> bool:
    """Return whether the numbers of these ranks' processes and threads show that one system gave them: all of them
    differ, those of the processes follow each other, and a thread of each was made after the next one's process.

    Machines of one name number anew: their numbers are the same, or far apart, but by chance.
    """
    numbers = sorted(each for rank in ranks if (each := _thread_numbers(run.ranks[rank])))
    if len(numbers) < len(ranks) or len(set().union(*numbers)) < sum(map(len, numbers)):
        return False
    return all(0 < later[0] - own[0] <= ABOVE and own[-1] > later[0] for own, later in pairwise(numbers))


def _thread_numbers(timeline: RankTimeline) -> list[int]:
    """Return the numbers of a rank's processes and threads as their system gave them, in order; empty where the source
    writes others."""
    lanes = timeline.lanes
    host = lanes.kind == HOST
    named = zip(lanes.process[host].tolist(), lanes.label[host].tolist(), strict=True)
    written = [(process, thread) for codes in named if (process := timeline.name(codes[0]) or "").isdecimal()
               and (thread := timeline.name(codes[1]) or "").isdecimal()]  # fmt: skip
    found = sorted({int(number) for each in written for number in each})
    return found if found and found[-1] <= MOST_THREADS else []


def _end_together(apart_ns: Ints, *, by_rooted: bool, one_system: bool) -> bool:
    """Return whether often enough the same call ended at one moment on two ranks, or far apart by no usual distance.

    Of few calls none of which ends as far apart as another one, nothing contradicts the name that their hosts share.
    `apart_ns` is in order. Of ranks of `one_system` ends that are no usual distance apart contradict nothing: these
    are seen late, now on one rank, now on another, as of ranks that take turns on a core.
    """
    most = int((np.searchsorted(apart_ns, apart_ns + 2 * TOGETHER_NS, side="right") - np.arange(apart_ns.size)).max())
    if not by_rooted and most == 1 < apart_ns.size < FEWEST_SCATTERED and abs(np.median(apart_ns)) <= FAR_NS:
        return True
    scattered = apart_ns.size >= FEWEST_SCATTERED and most <= SCATTERED * apart_ns.size
    if not by_rooted and scattered and (one_system or abs(np.median(apart_ns)) > FAR_NS):
        return True
    return int((np.abs(apart_ns) <= TOGETHER_NS).sum()) >= max(FEWEST, OFTEN * apart_ns.size, MOST_OFTEN * most)
