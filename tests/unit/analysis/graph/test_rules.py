"""What a host or a span waited for, rule by rule, on small traces whose answer is known."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.graph.answers import HIDDEN_WAITS, UNKNOWN
from overlapscope.analysis.graph.bounds import whole_bounds
from overlapscope.analysis.graph.building.build import rank_graph
from overlapscope.analysis.graph.building.device_waits import _lane_lags, before_on_lane
from overlapscope.analysis.graph.model import (
    ALLOCATE,
    CALL,
    EDGE_KINDS,
    EVENT,
    GAPS,
    HAND_OVER,
    HOST_STRETCH,
    IN_GRAPH,
    LAUNCH,
    OCCUPANCY,
    OCCUPIED,
    ON_LANE,
    OWN_CALL,
    POLL,
    RECORDED,
    SYNC,
    UNEXPLAINED,
    Graph,
    edges_of,
    scan_order,
)
from overlapscope.analysis.graph.replay import replay
from overlapscope.analysis.graph.self_test import causes_failed, hidden_waits_ns
from overlapscope.analysis.graph.walk import whole_path
from overlapscope.timeline.columns import COMM, COMPUTE, COPY, HOST, RUNTIME
from overlapscope.timeline.run import RankTimeline
from tests.support.graph_programs import Launch, Operation, Poll, Record, Sync, Thread, Wait, Work, simulate
from tests.support.rank_rows import rank_timeline

US = 1_000
BEGIN_NS = 1_700_000_000_000_000_000
LANES = (
    {"process": "0", "label": "7"}, {"process": "0", "label": "20"}, {"process": "0", "label": "21"},
    {"kind": HOST, "process": "9", "label": "9"}, {"kind": HOST, "process": "9", "label": "10"},
)  # fmt: skip

Called = tuple[str, float, float, int]
Ran = tuple[int, float, float, int]


def trace(
    calls: list[Called], spans: list[Ran], threads: list[int] | None = None, kinds: dict[int, int] | None = None
) -> RankTimeline:
    """Return a rank from calls (name, begin, end, correlation) and spans (lane, start, end, correlation) in us."""

    def times(begin: float, end: float) -> dict[str, int]:
        return {"start_ns": BEGIN_NS + round(begin * US), "end_ns": BEGIN_NS + round(end * US)}

    lanes = threads or [0] * len(calls)
    host: list[dict[str, Any]] = [
        {**times(begin, end), "name": name, "correlation": correlation, "kind": RUNTIME, "lane": 3 + lane}
        for (name, begin, end, correlation), lane in zip(calls, lanes, strict=True)
    ]
    host.sort(key=lambda row: (row["lane"], row["start_ns"], -row["end_ns"]))
    rows = [
        {
            **times(begin, end),
            "lane": lane,
            "correlation": correlation,
            "kind": (kinds or {}).get(at, COMPUTE),
            "name": f"k{at}",
        }
        for at, (lane, begin, end, correlation) in enumerate(spans)
    ]
    until = max([end for _, _, end, _ in calls] + [end for _, _, end, _ in spans])
    return rank_timeline(spans=rows, lanes=LANES, host=host, recordings=[{**times(0, until), "host_events": True}])


def edges(graph: Graph, kind: int) -> list[tuple[int, int, int]]:
    """Return (predecessor, node, lag in us) of the edges of one kind; predecessors and nodes without their offset."""
    rows = np.flatnonzero(graph.edges.kind == kind)
    return [
        (int(graph.edges.before[row]), int(graph.edges.node[row]), int(graph.edges.lag_ns[row]) // US) for row in rows
    ]


def gap_of(graph: Graph, span: int) -> str:
    return GAPS[graph.nodes.gap[graph.ranks[0].starts()][span]]


def launches(count: int, every: float = 10.0) -> list[Called]:
    return [("cudaLaunchKernel", every * at, every * at + 3, at + 1) for at in range(count)]


def test_a_span_follows_its_launch_and_its_stream() -> None:
    graph = rank_graph(trace(launches(2), [(0, 5, 50, 1), (0, 51, 60, 2)]))
    part = graph.ranks[0]
    assert edges(graph, LAUNCH) == [(0, part.starts().start, 5), (1, part.starts().start + 1, 5)]
    assert edges(graph, ON_LANE) == [(part.ends().start, part.starts().start + 1, 1)]
    assert (replay(graph) == graph.nodes.time_ns).all()


def test_a_span_after_a_long_call_was_submitted_at_its_end() -> None:
    calls = [("cudaLaunchKernel", 0, 3, 1), ("cudaLaunchKernel", 100, 10_357, 2)]
    graph = rank_graph(trace(calls, [(0, 5, 50, 1), (0, 10_359, 10_400, 2)]))
    assert edges(graph, LAUNCH)[1] == (2 + 1, graph.ranks[0].starts().start + 1, 2)


def test_without_a_quick_launch_no_launch_binds() -> None:
    graph = rank_graph(trace(launches(3), [(0, 500, 900, 1), (0, 901, 1300, 2), (0, 1301, 1500, 3)]))
    assert {lag for *_, lag in edges(graph, LAUNCH)} == {6}
    assert gap_of(graph, 1) == gap_of(graph, 2) == "none"


def test_a_driver_call_inside_a_runtime_call_gives_its_spans_to_the_outer_one() -> None:
    calls = [("cudaLaunchKernelExC", 0, 20, 1), ("cuLaunchKernelEx", 4, 12, 2)]
    graph = rank_graph(trace(calls, [(0, 8, 10, 1), (1, 15, 30, 2)]))
    part = graph.ranks[0]
    assert part.calls == 1
    assert part.launched_by.tolist() == [0, 0]


@pytest.mark.parametrize(
    "name", ["cudaDeviceSynchronize", "hipStreamSynchronize", "cuCtxSynchronize", "aclrtSynchronizeStream"]
)
def test_a_synchronisation_waited_for_the_last_span_that_ended_in_it_however_late_it_returned(name: str) -> None:
    calls = [*launches(2), (name, 30, 18_000, 9)]
    graph = rank_graph(trace(calls, [(0, 5, 400, 1), (1, 15, 300, 2)]))
    part = graph.ranks[0]
    assert part.awaited.tolist() == [-1, -1, 0]
    assert (part.ends().start, part.returns().start + 2, 17_600) in edges(graph, SYNC)
    assert edges(graph, CALL)[-1][2] == 5


def test_a_span_launched_after_a_synchronisation_began_is_not_what_it_waited_for() -> None:
    calls = [("cudaLaunchKernel", 0, 3, 1), ("cudaStreamSynchronize", 10, 600, 8), ("cudaLaunchKernel", 20, 23, 2)]
    graph = rank_graph(trace(calls, [(0, 5, 500, 1), (1, 25, 580, 2)], threads=[0, 0, 1]))
    assert graph.ranks[0].awaited.tolist()[:2] == [-1, 0]


def test_a_copy_that_returns_after_its_own_span_blocked_whatever_its_name() -> None:
    calls = [("cudaLaunchKernel", 0, 3, 1), ("cudaMemcpyAsync", 10, 6_609, 2)]
    graph = rank_graph(trace(calls, [(0, 5, 6_590, 1), (0, 6_598, 6_600, 2)], kinds={1: COPY}))
    part = graph.ranks[0]
    assert part.awaited.tolist() == [-1, 1]
    assert edges(graph, SYNC) == [(part.ends().start + 1, part.returns().start + 1, 9)]


def test_a_copy_that_its_own_call_carries_out_has_no_other_cause() -> None:
    calls = [("cudaLaunchKernel", 0, 3, 1), ("cudaMemcpyAsync", 100, 2_170, 2)]
    graph = rank_graph(trace(calls, [(0, 5, 50, 1), (0, 2_000, 2_165, 2)], kinds={1: COPY}))
    assert edges(graph, OWN_CALL) == [(1, graph.ranks[0].starts().start + 1, 1_900)]


@pytest.mark.parametrize(("runs_until", "awaited"), [(900, 0), (2_000, -1)])
def test_freeing_memory_waits_for_the_whole_device_or_for_nothing(runs_until: float, awaited: int) -> None:
    calls = [*launches(2), ("cudaFree", 30, 1_000, 9)]
    graph = rank_graph(trace(calls, [(0, 5, 980, 1), (1, 15, runs_until, 2)]))
    assert graph.ranks[0].awaited.tolist()[-1] == awaited
    assert len(edges(graph, ALLOCATE)) == (1 if awaited < 0 else 0)


def test_a_thread_goes_on_where_another_had_called_last() -> None:
    calls = [*launches(1), ("cudaLaunchKernel", 500, 503, 2), ("cudaLaunchKernel", 1_000, 1_003, 3)]
    graph = rank_graph(trace(calls, [(0, 5, 50, 1), (0, 505, 550, 2), (0, 1_005, 1_050, 3)], threads=[0, 1, 0]))
    handed = edges(graph, HAND_OVER)
    assert sorted(lag for *_, lag in handed) == [497, 497]
    assert graph.edges.lag_ns[graph.edges.kind == 0].tolist() == [0]


def test_an_event_is_the_latest_end_on_another_stream_of_a_span_launched_before() -> None:
    calls = launches(4)
    spans = [(0, 5, 400, 1), (1, 15, 380, 2), (2, 430, 500, 3), (1, 390, 420, 4)]
    graph = rank_graph(trace(calls, spans))
    starts, ends = graph.ranks[0].starts().start, graph.ranks[0].ends().start
    # By start: 0, 1, the one on lane 1 (launched last), the one on lane 2, whose predecessor must be the first.
    assert (ends + 0, starts + 3, 30) in edges(graph, EVENT)
    assert gap_of(graph, 3) == "none"


def test_a_recorded_event_is_kept_and_named_so() -> None:
    program: list[Operation] = [
        Launch(0, 100 * US), Launch(1, 5 * US), Record("e", 0), Wait("e", 1), Launch(1, 20 * US), Work(900 * US),
        Launch(0, US),
    ]  # fmt: skip
    graph = rank_graph(simulate({0: program}).rank)
    assert len(edges(graph, EVENT)) == 1
    assert graph.edges.known[graph.edges.kind == EVENT].tolist() == [RECORDED]
    assert len(edges(rank_graph(simulate({0: program}, record_syncs=False).rank), EVENT)) == 1


def test_a_span_in_the_last_wave_of_another_scales_with_it() -> None:
    graph = rank_graph(trace(launches(2), [(0, 5, 1_005, 1), (1, 900, 1_200, 2)]))
    starts = graph.ranks[0].starts().start
    assert edges(graph, OCCUPANCY) == [(starts, starts + 1, 895)]


def test_a_device_that_is_full_without_a_known_holder_is_opaque() -> None:
    graph = rank_graph(
        trace([*launches(2), ("cudaLaunchKernel", 20, 23, 3)], [(0, 5, 2_005, 1), (1, 15, 16, 2), (1, 900, 1_200, 3)])
    )
    assert gap_of(graph, 2) == GAPS[OCCUPIED]


def test_what_no_rule_names_is_unexplained_and_ends_the_replay_early() -> None:
    graph = rank_graph(trace(launches(2), [(0, 5, 50, 1), (0, 900, 950, 2)]))
    assert gap_of(graph, 1) == GAPS[UNEXPLAINED]
    assert replay(graph).max() < graph.nodes.time_ns.max()
    assert (replay(graph, own_ns=graph.nodes.own_ns) == graph.nodes.time_ns).all()


@pytest.mark.parametrize("recorded", [True, False])
def test_nodes_of_a_replayed_graph_are_opaque(recorded: bool) -> None:
    """Either the nodes share the launch's correlation, or the launch has none and something follows it."""
    if recorded:
        calls = [("cudaGraphLaunch", 0, 20, 1)]
        spans = [(0, 10, 50, 1), (0, 400, 500, 1)]
    else:
        calls = [("cudaLaunchKernel", 0, 3, 1), ("cudaGraphLaunch", 10, 20, 7), ("cudaLaunchKernel", 30, 33, 2)]
        spans = [(0, 5, 50, 1), (0, 800, 900, 2)]
    graph = rank_graph(trace(calls, spans))
    assert gap_of(graph, 1) == GAPS[IN_GRAPH]


