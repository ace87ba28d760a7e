"""The ranks page, without a browser."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.result import Analysis, SkewRank, Straggler
from overlapscope.analysis.telemetry import MEASURES, readings
from overlapscope.timeline.columns import Steps, make
from overlapscope_dashboards.runs.open_run import OpenRun
from overlapscope_dashboards.runs.site import Site, run_address
from overlapscope_dashboards.server import router
from overlapscope_dashboards.views import ranks as view
from tests.support.dashboard_runs import copy_run, ids, words


def _page(site: Site, **query: str) -> Any:
    return router.show(site, run_address(ids(site)["baseline"], "ranks"), query)


def test_the_page_says_who_waited_and_that_nobody_is_to_blame(site: Site) -> None:
    said = words(_page(site).content)
    assert "No straggler: no rank is late more often than chance explains." in said
    assert "72.262" in said
    assert "24 collectives matched across ranks." in said
    assert "Not recorded for these ranks: power, clock, utilisation" in said
    assert "Over the whole recording, matched collectives only." in said
    assert "chain=longest-waiting" in str(_page(site).content)


def test_one_rank_has_no_wait_to_show(tmp_path: Path) -> None:
    one = copy_run(tmp_path / "one")
    shutil.rmtree(one / "rank_00001")
    site = Site([tmp_path])
    shown = router.show(site, run_address(ids(site)["one"], "ranks"), {})
    assert "Only one rank was recorded" in words(shown.content)
    assert "matched collectives" not in words(shown.content)
    assert "chain=longest-waiting" not in str(shown.content)


def test_a_rank_that_does_not_exist_is_reported(site: Site) -> None:
    shown = _page(site, ranks="0,7")
    assert shown.status == 404
    assert "no rank 7" in words(shown.content)
    assert "rank 1" in words(shown.content)
    assert _page(site, ranks="1").status == 200
    assert _page(site, ranks="").status == 200


def test_who_held_others_up_is_named_with_the_evidence(analysis: Analysis) -> None:
    held = Straggler(rank=1, held_by="data_loading", blame_ns=5_000_000, evidence={"calls": 9, "chance": 1e-9})
    skew = replace(analysis.skew, stragglers=[held])
    result = replace(analysis, skew=skew)
    assert view.lead(result) == (
        "1 straggler among 2 ranks; rank 1 made other ranks wait 5.000 ms: "
        "data loading (it fetched a batch, or was between two steps)."
    )
    (late,) = view.late(result)
    assert "data loading (it fetched a batch, or was between two steps)" in late.sentence
    assert late.evidence == "arrived last at 9 calls; p < 0.0001"


def test_why_nobody_is_named(analysis: Analysis) -> None:
    unmatched = replace(analysis, skew=replace(analysis.skew, ranks=[]))
    assert "could be matched" in view.why_no_straggler(unmatched)
    assert view.key_figures(unmatched) == []
    one = replace(analysis, ranks=analysis.ranks[:1])
    assert "Only one rank was recorded" in view.why_no_straggler(one)


@pytest.mark.parametrize(("world", "expected"), [(2, "all of them"), (None, "world size not known")])
def test_all_ranks_are_said_to_be_there_only_where_it_is_known_how_many_there_are(
    analysis: Analysis, world: int | None, expected: str
) -> None:
    some = replace(analysis, run=replace(analysis.run, world_size=world))
    assert view.key_figures(some)[0][2] == (expected,)


def test_thousands_of_ranks_share_bars_that_show_the_most_of_them(analysis: Analysis) -> None:
    (info, _), (skew, _) = analysis.ranks, analysis.skew.ranks
    many = 4_000
    ranks = [replace(info, rank=rank) for rank in range(many)]
    waited: list[SkewRank] = [replace(skew, rank=rank, wait_ns=rank % 97 * 1_000_000) for rank in range(many)]
    result = replace(analysis, ranks=ranks, skew=replace(analysis.skew, ranks=waited))
    bars = view.bars(view.rows(result), "wait_ns")
    assert bars.width == 8
    assert len(bars.at) == 500
    assert list(bars.values_ms) == [max(rank % 97 for rank in range(at, at + 8)) for at in range(0, many, 8)]
    assert bars.words[0] == "ranks 0 to 7, maximum: rank 7"


def test_a_rank_of_which_nothing_is_known_has_no_bar_and_no_nought(analysis: Analysis) -> None:
    half = replace(analysis.skew, ranks=analysis.skew.ranks[:1])
    rows = view.rows(replace(analysis, skew=half))
    assert view.bars(rows, "wait_ns").values_ms[1] is None
    assert view.table_rows(rows)[1][1:5] == ("n/a", "n/a", "n/a", "n/a")


def test_ranks_are_chosen_by_address_else_by_what_they_did(analysis: Analysis) -> None:
    assert view.chosen("1,0,1", analysis) == ((1, 0), ())
    assert view.chosen("1,x,9", analysis) == ((1,), ("x", "9"))
    many = [replace(analysis.ranks[0], rank=rank) for rank in range(40)]
    held = Straggler(rank=33, held_by="host", blame_ns=1, evidence={})
    skew = replace(analysis.skew, stragglers=[held])
    result = replace(analysis, ranks=many, skew=skew)
    assert view.chosen(None, result)[0] == (0, 1, 2, 33)
    assert len(view.chosen(",".join(map(str, range(40))), result)[0]) == view.MAX_CHOSEN


def test_readings_stand_on_the_time_of_the_steps(opened: OpenRun) -> None:
    run, clocks = opened.run, opened.cross_rank.clocks
    found = readings(run, clocks, [0, 1])
    axis = view.axis(run, clocks, [0, 1], found)
    assert axis.title == "seconds from the first step"
    assert axis.words == "shaded: every other step of rank 0"
    assert [each.number for each in axis.shaded] == run.ranks[0].steps.step.tolist()[::2]
    assert axis.shaded[0].start_s == 0
    table = run.ranks[0].steps
    assert axis.shaded[-1].end_s == pytest.approx((table.end_ns[-2] - table.start_ns[0]) / 1e9)
    shown = view.panels(found, axis.origin_ns)
    last = (table.end_ns[-1] - table.start_ns[0]) / 1e9
    assert [each.title for each in shown] == ["host load, processes", "between steps, ms"]
    assert all(0 <= second <= last + 0.1 for panel in shown for line in panel.lines for second in line.seconds)
    assert set(view.not_recorded(found)) == {each.name for each in MEASURES} - {"host load", "between steps"}
    assert [row[-1] for row in view.reading_rows(found)] == ["6", "6", "5", "5"]


def test_without_steps_time_begins_with_the_first_reading(opened: OpenRun) -> None:
    clocks = opened.cross_rank.clocks
    bare = {
        rank: replace(each.at_hand(), steps=make(Steps, 0, recording=[], step=[], start_ns=[], end_ns=[]))
        for rank, each in opened.run.ranks.items()
    }
    run = replace(opened.run, ranks=bare)
    found = readings(run, clocks, [0, 1])
    axis = view.axis(run, clocks, [0, 1], found)
    assert axis.title == "seconds from the first reading"
    assert axis.words == "no steps were recorded for these ranks"
    seconds = [s for panel in view.panels(found, axis.origin_ns) for line in panel.lines for s in line.seconds]
    assert min(seconds) == 0
    raw = [each.telemetry.time_ns for each in bare.values()]
    longest = max(int(each.max()) for each in raw) - min(int(each.min()) for each in raw)
    assert max(seconds) <= longest / 1e9 + 0.1


def test_of_many_steps_few_are_shaded_and_unconnected_clocks_are_reported(opened: OpenRun) -> None:
    many = np.arange(1_000)
    steps = make(Steps, 1_000, recording=0, step=many, start_ns=many * 1_000, end_ns=many * 1_000 + 900)
    run = replace(
        opened.run, ranks={rank: replace(each.at_hand(), steps=steps) for rank, each in opened.run.ranks.items()}
    )
    axis = view.axis(run, Clocks(tied={0: 0, 1: 1}), [0, 1], [])
    assert axis.words.startswith("shaded: one step in 10 of rank 0; these ranks share no collective")
    assert [each.number for each in axis.shaded] == list(range(0, 1_000, 10))
