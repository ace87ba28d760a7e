"""Waiting dominates: the rank that is waited for is the matter, and no setting."""

from typing import Final

from overlapscope.analysis.result import Analysis, Recommendation

DOMINATES: Final = 0.5
"""Share of the time in collectives, over all ranks."""


def late_rank(analysis: Analysis) -> Recommendation | None:
    """Return whom to look at, where ranks wait for at least half of their time in collectives; else None."""
    ranks = analysis.skew.ranks
    total, waited = sum(each.collective_ns for each in ranks), sum(each.wait_ns for each in ranks)
    if not total or waited < DOMINATES * total:
        return None
    held = max(analysis.skew.stragglers, key=lambda each: each.blame_ns, default=None)
    rank = held.rank if held else max(ranks, key=lambda each: each.blame_ns).rank
    by = f", held by {held.held_by.replace('_', ' ')}" if held and held.held_by != "unknown" else ""
    return Recommendation(
        id="late_rank",
        title=f"Look at rank {rank}{by}: waiting is {waited / total:.0%} of the time in collectives, no setting helps"
        if held
        else f"Waiting is {waited / total:.0%} of the time in collectives, for rank {rank} most, which may be chance: "
        "no setting helps",
        verdict="look",
        predicted_gain_ns=None,
        gain_low_ns=None,
        gain_high_ns=None,
        confidence="measured",
        memory_bytes=None,
        changes_numerics=False,
        apply={},
        verify="overlapscope analyze RUN --all",
        evidence={"rank": rank, "waited_ns": waited, "collective_ns": total, "held_by": held.held_by if held else None},
        measured=["waiting, told from transfers by the quickest rank of each collective"],
    )
