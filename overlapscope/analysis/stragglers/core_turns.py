"""Find hosts of a CPU run that share one processor core: of which no two ever make progress at once.

Hosts that share a core take turns on it. How long an operation pauses is not recorded without a device, as it may be
long by itself. But where calls begin and end close together their host ran, and through an operation that is shorter
than a turn. Hosts with cores of their own do that beside each other as often as chance has it, or oftener, since
collectives begin and end on all of them together.

An operation may take longer beside another host's, whose memory or half of a core it shares. Such hosts,
whose operations are short only while the other one does nothing, would seem to take turns. So operations of up to twice
the length are looked at, too, which on one core are seldom beside each other either.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.timeline.columns import COMPUTE, HostSpans, Spans
from overlapscope.timeline.intervals import Intervals, intersection, length, union
from overlapscope.timeline.lazy_host_spans import without_functions
from overlapscope.timeline.readings import QUEUED, reading_series
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import RankTimeline

CLOSE_NS: Final = 100_000
"""A host ran between calls that follow each other so closely: a core is hardly given away and back in less ..."""
OPERATION_NS: Final = 1_000_000
"""... and it ran through an operation, or a part of one between others, that lasts no longer: turns last for 2 to 4 ms.
It did ..."""
LONGER: Final = 2
"""... through most operations of so many times that length: as much longer one may be beside another host's ..."""
LASTING_NS: Final = 300_000
"""... if what shows that it ran lasts for so long together, less ..."""
EDGE_NS: Final = 100_000
"""... this at both ends, by which clocks of processes of one machine may differ."""
FEWEST: Final = 7.0
"""So many stretches of running would be beside another one by chance: none is with a probability of 1 in 1,000 ..."""
NEVER: Final = 0.02
"""... and at most this share of what chance has is, which is never; ..."""
RARELY: Final = 0.25
"""... with operations of twice the length, in some of which another host had a short turn, at most this share."""
ALWAYS: Final = 0.999
"""A host that runs whenever it computes is taken to do so with this probability."""
OF_TIME: Final = 0.03
"""Several hosts compute at once for at least this share of the recording."""
LAGS: Final = 64
"""The hosts are compared again after so many shifts of one against the next, of up to ..."""
FARTHEST: Final = 100
"""... so many stretches of running. What one host does may follow from what another did a fixed time before, so that in
each step they miss each other anew; then that is so after many shifts, and says nothing ..."""
BY_SCHEDULE: Final = 0.05
"""... if after more than this share of them. Turns on one core are too uneven for that."""
GOLDEN: Final = (5**0.5 - 1) / 2
"""Its multiples without their whole parts fill the range from 0 to 1 evenly, and repeat no period."""


class HostRuns(msgspec.Struct, frozen=True, kw_only=True):
    """What the host of one rank of a CPU run did, on its own clock."""

    computing: Intervals
    """In operations that wait for no other rank, or where it certainly ran: it wants to run."""
    ran: Intervals
    """Where it certainly ran."""
    may_have_run: Intervals
    """The same, and where it probably did."""
    recorded_ns: int
    stretch_ns: float
    """How long it ran at a time, in the mean: each such stretch is one event for statistics."""


class Turns(msgspec.Struct, frozen=True, kw_only=True):
    """Hosts of which no two ever ran at once."""

    ranks: tuple[int, ...]
    share: float
    """Share of the recording in which more than one computed."""
    waited_share: float
    """Mean share of the recording in which a host computed and it was another one's turn."""
    by_chance_ns: float
    """How long two or more would have run at once, if each ran at any moment of its computing as likely ..."""
    at_once_ns: int
    """... and how long they did."""


def host_runs(timeline: RankTimeline, covered: Coverage) -> HostRuns | None:
    """Return when the host of a CPU run computed and ran; None where nothing shows that it ran, and with a device.

    None also where the system's own account says how long its thread waited for a core. Raises HostEventsError.
    """
    if timeline.has_device or not timeline.has_host_events or reading_series(timeline, QUEUED)[0].size > 1:
        return None
    host = without_functions(timeline.host)
    moments = unique(np.concatenate([host.start_ns, host.end_ns]))
    close = np.flatnonzero(np.diff(moments) < CLOSE_NS)
    ran, may_have_run = (
        _lasting(union((moments[close], moments[close + 1]), *_short_operations(timeline.spans, host, most_ns)))
        for most_ns in (OPERATION_NS, LONGER * OPERATION_NS)
    )
    if not ran.starts.size:
        return None
    return HostRuns(
        computing=union(covered.compute, ran), ran=ran, may_have_run=may_have_run,
        recorded_ns=int(moments[-1] - moments[0]), stretch_ns=length(ran) / ran.starts.size,
    )  # fmt: skip


