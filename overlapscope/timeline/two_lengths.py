"""Find out whether times are of two lengths: then a median is of neither, or of one of them."""

from typing import Final

import numpy as np

from overlapscope.timeline.columns import Ints

FEWEST: Final = 2
"""Times of each length: a single long one is an outlier."""
OF_ALL: Final = 0.25
"""... and at least this share of all. A choice: the median of times of which fewer are unlike is that of the others."""
APART: Final = 0.1
"""The shortest long time is longer than the longest short one by this share of it, and by ..."""
BEYOND_SPREAD: Final = 2
"""... so many times what times of one length differ by at most. Choices: times that vary are of one length."""


def first_long(ordered_ns: Ints) -> int | None:
    """Return the place of the first long one of times that ascend; None where they are of one length, or vary."""
    least = max(FEWEST, int(np.ceil(OF_ALL * ordered_ns.size)))
    if ordered_ns.size < 2 * least:
        return None
    place = int(np.diff(ordered_ns).argmax()) + 1
    short, long = ordered_ns[:place], ordered_ns[place:]
    differ = max(int(np.ptp(short)), int(np.ptp(long)))
    if min(short.size, long.size) < least or long[0] - short[-1] < max(APART * short[-1], BEYOND_SPREAD * differ):
        return None
    return place
