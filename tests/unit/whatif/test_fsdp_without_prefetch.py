"""A recording of FSDP that gathers nothing ahead in backward, with copies on side streams: its replay, and its changes
against what the changed job takes."""

from typing import Any

import pytest
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.timeline.columns import HOST
from overlapscope.timeline.run import Group, Run
from overlapscope.whatif.replay.graph import Busy, Call, Graph, Item, LateEnd, MutualSlowdown, graph_job
from overlapscope.whatif.replay.replay import Launch, Wait, replay
from overlapscope.whatif.step_graph.fsdp_changes import gathers_of, grouped, not_resharded, prefetched
from overlapscope.whatif.step_graph.recorded_graph import recorded_graphs
from tests.support.builders import EPOCH_NS
from tests.support.graph_cases import fsdp, recorded
from tests.support.rank_rows import rank_timeline

US = 1000
PERIOD = 1450
"""A step in us, from its first gather to the next one's."""
STEPS = 4
CALLS = [
    ("all_gather", "forward", 0, 100), ("all_gather", "forward", 100, 200), ("all_gather", "forward", 200, 300),
    ("all_gather", "backward", 300, 400),
    ("reduce_scatter", "backward", 500, 600), ("all_gather", "backward", 600, 700),
    ("reduce_scatter", "backward", 900, 1000), ("all_gather", "backward", 1000, 1100),
    ("reduce_scatter", "backward", 1300, 1400),
]  # fmt: skip
OPTIMIZER = (1400, 1450)
COMPUTE = [(100, 160), (200, 260), (300, 400), (400, 500), (700, 900), (1100, 1300), OPTIMIZER]
COPIES = [(600, 601), (1000, 1001)]
"""What was reduced, copied on a side stream beside the next gather."""
IN_NEITHER_PASS = [
    ("all_gather", "forward", 0, 100), ("all_gather", "forward", 200, 300), ("all_gather", "forward", 400, 500),
    ("all_gather", "backward", 600, 700), ("reduce_scatter", "backward", 800, 900),
    ("all_gather", "backward", 900, 1000), ("reduce_scatter", "backward", 1100, 1200),
    ("all_gather", "backward", 1200, 1300), ("reduce_scatter", "backward", 1400, 1500),
]  # fmt: skip
"""The calls of a step in which each gather begins when the compute before it has ended, in forward, too ..."""
BETWEEN = [(100, 200), (300, 400), (500, 600), (700, 800), (1000, 1100), (1300, 1400), (1500, 1550)]
"""... and its compute."""
CAST = (905, 906)
"""What the next step's gathers will send, cast on a side stream long before; its host launches it after the optimizer
began."""


def without_prefetch(*, in_forward: bool = False) -> Run:
    """Return the recording of the only recorded rank of two; `in_forward` gathers nothing ahead there either."""
    sent, computed, copies = (IN_NEITHER_PASS, BETWEEN, []) if in_forward else (CALLS, COMPUTE, COPIES)
    period = computed[-1][1]
    calls: list[dict[str, Any]] = []
    work: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for step in range(STEPS):

        def when(start: float, end: float, launch: float | None = None, step: int = step) -> dict[str, int]:
            times = {"start_ns": start, "end_ns": end} | ({} if launch is None else {"launch_ns": launch})
            return {name: EPOCH_NS + round((step * period + at) * US) for name, at in times.items()}

        begins = sorted([start for *_, start, _ in sent] + [start + 0.5 for start, _ in (*computed, *copies)])
        launches = {at: max(min(at - 250, 850 + 0.1 * n), 0.01 * n - 1) for n, at in enumerate(begins)}
        for op, phase, start, end in sent:
            calls.append({"op": op, "phase": phase, "group": "g", "bytes": 1 << 24, "group_size": 2, "step": step,
                          "seq": len(calls), **when(start, end, launches[start])})  # fmt: skip
        for start, end in (*computed, *copies):
            work.append({**when(start, end, launches[start + 0.5]), "step": step, "lane": 2 * ((start, end) in copies)})
        work.append({**when(*CAST, 890), "step": step, "lane": 2})
        annotations.append(
            {"name": "Optimizer.step#AdamW.step", "lane": 3, **when(launches[computed[-1][0] + 0.5] - 0.01, 889)}
        )
        steps.append({**when(-2, 895), "step": step})
    timeline = rank_timeline(
        calls=calls, work=work, steps=steps, annotations=annotations,
        recordings=[{"start_ns": EPOCH_NS - 100 * US, "end_ns": EPOCH_NS + (STEPS + 1) * period * US}],
        lanes=[{"label": f"stream {at}"} for at in range(3)] + [{"kind": HOST, "label": "training"}],
    )  # fmt: skip
    return Run(world_size=2, ranks={0: timeline}, groups=(Group(name="g", size=2, ranks=(0, 1)),))


