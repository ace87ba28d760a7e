"""Find steps of two kinds, short ones and long ones: then a median step is of neither kind, or of one of them."""

from statistics import fmean
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.job_step.headline import Headline, few_communicate

FEWEST: Final = 2
"""Steps of each kind: a single long one is an outlier."""
OF_STEPS: Final = 0.25
"""... and at least this share of all. A choice: the median of steps of which fewer are unlike is that of the others."""
APART: Final = 0.1
"""The shortest long step is longer than the longest short one by this share of it, and by ..."""
BEYOND_SPREAD: Final = 2
"""... so many times what steps of one kind differ by at most. Choices: steps that vary are of one kind."""


class TwoKinds(msgspec.Struct, kw_only=True, frozen=True):
    """Steps of a job that are of two kinds by their lengths; times are means."""

    short: list[int]
    """Numbers of the short steps, and ..."""
    long: list[int]
    short_ns: int
    """... how long one of each kind takes."""
    long_ns: int


def two_kinds(head: Headline) -> TwoKinds | None:
    """Return the two kinds of a job's steps; None where they are of one, and where only some of them communicate.

    A last step that is cut short is in neither.
    """
    steps = [each for each in head.job_steps if each.step is not None and each.step not in head.causes_cut]
    least = max(FEWEST, int(np.ceil(OF_STEPS * len(steps))))
    if len(steps) < 2 * least or few_communicate(head) is not None:
        return None
    ordered = sorted(steps, key=lambda each: each.step_ns)
    lengths = np.array([each.step_ns for each in ordered], np.int64)
    first_long = int(np.diff(lengths).argmax()) + 1
    short, long = lengths[:first_long], lengths[first_long:]
    differ = max(int(np.ptp(short)), int(np.ptp(long)))
    if min(short.size, long.size) < least or long[0] - short[-1] < max(APART * short[-1], BEYOND_SPREAD * differ):
        return None
    return TwoKinds(
        short=sorted(each.step for each in ordered[:first_long] if each.step is not None),
        long=sorted(each.step for each in ordered[first_long:] if each.step is not None),
        short_ns=round(fmean(short.tolist())),
        long_ns=round(fmean(long.tolist())),
    )
