"""Every format, judged by somebody else's reader: a schema validator, the reference parser, our published schemas."""

import json
from collections.abc import Callable

import jsonschema
import pytest

from overlapscope.analysis.compare import compare
from overlapscope.analysis.history import history
from overlapscope.analysis.scaling import scaling
from overlapscope.gate.verdict import Gate
from overlapscope.report.formats import json as as_json
from overlapscope.report.formats import junit, openmetrics
from overlapscope.report.sheet import scaling as scaling_text
from overlapscope.report.text import analysis as text
from overlapscope.report.text import compare as compare_text
from tests.conftest import ROOT
from tests.unit.analysis.compare.test_scaling import job_of, measured
from tests.unit.report.test_report import (
    EVIL,
    documents,
    hostile,
    small,
)


@pytest.fixture(autouse=True)
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_what_is_read_in_a_terminal_gives_its_golden_file(golden: Callable[[str, str], None]) -> None:
    run, comparison = documents()["run"], documents()["comparison"]
    golden("run_text.txt", text.render(run))  # type: ignore[arg-type]
    golden("comparison_text.txt", compare_text.render(comparison))  # type: ignore[arg-type]
    scaled = scaling([measured(job_of(2, [50], 30, 15), "two"), measured(job_of(4, [80], 30, 35), "four")])
    golden("scaling_text.txt", scaling_text.render(scaled))
    golden("scaling.json", as_json.render(scaled))
    golden("comparison.json", as_json.render(compare(small("a", 40), small("b", 60))))
    golden("history.json", as_json.render(history([*small("a", 40), *small("b", 60)])))


def test_json_is_valid_under_the_published_schemas() -> None:
    for document in documents().values():
        content = json.loads(as_json.render(document))
        name = content["schema"].removeprefix("overlapscope.").replace("/", "-")
        published = json.loads((ROOT / "docs" / f"overlapscope.{name}.schema.json").read_text(encoding="utf-8"))
        jsonschema.Draft202012Validator(published).validate(content)


def test_junit_is_valid_under_its_schema() -> None:
    xmlschema = pytest.importorskip("xmlschema", reason="xmlschema is not installed")
    schema = xmlschema.XMLSchema(str(ROOT / "tests" / "support" / "junit.xsd"))
    for document in [*documents().values(), *hostile(EVIL[4]).values()]:
        schema.validate(junit.render(document))
    broken = junit.render(documents()["gate"]).replace(' tests="', ' test="')
    assert not schema.is_valid(broken)
    assert schema.is_valid('<testsuites><testsuite name="a" tests="0"/></testsuites>')
    assert not schema.is_valid('<testsuites><testsuite name="a" tests="1"><testcase/></testsuite></testsuites>')


def test_the_reference_parser_reads_openmetrics_to_the_same_figures() -> None:
    parser = pytest.importorskip(
        "prometheus_client.openmetrics.parser", reason="prometheus-client is not installed"
    ).text_string_to_metric_families
    for kind, document in documents().items():
        families = {each.name: each for each in parser(openmetrics.render(document))}
        exposed = families[f"overlapscope_{'scaling_loss' if kind == 'scaling' else 'exposed_comm'}_seconds"]
        assert exposed.type == "gauge"
        assert exposed.unit == "seconds"
        if isinstance(document, Gate):
            values = {sample.labels["side"]: sample.value for sample in exposed.samples}
            metric = next(each for each in document.comparison.metrics if each.name == "exposed_comm_ns")
            assert values == {
                "base": (metric.base.value or 0) / 1e9,
                "candidate": (metric.candidate.value or 0) / 1e9,
            }
            assert families["overlapscope_gate_exit_code"].samples[0].value == 1
        assert len({str(sample) for sample in exposed.samples}) == len(exposed.samples), kind
    for document in hostile("]]>&amp;\"'}} 1\n# EOF\n").values():
        list(parser(openmetrics.render(document)))
