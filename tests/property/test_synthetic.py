"""Jobs that never ran: the model itself keeps its laws, its files say what its columns say, and analysis recovers what
was planted: clocks, waits, bounds, and a sum of causes without remainder."""

from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.columns import COMPUTE, NONE
from overlapscope.timeline.operations import WAITS_FOR_DEVICE
from overlapscope.timeline.run import Run
from tests.property.synthetic import Fault, Job, Layout, plant, run_of, simulate, write_kineto
from tests.property.synthetic.draw import Drawn
from tests.property.synthetic.job import US
from tests.property.synthetic.joined import BEGIN_NS, EPOCH_NS, named_groups
from tests.property.synthetic.judge import RIGHT, accused, judge
from tests.property.synthetic.machine import Simulated
from tests.property.synthetic.sample import load

JOBS = {
    "tensor, pipeline and data": Job(layout=Layout(tp=2, pp=2, dp=2), microbatches=3, steps=3),
    "experts and graphs": Job(layout=Layout(tp=2, dp=4, ep=2), moe=True, graphs=True, steps=3, drift_ppm=8.0),
    "sharded parameters": Job(layout=Layout(dp=4), fsdp=True, steps=3, sync_steps=False),
    "starved and offloading": Job(
        layout=Layout(tp=2, dp=4),
        steps=2,
        fault=Fault(
            cores=3, slice_ns=2e6, start_spread_ns=5e6, offload_ns=1e6, reads=1, read_work_ns=1e5, polling=True
        ),
    ),
    "reductions one by one": Job(
        layout=Layout(tp=2, dp=2), steps=2, fault=Fault(tensors=6, tensor_ns=5e4, churn_ns=2e5)
    ),
}


@pytest.fixture(scope="module", params=JOBS.values(), ids=JOBS.keys())
def simulated(request: pytest.FixtureRequest) -> Simulated:
    return simulate(request.param)


def calls_of(simulated: Simulated) -> dict[Any, list[tuple[int, float, float, float]]]:
    """Return (rank, start, end, transfer) of every member of every collective, in true time."""
    layout = simulated.job.layout
    found: dict[Any, list[tuple[int, float, float, float]]] = defaultdict(list)
    for record in simulated.records:
        for piece in record.pieces:
            call = piece.call
            if call is None or call.peer is not None:
                continue
            for row, rank in enumerate(record.ranks.tolist()):
                group = next(tuple(each) for each in layout.groups(call.dimension).tolist() if rank in each)
                assert piece.transfer is not None
                times = (float(piece.start[row, 0]), float(piece.end[row, 0]), float(piece.transfer[row]))
                found[group, call.dimension, call.number].append((rank, *times))
    return found


def test_no_member_leaves_a_call_before_the_last_has_come_and_the_bytes_are_across(simulated: Simulated) -> None:
    calls = calls_of(simulated)
    assert calls
    for (group, _, _), members in calls.items():
        assert sorted(rank for rank, *_ in members) == sorted(group)
        last = max(start for _, start, _, _ in members)
        for _, _, end, transfer in members:
            assert end >= last + transfer
            assert end - last - transfer < 40 * simulated.job.end_jitter_ns


def test_no_span_begins_before_its_launch_nor_overlaps_another_of_its_stream(simulated: Simulated) -> None:
    for record in simulated.records:
        for row in range(record.ranks.size):
            lanes: dict[str, list[tuple[float, float]]] = defaultdict(list)
            for piece in record.pieces:
                there = np.ones(piece.start.shape[1], bool) if piece.present is None else piece.present[row]
                assert (piece.start[row, there] >= piece.launch[row, there]).all()
                lanes[piece.lane] += zip(piece.start[row, there], piece.end[row, there], strict=True)
            for spans in lanes.values():
                ordered = sorted(spans)
                assert all(after[0] >= before[1] - 1e-3 for before, after in pairwise(ordered))


def test_a_send_and_its_receive_end_together() -> None:
    simulated = simulate(JOBS["tensor, pipeline and data"])
    ends: dict[Any, list[float]] = defaultdict(list)
    for record in simulated.records:
        for piece in record.pieces:
            if piece.call is not None and piece.call.peer is not None:
                for row, rank in enumerate(record.ranks.tolist()):
                    peer = int(piece.call.peer[row])
                    pair = (rank, peer) if piece.call.op == "send" else (peer, rank)
                    ends[pair, piece.call.number].append(float(piece.end[row, 0]))
    assert ends
    assert all(len(each) == 2 and abs(each[0] - each[1]) < 200 * US for each in ends.values())


@pytest.mark.slow
def test_the_files_say_what_the_columns_say(simulated: Simulated, tmp_path: Path) -> None:
    write_kineto(simulated, tmp_path)
    read, built = read_inputs([tmp_path]), run_of(simulated)
    assert read.world_size == built.world_size
    assert {(each.name, each.ranks) for each in read.groups} == {(each.name, each.ranks) for each in built.groups}
    for rank, timeline in built.ranks.items():
        other = read.ranks[rank]
        for table, columns in (
            ("spans", ("start_ns", "end_ns", "kind", "launch_ns", "step", "blocks")),
            (
                "collectives",
                ("start_ns", "end_ns", "launch_ns", "seq", "bytes", "group_size", "step", "peer", "received_bytes"),
            ),
            ("steps", ("step", "start_ns", "end_ns")),
        ):
            mine, theirs = getattr(timeline, table), getattr(other, table)
            by_time = [np.lexsort((each.end_ns, each.start_ns)) for each in (mine, theirs)]
            for column in columns:
                np.testing.assert_array_equal(getattr(mine, column)[by_time[0]], getattr(theirs, column)[by_time[1]])
        waited, read_back = (
            sorted(
                (each.names[name], start, end)
                for name, start, end in zip(
                    each.annotations.name.tolist(),
                    each.annotations.start_ns.tolist(),
                    each.annotations.end_ns.tolist(),
                    strict=True,
                )
                if WAITS_FOR_DEVICE.fullmatch(each.names[name])
            )
            for each in (timeline, other)
        )
        assert waited == read_back
        assert waited


