"""Telemetry of chosen ranks on one time axis."""

import numpy as np
import pytest

from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.telemetry import Readings, readings, thinned
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import RankTimeline, Run
from tests.support.builders import EPOCH_NS
from tests.support.rank_rows import rank_timeline

SECOND = 1_000_000_000


def _with(rank: int, rows: list[tuple[int, str, float]]) -> RankTimeline:
    return rank_timeline(
        rank, telemetry=[{"time_ns": time, "name": name, "value": value} for time, name, value in rows]
    )


def _run(*timelines: RankTimeline) -> Run:
    return Run(world_size=len(timelines), ranks={each.rank: each for each in timelines})


def test_levels_are_in_their_unit_and_in_order_of_time() -> None:
    one = _with(0, [(EPOCH_NS + SECOND, "gpu0.power_w", 300.0), (EPOCH_NS, "gpu0.power_w", 200.0)])
    (found,) = readings(_run(one), Clocks(reference_ns=EPOCH_NS), [0])
    assert (found.measure.name, found.measure.unit, found.source) == ("power", "W", "gpu0")
    assert found.time_ns.tolist() == [0, SECOND]
    assert found.value.tolist() == [200, 300]


def test_a_counter_becomes_a_rate_and_says_nothing_where_it_was_reset() -> None:
    """976,562.5 KiB are 1e9 bytes: in half a second that is 2 GB/s."""
    gb = 1e9 / 1024
    rows = [(0, 5 * gb), (1, 6 * gb), (2, 0.0), (3, 0.5 * gb)]
    one = _with(3, [(EPOCH_NS + at * SECOND // 2, "gpu1.nvlink_tx_kib", value) for at, value in rows])
    (found,) = readings(_run(one), Clocks(reference_ns=EPOCH_NS), [3])
    assert found.source == "gpu1 out"
    assert found.time_ns.tolist() == [SECOND // 2, 3 * SECOND // 2]
    assert found.value.tolist() == pytest.approx([2.0, 1.0])


def test_ranks_meet_on_the_common_clock() -> None:
    ahead = 7_000_000
    both = [_with(rank, [(EPOCH_NS + rank * ahead, "loadavg_1m", 1.0)]) for rank in (0, 1)]
    clocks = Clocks(offset_ns={0: 0.0, 1: float(ahead)}, reference_ns=EPOCH_NS)
    assert [each.time_ns.tolist() for each in readings(_run(*both), clocks, [0, 1])] == [[0], [0]]


def test_what_was_not_recorded_has_no_series() -> None:
    one = _with(0, [(NONE, "gpu0.power_w", 1.0), (EPOCH_NS, "gpu0.temperature_c", np.nan), (EPOCH_NS, "other", 1.0),
                    (EPOCH_NS, "mlx5_0.1.xmit_bytes", 1.0)])  # fmt: skip
    assert readings(_run(one), Clocks(), [0]) == []


def test_thinning_keeps_every_spike() -> None:
    one = _with(0, [(EPOCH_NS + at, "gpu0.power_w", 100.0) for at in range(10_000)])
    (found,) = readings(_run(one), Clocks(reference_ns=EPOCH_NS), [0])
    value = found.value.copy()
    value[[17, 5_000, 9_999]] = 900.0, 1.0, 700.0
    spiked = Readings(rank=0, measure=found.measure, source=found.source, time_ns=found.time_ns, value=value)
    times, thin = thinned(spiked, 200)
    assert thin.size == times.size <= 200
    assert {900.0, 1.0, 700.0} <= set(thin.tolist())
    assert (np.diff(times) >= 0).all()
    assert (times[0], times[-1]) == (0, 9_999)
    assert thinned(found, 10_000)[1] is found.value
