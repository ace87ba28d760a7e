"""The graph of runs on CPUs: operations in the order of their threads, collectives on worker threads."""

from typing import Any

import numpy as np
import pytest

from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.graph.building.build import rank_graph
from overlapscope.analysis.graph.exposed import EXPOSED_CAUSES, ExposedPieces, exposed_pieces
from overlapscope.analysis.graph.found_causes import marked_losses
from overlapscope.analysis.graph.model import EDGE_KINDS, Graph
from overlapscope.analysis.graph.rank_causes import rank_causes
from overlapscope.analysis.graph.scenarios import capped_pauses, changed_times
from overlapscope.analysis.graph.walk import binding_edges
from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.columns import COMM, COMPUTE, HOST
from overlapscope.timeline.intervals import Intervals, length
from overlapscope.timeline.run import RankTimeline
from tests.conftest import ROOT, shared_file
from tests.support.rank_rows import rank_timeline
from tests.unit.analysis.graph.graph_figures import GraphFigures, graph_figures

US = 1_000


def rank_of(spans: list[tuple[int, int, float, float, float | None]]) -> RankTimeline:
    """Return a rank of spans (kind, thread, begin, end, moment at which it was begun), in us."""
    rows: list[dict[str, Any]] = [
        {"kind": kind, "lane": lane, "start_ns": round(begin * US), "end_ns": round(end * US),
         "launch_ns": None if moment is None else round(moment * US)}
        for kind, lane, begin, end, moment in spans
    ]  # fmt: skip
    return rank_timeline(spans=rows, lanes=[{"kind": HOST}] * 3, has_device=False)


def graph_of(spans: list[tuple[int, int, float, float, float | None]]) -> Graph:
    return rank_graph(rank_of(spans))


def pieces_of(spans: list[tuple[int, int, float, float, float | None]]) -> ExposedPieces:
    timeline = rank_of(spans)
    graph = rank_graph(timeline)
    return exposed_pieces(graph, graph.ranks[0], timeline, binding_edges(graph))


