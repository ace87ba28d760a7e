"""Waits that did not bind: which stream they were for, by those that did, and by the order of calls."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.graph.building.build import rank_graph
from overlapscope.analysis.graph.model import EVENT, INFERRED, OCCUPANCY, SYNC, Graph
from overlapscope.analysis.graph.walk import binding_edges
from overlapscope.timeline.columns import COMM, COMPUTE, COPY
from tests.support.graph_programs import Launch, Operation, Record, Sync, Wait, Work, simulate
from tests.unit.analysis.graph.test_rules import edges, trace

US = 1_000


def graph_of(program: list[Operation]) -> Graph:
    return rank_graph(simulate({0: [*program, Sync()]}, record_syncs=False).rank)


def awaited(graph: Graph, kind: int = EVENT) -> list[tuple[str, str]]:
    """Return (span that ended, span that began or call that returned) of all edges of a kind, as `stream.place`."""
    (part,) = graph.ranks
    places = [f"{lane}.{(part.span_lane[:at] == lane).sum()}" for at, lane in enumerate(part.span_lane.tolist())]
    found = []
    for before, node, _ in edges(graph, kind):
        to = places[node - part.starts().start] if kind == EVENT else f"call {node - part.returns().start}"
        found.append((places[before - part.ends().start], to))
    return sorted(found)


def reduced(at: int, compute_us: int, *, pause_us: int = 0) -> list[Operation]:
    """A kernel on stream 0, and a collective on stream 1 that waits for it."""
    return [
        Work(20 * US), Launch(0, compute_us * US), Record(f"{at}", 0), Work(pause_us * US), Wait(f"{at}", 1),
        Launch(1, 50 * US, COMM, "nccl"),
    ]  # fmt: skip


def test_a_wait_that_did_not_bind_was_for_the_stream_of_those_that_did() -> None:
    graph = graph_of([*reduced(0, 900), *reduced(1, 900), *reduced(2, 20, pause_us=3_000)])
    assert awaited(graph) == [("0.0", "1.0"), ("0.1", "1.1"), ("0.2", "1.2")]


def test_a_wait_that_was_over_before_the_stream_had_come_so_far_was_for_another() -> None:
    """The third call is launched after a kernel that still runs when it begins: it cannot wait for what came last, but
    for the one after which its event was recorded."""
    program = [*reduced(0, 900), *reduced(1, 900), *reduced(2, 20, pause_us=3_000)]
    program[-2:-2] = [Launch(0, 5_000 * US)]
    assert awaited(graph_of(program)) == [("0.0", "1.0"), ("0.1", "1.1"), ("0.2", "1.2")]
    program[-4:-4] = [Launch(2, US, COPY)]  # before the event, which may be of that stream then
    program[-6], program[-5] = program[-5], program[-6]
    assert ("0.2", "1.2") not in awaited(graph_of(program))


def test_without_a_wait_that_bound_events_are_on_the_stream_that_was_launched_to_last() -> None:
    graph = graph_of([*reduced(0, 20, pause_us=3_000), *reduced(1, 20, pause_us=3_000)])
    assert awaited(graph) == [("0.0", "1.0"), ("0.1", "1.1")]


def test_streams_that_nothing_made_wait_have_no_such_dependency() -> None:
    program = [each for each in [*reduced(0, 900), *reduced(1, 20, pause_us=3_000)] if not isinstance(each, Wait)]
    assert awaited(graph_of([each for each in program if not isinstance(each, Record)])) == []


def test_a_synchronisation_that_returned_at_once_was_for_the_stream_of_those_that_waited() -> None:
    program = [Launch(0, 500 * US), Launch(1, 40 * US), Sync(0), Launch(0, 10 * US), Launch(1, 5 * US)]
    found = awaited(graph_of([*program, Work(500 * US), Sync(0), Launch(0, 10 * US)]), SYNC)
    assert ("0.0", "call 2") in found
    assert ("0.1", "call 5") in found


def test_where_no_synchronisation_waited_its_stream_is_not_known() -> None:
    program = [Launch(0, 50 * US), Launch(1, 40 * US), Work(500 * US), Sync(0), Launch(0, 10 * US)]
    assert [call for _, call in awaited(graph_of(program), SYNC) if call == "call 2"] == []


@pytest.mark.parametrize(("other_us", "is_first"), [(101, True), (99, False)])
def test_of_spans_that_end_together_a_call_waited_for_the_one_before_its_return(other_us: int, is_first: bool) -> None:
    calls = [("cudaLaunchKernel", 0, 3, 1), ("cudaLaunchKernel", 5, 8, 2), ("cudaStreamSynchronize", 10, 100, 3)]
    graph = rank_graph(trace(calls, [(0, 5, 100, 1), (1, 9, other_us, 2)]))
    (part,) = graph.ranks
    assert part.awaited[2] == 0
    assert bool(np.max(part.span_end_ns) == part.span_end_ns[0]) is not is_first


@pytest.mark.parametrize(
    ("wait", "late_us", "waits"),
    [("cudaStreamWaitEvent", 3, True), ("cudaStreamWaitEvent", 4, False), ("cudaEventQuery", 1, False)],
)
def test_a_wait_may_be_for_a_span_whose_end_is_marked_a_little_later(wait: str, late_us: int, *, waits: bool) -> None:
    """A kernel, launched long before, begins just before the recorded end of the collective on the other stream."""
    calls = [
        ("cudaLaunchKernel", 0, 3, 1),
        ("cudaEventRecord", 4, 5, 0),
        (wait, 6, 7, 0),
        ("cudaLaunchKernel", 8, 9, 2),
    ]
    graph = rank_graph(trace(calls, [(1, 5, 500, 1), (0, 500 - late_us, 600, 2)], kinds={0: COMM}))
    assert awaited(graph) == ([("1.0", "0.0")] if waits else [])


def test_what_ended_as_near_before_is_taken_first() -> None:
    calls = [
        *[("cudaLaunchKernel", 10 * at, 10 * at + 3, at + 1) for at in range(2)],
        ("cudaStreamWaitEvent", 21, 22, 0),
    ]
    calls.append(("cudaLaunchKernel", 30, 33, 3))
    graph = rank_graph(trace(calls, [(1, 5, 500, 1), (2, 15, 501, 2), (0, 500, 600, 3)], kinds={0: COMM}))
    assert ("1.0", "0.0") in awaited(graph)


@pytest.mark.parametrize(("steps", "after_us", "stream"), [(5, 2, 0), (5, 30, 2), (3, 2, 2)])
def test_of_ends_as_near_before_that_of_the_stream_is_taken_for_which_its_like_waited(
    steps: int, after_us: int, stream: int
) -> None:
    """In the last step a copy of the next batch ends between the end of a kernel and the start of its collective."""
    calls, spans = [], []
    for step in range(steps):
        at, ends = 1_000 * step, 1_000 * step + 100 + (after_us if step == steps - 1 else 0)
        calls += [("cudaLaunchKernel", at + 20 * each, at + 20 * each + 3, 2 * step + each) for each in (1, 2)]
        spans += [(0, at + 25, at + 100, 2 * step + 1), (1, ends + 3, at + 300, 2 * step + 2)]
    calls.append(("cudaMemcpyAsync", at + 26, at + 28, 99))
    spans.append((2, at + 30, ends, 99))
    kinds = {2 * step + 1: COMM for step in range(steps)} | {2 * steps - 1: COPY, 2 * steps: COMM}
    timeline = trace(calls, sorted(spans, key=lambda each: each[1]), kinds=kinds)
    lane, name = timeline.spans.lane, timeline.spans.name
    spans_alike = replace(timeline.spans, name=np.where(lane == 1, name[lane == 1][0], name).astype(np.int32))
    found = awaited(rank_graph(replace(timeline, spans=spans_alike)))
    waited_for = [before for before, node in found if node == f"1.{steps - 1}"]
    assert waited_for == [f"0.{steps - 1}" if stream == 0 else "2.0"]


@pytest.mark.parametrize(("kind", "holds"), [(COMPUTE, True), (COMM, False)])
def test_communication_fills_no_device(kind: int, *, holds: bool) -> None:
    """A kernel begins in the last wave of another, which explains it where that computes."""
    calls = [("cudaLaunchKernel", 0, 3, 1), ("cudaLaunchKernel", 10, 13, 2)]
    graph = rank_graph(trace(calls, [(0, 5, 1_005, 1), (1, 900, 1_200, 2)], kinds={0: kind}))
    assert bool(edges(graph, OCCUPANCY)) is holds


@pytest.mark.parametrize(
    ("ends_us", "launched_us", "wait", "waits"),
    [
        (118, 15, "cudaStreamWaitEvent", True),
        (120, 15, "cudaStreamWaitEvent", True),  # the end is marked a little late
        (114, 15, "cudaStreamWaitEvent", False),  # it begins later than that
        (118, 105, "cudaStreamWaitEvent", False),  # its launch may have come at any moment of these
        (118, 15, "cudaEventQuery", False),  # nothing shows that the stream waited
    ],
)
def test_a_kernel_waits_for_a_call_as_short_as_jitter_that_ends_as_it_begins(
    ends_us: int, launched_us: int, wait: str, *, waits: bool
) -> None:
    """A kernel ends at 100 us, a collective on another stream runs from then on, and the next kernel of the first
    stream begins at 118 us, as it ends: then these 18 us between kernels are no jitter."""
    calls = [
        ("cudaLaunchKernel", 0, 3, 1),
        ("cudaLaunchKernel", 5, 8, 2),
        (wait, 11, 12, 0),
        ("cudaLaunchKernel", launched_us, launched_us + 3, 3),
    ]
    spans = [(0, 5, 100, 1), (1, 100, ends_us, 2), (0, 118, 200, 3)]
    graph = rank_graph(trace(calls, spans, kinds={1: COMM}))
    assert (("1.0", "0.1") in awaited(graph)) is waits
    bound = binding_edges(graph)[graph.ranks[0].starts().start + 2]
    assert bool(graph.edges.kind[bound] == EVENT) is waits


def test_where_a_recording_names_events_none_is_inferred_from_times() -> None:
    program = [
        Launch(0, 100 * US), Record("0", 0), Wait("0", 1), Launch(1, 18 * US, COMM, "nccl"), Record("1", 1),
        Wait("1", 0), Launch(0, 50 * US),
    ]  # fmt: skip
    graph = rank_graph(simulate({0: [*program, Sync()]}).rank)
    assert awaited(graph) == [("0.0", "1.0"), ("1.0", "0.1")]
    assert not (graph.edges.known[graph.edges.kind == EVENT] == INFERRED).any()
