"""The medians that replays start from are those that `analyze` shows first, without an analysis."""

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import CrossRank, match_and_align
from overlapscope.analysis.job_step.step_medians import StepMedians
from overlapscope.timeline.run import Run
from tests.support.graph_cases import fsdp, recorded


def test_they_are_those_of_the_headline() -> None:
    run = recorded(fsdp())
    head, found = analyze(run).headline, StepMedians.of(run, match_and_align(run))
    assert found is not None
    assert found.exposed_comm_ns > 0
    assert (found.step_ns, found.exposed_comm_ns, found.overlapped_ns) == (
        head.step_ns, head.exposed_comm_ns, head.overlapped_ns,
    )  # fmt: skip


def test_a_run_without_ranks_has_none() -> None:
    assert StepMedians.of(Run(world_size=2, ranks={}), CrossRank()) is None