def test_spans_without_launches_are_what_the_recording_began_with() -> None:
    graph = rank_graph(trace([("cudaLaunchKernel", 800, 803, 5)], [(0, 5, 50, 1), (0, 200, 300, 2), (0, 805, 900, 5)]))
    assert [gap_of(graph, span) for span in range(3)] == ["begins", "not_launched", "none"]
    assert replay(graph).max() == graph.nodes.time_ns.max()


def test_spans_of_one_stream_that_overlap_follow_each_others_starts() -> None:
    graph = rank_graph(trace(launches(2), [(0, 5, 500, 1), (0, 40, 480, 2)]))
    starts = graph.ranks[0].starts().start
    assert edges(graph, ON_LANE) == [(starts, starts + 1, 0)]


def test_spans_of_no_length_and_ends_recorded_late_are_replayed() -> None:
    spans = [(0, 5, 50, 1), (0, 50, 50, 2), (0, 50, 50, 3), (0, 49, 60, 4)]
    graph = rank_graph(trace(launches(4), spans))
    assert (replay(graph, own_ns=graph.nodes.own_ns) == graph.nodes.time_ns).all()


def test_spans_that_begin_before_their_launch_are_counted() -> None:
    assert rank_graph(trace(launches(2), [(0, 5, 50, 1), (1, 8, 60, 2)])).ranks[0].early_launches == 1


