"""Random programs, simulated in plain Python: the graph of their trace replays them, and predicts changed ones."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.graph.bounds import whole_bounds
from overlapscope.analysis.graph.building.build import rank_graph, run_graph
from overlapscope.analysis.graph.model import (
    BEGINS,
    HAND_OVER,
    HOST_STRETCH,
    RUN_COMM,
    RUN_COMPUTE,
    TRANSFER,
    WIDE_RANKS,
    Graph,
)
from overlapscope.analysis.graph.removal import with_work_of
from overlapscope.analysis.graph.replay import replay
from overlapscope.analysis.graph.scenarios import (
    Change,
    capped_pauses,
    outcome,
    slack_ns,
)
from overlapscope.analysis.graph.walk import chain, critical_path, shown_binding, shown_links
from overlapscope.timeline.columns import COMM, NONE
from tests.support.graph_programs import (
    CopyBack,
    Launch,
    Operation,
    Program,
    Record,
    Simulated,
    Sync,
    Thread,
    Wait,
    Work,
    simulate,
)
from tests.unit.analysis.graph.graph_changes import earlier_launches, scaled_edges

US = 1_000
FIRST = Launch(0, 10 * US)
"""The device is idle when it comes: it shows the latency of a launch."""

work = st.integers(0, 900).map(lambda us: Work(us * US))
launch = st.builds(Launch, st.integers(0, 2), st.integers(1, 700).map(lambda us: us * US))
sync = st.one_of(
    st.just(Sync()),
    st.integers(0, 2).map(Sync),
    st.builds(CopyBack, st.integers(0, 2), st.integers(1, 50).map(lambda us: us * US)),
)


@st.composite
def event(draw: st.DrawFn) -> list[Operation]:
    name = str(draw(st.integers(0, 10**9)))
    lanes = draw(st.permutations((0, 1, 2)))
    then = draw(st.sampled_from(["stream", "host"]))
    if then == "host":
        return [Record(name, lanes[0]), Work(draw(st.integers(0, 300)) * US), Sync(event=name)]
    return [Record(name, lanes[0]), Wait(name, lanes[1]), Launch(lanes[1], draw(st.integers(1, 500)) * US)]


turn = st.integers(0, 1).flatmap(
    lambda number: work.map(lambda each: [Work(300 * US), Thread(number), replace(each, ns=each.ns + 300 * US)])
)
part = st.one_of(
    st.tuples(work, launch).map(list), st.tuples(work, launch).map(list), sync.map(lambda each: [each]), event(), turn
)
programs = st.lists(part, min_size=1, max_size=25).map(lambda parts: [FIRST, *(op for each in parts for op in each)])


def _graph(simulated: Simulated) -> Graph:
    return run_graph(simulated.run, match_and_align(simulated.run))


def _predicted(graph: Graph, change: Change) -> int:
    window = whole_bounds(graph)
    assert window
    return outcome(graph, window, change).kept_ns


@settings(deadline=None, max_examples=60)
@given(programs)
def test_the_graph_of_a_program_replays_it_exactly_and_its_path_sums_to_its_length(program: Program) -> None:
    for record_syncs in (True, False):
        simulated = simulate({0: program}, record_syncs=record_syncs)
        graph = rank_graph(simulated.rank)
        window = whole_bounds(graph)
        assert window
        assert window.length_ns(graph.nodes.time_ns) == simulated.length_ns
        assert (replay(graph, own_ns=graph.nodes.own_ns) == graph.nodes.time_ns).all()
        # By rules alone, without any time of a node's own but what they explain:
        assert window.length_ns(replay(graph)) == simulated.length_ns
        path = critical_path(graph, window.last(graph.nodes.time_ns), int(graph.nodes.time_ns[window.start].min()))
        assert sum(path.parts.values()) == path.length_ns == simulated.length_ns
        assert path.parts["unknown"] == 0
        for name, (least, most) in path.bands.items():
            assert least <= path.parts[name] <= most


def _walked(graph: Graph, binding: list[int], end: int, since_ns: int) -> list[int]:
    found = []
    while binding[end] >= 0 and graph.nodes.time_ns[end] > since_ns:
        found.append(binding[end])
        end = int(graph.edges.before[binding[end]])
    return found


@settings(deadline=None, max_examples=30)
@given(programs, st.integers(1, 4), st.floats(0, 1))
def test_a_chain_is_the_walk_from_link_to_link(program: Program, times: int, part: float) -> None:
    """Chains of more links than a jump, of fewer, and cut at any moment."""
    graph = rank_graph(simulate({0: program * times}).rank)
    links, binding, time = shown_links(graph), shown_binding(graph).tolist(), graph.nodes.time_ns
    first, last = int(time.min()), int(time.max())
    for since in (first - 1, first + int(part * (last - first)), last):
        for end in range(0, graph.num_nodes, max(graph.num_nodes // 40, 1)):
            assert chain(graph, links, end, since).tolist() == _walked(graph, binding, end, since)


def _scaled_work(program: Program, percent: int) -> list[Operation]:
    return [Work(each.ns * percent // 100) if isinstance(each, Work) else each for each in program]


def _scaled_kernels(program: Program, percent: int) -> list[Operation]:
    return [
        replace(each, ns=each.ns * percent // 100) if isinstance(each, Launch) and each.kind == 0 else each
        for each in program
    ]


@settings(deadline=None, max_examples=80)
@given(programs, st.sampled_from([0, 30, 60, 150, 300]))
def test_longer_and_shorter_kernels_are_predicted(program: Program, percent: int) -> None:
    simulated, changed = simulate({0: program}), simulate({0: _scaled_kernels(program, percent)})
    graph = _graph(simulated)
    predicted = _predicted(graph, scaled_edges(graph, graph.edges.kind == RUN_COMPUTE, percent / 100))
    assert abs(predicted - changed.length_ns) <= _resolution(program)


@settings(deadline=None, max_examples=80)
@given(programs, st.sampled_from([0, 30, 60, 150, 300]))
def test_faster_and_slower_hosts_are_predicted(program: Program, percent: int) -> None:
    """A stretch between two calls is work, and the hand-over from one thread to the other, which does not scale."""
    merged = _merged(program)
    simulated, changed = simulate({0: merged}), simulate({0: _scaled_work(merged, percent)})
    graph = _graph(simulated)
    edges = graph.edges
    handed = edges.kind == HAND_OVER
    fixed = np.where(handed, 30_000, 0)
    host = (edges.kind == HOST_STRETCH) | handed
    lag = np.where(host, fixed + (np.maximum(edges.lag_ns - fixed, 0)) * percent // 100, edges.lag_ns)
    predicted = _predicted(graph, replace(Change.none(graph), lag_ns=lag))
    assert abs(predicted - changed.length_ns) <= _resolution(program)


def _merged(program: Program) -> list[Operation]:
    """Return the program with at most one hand-over between two calls."""
    found: list[Operation] = []
    for each in program:
        since = next((at for at in range(len(found) - 1, -1, -1) if not isinstance(found[at], Work | Thread)), -1)
        if isinstance(each, Thread) and any(isinstance(other, Thread) for other in found[since + 1 :]):
            continue
        found.append(each)
    return found


def _resolution(program: Program) -> int:
    """Return what the recorded constants cannot tell: up to 5 us for each wait, which may bind or not in the change."""
    return 1_000 + 6_000 * sum(isinstance(each, Sync | CopyBack | Thread) for each in program)


member = st.tuples(work, launch, st.integers(0, 400)).map(list)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[dict[int, list[Operation]], dict[str, int], dict[int, int]]:
    ranks, calls = draw(st.integers(2, 3)), draw(st.integers(3, 8))
    waits_after = draw(st.booleans())
    job: dict[int, list[Operation]] = {}
    for rank in range(ranks):
        program: list[Operation] = [FIRST]
        for call in range(calls):
            program += [draw(work), draw(launch.map(lambda each: replace(each, lane=0)))]
            program += [
                Record(f"ready {call}", 0),
                Wait(f"ready {call}", 1),
                Launch(1, 0, COMM, "nccl", f"call {call}"),
            ]
            if waits_after:
                program += [Record(f"done {call}", 1), Wait(f"done {call}", 0)]
            program += [draw(work), draw(launch.map(lambda each: replace(each, lane=0)))]
            if draw(st.booleans()):
                program.append(Sync())
        job[rank] = program
    transfers = {f"call {call}": draw(st.integers(50, 900)) * US for call in range(calls)}
    return job, transfers, {rank: draw(st.integers(0, 2_000)) * US for rank in range(ranks)}


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(jobs(), st.sampled_from([0.0, 0.5, 2.0]))
def test_ranks_wait_for_each_other_and_changed_links_are_predicted(
    job: tuple[Mapping[int, Program], Mapping[str, int], Mapping[int, int]], factor: float
) -> None:
    programs, transfers, begins = job
    simulated = simulate(programs, transfers, begins_ns=begins)
    graph = _graph(simulated)
    window = whole_bounds(graph)
    assert window
    assert graph.edges.kind.tolist().count(TRANSFER) == len(programs) * len(transfers)
    assert abs(window.length_ns(replay(graph)) - simulated.length_ns) <= 1_000
    changed = simulate(programs, {call: int(taken * factor) for call, taken in transfers.items()}, begins_ns=begins)
    transfer = (graph.edges.kind == TRANSFER) | (graph.edges.kind == RUN_COMM)
    predicted = _predicted(graph, scaled_edges(graph, transfer, factor))
    assert abs(predicted - changed.length_ns) <= max(map(_resolution, programs.values()))


pauses = st.one_of(st.integers(0, 300), st.integers(2_000, 9_000)).map(lambda us: Work(us * US))
paused = st.lists(
    st.one_of(st.tuples(pauses, launch).map(list), st.tuples(pauses, launch).map(list), sync.map(lambda each: [each])),
    min_size=1, max_size=20,
).map(lambda parts: [FIRST, *(op for each in parts for op in each)])  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(paused, st.sampled_from([100, 1_000, 3_000]))
def test_capped_pauses_are_predicted(program: Program, cap_us: int) -> None:
    capped = [Work(min(each.ns, cap_us * US)) if isinstance(each, Work) else each for each in program]
    simulated, changed = simulate({0: program}), simulate({0: capped})
    graph = _graph(simulated)
    predicted = _predicted(graph, capped_pauses(graph, cap_us * US))
    assert abs(predicted - changed.length_ns) <= _resolution(program)


@settings(deadline=None, max_examples=60)
@given(programs, st.integers(200, 900), launch, programs)
def test_an_earlier_launch_is_predicted(before: Program, wait_us: int, late: Launch, after: Program) -> None:
    """The kernel's launch and the work before it change places."""
    kernel = replace(late, lane=2, name="late")
    at, by = Work(wait_us * US), Launch(0, US)
    program = [*before, Launch(2, US), by, at, kernel, *after]
    simulated, changed = simulate({0: program}), simulate({0: [*before, Launch(2, US), by, kernel, at, *after]})
    graph = _graph(simulated)
    timeline = simulated.rank
    rows = np.flatnonzero(timeline.spans.name[graph.ranks[0].span_row] == timeline.names.index("late"))
    predicted = _predicted(graph, earlier_launches(graph, graph.ranks[0].starts().start + rows, at.ns))
    assert abs(predicted - changed.length_ns) <= _resolution(program)


