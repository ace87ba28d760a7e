"""A run as a side of a comparison needs it: every figure that is compared, without the run's own tables."""

from collections.abc import Mapping, Sequence

import msgspec

from overlapscope.analysis.across_ranks import match_and_align
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.collectives import CollectiveRow
from overlapscope.analysis.exposed import ExposedShares
from overlapscope.analysis.findings import Finding
from overlapscope.analysis.job_identity import identity
from overlapscope.analysis.kernel_changes import KernelSums, kernel_sums
from overlapscope.analysis.result import Straggler
from overlapscope.analysis.step_table import StepTable, step_table, whole_table
from overlapscope.analysis.steps import step_windows
from overlapscope.timeline.run import Run


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

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks whose times were recorded."""
        return self.whole.ranks


def measure_run(run: Run, name: str = "run") -> MeasuredRun:
    """Compute the compared figures of a run; `name` is its name in the comparison."""
    cross_rank = match_and_align(run)
    analysis = analyze(run, cross_rank)
    timed = [info for info in analysis.ranks if info.whole.window_ns]
    windows = {info.rank: step_windows(run.ranks[info.rank]) for info in timed}
    transfers = cross_rank.transfers(run)
    exposed = {info.rank: ExposedShares(run.ranks[info.rank], transfers[info.rank]) for info in timed}
    return MeasuredRun(
        name=name,
        world_size=run.world_size,
        missing_ranks=run.missing_ranks,
        unread_ranks=run.unread_ranks,
        identity=identity(run),
        steps=step_table(run, timed, windows, cross_rank, exposed),
        whole=whole_table(run, timed, cross_rank, exposed),
        kernels={info.rank: kernel_sums(run.ranks[info.rank], windows[info.rank]) for info in timed},
        collectives=analysis.collectives,
        stragglers=analysis.skew.stragglers,
        tokens_per_s=tokens.per_second if analysis.throughput and (tokens := analysis.throughput.tokens) else None,
        damaged=[each for each in analysis.findings if each.id.startswith("damaged_source:")],
    )
