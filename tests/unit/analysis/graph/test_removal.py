"""What late ranks are worth: against the generator run again without their excess, and rules of what is said."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.graph.bounds import Bounds, job_bounds
from overlapscope.analysis.graph.removal import (
    RunGraph,
    _relieved_ns,
    answering_graph,
    late_in_step,
    late_together,
    needed,
    of_a_step,
    programs_of,
    removal,
    with_relief,
    with_work_of,
)
from overlapscope.analysis.graph.scenarios import aligned_starts, changed_times
from overlapscope.analysis.graph.walk import begun_late_ns, whole_path
from overlapscope.analysis.stragglers.stragglers import measured_slowdown
from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.columns import COMM
from overlapscope.timeline.run import Run
from tests.property.synthetic import Job, simulate, write_kineto
from tests.property.synthetic.job_faults import draw
from tests.support.graph_programs import Launch, Operation, Sync, Work
from tests.support.graph_programs import simulate as simulate_programs

WITHIN = 0.02


def read(job: Job) -> Run:
    with TemporaryDirectory() as folder:
        write_kineto(simulate(job), Path(folder) / "job")
        return read_inputs([Path(folder) / "job"])


def graph_of(run: Run) -> RunGraph:
    found = answering_graph(run, match_and_align(run))
    assert isinstance(found, RunGraph)
    return found


@cache
def late_pair(seed: int, *, interferes: bool = False) -> tuple[Run, tuple[int, ...], int]:
    """Return a job with two ranks that are late together, who they are, and how long it takes without their excess.

    If communication `interferes`, collectives that wait for a late rank lengthen what the others compute meanwhile.
    """
    planted = draw("late_pair", seed)
    job, healthy = (each if interferes else replace(each, interference=1.0) for each in (planted.job, planted.healthy))
    again = graph_of(read(healthy))
    return (
        read(job),
        job.fault.culprits,
        again.window.length_ns(changed_times(again.graph, aligned_starts(again.graph))),
    )


def is_predicted(seed: int) -> bool:
    run, culprits, healthy_ns = late_pair(seed)
    found = removal(graph_of(run).replayed, culprits, programs_of(run.ranks))
    assert found
    return abs(found.aligned_ns - found.gain_ns - healthy_ns) <= WITHIN * healthy_ns


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_without_their_excess_a_job_takes_what_the_generator_says(seed: int) -> None:
    assert is_predicted(seed)


def is_in_range(seed: int) -> bool:
    run, culprits, healthy_ns = late_pair(seed, interferes=True)
    found = removal(graph_of(run).replayed, culprits, programs_of(run.ranks))
    assert found
    least, most = (found.aligned_ns - each for each in (found.high_ns, found.low_ns))
    return least - WITHIN * healthy_ns <= healthy_ns <= most + WITHIN * healthy_ns


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 4])
def test_where_communication_slows_compute_the_range_holds_what_the_generator_says(seed: int) -> None:
    """The figure itself does not: how much compute is slowed is not known."""
    run, culprits, healthy_ns = late_pair(seed, interferes=True)
    found = removal(graph_of(run).replayed, culprits, programs_of(run.ranks))
    assert found
    assert found.aligned_ns - found.gain_ns > (1 + WITHIN) * healthy_ns
    assert is_in_range(seed)


@pytest.mark.long
def test_where_communication_slows_compute_most_ranges_hold_what_the_generator_says() -> None:
    assert sum(is_in_range(seed) for seed in range(100, 200)) >= 95


@pytest.mark.long
def test_without_their_excess_most_jobs_take_what_the_generator_says() -> None:
    assert sum(is_predicted(seed) for seed in range(100, 200)) >= 95


@pytest.mark.slow
def test_ranks_that_are_late_together_are_worth_much_and_one_of_them_is_worth_nothing() -> None:
    run, culprits, _ = late_pair(0)
    whole, programs = graph_of(run), programs_of(run.ranks)
    assert tuple(late_together(whole.graph, programs)) == culprits
    both = removal(whole.replayed, culprits, programs)
    assert both
    assert both.low_ns > 0.1 * both.aligned_ns
    for rank in culprits:
        one = removal(whole.replayed, [rank], programs)
        assert one
        assert one.high_ns < 0.1 * both.gain_ns


@pytest.mark.slow
def test_an_innocent_is_not_kept_among_the_late() -> None:
    run, culprits, _ = late_pair(0)
    whole, programs = graph_of(run), programs_of(run.ranks)
    innocent = next(rank for rank in run.ranks if rank not in culprits)
    three = removal(whole.replayed, sorted([*culprits, innocent]), programs)
    assert three
    assert needed(whole.replayed, three, programs).ranks == culprits


def test_a_rank_without_a_peer_has_no_removal_value() -> None:
    run, culprits, _ = late_pair(0)
    programs = {**programs_of(run.ranks), culprits[0]: "another"}
    assert removal(graph_of(run).replayed, culprits, programs) is None


@pytest.mark.slow
def test_stragglers_carry_what_they_are_worth_together() -> None:
    run, culprits, _ = late_pair(0)
    found = {each.rank: each for each in analyze(run).skew.stragglers}
    assert tuple(sorted(found)) == culprits
    for rank, each in found.items():
        assert each.late_with == [other for other in culprits if other != rank]
        assert each.no_removal_reason is None
        assert each.removal_ns is not None
        assert each.removal_low_ns is not None
        assert each.removal_high_ns is not None
        assert 0 < each.removal_low_ns <= each.removal_ns <= each.removal_high_ns


@pytest.mark.slow
def test_where_hosts_were_not_recorded_blame_alone_names_a_straggler_and_says_so() -> None:
    job = draw("late_pair", 0).job
    (culprit, _) = job.fault.culprits
    run = read(replace(job, fault=replace(job.fault, culprits=(culprit,))))
    without_host = {
        rank: replace(each, recordings=replace(each.recordings, host_events=each.recordings.host_events & False))
        for rank, each in run.ranks.items()
    }
    (found,) = analyze(replace(run, ranks=without_host)).skew.stragglers
    assert (found.rank, found.removal_ns, found.no_removal_reason) == (culprit, None, "no_host_events")
    (found,) = analyze(run).skew.stragglers
    assert (found.rank, found.late_with, found.no_removal_reason) == (culprit, [], None)
    on_cpu = {rank: replace(each, has_device=False) for rank, each in run.ranks.items()}
    (found,) = analyze(replace(run, ranks=on_cpu)).skew.stragglers
    assert (found.rank, found.removal_ns, found.no_removal_reason) == (culprit, None, "no_device")


@pytest.mark.slow
def test_a_recording_that_is_too_large_to_replay_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    run, _, _ = late_pair(0)
    monkeypatch.setattr("overlapscope.analysis.graph.removal.MOST_SPANS", 1)
    assert {each.no_removal_reason for each in analyze(run).skew.stragglers} <= {"too_large"}
    assert all(each.removal_ns is None for each in analyze(run).skew.stragglers)


@pytest.mark.slow
def test_what_a_step_gains_is_the_mean_over_the_steps_that_all_recorded() -> None:
    run, culprits, _ = late_pair(0)
    whole, programs = graph_of(run), programs_of(run.ranks)
    windows, found = job_bounds(whole.graph, run.ranks), removal(whole.replayed, culprits, programs)
    step = of_a_step(whole, run.ranks, culprits, programs, slowdown=measured_slowdown(run, culprits))
    assert found
    assert step
    taken = [each.length_ns(whole.graph.nodes.time_ns) for each in windows]
    assert step.aligned_ns == pytest.approx(sum(taken) / len(taken), rel=0.02)
    assert 0 < step.low_ns <= step.gain_ns <= step.high_ns
    assert step.gain_ns * len(windows) <= found.gain_ns * 1.02
    assert all(each.evidence["removal_step_ns"][0] == step.gain_ns for each in analyze(run).skew.stragglers)


@pytest.mark.slow
def test_relief_is_sought_from_where_calls_lie_once_nobody_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begun where nothing slows compute, calls lay too early: after a few rounds a job took longer than with waits."""
    run, culprits, _ = late_pair(0, interferes=True)
    whole, programs = graph_of(run), programs_of(run.ranks)
    monkeypatch.setattr("overlapscope.analysis.graph.removal.ROUNDS", 0)
    peer = min(rank for rank in run.ranks if rank not in culprits)
    gone = with_work_of(whole.graph, dict.fromkeys(culprits, peer), aligned_starts(whole.graph))
    assert gone
    assert _relieved_ns(whole.replayed[0], culprits, programs) == (whole.replayed[0].length_ns(gone),) * 2


