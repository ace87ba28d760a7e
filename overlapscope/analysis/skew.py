"""Compute what ranks wait for each other: the section `skew` of an analysis."""

from collections.abc import Mapping, Sequence

from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.cross_rank.late_together import came_last_together
from overlapscope.analysis.cross_rank.matching.unmatched_ranks import unmatched_shares
from overlapscope.analysis.cross_rank.wait_transfer import counts_from
from overlapscope.analysis.result import (
    Skew,
    SkewRank,
)
from overlapscope.analysis.stragglers.stragglers import Straggler
from overlapscope.timeline.run import Run


def skew_of(
    run: Run, cross_rank: CrossRank, hosts: Mapping[str, Sequence[int]], idle_ns: Mapping[int, int | None],
    held: Sequence[Straggler], in_turn: list[int], delayed_ns: Mapping[int, int],
) -> Skew:  # fmt: skip
    """Return what ranks wait for each other.

    `hosts` holds the ranks of each host, `idle_ns` how long each rank idles, `held` who is late for a reason of its
    own, `in_turn` who is late now and then, `delayed_ns` for how long others waited because of a rank.
    """
    residual = cross_rank.clocks.residual_ns
    aligned = cross_rank.clocks.offset_ns.keys()
    unmatched = unmatched_shares(run.ranks, cross_rank.matching, cross_rank.pairs)
    partly = {rank for each in cross_rank.splits if not each.block.whole for rank in each.block.ranks}
    return Skew(
        matched=cross_rank.matched,
        unmatched=cross_rank.matching.unmatched + cross_rank.pairs.unmatched,
        pairs=cross_rank.pairs.matched,
        uneven=sum(each.calls for each in cross_rank.matching.uneven),
        not_split=cross_rank.not_split,
        reasons=[*cross_rank.matching.reasons, *cross_rank.pairs.reasons],
        clock_offset_ns={str(rank): round(offset) for rank, offset in cross_rank.clocks.offset_ns.items()},
        one_host=bool(aligned) and any(aligned <= set(ranks) for ranks in hosts.values()),
        residual_ns=None if residual is None else round(residual),
        ranks=[
            SkewRank(
                rank=rank,
                collective_ns=each.collective_ns,
                wait_ns=each.wait_ns,
                wait_fraction=each.wait_ns / each.collective_ns if each.collective_ns else None,
                blame_ns=each.blame_ns,
                blame_estimate="upper_bound" if rank in partly else "matched",
                start_of_recording_ns=each.start_wait_ns,
                late_end_ns=each.late_end_ns,
                delayed_ns=delayed_ns.get(rank, 0),
                waited_for_ns=each.waited_for_ns,
                mean_waited_for_ns=each.mean_waited_for_ns,
                unmatched_share=unmatched[rank],
                waited_for_unseen_ns=cross_rank.waited_for_unseen_ns.get(rank),
                times_last=each.times_last,
                idle_ns=idle_ns[rank],
            )
            for rank, each in cross_rank.waits.items()
        ],
        stragglers=list(held),
        in_turn=in_turn,
        late_together=came_last_together(cross_rank.splits, counts_from(cross_rank.clocks)),
    )
