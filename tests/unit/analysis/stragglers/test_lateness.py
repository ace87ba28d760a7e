"""Blame that is passed on, chance that is ruled out, and kernels that tell slow devices from more work."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.kernels import RankCompute, compared, sum_kernels
from overlapscope.analysis.stragglers.chance import chance_bound, select_disjoint
from overlapscope.analysis.stragglers.lateness import LateArrivals, attribute_blame, late_arrivals
from overlapscope.timeline.run import Group, Run
from tests.property.synthetic import Fault, Job, Layout, run_of, simulate
from tests.property.synthetic.job import MS
from tests.support.rank_rows import rank_timeline

QUIET: dict[str, Any] = {
    "kernel_jitter": 0.0, "rank_jitter": 0.0, "host_jitter": 0.0, "host_rank_jitter": 0.0, "hiccup_chance": 0.0,
    "link_jitter": 0.0, "end_jitter_ns": 0.1, "interference": 1.0, "offsets_ns": 0.0,
}  # fmt: skip
"""Nothing but what is planted."""


def quiet(fault: Fault, **changed: Any) -> Run:
    job = Job(**{"layout": Layout(tp=2, dp=2), "steps": 5, "fault": fault, **QUIET, **changed})
    return run_of(simulate(job))


def blamed(run: Run) -> dict[int, int]:
    return attribute_blame(found_late(run))


def found_late(run: Run) -> list[LateArrivals]:
    found = match_and_align(run)
    coverage = {rank: Coverage.of(timeline.spans) for rank, timeline in run.ranks.items()}
    return late_arrivals(run, (*found.splits, *found.uneven), coverage)


def test_who_waited_for_the_culprit_elsewhere_passes_the_blame_on() -> None:
    # Rank 1 pauses; rank 0, of its tensor group, waits for it and is then late for its own data group, with rank 2.
    run = quiet(Fault(kind="host_stall", culprits=(1,), stall_ns=30 * MS, stall_at=0.5))
    direct = {rank: each.blame_ns for rank, each in match_and_align(run).waits.items()}
    once = dict.fromkeys(run.ranks, 0)
    for each in found_late(run):
        once[each.rank] += int(each.lead_ns.sum())
    found = blamed(run)
    assert direct[0] > 4 * 20 * MS
    assert found[0] < direct[0] / 5  # but for calls that others had queued meanwhile
    assert found[1] > direct[1] + 4 * 20 * MS
    assert sum(found.values()) == pytest.approx(sum(once.values()), rel=0.05)
    assert sum(found.values()) < sum(direct.values())
    assert [each.rank for each in analyze(run).skew.stragglers] == [1]


def test_what_a_rank_waited_for_in_calls_that_could_not_be_paired_is_not_its_own() -> None:
    # With rank 1 missing, nobody is seen to have held rank 0 up: it is late, but had only communicated.
    run = quiet(Fault(kind="host_stall", culprits=(1,), stall_ns=30 * MS, stall_at=0.5))
    part = Run(world_size=4, ranks={rank: run.ranks[rank] for rank in (0, 2)}, groups=run.groups)
    direct = match_and_align(part).waits[0].blame_ns
    assert direct > 4 * 20 * MS
    assert blamed(part)[0] < direct / 5
    assert analyze(part).skew.stragglers == []


@pytest.mark.parametrize(
    ("pause_ns", "flips_ns", "leads"),
    [
        (0, 0, 1),  # one that lasts
        (0, 1_000, 1),
        (500_000, 0, 6),  # ended each time, as both came at once
        (500_000, 1_000, 6),
    ],
)
def test_calls_that_queue_behind_others_end_no_lead(pause_ns: int, flips_ns: int, leads: int) -> None:
    """Rank 1 is 1 ms late to each reduce-scatter, beside compute of both. All-gathers between these begin at once on
    both ranks: which is last there is chance."""
    ranks = {}
    for rank in (0, 1):
        calls = []
        for at in range(6):
            begin = at * 10 * MS
            half, end = begin + 3 * MS, begin + 5 * MS
            known = {"group": "0", "dtype": "float32", "bytes": 1 << 20, "group_size": 2, "step": 0}
            calls += [
                {**known, "op": "reduce_scatter", "seq": 2 * at, "start_ns": begin + rank * MS, "end_ns": half},
                {**known, "op": "all_gather", "seq": 2 * at + 1, "end_ns": end,
                 "start_ns": half + pause_ns + (flips_ns if rank == 0 else 0)},
            ]  # fmt: skip
        calls = [{**each, "launch_ns": 0} for each in calls]
        work = [{"name": "gemm", "start_ns": 0, "end_ns": 70 * MS, "launch_ns": 0, "step": 0}]
        ranks[rank] = rank_timeline(rank, calls=calls, work=work)
    found = found_late(Run(world_size=2, ranks=ranks, groups=(Group(name="0", size=2, ranks=(0, 1)),)))
    assert {each.rank for each in found} == {1}
    assert sum(int(each.lead_ns.sum()) for each in found) == pytest.approx(leads * MS, rel=0.01)


def test_a_hot_expert_is_seen_though_its_exchanges_are_uneven() -> None:
    fault = Fault(kind="expert_imbalance", culprits=(2,), expert_share=2.5)
    layout = Layout(dp=4, ep=4)
    found = analyze(quiet(fault, layout=layout, moe=True, expert_jitter=0.02)).skew.stragglers
    assert [(each.rank, each.held_by) for each in found] == [(2, "more_work")]


@pytest.mark.parametrize("numbered", [True, False])
def test_uneven_exchanges_are_paired_for_who_came_last_and_not_split(numbered: bool) -> None:
    run = quiet(Fault(), layout=Layout(dp=4, ep=4), moe=True, expert_jitter=0.1, numbered=numbered)
    found = match_and_align(run)
    assert sum(each.block.calls for each in found.uneven) > 0
    assert all(each.block.op != "all_to_all" or each.block.bytes is not None for each in found.splits)
    assert not any(each.block.bytes for each in found.uneven)


def test_a_stage_with_more_layers_is_found_and_even_ones_are_not() -> None:
    layout = Layout(pp=2, dp=2)
    fault = Fault(kind="stage_imbalance", culprits=(0, 1), stage=0, stage_layers=1)
    uneven = analyze(quiet(fault, layout=layout, microbatches=2)).findings
    assert [each.id for each in uneven if each.id.startswith("uneven_stages")] == ["uneven_stages:stage0"]
    even = analyze(quiet(Fault(), layout=layout, microbatches=2)).findings
    assert not [each for each in even if each.id.startswith("uneven_stages")]


def _work(run: Run) -> dict[int, RankCompute]:
    return compared({rank: sum_kernels(timeline) for rank, timeline in run.ranks.items()})


def test_kernels_tell_how_much_slower_a_device_is_and_how_much_more_work_it_has() -> None:
    slow = _work(quiet(Fault(kind="slow_compute", culprits=(3,), compute_factor=1.25)))
    assert slow[3].slowness == pytest.approx(1.25, rel=0.01)
    assert slow[3].evenness == pytest.approx(1.0)
    assert slow[3].usual_ns == pytest.approx(slow[0].usual_ns, rel=0.01)
    more = _work(quiet(Fault(kind="longer_batch", culprits=(2, 3), work_factor=1.25)))
    assert more[3].larger > 0.5
    assert more[3].usual_ns > 1.15 * more[0].usual_ns
    assert more[0].slowness == pytest.approx(1.0, rel=0.01)


@given(
    occasions=st.lists(st.integers(1, 9), min_size=1, max_size=7),
    mine=st.lists(st.booleans(), min_size=7, max_size=7),
    ranks=st.integers(2, 4),
)
def test_the_bound_on_chance_is_never_below_the_exact_one(occasions: list[int], mine: list[bool], ranks: int) -> None:
    gathered = sum(each for each, own in zip(occasions, mine, strict=False) if own)
    exact = 0.0
    for given_to in itertools.product([False, True], repeat=len(occasions)):
        if sum(each for each, own in zip(occasions, given_to, strict=True) if own) >= gathered:
            exact += np.prod([1 / ranks if own else 1 - 1 / ranks for own in given_to])
    assert chance_bound(float(gathered), np.array(occasions, float), ranks) >= exact - 1e-9


def test_of_few_occasions_all_ways_are_counted() -> None:
    # All four long ones are needed: one of 3^4 ways; Chernoff's bound alone is 0.058.
    occasions = np.array([27.0, 27.4, 27.8, 26.4, 5.7, 6.4, 3.7, 6.5, 0.4, 0.6, 3.2])
    assert chance_bound(27.0 + 27.4 + 27.8 + 26.4, occasions, 3) == pytest.approx(3**-4, rel=0.1)


def test_the_bound_is_exact_where_all_is_one_ranks() -> None:
    assert chance_bound(15.0, np.full(3, 5.0), 8) == pytest.approx(8**-3, rel=1e-6)


stretches = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 8), st.integers(1, 9)), max_size=7)


@given(stretches)
def test_occasions_are_the_heaviest_that_do_not_overlap(pieces: list[tuple[int, int, int]]) -> None:
    begin, length, weight = (np.array([each[at] for each in pieces], np.int64) for at in range(3))
    end = begin + length
    chosen = select_disjoint(begin, end, weight)
    best = 0
    for rows in itertools.chain.from_iterable(itertools.combinations(range(len(pieces)), n) for n in range(8)):
        ordered = sorted((int(begin[row]), int(end[row])) for row in rows)
        if all(after[0] >= before[1] for before, after in itertools.pairwise(ordered)):
            best = max(best, int(weight[list(rows)].sum()))
    assert int(weight[chosen].sum()) == best
    ordered = sorted((int(begin[row]), int(end[row])) for row in chosen.tolist())
    assert all(after[0] >= before[1] for before, after in itertools.pairwise(ordered))