def test_what_waits_slowed_down_by_as_much_as_was_measured_counts_in_the_value() -> None:
    run, culprits, healthy_ns = late_pair(0, interferes=True)
    whole, programs = graph_of(run), programs_of(run.ranks)
    found = removal(whole.replayed, culprits, programs)
    assert found
    eased = with_relief(whole.replayed, found, programs, draw("late_pair", 0).job.interference)
    assert found.gain_ns < eased.gain_ns <= eased.high_ns
    assert eased.low_ns <= found.low_ns
    assert abs(eased.aligned_ns - eased.gain_ns - healthy_ns) <= WITHIN * healthy_ns
    for unknown in (None, 0.98):
        assert with_relief(whole.replayed, found, programs, unknown).gain_ns == found.gain_ns


def test_the_range_is_as_wide_as_a_replay_may_be_wrong_where_peers_are_alike() -> None:
    run, culprits, _ = late_pair(0)
    whole, programs = graph_of(run), programs_of(run.ranks)
    found = removal(whole.replayed, culprits, programs)
    assert found
    alike = with_relief(whole.replayed, replace(found, low_ns=found.gain_ns, high_ns=found.gain_ns), programs, None)
    assert (alike.low_ns, alike.high_ns) == (round(0.97 * found.gain_ns), round(1.03 * found.gain_ns))


