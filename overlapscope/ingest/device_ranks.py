"""Which processes and devices of one recording are the ranks of the job.

A rank is a process on a device. A process that works on several devices is several ranks, except where it merely
touches a device on which another process does more (a context on GPU 0 is a common accident), or only copies there:
that work counts with the process's own device. A process that runs no kernel is no rank.
"""

import msgspec
import numpy as np
import numpy.typing as npt

from overlapscope.timeline.columns import Ints

NO_RANK = -1


class RankUnit(msgspec.Struct, frozen=True, kw_only=True):
    """A process on a device."""

    process: int
    device: int


def distinct_pairs(first: Ints, second: Ints) -> tuple[Ints, Ints, Ints]:
    """Give the two columns of the distinct pairs, sorted, and for each row the place of its pair."""
    firsts, seconds = np.unique(first), np.unique(second)
    packed = np.searchsorted(firsts, first) * seconds.size + np.searchsorted(seconds, second)
    pairs = np.unique(packed)
    if pairs.size == 0:
        return pairs, pairs, pairs
    return firsts[pairs // seconds.size], seconds[pairs % seconds.size], np.searchsorted(pairs, packed)


def rank_units(
    process: Ints, device: Ints, is_kernel: npt.NDArray[np.bool_], duration_ns: Ints
) -> tuple[list[RankUnit], Ints]:
    """Give the ranks, by device and then process, and for each device event the place of its rank or NO_RANK.

    Where nothing ran a kernel, every process on every device is a rank.
    """
    of_process, of_device, at = distinct_pairs(process, device)
    kernels = np.bincount(at[is_kernel], minlength=of_process.size)
    busy = np.bincount(at[is_kernel], duration_ns[is_kernel].astype(np.float64), of_process.size)
    works = kernels > 0 if kernels.any() else np.ones(kernels.size, np.bool_)
    home = np.full(kernels.size, NO_RANK, np.int64)
    for owner in np.unique(of_process[works]).tolist():
        mine = np.flatnonzero((of_process == owner) & works)
        main = int(mine[busy[mine].argmax()])
        home[of_process == owner] = main
        for pair in mine.tolist():
            elsewhere = np.flatnonzero((of_device == of_device[pair]) & (of_process != owner) & works)
            if pair == main or not (busy[elsewhere] > busy[pair]).any():
                home[pair] = pair
    ranks = np.unique(home[home != NO_RANK])
    ranks = ranks[np.lexsort((of_process[ranks], of_device[ranks]))]
    place = np.full(kernels.size + 1, NO_RANK, np.int64)
    place[ranks] = np.arange(ranks.size)
    units = [RankUnit(process=int(of_process[pair]), device=int(of_device[pair])) for pair in ranks.tolist()]
    return units, place[home][at]
