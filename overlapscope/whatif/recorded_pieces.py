"""How much backward slows beside transfers: the same piece of it beside one, and free of one.

A piece lies between two gradients that become ready one after the other. The same is that of the same two gradients in
another pass or step; where that tells nothing, that of two gradients of the same sizes: layers of one shape do the same
work. That is only believed where three such layers beside transfers agree.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from overlapscope.timeline.columns import Flags, Floats, Ints
from overlapscope.timeline.intervals import BusyTime
from overlapscope.whatif.interference import BESIDE, FREE, SPREAD
from overlapscope.whatif.recorded_steps import Recorded

LEAST_STEPS: Final = 3
LAYERS_AGREE: Final = 0.2
"""Median pieces of layers of one shape differ by no more, or they are not the same work."""
LEAST_LAYERS: Final = 3
LEAST_TOLD: Final = 0.1
"""Share of the time beside transfers that must be compared."""


def piece_slowdown(seen: Recorded, rank: int) -> tuple[float, float, float] | None:
    """Give the slowdown of the rank at this place with its 90 % interval; None where no piece tells it."""
    lasted, beside, place = _pieces(seen, rank)
    for kinds, layers in ((np.arange(place.max(initial=-1) + 1), False), (_alike(seen), True)):
        sums = _compared(lasted, beside, place, kinds, layers=layers)
        if sums is not None:
            return _with_interval(sums)
    return None


def _pieces(seen: Recorded, rank: int) -> tuple[Floats, Floats, Ints]:
    """Give (step, piece of all passes): ns, share beside transfers; and of each piece its place in backward.

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
    """Give for each step the time of compared pieces beside transfers, and what the same take free of them."""
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
    """Give the ratio over all steps and its interval: each step left out in turn (jackknife)."""
    total = sums.sum(axis=0)
    mean = float(total[0] / total[1])
    without = (total[0] - sums[:, 0]) / (total[1] - sums[:, 1])
    error = SPREAD * float(np.sqrt((without.size - 1) * without.var()))
    return max(mean, 1.0), max(mean - error, 1.0), max(mean + error, 1.0)
