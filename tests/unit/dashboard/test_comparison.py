"""The compare page: parts that add up, the gate's verdicts, and runs that cannot be compared."""

import re
from pathlib import Path

import pytest
from hypothesis import given

from overlapscope.analysis.compare.compare import compare, headline_attributions
from overlapscope.analysis.compare.measured_run import measure_run
from overlapscope.analysis.job_step.attribution import REST
from overlapscope.gate.policy import Policy
from overlapscope.gate.verdict import judge
from overlapscope_dashboards.compare import figures as view
from overlapscope_dashboards.compare.page import compare_address
from overlapscope_dashboards.runs.site import Site, parse_query
from overlapscope_dashboards.server import router
from overlapscope_dashboards.timeline.blocking_chain import blocking_chain
from tests.support.compared_runs import Job, jobs, run_of
from tests.support.dashboard_runs import copy_run, folder_of_runs, ids, words


def shown(site: Site, base: str, candidate: str) -> router.RenderedPage:
    path, _, query = compare_address(base, candidate).partition("?")
    return router.show(site, path, parse_query(query))


@pytest.mark.slow
def test_two_runs_are_compared_as_compare_and_gate_do(site: Site) -> None:
    known = ids(site)
    page = shown(site, known["baseline"], known["regressed"])
    said = words(page.content)
    assert page.status == 200
    assert "Exposed communication grew by 21.134 ms (+303.7 %): 6.960 to 28.093 ms a step." in said
    gate = judge([site.run(known["baseline"]).replicate], [site.run(known["regressed"]).replicate], Policy())
    rows = view.metric_rows(gate)
    verdicts = {each.name: each.verdict.replace("_", " ") for each in gate.metrics}
    assert [row.verdict for row in rows[:2]] == [verdicts["exposed_comm_ns"], verdicts["step_time_ns"]]
    assert {row.verdict for row in rows} - {""} <= set(verdicts.values())
    assert "REGRESSED" in said
    assert "Td(children='regressed', className='word bad')" in str(page.content)


@pytest.mark.slow
@given(jobs(), jobs())
def test_every_waterfall_goes_from_the_base_to_the_candidate(base: Job, candidate: Job) -> None:
    comparison = compare([measure_run(run_of(base), "a")], [measure_run(run_of(candidate), "b")])
    for drawn in view.waterfalls(comparison):
        at = drawn.base_ns
        for each in drawn.rows:
            assert each.from_ns == at
            at += each.candidate_ns - each.base_ns
            assert each.to_ns == at
        assert at == drawn.candidate_ns
    found = headline_attributions(comparison)
    over = next((part for part in found.step_time.parts if part.name == REST), None) if found else None
    for bar in view.bars(comparison):
        more = -min(0, getattr(over, f"{bar.side}_ns")) if over else 0
        assert sum(each.ns for each in bar.segments) == bar.whole_ns + more <= bar.drawn_ns
        metric = next(each for each in comparison.metrics if each.name == "exposed_comm_ns")
        exposed = sum(each.ns for each in bar.segments if each.name.startswith("exposed"))
        assert exposed == (getattr(metric, bar.side).value or 0)


@pytest.mark.slow
def test_the_page_begins_with_the_finding_and_the_picture(site: Site) -> None:
    known = ids(site)
    page = shown(site, known["baseline"], known["regressed"])
    headings = [each for each in said_by_heading(page.content) if each]
    assert headings[:2] == [
        "Regressed: a step takes 16.354 ms more, 124.179 → 140.533 ms (+13.2 %)",
        "The same step in both runs",
    ]
    assert headings.index("Difference in step time") < headings.index("Verdicts")
    back = shown(site, known["regressed"], known["baseline"])
    assert "Improved: a step takes 16.354 ms less, 140.533 → 124.179 ms (-11.6 %)" in words(back.content)
    same = shown(site, known["baseline"], known["baseline"])
    assert "Unchanged: a step takes 124.179 ms as before" in words(same.content)


