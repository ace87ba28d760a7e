"""Find hosts of a CPU run that share one processor core: of which no two ever make progress at once.

Hosts that share a core take turns on it. How long an operation pauses is not recorded without a device, as it may be
long by itself. But where calls begin and end close together their host ran. Hosts with cores of their own do that
beside each other as often as chance has it, or oftener, since collectives begin and end on all of them together.
"""

import math
from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.stragglers.host_cause import QUEUED, reading_series
from overlapscope.timeline.columns import Floats, Ints
from overlapscope.timeline.intervals import Intervals, intersection, length, union
from overlapscope.timeline.lazy_host_spans import without_functions
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import RankTimeline

CLOSE_NS: Final = 100_000
"""A host ran between calls that follow each other so closely: a core is hardly given away and back in less ..."""
LASTING_NS: Final = 300_000
"""... if it did so for so long together, less ..."""
EDGE_NS: Final = 100_000
"""... this at both ends, by which clocks of processes of one machine may differ."""
FEWEST: Final = 7.0
"""So many stretches of running would be beside another one by chance: none is with a probability of 1 in 1,000 ..."""
NEVER: Final = 0.02
"""... and at most this share of what chance has is, which is never."""
ALWAYS: Final = 0.999
"""A host that runs whenever it computes is taken to do so with this probability."""
OF_TIME: Final = 0.03
"""Several hosts compute at once for at least this share of the recording."""


class HostRuns(msgspec.Struct, frozen=True, kw_only=True):
    """What the host of one rank of a CPU run did, on its own clock."""

    computing: Intervals
    """In operations that wait for no other rank: it wants to run."""
    ran: Intervals
    """Of that, where it certainly ran."""
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

    None also where the system's own account says how long its thread waited for a core.
    """
    host = without_functions(timeline.host)
    if timeline.has_device or not timeline.has_host_events or not host.start_ns.size:
        return None
    if reading_series(timeline, QUEUED)[0].size > 1:
        return None
    moments = unique(np.concatenate([host.start_ns, host.end_ns]))
    close = np.flatnonzero(np.diff(moments) < CLOSE_NS)
    ran = union((moments[close], moments[close + 1]))
    ran = union((ran.starts + EDGE_NS, np.where(ran.ends - ran.starts < LASTING_NS, 0, ran.ends - EDGE_NS)))
    if not ran.starts.size:
        return None
    return HostRuns(
        computing=covered.compute, ran=intersection(ran, covered.compute), recorded_ns=int(moments[-1] - moments[0]),
        stretch_ns=length(ran) / ran.starts.size,
    )  # fmt: skip


def taking_turns(hosts: Mapping[int, HostRuns]) -> Turns | None:
    """Return what shows that the hosts of one machine, by rank, share one core; None where nothing does."""
    if len(hosts) < 2:
        return None
    taken_ns, computing, running, none_runs, odds = _stretches(hosts)
    # Two or more of hosts that run with probabilities p: 1 - prod(1 - p) * (1 + sum(p / (1 - p))).
    by_chance = float((taken_ns * (1 - np.exp(none_runs) * (1 + odds))).sum())
    at_once = int(taken_ns[running > 1].sum())
    recorded = max(each.recorded_ns for each in hosts.values())
    share = float(taken_ns[computing > 1].sum()) / recorded
    stretch = sum(each.stretch_ns for each in hosts.values()) / len(hosts)
    if by_chance < FEWEST * stretch or at_once > NEVER * by_chance or share < OF_TIME:
        return None
    waited = float((taken_ns * np.maximum(computing - 1, 0)).sum()) / len(hosts) / recorded
    return Turns(
        ranks=tuple(sorted(hosts)), share=share, waited_share=waited, by_chance_ns=by_chance, at_once_ns=at_once
    )


def _stretches(hosts: Mapping[int, HostRuns]) -> tuple[Ints, Floats, Floats, Floats, Floats]:
    """Return the lengths of the stretches between any two changes, and sums over the hosts in each: how many compute
    and run; of those that compute, the logarithm of the probability that none runs, and the odds that each does."""
    at, change = [], []
    for own in hosts.values():
        often = min(length(own.ran) / max(length(own.computing), 1), ALWAYS)
        of_computing = (1, 0, math.log1p(-often), often / (1 - often))
        for times, what in ((own.computing, of_computing), (own.ran, (0, 1, 0, 0))):
            for moments, by in ((times.starts, 1.0), (times.ends, -1.0)):
                at.append(moments)
                change.append(np.outer(by * np.array(what), np.ones(moments.size)))
    moment = np.concatenate(at)
    order = np.argsort(moment, kind="stable")
    computing, running, none_runs, odds = np.cumsum(np.hstack(change)[:, order], axis=1)[:, :-1]
    return np.diff(moment[order]), np.rint(computing), np.rint(running), none_runs, odds
