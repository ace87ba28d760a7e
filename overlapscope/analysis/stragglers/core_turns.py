"""Find hosts of a CPU run that share too few processor cores: of which never more than so many make progress at once.

Hosts that share k cores take turns on them: never more than k run. Hosts with cores of their own run beside each other
where they want to as often as chance has it, or oftener, since collectives begin and end on all of them together. So
the moments at which more than k certainly ran (`host_runs`) are compared with what chance has where more than k would
certainly have run, had each a core of its own.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from overlapscope.analysis.per_rank.host_runs import HostRuns
from overlapscope.timeline.columns import Ints
from overlapscope.timeline.intervals import BusyTime, Intervals, intersection, length, parts_inside, union

FEWEST: Final = 7.0
"""More hosts than cores would begin to run at once so many times by chance: they never do with a probability of 1 in
1,000 ..."""
NEVER: Final = 0.02
"""... and they do for at most this share of what chance has, which is never."""
ALWAYS: Final = 0.999
"""A host that runs whenever it wants to is taken to do so with this probability."""
OF_TIME: Final = 0.03
"""More hosts than cores compute at once for at least this share of the recording."""
MOST_HOSTS: Final = 16
"""Of more hosts on one machine it is not asked which of them share one core: pairs are many."""
LAGS: Final = 199
"""What each host did where it wanted to run is shifted so many times against the others ..."""
AS_RARE: Final = 0.01
"""... and they run at once as rarely after at most this share of the shifts. That holds for turns, whose lengths are
uneven, and not for hosts that miss each other in each step anew, since one does something a fixed time before the
other."""
GOLDEN: Final = (5**0.5 - 1) / 2
"""Its multiples without their whole parts fill the range from 0 to 1 evenly, and repeat no period."""


class Turns(msgspec.Struct, frozen=True, kw_only=True):
    """Hosts of which never more than `cores` ran at once."""

    ranks: tuple[int, ...]
    cores: int
    share: float
    """Share of the recording in which more computed."""
    waited_share: float
    """Mean share of the recording in which a host computed and it was another one's turn."""
    by_chance_ns: float
    """How long more would have run at once, if each ran at any moment at which it wanted to as likely ..."""
    at_once_ns: int
    """... and how long they did."""
    waits: Mapping[int, Intervals]
    """When each rank paused in operations while others computed on all cores."""


def sharing_one_core(hosts: Mapping[int, HostRuns]) -> list[Turns]:
    """Return which of the hosts of one machine share one core, others of them having others: of which no two run at
    once; empty where none do, or all.

    Each pair is asked, the more strictly the more there are (`fewest`).
    """
    if not 2 < len(hosts) <= MOST_HOSTS:
        return []
    pairs = list(combinations(sorted(hosts), 2))
    fewest = FEWEST + math.log(len(pairs))
    turns = {pair for pair in pairs if taking_turns({rank: hosts[rank] for rank in pair}, fewest)}
    found, left = [], set(hosts)
    for rank in sorted(hosts):
        sharing = [rank, *(other for other in sorted(left) if (rank, other) in turns)]
        if rank not in left or not 1 < len(sharing) < len(hosts) or not turns.issuperset(combinations(sharing, 2)):
            continue
        each = taking_turns({member: hosts[member] for member in sharing})
        if each is not None and each.cores == 1:
            found.append(each)
            left -= set(sharing)
    return found


def taking_turns(hosts: Mapping[int, HostRuns], fewest: float = FEWEST) -> Turns | None:
    """Return what shows that the hosts of one machine, by rank, share fewer cores; None where nothing does.

    They would begin to run at once at least `fewest` times by chance.
    """
    own = list(hosts.values())
    computing, ran = (_beyond([getattr(each, what) for each in own]) for what in ("computing", "ran"))
    recorded = max((each.recorded_ns for each in own), default=0)
    stretch = sum(each.stretch_ns for each in own) / max(len(own), 1)
    most, shifted = None, None
    for cores in range(1, len(hosts)):
        together, at_once = int(computing[cores]), int(ran[cores])
        if together < OF_TIME * recorded:
            return None
        most = _wanted(own) if most is None else most
        if not _is_seldom(at_once, most.beyond(cores), cores, fewest * stretch):
            continue
        by_chance = _by_chance(own, cores)
        if not _is_seldom(at_once, by_chance, cores, fewest * stretch):
            continue
        shifted = _beyond_shifted(own) if shifted is None else shifted
        if np.count_nonzero(shifted[:, cores] <= at_once) > AS_RARE * LAGS:
            continue
        return Turns(
            ranks=tuple(sorted(hosts)), cores=cores, share=together / recorded,
            waited_share=int(computing[cores:].sum()) / len(hosts) / recorded, by_chance_ns=by_chance,
            at_once_ns=at_once, waits={rank: _waits(rank, hosts, cores) for rank in hosts},
        )  # fmt: skip
    return None


def _is_seldom(at_once: int, by_chance: float, cores: int, fewest_ns: float) -> bool:
    """Return whether equal hosts would so seldom run at once for as short; each of them may end it."""
    return at_once <= NEVER * by_chance and by_chance * (cores + 1) >= fewest_ns


