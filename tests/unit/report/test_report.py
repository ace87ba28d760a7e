"""`overlapscope report`: golden files of every format, what each format asks for, and names that are hostile."""

import json
import random
import re
from collections.abc import Callable, Iterator
from functools import cache
from html import unescape
from math import isfinite
from pathlib import Path
from typing import Any, get_args, get_type_hints
from xml.etree import ElementTree

import msgspec
import pytest
from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.compare.compare import compare
from overlapscope.analysis.compare.history import history
from overlapscope.analysis.compare.measured_run import MeasuredRun, measure_run
from overlapscope.analysis.compare.scaling import scaling
from overlapscope.analysis.result import Analysis, Recommendation
from overlapscope.cli.main import main
from overlapscope.cli.output import escaped, printable
from overlapscope.errors import InputError
from overlapscope.gate.judge import MetricOutcome
from overlapscope.gate.policy import Policy
from overlapscope.gate.verdict import Gate, GateOutcome, judge
from overlapscope.ingest.read_run import read_inputs
from overlapscope.report.formats import html, junit, markdown, openmetrics
from overlapscope.report.formats import json as as_json
from overlapscope.report.formats.github import MAX_ANNOTATIONS, annotations
from overlapscope.report.model import Sheet, Table
from overlapscope.report.rank_columns import COLUMNS, Column
from overlapscope.report.sheet import analysis as document_sheet
from overlapscope.report.sheet import gate_text
from overlapscope.report.sheet.analysis import sheet_of
from overlapscope.report.sheet.document import Document, decoded
from overlapscope.report.text import analysis as text
from overlapscope.report.verdicts import ADVICE, CONFIDENCE, GATE, TONES, tone_of
from overlapscope.timeline.run import Run
from overlapscope.whatif.result import WhatIf
from tests.conftest import ROOT
from tests.support.commands import failed, stdout_of
from tests.support.compared_runs import STEP_NS, Job, Rank, run_of

RENDERERS: dict[str, Callable[[Document], str]] = {
    "html": html.render,
    "md": lambda document: markdown.render(sheet_of(document)),
    "junit": junit.render,
    "openmetrics": openmetrics.render,
}
EVIL = (
    "::set-output name=a::b",
    "::error::boom",
    "##[error]boom",
    "##vso[task.setvariable variable=a]b",
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "a|b`c`**d**[e](http://f.example)![g](h)",
    "line\n::error::feed\r\nback\u2028more",
    "\x1b[2Jbeep\x07\x00\u202e\ufffe",
    "@everyone #1 www.example.com https://example.com _under_ ~~gone~~",
    "]]>&amp;\"'}} 1\n# EOF\n",
)


@cache
def documents() -> dict[str, Document]:
    """Return one of each kind, of the sample runs."""
    base, candidate = (read_inputs([Path("traces") / name]) for name in ("baseline", "regressed"))
    sides = [measure_run(base, "traces/baseline")], [measure_run(candidate, "traces/regressed")]
    return {
        "run": analyze(base),
        "comparison": compare(*sides),
        "gate": judge(*sides, Policy()),
        "history": history([*sides[0], *sides[0], *sides[1]]),
        "scaling": scaling([*sides[0], replace(sides[1][0], world_size=4)]),
    }


