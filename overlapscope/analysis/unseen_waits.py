"""Decide what of the waiting between ranks a recording may not show: for others, or in calls that were not matched."""

from collections.abc import Collection
from typing import Final

from overlapscope.analysis.result import Analysis

MANY_UNMATCHED: Final = 0.05
"""Calls of a rank that were matched with none of another rank hide waiting for it from this share on. A choice."""


def lacks_members(analysis: Analysis) -> bool:
    """Return whether members of groups whose calls were matched were not recorded, or may not have been."""
    partly = any(each.blame_estimate == "upper_bound" for each in analysis.skew.ranks)
    return partly and (bool(analysis.run.missing_ranks) or analysis.run.world_size is None)


def has_unmatched(analysis: Analysis, ranks: Collection[int]) -> bool:
    """Return whether many calls of one of these ranks could not be matched: what others waited in them for it is not
    known."""
    return any((each.unmatched_share or 0.0) > MANY_UNMATCHED for each in analysis.skew.ranks if each.rank in ranks)


def comes_last(analysis: Analysis, rank: int) -> bool:
    """Return whether a rank is certainly the last member of its matched calls, of those that were not recorded, too:
    it is in them for less time in all than it came later, so that it waited for none."""
    own = next((each for each in analysis.skew.ranks if each.rank == rank), None)
    return not lacks_members(analysis) or (own is not None and own.collective_ns < own.blame_ns)
