"""Another clock changes no verdict: a generated job is judged the same whatever the clocks of its ranks show.

Some of what ties clocks is taken away: the reductions across stages, then those of gradients, so that only the uneven
exchanges of experts tie their ranks, then these, too, so that stages and replicas are tied by nothing but sends.
"""

from functools import cache
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.result import Analysis
from overlapscope.timeline.run import Run
from tests.property.synthetic import Fault, Job, Layout, run_of, simulate
from tests.unit.analysis.cross_rank.test_across_ranks import moved

MS = 1_000_000
JOB = Job(
    layout=Layout(tp=2, pp=2, dp=2, ep=2, ranks_per_host=1), steps=5, microbatches=2, moe=True, expert_jitter=0.1,
    offsets_ns=0.0,
)  # fmt: skip
FAULTS = {
    "healthy": Fault(),
    "paused": Fault(kind="host_stall", culprits=(1,), stall_ns=30.0 * MS),
    "slower": Fault(kind="slow_compute", culprits=(6,), compute_factor=1.4),
    "hot expert": Fault(kind="expert_imbalance", culprits=(2, 3, 6, 7), expert_share=1.8),
}
TIED = {
    "all ties": (),
    "stages apart": ("MODEL_PARALLEL_GROUP",),
    "experts' exchanges only": ("MODEL_PARALLEL_GROUP", "DATA_PARALLEL_GROUP"),
    "replicas apart": ("MODEL_PARALLEL_GROUP", "DATA_PARALLEL_GROUP", "EXPERT_MODEL_PARALLEL_GROUP"),
}
"""The groups whose calls were not recorded."""
AHEAD_NS = {rank: int(each) for rank, each in enumerate(np.random.default_rng(5).integers(-1000 * MS, 1000 * MS, 8))}


@cache
def whole(fault: Fault) -> Run:
    return run_of(simulate(replace(JOB, fault=fault)))


def recorded(fault: Fault, without: tuple[str, ...]) -> Run:
    run = whole(fault)
    dropped = {group.name for group in run.groups if group.description in without}
    ranks = {}
    for rank, timeline in run.ranks.items():
        names = (*timeline.names, "unknown")
        codes = [code for code, name in enumerate(timeline.names) if name in dropped]
        op = np.where(np.isin(timeline.collectives.group, codes), len(names) - 1, timeline.collectives.op)
        ranks[rank] = replace(timeline, names=names, collectives=replace(timeline.collectives, op=op.astype(np.int32)))
    return replace(run, ranks=ranks)


def with_other_clocks(run: Run) -> Run:
    for rank, ahead_ns in AHEAD_NS.items():
        run = moved(run, rank, ahead_ns)
    return run


def verdicts(analysis: Analysis) -> dict[str, Any]:
    """Return what has to be the same to the letter."""
    skew = analysis.skew
    return {
        "matched": (skew.matched, skew.unmatched, skew.pairs),
        "reasons": skew.reasons,
        "stragglers": [(each.rank, each.held_by) for each in skew.stragglers],
        "findings": sorted(each.id for each in analysis.findings),
        "waits": [(each.rank, each.collective_ns, each.wait_ns) for each in skew.ranks],
        "transfers": [(each.op, each.group, each.estimate, each.transfer_ns_median) for each in analysis.collectives],
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "ties", "stragglers"),
    [
        ("healthy", "experts' exchanges only", set()),
        ("paused", "replicas apart", {1}),
        ("slower", "stages apart", {6}),
        ("hot expert", "experts' exchanges only", {2, 3, 6, 7}),
    ],
)
def test_another_clock_on_every_rank_changes_no_verdict(fault: str, ties: str, stragglers: set[int]) -> None:
    run = recorded(FAULTS[fault], TIED[ties])
    other = with_other_clocks(run)
    before, after = analyze(run), analyze(other)
    assert verdicts(after) == verdicts(before)
    assert {each.rank for each in after.skew.stragglers} == stragglers
    assert any(each.id.startswith("expert_imbalance") for each in after.findings) == (fault == "hot expert")
    for was, now in zip(before.skew.stragglers, after.skew.stragglers, strict=True):
        assert now.blame_ns == pytest.approx(was.blame_ns, rel=0.01)
    for was, now in zip(before.skew.ranks, after.skew.ranks, strict=True):
        assert now.blame_ns == pytest.approx(was.blame_ns, rel=0.01, abs=MS / 10)
    for was, now in zip(before.ranks, after.ranks, strict=True):
        assert now.whole.window_ns == was.whole.window_ns
        for cause in {*was.whole.causes, *now.whole.causes}:
            assert now.whole.causes.get(cause, 0) == pytest.approx(was.whole.causes.get(cause, 0), abs=MS / 10)
    uneven = [each.lead_ns for each in match_and_align(run).uneven]
    for lead, same in zip(uneven, [each.lead_ns for each in match_and_align(other).uneven], strict=True):
        np.testing.assert_allclose(lead, same, atol=10_000)


@pytest.mark.parametrize(
    ("ties", "sets"), [("all ties", 1), ("stages apart", 1), ("experts' exchanges only", 1), ("replicas apart", 2)]
)
def test_offsets_show_how_clocks_differ_where_anything_ties_them(ties: str, sets: int) -> None:
    """Stages are tied by their messages: what goes both ways ends together."""
    run = recorded(FAULTS["healthy"], TIED[ties])
    was, now = match_and_align(run).clocks, match_and_align(with_other_clocks(run)).clocks
    assert now.tied == was.tied
    assert len(set(now.tied.values())) == sets
    for rank, first in now.tied.items():
        moved = (now.offset_ns[rank] - was.offset_ns[rank]) - (now.offset_ns[first] - was.offset_ns[first])
        assert moved == pytest.approx(AHEAD_NS[rank] - AHEAD_NS[first], abs=10_000)
    for first in set(now.tied.values()):
        assert 0.0 in {now.offset_ns[rank] for rank in now.tied if now.tied[rank] == first}