@st.composite
def jobs_with_a_straggler(draw: st.DrawFn) -> tuple[dict[int, list[Operation]], dict[str, int]]:
    """Ranks with the same calls and different pauses; rank 0 is slower."""
    calls = draw(st.integers(3, 6))
    job: dict[int, list[Operation]] = {}
    for rank in range(3):
        program: list[Operation] = [FIRST]
        for call in range(calls):
            extra = draw(st.integers(300, 3_000)) * US if not rank else 0
            program += [Work(draw(st.integers(50, 400)) * US + extra), Launch(0, 200 * US)]
            program += [Record(f"ready {call}", 0), Wait(f"ready {call}", 1)]
            program.append(Launch(1, 0, COMM, "nccl", f"call {call}"))
            program += [Record(f"done {call}", 1), Wait(f"done {call}", 0), Launch(0, 100 * US)]
        job[rank] = program
    return job, {f"call {call}": draw(st.integers(50, 300)) * US for call in range(calls)}


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(jobs_with_a_straggler())
def test_a_rank_with_the_host_of_a_peer_is_predicted(job: tuple[dict[int, list[Operation]], dict[str, int]]) -> None:
    programs_of, transfers = job
    simulated = simulate(programs_of, transfers)
    graph = _graph(simulated)
    for peer in (1, 2):
        changed = simulate({**programs_of, 0: programs_of[peer]}, transfers)
        change = with_work_of(graph, {0: peer})
        assert change
        assert abs(_predicted(graph, change) - changed.length_ns) <= 1_000


