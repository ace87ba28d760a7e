"""Copies on streams of their own cost what the next compute, or the host, waits for; a replay takes them alone away."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.copies.copy_rows import copy_rows
from overlapscope.advice.copies.stream_copies import AWAITED, HOLDS_HOST, ON_STREAM, ROWS
from overlapscope.advice.losses.replayed_losses import instant_copies
from overlapscope.analysis.graph.building.build import rank_graph
from overlapscope.analysis.graph.model import RUN_COPY
from overlapscope.timeline.columns import COPY, RUNTIME, HostSpans, make
from overlapscope.timeline.run import RankTimeline, Run
from tests.support.step_cases import US, Item, Kernel, Sent, made
from tests.unit.advice.test_advice_rules import fired
from tests.unit.analysis.graph.test_rules import trace

PINNED = "Memcpy HtoD (Pinned -> Device)"
PAGEABLE = "Memcpy HtoD (Pageable -> Device)"


def aside(*items: Item, holds: bool = False) -> Run:
    """Return a job whose steps hold these items, with its copies on a stream of their own; with `holds` the calls of
    pageable copies last until the copies end."""
    run = made(lambda _: items)
    return replace(run, ranks={rank: _aside(each, holds=holds) for rank, each in run.ranks.items()})


def _aside(timeline: RankTimeline, *, holds: bool) -> RankTimeline:
    spans = timeline.spans
    copies = np.isin(spans.name, [at for at, name in enumerate(timeline.names) if name.startswith("Memcpy")])
    spans = replace(
        spans,
        kind=np.where(copies, COPY, spans.kind).astype(np.int8),
        lane=np.where(copies, 1, spans.lane),
        correlation=np.arange(1, spans.lane.size + 1),
    )
    rows = np.flatnonzero(copies & holds)
    calls = replace(
        make(HostSpans, rows.size),
        kind=np.full(rows.size, RUNTIME, np.int8),
        lane=np.full(rows.size, 2, np.int64),
        name=np.full(rows.size, len(timeline.names), np.int32),
        correlation=spans.correlation[rows],
        start_ns=spans.launch_ns[rows],
        end_ns=spans.end_ns[rows] + US,
    )
    return replace(timeline, spans=spans, host=calls if holds else timeline.host, names=(*timeline.names, "cudaMemcpy"))


BATCH = Kernel(start=0, end=100, launch=-5, name=PINNED)


def test_a_batch_that_the_first_compute_of_a_step_waits_for_on_another_stream_is_to_be_copied_ahead() -> None:
    found = fired(aside(BATCH, Kernel(start=102, end=900, launch=20)))[AWAITED]
    assert found.title == (
        "Copy the next batch ahead: nothing is computed for 0.1 ms of a 1 ms step beside copies on other streams, "
        "mostly of the batch that a step begins with, as the next compute waits for them"
    )
    assert (found.loss_ns, found.gain_high_ns, found.bound_from) == (100 * US, 100 * US, "loss")
    assert "next(batches)" in found.apply["torch"]
    assert found.evidence[HOLDS_HOST] is False


@pytest.mark.parametrize(
    "others",
    [
        (Kernel(start=112, end=900, launch=108),),  # its launch came after the copy had ended
        (Kernel(start=140, end=900, launch=20),),  # something else kept it
        (Kernel(start=102, end=900, launch=20), Sent(start=40, end=101)),  # as the end of a call did
        (Kernel(start=0, end=95, launch=-4), Kernel(start=102, end=900, launch=20)),  # 5 us alone are not worth it
    ],
)
def test_copies_that_no_compute_waited_for_cost_nothing(others: tuple[Item, ...]) -> None:
    assert AWAITED not in fired(aside(BATCH, *others))


def test_copies_from_pageable_memory_that_hold_the_host_cost_their_time_alone() -> None:
    """The model is launched after the copy, as its call returns only then."""
    items = (Kernel(start=0, end=100, launch=-5, name=PAGEABLE), Kernel(start=112, end=900, launch=108))
    found = fired(aside(*items, holds=True))[AWAITED]
    assert found.title == (
        "Copy from pinned memory: copies from pageable memory, mostly of the batch that a step begins with, which hold "
        "the host until they end, take 0.1 ms of a 1 ms step in which nothing is computed"
    )
    assert found.loss_ns == 100 * US
    assert "pin_memory" in found.apply["torch"]
    assert "upper bound" not in found.assumed[0], "the device may idle until the host launches again"
    assert AWAITED not in fired(aside(*items)), "whether they hold it is not known without the calls"


def test_pageable_copies_of_all_streams_count_where_most_are_on_others() -> None:
    """Of 30 us on the stream that computes and 40 on others; and not the other way round."""
    run = aside(
        Kernel(start=0, end=30, name=PAGEABLE), Kernel(start=40, end=80, name=PAGEABLE), Kernel(start=90, end=900),
        holds=True,
    )  # fmt: skip
    for moved, on_stream, awaited in ((0, 6, 6), (1, 0, 12)):
        timeline = run.ranks[0]
        spans = timeline.spans
        copies = np.flatnonzero(spans.kind == COPY)
        lane = spans.lane.copy()
        lane[copies[1 - moved :: 2]] = 0  # the longer ones, or the shorter ones, are on the stream that computes
        rows = copy_rows(replace(timeline, spans=replace(spans, lane=lane)))
        assert (rows.on_compute_stream.size, rows.awaited.size) == (on_stream, awaited)


KERNELS = 60


@pytest.mark.parametrize(("kernels", "length", "batches"), [(KERNELS, 90, True), (5, 90, False), (KERNELS, 40, False)])
def test_copies_as_long_as_a_batch_that_many_kernels_follow_are_batches(
    kernels: int, length: float, *, batches: bool
) -> None:
    """As of an evaluation, on the stream that computes."""
    many = [Kernel(start=600 + 3 * at, end=603 + 3 * at, launch=20) for at in range(kernels)]
    first = [Kernel(start=102, end=500, launch=20), Kernel(start=500, end=500 + length, launch=21, name="eval")]
    run = aside(BATCH, *first, *many)
    ranks = {}
    for rank, timeline in run.ranks.items():
        copies = timeline.spans.name == timeline.names.index("eval")
        names = tuple(PINNED if each == "eval" else each for each in timeline.names)
        kind = np.where(copies, COPY, timeline.spans.kind).astype(np.int8)
        ranks[rank] = replace(timeline, spans=replace(timeline.spans, kind=kind), names=names)
    found = fired(replace(run, ranks=ranks))[ON_STREAM]
    assert ("next(batches)" in found.apply["torch"]) == batches
    assert ("mostly as long as that of a step's first batch" in found.title) == batches
    assert ("host_tensor" in found.apply["torch"]) != batches


def test_a_replay_takes_away_the_copies_that_are_advised_about_and_no_others() -> None:
    """Lane 0 computes and copies for 20 us; the copy on lane 1 takes 30, and compute waits for it."""
    calls = [("launch", 10.0 * at, 10.0 * at + 2, at + 1) for at in range(4)]
    spans = [(0, 6, 16, 1), (0, 16, 36, 2), (1, 40, 70, 3), (0, 71, 100, 4)]
    plain = trace(calls, spans, kinds={1: COPY, 2: COPY})
    launched = replace(plain.spans, launch_ns=plain.spans.start_ns.min() + (10 * np.arange(4) - 6) * US)
    names = tuple(PINNED if name in ("k1", "k2") else name for name in plain.names)
    timeline = replace(plain, spans=launched, names=names)
    graph = rank_graph(timeline)
    copies, rows = np.flatnonzero(graph.edges.kind == RUN_COPY), copy_rows(timeline)
    changes = {name: instant_copies(graph, {0: timeline}, rows={0: ROWS[name](rows)}) for name in (ON_STREAM, AWAITED)}
    left = {name: sorted((each.lag_ns[copies] // US).tolist()) for name, each in changes.items()}
    assert left == {ON_STREAM: [0, 30], AWAITED: [0, 20]}


@pytest.mark.parametrize(("until", "said"), [(300, True), (130, False)])
def test_time_in_which_the_device_only_copies_is_the_largest_loss_where_no_rule_of_copies_names_it(
    until: float, *, said: bool
) -> None:
    """A copy to pinned memory for which the host waits; the device idles for 120 us of each step."""
    copy = Kernel(start=100, end=until, launch=50, name="Memcpy DtoH (Device -> Pinned)")
    found = fired(aside(copy, Kernel(start=0, end=100), Kernel(start=until + 120, end=1000, launch=until + 110)))
    assert AWAITED not in found
    assert ("copies_alone" in found) == said
    if said:
        title = found["copies_alone"].title
        assert title.startswith("Largest loss: the device only copies for 0.2 ms of a 1 ms step, 100.0 % of it Memcpy")
        assert found["copies_alone"].loss_ns == 200 * US
