"""Which of several calls in flight the next compute waits for, and which stream decides when a step ends."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.calls.savings import saved_without_ns
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import RankTimeline
from tests.support.step_cases import US, Item, Kernel, Range, Sent, made
from tests.unit.advice.calls.test_savings import looked_at

REDUCED, GATHERED = "reduce_scatter", "all_gather"


def apart(timeline: RankTimeline) -> RankTimeline:
    """Return a rank whose reductions have a stream of their own."""
    spans, calls, names = timeline.spans, timeline.collectives, timeline.names
    of_call = np.where(spans.collective == NONE, 0, spans.collective)
    reduces = (spans.collective != NONE) & (calls.op == names.index(REDUCED))[of_call]
    return replace(timeline, spans=replace(spans, lane=np.where(reduces, 2, spans.lane)))


def saved_us(items: list[Item], op: str) -> float:
    run = made(lambda _: items)
    given = looked_at(replace(run, ranks={rank: apart(each) for rank, each in run.ranks.items()}))
    rows = [row for row in given.analysis.collectives if row.op == op]
    assert rows
    return saved_without_ns(given, rows) / US


@pytest.mark.parametrize(
    ("until", "begins", "saved"),
    [
        pytest.param(390, 500, 0, id="the other one goes on, and compute begins as it ends"),
        pytest.param(390, 499.8, 0, id="compute is seen to begin a moment before its end"),
        pytest.param(495, 500, 195, id="both end with the wait"),
    ],
)
def test_exposed_time_is_saved_of_the_call_that_it_ends_with(until: float, begins: float, saved: float) -> None:
    """Compute that began at 500 us waited for a gather of 200; a reduction began with it."""
    items: list[Item] = [
        Kernel(start=0, end=300),
        Sent(start=300, end=500, op=GATHERED),
        Sent(start=300, end=until, op=REDUCED),
        Kernel(start=begins, end=990, launch=250),
    ]
    assert saved_us(items, REDUCED) == saved
    assert saved_us(items, GATHERED) == pytest.approx(begins - 300)


@pytest.mark.parametrize(("begin", "saved"), [(400, 100), (399.5, 100), (450, 0)])
def test_a_call_that_follows_directly_began_later_for_the_one_before_it(begin: float, saved: float) -> None:
    """While a third call is in flight all the time."""
    items: list[Item] = [
        Kernel(start=0, end=300),
        Sent(start=290, end=700, op="all_to_all"),
        Sent(start=300, end=400, op=REDUCED),
        Sent(start=begin, end=500, op=GATHERED),
        Kernel(start=500, end=690, launch=250),
        Kernel(start=700, end=990, launch=251),
    ]
    assert saved_us(items, REDUCED) == saved


@pytest.mark.parametrize(
    ("gap", "saved"),
    [
        pytest.param(2, 50, id="reductions one after the other: what lies before them is saved"),
        pytest.param(60, 150, id="apart: each begins as its gradient is ready"),
    ],
)
def test_while_a_stream_is_busy_until_the_optimizer_other_calls_hold_nothing_back(gap: float, saved: float) -> None:
    """Gathers of 50 us, of which the first lies before four reductions of 140, and two beside them."""
    items: list[Item] = [Kernel(start=0, end=100), Sent(start=100, end=150, op=GATHERED)]
    for at, begin in enumerate((150, 320)):
        items += [Kernel(start=begin, end=begin + 100, launch=50 + at)]
        items += [Sent(start=begin + 100, end=begin + 150, op=GATHERED, launch=52 + at)]
    items += [Kernel(start=490, end=500, launch=56)]
    items += [
        Sent(start=220 + 140 * at, end=220 + 140 * (at + 1) - gap, op=REDUCED, group="d", launch=60 + at)
        for at in range(4)
    ]
    items += [Kernel(start=800, end=900), Range(name="Optimizer.step#SGD.step", start=795, end=805)]
    assert saved_us(items, GATHERED) == pytest.approx(saved)
