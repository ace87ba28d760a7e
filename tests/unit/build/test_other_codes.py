"""Names are stored as numbers, which change in a run directory: no figure and no text may depend on them."""

import msgspec
import numpy as np
import pytest
from msgspec.structs import asdict, replace

from overlapscope.advice.advise import analyze_with_advice
from overlapscope.analysis.compare.kernel_changes import kernel_sums
from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.cross_rank.matching.match import match
from overlapscope.analysis.cross_rank.matching.point_to_point import match_pairs
from overlapscope.analysis.per_rank.interference import interference
from overlapscope.analysis.per_rank.kernels import sum_kernels
from overlapscope.analysis.per_rank.steps import step_windows
from overlapscope.timeline.columns import Collectives, make, recode
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import Group, RankTimeline, Run
from tests.property.synthetic import Job, Layout, run_of, simulate
from tests.support.builders import full_timeline
from tests.unit.analysis.figures.test_interference import recorded

NAMED = ("recordings", "spans", "collectives", "lanes", "annotations", "telemetry")


def renumbered(timeline: RankTimeline) -> RankTimeline:
    """Return the same rank with the codes of its names the other way round."""
    names = NameTable(reversed(timeline.names))
    tables = {name: recode(getattr(timeline, name), timeline.names, names) for name in NAMED}
    return replace(timeline, names=tuple(names.to_list()), **tables)


@pytest.mark.slow
def test_an_analysis_does_not_follow_from_the_numbers_of_names() -> None:
    some = (0, 3, 5, 6, 9, 10, 11)
    run = run_of(simulate(Job(layout=Layout(tp=2, pp=2, dp=4, ep=2), moe=True, recorded=some, steps=2, seed=4)))
    other = replace(run, ranks={rank: renumbered(timeline) for rank, timeline in run.ranks.items()})
    assert msgspec.json.encode(analyze_with_advice(other)) == msgspec.json.encode(analyze_with_advice(run))


def of_two_groups(op: str) -> Run:
    """Return two ranks that call of the group that is named later first."""
    names = ("early in the alphabet", "late in it", op)
    calls = make(
        Collectives, 2, recording=0, group=[0, 1], op=2, seq=1, bytes=8, peer=7, start_ns=[50, 10], end_ns=[60, 20]
    )
    bare = replace(full_timeline(), names=names, collectives=calls)
    groups = tuple(Group(name=name, size=2, ranks=(0, 1)) for name in names[:2])
    return Run(world_size=2, ranks={rank: replace(bare, rank=rank) for rank in (0, 1)}, groups=groups)


def test_groups_are_matched_in_the_order_of_their_first_call() -> None:
    assert [block.group for block in match(of_two_groups("all_reduce")).blocks] == [
        "late in it", "early in the alphabet",
    ]  # fmt: skip


def test_reasons_of_sends_stand_in_the_order_of_their_first_call() -> None:
    first, then = match_pairs(of_two_groups("send"), Clocks()).reasons
    assert "late in it" in first
    assert "early in the alphabet" in then


def test_kernels_stand_in_the_order_of_their_first_span() -> None:
    timeline = next(iter(run_of(simulate(Job(layout=Layout(tp=2), steps=2))).ranks.values()))
    found, other = (asdict(sum_kernels(each)) for each in (timeline, renumbered(timeline)))
    assert len(found["name"]) > 1
    for column, values in found.items():
        np.testing.assert_array_equal(other[column], values)


def test_sums_of_kernels_stand_in_the_order_of_their_first_span() -> None:
    timeline = next(iter(run_of(simulate(Job(layout=Layout(tp=2), steps=2))).ranks.values()))
    found, other = (
        list(kernel_sums(each, step_windows(each)).sums.items()) for each in (timeline, renumbered(timeline))
    )
    assert len(found) > 1
    assert other == found


def test_interference_is_the_same_to_the_last_digit() -> None:
    spans, transfers = recorded(1.3, steps=6, moves=True)
    renamed = replace(spans, name=spans.name.max() - spans.name)
    assert interference(renamed, transfers).value == interference(spans, transfers).value
