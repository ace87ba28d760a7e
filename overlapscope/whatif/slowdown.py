"""How much compute slows beside transfers, as a recording tells it: never fitted so that a replay meets the step.

On a device: the same kernel beside a transfer and free of it (`interference`). Without one: the same piece of backward
(`recorded_pieces`); where none tells it, a prior, which is at least what the training thread waited for a core more
beside transfers: compute shares its cores with the threads that move data.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from overlapscope.timeline.columns import Flags, Floats, Ints
from overlapscope.timeline.intervals import BusyTime, Intervals, complement, intersection, length, union
from overlapscope.timeline.run import RankTimeline
from overlapscope.whatif.calibrate import PRIOR, WIDE_PRIOR, Fit, prior
from overlapscope.whatif.interference import BESIDE, FREE, SPREAD, slowdown
from overlapscope.whatif.recorded_steps import Recorded

RAN: Final = "thread_cpu_ns"
LEAST_STEPS: Final = 3
LAYERS_AGREE: Final = 0.2
"""Median pieces of layers of one shape differ by no more, or they are not the same work."""
LEAST_LAYERS: Final = 3
LEAST_TOLD: Final = 0.1
"""Share of the time beside transfers that must be compared."""


def told_slowdown(
    seen: Recorded,
    ranks: Mapping[int, RankTimeline],
    transfers: Mapping[int, Intervals],
    computing: Mapping[int, Intervals],
    steps: Mapping[int, Ints],
) -> tuple[Fit, tuple[float, ...]]:
    """Return what a recording tells, else the prior with the reason why not; and what of it holds for each rank.

    Ranks differ in it, where one shares its core or its memory with what moves the data. The one that slows most is the
    one that all wait for, so that its slowdown is given; of each rank the share of it in which it slows, 0 to 1.

    By rank: when calls moved data, when the training thread computed and waited for nothing, and the (start, end) of
    each step, all on the rank's own clock.
    """
    why = "no piece of backward ran beside a transfer and also free of one"
    everywhere = (1.0,) * len(ranks)
    if all(each.has_device for each in ranks.values()):
        kernels = [slowdown(each.spans, transfers[rank]) for rank, each in ranks.items()]
        found = [None if each is None else (each.mean, each.low, each.high) for each in kernels]
        why = "no kernel ran both beside a transfer and free of one, in different steps"
    else:
        found = [piece_slowdown(seen, at) for at in range(len(seen.ranks))]
    told = [each for each in found if each is not None]
    if told:
        mean, low, high = max(told)
        if mean <= 1:
            return Fit(slowdown=1.0, low=1.0, high=max(high, 1.0), identified=True, reason=""), everywhere
        shares = tuple(1.0 if each is None else max(each[0] - 1, 0.0) / (mean - 1) for each in found)
        return Fit(slowdown=mean, low=max(low, 1.0), high=high, identified=True, reason=""), shares
    if all(each.has_device for each in ranks.values()):
        return prior(why), everywhere
    rows = [_of_steps(ranks[rank], transfers[rank], computing[rank], steps[rank]) for rank in ranks]
    sums = np.concatenate([each for each in rows if each is not None] or [np.zeros((0, 4))])
    if sums.shape[0] < LEAST_STEPS or sums[:, 0].sum() == 0 or sums[:, 2].sum() == 0:
        return prior(why), everywhere
    # What caches, memory and interrupts slow shows in no scheduler's count: this is what compute slows at least.
    least = max(_ratio(sums.sum(axis=0)), 1.0)
    at_least = Fit(
        slowdown=max(PRIOR[1], least),
        low=least,
        high=max(WIDE_PRIOR[1], PRIOR[2] / PRIOR[1] * least),
        identified=False,
        reason=f"{why}; waiting for a core alone makes it {least:.2f}",
    )
    return at_least, everywhere


def _ratio(sums: Floats) -> float:
    beside_wall, beside_ran, free_wall, free_ran = sums.tolist()
    return (beside_wall / beside_ran) / (free_wall / free_ran) if beside_ran > 0 and free_ran > 0 else 1.0


def _of_steps(timeline: RankTimeline, transfers: Intervals, computing: Intervals, steps: Ints) -> Floats | None:
    """Return for each step the wall time and the time on a core beside transfers, then both free of them."""
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


def piece_slowdown(seen: Recorded, rank: int) -> tuple[float, float, float] | None:
    """Return the slowdown of the rank at this place with its 90 % interval; None where no piece tells it."""
    lasted, beside, place = _pieces(seen, rank)
    for kinds, layers in ((np.arange(place.max(initial=-1) + 1), False), (_alike(seen), True)):
        sums = _compared(lasted, beside, place, kinds, layers=layers)
        if sums is not None:
            return _with_interval(sums)
    return None


def _pieces(seen: Recorded, rank: int) -> tuple[Floats, Floats, Ints]:
    """Return (step, piece of all passes): ns, share beside transfers; and of each piece its place in backward.

    The first gradient's is left out, which holds forward, and the last's layer too: it computes no gradient of its
    input, as others of its shape do.
    """
    ready = np.rint(np.sort(seen.ready_ns[rank], axis=-1)).astype(np.int64)
    starts, ends = ready[..., :-1], ready[..., 1:]
    lasted = (ends - starts).astype(np.float64)
    beside = BusyTime(seen.transfers(rank)).within(starts, ends) / np.maximum(lasted, 1.0)
    place = np.arange(lasted.shape[-1])
    own = place < place.size - _of_last_layer(seen)
    steps = len(seen.steps)
    return lasted[..., own].reshape(steps, -1), beside[..., own].reshape(steps, -1), np.tile(place[own], seen.passes)


def _of_last_layer(seen: Recorded) -> int:
    """Count the gradients that belong to the module whose gradients are ready last."""
    owners = [name.rpartition(".")[0] for name in seen.names]
    return next((at for at, each in enumerate(reversed(owners)) if each != owners[-1]), 1)


def _alike(seen: Recorded) -> Ints:
    """Number pieces by the sizes of the two gradients that they lie between."""
    pairs = np.stack((seen.elements[:-1], seen.elements[1:]), axis=1)
    numbers: Ints = np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return numbers


def _compared(lasted: Floats, beside: Floats, place: Ints, kinds: Ints, *, layers: bool) -> Floats | None:
    """Return for each step the time of compared pieces beside transfers, and what the same take free of them."""
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
    return found if found[:, 0].sum() >= LEAST_TOLD * total and found[:, 1].sum() > 0 else None


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
