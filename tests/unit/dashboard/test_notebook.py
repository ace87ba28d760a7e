"""What a notebook shows of a run: figures of `analyze`, spans of the tables, nothing that runs or loads."""

import json
import re
from html import unescape
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from msgspec.structs import replace

import overlapscope
from overlapscope import InputError, UsageError
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.result import Analysis
from overlapscope.loaded_run import LoadedRun
from overlapscope.report.formats import json as documents
from overlapscope.report.formatting import ms, percent
from overlapscope.report.text import analysis as text
from overlapscope.timeline.run import TABLES
from overlapscope_dashboards.notebook.looks import background, looks
from overlapscope_dashboards.notebook.overview import MOST_WARNINGS, overview_html
from tests.conftest import ROOT
from tests.support.dashboard_runs import figure_numbers
from tests.unit.whatif.pricing.dry_runs import call, dry_run


@pytest.fixture(scope="module")
def run() -> LoadedRun:
    return overlapscope.load(ROOT / "traces" / "regressed")


@pytest.fixture(scope="module")
def without_times() -> LoadedRun:
    return LoadedRun(dry_run([call("all_reduce", 1 << 20)]))


def rows(shown: str) -> dict[str, tuple[str, str]]:
    """Return milliseconds and share of each row of the table."""
    found = re.findall(r'<tr><th class="word">(?:<i [^>]*></i>)?([^<]*)</th><td>([^<]*)</td><td>([^<]*)</td>', shown)
    return {unescape(name): (taken, share) for name, taken, share in found}


def numbers(column: Any) -> Any:
    return figure_numbers(column) if isinstance(column, dict) else np.asarray(column, np.float64)


def bars(figure: go.Figure, *names: str) -> list[tuple[int, int, int]]:
    """Return row, start and end in ns of the bars of some traces, without those drawn twice for their names."""
    found = []
    for trace in figure.data:
        if trace.type == "bar" and trace.name in names and trace.marker.color != "rgba(0,0,0,0)":
            starts, lengths = numbers(trace.base), numbers(trace.x)
            for place, start, length in zip(numbers(trace.y), starts, lengths, strict=True):
                found.append((int(place), round(start * 1e6), round((start + length) * 1e6)))
    return sorted(found)


# --- the overview -----------------------------------------------------------------------------------------------------


def test_the_overview_has_the_figures_of_analyze_to_the_digit(run: LoadedRun) -> None:
    shown, head = run._repr_html_() or "", json.loads(documents.render(run.analysis()))["headline"]
    printed = text.render(run.analysis())
    lead = unescape(re.findall(r'<p class="lead">([^<]*)</p>', shown)[0])
    assert lead in " ".join(printed.split())
    table = rows(shown)
    assert table["step"][0] == ms(head["step_ns"])
    assert table["compute only"] == (ms(head["compute_only_ns"]), percent(head["compute_only_ns"] / head["step_ns"]))
    assert table["overlapped communication"][0] == ms(head["overlapped_ns"])
    exposed = [taken for name, (taken, _) in table.items() if name.startswith("exposed: ")]
    assert sorted(exposed) == sorted(map(ms, head["causes"].values()))
    idle = [taken for name, (taken, _) in table.items() if name.startswith("idle: ")]
    assert sorted(idle) == sorted(map(ms, head["idle_causes"].values()))


def test_the_bar_is_to_scale(run: LoadedRun) -> None:
    shown = run._repr_html_() or ""
    drawn = re.findall(r'<span style="width:([\d.]+)%;[^"]*" title="[^"]*: ([\d.,]+) ms">', shown)
    table = rows(shown)
    step_ms = max(float(table.pop("step")[0]), sum(float(taken) for taken, _ in table.values()))
    assert len(drawn) == len(table)
    for width, taken in drawn:
        assert abs(float(width) / 100 - float(taken) / step_ms) * 960 < 1


def test_the_overview_loads_and_runs_nothing_and_shows_names_as_text(run: LoadedRun) -> None:
    evil = '<script>alert(1)</script><img src=x onerror="alert(1)">\x1b[31m'
    planted = Finding(id="straggler", severity="warning", title=evil, evidence={}, known_from="test")
    advised = [replace(each, title=evil) for each in run.analysis().recommendations]
    shown = overview_html(replace(run.analysis(), findings=[planted] * 9, recommendations=advised))
    assert "&lt;script&gt;" in shown
    assert not re.search(r"<script|<img|\x1b|https?:|url\(|@import| on\w+=\"", shown)
    assert f"{9 - MOST_WARNINGS} more warnings" in shown
    style = re.findall(r"<style>(.*?)</style>", shown, re.DOTALL)[0]
    assert all(line.startswith(".overlapscope") for line in style.strip().splitlines()), "rules of nobody else's page"
    assert not re.search(r"(?<!-)color: (?!inherit)", style), "text has the colour of the page around it"


