"""Bounds and scenarios of a job from one replay: ordered, agreeing with its causes, with an error bar that holds."""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.graph.answers import UNKNOWN, Swap
from overlapscope.analysis.graph.bounds import job_bounds
from overlapscope.analysis.graph.building.build import run_graph
from overlapscope.analysis.graph.job_replay import NO_DEVICE, NO_HOST_EVENTS, UNSEEN, WHY_NOT, JobReplay, job_replay
from overlapscope.analysis.graph.model import OWN_NS
from overlapscope.analysis.graph.removal import programs_of, removal
from overlapscope.analysis.graph.scenarios import (
    capped_pauses,
    instant_transfers,
    without_communication,
)
from overlapscope.analysis.graph.self_test import interval_of, swap_test
from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.columns import COMM
from overlapscope.timeline.run import Run
from overlapscope.whatif.run_replay.answers import run_replay
from overlapscope.whatif.run_replay.transfers import relieved, retimed
from tests.conftest import ROOT, shared_file
from tests.support.graph_programs import CopyBack, Launch, Program, Sync, simulate
from tests.unit.analysis.graph.graph_changes import scaled_transfers
from tests.unit.analysis.graph.graph_figures import graph_figures
from tests.unit.analysis.graph.test_generated_jobs import job
from tests.unit.analysis.graph.test_oracle import jobs, programs
from tests.unit.analysis.graph.test_real_traces import TRACES, run_of
from tests.unit.analysis.graph.test_rules import Called, Ran, trace


def replay_of(run: Run) -> JobReplay:
    found = job_replay(run, match_and_align(run))
    assert isinstance(found, JobReplay), found
    return found


def check_bounds(run: Run) -> None:
    """No scenario of other links beats its bound, and bounds are ordered; a graph that may not answer says why."""
    found = job_replay(run, match_and_align(run))
    if isinstance(found, str):
        assert found in WHY_NOT.values()
        return
    limits = found.limits(without_communication)
    assert 0 <= limits.no_comm <= limits.perfect_overlap <= 1 <= limits.no_overlap
    assert limits.no_comm <= found.share(instant_transfers) <= 1
    last = 0.0
    for factor in (0.1, 0.5, 1.0, 2.0):
        took = found.share(lambda graph, factor=factor: scaled_transfers(graph, factor))  # type: ignore[misc]
        assert max(limits.no_comm, last) <= took
        last = took
        by_shape = retimed(run.ranks, lambda _, own_ns, factor=factor: own_ns * factor)  # type: ignore[misc]
        assert found.share(by_shape) == pytest.approx(took, abs=1e-6)
        eased = found.share(relieved(run.ranks, by_shape, 1.5))
        assert eased <= took if factor < 1 else eased >= took
    assert found.share(lambda graph: scaled_transfers(graph, 1.0)) == 1
    assert found.share(lambda graph: capped_pauses(graph, 100_000)) <= 1
    assert found.share(without_communication, keep_opaque=False) <= limits.no_comm


@settings(deadline=None, max_examples=25)
@given(programs)
def test_no_scenario_of_one_rank_beats_its_bound(program: Program) -> None:
    check_bounds(simulate({0: program}).run)


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(jobs())
def test_no_scenario_of_several_ranks_beats_its_bound(
    drawn: tuple[Mapping[int, Program], Mapping[str, int], Mapping[int, int]],
) -> None:
    made, transfers, begins = drawn
    check_bounds(simulate(made, transfers, begins_ns=begins).run)


@pytest.mark.parametrize("name", [name for name in TRACES if name not in ("mi210", "resnet50")])
def test_no_scenario_of_a_real_trace_beats_its_bound(name: str) -> None:
    if name != "sampled_pair":
        check_bounds(run_of(name))


def one_stream(program: Program, *, host_waits: bool) -> Program:
    """Return a program with all compute on one stream, whose host waits for the device, or never."""
    kept = [each for each in program if host_waits or not isinstance(each, Sync | CopyBack)]
    return [replace(each, lane=0) if isinstance(each, Launch) and each.lane == 2 else each for each in kept]


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.booleans())
def test_without_communication_gains_no_more_than_its_causes_charge_to_it(seed: int, host_waits: bool) -> None:
    """What is exposed while the next compute waits for the host or other work would not be gained.

    Up to a tie for each call: of predecessors that arrive together, either may be said to bind.
    """
    simulated = simulate({0: one_stream(job(seed), host_waits=host_waits)})
    found = job_replay(simulated.run, match_and_align(simulated.run))
    if isinstance(found, str):
        assert found in WHY_NOT.values()
        return
    figures = graph_figures(simulated.run, match_and_align(simulated.run))
    assert figures
    (rank,) = figures.ranks
    behind = sum(rank.exposed_causes.get(cause, 0) for cause in ("host_not_ready", "behind_copy", "behind_compute"))
    calls = int((simulated.rank.spans.kind == COMM).sum())
    gain = found.recorded_ns * (1 - found.share(without_communication))
    assert gain <= rank.exposed_ns - behind + OWN_NS * calls