def test_a_rank_without_host_events_has_no_calls_and_only_opaque_starts() -> None:
    graph = rank_graph(
        rank_timeline(work=[{"start_ns": 10 * US, "end_ns": 20 * US}, {"start_ns": 900 * US, "end_ns": 950 * US}])
    )
    assert graph.ranks[0].calls == 0
    assert [gap_of(graph, span) for span in range(2)] == ["begins", "not_launched"]
    assert whole_bounds(rank_graph(rank_timeline())) is None


# --- polls ---


def polling(polls: int, others: int, *, seed: int = 1) -> list[Operation]:
    """Return a program that polls a kernel so often, and makes ordinary pauses beside other kernels."""
    draws = np.random.default_rng(seed)
    parts: list[list[Operation]] = []
    for _ in range(polls):
        parts.append([Launch(0, int(draws.integers(500, 3_000)) * US, name="notify<1, 2>"), Poll()])
    for _ in range(others):
        pause = int(draws.integers(300, 3_000)) * US
        parts.append([Launch(0, int(draws.integers(300, 4_000)) * US, name="gemm"), Work(pause), Sync(0)])
    draws.shuffle(parts)  # type: ignore[arg-type]
    return [
        Launch(0, US),
        *(each for part in parts for each in [*part, Work(20 * US), Launch(0, 10 * US), Work(10 * US)]),
    ]