def test_a_part_leads_to_its_longest_time_in_the_run_that_has_more_of_it(site: Site) -> None:
    known = ids(site)
    parts = str(shown(site, known["baseline"], known["regressed"]).content)
    longer = f"/runs/{known['regressed']}/timeline?chain=longest"
    assert all(f"{longer}-{kind}" in parts for kind in ("exposed", "dependency", "tail"))
    assert parts.count("chain=longest-idle'") == 1, "time outside the ranks' own steps is no idle time of theirs"
    assert f"/runs/{known['baseline']}/timeline?chain=longest-idle" in parts
    for name, kinds in (("regressed", ("exposed", "dependency", "tail")), ("baseline", ("idle",))):
        for kind in kinds:
            assert blocking_chain(site.run(known[name]), f"longest-{kind}", None).steps, kind


def said_by_heading(content: object) -> list[str]:
    """Return the headings of components, in order."""
    if isinstance(content, (list, tuple)):
        return [each for part in content for each in said_by_heading(part)]
    if type(content).__name__ in ("H1", "H2"):
        return [words(content)]
    return said_by_heading(getattr(content, "children", None) or ())


@pytest.mark.slow
def test_runs_of_other_jobs_have_no_verdict_and_say_why(site: Site, tmp_path: Path) -> None:
    run = copy_run(tmp_path / "runs" / "other")
    text = (run / "run.json").read_text(encoding="utf-8")
    assert '"device": "cpu"' in text or '"device":"cpu"' in text
    (run / "run.json").write_text(text.replace('"cpu"', '"H100"'), encoding="utf-8")
    copy_run(tmp_path / "runs" / "one")
    own = Site([tmp_path / "runs"])
    page = shown(own, ids(own)["one"], ids(own)["other"])
    said = words(page.content)
    assert said_by_heading(page.content)[0] == "Not comparable: device cpu became H100"
    assert "No metric has a verdict." in said
    assert "NOT COMPARABLE" not in said, "once is enough"


def test_a_comparison_that_is_made_says_how_far_it_is(site: Site) -> None:
    busy = router.busy(site, "/compare", {"base": ids(site)["baseline"], "candidate": "0123456789ab"})
    assert busy.title == "Compare"
    assert "base: " in words(busy.content)
    assert "candidate: " in words(busy.content)


def test_a_run_against_itself_has_not_changed(site: Site) -> None:
    one = ids(site)["baseline"]
    said = words(shown(site, one, one).content)
    assert "did not change" in said
    assert "regressed" not in re.sub(r"baseline|regressed ms", "", said)


def test_runs_without_times_say_so_and_are_shown_as_far_as_they_are_known(tmp_path: Path) -> None:
    folder_of_runs(tmp_path)
    log = tmp_path / "log"
    log.mkdir()
    (log / "run.json").write_text("{", encoding="utf-8")
    site = Site([tmp_path])
    page = shown(site, ids(site)["baseline"], ids(site)["log"])
    assert "run.json: damaged" in words(page.content)
    assert str(tmp_path) not in words(page.content)


def test_without_two_known_runs_the_page_says_what_there_is(site: Site) -> None:
    assert "Pick two" in words(router.show(site, "/compare", {}).content)
    page = shown(site, ids(site)["baseline"], "0123456789ab")
    assert page.status == 404
    assert "regressed" in words(page.content)


@pytest.mark.slow
def test_a_comparison_is_made_anew_when_a_side_changed(tmp_path: Path) -> None:
    site = Site([folder_of_runs(tmp_path / "runs")])
    one, other = ids(site)["baseline"], ids(site)["regressed"]
    before = shown(site, one, other)
    root = tmp_path / "runs"
    (root / "regressed").rename(tmp_path / "old")
    copy_run(root / "regressed")
    after = shown(site, one, other)
    assert after.revision != before.revision
    assert "did not change" in words(after.content)
