"""A device's power that falls while its peers' does not, on constructed telemetry."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.checks.power import power_falls
from overlapscope.analysis.common.findings import Finding
from overlapscope.timeline.columns import concat, recode, take
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import RankTimeline, Run
from tests.support.builders import EPOCH_NS
from tests.support.rank_rows import rank_timeline

SECOND_NS = 1_000_000_000
SECONDS = 120
Power = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]
"""Watts at seconds since the job began."""


def steady(watts: float = 600.0) -> Power:
    return lambda at: np.full(at.size, watts)


def lower(begins: float, ends: float, *, to: float = 200.0, usual: float = 600.0) -> Power:
    return lambda at: np.where((at >= begins) & (at < ends), to, usual)


def rank(number: int, power: Power | None, *, every: float = 0.5, device: int = 0, late: float = 0.0) -> RankTimeline:
    """A rank with readings that jitter by 3 %, and a step every 10 s."""
    noise = np.random.default_rng(number)
    at = late + np.arange(0, SECONDS, every) + noise.uniform(0, every / 4)
    watts = power(at) * noise.normal(1, 0.03, at.size) if power is not None else np.empty(0)
    readings = enumerate(zip(at.tolist(), watts.tolist(), strict=False))
    return rank_timeline(
        number,
        recordings=[{"start_ns": EPOCH_NS, "end_ns": EPOCH_NS + SECONDS * SECOND_NS}],
        steps=[
            {"step": n, "start_ns": EPOCH_NS + 10 * n * SECOND_NS, "end_ns": EPOCH_NS + (10 * n + 9) * SECOND_NS}
            for n in range(12)
        ],
        telemetry=[
            {"time_ns": EPOCH_NS + int(when * SECOND_NS), "name": name, "value": value}
            for row, (when, drawn) in readings
            for name, value in (("gpu0.temperature_c", 90 - row * 80 / at.size), (f"gpu{device}.power_w", drawn))
        ],
    )


def falls(*powers: Power | None, **options: float) -> list[Finding]:
    return power_falls({number: rank(number, power, **options) for number, power in enumerate(powers)})


def test_a_rank_that_falls_alone_is_named_with_its_watts_its_time_and_its_peers() -> None:
    (found,) = falls(steady(), steady(580), lower(50, 90), steady(610))
    assert found.id == "power_fall:rank2:gpu0"
    assert found.severity == "warning"
    assert found.evidence["rank"] == 2
    assert found.evidence["usual_w"] == pytest.approx(600, rel=0.03)
    assert found.evidence["during_w"] == pytest.approx(200, rel=0.03)
    assert found.evidence["peers_up"] == 3
    # Windows of 5 s on the clock's own grid: the two at the edges are half fallen.
    assert found.evidence["lasts_s"] in (35, 40)
    assert abs(found.evidence["begins_ns"] - EPOCH_NS - 50 * SECOND_NS) <= 5 * SECOND_NS
    assert found.evidence["step"] in (4, 5)


def test_a_fall_that_lasts_to_the_end_is_found() -> None:
    (found,) = falls(steady(), lower(60, SECONDS), steady())
    assert found.evidence["rank"] == 1


def test_two_ranks_that_fall_beside_four_that_do_not_are_both_named() -> None:
    found = falls(steady(), steady(), lower(50, 90), lower(50, 90), steady(), steady())
    assert [each.evidence["rank"] for each in found] == [2, 3]


def test_devices_of_different_kinds_are_each_measured_against_themselves() -> None:
    assert not falls(steady(600), steady(300), steady(70))
    (found,) = falls(steady(600), lower(50, 90, usual=300, to=150), steady(70))
    assert found.evidence["rank"] == 1


@pytest.mark.parametrize(
    "powers",
    [
        pytest.param([lower(50, 90)] * 4, id="all fall together"),
        pytest.param([lower(50, 90), lower(50, 90), steady()], id="only one stays up"),
        pytest.param([lower(100, SECONDS)] * 4, id="all fall at the end of the run"),
        pytest.param([lower(113, SECONDS), steady(), steady()], id="one ends its run a little earlier"),
        pytest.param([lower(106, SECONDS), steady(), steady()], id="one ends three windows earlier, the last its end"),
        pytest.param([*[lower(50, 90)] * 5, *[steady()] * 3], id="most fall together"),
        pytest.param([lower(0, 30), steady(), steady()], id="one begins low and rises"),
        pytest.param([lower(50, 58), steady(), steady()], id="a short dip"),
        pytest.param([lower(50, 90, to=540), steady(), steady()], id="a small fall"),
        pytest.param([lower(50, 90, usual=70, to=52), steady(70), steady(70)], id="idle devices"),
        pytest.param([lower(50, 90), steady()], id="one peer"),
        pytest.param([lower(50, 90), None, None], id="peers without readings"),
        pytest.param([None, None, None], id="no telemetry"),
        pytest.param([lambda at: 400 + 200 * np.sign(np.sin(at / 3))] * 4, id="all go up and down"),
        pytest.param([lambda at: np.full(at.size, np.nan), steady(), steady()], id="readings that are no numbers"),
    ],
)
def test_no_alarm(powers: list[Power | None]) -> None:
    assert not falls(*powers)


def test_repeated_short_dips_are_no_fall() -> None:
    assert not falls(lambda at: np.where(at % 20 < 8, 200.0, 600.0), steady(), steady())


def test_a_window_without_readings_does_not_join_two_dips() -> None:
    def without(timeline: RankTimeline, begins: int, ends: int) -> RankTimeline:
        at = (timeline.telemetry.time_ns - EPOCH_NS) / SECOND_NS
        return replace(timeline, telemetry=take(timeline.telemetry, (at < begins) | (at >= ends)))

    ranks = {0: rank(0, lower(50, 70)), 1: rank(1, steady()), 2: rank(2, steady())}
    assert power_falls(ranks)
    assert not power_falls({**ranks, 0: without(ranks[0], 55, 60)})


def test_too_few_readings_say_nothing() -> None:
    assert not falls(steady(), lower(50, 90), steady(), every=10.0)


def test_rare_readings_make_longer_windows() -> None:
    (found,) = falls(steady(), lower(45, 105), steady(), every=3.0)
    assert found.evidence["rank"] == 1


def test_two_devices_of_one_rank_are_no_peers_of_each_other() -> None:
    one = rank(0, lower(50, 90))
    other = rank(0, steady(), device=1)
    telemetry = concat([one.telemetry, recode(other.telemetry, other.names, names := NameTable(one.names))])
    both = replace(one, names=tuple(names.to_list()), telemetry=telemetry)
    assert not power_falls({0: both, 1: rank(1, steady())})
    (found,) = power_falls({0: both, 1: rank(1, steady()), 2: rank(2, steady())})
    assert (found.evidence["device"], found.evidence["peers_up"]) == ("gpu0", 2)


def test_a_rank_whose_readings_stop_and_peers_that_come_late_are_compared_where_they_meet() -> None:
    ranks = {0: rank(0, steady()), 1: rank(1, lower(60, 95)), 2: rank(2, steady(), late=20.0)}
    (found,) = power_falls(ranks)
    assert found.evidence["rank"] == 1


def test_times_far_apart_take_no_memory() -> None:
    far = rank(0, lower(50, 90))
    far = replace(far, telemetry=replace(far.telemetry, time_ns=far.telemetry.time_ns - EPOCH_NS))
    assert not power_falls({0: far, 1: rank(1, steady()), 2: rank(2, steady())})


def test_the_analysis_of_a_run_holds_it() -> None:
    ranks = {number: rank(number, power) for number, power in enumerate([steady(), lower(50, 90), steady()])}
    found = analyze(Run(world_size=3, ranks=ranks)).findings
    assert [each.id for each in found if each.known_from == "telemetry"] == ["power_fall:rank1:gpu0"]
