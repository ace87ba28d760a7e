"""Traces in which anything happens: nothing fails, all lags kept replay the recording, and every sum is exact."""

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.graph.building.build import rank_graph
from overlapscope.analysis.graph.chains import chain_of_span, span_of_moment
from overlapscope.analysis.graph.replay import replay
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.timeline.columns import COMM, COMPUTE, COPY
from overlapscope.timeline.intervals import difference, length, union
from overlapscope.timeline.run import RankTimeline, Run
from tests.property.examples import examples
from tests.unit.analysis.graph.graph_figures import graph_figures
from tests.unit.analysis.graph.test_rules import BEGIN_NS, US, trace

NAMES = (
    "cudaLaunchKernel", "cuLaunchKernel", "cudaMemcpyAsync", "cudaGraphLaunch", "cudaDeviceSynchronize",
    "cudaStreamSynchronize", "cudaMalloc", "cudaFree", "cudaEventQuery", "hipLaunchKernel",
)  # fmt: skip
moment = st.one_of(st.integers(0, 60), st.integers(0, 3_000))
call = st.tuples(st.sampled_from(NAMES), moment, st.one_of(st.just(0), moment), st.integers(1, 14), st.integers(0, 1))
span = st.tuples(
    st.integers(0, 2), moment, st.one_of(st.just(0), moment), st.integers(1, 16), st.sampled_from((COMPUTE, COMM, COPY))
)


@st.composite
def traces(draw: st.DrawFn) -> RankTimeline:
    calls, spans = draw(st.lists(call, max_size=14)), draw(st.lists(span, min_size=1, max_size=14))
    return trace(
        [(name, begin, begin + taken, at) for name, begin, taken, at, _ in calls],
        [(lane, begin, begin + taken, at) for lane, begin, taken, at, _ in spans],
        [thread for *_, thread in calls],
        {at: kind for at, (*_, kind) in enumerate(spans)},
    )


LAUNCHED_LATE = trace(
    [("cudaLaunchKernel", 0, 0, 2), ("cudaLaunchKernel", 23, 23, 1)] + 4 * [("cudaLaunchKernel", 0, 0, 1)],
    [(0, 0, 0, 2), (0, 22, 22, 1)],
    [0, 0, 1, 1, 1, 1],
    {0: COMPUTE, 1: COMPUTE},
)
"""A kernel that is recorded before the last of the calls that may have launched it."""


@examples(200)
@given(traces(), st.integers(-10, 3_100))
@example(LAUNCHED_LATE, 0)
def test_any_trace_has_a_graph_whose_figures_add_up(timeline: RankTimeline, at_us: int) -> None:
    graph = rank_graph(timeline)
    assert (replay(graph, own_ns=graph.nodes.own_ns) == graph.nodes.time_ns).all()
    assert (graph.nodes.own_ns >= 0).all()
    run = Run(world_size=1, ranks={0: timeline})
    found = graph_figures(run, match_and_align(run))
    assert found
    (rank,) = found.ranks
    spans, cover = timeline.spans, Coverage.of(timeline.spans)
    window_ns = int(spans.end_ns.max() - spans.start_ns.min())
    assert rank.idle_ns == sum(rank.idle_causes.values())
    assert rank.idle_ns == window_ns - length(union((spans.start_ns, spans.end_ns)))
    assert rank.exposed_ns == sum(rank.exposed_causes.values()) == length(difference(cover.comm, cover.compute))
    if found.path:
        assert sum(found.path.parts_ns.values()) == found.path.length_ns == window_ns
        for part, (least, most) in found.path.bands_ns.items():
            assert least <= found.path.parts_ns[part] <= most
    for row in {span_of_moment(graph, 0, BEGIN_NS + at_us * US), 0} - {None}:
        links = chain_of_span(graph, {0: timeline}, 0, row)
        for later, earlier in pairwise(links):
            assert earlier.end_ns == later.start_ns