def edges(graph: Graph) -> set[tuple[str, int, int, int]]:
    """Return (kind, from, to, lag) in us; nodes by their time."""
    time, found = graph.nodes.time_ns // US, graph.edges
    return {
        (EDGE_KINDS[kind], int(time[before]), int(time[node]), int(lag) // US)
        for before, node, kind, lag in zip(
            found.before.tolist(), found.node.tolist(), found.kind.tolist(), found.lag_ns.tolist(), strict=True
        )
    }


def test_operations_follow_each_other_and_begin_collectives_on_the_way() -> None:
    graph = graph_of([(COMPUTE, 0, 0, 100, None), (COMM, 1, 80, 300, 60), (COMPUTE, 0, 110, 200, None)])
    assert {("host", 100, 110, 10), ("compute", 0, 60, 60), ("launch", 60, 80, 20)} <= edges(graph)


def test_an_operation_that_follows_without_a_gap_begins_a_collective_inside_of_it() -> None:
    """As phases in a recording of `events`; an operation without length begins none."""
    graph = graph_of([(COMPUTE, 0, 0, 100, None), (COMPUTE, 0, 100, 200, None), (COMM, 1, 200, 300, 190)])
    assert ("compute", 100, 190, 90) in edges(graph)
    graph = graph_of([(COMPUTE, 0, 0, 100, None), (COMPUTE, 0, 110, 110, None), (COMM, 1, 200, 300, 190)])
    assert ("host", 110, 190, 80) in edges(graph)


def test_a_gap_in_which_a_collective_ended_was_a_wait_for_it() -> None:
    graph = graph_of([(COMPUTE, 0, 0, 100, None), (COMM, 1, 120, 300, 105), (COMPUTE, 0, 330, 400, None)])
    assert {("host", 100, 105, 5), ("sync", 300, 330, 30), ("host", 100, 330, 5)} <= edges(graph)


@pytest.mark.parametrize(("ends", "waited"), [(2350, True), (2640, False)])
def test_a_collective_may_end_shortly_after_who_waited_for_it_goes_on(ends: int, waited: bool) -> None:
    # gloo wakes the waiting thread before it marks the end: here within 15 % of the pause, of 2200 us.
    graph = graph_of([(COMPUTE, 0, 0, 100, None), (COMM, 1, 120, ends, 105), (COMPUTE, 0, 2300, 2400, None)])
    assert ("sync" in {each[0] for each in edges(graph)}) == waited
    assert ("host", 100, 2300, 5 if waited else 2200) in edges(graph)


@pytest.mark.parametrize(
    ("ends", "kind"),
    [
        pytest.param(63_000, "sync", id="4 ms after who waited went on"),
        pytest.param(67_700, "sync", id="9 ms after it: the thread that marks the end had lost its core twice"),
        pytest.param(68_000, "host", id="more than 15 % after it: another call"),
        pytest.param(55_000, "sync", id="4 ms before: its thread had lost its core for a turn"),
        pytest.param(52_000, "host", id="7 ms before: a pause"),
    ],
)
def test_beside_a_long_wait_either_may_lose_its_core_for_a_turn(ends: int, kind: str) -> None:
    """Two ranks on busy cores: a thread stands still for 59 ms, beside an all-reduce."""
    begins = 59_000
    graph = graph_of([(COMPUTE, 0, 0, 100, None), (COMM, 1, 120, ends, 105), (COMPUTE, 0, begins, begins + 100, None)])
    waited = {each[0] for each in edges(graph) if each[2] == begins and each[1] == ends}
    assert waited == ({kind} if kind == "sync" or ends < begins else set())


def test_the_call_that_ended_when_a_thread_went_on_is_awaited_rather_than_one_that_ended_later() -> None:
    graph = graph_of([(COMPUTE, 0, 0, 100, None), (COMM, 1, 120, 58_900, 105), (COMM, 2, 130, 60_000, 110),
                      (COMPUTE, 0, 59_000, 59_100, None)])  # fmt: skip
    assert {each[1] for each in edges(graph) if each[0] == "sync" and each[2] == 59_000} == {58_900}


def test_of_two_calls_whose_ends_were_marked_after_a_thread_went_on_it_had_waited_for_the_first() -> None:
    """As DDP's buckets, one after the other: the second still goes on."""
    graph = graph_of([(COMPUTE, 0, 0, 100, None), (COMM, 1, 120, 59_300, 105), (COMM, 2, 130, 63_000, 110),
                      (COMPUTE, 0, 59_000, 59_100, None)])  # fmt: skip
    assert {each[1] for each in edges(graph) if each[0] == "sync" and each[2] == 59_000} == {59_300}


@pytest.mark.parametrize(
    ("ends", "waited_for"),
    [
        pytest.param(18_000, 18_000, id="5 ms after the thread went on: a turn"),
        pytest.param(18_010, 1_000, id="later: another call"),
    ],
)
def test_of_two_calls_the_second_may_be_marked_a_turn_late(ends: int, waited_for: int) -> None:
    """The first ended at 1 ms, and the thread went on at 13 ms: it was still waiting."""
    graph = graph_of([
        (COMPUTE, 0, 0, 100, None), (COMM, 1, 120, 1_000, 105), (COMM, 2, 130, ends, 110),
        (COMPUTE, 0, 13_000, 20_000, None),
    ])  # fmt: skip
    assert ("sync" if waited_for == ends else "host", waited_for, 13_000) in {each[:3] for each in edges(graph)}


def test_what_a_thread_does_long_after_the_collective_that_it_waited_for_is_its_own_pause() -> None:
    # As DDP with gradients that are views of its buckets, and a sleep of 20 ms between backward and optimizer.
    graph = graph_of([(COMPUTE, 0, 0, 100, None), (COMM, 1, 120, 300, 105), (COMPUTE, 0, 20300, 20400, None)])
    assert {("host", 300, 20300, 20000), ("host", 100, 20300, 5)} <= edges(graph)
    assert "sync" not in {each[0] for each in edges(graph)}
    capped = changed_times(graph, capped_pauses(graph, 3_000 * US))
    assert int(capped.max() - capped.min()) // US == 300 + 3000 + 100


def test_the_pause_before_the_next_collective_is_the_threads_own() -> None:
    graph = graph_of([(COMPUTE, 0, 0, 100, None), (COMM, 1, 110, 900, 105), (COMM, 1, 1320, 1400, 1300)])
    assert {("host", 900, 1300, 400), ("host", 100, 1300, 5)} <= edges(graph)
    assert "sync" not in {each[0] for each in edges(graph)}


@pytest.mark.parametrize("begins", [540, 740])
def test_exposed_time_is_cut_where_the_awaited_one_of_several_collectives_ended(begins: int) -> None:
    # Two collectives run; the next operation waits for the first, which ends at 500, begins 40 or 240 us after it, and
    # the second goes on to 900.
    comms = [(COMM, 1, 110, 500, 102), (COMM, 2, 110, 900, 104)]
    pieces = pieces_of([(COMPUTE, 0, 0, 100, None), *comms, (COMPUTE, 0, begins, begins + 40, None)])
    found = [
        (int(begin) // US, int(end) // US, EXPOSED_CAUSES[cause])
        for begin, end, cause in zip(pieces.start_ns, pieces.end_ns, pieces.cause, strict=True)
    ]
    assert found == [(110, 500, "dependency"), (500, begins, "host_not_ready"), (begins + 40, 900, "tail")]


def test_a_thread_that_begins_the_next_collective_at_once_had_waited_for_the_last_one() -> None:
    # Two small all-reduces, one after the other, and nothing computed between them; the second is begun at 305.
    graph = graph_of([(COMPUTE, 0, 0, 100, None), (COMM, 1, 110, 300, 105), (COMM, 1, 320, 400, 305)])
    assert {("sync", 300, 305, 5), ("host", 100, 305, 5), ("host", 100, 105, 5)} <= edges(graph)


def test_a_thread_that_went_on_for_longer_than_a_collective_took_did_not_wait_for_it_all_the_time() -> None:
    # The first all-reduce takes 0.19 ms; then the host does what has no ranges for 29.7 ms, and begins the second.
    graph = graph_of([(COMPUTE, 0, 0, 100, None), (COMM, 1, 110, 300, 105), (COMM, 1, 30020, 30200, 30000)])
    assert ("host", 100, 30000, 29900) in edges(graph)
    assert not [each for each in edges(graph) if each[0] == "sync"]


def test_a_collective_without_length_was_not_waited_for_before_its_own_call() -> None:
    graph = graph_of([(COMPUTE, 0, 0, 100, None), (COMM, 1, 300, 300, 300), (COMPUTE, 0, 400, 500, None)])
    assert ("host", 100, 300, 200) in edges(graph)


def test_a_collective_that_began_later_was_not_waited_for() -> None:
    graph = graph_of([(COMPUTE, 0, 0, 100, None), (COMPUTE, 0, 330, 400, None), (COMM, 1, 350, 380, 340)])
    assert not [each for each in edges(graph) if each[0] == "sync"]


def test_a_collective_behind_another_on_its_thread_waited_for_it() -> None:
    graph = graph_of([(COMPUTE, 0, 0, 100, None), (COMM, 1, 60, 300, 50), (COMM, 1, 310, 400, 70)])
    assert {("lane", 300, 310, 10), ("launch", 70, 310, 10)} <= edges(graph)


def test_what_a_thread_does_after_a_message_that_does_not_block_follows_no_end_of_it() -> None:
    # Two sends are begun, at 100 and 210, and waited for at 400; the thread computes meanwhile.
    sends = [(COMM, 0, 101, 400, 100), (COMM, 0, 211, 402, 210)]
    computing = [(COMPUTE, 0, 0, 99, None), (COMPUTE, 0, 110, 200, None), (COMPUTE, 0, 220, 390, None)]
    found = edges(graph_of([*computing, *sends, (COMPUTE, 0, 410, 500, None)]))
    assert all(node >= before for _, before, node, _ in found)
    assert {("host", 99, 110, 11), ("host", 200, 220, 20), ("launch", 100, 101, 1)} <= found


@pytest.mark.parametrize(
    ("ends", "awaited"),
    [
        pytest.param(360, False, id="its thread waited for 60 us: it had come before"),
        pytest.param(500, False, id="for 200 us"),
        pytest.param(501, True, id="for longer: the thread waited for it"),
    ],
)
def test_nothing_follows_a_message_that_had_come_before_its_thread_waited_for_it(ends: int, *, awaited: bool) -> None:
    graph = graph_of([
        (COMPUTE, 0, 0, 100, None), (COMM, 0, 110, ends, 105), (COMPUTE, 0, 120, 300, None),
        (COMPUTE, 0, ends + 40, 700, None),
    ])  # fmt: skip
    assert ("host", 300, ends + 40, 5 if awaited else ends - 260) in edges(graph)
    assert (("sync", ends, ends + 40, 40) in edges(graph)) == awaited


@pytest.mark.parametrize(("waits_us", "late"), [(500, False), (501, True)])
def test_beside_a_long_time_in_flight_a_short_wait_decides_nothing(waits_us: int, *, late: bool) -> None:
    """The thread comes to wait 10 ms after the message was begun: up to 0.5 ms are little."""
    ends = 10_110 + waits_us
    graph = graph_of([
        (COMPUTE, 0, 0, 100, None), (COMM, 0, 110, ends, 105), (COMPUTE, 0, 140, 10_110, None),
        (COMPUTE, 0, ends + 40, 20_000, None),
    ])  # fmt: skip
    assert (("sync", ends, ends + 40, 40) in edges(graph)) == late


@pytest.mark.parametrize("waits_us", [60, 400])
def test_all_that_a_message_exposes_has_a_cause(waits_us: int) -> None:
    """Where it had come before, that is the host's time; else the next compute waited for it."""
    ends = 300 + waits_us
    pieces = pieces_of([
        (COMPUTE, 0, 0, 100, None), (COMM, 0, 110, ends, 105), (COMPUTE, 0, 120, 300, None),
        (COMPUTE, 0, ends + 40, 900, None),
    ])  # fmt: skip
    found = {
        cause: int((pieces.end_ns - pieces.start_ns)[pieces.cause == at].sum()) // US
        for at, cause in enumerate(EXPOSED_CAUSES)
        if (pieces.cause == at).any()
    }
    # 10 us before the compute beside it, whose start follows what came before it.
    assert found == ({"host_not_ready": 10 + waits_us} if waits_us == 60 else {"host_not_ready": 10, "dependency": 400})


def test_of_messages_that_a_thread_waits_for_one_after_the_other_only_the_first_may_be_late() -> None:
    graph = graph_of([
        (COMPUTE, 0, 0, 100, None), (COMM, 0, 104, 900, 102), (COMM, 0, 110, 950, 106), (COMPUTE, 0, 140, 300, None),
        (COMPUTE, 0, 960, 1000, None),
    ])  # fmt: skip
    found = edges(graph)
    assert ("sync", 900, 960, 60) in found
    assert not any(before == 950 for kind, before, _, _ in found if kind == "sync")


def test_a_thread_goes_on_where_another_stopped() -> None:
    graph = graph_of([(COMPUTE, 0, 0, 100, None), (COMPUTE, 1, 120, 500, None), (COMPUTE, 0, 530, 600, None)])
    assert {("hand", 100, 120, 20), ("hand", 500, 530, 30), ("host", 100, 530, 0)} <= edges(graph)


@pytest.mark.parametrize("host_events", [True, False])
def test_a_pause_in_which_garbage_was_collected_is_lost_to_the_collector(host_events: bool) -> None:
    """Capture notes at the end of each collection how long it took."""
    spans = [{"kind": COMPUTE, "lane": 0, "start_ns": at * US, "end_ns": (at + 100) * US} for at in (0, 2100)]
    timeline = rank_timeline(
        spans=spans, lanes=[{"kind": HOST}], has_device=False,
        recordings=[{"start_ns": 0, "end_ns": 2200 * US, "host_events": host_events}],
        telemetry=[{"name": "gc_pause_ns", "time_ns": 1800 * US, "value": 1500.0 * US}],
    )  # fmt: skip
    idle = Intervals(np.array([100 * US]), np.array([2100 * US]))
    losses = rank_causes(timeline).host_losses if host_events else marked_losses(idle, timeline)
    assert {each.kind: length(each.when) // US for each in losses} == (
        {"garbage_collection": 1500, "pause": 500} if host_events else {"garbage_collection": 1500}
    )


def answered(found: GraphFigures | None) -> GraphFigures:
    assert found
    assert found.self_test.holds
    assert found.path
    assert sum(found.path.parts_ns.values()) == found.path.length_ns
    for rank in found.ranks:
        assert sum(rank.idle_causes.values()) == rank.idle_ns
        assert sum(rank.exposed_causes.values()) == rank.exposed_ns
        assert "unknown" not in rank.idle_causes
        assert "unknown" not in rank.exposed_causes
    return found


@pytest.mark.parametrize("name", ["baseline", "regressed"])
def test_recorded_runs_over_gloo_are_answered(name: str) -> None:
    run = read_inputs([ROOT / "traces" / name])
    found = answered(graph_figures(run, match_and_align(run)))
    assert found.scenarios
    gains = {each: outcome.gain_ns / outcome.recorded_ns for each, outcome in found.scenarios.items()}
    assert gains["no_communication"] >= gains["instant_transfers"] >= gains["half_transfers"] >= 0
    assert (gains["no_communication"] > 0.1) == (name == "regressed")


def test_fully_sharded_training_over_gloo_waits_for_its_gathers() -> None:
    run = read_inputs([shared_file("gloo_torch2.13")])
    found = answered(graph_figures(run, match_and_align(run)))
    for rank in found.ranks:
        assert rank.exposed_causes["dependency"] > 0.7 * rank.exposed_ns
