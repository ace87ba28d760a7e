"""A run as a side of a comparison needs it: every figure that is compared, without the run's own tables."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.common.job_identity import identity
from overlapscope.analysis.compare.kernel_changes import KernelSums, kernel_sums
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.exposure.collectives import CollectiveRow
from overlapscope.analysis.exposure.exposed import ExposedShares
from overlapscope.analysis.graph.built_graphs import BuiltGraphs
from overlapscope.analysis.job_step.step_table import (
    StepFigures,
    StepTable,
    recording_figures,
    step_figures,
    step_table,
)
from overlapscope.analysis.rank_figures import rank_windows
from overlapscope.analysis.rank_summaries import summarize_ranks
from overlapscope.analysis.rank_summary import steps_and_compute
from overlapscope.analysis.stragglers.stragglers import Straggler
from overlapscope.analysis.structure.rank_structure import RankStructure, structure_of
from overlapscope.timeline.run import Run

OLDER: Final = "0.1."
"""Versions whose step time in a comparison was the longest window of any rank."""


class MeasuredRun(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run. A side of a comparison is one of these, or several runs of the same code."""

    name: str
    world_size: int | None
    missing_ranks: tuple[int, ...]
    unread_ranks: tuple[int, ...] = ()
    identity: Mapping[str, str]
    """Identity of the run (job, software, settings, recording), compared key by key."""
    steps: StepTable
    """Complete steps; no columns where no step was marked, or none recorded completely."""
    whole: StepTable
    """Whole recordings, in one column."""
    kernels: Mapping[int, KernelSums]
    collectives: Sequence[CollectiveRow]
    stragglers: Sequence[Straggler] = ()
    tokens_per_s: float | None = None
    """Of the whole job, over its own complete steps."""
    damaged: Sequence[Finding] = ()
    """Findings about damaged files of the run."""
    structure: Mapping[int, RankStructure] = {}
    """What each rank's step does, of a dry run; empty for other runs."""
    prices: Mapping[int, Mapping[str, Any]] = {}
    """What each rank's step takes on a device, of a dry run that was priced: `overlapscope.price/1`, as recorded."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks whose times were recorded."""
        return self.whole.ranks


def is_older(version: str) -> bool:
    """Return whether a run is compared as version 0.1 compared it, which wrote it: its baselines keep their figures."""
    return version.startswith(OLDER)


def measure_run(run: Run, name: str = "run") -> MeasuredRun:
    """Compute the compared figures of a run; `name` is its name in the comparison."""
    graphs = BuiltGraphs(run)
    alone = summarize_ranks(run, graphs)
    cross_rank = match_and_align(run, steps_and_compute(alone))
    analysis = analyze(run, cross_rank, alone=alone, graphs=graphs)
    ranks = rank_windows(analysis.ranks, alone)
    exposed = {rank: ExposedShares(run.ranks[rank]) for rank in ranks}

    def table(found: StepFigures) -> StepTable:
        shown = msgspec.structs.replace(found, windows=None) if is_older(run.version) else found
        return step_table(run, shown, ranks, cross_rank, exposed)

    return MeasuredRun(
        name=name,
        world_size=run.world_size,
        missing_ranks=run.missing_ranks,
        unread_ranks=run.unread_ranks,
        identity=identity(run),
        steps=table(step_figures(ranks, cross_rank)),
        whole=table(recording_figures(ranks, cross_rank)),
        kernels={rank: kernel_sums(run.ranks[rank], alone[rank].windows) for rank in ranks},
        collectives=analysis.collectives,
        stragglers=analysis.skew.stragglers,
        tokens_per_s=tokens.per_second if analysis.throughput and (tokens := analysis.throughput.tokens) else None,
        damaged=[each for each in analysis.findings if each.id.startswith("damaged_source:")],
        structure=structure_of(run),
        prices={rank: price for rank, each in run.ranks.items() if (price := each.recorded.get("price"))},
    )
