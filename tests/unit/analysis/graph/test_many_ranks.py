"""Graphs of many ranks: sorted by level, or of ranks that share no collective, they answer as any other."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.graph import model, step_paths
from overlapscope.analysis.graph.step_paths import FollowedPaths, follow_paths
from overlapscope.analysis.per_rank.steps import step_windows
from overlapscope.timeline.run import Run
from tests.property.synthetic import Job, Layout, plant, simulate
from tests.property.synthetic.columns import recorded_groups, timelines_of


def run_of(job: Job) -> Run:
    """Return the run of a job with its host events."""
    simulated = simulate(job)
    ranks = {each.rank: each for each in timelines_of(simulated, host_events=True)}
    return Run(world_size=job.layout.world, ranks=dict(sorted(ranks.items())), groups=recorded_groups(simulated))


def followed(run: Run) -> FollowedPaths:
    windows = {rank: step_windows(timeline) for rank, timeline in run.ranks.items()}
    return follow_paths(run, windows, match_and_align(run))


HEALTHY = Job(layout=Layout(dp=4), seed=3, steps=5, layers=2, microbatches=2)


STRAGGLER = plant(HEALTHY, "slow_compute", share=0.2, culprit=3, seed=3)


@pytest.mark.slow
@pytest.mark.parametrize("job", [replace(HEALTHY, launch_ns=200_000.0), STRAGGLER], ids=["slow launches", "straggler"])
def test_a_graph_sorted_by_level_answers_as_one_sorted_by_time(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_paths, "NEVER_WAITS", 1e-9)  # what each rank would take alone is asked of any step
    run = run_of(job)
    by_time = followed(run)
    monkeypatch.setattr(model, "WIDE_RANKS", 1)
    by_level = followed(run)
    assert by_time.self_tests[0].swap is not None
    assert by_level.self_tests == by_time.self_tests
    assert len(by_time.paths) >= 3
    assert job is not STRAGGLER or any(each.own_chains_ns for each in by_time.paths)
    for one, other in zip(by_level.paths, by_time.paths, strict=True):
        assert replace(one, segments=other.segments) == other
        for name in one.segments.__struct_fields__:
            assert np.array_equal(getattr(one.segments, name), getattr(other.segments, name))


def test_ranks_that_share_no_collective_with_others_have_no_place_in_their_graph() -> None:
    run = run_of(Job(layout=Layout(tp=2), seed=1, steps=4))
    named = {group.name: f"{group.name} of the others" for group in run.groups}
    apart = {
        2 + rank: replace(each, rank=2 + rank, names=tuple(named.get(name, name) for name in each.names))
        for rank, each in run.ranks.items()
    }
    groups = [replace(each, name=named[each.name], ranks=(2, 3)) for each in run.groups]
    both = replace(run, world_size=4, ranks=run.ranks | apart, groups=(*run.groups, *groups))
    found = followed(both)
    assert found.scope == "ranks"
    assert {rank for each in found.paths for rank in each.segments.rank.tolist()} == {0, 1}