@pytest.mark.parametrize("polls", [3, 10, 60])
def test_a_host_that_polls_a_kernel_is_found_among_ordinary_pauses(polls: int) -> None:
    graph = rank_graph(simulate({0: polling(polls, 10 * polls)}).rank)
    assert len(edges(graph, POLL)) == polls
    assert {lag for *_, lag in edges(graph, POLL)} == {35}  # the end of what was polled, to the next call


def test_ordinary_pauses_are_no_polls() -> None:
    for seed in range(30):
        assert not edges(rank_graph(simulate({0: polling(0, 60, seed=seed)}).rank), POLL)


def reading(reads: int, *, waits: bool, seed: int = 1) -> list[Operation]:
    """Return a program that copies to the host without blocking, waits for the copy or not, and works for a while."""
    draws = np.random.default_rng(seed)
    program: list[Operation] = [Launch(0, US)]
    for _ in range(reads):
        copy = Launch(0, 5 * US, COPY, "Memcpy DtoH (Device -> Pinned)")
        program += [Launch(0, int(draws.integers(500, 4_000)) * US), copy, *([Poll()] if waits else [])]
        program.append(Work(int(draws.integers(250, 900) if waits else draws.integers(250, 4_000)) * US))
    return [*program, Launch(0, US)]


def test_a_host_that_reads_what_it_copied_has_waited_for_it_though_it_works_before_it_goes_on() -> None:
    for seed in range(10):
        graph = rank_graph(simulate({0: reading(20, waits=True, seed=seed)}).rank)
        assert len(edges(graph, POLL)) == 20
        assert all(lag >= 250 for *_, lag in edges(graph, POLL))


