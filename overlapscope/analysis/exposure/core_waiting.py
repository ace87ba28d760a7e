"""How long a rank waited for a core, or slept, in what looks like computing or idling, by the system's account.

Capture reads counters of that on the training thread of a rank without a device. A thread that waits for a collective
sleeps, so between two readings waiting for a core is spread evenly over all time but exposed communication; and what a
thread seemed to compute for longer than it ran or waited for a core, it slept at least; not beside communication, where
backward may wait for a bucket. Without that account a host sleeps where it stands still inside operations.
"""

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.host_runs import HostRuns
from overlapscope.timeline.columns import Floats, Ints
from overlapscope.timeline.intervals import EMPTY, Activity, BusyTime, Intervals, complement, difference, union
from overlapscope.timeline.readings import ON_CORE, QUEUED, computes_on_one_thread, reading_series
from overlapscope.timeline.run import RankTimeline


class PartlyWaited(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Times of a rank in which it waited for a core, or slept, part of the time, evenly between two readings."""

    times: BusyTime
    before_ns: Ints
    """How much of `times` lies before each reading."""
    waited_ns: Floats
    """How much of that was waiting, or sleep."""

    def within(self, starts: npt.ArrayLike, ends: npt.ArrayLike) -> Ints:
        """Return the nanoseconds of it inside each window [start, end); 0 where the window is empty."""
        first, last = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
        begun, done = (np.interp(self.times.before(each), self.before_ns, self.waited_ns) for each in (first, last))
        return np.where(last > first, np.floor(done - begun).astype(np.int64), 0)


class CoreWaiting(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """When a rank waited for a core, and when it slept though it seemed to compute."""

    computing: Activity
    """Waited while it seemed to compute."""
    idling: Activity
    """Waited while it seemed to idle."""
    sleeping: Activity
    """Neither ran nor waited for a core while it seemed to compute: it slept, waited for a lock, or for a file."""
    sleep_known: bool
    """False where `sleeping` is empty because that is not known."""
    by_account: bool = True
    """Whether the system's account says so; else operations that take longer than in other steps do, which may have had
    more to do."""


MOST_AHEAD_NS: Final = 50_000_000
"""A thread that loses its core between two instructions has it again sooner."""
NEVER: Final = BusyTime(EMPTY)
NOT_KNOWN: Final = CoreWaiting(computing=NEVER, idling=NEVER, sleeping=NEVER, sleep_known=False)
"""Of a rank of which neither is known: no waiting."""


def core_waiting(timeline: RankTimeline, covered: Coverage, host: HostRuns | None) -> CoreWaiting | None:
    """Return when a rank waited for a core or slept, by the system's account; else when it slept, as its `host` says.

    None where neither was recorded, and with a device.
    """
    if timeline.has_device:
        return None
    read_ns, counter = reading_series(timeline, QUEUED)
    if read_ns.size < 2:
        if host is None:
            return None
        return CoreWaiting(
            computing=NEVER, idling=NEVER, sleeping=BusyTime(host.stood_still), sleep_known=True, by_account=False
        )
    compute = BusyTime(covered.compute)
    idle = BusyTime(complement(union(covered.compute, covered.comm), int(read_ns[0]), int(read_ns[-1])))
    alone = BusyTime(difference(covered.compute, covered.comm))
    computed, idled, computed_alone = (each.within(read_ns[:-1], read_ns[1:]) for each in (compute, idle, alone))
    # Another thread's counter may begin lower, or far higher: what it shows from the one to the other is no waiting.
    rose = np.diff(counter)
    rose = np.where((rose >= 0) & (rose <= read_ns[-1] - read_ns[0]), rose, 0.0)
    share = np.clip(rose / np.maximum(computed + idled, 1), 0.0, 1.0)
    ran = _ran(timeline, read_ns)
    slept = 0.0 if ran is None else computed_alone - ran - rose - _booked_before(np.diff(read_ns) - ran - rose)
    return CoreWaiting(
        computing=_partly(compute, read_ns, computed * share),
        idling=_partly(idle, read_ns, idled * share),
        sleeping=_partly(alone, read_ns, np.clip(slept, 0.0, computed_alone * (1.0 - share))),
        sleep_known=ran is not None,
    )


def in_turn(host: HostRuns, waits: Intervals) -> CoreWaiting:
    """Return the same of a host that takes turns on cores with others, which had all of them in `waits`: it waited for
    one then, and wherever else it stood still."""
    computing = BusyTime(union(waits, host.stood_still))
    return CoreWaiting(computing=computing, idling=NEVER, sleeping=NEVER, sleep_known=False, by_account=False)


def _booked_before(left_ns: Floats) -> Floats:
    """Return how much of the time after each reading but the last the account of an earlier one already had.

    `left_ns` is how much longer than the thread ran and waited the time between two readings is. A thread that loses
    its core after it looked at the clock, and before it reads the account, has the wait in that reading: more than the
    time that had passed, and as much less after it.
    """
    ahead = np.cumsum(np.minimum(-left_ns, MOST_AHEAD_NS))  # one that jumps is another thread's
    ahead -= np.minimum(np.minimum.accumulate(ahead), 0.0)
    return np.concatenate([np.zeros(1), ahead[:-1]])


def _ran(timeline: RankTimeline, read_ns: Ints) -> Floats | None:
    """Return how long the thread ran on a core between consecutive readings; None where that is not known, or
    operations may run on several threads: then it sleeps while the others compute."""
    ran_ns, counter = reading_series(timeline, ON_CORE)
    if not computes_on_one_thread(timeline) or not np.array_equal(ran_ns, read_ns):
        return None
    passed, ran = np.diff(read_ns).astype(np.float64), np.diff(counter)
    return np.where((ran >= 0) & (ran <= passed), ran, passed)


def _partly(times: BusyTime, read_ns: Ints, waited_ns: Floats) -> PartlyWaited:
    return PartlyWaited(
        times=times, before_ns=times.before(read_ns), waited_ns=np.concatenate([np.zeros(1), np.cumsum(waited_ns)])
    )