def test_the_same_job_gives_the_same_trace() -> None:
    first, again = (run_of(simulate(JOBS["sharded parameters"])) for _ in range(2))
    np.testing.assert_array_equal(first.ranks[2].spans.end_ns, again.ranks[2].spans.end_ns)


def test_the_kernels_of_a_graph_have_one_launch() -> None:
    spans = run_of(simulate(JOBS["experts and graphs"])).ranks[0].spans
    _, kernels = np.unique(spans.correlation[spans.kind == COMPUTE], return_counts=True)
    assert kernels.max() >= 4


def test_clocks_are_recovered_within_their_residual(simulated: Simulated) -> None:
    job = simulated.job
    clocks = match_and_align(run_of(simulated)).clocks
    assert clocks.residual_ns is not None
    offsets, drifts = job.clocks()
    at = clocks.reference_ns - EPOCH_NS - BEGIN_NS
    for rank, offset in clocks.offset_ns.items():
        planted = offsets[rank] - offsets[0] + (drifts[rank] - drifts[0]) * at
        assert abs(offset - planted) < 3 * clocks.residual_ns + 5 * job.end_jitter_ns


def test_transfers_are_those_of_the_links_and_waits_what_is_left(simulated: Simulated) -> None:
    job, run = simulated.job, run_of(simulated)
    dimensions = {str(name): each.dimension for name, each in ((g.name, g) for g in named_groups(job))}
    truth = calls_of(simulated)
    for each in match_and_align(run).splits:
        numbers = run.ranks[each.block.ranks[0]].collectives.seq[each.block.rows[0]].tolist()
        for at, number in enumerate(numbers):
            members = sorted(truth[each.block.ranks, dimensions[str(each.block.group)], number])
            last = max(start for _, start, _, _ in members)
            assert each.transfer_ns[at] == pytest.approx(members[0][3], abs=40 * job.end_jitter_ns)
            for row, (_, start, _, _) in enumerate(members):
                assert each.wait_ns[row, at] == pytest.approx(last - start, abs=40 * job.end_jitter_ns)


@pytest.mark.slow
def test_causes_add_up_to_exposed_time_in_every_step(simulated: Simulated) -> None:
    for run in (run_of(simulated), some_of(run_of(simulated), (0, 1, 3))):
        analysis = analyze(run)
        windows = [each for rank in analysis.ranks for each in (rank.whole, *rank.steps) if each.window_ns is not None]
        assert windows
        for each in windows:
            assert sum(each.causes.values()) == each.exposed_comm_ns


def some_of(run: Run, ranks: tuple[int, ...]) -> Run:
    return replace(run, ranks={rank: run.ranks[rank] for rank in ranks})


def test_with_missing_ranks_transfers_are_bounds_from_above() -> None:
    simulated = simulate(JOBS["sharded parameters"])
    whole, part = analyze(run_of(simulated)), analyze(some_of(run_of(simulated), (0, 2)))
    assert {each.estimate for each in whole.collectives} == {"matched"}
    assert {each.estimate for each in part.collectives} == {"upper_bound"}
    for row in part.collectives:
        same = next(each for each in whole.collectives if (each.op, each.bytes) == (row.op, row.bytes))
        assert row.transfer_ns_median is not None
        assert same.transfer_ns_median is not None
        assert row.transfer_ns_median >= same.transfer_ns_median
    assert part.run.missing_ranks == [1, 3]


@pytest.mark.slow
def test_without_numbers_calls_are_still_paired() -> None:
    job = replace(JOBS["tensor, pipeline and data"], numbered=False)
    run = run_of(simulate(job))
    assert (run.ranks[0].collectives.seq == NONE).all()
    assert analyze(run).skew.matched == analyze(run_of(simulate(replace(job, numbered=True)))).skew.matched


def test_a_planted_fault_costs_what_was_asked_for() -> None:
    job = Job(layout=Layout(tp=2, dp=4), steps=7)
    for kind in ("slow_compute", "host_stall", "more_kernels"):
        planted = plant(job, kind, share=0.2, culprit=3, seed=1)
        grown = simulate(planted, keep=False).step_ns / simulate(job, keep=False).step_ns - 1
        assert grown == pytest.approx(0.2, rel=0.2)


def test_a_fault_that_a_job_cannot_have_is_refused() -> None:
    with pytest.raises(ValueError, match="experts"):
        plant(Job(layout=Layout(dp=4)), "expert_imbalance", share=0.2)


@pytest.mark.parametrize("drawn", load(), ids=lambda drawn: drawn.job.fault.kind)
def test_of_a_dozen_drawn_jobs_the_culprit_and_the_cause_are_found_and_nobody_else_is_accused(drawn: Drawn) -> None:
    analysis = analyze(run_of(simulate(drawn.job)))
    if drawn.job.fault.kind == "none":
        assert not accused(analysis)
    else:
        assert judge(drawn, analysis) == RIGHT