def test_a_host_that_works_while_a_copy_runs_does_not_read_it() -> None:
    for seed in range(50):
        assert not edges(rank_graph(simulate({0: reading(20, waits=False, seed=seed)}).rank), POLL)


@pytest.mark.parametrize(("waits", "share"), [(True, 1.0), (False, 0.0)])
def test_too_few_reads_to_show_that_a_host_waits_leave_its_pauses_doubtful(waits: bool, share: float) -> None:
    """It works for longer than it waited, so that its silences do not end with the copies."""
    program: list[Operation] = [Launch(0, US)]
    for at in range(6):
        copy = Launch(0, 5 * US, COPY, "Memcpy DtoH (Device -> Pinned)")
        program += [
            Launch(0, 1_000 * US),
            copy,
            *([Poll()] if waits else []),
            Work((1_000 if waits else 300 + at) * US),
        ]
    graph = rank_graph(simulate({0: [*program, Launch(0, US), Sync()]}).rank)
    assert not edges(graph, POLL)
    window = whole_bounds(graph)
    assert window
    hosts = np.flatnonzero((graph.edges.kind == HOST_STRETCH) & (graph.edges.lag_ns > 200 * US))
    assert hosts.size == 6
    hidden_ns, long_ns = hidden_waits_ns(graph, hosts)
    assert hidden_ns / long_ns == share


@pytest.mark.parametrize(
    ("lasts_us", "after_us", "hidden"),
    [
        pytest.param(500, 90, True, id="soon after a stream drained"),
        pytest.param(500, 120, False, id="later"),
        pytest.param(50_000, 900, True, id="soon for so long a stretch"),
        pytest.param(50_000, 1_100, False, id="later for it"),
        pytest.param(500_000, 1_900, True, id="as soon for the longest stretch"),
        pytest.param(500_000, 2_100, False, id="later, though for so long a stretch"),
    ],
)
def test_a_stretch_that_ends_soon_after_a_stream_drained_may_be_a_wait(
    lasts_us: int, after_us: int, *, hidden: bool
) -> None:
    program = [Launch(0, lasts_us * US), Work((lasts_us + after_us) * US), Launch(0, US), Sync()]
    graph = rank_graph(simulate({0: program}).rank)
    hosts = np.flatnonzero((graph.edges.kind == HOST_STRETCH) & (graph.edges.lag_ns > 200 * US))
    hidden_ns, long_ns = hidden_waits_ns(graph, hosts)
    assert hosts.size == 1
    assert hidden_ns == (long_ns if hidden else 0)


def test_two_polls_cannot_be_told_from_chance() -> None:
    assert not edges(rank_graph(simulate({0: polling(2, 0)}).rank), POLL)


def test_threads_that_take_turns_are_one_chain() -> None:
    program: list[Operation] = [Launch(0, US), Work(300 * US)]
    for turn in range(6):
        program += [Thread((turn + 1) % 2), Launch(0, 50 * US), Work(400 * US)]
    graph = rank_graph(simulate({0: program}).rank)
    assert len(edges(graph, HAND_OVER)) == 6
    assert all(EDGE_KINDS[kind] != "poll" for kind in graph.edges.kind)


def test_calls_and_spans_of_no_length_that_follow_each_other_in_a_circle_are_in_order_of_time() -> None:
    time_ns = np.array([5, 5, 5, 9], np.int64)
    edges = edges_of(np.array([0, 1, 2, 2]), np.array([1, 2, 0, 3]), CALL, RECORDED, np.zeros(4, np.int64))
    order, kept = scan_order(time_ns, edges)
    assert order.tolist() == [0, 1, 2, 3]
    assert kept.tolist() == [False, False, False, True]


