"""The arithmetic and the limits of each check, on figures as a device may show them: what is accepted, what refused."""

import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from overlapscope.gpu_check import clocks, endings, inventory, recordings, schedules, spin, two_ranks, whole_jobs
from overlapscope.gpu_check.checks import CHECKS, INVENTORY
from overlapscope.gpu_check.document import Check, Measured, judge
from overlapscope.ingest.build.kernel_names import COMMUNICATES, UNPLACED, Classifier

ALL = {check.name: check for check in (INVENTORY, *CHECKS)}


def limits(check: Check) -> dict[str, float]:
    """Figures at the limits, which are accepted."""
    return {
        rule.figure: float(rule.at_most if rule.at_most is not None else rule.at_least or 0) for rule in check.rules
    }


def verdict(name: str, **figures: Any) -> str:
    check = ALL[name]
    unknown = figures.keys() - limits(check).keys()
    assert not unknown
    return judge(check, Measured(figures={**limits(check), **figures})).verdict


@pytest.mark.parametrize("name", ALL)
def test_figures_at_the_limits_are_accepted_and_each_beyond_is_refused(name: str) -> None:
    check = ALL[name]
    assert check.rules
    assert verdict(name) == "accepted"
    for rule in check.rules:
        if rule.at_most is not None:
            assert verdict(name, **{rule.figure: rule.at_most + 0.01}) == "refused"
        if rule.at_least is not None:
            assert verdict(name, **{rule.figure: rule.at_least - 0.01}) == "refused"
        assert verdict(name, **{rule.figure: float("nan")}) == "refused"
        without = {figure: value for figure, value in limits(check).items() if figure != rule.figure}
        assert judge(check, Measured(figures=without)).verdict == "not run"


def test_every_rule_has_a_limit_and_names_are_unique() -> None:
    for check in ALL.values():
        assert all(rule.at_least is not None or rule.at_most is not None for rule in check.rules)
        assert len({rule.figure for rule in check.rules}) == len(check.rules)
        assert set(check.needs) <= inventory.REASONS.keys()
    assert len(ALL) == len(CHECKS) + 1


def test_what_is_measured_well_but_ends_badly_is_refused() -> None:
    check = ALL["C3"]
    ended = judge(check, Measured(figures=dict(limits(check)), failed="ended by SIGSEGV"))
    assert (ended.verdict, ended.reason) == ("refused", "ended by SIGSEGV")


def test_the_resolution_is_the_smallest_step_between_times() -> None:
    fine = [0.002016, 0.002048, 0.00208, 0.002048, 0.0021120001]
    assert clocks.resolution_us(fine) == pytest.approx(0.032, rel=1e-3)
    assert verdict("C2a", resolution_us=clocks.resolution_us(fine)) == "accepted"
    coarse = [0.002, 0.004, 0.002, 0.006]
    assert clocks.resolution_us(coarse) == pytest.approx(2)
    assert verdict("C2a", resolution_us=clocks.resolution_us(coarse)) == "refused"
    assert verdict("C2a", resolution_us=clocks.resolution_us([0.0, 0.0])) == "refused"


def pairs_of_clocks(ppm: float) -> tuple[Any, Any]:
    """The device's times, and when a host that is sometimes late sees them."""
    device = np.arange(400) * 45e6 + 7e9
    late = np.random.default_rng(3).exponential(2e3, 400) + 1.5e3
    return device, device * (1 + ppm * 1e-6) + 5e12 + late


def test_drift_and_errors_are_those_of_the_simulated_clocks() -> None:
    device, host = pairs_of_clocks(38.0)
    assert clocks.drift_ppm(device, host) == pytest.approx(38.0, abs=0.1)
    true = device * (1 + 38e-6) + 5e12 + 1.5e3
    fitted, unfitted = clocks.errors_us(true, host), clocks.errors_us(device + (true - device)[0], host)
    assert verdict("C2b", idle_error_us=fitted[0]) == "accepted"
    assert verdict("C2b", idle_error_us=unfitted[0]) == "refused"  # 18 s at 38 ppm: 684 µs
    assert unfitted[1] == pytest.approx(684, rel=0.05)
    between = device[:-1] + 2e6
    assert clocks.host_times(between, device, host) == pytest.approx(between * (1 + 38e-6) + 5e12 + 1.5e3, abs=20_000)
    assert np.isnan(clocks.errors_us(np.array([np.nan, 1.0]), np.array([1.0, 1.0]))[0])


def test_added_time_is_that_of_the_medians() -> None:
    share = clocks.added_share([10.1, 10.1, 30.0], [10.0, 10.0, 10.0])
    assert share == pytest.approx(0.01)
    assert verdict("C3", short_kernels_added_percent=100 * share) == "accepted"
    assert verdict("C3", short_kernels_added_percent=100 * clocks.added_share([10.3], [10.0])) == "refused"