@settings(deadline=None, max_examples=40)
@given(programs)
def test_a_node_can_be_as_late_as_its_slack_and_no_later(program: Program) -> None:
    graph = rank_graph(simulate({0: program}).rank)
    window = whole_bounds(graph)
    assert window
    slack = slack_ns(graph, window.end)
    value = graph.nodes.time_ns
    last = window.last(value)
    assert slack[last] == 0
    known = np.flatnonzero(slack != NONE)
    assert (slack[known] >= 0).all()
    for node in known[:: max(known.size // 8, 1)].tolist():
        for more, delays in ((0, False), (1_000, True)):
            own = graph.nodes.own_ns.copy()
            own[node] += int(slack[node]) + more
            moved = replace(
                graph.nodes, time_ns=np.where(graph.nodes.gap == BEGINS, value + own - graph.nodes.own_ns, value)
            )
            replayed = replay(replace(graph, nodes=moved), own_ns=own)
            assert bool(replayed[window.end].max() > value[last]) == delays


@pytest.mark.parametrize("late", [0, 1])
def test_a_receive_waits_for_its_send_and_the_other_way_round(late: int) -> None:
    def program(pause_us: int) -> list[Operation]:
        message = Launch(1, 0, COMM, "nccl", "message")
        return [FIRST, Work(pause_us * US), message, Record("done", 1), Wait("done", 0), Launch(0, 50 * US)]

    simulated = simulate({late: program(900), 1 - late: program(100)}, {"message": 200 * US})
    ranks = {}
    for rank, timeline in simulated.run.ranks.items():
        names = tuple(("send", "recv")[rank] if name == "all_reduce" else name for name in timeline.names)
        ranks[rank] = replace(
            timeline, names=names, collectives=replace(timeline.collectives, peer=np.array([1 - rank]))
        )
    run = replace(simulated.run, ranks=ranks)
    graph = run_graph(run, match_and_align(run))
    window = whole_bounds(graph)
    assert window
    assert (graph.edges.kind == TRANSFER).sum() == 2
    assert window.length_ns(replay(graph)) == simulated.length_ns
    together = simulate({0: program(100), 1: program(100)}, {"message": 200 * US})
    assert _predicted(graph, capped_pauses(graph, 100 * US)) == together.length_ns


@settings(deadline=None, max_examples=5)
@given(st.lists(st.tuples(work, launch), min_size=WIDE_RANKS, max_size=WIDE_RANKS + 2))
def test_many_ranks_are_replayed_level_by_level_as_edge_by_edge(parts: list[tuple[Work, Launch]]) -> None:
    call = [
        Record("ready", 0),
        Wait("ready", 1),
        Launch(1, 0, COMM, "nccl", "call"),
        Record("done", 1),
        Wait("done", 0),
    ]
    programs_of = {rank: [FIRST, *part, *call, Launch(0, US), Sync()] for rank, part in enumerate(parts)}
    simulated = simulate(programs_of, {"call": 300 * US})
    graph = _graph(simulated)
    assert graph.levels.size
    assert (graph.edges.kind == TRANSFER).sum() == len(parts)
    for change in (Change.none(graph), scaled_edges(graph, graph.edges.kind == RUN_COMPUTE, 0.5)):
        by_edge = replay(replace(graph, levels=graph.levels[:0]), change.lag_ns)
        assert (replay(graph, change.lag_ns) == by_edge).all()
    window = whole_bounds(graph)
    assert window
    assert window.length_ns(replay(graph)) == simulated.length_ns