def graphs() -> tuple[Graph, ...]:
    run = without_prefetch()
    return recorded_graphs(run, match_and_align(run)).graphs


def step_us(graph: Graph) -> float:
    return replay(graph_job(graph, MutualSlowdown())).step_ns / US


def test_a_step_takes_as_long_as_the_next_one_begins_later() -> None:
    assert [each.measured_ns / US for each in graphs()] == [PERIOD] * STEPS
    assert [step_us(each) for each in graphs()] == pytest.approx([PERIOD] * STEPS, rel=0.01)


def test_copies_on_side_streams_make_no_layer_wait_for_what_is_reduced() -> None:
    graph = graphs()[1]
    # Ahead: the second layer computes when the third has, beside its reduce-scatter; so does the first.
    assert step_us(prefetched(graph, "backward", 1)) == pytest.approx(PERIOD - 400, rel=0.01)
    assert step_us(not_resharded(graph)) == pytest.approx(PERIOD - 400, rel=0.01)


def _apart(graph: Graph) -> Graph:
    """Return the step whose two ranks make calls of their own, in a group of each: two replicas."""
    many = len(graph.calls)

    def own(call: Call, rank: int) -> Call:
        return replace(call, ranks=(rank,), group=f"{rank}", stream=f"{rank}", link=f"{rank}")

    def moved(each: Item) -> Item:
        if isinstance(each, LateEnd):
            return replace(each, collective=each.collective + many)
        return type(each)(each.collective + many) if isinstance(each, Launch | Wait) else each

    return replace(
        graph,
        calls=tuple(own(each, rank) for rank in (0, 1) for each in graph.calls),
        programmes={0: graph.programmes[0], 1: tuple(map(moved, graph.programmes[1]))},
    )


def test_a_setting_is_one_of_the_ranks_of_all_groups() -> None:
    made = recorded(fsdp())
    together = recorded_graphs(made, match_and_align(made)).graphs[0]
    changes = (
        not_resharded,
        lambda graph: prefetched(graph, "forward", 1),
        lambda graph: grouped(graph, 2, 500_000.0),
    )
    for changed in changes:
        assert step_us(changed(together)) < step_us(together)
        assert step_us(changed(_apart(together))) == pytest.approx(step_us(changed(together)), rel=1e-3)


@pytest.mark.parametrize(("depth", "ahead", "on_time"), [(0, False, True), (1, True, False), (2, True, False)])
def test_a_gather_that_no_rank_waits_for_stays_where_it_was_launched(depth: int, ahead: bool, on_time: bool) -> None:
    """The second is never waited for: it is no module ahead of which, or behind which, another is launched."""
    graph, busy = graphs()[1], Busy(ns=100.0, beside_ns=0.0)
    (first, second, third, *_), scatter = gathers_of(graph).forward, Launch(gathers_of(graph).scatters[0])
    items = (Launch(first), Wait(first), busy, Launch(second), busy, Launch(third), Wait(third), busy, scatter)
    moved = prefetched(replace(graph, programmes={0: items}), "forward", depth).programmes[0]
    expected = (
        Launch(first), Wait(first), *[Launch(third)] * ahead, busy, Launch(second), busy, *[Launch(third)] * on_time,
        Wait(third), busy, scatter,
    )  # fmt: skip
    assert moved == expected


def test_a_gather_that_another_rank_waits_for_is_launched_in_the_same_order_on_all() -> None:
    graph, busy = graphs()[1], Busy(ns=100.0, beside_ns=0.0)
    (first, second, third, *_), scatter = gathers_of(graph).forward, gathers_of(graph).scatters[0]
    waiting = (
        Launch(first), Wait(first), busy, Launch(second), Wait(second), busy, Launch(third), Wait(third),
        Launch(scatter),
    )  # fmt: skip
    not_waiting = tuple(each for each in waiting if each != Wait(second))
    moved = prefetched(replace(graph, programmes={0: waiting, 1: not_waiting}), "forward", 2).programmes
    orders = [[each.collective for each in items if isinstance(each, Launch)] for items in moved.values()]
    assert orders == [[first, second, third, scatter]] * 2
