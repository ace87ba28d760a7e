"""The partition of a window against a raster with one cell a nanosecond."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.analysis.per_rank.breakdown import Breakdown, Coverage
from overlapscope.timeline.columns import COMM, COMPUTE, COPY
from tests.property.examples import examples
from tests.support.builders import EPOCH_NS, Span, instants, intervals, raster, spans_table

kinds = st.fixed_dictionaries({COMM: intervals, COMPUTE: intervals, COPY: intervals})
windows = st.tuples(instants, instants).map(lambda window: (min(window), max(window)))
disjoint_windows = st.lists(instants, unique=True, max_size=8).map(
    lambda cuts: [(sorted(cuts)[at], sorted(cuts)[at + 1]) for at in range(0, len(cuts) - 1, 2)]
)


def coverage(of: dict[int, list[tuple[int, int]]], offset: int = 0) -> Coverage:
    """Cover by spans on several lanes, kinds mixed in one table as a recording mixes them."""
    spans = [
        Span(start=start + offset, end=end + offset, kind=kind, lane=at % 3)
        for kind, pairs in of.items()
        for at, (start, end) in enumerate(pairs)
    ]
    return Coverage.of(spans_table(sorted(spans, key=lambda span: span.start)))


def measured(of: dict[int, list[tuple[int, int]]], windows: list[tuple[int, int]]) -> dict[str, int | float | None]:
    """Count every field in the raster, from the definitions of docs/definitions.md."""
    inside = raster(windows)
    comm, compute, copy = (raster(of[kind]) & inside for kind in (COMM, COMPUTE, COPY))

    def cells(mask: np.ndarray) -> int:
        return int(mask.sum())

    def ratio(part: int, whole: int) -> float | None:
        return part / whole if whole > 0 else None

    both = cells(comm & compute)
    return {
        "window_ns": cells(inside),
        "comm_ns": cells(comm),
        "compute_ns": cells(compute),
        "copy_ns": cells(copy),
        "overlapped_ns": both,
        "exposed_comm_ns": cells(comm & ~compute),
        "compute_only_ns": cells(compute & ~comm),
        "copy_only_ns": cells(copy & ~comm & ~compute),
        "idle_ns": cells(inside & ~comm & ~compute & ~copy),
        "overlap_efficiency": ratio(both, cells(comm)),
        "exposed_fraction": ratio(cells(comm & ~compute), cells(inside)),
        "comm_comp_ratio": ratio(cells(comm), cells(compute)),
        "overlap_potential": ratio(min(cells(comm), cells(compute)), cells(comm) + cells(compute)),
    }


def check(breakdown: Breakdown, expected: dict[str, int | float | None]) -> None:
    """Compare every field, and with the law of conservation."""
    assert {name: getattr(breakdown, name) for name in expected} == expected
    parts = ("overlapped_ns", "exposed_comm_ns", "compute_only_ns", "copy_only_ns", "idle_ns")
    values = [getattr(breakdown, part) for part in parts]
    assert min(values) >= 0
    assert sum(values) == breakdown.window_ns
    assert breakdown.overlapped_ns + breakdown.exposed_comm_ns == breakdown.comm_ns
    assert breakdown.overlapped_ns + breakdown.compute_only_ns == breakdown.compute_ns


@examples(300)
@given(kinds, disjoint_windows)
def test_several_windows_together_are_what_the_raster_counts_in_all_of_them(of, windows):
    check(coverage(of).breakdown(*windows), measured(of, windows))


@examples(100)
@given(kinds, windows)
def test_shifting_a_clock_changes_no_breakdown(of, window):
    here = coverage(of).breakdown(window)
    assert coverage(of, EPOCH_NS).breakdown((window[0] + EPOCH_NS, window[1] + EPOCH_NS)) == here


@pytest.mark.parametrize(
    ("comm", "compute", "copy", "windows", "ratios"),
    [
        pytest.param([], [(0, 10)], [], [(0, 10)], (None, 0, 0, 0), id="no communication"),
        pytest.param([(0, 10)], [], [], [(0, 10)], (0, 1, None, 0), id="no computation"),
        pytest.param([], [], [(0, 10)], [(0, 10)], (None, 0, None, None), id="copies alone"),
        pytest.param([(0, 10)], [(0, 10)], [], [(5, 5)], (None,) * 4, id="an empty window"),
        pytest.param([(0, 10)], [], [], [], (None,) * 4, id="no window"),
    ],
)
def test_a_ratio_to_nothing_is_unknown_and_not_zero(comm, compute, copy, windows, ratios):
    result = coverage({COMM: comm, COMPUTE: compute, COPY: copy}).breakdown(*windows)
    names = ("overlap_efficiency", "exposed_fraction", "comm_comp_ratio", "overlap_potential")
    assert tuple(getattr(result, name) for name in names) == ratios
    if not sum(end - start for start, end in windows):
        assert result.window_ns == result.comm_ns == result.compute_ns == result.idle_ns == 0
