"""Rule: waiting for a straggler dominates; tuning will not help until the straggler is fixed."""

from typing import Final

from overlapscope.analysis.result import Analysis, Recommendation

DOMINATES: Final = 0.5
"""Least share of wait time in the time in collectives, over all ranks."""


def late_rank(analysis: Analysis) -> Recommendation | None:
    """Return the rank to look at, where wait time is at least half of the time in collectives; else None."""
    ranks = analysis.skew.ranks
    total, waited = sum(each.collective_ns for each in ranks), sum(each.wait_ns for each in ranks)
    if not total or waited < DOMINATES * total:
        return None
    straggler = max(analysis.skew.stragglers, key=lambda each: each.blame_ns, default=None)
    rank = straggler.rank if straggler else max(ranks, key=lambda each: each.blame_ns).rank
    cause = f" ({straggler.held_by.replace('_', ' ')})" if straggler and straggler.held_by != "unknown" else ""
    share = f"waiting is {waited / total:.0%} of the time in collectives"
    return Recommendation(
        id="late_rank",
        title=f"Look at rank {rank}{cause}: {share}, and tuning will not help until the straggler is fixed"
        if straggler
        else f"W{share[1:]}, mostly for rank {rank}, which may be chance: tuning will not help",
        verdict="look",
        predicted_gain_ns=None,
        gain_low_ns=None,
        gain_high_ns=None,
        confidence="measured",
        memory_bytes=None,
        changes_numerics=False,
        apply={},
        verify="overlapscope analyze RUN --all",
        per="recording" if analysis.headline.window == "recording" else "step",
        loss_ns=analysis.headline.exposed_wait_ns,
        evidence={
            "rank": rank,
            "waited_ns": waited,
            "collective_ns": total,
            "held_by": straggler.held_by if straggler else None,
        },
        measured=["wait time, separated from transfer time by the shortest call of each collective"],
    )
