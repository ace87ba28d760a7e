"""Find steps of two kinds, short ones and long ones: then a median step is of neither kind, or of one of them."""

from statistics import fmean

import msgspec
import numpy as np

from overlapscope.analysis.job_step.headline import Headline, few_communicate
from overlapscope.timeline.two_lengths import first_long


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
    ordered = sorted(steps, key=lambda each: each.step_ns)
    place = first_long(np.array([each.step_ns for each in ordered], np.int64))
    if place is None or few_communicate(head) is not None:
        return None
    short, long = ordered[:place], ordered[place:]
    return TwoKinds(
        short=sorted(each.step for each in short if each.step is not None),
        long=sorted(each.step for each in long if each.step is not None),
        short_ns=round(fmean(each.step_ns for each in short)),
        long_ns=round(fmean(each.step_ns for each in long)),
    )