def test_streams_taken_from_the_pool_are_counted_around_its_end() -> None:
    pool = list(range(100, 132))
    assert schedules.streams_taken(pool, 100, 101) == 0
    assert schedules.streams_taken(pool, 130, 103) == 4
    assert schedules.streams_taken(pool, 105, 105) == 31
    assert verdict("C4", streams_taken_more=0) == "accepted"
    assert verdict("C4", streams_taken_more=(schedules.streams_taken(pool, 100, 109) - 0) % 32) == "refused"


def test_constructed_overlap_is_what_the_kernels_themselves_say() -> None:
    assert schedules.expected_ns(5e6, 0) == (5e6, 0)
    assert schedules.expected_ns(5e6, 0.5) == (2.5e6, 2.5e6)
    assert schedules.expected_ns(5e6, 1.5) == (0, 5e6)
    transfer = (1_000, 6_000)
    computing = [(0, 2_000), (3_000, 4_500), (5_900, 9_000), (20_000, 30_000)]
    clock = np.arange(40_000)
    busy = np.zeros(40_000, bool)
    for begin, end in computing:
        busy[begin:end] = True
    inside = (clock >= transfer[0]) & (clock < transfer[1])
    assert schedules.exposed_and_overlapped(transfer, computing) == ((inside & ~busy).sum(), (inside & busy).sum())


def test_constructed_and_recorded_steps_are_compared_where_both_are() -> None:
    wanted = dict.fromkeys(range(24), (2500000.0, 2500000.0))
    good = dict.fromkeys(range(1, 24), (2500000.0 + 20000.0, 2500000.0 - 10000.0))
    exposed, overlapped, count = schedules.differences_us(good, wanted)
    assert (exposed, overlapped, count) == (pytest.approx(20), pytest.approx(10), 23)
    assert verdict("C7a", exposed_error_us=exposed, overlapped_error_us=overlapped, steps_compared=count) == "accepted"
    hidden = dict.fromkeys(wanted, (0.0, 5000000.0))
    assert verdict("C7a", exposed_error_us=schedules.differences_us(hidden, wanted)[0]) == "refused"
    assert verdict("C7a", exposed_error_us=schedules.differences_us({}, wanted)[0]) == "refused"


def test_calls_agree_with_buckets_in_number_size_and_order() -> None:
    buckets = [5_000, 4_000, 1_000]
    assert two_ranks.share_of_agreeing_steps({3: buckets, 4: list(buckets)}, buckets) == 1
    for other in ([5_000, 4_000], [4_000, 5_000, 1_000], [*buckets, 8]):
        share = two_ranks.share_of_agreeing_steps({3: buckets, 4: other}, buckets)
        assert share == 0.5
        assert verdict("C6b", events_calls_as_buckets_percent=100 * share) == "refused"
    assert two_ranks.share_of_agreeing_steps({}, buckets) == 0


def test_communication_is_compared_with_the_host_s_own_time() -> None:
    timed = {"2": 10_000_000, "3": 20_000_000, "4": 10_000_000, "9": 0}
    good = two_ranks.comm_difference_percent({2: 10_100_000, 3: 19_800_000, 4: 10_300_000, 5: 7, 9: 4}, timed)
    assert good == pytest.approx(1)
    assert verdict("C6c", comm_difference_percent=good) == "accepted"
    behind_the_queue = two_ranks.comm_difference_percent({2: 60_000_000, 3: 70_000_000}, timed)
    assert verdict("C6c", comm_difference_percent=behind_the_queue) == "refused"
    assert np.isnan(two_ranks.comm_difference_percent({2: None}, timed))


def test_calls_are_compared_with_their_kernels_where_there_are_as_many() -> None:
    ours, kernels = {5: [110_000, 220_000], 6: [100_000]}, {5: [100_000, 205_000], 6: [90_000, 1_000]}
    assert two_ranks.beyond_kernels_us(ours, kernels) == [10, 15]
    assert verdict("C8", beyond_kernel_median_us=12.5, beyond_kernel_least_us=10) == "accepted"
    assert verdict("C8", beyond_kernel_least_us=two_ranks.beyond_kernels_us({5: [1]}, {5: [9_001]})[0]) == "refused"


def blocks(step_ns: float, spread_ns: float) -> list[list[float]]:
    rng = np.random.default_rng(int(spread_ns))
    return [list(rng.normal(step_ns, spread_ns, 20)) for _ in range(16)]


def test_the_cost_is_a_mean_over_blocks_with_its_interval() -> None:
    bare = blocks(50e6, 50e3)
    mean, upper = whole_jobs.added_percent(bare, [[step + 200e3 for step in each] for each in bare])
    assert (mean, upper) == (pytest.approx(0.4, abs=0.01), pytest.approx(0.4, abs=0.01))
    assert verdict("C9", added_upper_percent=upper) == "accepted"
    # 16 ms in every sixteenth step: 2 % in the mean, nothing in the median.
    seldom = [[step + (16e6 if at == 16 else 0) for at, step in enumerate(each)] for each in bare]
    mean, upper = whole_jobs.added_percent(bare, seldom)
    assert mean == pytest.approx(100 * 16e6 / 19 / 50e6, rel=0.01)
    assert verdict("C9", added_upper_percent=upper) == "refused"
    assert whole_jobs.median_step(seldom) == pytest.approx(50e6, rel=0.01)
    # What is not determined is not accepted.
    assert verdict("C9", added_upper_percent=whole_jobs.added_percent(bare, blocks(50e6, 20e6))[1]) == "refused"


