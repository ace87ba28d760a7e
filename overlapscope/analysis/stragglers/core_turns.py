"""Find hosts of a CPU run that share too few processor cores: of which never more than so many make progress at once.

Hosts that share k cores take turns on them: never more than k run. Hosts with cores of their own run beside each other
where they want to as often as chance has it, or oftener, since collectives begin and end on all of them together. So
the moments at which more than k certainly ran (`host_runs`) are compared with what chance has where more than k would
certainly have run, had each a core of its own.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from overlapscope.analysis.stragglers.host_runs import HostRuns
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


def taking_turns(hosts: Mapping[int, HostRuns]) -> Turns | None:
    """Return what shows that the hosts of one machine, by rank, share fewer cores; None where nothing does."""
    computing = [own.computing for own in hosts.values()]
    recorded = max((own.recorded_ns for own in hosts.values()), default=0)
    for cores in range(1, len(hosts)):
        together = _beyond(computing, cores)
        if together < OF_TIME * recorded:
            return None
        at_once = _beyond([own.ran for own in hosts.values()], cores)
        by_chance = _by_chance(list(hosts.values()), cores)
        if at_once > NEVER * by_chance or not _is_rare(list(hosts.values()), cores, at_once, by_chance):
            continue
        waited = sum(_beyond(computing, more) for more in range(cores, len(hosts)))
        return Turns(
            ranks=tuple(sorted(hosts)), cores=cores, share=together / recorded,
            waited_share=waited / len(hosts) / recorded, by_chance_ns=by_chance, at_once_ns=at_once,
            waits={rank: _waits(rank, hosts, cores) for rank in hosts},
        )  # fmt: skip
    return None


def _is_rare(hosts: Sequence[HostRuns], cores: int, at_once: int, by_chance: float) -> bool:
    """Return whether equal hosts would so seldom run at once for as short."""
    stretch = sum(own.stretch_ns for own in hosts) / len(hosts)
    if by_chance * (cores + 1) < FEWEST * stretch:  # each of those that run may be the one that ends it
        return False
    lags = (GOLDEN * np.arange(1, LAGS + 1) % 1).tolist()
    as_rare = sum(_beyond([_shifted(own, lag * at) for at, own in enumerate(hosts)], cores) <= at_once for lag in lags)
    return as_rare <= AS_RARE * LAGS


def _held(sets: Sequence[Intervals]) -> tuple[Ints, Ints]:
    """Return the sorted moments at which any set begins or ends to hold, and how many hold until the next one."""
    moment = np.concatenate([times for own in sets for times in own])
    order = np.argsort(moment, kind="stable")
    change = np.concatenate([np.full(own.starts.size, by, np.int8) for own in sets for by in (1, -1)])[order]
    return moment[order], np.cumsum(change, dtype=np.int64)[:-1]


def _beyond(sets: Sequence[Intervals], number: int) -> int:
    """Return for how long more than so many hold."""
    moment, held = _held(sets)
    return int(np.diff(moment)[held > number].sum())


def _by_chance(hosts: Sequence[HostRuns], cores: int) -> float:
    """Return for how long more would run at once than there are cores, each with its own probability where it wants to.

    The distribution of the number of hosts that run is that of a sum of independent trials, taken in one after another.
    """
    moment = _moments([own.wanted for own in hosts])
    lasts = np.diff(moment)
    number: npt.NDArray[np.float64] = np.zeros((cores + 2, lasts.size))  # the last row: more than `cores`
    number[0] = 1.0
    for own in hosts:
        often = min(length(own.ran) / max(length(own.wanted), 1), ALWAYS)
        runs = often * (BusyTime(own.wanted).within(moment[:-1], moment[1:]) > 0)
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
