"""Which ranks are stages of a pipeline."""

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.checks.pipelines.stage_of_ranks import stage_of_ranks
from overlapscope.timeline.dimensions import with_dimensions
from overlapscope.timeline.run import Group
from tests.unit.analysis.checks.pipelines.schedules import pipeline


def test_ranks_that_exchange_messages_with_all_others_are_no_stages():
    """As where each averages its parameters with one other in turn; the first computes longest."""
    run = pipeline([9, 5, 5], 8)
    around = {}
    for rank, each in run.ranks.items():
        table = each.collectives
        peer = np.where(np.arange(table.peer.size) % 2, (rank + 1) % 3, (rank + 2) % 3)
        around[rank] = replace(each, collectives=replace(table, peer=peer, dimension=np.full_like(table.dimension, -1)))
    group = Group(name="g", size=3, ranks=(0, 1, 2))
    ranks = with_dimensions(around, (group,), 3)
    assert stage_of_ranks(replace(run, ranks=ranks, groups=(group,))) == {}
    in_line = with_dimensions(run.ranks, (group,), 3)
    assert stage_of_ranks(replace(run, ranks=in_line, groups=(group,))) == {0: 0, 1: 1, 2: 2}


def test_of_two_ranks_that_exchange_messages_only_those_of_a_pipeline_are_stages():
    """As where two ranks add up gradients by hand: the first computes longer, and no layers can be moved."""
    run = pipeline([9, 5], 8)
    group = Group(name="g", size=2, ranks=(0, 1))
    unnamed = {
        rank: replace(
            each, collectives=replace(each.collectives, dimension=np.full_like(each.collectives.dimension, -1))
        )
        for rank, each in run.ranks.items()
    }
    by_hand = replace(run, ranks=unnamed, groups=(group,))
    assert stage_of_ranks(by_hand) == {}
    found = [each.id for each in analyze(by_hand).findings]
    assert not [each for each in found if each.startswith("uneven_stages")]
    in_order = replace(by_hand, ranks=with_dimensions(unnamed, (group,), 2))
    assert stage_of_ranks(in_order) == {0: 0, 1: 1}


def test_pairs_of_neighbours_with_groups_of_their_own_are_one_pipeline():
    """Its schedule is not that of two stages; pairs that close a ring, or branch, are none."""
    run = pipeline([5, 5, 9], 8)

    def stages(*pairs):
        said = [
            Group(name=str(at), description="PIPELINE", size=len(ranks), ranks=ranks) for at, ranks in enumerate(pairs)
        ]
        return stage_of_ranks(replace(run, groups=tuple(said)))

    assert stages((0, 1), (1, 2)) == {0: 0, 1: 1, 2: 2}
    assert stages((1, 2), (0, 1), (0, 1)) == {0: 0, 1: 1, 2: 2}
    assert stages((0, 1), (2, 3)) == {0: 0, 1: 1, 2: 0, 3: 1}
    assert stages((0, 1), (1, 2), (0, 1, 2)) == {0: 0, 1: 1, 2: 2}
    assert stages((0, 1), (1, 2), (2, 0)) == {}
    assert stages((0, 1), (0, 2)) == {}


def test_the_schedule_of_a_pair_of_stages_is_not_told_where_they_are_a_part_of_more():
    run = pipeline([5, 5], 8)
    alone = replace(run, groups=tuple(replace(each, ranks=(0, 1), description="PIPELINE") for each in run.groups))
    assert any(each.id.startswith("pipeline_") for each in analyze(alone).findings)
    with_next = (*alone.groups, Group(name="next", description="PIPELINE", size=2, ranks=(1, 2)))
    longer = replace(alone, groups=with_next, world_size=3)
    assert not [each.id for each in analyze(longer).findings if each.id.startswith("pipeline_")]
