"""The collectives page, without a browser."""

from math import log2
from pathlib import Path

import msgspec
import pytest

from overlapscope.analysis.checks.links.possible_bandwidth import BandwidthCurve
from overlapscope.analysis.exposure.operation_times import OpTime
from overlapscope.analysis.result import Analysis
from overlapscope.whatif.cost.recorded_curves import recorded_curves
from overlapscope_dashboards.pages import collectives as page
from overlapscope_dashboards.runs.site import Site, run_address
from overlapscope_dashboards.server import router
from overlapscope_dashboards.views import collectives as view
from tests.support.dashboard_runs import folder_of_runs, ids, words


def test_the_page_tells_transfer_from_waiting(site: Site) -> None:
    said = words(router.show(site, run_address(ids(site)["baseline"], "collectives"), {}).content)
    assert "8.194 of 38.495 ms in matched collectives is wait time (21.3 %)" in said
    assert "4.506 MiB" in said
    assert "NCCL_DEBUG_SUBSYS" in said


def test_an_unknown_operation_names_those_that_there_are(site: Site) -> None:
    shown = router.show(site, run_address(ids(site)["baseline"], "collectives"), {"op": "broadcast"})
    assert shown.status == 404
    assert "all_reduce" in words(shown.content)


def test_bounds_are_marked_and_stand_apart(analysis: Analysis) -> None:
    (row,) = analysis.collectives
    bind_all = msgspec.structs.replace(row, estimate="upper_bound", bytes=1 << 20, baseline_ns=None)
    (found,) = view.series(recorded_curves([row, bind_all]))
    assert found.matched.sizes_bytes == (4_724_736,)
    assert found.bounds.sizes_bytes == (1 << 20,)
    assert found.line is None
    cells = view.kinds([row, bind_all]).rows
    assert [each[-1] for each in cells] == ["0.708", "≥ 0.708"]
    assert [each[2] for each in view.point_rows([found], [])] == ["measured", "bound: includes wait time"]


def test_far_sizes_are_joined_by_a_guess_and_close_ones_by_a_curve(analysis: Analysis) -> None:
    (row,) = analysis.collectives
    rows = [
        msgspec.structs.replace(row, bytes=size, transfer_ns_median=time)
        for size, time in ((1 << 10, 1e4), (1 << 20, 1e6), (1 << 22, 3e6))
    ]
    (found,) = view.series(recorded_curves(rows))
    assert found.line is not None
    assert found.guess is not None
    drawn = [each for each in found.line.sizes_bytes if each == each]  # noqa: PLR0124 - NaN is not itself
    assert (min(drawn), max(drawn)) == pytest.approx((1 << 20, 1 << 22))
    assert min(found.guess.sizes_bytes[:-1]) == pytest.approx(1 << 10)


def test_columns_of_which_nothing_is_known_are_left_out(analysis: Analysis) -> None:
    (row,) = analysis.collectives
    plain = view.kinds([row])
    assert "algorithm" not in plain.head
    assert view.is_algorithm_unknown([row])
    result = msgspec.structs.replace(row, algorithm="RING", protocol="LL128")
    assert {"algorithm", "protocol"} < set(view.kinds([result]).head)
    assert not view.is_algorithm_unknown([result])
    assert view.count_word_columns(plain) == plain.head.index("size")


def test_tables_are_compared_with_calls_of_their_operation_and_ranks(analysis: Analysis) -> None:
    def table(op: str, ranks: int | None) -> BandwidthCurve:
        return BandwidthCurve(source="t", op=op, ranks=ranks, sizes=(1024, 2048), busbw_gbs=(1.0, 2.0))

    given = [table("all_reduce", 2), table("all_reduce", 4), table("all_gather", 2), table("all_reduce", None)]
    assert len(view.matching_benchmarks(given, recorded_curves(analysis.collectives))) == 2


def test_marks_of_sizes_are_few_and_powers_of_two() -> None:
    for sizes in ([4_724_736.0], [32768.0, 67_108_864.0], [1.0, 2.0**40]):
        axis = view.size_axis(sizes)
        assert 2 <= len(axis.at) <= view.MOST_TICKS + 1
        assert all(log2(each).is_integer() for each in axis.at)
        assert 10 ** axis.decades[0] < min(sizes)
        assert 10 ** axis.decades[1] > max(sizes)


def test_what_takes_longest_is_named() -> None:
    times = [
        OpTime(op="all_gather", group="g", group_size=4, ranks=4, calls=2, transfer_ns=3e6, wait_ns=1e6, unsplit_ns=0),
        OpTime(op="send", group=None, group_size=None, ranks=4, calls=2, transfer_ns=0, wait_ns=0, unsplit_ns=2e6),
    ]
    said = view.lead(times, "step")
    assert "1.000 of 4.000 ms in matched collectives is wait time (25.0 %)" in said
    assert "2.000 ms could not be separated" in said
    assert "all_gather, group g of 4" in said
    assert view.lead([], "step") == ""


@pytest.mark.parametrize(("value", "shown"), [(0.70835, "0.708"), (194.76, "195"), (1234.5, "1,234"), (None, "n/a")])
def test_bandwidths_have_three_digits(value: float | None, shown: str) -> None:
    assert view.gbs(value) == shown


def test_a_run_without_collectives_says_what_to_record(tmp_path: Path) -> None:
    site = Site([folder_of_runs(tmp_path / "runs")])
    opened = site.run(ids(site)["baseline"])
    empty = msgspec.structs.replace(opened.analysis, collectives=[])
    opened._results["analysis"] = empty
    said = words(router.show(site, run_address(opened.id, "collectives"), {}).content)
    assert "No collective was recorded" in said
    assert "overlapscope.profile" in said


def test_a_table_that_is_cut_says_so() -> None:
    many = view.MAX_KINDS + 5
    line = view.BandwidthLine(sizes_bytes=tuple(float(at + 1) for at in range(many)), busbw_gbs=(1.0,) * many)
    said = words(page._points_table((), (("all_reduce, here", line),), None))
    assert f"The first {view.MAX_KINDS} of {many} points." in said
    short = view.BandwidthLine(sizes_bytes=(1.0,), busbw_gbs=(1.0,))
    assert "The first" not in words(page._points_table((), (("all_reduce, here", short),), None))