@pytest.mark.parametrize(
    ("host_us", "failed"),
    [pytest.param(4_000, None, id="under a tenth of the path"), pytest.param(7_000, HIDDEN_WAITS, id="more of it")],
)
def test_waits_that_may_be_hidden_forbid_causes_only_where_they_are_a_tenth_of_the_path(
    host_us: int, failed: str | None
) -> None:
    """The only long stretch of the host ends soon after its stream drained."""
    program = [Launch(0, host_us * US), Work((host_us + 50) * US), Launch(0, 50_000 * US), Sync()]
    graph = rank_graph(simulate({0: program}, record_syncs=False).rank)
    assert causes_failed(graph) == failed


QUEUED: list[Called] = [("cudaMemcpyAsync", 0, 3, 1), *(("cudaLaunchKernel", at, at + 3, at) for at in (10, 20, 30))]


@pytest.mark.parametrize(
    ("between", "lane", "failed"),
    [
        pytest.param([], 0, None, id="its stream still ran what was launched before"),
        pytest.param([("cudaStreamSynchronize", 15, 1_000, 2)], 0, UNKNOWN, id="the host waited for the device"),
        pytest.param([], 1, UNKNOWN, id="a stream that begins when the one that computes runs"),
    ],
)
def test_time_behind_work_of_before_the_recording_is_not_unknown(
    between: list[Called], lane: int, failed: str | None
) -> None:
    """The second kernel's stream is not that which computes most, where `lane` is 1."""
    ran: list[Ran] = [(2, 5, 6, 1), (0, 5_000, 6_000, 10), (lane, 6_001, 7_000, 20), (lane, 7_001, 20_000, 30)]
    if lane:
        ran[1:] = [(0, 15, 16_000, 10), (lane, 25_000, 26_000, 20), (lane, 26_001, 27_000, 30)]
    graph = rank_graph(trace([*QUEUED, *between], ran, kinds={0: COPY}))
    assert causes_failed(graph) == failed
    path = whole_path(graph)
    assert path
    before, unknown = (path.parts[part] // US for part in ("before_recording", "unknown"))
    assert (before > 4_900, unknown > 4_900) == ((True, False) if failed is None else (False, True))


@pytest.mark.parametrize(
    ("begins", "failed"),
    [
        pytest.param(5_600, None, id="0.6 of 5.6 ms come after the other stream had ended it"),
        pytest.param(11_000, UNKNOWN, id="6 of 11 ms do"),
    ],
)
def test_streams_end_work_of_before_the_recording_one_after_the_other(begins: int, failed: str | None) -> None:
    """A copy runs as the recording begins. The stream that computes goes on at 5 ms, and another one, whose kernel was
    launched at the begin, too, later and to the end."""
    ran: list[Ran] = [(2, 5, 6, 1), (0, 5_000, 45_000, 10), (1, begins, 44_000, 20), (1, 44_001, 46_000, 30)]
    graph = rank_graph(trace(QUEUED, ran, kinds={0: COPY, 2: COMM, 3: COMM}))
    assert causes_failed(graph) == failed


@pytest.mark.parametrize(("later_ns", "waited"), [(1, True), (2, False)])
def test_what_a_span_waited_for_may_seem_to_end_a_nanosecond_later_as_times_are_rounded(
    later_ns: int, *, waited: bool
) -> None:
    ran: list[Ran] = [(0, 5, 50, 1), (1, 15, 300, 2), (0, 300 - later_ns / US, 400, 3)]
    graph = rank_graph(trace(launches(3), ran, kinds={1: COMM}))
    part = graph.ranks[0]
    events = [each[:2] for each in edges(graph, EVENT)]
    assert events == [(part.ends().start + 1, part.starts().start + 2)] * waited
    assert (gap_of(graph, 2) == "none") == waited


def with_pauses(pauses: list[float]) -> RankTimeline:
    """Return kernels of 10 us that were launched at the beginning, with these pauses in us before all but the first."""
    calls, spans, at = launches(len(pauses) + 1, every=1.0), [], 100.0
    for number, pause in enumerate([0.0, *pauses], start=1):
        at += pause
        spans.append((0, at, at + 10, number))
        at += 10
    return trace([(name, begin, begin + 0.5, number) for name, begin, _, number in calls], spans)


@pytest.mark.parametrize(
    ("pauses", "left"),
    [
        ([90.0, 95.0, 100.0] * 10, 0),  # the stream itself takes so long, as where a profiler reads counters
        ([90.0, 300.0, 800.0] * 10, 30),  # they differ: each waited for something of its own
        ([90.0, 95.0, 100.0] * 3, 9),  # too few
        ([*[90.0, 95.0, 100.0] * 10, 900.0], 1),
    ],
)
def test_a_stream_that_always_pauses_as_long_explains_these_pauses_and_no_others(
    pauses: list[float], left: int
) -> None:
    graph = rank_graph(with_pauses(pauses))
    assert [gap_of(graph, at) for at in range(len(pauses) + 1)].count(GAPS[UNEXPLAINED]) == left


def test_communication_that_waits_for_compute_as_long_each_time_is_no_pause_of_its_stream() -> None:
    """Layers of one length, each gathered beside the next: gaps between gathers are alike, and depend on compute."""
    calls, spans = [], []
    for number in range(30):
        at = 100.0 + 50.0 * number
        calls += [
            ("cudaLaunchKernel", number, number + 0.4, 2 * number),
            ("cudaLaunchKernel", number + 0.5, number + 0.9, 2 * number + 1),
        ]
        spans += [(0, at, at + 49, 2 * number), (1, at + 49, at + 60, 2 * number + 1)]
    made = trace(calls, spans)
    of_comm = np.where(made.spans.lane == made.spans.lane.max(), COMM, made.spans.kind).astype(made.spans.kind.dtype)
    given = replace(made, spans=replace(made.spans, kind=of_comm))
    lags = _lane_lags(given.spans, given.spans.launch_ns, before_on_lane(given.spans.lane))
    assert lags.max() <= US, "the gap of 39 us is none of the stream's"


def test_a_call_that_launches_at_several_moments_is_a_call_at_each() -> None:
    given = trace([("Dequeue@mm", 0, 900, 1), ("Dequeue@add", 950, 990, 2)],
                  [(0, 105, 150, 1), (0, 405, 450, 1), (0, 805, 850, 1), (0, 960, 970, 2)])  # fmt: skip
    moments = BEGIN_NS + np.array([100, 400, 800, 955]) * US
    graph = rank_graph(replace(given, spans=replace(given.spans, launch_ns=moments)))
    part = graph.ranks[0]
    assert (part.calls, part.launched_by.tolist()) == (4, [0, 1, 2, 3])
    assert ((graph.nodes.time_ns[part.begins()] - BEGIN_NS) // US).tolist() == [100, 400, 800, 950]
    assert ((graph.nodes.time_ns[part.returns()] - BEGIN_NS) // US).tolist() == [100, 400, 800, 990]
    assert {gap_of(graph, at) for at in range(1, 4)} == {"none"}
    together = rank_graph(
        replace(given, spans=replace(given.spans, launch_ns=BEGIN_NS + np.array([0, 0, 0, 950]) * US))
    )
    assert together.ranks[0].launched_by.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("second", "lane", "names", "follows"),
    [
        (40, 1, ("HtoD", "HtoD"), True),  # as its launch at 34 says, too: a replay that launches it earlier keeps it
        (22, 1, ("HtoD", "HtoD"), False),  # two engines: they ran at once
        (40, 1, ("HtoD", "DtoH"), False),
        (40, 0, ("HtoD", "HtoD"), False),  # the stream says so
    ],
)
def test_copies_of_one_direction_that_never_ran_at_once_follow_each_other(
    second: float, lane: int, names: tuple[str, str], *, follows: bool
) -> None:
    calls = [("cudaMemcpyAsync", 10.0, 11.0, 1), ("cudaMemcpyAsync", second - 6, second - 5, 2)]
    made = trace(calls, [(0, 16, 30, 1), (lane, second, second + 20, 2)], kinds={0: COPY, 1: COPY})
    named = {f"k{at}": f"Memcpy {name} (Pinned -> Device)" for at, name in enumerate(names)}
    graph = rank_graph(replace(made, names=tuple(named.get(name, name) for name in made.names)))
    ends, starts = graph.ranks[0].ends().start, graph.ranks[0].starts().start
    assert edges(graph, EVENT) == [(ends, starts + 1, 0)] * follows