def test_where_the_host_is_not_ready_nothing_is_gained_by_any_link() -> None:
    found = replay_of(run_of("a100_ddp"))
    limits = found.limits(without_communication)
    assert limits.no_comm == limits.perfect_overlap == 1
    assert found.share(lambda graph: scaled_transfers(graph, 0.5)) == 1
    assert found.exposed_ns(lambda graph: scaled_transfers(graph, 1.0)) * 3 == pytest.approx(39.56e6, rel=0.001)


def test_scenarios_of_steps_are_those_of_the_recording_where_there_is_nothing_else() -> None:
    """The window of megatron_tp8 is one step: an independent simulation takes 288 ms with pauses capped at 3 ms."""
    found = replay_of(run_of("megatron_tp8"))
    taken = found.share(lambda graph: capped_pauses(graph, 3_000_000)) * found.recorded_ns
    assert taken == pytest.approx(288e6, rel=0.01)
    excess = removal(found.replayed, [0], programs_of(run_of("megatron_tp8").ranks))
    assert excess
    assert -0.03 < excess.low_ns / excess.aligned_ns <= excess.high_ns / excess.aligned_ns < 0.03


def with_unexplained_starts() -> Run:
    """Return a rank whose kernels begin long after their launches and each other, for nothing that was recorded."""
    calls: list[Called] = [("cudaLaunchKernel", 10.0 * at, 10.0 * at + 3, at + 1) for at in range(4)]
    spans: list[Ran] = [(0, 5, 50, 1), (0, 900, 950, 2), (0, 2_100, 2_200, 3), (0, 5_000, 5_100, 4)]
    return Run(world_size=1, ranks={0: trace(calls, spans)})


def test_a_graph_that_may_not_answer_says_why() -> None:
    run = run_of("a100_ddp")
    (timeline,) = run.ranks.values()
    older = replace(timeline.recordings, host_events=timeline.recordings.host_events & False)
    without_host = replace(run, ranks={0: replace(timeline, recordings=older)})
    on_cpu = read_inputs([ROOT / "traces/baseline"])
    unseen = read_inputs([shared_file("ascend/msinsight_text_level0")])
    one = with_unexplained_starts()
    reasons = ((without_host, NO_HOST_EVENTS), (on_cpu, NO_DEVICE), (unseen, WHY_NOT[UNSEEN]), (one, WHY_NOT[UNKNOWN]))
    for each, why in reasons:
        assert run_replay(each, match_and_align(each)) == why


# --- the error bar ---------------------------------------------------------------------------------------------------


def swap_of(run: Run) -> Swap:
    graph = run_graph(run, match_and_align(run))
    found = swap_test(graph, run.ranks, job_bounds(graph, run.ranks))
    assert found
    return found


def covered(swap: Swap) -> list[bool]:
    """Return for each swapped step whether it lies in the interval that the swaps of the other steps state."""
    steps = len({step for one, other, _ in swap.errors for step in (one, other)})
    found = []
    for _, predicted, error in swap.errors:
        others = np.array([each for one, other, each in swap.errors if predicted not in (one, other)])
        found.append(abs(error) <= interval_of(others, steps - 1))
    return found


@pytest.mark.slow
def test_the_interval_stated_of_a_swapped_step_covers_nine_in_ten_on_real_traces() -> None:
    swaps = [swap_of(run_of(name)) for name in ("a100_ddp", "a100_rank3of8", "v100_2020", "mi300", "resnet50")]
    swaps += [swap_of(read_inputs([ROOT / "traces" / name])) for name in ("baseline", "regressed")]
    inside = [each for swap in swaps for each in covered(swap)]
    assert len(inside) > 100
    assert 0.85 <= np.mean(inside) <= 0.95
    assert all(np.mean(covered(swap)) >= 0.8 for swap in swaps)
    assert max(each.interval for each in swaps[:2]) < 0.07


def test_all_ranks_are_swapped() -> None:
    """With another rank the error is that of the job's step, not that of the first rank's."""
    run = read_inputs([ROOT / "traces/baseline"])
    both, first = swap_of(run), swap_of(Run(world_size=1, ranks={0: run.ranks[0]}, groups=()))
    assert both.pairs == first.pairs == 30
    assert both.errors != first.errors
    assert {step for one, other, _ in both.errors for step in (one, other)} == set(range(3, 9))


def test_intervals_widen_as_steps_get_few() -> None:
    errors = np.array([0.01, -0.01])
    widths = [interval_of(errors, steps) for steps in (2, 3, 6, 11, 12, 31)]
    assert all(wide > narrow for wide, narrow in pairwise(widths))
    assert interval_of(errors, 10**6) == pytest.approx(0.01645)
