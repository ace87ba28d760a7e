"""One table of colours: dashboard, HTML report, exported trace and documentation all draw with it."""

import json
import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

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


PAPERS = ("#ffffff", "#f7f7f5", "#191c20", "#111315")
"""Backgrounds of the dashboard and the documentation, light and dark."""
LEAST_CONTRAST, LEAST_APART = 3.0, 9.0
EYES = {
    # Machado, Oliveira and Fernandes 2009, at full severity, on linear RGB.
    "normal": np.eye(3),
    "protan": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                        [-0.003882, -0.048116, 1.051998]]),
    "deutan": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                        [-0.011820, 0.042940, 0.968881]]),
    "tritan": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                        [0.004733, 0.691367, 0.303900]]),
}  # fmt: skip
BESIDE = (
    ("compute", "hidden", "exposed", "waiting", "launch", "copy", "idle"),  # parts of a step
    ("host", "launch", "compute", "exposed", "copy", "idle"),  # parts of a critical path
)


def linear(colour: str) -> NDArray[np.float64]:
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def oklab(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return linear RGB in the colour space of Ottosson 2020."""
    cones = np.cbrt(np.array([[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
                              [0.0883024619, 0.2817188376, 0.6299787005]]) @ np.clip(rgb, 0, 1))  # fmt: skip
    return np.array([[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
                     [0.0259040371, 0.7827717662, -0.8086757660]]) @ cones  # fmt: skip


@pytest.mark.parametrize("name", PALETTE)
def test_a_colour_stands_out_from_every_background(name: str) -> None:
    def light(colour: str) -> float:
        return float(linear(colour) @ [0.2126, 0.7152, 0.0722]) + 0.05

    own = light(PALETTE[name].rgb)
    for paper in PAPERS:
        assert max(own, light(paper)) / min(own, light(paper)) >= LEAST_CONTRAST, paper


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("beside", BESIDE, ids=["step", "path"])
def test_parts_side_by_side_are_distinct_colours_for_all_eyes(eyes: str, beside: tuple[str, ...]) -> None:
    seen = {name: 100 * oklab(EYES[eyes] @ linear(PALETTE[name].rgb)) for name in beside}
    apart = {(one, other): float(np.linalg.norm(seen[one] - seen[other])) for one, other in combinations(beside, 2)}
    least = LEAST_APART if beside is BESIDE[0] else LEAST_APART - 1
    assert min(apart.values()) >= least, min(apart, key=lambda pair: apart[pair])


def test_no_other_file_of_a_page_names_a_colour_of_the_table() -> None:
    rgb = {each.rgb for each in PALETTE.values()}
    for folder in ("overlapscope", "dashboards", "docs/site"):
        for file in Path(ROOT, folder).rglob("*"):
            if file.suffix in (".py", ".css", ".js") and file.name != "palette.py" and "site/site" not in str(file):
                found = rgb & set(re.findall(r"#[0-9a-f]{6}", file.read_text(encoding="utf-8")))
                assert not found, file