def test_in_each_step_those_are_late_that_end_late_alone() -> None:
    run, culprits, _ = late_pair(0)
    whole = graph_of(run)
    late = [late_in_step(whole.graph, each) for each in job_bounds(whole.graph, run.ranks)]
    assert sum(each == set(culprits) for each in late) > len(late) / 2


def test_a_step_without_communication_gains_no_lag_that_a_rank_carries_into_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three kernels of 3 ms instead of 2, then a sum: the second kernel is a step, that the late rank begins 1 ms later
    than its peers, and ends 2 ms later."""
    kernels = {rank: [Launch(0, (3 if rank == 1 else 2) * 1_000_000)] * 3 for rank in range(3)}
    last: list[Operation] = [Launch(0, kind=COMM, name="ncclDevKernel_AllReduce", call="sum"), Sync()]
    run = simulate_programs({rank: [*own, *last] for rank, own in kernels.items()}, {"sum": 100_000}).run
    whole, programs = graph_of(run), programs_of(run.ranks)
    parts, nodes = whole.graph.ranks, np.arange(whole.graph.nodes.time_ns.size)

    def gain_ns(until: int) -> int:
        start = np.array([nodes[part.starts()][1] for part in parts])
        end = np.array([nodes[part.ends()][until] for part in parts])
        monkeypatch.setattr(
            "overlapscope.analysis.graph.removal.job_bounds",
            lambda *_: [Bounds(step=1, rank=None, start=start, end=end)],
        )
        found = of_a_step(whole, run.ranks, [1], programs)
        assert found
        return found.gain_ns

    assert gain_ns(1) == pytest.approx(1_000_000, rel=0.02)
    assert gain_ns(3) == pytest.approx(3_000_000, rel=0.02), "with the sum it is as long as all wait in it"


def begun_after(silent_ms: tuple[int, ...]) -> RunGraph:
    """Return a job whose hosts make their first calls so long after their recordings began, at one moment."""
    steps = [Launch(0, 5_000_000), Launch(1, kind=COMM, call="sum"), Sync()]
    programs = {rank: [Work(ms * 1_000_000), *steps] for rank, ms in enumerate(silent_ms)}
    return graph_of(simulate_programs(programs, {"sum": 1_000_000}).run)


def test_a_host_that_calls_nothing_when_its_recording_has_begun_is_late_by_that() -> None:
    whole = begun_after((0, 30, 0))
    programs = dict.fromkeys(range(3), 0)
    (late,) = late_together(whole.graph, programs).items()
    assert late == (1, pytest.approx(30_000_000, rel=0.01))
    found = removal(whole.replayed, [1], programs)
    assert found
    assert found.gain_ns == pytest.approx(30_000_000, rel=0.01)
    path = whole_path(whole.graph)
    assert path
    assert path.parts["before_recording"] == 0
    assert path.parts["host"] > 29_000_000


def test_where_no_host_calls_anything_first_or_a_device_is_still_busy_nobody_is_late() -> None:
    assert begun_late_ns(begun_after((30, 40, 35)).graph) == {}
    graph = begun_after((0, 30, 0)).graph
    assert begun_late_ns(graph).keys() == {1}
    time = graph.nodes.time_ns.copy()
    time[graph.ranks[1].starts()] += 1_000_000
    busy = replace(graph, nodes=replace(graph.nodes, time_ns=time))
    assert begun_late_ns(busy) == {}