def _short_operations(spans: Spans, host: HostSpans, most_ns: int) -> Iterator[Intervals]:
    """Yield, thread by thread, the stretches of computation between two moments of its calls that last no longer."""
    computes = spans.kind == COMPUTE
    for lane in unique(spans.lane[computes]).tolist():
        own, calls = computes & (spans.lane == lane), host.lane == lane
        moments = unique(np.concatenate([host.start_ns[calls], host.end_ns[calls]]))
        short = np.flatnonzero(np.diff(moments) <= most_ns)
        yield intersection(union((moments[short], moments[short + 1])), union((spans.start_ns[own], spans.end_ns[own])))


def _lasting(ran: Intervals) -> Intervals:
    """Return the long intervals, without their edges."""
    long = ran.ends - ran.starts >= LASTING_NS
    return Intervals(ran.starts[long] + EDGE_NS, ran.ends[long] - EDGE_NS)


def taking_turns(hosts: Mapping[int, HostRuns]) -> Turns | None:
    """Return what shows that the hosts of one machine, by rank, share one core; None where nothing does."""
    if len(hosts) < 2:
        return None
    computing, ran = [own.computing for own in hosts.values()], [own.ran for own in hosts.values()]
    together, at_once = _of_several(computing), _of_several(ran)
    recorded = max(own.recorded_ns for own in hosts.values())
    if at_once > NEVER * together or together < OF_TIME * recorded:
        return None
    by_chance = _by_chance(hosts)
    if _of_several([own.may_have_run for own in hosts.values()]) > RARELY * by_chance:
        return None
    stretch = sum(own.stretch_ns for own in hosts.values()) / len(hosts)
    if by_chance < FEWEST * stretch or at_once > NEVER * by_chance:
        return None
    lags = np.rint(FARTHEST * stretch * (2 * (GOLDEN * np.arange(1, LAGS + 1) % 1) - 1)).astype(np.int64)
    if np.mean([_of_several(_shifted(ran, lag)) <= NEVER * by_chance for lag in lags.tolist()]) > BY_SCHEDULE:
        return None
    waited = sum(map(length, computing)) - length(union(*computing))
    return Turns(
        ranks=tuple(sorted(hosts)), share=together / recorded, waited_share=waited / len(hosts) / recorded,
        by_chance_ns=by_chance, at_once_ns=at_once,
    )  # fmt: skip


def _of_several(sets: Sequence[Intervals]) -> int:
    """Return for how long two or more hold."""
    moment = np.concatenate([times for own in sets for times in own])
    order = np.argsort(moment, kind="stable")
    change = np.concatenate([np.full(own.starts.size, by, np.int8) for own in sets for by in (1, -1)])[order]
    return int(np.diff(moment[order])[np.cumsum(change, dtype=np.int64)[:-1] > 1].sum())


def _by_chance(hosts: Mapping[int, HostRuns]) -> float:
    """Return for how long two or more would run at once, each with its own probability where it computes.

    Of hosts that run with probabilities p that is 1 - prod(1 - p) * (1 + sum(p / (1 - p))) of the time.
    """
    often = [min(length(own.ran) / max(length(own.computing), 1), ALWAYS) for own in hosts.values()]
    sizes = [own.computing.starts.size for own in hosts.values()]
    moment = np.concatenate([times for own in hosts.values() for times in own.computing])
    order = np.argsort(moment, kind="stable")
    none_runs, odds = (
        np.cumsum(np.repeat([sign * each for each in of_host for sign in (1, -1)], np.repeat(sizes, 2))[order])[:-1]
        for of_host in ([math.log1p(-p) for p in often], [p / (1 - p) for p in often])
    )
    return float((np.diff(moment[order]) * (1 - np.exp(none_runs) * (1 + odds))).sum())


def _shifted(sets: Sequence[Intervals], lag: int) -> list[Intervals]:
    """Return each set `lag` later against the one before it; what would end behind them all begins anew."""
    begin, end = min(int(own.starts[0]) for own in sets), max(int(own.ends[-1]) for own in sets)
    found = []
    for at, own in enumerate(sets):
        moved = begin + (own.starts - begin + at * lag) % (end - begin)
        found.append(Intervals(moved, moved + (own.ends - own.starts)))
    return found
