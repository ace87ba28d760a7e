"""Integers, times and serialized ids as Nsight Systems stores them."""

from typing import Final

import numpy as np

from overlapscope.timeline.columns import NONE, Flags, Ints

MAX_TIME_NS: Final = 1 << 61
"""73 years; a larger time is damage."""
_THREAD_BITS: Final = 0xFFFFFF


def is_sound(time_ns: Ints) -> Flags:
    """Whether each time is there and possible."""
    return (time_ns > -MAX_TIME_NS) & (time_ns < MAX_TIME_NS)  # not abs: NONE has no opposite


def process_of(thread: Ints) -> Ints:
    """Give the process key of a global thread id, which is Nsight's globalPid."""
    return np.where(thread == NONE, NONE, thread & ~np.int64(_THREAD_BITS))


def thread_of(thread: Ints) -> Ints:
    """Give the thread's id of a global thread id."""
    return np.where(thread == NONE, NONE, thread & np.int64(_THREAD_BITS))


def process_ids(*processes: Ints) -> dict[int, int]:
    """Give the process id of each process key."""
    keys = {key for each in processes for key in np.unique(each).tolist() if key != NONE}
    return {key: (key >> 24) & _THREAD_BITS for key in keys}
