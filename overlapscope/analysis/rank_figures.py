"""Compute the figures of each rank: of its whole recording and of its steps, with the causes of exposed time."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from overlapscope.analysis.common.cause_table import EVENTS_MISSING
from overlapscope.analysis.common.job_identity import host_of_ranks
from overlapscope.analysis.cross_rank.across_ranks import CrossRank, Transfers
from overlapscope.analysis.exposure.arrivals import arrivals
from overlapscope.analysis.exposure.exposed_causes import Causes, each_causes
from overlapscope.analysis.exposure.longer_than_like import LongerThanLike, longer_than_like, needs_of_ranks
from overlapscope.analysis.job_step.step_table import RankWindows
from overlapscope.analysis.per_rank.breakdown import Breakdown
from overlapscope.analysis.per_rank.host_operations import empty_ranges_ns
from overlapscope.analysis.per_rank.steps import StepWindow
from overlapscope.analysis.rank_summary import RankSummary
from overlapscope.analysis.result import (
    RankInfo,
    StepBreakdown,
)
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.run import Run


def each_rank(
    run: Run, cross_rank: CrossRank, alone: Mapping[int, RankSummary], transfers: Mapping[int, Transfers]
) -> tuple[list[RankInfo], Mapping[int, Ints], Mapping[int, LongerThanLike]]:
    """Return each rank's figures, the exposed time of each of its collectives, and what those that could not be split
    take longer than their like."""
    coverage = {rank: own.coverage for rank, own in alone.items()}
    parts = {rank: own.parts for rank, own in alone.items()}
    hosts = host_of_ranks(run)
    ranks: list[RankInfo] = []
    exposed: dict[int, Ints] = {}
    longer: dict[int, LongerThanLike] = {}
    unsplit = {rank for rank, timeline in run.ranks.items() if timeline.has_device and _not_split(transfers[rank])}
    arrived = arrivals(run, cross_rank)
    computed_ns = {rank: _step_compute_ns(alone[rank]) for rank in unsplit}
    needs_ns = needs_of_ranks(run, {rank: arrived[rank] for rank in unsplit}, computed_ns)
    for rank, causes in each_causes(run, cross_rank, coverage, parts, transfers, arrived):
        ranks.append(_rank_info(rank, hosts.get(rank), run.ranks[rank].basis, alone[rank], causes))
        exposed[rank] = causes.exposed_ns
        if rank in unsplit:
            own_comm = parts[rank].own_comm
            longer[rank] = longer_than_like(
                run.ranks[rank], own_comm, causes, transfers[rank], arrived[rank], needs_ns[rank]
            )
    return ranks, exposed, longer


def _not_split(transfers: Transfers) -> bool:
    return bool((transfers.transfer_ns == NONE).any())


def _step_compute_ns(own: RankSummary) -> dict[tuple[int, int], int]:
    """Return how long a rank computed in each complete step, by recording and step."""
    _, *steps = own.figures
    return {
        (at.recording, at.step): figures.compute_ns
        for at, figures in zip(own.windows, steps, strict=True)
        if at.complete and figures.compute_ns is not None
    }


def rank_windows(infos: Iterable[RankInfo], alone: Mapping[int, RankSummary]) -> dict[int, RankWindows]:
    """Return the windows of the ranks that have times, with their breakdowns: those that main figures are of.

    Ranks of which events are missing are left out beside others: when they were idle is not known, and what they
    computed is at least what is recorded, so that no mean may hold them.
    """
    timed = [info for info in infos if info.whole.window_ns]
    known = [info for info in timed if info.no_causes_reason not in EVENTS_MISSING]
    return {
        info.rank: RankWindows(
            steps=list(zip(alone[info.rank].windows, info.steps, strict=True)),
            whole=info.whole,
            recordings=alone[info.rank].whole,
        )
        for info in known or timed
    }


def _rank_info(rank: int, host: str | None, basis: str, own: RankSummary, causes: Causes) -> RankInfo:
    sets = own.sets
    every = causes.within_each(sets)
    found = zip(own.figures, every, causes.exposed_wait_ns(sets, every), causes.hidden_wait_ns(sets), strict=True)
    whole, *steps = [_known(basis, *each) for each in found]
    return RankInfo(
        rank=rank,
        host=host,
        whole=whole,
        steps=[
            StepBreakdown(step=each.step, complete=each.complete, **msgspec.structs.asdict(its))
            for each, its in zip(own.windows, steps, strict=True)
        ],
        before_first_step_ns=_before_first_step_ns(own.windows),
        unsplit_causes=dict(causes.unsplit_ns),
        no_causes_reason=own.no_causes_reason if whole.window_ns is not None else None,
        interference=None if isinstance(own.interference, str) else own.interference,
        no_interference_reason=own.interference if isinstance(own.interference, str) else None,
        empty_ranges_ns=empty_ranges_ns(own.operations),
    )


def _before_first_step_ns(windows: Sequence[StepWindow]) -> int | None:
    """Return how long before its window the first complete step began on its host; None where that is not known."""
    first = next((each for each in windows if each.complete and each.window is not None), None)
    if first is None or first.window is None or first.begun_ns is None:
        return None
    return max(first.window[0] - first.begun_ns, 0)


def _known(
    basis: str, figures: Breakdown, causes: dict[str, int], exposed_wait_ns: int | None, hidden_wait_ns: int | None
) -> Breakdown:
    """Add the causes, and remove what a recording of this basis cannot know; without a window there are no figures."""
    if figures.window_ns is None:
        return figures
    known: dict[str, Any] = {"causes": causes, "exposed_wait_ns": exposed_wait_ns}
    if hidden_wait_ns is not None and figures.overlapped_ns is not None:
        known |= {"hidden_wait_ns": hidden_wait_ns, "hidden_transfer_ns": figures.overlapped_ns - hidden_wait_ns}
    if basis == "events":  # events see no copies
        known |= {"copy_ns": None, "copy_only_ns": None}
    return msgspec.structs.replace(figures, **known)
