"""The states of a rank's time, against one cell a nanosecond and against the breakdown."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.occupancy import STATES, Occupancy, spent_together
from overlapscope.timeline.columns import COMM, COMPUTE, COPY
from tests.support.builders import (
    CELLS,
    EPOCH_NS,
    FIRST_NS,
    Pairs,
    Span,
    instants,
    intervals,
    raster,
    spans_table,
)

edges = st.lists(instants, min_size=2, max_size=20).map(sorted)


def occupancy(comm: Pairs, compute: Pairs, copy: Pairs, recorded: Pairs, offset: int) -> Occupancy:
    parts = ((COMM, comm), (COMPUTE, compute), (COPY, copy))
    spans = [Span(start=a + offset, end=b + offset, kind=kind) for kind, pairs in parts for a, b in pairs if b > a]
    return Occupancy.of(Coverage.of(spans_table(spans)), [(a + offset, b + offset) for a, b in recorded if b > a])


@given(intervals, intervals, intervals, intervals, edges)
def test_each_nanosecond_is_in_one_state(
    comm: Pairs, compute: Pairs, copy: Pairs, recorded: Pairs, at: list[int]
) -> None:
    ours = occupancy(comm, compute, copy, recorded, EPOCH_NS).spent(np.array(at) + EPOCH_NS)
    c, m, p, r = (raster(each) for each in (comm, compute, copy, recorded))
    names = []
    for cell in range(CELLS):
        if m[cell]:
            names.append("hidden" if c[cell] else "compute")
        elif c[cell]:
            names.append("exposed")
        elif p[cell]:
            names.append("copy")
        else:
            names.append("idle" if r[cell] else "unrecorded")
    for row, (start, end) in enumerate(pairwise(at)):
        states = names[start - FIRST_NS : end - FIRST_NS]
        assert ours[row].tolist() == [states.count(state) for state in STATES]


@given(st.lists(st.tuples(intervals, intervals, intervals, intervals), max_size=4), instants, instants)
def test_ranks_together_spend_what_each_spends(
    ranks: list[tuple[Pairs, Pairs, Pairs, Pairs]], one: int, other: int
) -> None:
    start, end = sorted((one + EPOCH_NS, other + EPOCH_NS))
    built = [occupancy(*rank, EPOCH_NS) for rank in ranks]
    single = [each.spent(np.array([start, end]))[0].tolist() for each in built]
    expected = [sum(own[state] for own in single) for state in range(len(STATES))]
    assert spent_together(built, start, end).tolist() == expected
