"""Faults of whole jobs in the generator: they keep its laws, cost what they should, and vanish when removed."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.result import Analysis, Recommendation
from tests.property.synthetic import Fault, Job, Layout, simulate, write_kineto
from tests.property.synthetic.cores import Cores
from tests.property.synthetic.evaluate_job_faults import analyzed
from tests.property.synthetic.job import MS, US
from tests.property.synthetic.job_faults import EXPECTED, FREE, LEAST, MOST, Planted, draw, judge, shares
from tests.property.synthetic.judge import ABSTAINED, RIGHT, WRONG
from tests.property.synthetic.record import COMPUTE, COPY

JOB = Job(layout=Layout(dp=4), steps=3, layers=2)
STARVED = Job(layout=Layout(tp=2, dp=4), steps=3, fault=Fault(cores=3, slice_ns=2 * MS))


@pytest.fixture(scope="module", params=EXPECTED)
def planted(request: pytest.FixtureRequest) -> Planted:
    return draw(request.param, 3)


def test_a_drawn_fault_costs_its_share_and_the_twin_has_none(planted: Planted) -> None:
    assert planted.healthy.fault.kind == "none"
    assert replace(planted.job, fault=planted.healthy.fault) == planted.healthy
    grown = simulate(planted.job, keep=False).step_ns / simulate(planted.healthy, keep=False).step_ns - 1
    assert planted.kind in FREE or LEAST <= grown <= MOST


@pytest.mark.slow
def test_a_drawn_job_gives_the_same_files_again(planted: Planted, tmp_path: Path) -> None:
    jobs = (replace(each.job, recorded=(0,)) for each in (planted, draw(planted.kind, 3)))
    first, again = (write_kineto(simulate(job), tmp_path / str(at))[0] for at, job in enumerate(jobs))
    assert first.read_bytes() == again.read_bytes()


@pytest.mark.slow
def test_what_decides_a_healthy_step_adds_up_to_it(planted: Planted) -> None:
    found = shares(planted.healthy)
    assert found.host + found.compute + found.link == pytest.approx(1, abs=0.12)


@pytest.mark.parametrize(
    "harmless",
    [Fault(start_spread_ns=0), Fault(reads=1), Fault(cores=64, slice_ns=MS), Fault(kind="unrecorded", unrecorded=True)],
    ids=["starts", "reads without work", "a core each", "no graphs"],
)
def test_a_fault_without_strength_changes_no_kernel(harmless: Fault) -> None:
    plain, with_fault = (
        {
            (name, round(end - start, 3))
            for record in simulate(replace(JOB, fault=fault)).records
            for piece in record.pieces
            if piece.kind == COMPUTE
            for name, start, end in zip(piece.names, piece.start[0], piece.end[0], strict=True)
        }
        for fault in (Fault(), harmless)
    )
    assert plain == with_fault


def test_as_many_hosts_run_as_there_are_cores_at_all_times() -> None:
    cores = Cores(STARVED, np.arange(8))
    assert {cores.running(at) for at in np.linspace(0.3 * MS, 90 * MS, 400).tolist()} == {3}


def test_a_host_has_run_for_as_long_as_its_work_took() -> None:
    cores = Cores(STARVED, np.arange(8))
    work = np.tile(np.linspace(0.01 * MS, 30 * MS, 50), (8, 1))
    at = cores.wall(work)
    assert (at >= work).all()
    for column in range(work.shape[1]):
        np.testing.assert_allclose(cores.ran(at[:, column]), work[:, column], atol=1e-3)
    total = cores.ran(np.full(8, 60 * MS)).sum()
    assert total == pytest.approx(3 * 60 * MS)


def test_no_call_of_a_starved_host_overlaps_its_next_one() -> None:
    often = replace(STARVED, kernels_each=4, fault=replace(STARVED.fault, slice_ns=0.05 * MS))
    for record in simulate(often).records:
        begun = np.concatenate([piece.launch for piece in record.pieces], axis=1)
        returned = np.concatenate([piece.returned for piece in record.pieces], axis=1)
        assert (begun[:, 1:] >= returned[:, :-1]).all()
        assert (returned - begun).max() > 0.05 * MS, "no host lost its core within a call"


def test_a_host_that_polls_goes_on_when_its_copy_is_there() -> None:
    job = replace(JOB, fault=Fault(reads=1, read_work_ns=0.3 * MS, polling=True))
    for record in simulate(job).records:
        launches = np.concatenate([piece.launch for piece in record.pieces], axis=1)
        copies = [piece for piece in record.pieces if piece.kind == COPY and "DtoH" in piece.names[0]]
        assert len(copies) == job.steps * job.layers * 2
        for piece in copies:
            ends = piece.end[0, 0]
            assert launches[0][launches[0] > piece.launch[0, 0]].min() >= ends


def test_freeing_waits_for_the_device() -> None:
    for record in simulate(replace(JOB, fault=Fault(churn_ns=0.5 * MS))).records:
        freed = [(begun[0], returned[0]) for name, begun, returned in record.calls if name == "cudaFree"]
        assert len(freed) == JOB.steps * JOB.layers * 2
        ends = np.concatenate([piece.end[0] for piece in record.pieces])
        launches = np.concatenate([piece.launch[0] for piece in record.pieces])
        for begun, returned in freed:
            assert ends[launches < begun].max() <= returned


def test_kernels_of_unrecorded_graphs_are_missing_and_their_launches_are_there(tmp_path: Path) -> None:
    job = replace(JOB, graphs=True, recorded=(0,))
    texts = [
        write_kineto(simulate(replace(job, fault=Fault(unrecorded=hidden))), tmp_path / str(hidden))[0].read_text()
        for hidden in (False, True)
    ]
    launches, kernels = ([text.count(what) for text in texts] for what in ('"cudaGraphLaunch"', '"cat":"kernel"'))
    assert launches[0] == launches[1] > 0
    assert kernels[0] > kernels[1] > 0


def test_reductions_one_by_one_come_after_backward_and_move_the_same_bytes() -> None:
    job = replace(JOB, fault=Fault(tensors=4, tensor_ns=50 * US))
    for record in simulate(job).records:
        calls = [piece for piece in record.pieces if piece.call is not None and piece.call.dimension == "dp"]
        assert len(calls) == job.steps * job.layers * 4
        moved = sum(piece.call.sent[0] for piece in calls if piece.call is not None)
        assert moved == pytest.approx(job.steps * job.layers * job.layer_bytes)


def test_a_kernel_without_payload_holds_the_wait_that_the_exchange_had() -> None:
    healthy = Job(layout=Layout(dp=4, ep=4), moe=True, expert_kernels=True, expert_jitter=0.3, steps=2)
    waits = []
    for fault in (Fault(), Fault(notify=True)):
        pieces = [piece for record in simulate(replace(healthy, fault=fault)).records for piece in record.pieces]
        exchanges = [piece for piece in pieces if piece.call is not None and piece.call.op == "all_to_all"]
        waits.append(sum(float(piece.start.max() - piece.start.min()) for piece in exchanges))
    assert waits[1] < 0.2 * waits[0]


def test_pauses_that_are_capped_make_a_job_shorter_and_move_nothing_else() -> None:
    paused = replace(JOB, layout=Layout(tp=4), hiccup_chance=0.01, hiccup_ns=4 * MS)
    free = replace(paused, hiccup_cap_ns=0.0)
    assert simulate(free, keep=False).step_ns < simulate(paused, keep=False).step_ns
    never = replace(paused, hiccup_cap_ns=1e12)
    assert simulate(never, keep=False).step_ns == simulate(paused, keep=False).step_ns
    of_kernels = [
        np.concatenate(
            [piece.end - piece.start for piece in simulate(each).records[0].pieces if piece.kind == COMPUTE], 1
        )
        for each in (paused, free)
    ]
    np.testing.assert_allclose(of_kernels[0], of_kernels[1], atol=1e-3)


@pytest.mark.slow
def test_the_judge_knows_right_from_wrong_and_from_silence() -> None:
    planted = draw("offload_copies", 3)
    said = analyzed(planted.job)

    def with_advice(*ids: str) -> Analysis:
        return replace(said, recommendations=[advice(each) for each in ids])

    assert judge(planted, with_advice("copies_on_compute_stream"))[0] == RIGHT
    assert judge(planted, with_advice("bucket_cap"))[0] == ABSTAINED
    assert judge(planted, with_advice("copies_on_compute_stream", "launch_bound"))[0] == WRONG


def advice(kind: str) -> Recommendation:
    return Recommendation(
        id=kind, title="", verdict="change", predicted_gain_ns=None, gain_low_ns=None, gain_high_ns=None,
        confidence="assumed", memory_bytes=None, changes_numerics=False, apply={}, verify="",
    )  # fmt: skip


@pytest.mark.slow
def test_the_critical_path_holds_what_decides_a_healthy_step(planted: Planted) -> None:
    if planted.healthy.expert_kernels:
        pytest.skip("sizes and groups of these calls are not recorded: waits stay on the path")
    steps = analyzed(planted.healthy).critical_path.steps
    length = sum(each.length_ns for each in steps)
    decided = shares(planted.healthy)
    for part, share in (("compute", decided.compute), ("host", decided.host), ("transfer", decided.link)):
        assert sum(each.parts.get(part, 0) for each in steps) / length == pytest.approx(share, abs=0.1), part
