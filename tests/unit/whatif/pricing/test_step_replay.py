"""Steps replayed, calculated by hand. Rows of 3,350,000 bytes take 1,000 ns, a gather of 8 MiB 43,400 ns."""

import pytest

from overlapscope.timeline.columns import HOST_SYNC, MEMORY
from overlapscope.whatif.pricing.calibration import times_of
from overlapscope.whatif.pricing.constants import usual
from overlapscope.whatif.pricing.devices import device
from overlapscope.whatif.pricing.links import links
from overlapscope.whatif.pricing.program import program_of
from overlapscope.whatif.pricing.recipe import Recipe
from overlapscope.whatif.pricing.step_replay import ReplayedStep, replayed
from tests.unit.whatif.pricing.dry_runs import Row, call, dry_run, wait

H100 = device("h100-sxm")
BOTH = links("8xh100-nvswitch,roce-400")
ONES = dict.fromkeys(usual(), 1.0)
MIB8, GATHER_NS = 8 << 20, 43_400.0


def work(ns: int, **others: str) -> Row:
    return Row(work=MEMORY, read=3350 * ns, **others)


def step(*rows: Row, groups: dict[str, range] | None = None, **values: float) -> ReplayedStep:
    given = {**ONES, **values}
    program = program_of(dry_run(rows, groups), 0)
    return replayed(program, BOTH, Recipe(), times_of(program, H100, BOTH, Recipe(), given), given)


def test_a_collective_that_compute_waits_for_at_once_is_exposed() -> None:
    found = step(work(1000), call("all_gather", MIB8, ready=0, needed=3), wait(1), work(500))
    assert found.step_ns == pytest.approx(1500 + GATHER_NS)
    assert found.exposed_comm_ns == pytest.approx(GATHER_NS)
    assert found.path_ns == pytest.approx({"exposed all_gather": GATHER_NS, "memory": 1500})
    assert (found.call_start_ns[0], found.call_end_ns[0]) == pytest.approx((1000, 1000 + GATHER_NS))
    assert found.row_start_ns[3] == pytest.approx(1000 + GATHER_NS)
    assert found.row_end_ns[3] == pytest.approx(found.step_ns)


def test_a_prefetched_collective_is_exposed_by_what_it_takes_longer() -> None:
    found = step(call("all_gather", MIB8, needed=3, stream="gather"), work(40_000), wait(0), work(10))
    assert found.exposed_comm_ns == pytest.approx(GATHER_NS - 40_000)
    hidden = step(call("all_gather", MIB8, needed=3, stream="gather"), work(50_000), wait(0), work(10))
    assert hidden.exposed_comm_ns == 0
    assert hidden.step_ns == pytest.approx(50_010)


def test_a_call_begins_where_its_last_row_has_ended_not_where_it_is_launched() -> None:
    early = step(
        work(10), work(50_000), call("all_gather", MIB8, ready=0, needed=4, stream="gather"), wait(2), work(10)
    )
    assert early.exposed_comm_ns == 0
    late = step(work(10), work(50_000), call("all_gather", MIB8, ready=1, needed=4, stream="gather"), wait(2), work(10))
    assert late.exposed_comm_ns == pytest.approx(GATHER_NS)


def test_calls_of_one_group_run_one_after_the_other() -> None:
    found = step(
        call("all_gather", MIB8, needed=4, stream="gather"),
        call("all_gather", MIB8, needed=4, stream="other"),
        work(10),
        wait(1),
        work(10),
    )
    assert found.call_start_ns[1] == pytest.approx(found.call_end_ns[0])
    assert found.step_ns == pytest.approx(2 * GATHER_NS + 10)


def test_a_call_waits_for_the_call_of_another_group_that_its_stream_waits_for() -> None:
    # HSDP: the all-reduce across replicas takes what the reduce-scatter within one has made.
    rows = [
        work(10),
        call("reduce_scatter", MIB8, ready=0, stream="scatter"),
        wait(1, stream="reduce"),
        call("all_reduce", MIB8, ready=0, needed=6, stream="reduce", group="1"),
        work(10),
        wait(3),
        work(10),
    ]
    found = step(*rows, groups={"1": range(0, 16, 8)})
    assert found.call_start_ns[1] == pytest.approx(found.call_end_ns[0])
    free = step(*[each for each in rows if each.awaited != 1], groups={"1": range(0, 16, 8)})
    assert free.call_start_ns[1] == pytest.approx(10)


def test_nothing_is_launched_before_the_host_has_the_value_it_waits_for() -> None:
    rows = [work(50_000), Row(work=HOST_SYNC), call("all_gather", MIB8, needed=4, stream="gather"), wait(2), work(10)]
    assert step(*rows).exposed_comm_ns == pytest.approx(GATHER_NS)
    del rows[1]
    rows[1].needed, rows[2].awaited = 3, 1
    assert step(*rows).exposed_comm_ns == 0


def test_a_call_that_nothing_waits_for_lengthens_no_step() -> None:
    assert step(work(10), call("all_reduce", MIB8, ready=0, stream="side"), work(10)).step_ns == pytest.approx(20)


def test_compute_beside_a_collective_is_slower_and_the_path_says_so() -> None:
    found = step(call("all_gather", MIB8, needed=2, stream="g"), work(100_000), wait(0), slowdown=1.25, slowed_comm=0.0)
    assert found.step_ns == pytest.approx(100_000 + GATHER_NS * 0.2)
    assert found.path_ns["slowed by communication"] == pytest.approx(GATHER_NS * 0.2)


def test_stragglers_count_across_nodes_alone() -> None:
    rows = [work(10), call("all_gather", MIB8, ready=0, needed=2, group="1"), work(10)]
    inside = step(*rows, groups={"1": range(8)}, stragglers=1.5)
    across = step(*rows, groups={"1": range(16)}, stragglers=1.5)
    assert "stragglers" not in inside.path_ns
    assert across.path_ns["stragglers"] == pytest.approx(across.step_ns / 3)


def test_the_path_sums_to_the_step() -> None:
    found = step(
        work(1000), call("all_gather", MIB8, ready=0, needed=3), wait(1), work(70_000),
        call("reduce_scatter", MIB8, ready=3, needed=7, stream="r"), work(20_000), wait(4), work(5),
        slowdown=1.3, stragglers=1.02,
    )  # fmt: skip
    assert sum(found.path_ns.values()) == pytest.approx(found.step_ns)


def test_faster_links_and_a_faster_device_never_make_a_step_longer() -> None:
    rows = [
        work(1000), call("all_gather", MIB8, ready=0, needed=3, group="1"), wait(1), work(70_000),
        call("reduce_scatter", MIB8, ready=3, needed=7, stream="r", group="1"), work(20_000), wait(4), work(5),
    ]  # fmt: skip
    program = program_of(dry_run(rows, {"1": range(0, 64, 8)}), 0)
    given = {**ONES, "slowdown": 1.3, "slowed_comm": 0.5}

    def step_ns(device_name: str, between: str) -> float:
        machine, own = device(device_name), links(f"8xh100-nvswitch,{between}")
        return replayed(program, own, Recipe(), times_of(program, machine, own, Recipe(), given), given).step_ns

    steps = [step_ns("h100-sxm", each) for each in ("ethernet-100", "ib-200", "ib-400")]
    assert steps == sorted(steps, reverse=True)
    assert step_ns("h200", "ib-200") < step_ns("h100-sxm", "ib-200") < step_ns("h100-pcie", "ib-200")
