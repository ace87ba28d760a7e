"""One table of colours: dashboard, HTML report, exported trace and documentation all draw with it."""

import json
import re
from pathlib import Path

import pytest

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.common.cause_table import CAUSES
from overlapscope.ingest.read_run import read_inputs
from overlapscope.report.formats import html
from overlapscope.report.palette import PALETTE, PATH_COLOURS
from overlapscope.report.perfetto.export import ExportSelection, PerfettoTrace
from overlapscope_dashboards.server.shell import document
from overlapscope_dashboards.theme import COLOURS, palette_rules
from tests.conftest import ROOT

CSS_COLOURS = re.compile(r"--c-(\w+): (#[0-9a-f]{6});")


@pytest.fixture(scope="module")
def run() -> object:
    return read_inputs([ROOT / "traces" / "regressed"])


def test_dashboard_report_and_documentation_have_the_colours_of_the_table(run: object) -> None:
    table = {name: each.rgb for name, each in PALETTE.items()}
    assert dict(COLOURS) == table
    report = html.render(analyze(run))
    for page in (document(), report, palette_rules()):
        assert dict(CSS_COLOURS.findall(page)) == table
    assert "palette_rules()" in (ROOT / "docs" / "site" / "build.py").read_text(encoding="utf-8")
    assert not set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{3,6})", report))


def test_series_of_a_report_have_the_colour_of_their_meaning(run: object) -> None:
    report = html.render(analyze(run))
    for words, colour in (("exposed communication", "exposed"), ("overlapped communication", "hidden"),
                          ("compute only", "compute"), ("memcpy only", "copy"), ("idle", "idle")):  # fmt: skip
        assert re.search(rf'<rect class="s-{colour}"[^>]*><title>rank 0: {words} ', report) or re.search(
            rf'<rect class="s-{colour}" width="16" height="16"/></svg>{words}<', report
        ), words
    patterns = [each.pattern for name, each in PALETTE.items() if name != "accent"]
    assert len(set(patterns)) == len(patterns)


def test_exported_tracks_of_results_name_the_colour_of_the_table(run: object) -> None:
    trace = json.loads("".join(PerfettoTrace(run=run, choice=ExportSelection(), version="0").pieces()))
    named = {name: each.viewer for name, each in PALETTE.items()}
    why = {each["args"]["cause"]: each["cname"] for each in trace["traceEvents"] if each.get("cat") == "exposed"}
    assert why
    assert why == {name: named[CAUSES[name].colour] for name in why}
    path = {each["args"]["part"]: each["cname"] for each in trace["traceEvents"] if each.get("cat") == "critical_path"}
    assert path
    assert path == {part: named[PATH_COLOURS[part]] for part in path}
    assert len(set(named.values())) == len(named)
    assert all("cname" not in each for each in trace["traceEvents"] if each.get("cat") in ("compute", "comm", "copy"))


def test_no_other_file_of_a_page_names_a_colour_of_the_table() -> None:
    rgb = {each.rgb for each in PALETTE.values()}
    for folder in ("overlapscope", "dashboards", "docs/site"):
        for file in Path(ROOT, folder).rglob("*"):
            if file.suffix in (".py", ".css", ".js") and file.name != "palette.py" and "site/site" not in str(file):
                found = rgb & set(re.findall(r"#[0-9a-f]{6}", file.read_text(encoding="utf-8")))
                assert not found, file
