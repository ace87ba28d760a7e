"""The critical path through sends, receives and uneven exchanges: from what waited to the rank that it waited for."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.cross_rank.matching.match import match
from overlapscope.analysis.cross_rank.matching.point_to_point import match_pairs
from overlapscope.analysis.graph.answers import CriticalPath, StepPath
from overlapscope.analysis.graph.own_causes import critical_paths
from overlapscope.analysis.per_rank.steps import step_windows
from overlapscope.timeline.run import Group, RankTimeline, Run
from overlapscope.timeline.store.load_save import load_run, save_run
from tests.property.synthetic import Job, Layout, plant
from tests.property.synthetic.evaluate_job_faults import analyzed
from tests.unit.analysis.figures.test_exposed_causes import rank_of

MS = 1_000_000
TIMES = {"early": (10 * MS, 40 * MS, 10 * MS), "late": (30 * MS, 40 * MS, 30 * MS)}


def followed(*ranks: RankTimeline, drift: float = 0.0) -> StepPath:
    groups = (Group(name="0", size=2, ranks=(0, 1)),)
    run = Run(world_size=2, ranks={each.rank: each for each in ranks}, groups=groups)
    clocks = Clocks(tied={0: 0, 1: 0}, offset_ns={0: 0.0, 1: 0.0}, drift={0: 0.0, 1: drift})
    together = CrossRank(matching=match(run), clocks=clocks, pairs=match_pairs(run, clocks))
    found = critical_paths(run, {rank: step_windows(timeline) for rank, timeline in run.ranks.items()}, together)
    assert found.scope == "ranks"
    (path,) = found.steps
    return path


@pytest.mark.parametrize(("waits", "comes"), [("recv", "send"), ("send", "recv")])
def test_what_waits_for_its_other_end_leads_over_to_what_that_one_did(waits: str, comes: str) -> None:
    early = rank_of(0, [TIMES["early"]], [(0, 10 * MS, "short"), (40 * MS, 60 * MS, "last")], op=waits)
    late = rank_of(1, [TIMES["late"]], [(0, 30 * MS, "long")], op=comes)
    path = followed(early, late)
    assert path.parts == {"compute": 50 * MS, "transfer": 10 * MS}
    assert path.ranks == {"0": 30 * MS, "1": 30 * MS}


@pytest.mark.parametrize("stored", [False, True])
def test_a_send_that_is_waited_for_long_after_it_was_received_delays_nobody(tmp_path: Path, *, stored: bool) -> None:
    """gloo marks its end when its host comes to wait: here after 30 ms of compute, of which it lasts all."""
    sent, received = (10 * MS, 40 * MS, 10 * MS), (5 * MS, 11 * MS, 5 * MS)
    work = [(0, 10 * MS, "short"), (10 * MS, 40 * MS, "long"), (41 * MS, 60 * MS, "last")]
    ranks = [rank_of(0, [sent], work, op="send"), rank_of(1, [received], [(0, 5 * MS, "short")], op="recv")]
    if stored:
        save_run(Run(world_size=2, ranks={each.rank: each for each in ranks}), tmp_path / "run", version="1")
        ranks = list(load_run(tmp_path / "run").ranks.values())
    path = followed(*ranks)
    assert path.parts == {"compute": 59 * MS, "host": 1 * MS}


def test_pairs_of_ranks_that_nothing_connects_with_each_other_have_paths_of_their_own() -> None:
    """As two pipelines without a common collective."""
    sent, received = (10 * MS, 40 * MS, 10 * MS), (5 * MS, 11 * MS, 5 * MS)
    ranks = {}
    for first in (0, 2):
        ranks[first] = rank_of(first, [sent], [(0, 10 * MS, "short"), (10 * MS, 60 * MS, "long")], op="send")
        ranks[first + 1] = rank_of(first + 1, [received], [(0, 5 * MS, "short")], op="recv")
        for rank in (first, first + 1):
            names = tuple(f"g{first}" if name == "0" else name for name in ranks[rank].names)
            ranks[rank] = replace(ranks[rank], names=names)
    groups = tuple(Group(name=f"g{first}", size=2, ranks=(first, first + 1)) for first in (0, 2))
    run = Run(world_size=4, ranks=ranks, groups=groups)
    clocks = Clocks(tied=dict.fromkeys(range(4), 0), offset_ns=dict.fromkeys(range(4), 0.0))
    together = CrossRank(matching=match(run), clocks=clocks, pairs=match_pairs(run, clocks))
    assert together.pairs.matched == 2
    found = critical_paths(run, {rank: step_windows(timeline) for rank, timeline in ranks.items()}, together)
    (path,) = found.steps
    assert path.parts == {"compute": 60 * MS}
    assert path.ranks == {"0": 60 * MS}


def test_what_the_other_end_did_is_seen_through_its_drifting_clock() -> None:
    """Rank 1's clock gains a thousandth: at 30 ms it shows 30.03."""
    early = rank_of(0, [TIMES["early"]], [(0, 10 * MS, "short"), (40 * MS, 60 * MS, "last")], op="recv")
    late = rank_of(1, [(30_030_000, 40_040_000, 30_030_000)], [(0, 30_030_000, "long")], op="send")
    path = followed(early, late, drift=0.001)
    assert path.parts == pytest.approx({"compute": 50 * MS, "transfer": 10 * MS}, abs=100)
    assert path.ranks == pytest.approx({"0": 30 * MS, "1": 30 * MS}, abs=100)


def test_a_receiver_that_came_last_stays_on_its_rank() -> None:
    late = rank_of(0, [TIMES["late"]], [(0, 30 * MS, "long"), (40 * MS, 60 * MS, "last")], op="recv")
    early = rank_of(1, [TIMES["early"]], [(0, 10 * MS, "short")], op="send")
    path = followed(late, early)
    assert path.parts == {"compute": 50 * MS, "transfer": 10 * MS}
    assert path.ranks == {"0": 60 * MS}


@pytest.mark.slow
def test_a_stage_with_too_much_to_do_holds_the_path_of_a_pipeline() -> None:
    job = Job(layout=Layout(pp=4), microbatches=6, steps=4, seed=1)
    found = shares(plant(job, "stage_imbalance", share=0.25, culprit=1))
    for path in found.steps:
        assert "communication" not in path.parts
        assert path.parts["compute"] > 0.95 * path.length_ns
    middle = next(each for each in found.steps if each.step == found.median_step)
    assert max(middle.ranks, key=middle.ranks.__getitem__) == "1"


@pytest.mark.slow
def test_a_rank_with_too_many_tokens_holds_the_path_of_its_experts() -> None:
    job = Job(layout=Layout(dp=4, ep=4), moe=True, steps=4, seed=1)
    for path in shares(plant(job, "expert_imbalance", share=0.2, culprit=2)).steps:
        assert "communication" not in path.parts
        assert path.ranks["2"] > 0.7 * path.length_ns


def shares(job: Job) -> CriticalPath:
    found = analyzed(job).critical_path
    assert len(found.steps) >= job.steps - 1
    return found