def _beyond_shifted(hosts: Sequence[HostRuns]) -> Ints:
    """Return for how long more than so many would run at once, for each lag (row) and number of hosts (column)."""
    lags = (GOLDEN * np.arange(1, LAGS + 1) % 1).tolist()
    return np.stack([_beyond([_shifted(own, lag * at) for at, own in enumerate(hosts)]) for lag in lags])


def _held(sets: Sequence[Intervals]) -> tuple[Ints, Ints]:
    """Return the sorted moments at which any set begins or ends to hold, and how many hold until the next one."""
    moment = np.concatenate([times for own in sets for times in own])
    order = np.argsort(moment, kind="stable")
    change = np.concatenate([np.full(own.starts.size, by, np.int8) for own in sets for by in (1, -1)])[order]
    return moment[order], np.cumsum(change, dtype=np.int64)[:-1]


def _beyond(sets: Sequence[Intervals]) -> Ints:
    """Return for how long more than 0, 1, 2, ... hold, up to their number."""
    moment, held = _held(sets)
    lasts = np.zeros(len(sets) + 1, np.int64)
    np.add.at(lasts, held, np.diff(moment))
    more: Ints = np.append(np.cumsum(lasts[:0:-1])[::-1], 0)
    return more


class _Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Between moments: how long it lasts, how many hosts want to run, and how many of them run in the mean."""

    lasts_ns: Ints
    number: Ints
    mean: npt.NDArray[np.float64]

    def beyond(self, cores: int) -> float:
        """Return for how long more would run at once by chance, at most: what `_by_chance` returns is no longer.

        Of many ranks on one machine, that takes the cube of their number for each number of cores; this rules out
        nearly all of them. By the bound of Hoeffding (1963, theorem 1) for sums of independent trials.
        """
        more = (self.number > cores) & (self.mean > 0)
        lasts, number, mean = self.lasts_ns[more], self.number[more], self.mean[more]
        wanted = cores + 1
        others, idle = number - wanted, number - mean  # each is idle with at least 1 - ALWAYS
        exponent = wanted * np.log(mean / wanted) + others * np.log(idle / np.maximum(others, 1))
        return float((lasts * np.where(mean < wanted, np.exp(exponent), 1.0)).sum())


def _wanted(hosts: Sequence[HostRuns]) -> _Wanted:
    sets = [own.wanted for own in hosts]
    moment, number = _held(sets)
    mean = np.zeros(number.size)
    for own in hosts:
        wants = (np.searchsorted(each, moment[:-1], side="right") for each in own.wanted)
        mean += _often(own) * np.subtract(*wants)
    lasts = np.diff(moment)
    at = lasts > 0  # of those that begin or end at the same moment, all do
    return _Wanted(lasts_ns=lasts[at], number=number[at], mean=mean[at])


def _often(own: HostRuns) -> float:
    """Return how probably a host runs where it wants to."""
    return min(length(own.ran) / max(length(own.wanted), 1), ALWAYS)


def _by_chance(hosts: Sequence[HostRuns], cores: int) -> float:
    """Return for how long more would run at once than there are cores, each with its own probability where it wants to.

    The distribution of the number of hosts that run is that of a sum of independent trials, taken in one after another.
    """
    moment = _moments([own.wanted for own in hosts])
    lasts = np.diff(moment)
    number: npt.NDArray[np.float64] = np.zeros((cores + 2, lasts.size))  # the last row: more than `cores`
    number[0] = 1.0
    for own in hosts:
        runs = _often(own) * (BusyTime(own.wanted).within(moment[:-1], moment[1:]) > 0)
        one_more = number[:-1] * runs
        number[:-1] -= one_more
        number[1:] += one_more
    return float((lasts * number[-1]).sum())


def _moments(sets: Sequence[Intervals]) -> Ints:
    """Return all starts and ends, sorted, each once."""
    return np.unique(np.concatenate([times for own in sets for times in own]))


def _shifted(own: HostRuns, part: float) -> Intervals:
    """Return when a host ran if, of all the time in which it wanted to run, each moment came this part of it later.

    What would come behind the end comes at the begin. So it runs only where it wants to, and for as long at a time.
    """
    wanted = own.wanted
    lasts = wanted.ends - wanted.starts
    until = np.cumsum(lasts)
    whole = int(until[-1])
    before = BusyTime(wanted)
    by = round(part % 1 * whole)
    starts, ends = before.before(own.ran.starts) + by, before.before(own.ran.ends) + by
    moved = union((starts, ends), (starts - whole, ends - whole))
    inside, at = parts_inside(Intervals(until - lasts, until), moved)
    to_clock = (wanted.starts - (until - lasts))[at]
    return union((inside.starts + to_clock, inside.ends + to_clock))


def _waits(rank: int, hosts: Mapping[int, HostRuns], cores: int) -> Intervals:
    """Return when a rank paused while as many others as there are cores computed."""
    moment, held = _held([own.computing for other, own in hosts.items() if other != rank])
    taken = held >= cores
    return intersection(hosts[rank].paused, union((moment[:-1][taken], moment[1:][taken])))
