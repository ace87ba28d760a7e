"""One run has one value of each main figure, to the printed digit, whichever command, page or document shows it."""

import json
import re
from typing import Any

import pytest

from overlapscope.analysis.compare.compare import compare
from overlapscope.cli.main import main
from overlapscope_dashboards.compare import figures
from overlapscope_dashboards.runs.site import Site
from overlapscope_dashboards.views import overview, recommendations
from tests.conftest import ROOT

RUNS = ("baseline", "regressed")
DIGITS = r"([\d,]+\.\d{3})"


@pytest.fixture(autouse=True)
def _at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*words: str) -> str:
        assert main(words) in (0, 1)
        return capsys.readouterr().out

    return run


def in_ms(ns: float | None) -> str:
    assert ns is not None
    return f"{ns / 1e6:,.3f}"


def figures_of(text: str, pattern: str) -> tuple[str, ...]:
    """Return the figures that a pattern finds; `#` stands for one in milliseconds."""
    found = re.search(re.escape(pattern).replace(r"\#", DIGITS), text)
    assert found, (pattern, text)
    return found.groups()


@pytest.fixture
def heads(printed: Any) -> dict[str, dict[str, Any]]:
    """The headline of each run, from the JSON of `analyze`."""
    return {name: json.loads(printed("analyze", f"traces/{name}", "--json"))["headline"] for name in RUNS}


