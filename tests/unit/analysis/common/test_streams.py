"""Which compute only prepares calls: that of a stream on which a call directly follows it."""

import numpy as np
import pytest

from overlapscope.analysis.common.streams import compute_lane, prepares_calls
from overlapscope.timeline.columns import COMM, COMPUTE, NONE

MAIN, REDUCES = 0, 1
PACK, REDUCE, OTHER = (REDUCES, COMPUTE), (REDUCES, COMM), (REDUCES, COMPUTE)


def _prepares(spans: list[tuple[int, int]], lasts: int = 5) -> list[bool]:
    """Return the answer for (stream, kind) of spans that begin every 10 ns, beside one of 1 us on the main stream."""
    lane, kind = np.array([(MAIN, COMPUTE), *spans]).T
    start = 10 * np.arange(lane.size)
    end = start + np.array([1000, *[lasts] * len(spans)])
    shuffled = np.random.default_rng(1).permutation(lane.size)  # rows come in any order
    found = prepares_calls(*(each[shuffled] for each in (lane, kind.astype(np.int8), start, end)))
    return [bool(each) for each in found[np.argsort(shuffled)]][1:]


def test_compute_that_a_call_directly_follows_on_its_stream_prepares_it() -> None:
    assert _prepares([PACK, REDUCE, PACK, REDUCE]) == [True, False, True, False]


@pytest.mark.parametrize(
    "spans",
    [
        pytest.param([PACK, REDUCE, OTHER, PACK, REDUCE], id="a third of it has other compute behind it"),
        pytest.param([REDUCE, OTHER], id="it uses what was reduced"),
        pytest.param([PACK, (2, COMM)], id="the call is on another stream"),
        pytest.param([], id="nothing else"),
    ],
)
def test_other_compute_does_not(spans: list[tuple[int, int]]) -> None:
    assert not any(_prepares(spans))


@pytest.mark.parametrize(("lasts", "prepares"), [(50, True), (51, False), (900, False)])
def test_what_only_prepares_calls_is_little(lasts: int, *, prepares: bool) -> None:
    """Of two batches in turn, each on a stream of its own, calls follow compute directly; that is no preparation."""
    assert any(_prepares([PACK, REDUCE, PACK, REDUCE], lasts)) is prepares


def test_without_spans_nothing_is_known() -> None:
    nothing = np.zeros(0, np.int64)
    assert prepares_calls(nothing, nothing.astype(np.int8), nothing, nothing).size == 0
    assert compute_lane(nothing, nothing.astype(np.int8), nothing) == NONE