def small_run(length: int, group: str = "0", op: str = "all_reduce", **fingerprint: str) -> Run:
    """Five steps of some nanoseconds: short enough for their JSON to be read."""
    starts = range(0, 5 * STEP_NS, STEP_NS)
    calls = [(at, begin + 10, begin + 10 + length // 2, (op, 1000)) for at, begin in enumerate(starts)]
    computes = [(at, begin, begin + 10, op) for at, begin in enumerate(starts)]
    ranks = {0: Rank(calls=calls, computes=computes, steps=5)}
    return run_of(Job(ranks=ranks, lengths=[length] * 5, group=group, world_size=1, fingerprint=fingerprint))


def small(name: str, length: int, group: str = "0", op: str = "all_reduce", **fingerprint: str) -> list[MeasuredRun]:
    return [measure_run(small_run(length, group, op, **fingerprint), name)]


def test_every_verdict_has_its_words_and_colours_in_one_table() -> None:
    answers = get_args(get_type_hints(WhatIf)["verdict"])
    assert set(answers) | {"trial", "look"} == set(ADVICE)
    assert {*get_args(GateOutcome), *get_args(MetricOutcome), "kept", "not_kept"} == set(GATE)
    assert set(get_args(get_type_hints(Recommendation)["confidence"])) == set(CONFIDENCE)
    assert [tone_of(words) for words in ("not kept", "improved", "inconclusive", "all_reduce")] == [
        "bad",
        "good",
        "",
        "",
    ]
    colours = {colour for pair in TONES.values() for colour in pair}
    for sheet in ("overlapscope/report/formats/page.css", "dashboards/assets/style.css"):
        assert not colours & set(re.findall(r"#\w+", (ROOT / sheet).read_text(encoding="utf-8")))
    page = html.render(documents()["gate"])
    assert "@bad" not in page
    assert "@good" not in page


def test_the_columns_of_ranks_are_one_list_for_text_and_report(monkeypatch: pytest.MonkeyPatch) -> None:
    analysis = documents()["run"]
    assert isinstance(analysis, Analysis)
    more = [*COLUMNS, Column(label="my column", value=lambda figures: figures.compute_ns)]
    for module in (text, document_sheet):
        monkeypatch.setattr(module, "COLUMNS", more)
    header = next(line for line in text.render(analysis).splitlines() if line.startswith("ms "))
    assert re.split(r"  +", header)[1:] == [each.label for each in more]
    assert sheet_of(analysis).tables[0].head[1:] == tuple(each.label for each in more if each.in_report)
    assert sheet_of(analysis).tables[0].rows[0][-1] != "n/a"


@pytest.mark.usefixtures("at_root")
def test_every_renderer_gives_its_golden_file(golden: Callable[[str, str], None]) -> None:
    suffixes = {"html": "html", "md": "md", "junit": "xml", "openmetrics": "txt"}
    for kind, document in documents().items():
        for name, render in RENDERERS.items():
            golden(f"{kind}.{suffixes[name]}", render(document))
        if isinstance(document, Gate):
            golden("gate_text.txt", gate_text.render(document))
            golden("gate_annotations.txt", "\n".join(annotations(document)) + "\n")
    golden("gate.json", as_json.render(judge(small("a", 40), small("b", 60), Policy())))


@pytest.mark.usefixtures("at_root")
def test_saved_json_gives_the_same_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind, document in documents().items():
        saved = tmp_path / f"{kind}.json"
        saved.write_text(as_json.render(document), encoding="utf-8")
        for name, render in RENDERERS.items():
            assert stdout_of(capsys, "report", saved, "--format", name) == printable(render(document))
        assert json.loads(stdout_of(capsys, "report", saved, "--json")) == json.loads(as_json.render(document))


@pytest.mark.slow
@pytest.mark.usefixtures("at_root")
def test_a_run_and_two_runs_are_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    kept = (ROOT / "tests" / "golden" / "run.md").read_text(encoding="utf-8")
    assert stdout_of(capsys, "report", "traces/baseline") == kept
    target = tmp_path / "out.xml"
    assert main(["report", "traces/baseline", "traces/regressed", "--format", "junit", "-o", str(target)]) == 0
    assert target.read_text(encoding="utf-8") == (ROOT / "tests/golden/comparison.xml").read_text(encoding="utf-8")
    assert "exists already" in failed(capsys, 2, "report", "traces/baseline", "-o", target)


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed(capsys, 3, "report", tmp_path / "nothing")
    failed(capsys, 3, "report", "a", "b", "c")
    failed(capsys, 2, "report", "a", "--json", "--format", "junit")
    for content, words in (
        ('{"schema": "overlapscope.gate/1"', "damaged"),
        ('{"schema": "overlapscope.gate/1", "verdict": "fine"}', "damaged"),
        ('{"schema": "overlapscope.gate/7", "verdict": "fine"}', "newer"),
        ('{"schema": "overlapscope.analysis/1", "sources": ' + "[" * 100_000, "damaged"),
    ):
        (tmp_path / "saved.json").write_text(content, encoding="utf-8")
        message = failed(capsys, 3, "report", tmp_path / "saved.json")
        assert words in message
        assert "saved.json" in message


@pytest.mark.usefixtures("at_root")
def test_edited_json_is_a_report_or_one_clear_error() -> None:
    """Values of saved JSON, one after another, become others: each renderer answers, or the file is refused."""
    draw = random.Random(7)
    others = [None, 0, -1, 1e300, "x", [], {}, 10**30, True, "::error::\n# EOF\n| <b>"]
    answered = refused = 0
    for document in documents().values():
        content = as_json.render(document)
        for _ in range(120):
            edited = json.loads(content)
            inside, key = draw.choice(list(places(edited)))
            inside[key] = draw.choice(others)
            try:
                found = decoded(json.dumps(edited).encode())
            except InputError:
                refused += 1
                continue
            answered += 1
            check_junit(RENDERERS["junit"](found))
            check_openmetrics(RENDERERS["openmetrics"](found))
            assert_quiet(RENDERERS["md"](found))
            assert_quiet(RENDERERS["html"](found))
    assert answered > 50
    assert refused > 50


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each key of an object and each place of a list, with what holds it."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inside:
        yield value, key
        yield from places(each)


@pytest.mark.parametrize("parts", ["exposed_by_collective", "exposed_by_cause", "step_time"])
def test_a_part_that_names_no_collective_is_refused(
    parts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(as_json.render(judge(small("a", 40), small("b", 60), Policy())))
    for part in document["comparison"]["attribution"][parts]["parts"]:
        part["collective"] = -99
    (tmp_path / "saved.json").write_text(json.dumps(document), encoding="utf-8")
    assert "not there" in failed(capsys, 3, "report", tmp_path / "saved.json")


# --- what each format asks for ----------------------------------------------------------------------------------------


@cache
def junit_schema() -> Any:
    xmlschema = pytest.importorskip("xmlschema", reason="xmlschema is not installed")
    return xmlschema.XMLSchema(str(ROOT / "tests" / "support" / "junit.xsd"))


def check_junit(text: str) -> ElementTree.Element:
    """Validate it under its schema, and count, which no schema does."""
    junit_schema().validate(text)
    root = ElementTree.fromstring(text)
    for suite in root:
        assert int(suite.attrib["tests"]) == len(suite)
        found = [child.tag for case in suite for child in case]
        for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.attrib[attribute]) == found.count(tag)
    return root


def check_openmetrics(text: str) -> dict[str, Any]:
    """Read it with the reference parser, and check what that lets pass."""
    parser = pytest.importorskip("prometheus_client.openmetrics.parser", reason="prometheus-client is not installed")
    families = {each.name: each for each in parser.text_string_to_metric_families(text)}
    for each in families.values():
        assert each.type == "gauge"
        assert all(isfinite(sample.value) for sample in each.samples)
        samples = [tuple(sample.labels.items()) for sample in each.samples]
        assert len(samples) == len(set(samples)) > 0
    assert not re.search(r'(?<!\\)(?:\\\\)*\\[^\\"n]', text), "no other escapes"
    return families


@pytest.mark.usefixtures("at_root")
def test_junit_and_openmetrics_keep_their_rules() -> None:
    for kind, document in documents().items():
        root = check_junit(junit.render(document))
        families = check_openmetrics(openmetrics.render(document))
        assert root[0].attrib["name"] == f"overlapscope.{'analysis' if kind == 'run' else kind}"
        known = "overlapscope_step_time_seconds" if kind == "scaling" else "overlapscope_exposed_comm_seconds"
        assert known in families
        if isinstance(document, Gate):
            assert [case.attrib["name"] for case in root.iter("testcase") if case.find("failure") is not None] == [
                "step_time_ns", "exposed_comm_ns",
            ]  # fmt: skip
            metric = next(each for each in document.comparison.metrics if each.name == "exposed_comm_ns")
            assert {sample.labels["side"]: sample.value for sample in families[known].samples} == {
                "base": (metric.base.value or 0) / 1e9,
                "candidate": (metric.candidate.value or 0) / 1e9,
            }
            assert families[known].unit == "seconds"
            assert families["overlapscope_gate_exit_code"].samples[0].value == 1


def test_what_is_not_known_has_no_sample_and_is_skipped() -> None:
    gate = judge(small("a", 40), small("b", 60), Policy())
    text = openmetrics.render(gate)
    assert "overlapscope_exposed_wait_seconds" not in text
    case = next(
        each for each in check_junit(junit.render(gate)).iter("testcase") if each.attrib["name"] == "exposed_wait_ns"
    )
    assert case.find("skipped") is not None


def test_runs_that_cannot_be_compared_are_an_error_everywhere() -> None:
    gate = judge(small("a", 40, device="one"), small("b", 40, device="two"), Policy())
    assert gate.exit_code == 3
    assert [each.attrib["name"] for each in check_junit(junit.render(gate)).iter("testcase")] == ["comparable"]
    assert "NOT COMPARABLE: device one became two" in unescape(RENDERERS["md"](gate))
    assert len(annotations(gate)) == 1
    check_openmetrics(openmetrics.render(gate))


def test_a_page_that_is_too_long_is_cut_at_a_line_and_says_so() -> None:
    row = ("name" * 20, "1")
    sheet = Sheet(title="long", lead=(), tables=(Table(head=("a", "b"), rows=(row,) * 20_000),), warnings=(), notes=())
    page = markdown.render(sheet)
    assert len(page.encode()) <= markdown.LIMIT_BYTES
    assert page.endswith(markdown.CUT)
    assert page.removesuffix(markdown.CUT).splitlines()[-1] == f"| {row[0]} | 1 |"


# --- hostile names ----------------------------------------------------------------------------------------------------


@cache
def hostile(evil: str) -> dict[str, Document]:
    """Return documents of runs whose every name is hostile, so that each of them tells some."""
    base, candidate = (
        small(evil, 40, device=evil, torch_version="2"),
        small(evil, 90, evil, evil, device=evil, torch_version=evil),
    )
    strict = Policy(min_relative=0.0, min_absolute_ns=0, metrics=("exposed_comm_ns",), budgets={"exposed_comm_ns": 1})
    return {
        "run": analyze(small_run(90, evil, evil, device=evil, backend=evil)),
        "comparison": compare(base, candidate),
        "gate": judge(base, candidate, strict),
        "history": history([*base, *candidate]),
        "other job": judge(base, small("b", 40, device=f"not {evil}"), strict),
    }


def tells(text: str, evil: str) -> bool:
    """Return whether a text holds the longest word of a name, so that a test of it can fail."""
    return max(re.findall(r"[a-z]+", evil), key=len) in text


def assert_quiet(text: str) -> None:
    """No control character, and nothing that a CI service reads as a command."""
    assert all(each.isprintable() or each == "\n" for each in text)
    assert not re.search(r"^\s*::", text, re.MULTILINE)
    assert not re.search(r"##\w*\[", text)


def test_a_line_of_text_gives_no_command_wherever_a_name_stands() -> None:
    assert printable("::error::x\n  ::set-output name=a::b\nof a::b ##[error]c ##vso[d]e # ## x") == (
        "\\x3a:error::x\n  \\x3a:set-output name=a::b\nof a::b \\x23#[error]c \\x23#vso[d]e # ## x"
    )


@pytest.mark.parametrize("evil", EVIL)
def test_hostile_names_are_inert_in_text_and_json(evil: str) -> None:
    for document in hostile(evil).values():
        shown = escaped(as_json.render(document))
        assert_quiet(shown)
        assert msgspec.json.decode(shown) == msgspec.json.decode(as_json.render(document))
        assert decoded(shown.encode()) == document
        if isinstance(document, Gate):
            shown = printable(gate_text.render(document))
            assert tells(shown, evil)
            assert_quiet(shown)


@pytest.mark.parametrize("evil", EVIL)
def test_hostile_names_are_inert_in_markdown(evil: str) -> None:
    for document in hostile(evil).values():
        page = RENDERERS["md"](document)
        assert tells(page, evil)
        assert_quiet(page)
        assert len(re.findall(r"^### ", page, re.MULTILINE)) == 1
        bare = page.replace(markdown.APART, "")
        assert not re.search(r"<|`|\]|!\[|~|@|https?:|www\.", bare)
        # Every row of a table has the cells of its head: none was split.
        for block in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
            assert len({line.count("|") for line in block.splitlines()}) == 1
        # Bold and headings are ours: at the start of a line.
        assert all(re.match(r"(### |- \*\*|- |\| |\*The|[\w(])", line) for line in page.splitlines() if line)


@pytest.mark.slow
@pytest.mark.parametrize("evil", EVIL)
def test_hostile_names_are_inert_in_junit_and_openmetrics(evil: str) -> None:
    for document in hostile(evil).values():
        text = junit.render(document)
        assert tells(text, evil) or not isinstance(document, Gate)
        assert_quiet(text)
        tags = {each.tag for each in check_junit(text).iter()}
        assert tags <= {"testsuites", "testsuite", "testcase", "failure", "error", "skipped", "system-out"}
        exposition = openmetrics.render(document)
        assert_quiet(exposition)
        check_openmetrics(exposition)
        assert [line for line in exposition.splitlines() if line.strip() == "# EOF"] == ["# EOF"]


@pytest.mark.parametrize("evil", EVIL)
def test_hostile_names_give_github_no_command_of_their_own(evil: str) -> None:
    for document in hostile(evil).values():
        if isinstance(document, Gate):
            lines = annotations(document)
            assert 1 <= len(lines) <= MAX_ANNOTATIONS
            assert tells(lines[0], evil)
            for line in lines:
                assert line.startswith("::error title=OverlapScope::")
                assert all(each.isprintable() for each in line)
                assert not re.search(r"##\w*\[", line)