@pytest.fixture
def expected(heads: dict[str, dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """(exposed, step) of each run."""
    return {name: (in_ms(head["exposed_comm_ns"]), in_ms(head["step_ns"])) for name, head in heads.items()}


@pytest.mark.slow
def test_commands_that_open_one_run_agree(printed: Any, expected: dict[str, tuple[str, str]]) -> None:
    for name in RUNS:
        place = f"traces/{name}"
        for words in (["analyze", place], ["report", place, "--format", "md"], ["report", place, "--format", "html"]):
            assert figures_of(printed(*words), "# ms of a # ms step is exposed") == expected[name], words
        metrics = printed("report", place, "--format", "openmetrics")
        for family, at in (("exposed_comm", 0), ("step", 1)):
            shown = re.search(rf"^overlapscope_job_{family}_seconds (\S+)$", metrics, re.MULTILINE)
            assert shown
            assert in_ms(float(shown[1]) * 1e9) == expected[name][at]
        answer = json.loads(printed("whatif", place, "--json"))
        assert in_ms(answer["baseline"]["measured_step_ns"]) == expected[name][1]
        assert figures_of(printed("whatif", place), "a step takes # ms (measured)") == expected[name][1:]
        causes = printed("analyze", place).partition("why exposed")[2].partition("\n\n")[0]
        rows = re.findall(
            rf"^\S.*?{DIGITS}(?:  +[\d.]+ %)?  +[\d.]+ %$", causes, re.MULTILINE
        )  # parts of a sum stand below it, indented
        assert sum(map(float, rows)) == pytest.approx(float(expected[name][0]), abs=0.0005 * (len(rows) + 1))


@pytest.mark.slow
def test_commands_that_open_two_runs_agree(printed: Any, expected: dict[str, tuple[str, str]]) -> None:
    (exposed, step), (exposed_now, step_now) = (expected[name] for name in RUNS)
    both = ("traces/baseline", "traces/regressed")
    compared = printed("compare", *both, "--all")
    assert figures_of(compared, ": # to # ms a step") == (exposed, exposed_now)
    assert figures_of(compared.partition("Step time")[2], ": # to # ms.") == (step, step_now)
    for words in (["compare", *both, "--all"], ["gate", *both]):
        # The same words in any table: in the verdicts, among the metrics, and where the difference comes from.
        lines = [line.strip() for line in printed(*words).splitlines()]
        for line in lines:
            shown = re.search(
                rf"^(?:\w+  +)?(?:step  +)?(exposed(?:, by \w+| communication)?|step time)  +{DIGITS}  +{DIGITS}", line
            )
            if shown:
                side = (step, step_now) if shown[1] == "step time" else (exposed, exposed_now)
                assert shown.groups()[1:] == side, line
        assert sum(bool(re.match(r"(\w+  +)?(step  +)?exposed", line)) for line in lines) >= 2
    for words in (["compare", *both], ["gate", *both], ["report", *both]):
        document = json.loads(printed(*words, "--json"))
        metrics = {each["name"]: each for each in (document.get("comparison") or document)["metrics"]}
        for name, sides in (("exposed_comm_ns", (exposed, exposed_now)), ("step_time_ns", (step, step_now))):
            assert tuple(in_ms(metrics[name][side]["value"]) for side in ("base", "candidate")) == sides
    history = json.loads(printed("report", *both, "--history", "--json"))
    for run, name in zip(history["runs"], RUNS, strict=True):
        shown_values = tuple(in_ms(run["values"][each]) for each in ("exposed_comm_ns", "step_time_ns"))
        assert shown_values == expected[name]
    fleet = json.loads(printed("compare", "--fleet", "traces", "--json"))
    for run in fleet["runs"]:
        assert (in_ms(run["exposed_ns"]), in_ms(run["step_ns"])) == expected[run["name"]]


@pytest.mark.slow
def test_every_figure_of_the_headline_is_that_of_a_comparison(printed: Any, heads: dict[str, dict[str, Any]]) -> None:
    document = json.loads(printed("compare", "traces/baseline", "traces/regressed", "--json"))
    metrics = {each["name"]: each for each in document["metrics"]}
    metrics["step_ns"] = metrics["step_time_ns"]
    shared = [name for name, value in heads["baseline"].items() if name in metrics and value is not None]
    assert len(shared) >= 12
    for name in shared:
        sides = tuple(metrics[name][side]["value"] for side in ("base", "candidate"))
        assert sides == tuple(heads[run][name] for run in RUNS), name


def test_the_dashboard_agrees(expected: dict[str, tuple[str, str]], heads: dict[str, dict[str, Any]]) -> None:
    site = Site([ROOT / "traces"])
    opened = {each.name: site.run(each.id) for each in site.find_runs().runs}
    for name in RUNS:
        analysis = opened[name].analysis
        shown = {label: in_ms(value.ns) for label, value, _ in overview.key_figures(analysis)}
        assert (shown["Exposed"], shown["Step"]) == expected[name]
        assert figures_of(overview.lead(analysis).text, "# ms of a # ms step") == expected[name]
        (waited,) = figures_of(overview.happened(analysis)[0].text, "# ms of it is spent waiting for another rank")
        assert waited == in_ms(heads[name]["exposed_wait_ns"])
        assert (shown["Overlapped"], shown["Idle"]) == tuple(
            in_ms(heads[name][each]) for each in ("overlapped_ns", "idle_ns")
        )
        parts = overview.step(analysis)
        assert parts is not None
        assert (in_ms(parts.exposed_ns), in_ms(parts.whole_ns)) == expected[name]
        exposed = sum(each.ns for each in parts.segments if each.name.startswith("exposed"))
        assert in_ms(exposed) == expected[name][0]
        now = recommendations.current_step(analysis)
        assert (in_ms(now.exposed_ns), in_ms(now.step_ns)) == expected[name]
        for place in overview.by_place(analysis):
            assert in_ms(sum(row.ns for row in place.rows)) == expected[name][0]
    bars = figures.bars(compare([opened["baseline"].replicate], [opened["regressed"].replicate]))
    for name, bar in zip(RUNS, bars, strict=True):
        exposed = sum(each.ns for each in bar.segments if each.name.startswith("exposed"))
        assert (in_ms(exposed), in_ms(bar.whole_ns)) == expected[name]


@pytest.mark.slow
def test_pages_show_one_value_of_each_run(expected: dict[str, tuple[str, str]]) -> None:
    """Every line of README and docs that names a headline of a sample run has its value.

    A block under a mark `<!-- input: ... -->` is of another trace; tests of docs hold it to what the command prints.
    """
    (exposed, step), (exposed_now, step_now) = (expected[name] for name in RUNS)
    known = dict.fromkeys(("exposed", "exposed communication"), (exposed, exposed_now)) | {
        "step time": (step, step_now)
    }
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))]
    of_other_traces = re.compile(r"<!-- input: [^\n]*-->\n\n```text\n.*?^```", re.DOTALL | re.MULTILINE)
    lines = [line for page in pages for line in of_other_traces.sub("", page).splitlines()]
    seen = 0
    for line in lines:
        for row in re.finditer(rf"(?:^|  )(exposed(?: communication)?|step time)  +{DIGITS}  +{DIGITS}", line):
            seen += 1
            assert row.groups()[1:] == known[row[1]], line
        for sentence in re.finditer(rf"{DIGITS} ms of a {DIGITS} ms step is exposed", line):
            seen += 1
            assert sentence.groups() in expected.values(), line
    assert seen >= 6
