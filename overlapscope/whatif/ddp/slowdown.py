"""Measure in a recording how much compute slows beside transfers. It is never fitted to make a replay match the step.

On a device it is what the analysis finds, beside transfers without wait time. Without a device: compare the same piece
of backward. A piece is the time between two gradients that become ready one after the other; the same piece is that of
the same two gradients in another pass or step. Where that gives no result, pieces of two gradients of the
same sizes are compared, because layers of one shape do the same work; that is accepted only where three such layers
beside transfers agree.

Where nothing can be measured, the slowdown is assumed. It is then at least what the training thread waited for a core
more beside transfers: compute shares its cores with the threads that move data.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from overlapscope.analysis.per_rank.interference import BESIDE, FREE, NO_INTERFERENCE, Interference, interference
from overlapscope.timeline.columns import Flags, Floats, Ints
from overlapscope.timeline.intervals import BusyTime, Intervals, complement, intersection, length, union
from overlapscope.timeline.run import RankTimeline
from overlapscope.whatif.cost.link_fit import SPREAD
from overlapscope.whatif.ddp.calibrate import WIDE_PRIOR, Fit, assumed_slowdown
from overlapscope.whatif.ddp.recorded_steps import Recorded
from overlapscope.whatif.pricing.constants import SLOWDOWN_PRIOR

THREAD_CPU_TIME: Final = "thread_cpu_ns"
LEAST_STEPS: Final = 3
LAYERS_AGREE: Final = 0.2
"""Median pieces of layers of one shape may differ by this share, or they are not the same work."""
LEAST_LAYERS: Final = 3
LEAST_COMPARED: Final = 0.1
"""Least share of the time beside transfers that must be compared."""


def estimate_slowdown(
    seen: Recorded,
    ranks: Mapping[int, RankTimeline],
    transfers: Mapping[int, Intervals],
    computing: Mapping[int, Intervals],
    steps: Mapping[int, Ints],
) -> tuple[Fit, tuple[float, ...]]:
    """Return the slowdown of compute beside transfers, and for each rank how much of it the rank suffers (0 to 1).

    Measured where possible, else assumed, with the reason. Ranks differ where one shares its core or its memory with
    the threads that move data. The slowdown is that of the rank that slows most, because all others wait for it.

    Arguments by rank: `transfers`, when calls moved data; `computing`, when the training thread computed; `steps`, rows
    (start, end) of each step; all in ns on the rank's own clock.
    """
    why = "no piece of backward ran both beside a transfer and without one"
    everywhere = (1.0,) * len(ranks)
    if all(each.has_device for each in ranks.values()):
        kernels = [interference(each.spans, transfers[rank]).value for rank, each in ranks.items()]
        found = [(each.times, each.low, each.high) if isinstance(each, Interference) else None for each in kernels]
        why = " or ".join(sorted({NO_INTERFERENCE[each] for each in kernels if isinstance(each, str)}))
    else:
        found = [piece_slowdown(seen, at) for at in range(len(seen.ranks))]
    measured = [each for each in found if each is not None]
    if measured:
        mean, low, high = max(measured)
        if mean <= 1:
            return Fit(slowdown=1.0, low=1.0, high=max(high, 1.0), identified=True, reason=""), everywhere
        shares = tuple(1.0 if each is None else max(each[0] - 1, 0.0) / (mean - 1) for each in found)
        return Fit(slowdown=mean, low=max(low, 1.0), high=high, identified=True, reason=""), shares
    if all(each.has_device for each in ranks.values()):
        return assumed_slowdown(why), everywhere
    rows = [_thread_times(ranks[rank], transfers[rank], computing[rank], steps[rank]) for rank in ranks]
    sums = np.concatenate([each for each in rows if each is not None] or [np.zeros((0, 4))])
    if sums.shape[0] < LEAST_STEPS or sums[:, 0].sum() == 0 or sums[:, 2].sum() == 0:
        return assumed_slowdown(why), everywhere
    # The scheduler does not count what caches, memory and interrupts slow: this is a lower bound of the slowdown.
    least = max(_ratio(sums.sum(axis=0)), 1.0)
    at_least = Fit(
        slowdown=max(SLOWDOWN_PRIOR[1], least),
        low=least,
        high=max(WIDE_PRIOR[1], SLOWDOWN_PRIOR[2] / SLOWDOWN_PRIOR[1] * least),
        identified=False,
        reason=f"{why}; waiting for a core alone gives at least {least:.2f}x",
    )
    return at_least, everywhere


def _ratio(sums: Floats) -> float:
    beside_wall, beside_ran, free_wall, free_ran = sums.tolist()
    return (beside_wall / beside_ran) / (free_wall / free_ran) if beside_ran > 0 and free_ran > 0 else 1.0


def _thread_times(timeline: RankTimeline, transfers: Intervals, computing: Intervals, steps: Ints) -> Floats | None:
    """Return for each step the wall time and the time on a core beside transfers, then both without transfers."""
    table = timeline.telemetry
    code = {name: at for at, name in enumerate(timeline.names)}.get(THREAD_CPU_TIME, -2)
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
    # Assumes that the thread ran evenly between two readings.
    shift = times[0]
    at = np.interp(within.ends - shift, times - shift, ran) - np.interp(within.starts - shift, times - shift, ran)
    return float(at.sum())


def piece_slowdown(seen: Recorded, rank: int) -> tuple[float, float, float] | None:
    """Return the slowdown of the rank at this index as (mean, low, high) of a 90 % interval; None without a result."""
    lasted, beside, place = _pieces(seen, rank)
    for kinds, layers in ((np.arange(place.max(initial=-1) + 1), False), (_by_sizes(seen), True)):
        sums = _compared(lasted, beside, place, kinds, layers=layers)
        if sums is not None:
            return _with_interval(sums)
    return None


def _pieces(seen: Recorded, rank: int) -> tuple[Floats, Floats, Ints]:
    """Return ns and share beside transfers of each piece, shape (step, piece of all passes), and its index in backward.

    The first gradient's piece is left out because it includes forward, and the last layer's too: it computes no
    gradient of its input, as others of its shape do.
    """
    ready = np.rint(np.sort(seen.ready_ns[rank], axis=-1)).astype(np.int64)
    starts, ends = ready[..., :-1], ready[..., 1:]
    lasted = (ends - starts).astype(np.float64)
    beside = BusyTime(seen.transfers(rank)).within(starts, ends) / np.maximum(lasted, 1.0)
    place = np.arange(lasted.shape[-1])
    own = place < place.size - _last_layer_gradients(seen)
    steps = len(seen.steps)
    return lasted[..., own].reshape(steps, -1), beside[..., own].reshape(steps, -1), np.tile(place[own], seen.passes)


def _last_layer_gradients(seen: Recorded) -> int:
    """Count the gradients that belong to the module whose gradients are ready last."""
    owners = [name.rpartition(".")[0] for name in seen.names]
    return next((at for at, each in enumerate(reversed(owners)) if each != owners[-1]), 1)


def _by_sizes(seen: Recorded) -> Ints:
    """Return a number for each piece, equal where the sizes of its two gradients are equal."""
    pairs = np.stack((seen.elements[:-1], seen.elements[1:]), axis=1)
    numbers: Ints = np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return numbers


def _compared(lasted: Floats, beside: Floats, place: Ints, kinds: Ints, *, layers: bool) -> Floats | None:
    """Return by step the time of the compared pieces beside transfers, and the time of the same pieces without them."""
    found = np.zeros((lasted.shape[0], 2))
    total = float((lasted * beside).sum())
    for kind in np.unique(kinds).tolist():
        mine = kinds[place] == kind
        free, near = mine & (beside <= FREE), mine & (beside >= BESIDE)
        if not _steps_with(free) or not _steps_with(near) or (layers and not _agree(lasted, near, place)):
            continue
        alone = np.median(lasted[free])
        found[:, 0] += (lasted * near).sum(axis=1)
        found[:, 1] += alone * near.sum(axis=1)
    return found if found[:, 0].sum() >= LEAST_COMPARED * total and found[:, 1].sum() > 0 else None


def _steps_with(chosen: Flags) -> bool:
    return int(chosen.any(axis=1).sum()) >= LEAST_STEPS


def _agree(lasted: Floats, chosen: Flags, place: Ints) -> bool:
    layers: Sequence[int] = np.unique(place[chosen.any(axis=0)]).tolist()
    middle = np.array([np.median(lasted[:, place == each][chosen[:, place == each]]) for each in layers])
    return middle.size >= LEAST_LAYERS and bool((np.abs(middle / np.median(middle) - 1) <= LAYERS_AGREE).all())


def _with_interval(sums: Floats) -> tuple[float, float, float]:
    """Return the ratio over all steps and its interval: each step left out in turn (jackknife)."""
    total = sums.sum(axis=0)
    mean = float(total[0] / total[1])
    without = (total[0] - sums[:, 0]) / (total[1] - sums[:, 1])
    error = SPREAD * float(np.sqrt((without.size - 1) * without.var()))
    return max(mean, 1.0), max(mean - error, 1.0), max(mean + error, 1.0)
