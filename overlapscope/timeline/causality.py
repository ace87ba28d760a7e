"""Whether calls of several ranks can be the same collective: none of its members may leave it before all have begun.

Between two ranks, what one began after the other ended, and the other after the one, add up to no more than 0 whatever
the offset between their clocks: it counts once with either sign.
"""

from typing import Final

import numpy as np

from overlapscope.timeline.columns import Flags, Floats, Ints

EARLY_NS: Final = 200_000
"""Two ends may be seen so much too early together: a profiler notes the end of a call a little beside the call."""
DRIFT: Final = 5e-4
"""Clocks may gain so much on each other: NTP changes the pace of a clock by no more."""
AT_A_TIME: Final = 8
"""Calls that are compared together: so few that a clock that is set spoils one such part alone."""
SURE: Final = 2
"""Parts in which two ranks must contradict each other: in one, a clock may have been set, or an odd call lie."""


def contradicted_parts(start_ns: Ints, end_ns: Ints) -> Ints:
    """Return for each two ranks in how many parts of their calls these cannot be the same; [rank, rank].

    `start_ns` and `end_ns` hold one row a rank, on its own clock, and the calls that may be the same in one column.
    """
    calls = start_ns.shape[1] // AT_A_TIME * AT_A_TIME
    shape = (start_ns.shape[0], -1, AT_A_TIME)
    parts: Ints = contradicted(start_ns[:, :calls].reshape(shape), end_ns[:, :calls].reshape(shape)).sum(axis=2)
    return parts


def contradicted(start_ns: Ints, end_ns: Ints) -> Flags:
    """Return for each two ranks, and each part, whether its calls cannot be the same; [rank, part, call] in, and
    [rank, rank, part] out."""
    late = np.array([(own[None] - end_ns).max(axis=2) for own in start_ns])
    lasted = end_ns.max(axis=2) - start_ns.min(axis=2)
    slack: Floats = EARLY_NS + DRIFT * np.maximum(lasted[:, None], lasted[None])
    found: Flags = late + late.transpose(1, 0, 2) > slack
    return found
