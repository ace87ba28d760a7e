"""Decide what of the waiting between ranks a recording may not show: for others, or in calls that were not matched."""

from typing import Final

from overlapscope.analysis.result import Analysis

MANY_UNMATCHED: Final = 0.05
"""Calls that were matched with none of another rank hide waiting from this share on. A choice."""
FEWEST_MEMBERS: Final = 2
"""Ranks that make one matched call, at least."""


def lacks_members(analysis: Analysis) -> bool:
    """Return whether members of groups whose calls were matched were not recorded, or may not have been."""
    partly = any(each.blame_estimate == "upper_bound" for each in analysis.skew.ranks)
    return partly and (bool(analysis.run.missing_ranks) or analysis.run.world_size is None)


def has_unmatched(analysis: Analysis) -> bool:
    """Return whether many calls could not be matched: what ranks waited in them for each other is not known."""
    skew = analysis.skew
    return skew.unmatched > MANY_UNMATCHED * (skew.unmatched + FEWEST_MEMBERS * skew.matched)