def test_the_protocol_of_ipython(run: LoadedRun) -> None:
    bundle = run._repr_mimebundle_(include=None, exclude=None)
    assert bundle["text/html"] == run._repr_html_()
    assert bundle["text/plain"] == text.render(run.analysis())


def test_a_run_that_cannot_be_read_any_more_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    run = overlapscope.load(ROOT / "traces" / "regressed")

    def gone() -> Analysis:
        raise InputError("host.parquet has changed since the run was opened")

    monkeypatch.setattr(run, "analysis", gone)
    assert run._repr_html_() is None, "IPython shows a traceback where this raises"
    plain = "<overlapscope run: ranks [0, 1] of 2>\nhost.parquet has changed since the run was opened"
    assert run._repr_mimebundle_() == {"text/plain": plain}


def test_a_run_without_times_is_shown_as_analyze_prints_it(without_times: LoadedRun) -> None:
    shown = without_times._repr_html_() or ""
    assert unescape(re.findall(r"<pre>(.*?)</pre>", shown, re.DOTALL)[0]) == text.render(without_times.analysis())
    for draw in (without_times.timeline, without_times.waterfall):
        with pytest.raises(InputError, match="no") as refused:
            draw()
        assert "\n" not in str(refused.value)


def test_every_kind_has_a_look() -> None:
    kinds = ("compute", "hidden", "copy", "idle", "more", "less", "peer_compute", "idle-launch_bound", "unheard-of")
    assert all(re.fullmatch(r"#[0-9a-f]{6}", looks(kind)[0]) for kind in kinds)
    assert looks("peer_comm")[0] == looks("peer_compute")[0] != looks("compute")[0]
    assert background("peer_comm") != background("peer_compute")


# --- the timeline -----------------------------------------------------------------------------------------------------


def test_the_timeline_of_a_step_draws_every_span_of_it_at_its_time(run: LoadedRun) -> None:
    figure = run.timeline(step=5, ranks=[1])
    begin, end = (round(each * 1e6) for each in figure.layout.xaxis.range)
    clocks = match_and_align(run.run).clocks
    aligned = {rank: clocks.aligned_ns(rank, own.spans.start_ns) for rank, own in run.run.ranks.items()}
    origin = min(int(each.min()) for each in aligned.values())
    spans = run.run.ranks[1].spans
    starts, ends = (clocks.aligned_ns(1, each) - origin for each in (spans.start_ns, spans.end_ns))
    inside = sorted(
        (start, stop)
        for start, stop in zip(starts.tolist(), ends.tolist(), strict=True)
        if stop > begin and start < end
    )
    assert (spans.step[(starts >= begin) & (ends <= end)] == 5).any()
    assert len(inside) > 10
    assert sorted(each[1:] for each in bars(figure, "compute", "hidden", "copy")) == inside


def test_the_timeline_of_all_shows_all_ranks(run: LoadedRun) -> None:
    whole = run.timeline()
    heat = next(each for each in whole.data if each.name == "map")
    assert np.asarray(heat.z).shape[0] == len(run.ranks)
    assert whole.layout.yaxis.ticktext == ("rank 0", "rank 1")
    assert "map" in {each.name for each in run.timeline(window_ms=(10.0, 20.0)).data}
    cut = run.timeline(window_ms=(10.0, 20.0)).layout.xaxis.range
    assert cut == (10.0, 20.0)


