"""How much compute slows beside transfers, as a recording tells it: never fitted so that a replay meets the step.

On a device: the same kernel beside a transfer and free of it (`interference`). Without one, compute shares its cores
with the threads that move data: the time that the training thread had of a core is noted, so that the wall time it took
for a second of work beside transfers stands against the wall time it took without them.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from overlapscope.timeline.columns import Floats, Ints
from overlapscope.timeline.intervals import Intervals, complement, intersection, length, union
from overlapscope.timeline.run import RankTimeline
from overlapscope.whatif.calibrate import PRIOR, WIDE_PRIOR, Fit
from overlapscope.whatif.interference import SPREAD, slowdown

RAN: Final = "thread_cpu_ns"
LEAST_SHARE: Final = 0.1
"""Of compute that must lie beside transfers, and free of them, to compare the two."""
LEAST_STEPS: Final = 3


def told_slowdown(
    ranks: Mapping[int, RankTimeline],
    transfers: Mapping[int, Intervals],
    computing: Mapping[int, Intervals],
    steps: Mapping[int, Ints],
) -> Fit:
    """Give what a recording tells, else the prior with the reason why not.

    By rank: when calls moved data, when the training thread computed and waited for nothing, and the (start, end) of
    each step, all on the rank's own clock.
    """
    if all(each.has_device for each in ranks.values()):
        told = [found for rank, each in ranks.items() if (found := slowdown(each.spans, transfers[rank])) is not None]
        if not told:
            return _prior("no kernel ran both beside a transfer and free of one, in different steps")
        means = np.array([each.mean for each in told])
        return Fit(
            slowdown=max(float(means.mean()), 1.0),
            low=max(min(each.low for each in told), 1.0),
            high=max(each.high for each in told),
            identified=True,
            reason="",
        )
    rows = [_of_steps(ranks[rank], transfers[rank], computing[rank], steps[rank]) for rank in ranks]
    sums = np.concatenate([each for each in rows if each is not None] or [np.zeros((0, 4))])
    if sums.shape[0] < LEAST_STEPS:
        return _prior("the recording does not tell when its threads ran on a core")
    beside, free = sums[:, 0].sum(), sums[:, 2].sum()
    if min(beside, free) < LEAST_SHARE * (beside + free):
        kind = "beside transfers" if beside < free else "free of them"
        return _prior(f"less than a tenth of compute ran {kind}")
    mean = _ratio(sums.sum(axis=0))
    # Jackknife over steps (Efron and Stein 1981).
    without = np.array([_ratio(each) for each in sums.sum(axis=0) - sums])
    error = float(np.sqrt((without.size - 1) * without.var()))
    # What caches and memory slow shows in no scheduler's count, so that this is what compute slows at least.
    return Fit(
        slowdown=max(mean, 1.0),
        low=max(mean - SPREAD * error, 1.0),
        high=max(mean + SPREAD * error, 1.0),
        identified=True,
        reason="",
    )


def _ratio(sums: Floats) -> float:
    beside_wall, beside_ran, free_wall, free_ran = sums.tolist()
    return (beside_wall / beside_ran) / (free_wall / free_ran) if beside_ran > 0 and free_ran > 0 else 1.0


def _of_steps(timeline: RankTimeline, transfers: Intervals, computing: Intervals, steps: Ints) -> Floats | None:
    """Give for each step the wall time and the time on a core beside transfers, then both free of them."""
    table = timeline.telemetry
    code = {name: at for at, name in enumerate(timeline.names)}.get(RAN, -2)
    rows = np.flatnonzero(table.name == code)
    if rows.size < 2:
        return None
    rows = rows[np.argsort(table.time_ns[rows], kind="stable")]
    times, ran = table.time_ns[rows], table.value[rows]
    found = []
    for start, end in steps.tolist():
        window = union((np.array([start]), np.array([end])))
        mine = intersection(computing, window)
        beside = intersection(mine, transfers)
        free = intersection(mine, complement(transfers, start, end))
        found.append(
            (length(beside), _ran_within(times, ran, beside), length(free), _ran_within(times, ran, free))
        )  # fmt: skip
    return np.array(found, np.float64)


def _ran_within(times: Ints, ran: Floats, within: Intervals) -> float:
    # Between two readings the thread is taken to have run evenly.
    shift = times[0]
    at = np.interp(within.ends - shift, times - shift, ran) - np.interp(within.starts - shift, times - shift, ran)
    return float(at.sum())


def _prior(reason: str) -> Fit:
    return Fit(slowdown=PRIOR[1], low=WIDE_PRIOR[0], high=WIDE_PRIOR[1], identified=False, reason=reason)