def figures_of(step: int, comm_ns: int | None, *, complete: bool = True) -> recordings.StepFigures:
    return recordings.StepFigures(step, complete, 100, comm_ns, comm_ns, 0)


def test_a_whole_step_without_communication_is_refused_a_cut_one_is_not() -> None:
    patient = [figures_of(step, 5) for step in range(40)]
    hurried = [figures_of(step, 5) for step in range(10)] + [
        figures_of(at, None, complete=False) for at in range(10, 40)
    ]
    assert whole_jobs.endings(patient) == (40, 0)
    assert whole_jobs.endings(hurried) == (10, 0)
    assert verdict("C10", hurried_whole=10, hurried_whole_without_communication=0) == "accepted"
    silent = [*patient[:-2], figures_of(38, 0), figures_of(39, None)]
    assert whole_jobs.endings(silent) == (40, 2)
    assert verdict("C10", patient_whole_without_communication=2) == "refused"


def test_steps_before_a_fault_are_counted() -> None:
    steps = [(at, at not in (3, 8)) for at in range(10)]
    assert endings.kept_before(steps, 8) == 7
    assert verdict("C14", steps_kept=7) == "refused"


def test_ranges_of_the_user_must_last_as_the_host_says() -> None:
    timed = {"user.outer": [5_000_000, 6_000_000], "user.inner": [1_000_000]}
    whole: list[tuple[str, int | None]] = [("user.outer", 5_100_000), ("user.outer", 6_000_000)]
    whole += [("user.inner", 1_000_000), ("overlapscope.forward", 4_000_000)]
    found = endings.range_figures(whole, timed)
    assert found == {
        "user_ranges_missing": 0, "user_ranges_error_ms": pytest.approx(0.1), "own_ranges": 1, "ranges_left_open": 0,
    }  # fmt: skip
    assert verdict("C13", **{**found, "own_ranges": 20}) == "accepted"
    ended_by_ours = [("user.outer", 2_000_000), *whole[1:]]
    assert verdict("C13", **{**endings.range_figures(ended_by_ours, timed), "own_ranges": 20}) == "refused"
    open_ended: list[tuple[str, int | None]] = [("user.outer", None), *whole[1:]]
    assert endings.range_figures(open_ended, timed)["user_ranges_missing"] == 1
    assert endings.range_figures(open_ended, timed)["ranges_left_open"] == 1


def test_a_changing_reading_is_compared_where_it_is_closest() -> None:
    assert inventory.least_difference_percent([(110.0, 100.0), (101.0, 100.0)]) == pytest.approx(1)
    assert verdict("C12a", power_difference_percent=inventory.least_difference_percent([(700.0, 70.0)])) == "refused"


def test_a_junit_document_is_counted() -> None:
    document = '<testsuites><testsuite tests="9" failures="1" errors="1" skipped="2"/></testsuites>'
    assert inventory.counted(document) == (5, 2, 2)
    assert verdict("C1", tests_failed=0, tests_passed=5) == "accepted"
    assert verdict("C1", tests_failed=2) == "refused"


def test_a_version_of_nccl_decides_whether_ranks_may_share_a_device() -> None:
    reason = inventory.REASONS["nccl 2.30"]
    assert reason({"nccl": "2.30.3"}) is None
    assert reason({"nccl": "3.0"}) is None
    assert reason({"nccl": "2.9.6"}) == "NCCL is 2.9.6: it may put two ranks on one device from 2.30 on"


def test_kernels_that_stand_for_transfers_are_communication_and_others_compute() -> None:
    program = spin.ptx((9, 0))
    assert program.startswith(".version 6.4\n.target sm_75\n")
    assert ".target sm_70\n" in spin.ptx((7, 0))
    found = {name: Classifier().place(name)[0] for name in re.findall(r"\.entry (\w+)\(", program)}
    assert found.keys() == {spin.COMPUTE, spin.TRANSFER}
    assert (found[spin.TRANSFER].role, found[spin.TRANSFER].op) == (COMMUNICATES, "all_reduce")
    assert found[spin.COMPUTE].role == UNPLACED  # which counts as computation


def test_blocks_are_paired_in_the_order_of_their_measurement() -> None:
    drifting = [[50e6 + 1e6 * at] * 3 for at in range(8)]
    mean, _ = whole_jobs.added_percent(drifting, drifting)
    assert mean == 0
    assert all(a[0] < b[0] for a, b in pairwise(drifting))