def test_rows_of_the_host_and_the_critical_path_are_added_on_demand(run: LoadedRun) -> None:
    plainly, more = (
        run.timeline(step=4).layout.yaxis2.ticktext, run.timeline(step=4, critical_path=True).layout.yaxis2.ticktext
    )  # fmt: skip
    assert set(more) - set(plainly) == {"critical path"}
    assert len(run.timeline(step=4, host=True).layout.yaxis2.ticktext) >= len(plainly)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"step": 99}, "step 99 was not recorded; there are steps 3, 4, 5, 6, 7, 8"),
        ({"ranks": [7]}, "rank 7 was not recorded; there are ranks 0, 1"),
        ({"ranks": []}, "ranks is empty: name one of 0, 1, or leave it out"),
        ({"step": 4, "window_ms": (0, 1)}, "name a step or a window_ms, not both"),
    ],
)
def test_what_was_not_recorded_is_refused_in_one_line(run: LoadedRun, asked: Any, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        run.timeline(**asked)
    assert str(refused.value) == message


# --- waterfalls -------------------------------------------------------------------------------------------------------


def edges(figure: go.Figure) -> dict[str, tuple[float, float]]:
    """Return start and end in ms of each bar by its name."""
    (trace,) = figure.data
    ends = numbers(trace.base) + numbers(trace.x)
    return {
        name: (float(start), float(end)) for name, start, end in zip(trace.customdata, trace.base, ends, strict=True)
    }


def test_the_waterfall_of_a_step_leads_to_the_step_of_analyze(run: LoadedRun) -> None:
    found, head = edges(run.waterfall()), run.analysis().headline
    *parts, whole = found.values()
    assert parts[0][0] == 0
    assert all(before[1] == pytest.approx(after[0]) for before, after in pairwise(parts))
    assert parts[-1][1] == pytest.approx(whole[1]) == pytest.approx((head.step_ns or 0) / 1e6)
    start, end = found["compute only"]
    assert end - start == pytest.approx((head.compute_only_ns or 0) / 1e6)
    assert ms(head.compute_only_ns) in run.waterfall().data[0].text[0]


@pytest.mark.slow
@pytest.mark.parametrize("by", ["part", "cause", "collective"])
def test_the_waterfall_of_a_difference_leads_from_one_run_to_the_other(run: LoadedRun, by: Any) -> None:
    base = overlapscope.load(ROOT / "traces" / "baseline")
    found, compared = edges(base.waterfall(run, by=by)), base.compare(run)
    name = "step_ns" if by == "part" else "exposed_comm_ns"
    heads = [getattr(each.analysis().headline, name) for each in (base, run)]
    first, *parts, last = found.values()
    assert compared.same_job
    assert first == pytest.approx((0, parts[0][0]))
    assert last == pytest.approx((0, parts[-1][1]))
    assert [first[1] * 1e6, last[1] * 1e6] == pytest.approx(heads, rel=0.02), "means beside medians"


def test_a_split_that_does_not_exist_is_refused(run: LoadedRun) -> None:
    with pytest.raises(UsageError, match="by='colour': it is one of part, cause, collective"):
        run.waterfall(run, by="colour")  # type: ignore[arg-type]


# --- frames -----------------------------------------------------------------------------------------------------------


def test_medians_of_the_steps_are_the_headline(run: LoadedRun) -> None:
    steps, head = run.steps(), run.analysis().headline
    assert len(steps) == head.steps
    assert median(steps.exposed_comm_ns.tolist()) == pytest.approx(head.exposed_comm_ns, abs=1)
    parts = steps.drop(columns=["step", "step_ns"])
    assert (parts.sum(axis=1) == steps.step_ns).all()


def test_causes_add_up_to_the_breakdown(run: LoadedRun) -> None:
    sums = run.causes().fillna({"step": -1}).groupby(["rank", "step", "state"]).time_ns.sum()
    windows = run.breakdown().fillna({"step": -1})
    assert len(windows) == 14
    for rank, step, exposed_ns, idle_ns in windows[["rank", "step", "exposed_comm_ns", "idle_ns"]].itertuples(
        index=False
    ):
        assert sums[(rank, step, "exposed")] == exposed_ns
        assert sums.get((rank, step, "idle"), 0) == idle_ns


def test_frames_have_the_rows_of_the_analysis_and_types_that_hold_their_values(run: LoadedRun) -> None:
    analysis = run.analysis()
    frames = {"collectives": run.collectives(), "findings": run.findings(), "recommendations": run.recommendations()}
    for name, frame in frames.items():
        assert len(frame) == len(getattr(analysis, name))
    assert frames["collectives"].exposed_ns.tolist() == [each.exposed_ns for each in analysis.collectives]
    assert frames["recommendations"].id.tolist() == [each.id for each in analysis.recommendations]
    assert {str(kind) for frame in frames.values() for kind in frame.dtypes} <= {
        "string",
        "Int64",
        "Float64",
        "boolean",
    }


def test_columns_of_arrow_share_the_memory_of_the_run(run: LoadedRun) -> None:
    shared, copied = (run.table("spans", 0, dtype_backend=each) for each in ("pyarrow", "numpy_nullable"))
    column = shared.start_ns.array.__arrow_array__().chunk(0)
    assert column.buffers()[1].address == run.run.ranks[0].spans.start_ns.ctypes.data
    assert shared.start_ns.tolist() == copied.start_ns.tolist()
    for name in TABLES:
        assert list(run.table(name, 0, dtype_backend="pyarrow").columns) == list(run.table(name, 0).columns)
