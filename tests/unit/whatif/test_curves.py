"""Cost curves: real tables with points left out, what is measured and what is not, monotone whatever the input."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlapscope.ingest.formats.nccl_tests import READER
from overlapscope.ingest.reader import ReadContext
from overlapscope.timeline.facts import NO, YES
from overlapscope.whatif.cost.curves import Curve, curve, isotonic
from tests.conftest import shared_file

TABLES = (
    "01_2xp4de_16xA100-80_EFA_allreduce.txt",
    "03_1xp5_8xH100_NVSwitch_allreduce.txt",
    "04_2xBM.GPU4.8_16xA100-40_RoCE_allreduce.txt",
    "07_8xMI300X_RCCL_allreduce.txt",
    "11_1x5090_2rank_socket_plateau_3reps.txt",
)
MB = 1_000_000


def points(name: str, places: tuple[int, ...] = (NO, YES)) -> tuple[list[float], list[float]]:
    table = READER.read(Path(shared_file(f"nccl_tests/{name}")), ReadContext()).facts.measurements
    rows = np.isin(table.in_place, places)
    return table.bytes[rows].tolist(), table.time_ns[rows].tolist()


def of(sizes: list[float], times: list[float]) -> Curve:
    return curve("all_reduce", sizes, times, ranks=8)


@pytest.mark.parametrize("places", [(NO,), (YES,), (NO, YES)], ids=["out-of-place", "in-place", "both"])
@pytest.mark.parametrize("name", TABLES)
def test_points_left_out_are_met_within_the_bound(name: str, places: tuple[int, ...]) -> None:
    """Each interior point from 1 MB on, by a curve made again from the rows of all others: mean error at most 6.6 %."""
    sizes, times = points(name, places)
    whole = of(sizes, times)
    kept = {size: [t for s, t in zip(sizes, times, strict=True) if s == size] for size in set(sizes)}
    inner = sorted(kept)[1:-1]
    lines, curves = [], []
    for size in (each for each in inner if each >= MB):
        rest = [(s, t) for s, t in zip(sizes, times, strict=True) if s != size]
        truth = float(np.median(kept[size]))
        others = of([s for s, _ in rest], [t for _, t in rest])
        curves.append(abs(others.at(size).item() / truth - 1))
        large = np.array([(s, t) for s, t in rest if s >= MB])
        slope, start = np.polyfit(large[:, 0], large[:, 1], 1, w=1 / large[:, 1])
        lines.append(abs((start + slope * size) / truth - 1))
    recorded = np.abs(whole.missed)[(whole.sizes_bytes >= MB) & ~np.isnan(whole.missed)]
    assert recorded.tolist() == pytest.approx(curves)
    assert np.mean(curves) <= 0.066
    assert np.mean(curves) < np.mean(lines)  # a single straight line does worse


def test_a_plateau_that_no_curve_can_know_is_named() -> None:
    plateau = of(*points(TABLES[4])).corners()
    assert len(plateau) == 1
    assert "8388608 bytes" in plateau[0]
    assert of(*points(TABLES[3])).corners() == ()


@pytest.mark.parametrize("name", TABLES[:4])
def test_every_eighth_point_predicts_the_others_better_than_a_line_of_logarithms(name: str) -> None:
    whole = of(*points(name))
    keep = np.arange(whole.sizes_bytes.size)[::-1][::3][::-1]
    sparse = of(whole.sizes_bytes[keep].tolist(), whole.times_ns[keep].tolist())
    rest = np.setdiff1d(np.arange(whole.sizes_bytes.size), keep)
    rest = rest[(whole.sizes_bytes[rest] >= MB) & (whole.sizes_bytes[rest] > sparse.sizes_bytes[0])]
    truth = whole.times_ns[rest]
    straight = np.exp(np.interp(np.log(whole.sizes_bytes[rest]), np.log(sparse.sizes_bytes), np.log(sparse.times_ns)))
    bent = np.abs(sparse.at(whole.sizes_bytes[rest]) / truth - 1).mean()
    assert bent < np.abs(straight / truth - 1).mean()
    assert bent < 0.1


def test_the_curve_goes_through_its_points_and_says_how_a_size_is_known() -> None:
    one = of([1000, 10_000, 100_000], [5000, 9000, 60_000])
    assert one.at([1000, 10_000, 100_000]).tolist() == pytest.approx([5000, 9000, 60_000])
    assert [one.known_from(each) for each in (999, 1000, 5000, 10_000, 200_000)] == [
        "extrapolated", "measured", "interpolated", "measured", "extrapolated",
    ]  # fmt: skip
    assert one.at(10).item() == pytest.approx(5000)  # latency stays
    assert one.at(400_000).item() == pytest.approx(240_000)  # bandwidth stays


def test_assumed_points_stay_visible() -> None:
    mixed = curve("all_reduce", [1000, 10_000, 100_000], [5000, 9000, 60_000], measured=[True, True, False])
    assert [mixed.known_from(each) for each in (1000, 2000, 50_000, 100_000, 200_000)] == [
        "measured", "interpolated", "assumed", "assumed", "assumed",
    ]  # fmt: skip


def test_a_switch_of_algorithm_is_a_corner_and_not_a_bend() -> None:
    sizes = [1e6, 2e6, 4e6, 8e6, 16e6]
    times = [10e3, 20e3, 21e3, 42e3, 84e3]
    recorded = curve("all_reduce", sizes, times, choice=["RING/LL", "RING/LL", "NVLS", "NVLS", "NVLS"])
    assert recorded.at(np.sqrt(8e12)).item() == pytest.approx(np.sqrt(20e3 * 21e3))
    assert recorded.at(np.sqrt(2e12)).item() == pytest.approx(10e3 * np.sqrt(2))  # proportional on its own side
    assert recorded.at(np.sqrt(32e12)).item() == pytest.approx(21e3 * np.sqrt(2))


def test_repeated_sizes_are_their_median_and_useless_points_are_left_out() -> None:
    one = of([1000, 1000, 1000, 0, 5000, 7000], [5, 6, 100, 3, float("nan"), 9])
    assert one.sizes_bytes.tolist() == [1000, 7000]
    assert one.times_ns.tolist() == pytest.approx([6, 9])
    with pytest.raises(ValueError, match="no measured time"):
        of([0], [4])


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 2**40), st.floats(1, 1e12)), min_size=1, max_size=20))
def test_times_never_fall_with_size_and_stay_between_neighbours(drawn: list[tuple[int, float]]) -> None:
    one = of([float(size) for size, _ in drawn], [time for _, time in drawn])
    asked = np.unique(np.geomspace(1, 2.0**41, 200))
    times = one.at(asked)
    assert (np.diff(times) >= -1e-9 * times[1:]).all()
    inside = (asked >= one.sizes_bytes[0]) & (asked <= one.sizes_bytes[-1])
    assert (times[inside] >= one.times_ns[0] * (1 - 1e-9)).all()
    assert (times[inside] <= one.times_ns[-1] * (1 + 1e-9)).all()


@settings(max_examples=40)
@given(st.lists(st.floats(-100, 100), min_size=1, max_size=7))
def test_isotonic_is_the_nearest_rising_row(values: list[float]) -> None:
    got = isotonic(np.array(values))
    assert (np.diff(got) >= -1e-9).all()
    # The known closed form: the largest of the smallest means (Robertson, Wright and Dykstra 1988).
    size = len(values)
    for place in range(size):
        expected = max(
            min(np.mean(values[first : last + 1]) for last in range(place, size)) for first in range(place + 1)
        )
        assert got[place] == pytest.approx(expected, abs=1e-9)


def test_the_stated_error_is_what_points_left_out_tell() -> None:
    sizes, times = points(TABLES[0])
    one = of(sizes, times)
    assert one.error(1 << 20) == 0.0
    around = [abs(one.missed[np.searchsorted(one.sizes_bytes, size)]) for size in (16 << 20, 32 << 20)]
    assert one.error(20 << 20) == pytest.approx(max(around) / 2)
    assert one.error(16 << 30) == pytest.approx(np.nanmax(np.abs(one.missed)[one.sizes_bytes >= MB]))
