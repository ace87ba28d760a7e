"""Hosts as far ahead of their device as they may be wait for room; recordings begin amid what they launched."""

import numpy as np
import pytest

from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.graph.building.build import rank_graph
from overlapscope.analysis.graph.model import SYNC, Graph
from overlapscope.analysis.graph.removal import RunGraph, answering_graph, late_together, programs_of, removal
from overlapscope.analysis.graph.walk import whole_path
from overlapscope.timeline.columns import COMM
from tests.support.graph_programs import Launch, Operation, Recorder, Simulated, Sync, Work, simulate

US = 1_000
QUEUE = 200
KERNEL_NS, LAYERS, STEPS, OLD_STEPS = 200 * US, 60, 8, 4


def ahead(launches: int = 400) -> list[Operation]:
    """Return a program whose host has launched all that its queue holds before its device has ended anything."""
    return [each for _ in range(launches) for each in (Launch(0, 2_000 * US), Work(US))] + [Sync()]


def waits(simulated: Simulated) -> int:
    """Return how many edges from spans to calls the graph of the only rank has, but for that of the last call."""
    graph = rank_graph(simulated.rank)
    return int(np.count_nonzero(graph.edges.kind == SYNC)) - 1


def path_share(graph: Graph, part: str) -> float:
    path = whole_path(graph)
    assert path is not None
    return path.parts[part] / path.length_ns


def test_a_launch_waits_for_the_end_that_makes_room_and_the_path_is_that_of_the_device() -> None:
    simulated = simulate({0: ahead()}, queue=QUEUE)
    assert waits(simulated) == 400 - QUEUE
    assert path_share(rank_graph(simulated.rank), "compute") > 0.99


def test_without_a_limit_nothing_waits() -> None:
    assert waits(simulate({0: ahead()})) == 0


@pytest.mark.parametrize(
    ("queue", "launches", "waiting"),
    [
        pytest.param(127, 400, 0, id="fewer than known queues hold"),
        pytest.param(128, 400, 272, id="as many"),
        pytest.param(QUEUE, QUEUE + 4, 0, id="too few long launches"),
        pytest.param(QUEUE, QUEUE + 5, 5, id="enough"),
    ],
)
def test_shallow_queues_and_few_launches_show_nothing(queue: int, launches: int, waiting: int) -> None:
    assert waits(simulate({0: ahead(launches=launches)}, queue=queue)) == waiting


def test_long_launches_at_other_depths_are_pauses_of_the_host() -> None:
    """Their ends have nothing to do with those of kernels."""
    draws = np.random.default_rng(3)
    program: list[Operation] = []
    for at in range(400):
        long = at % 8 == 0
        program += [
            Launch(0, KERNEL_NS, takes_ns=int(draws.integers(60, 400)) * US if long else 3 * US),
            Work(int(draws.integers(10, 120)) * US),
        ]
    assert waits(simulate({0: [*program, Sync()]})) == 0


# --- recordings that begin while devices have work left --------------------------------------------------------------


def job(slow: int | None, *, old_steps: int = OLD_STEPS) -> Simulated:
    """Return four ranks, one of which launches 20 times as slowly; recorded from a step on, its last ones."""

    def program(rank: int) -> list[Operation]:
        found: list[Operation] = []
        for step in range(old_steps + STEPS):
            found += [Recorder()] * (step == old_steps)
            for _ in range(LAYERS):
                found += [Work(400 * US if rank == slow else 20 * US), Launch(0, KERNEL_NS)]
            found.append(Launch(0, kind=COMM, name="ncclDevKernel_AllReduce", call=f"step {step}"))
        return [*found, Sync()]

    transfers = {f"step {step}": 300 * US for step in range(old_steps + STEPS)}
    return simulate({rank: program(rank) for rank in range(4)}, transfers, queue=QUEUE)


def whole(simulated: Simulated) -> RunGraph:
    found = answering_graph(simulated.run, match_and_align(simulated.run))
    assert isinstance(found, RunGraph)
    return found


def test_ranks_whose_devices_lag_ran_the_same_program() -> None:
    run = job(slow=2).run
    assert len({each.collectives.op.size for each in run.ranks.values()}) == 2, "no rank has calls from before"
    assert len(set(programs_of(run.ranks).values())) == 1


def test_a_slow_host_is_late_though_the_devices_of_the_others_have_older_work_left() -> None:
    simulated = job(slow=2)
    assert set(late_together(whole(simulated).graph, programs_of(simulated.run.ranks))) == {2}


def test_without_its_excess_the_recorded_steps_take_what_they_take_without_a_slow_host() -> None:
    simulated = job(slow=2)
    found = removal(whole(simulated).replayed, [2], programs_of(simulated.run.ranks))
    assert found is not None
    # A slow host launches while its device communicates; a fast one waits for its device.
    slow_ns, fast_ns = LAYERS * 403 * US + 3 * US, LAYERS * (KERNEL_NS + US) + 301 * US
    assert found.gain_ns == pytest.approx(STEPS * (slow_ns - fast_ns), rel=0.001)
    assert found.low_ns == pytest.approx(found.gain_ns, rel=0.02)
