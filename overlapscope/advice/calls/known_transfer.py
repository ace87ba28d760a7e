"""Find evidence that exposed time is transfer, where calls could not be split into waiting and transfer."""

from collections.abc import Mapping
from typing import Final, Literal

import numpy as np

from overlapscope.advice.calls.call_rates import MOST_ALIKE, exposed_of_calls_ns, waits_little
from overlapscope.advice.rule_input import LARGE_BYTES, RuleInput
from overlapscope.timeline.columns import NONE, Flags, Floats, Ints
from overlapscope.timeline.operations import ROOTED
from overlapscope.timeline.rows import factorize_rows, sort_order, split_by

Transfer = Literal["one_rate", "recorded", "in_rows"]
"""Calls of several sizes run at one bandwidth; all were matched among the ranks that were recorded, which may be all;
or they follow directly upon each other and last alike, or as their bytes."""
WORDS: Final[Mapping[Transfer, str]] = {
    "one_rate": "",
    "recorded": " (transfer, if these are all ranks)",
    "in_rows": " (very probably transfer)",
}
"""What follows the cause of such calls."""
AT_ONCE_NS: Final = 10_000
"""A call follows directly upon the one before it in its group if it begins no later. A choice: NCCL's kernels begin a
few microseconds apart on a stream."""
FEWEST: Final = 10
"""Least calls of one size that follow directly."""
SAME: Final = 0.02
"""Largest distance of the 10th and the 90th percentile of their times, as a share of the median. A choice: waiting for
ranks that are late by chance differs by more ..."""
NEAR: Final = 0.05
"""... and of their bytes by time, where sizes differ and time follows them: that shows more than one duration."""
FEWEST_OF_SIZE: Final = 2
"""Least calls of a size whose times show that time follows the bytes. A choice: of one nobody knows what it waits."""


def known_transfer(given: RuleInput, *, at_one_rate: bool) -> Transfer | None:
    """Return what shows that most exposed time is transfer; None where nothing does."""
    if at_one_rate:
        return "one_rate"
    if all_are_matched(given):
        return "recorded"
    return "in_rows" if follow_directly(given) else None


def all_are_matched(given: RuleInput) -> bool:
    """Return whether it is not recorded how many ranks the job has, and the calls of those at hand that nearly all
    exposed time is of were matched and split into waiting and transfer: other members may be missing, and nothing else.

    Calls with a root are not split where nobody was seen to wait in them.
    """
    skew, rows = given.analysis.skew, given.analysis.collectives
    known = given.run.world_size is None and len(given.run.ranks) > 1 and skew.matched > 0
    if not known or skew.unmatched or skew.uneven:
        return False
    rooted = [row for row in rows if row.op in ROOTED] if skew.not_split else []
    return given.exposed_ns(rooted) <= (1 - MOST_ALIKE) * given.exposed_ns(rows)


def follow_directly(given: RuleInput) -> bool:
    """Return whether nearly all exposed time is of large calls that each begin as the one before it in their group
    ends, ten or more of one size, and last alike, or of several, and last as their bytes: only the first of such a row
    can wait for a rank that is merely late."""
    alike = every = 0
    for timeline, windows in given.some_at_hand():
        calls, exposed = timeline.collectives, exposed_of_calls_ns(given, timeline, windows)
        every += int(exposed.sum())
        own = np.flatnonzero((calls.start_ns != NONE) & (calls.end_ns != NONE) & (calls.bytes >= LARGE_BYTES))
        own = own[sort_order(calls.group[own], calls.start_ns[own])]
        start, end, group = calls.start_ns[own], calls.end_ns[own], calls.group[own]
        gap = start[1:] - end[:-1]
        own = own[1:][(group[1:] == group[:-1]) & (gap >= 0) & (gap <= AT_ONCE_NS)]
        took = (calls.end_ns - calls.start_ns)[own]
        kind, _ = factorize_rows([calls.op[own], calls.group[own], calls.dtype[own]])
        for rows in split_by(kind):
            transfers = _last_as_bytes(calls.bytes[own[rows]], took[rows])
            alike += int(exposed[own[rows[transfers]]].sum())
    return every > 0 and alike >= MOST_ALIKE * every


def _last_as_bytes(sizes: Ints, took_ns: Ints) -> Flags:
    """Return which of these calls of one group, operation and type last as their bytes: all where these differ, else
    those of a size that last alike."""
    rate = sizes / np.maximum(took_ns, 1)
    if _are_near(rate, NEAR) and waits_little(
        np.zeros(sizes.size, np.int64), sizes.astype(float), rate, FEWEST_OF_SIZE
    ):
        return np.ones(sizes.size, np.bool_)
    found = np.zeros(sizes.size, np.bool_)
    for rows in split_by(factorize_rows([sizes])[0]):
        found[rows] = _are_near(took_ns[rows], SAME)
    return found


def _are_near(values: Ints | Floats, most: float) -> bool:
    """Return whether values are enough, and differ by at most this share of the median, without a tenth at each end."""
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9))
    return bool(values.size >= FEWEST and high - low <= most * middle)
