"""The Grafana dashboard asks only for metrics and labels of a real run, and is of the form that Grafana imports."""

import json
import re
from itertools import combinations
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as prometheus_text

import overlapscope
from overlapscope.report.formats import openmetrics
from tests.conftest import ROOT

PANELS = {"stat", "timeseries", "bargauge"}
"""Panels that come with Grafana."""
UNITS = {"s", "percentunit"}
OF_PUSHGATEWAY = {"run"}
"""Labels that a sample has by its way to Prometheus."""


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "docs" / "grafana.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def metrics() -> dict[str, set[str]]:
    """Return the labels of each metric of a real run."""
    text = openmetrics.render(overlapscope.load(ROOT / "traces" / "baseline").analysis())
    return {sample.name: set(sample.labels) for each in text_string_to_metric_families(text) for sample in each.samples}


def test_prometheus_own_format_reads_the_same_file(metrics: dict[str, set[str]]) -> None:
    """As the textfile collector and the Pushgateway read it."""
    text = openmetrics.render(overlapscope.load(ROOT / "traces" / "baseline").analysis())
    assert {each.name for family in prometheus_text(text) for each in family.samples} == set(metrics)


def targets(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for panel in dashboard["panels"] for each in panel["targets"]]


def test_every_metric_and_label_is_of_a_real_run(dashboard: dict[str, Any], metrics: dict[str, set[str]]) -> None:
    asked = set()
    for target in targets(dashboard):
        names = re.findall(r"overlapscope_\w+", target["expr"])
        asked |= set(names)
        assert names
        for name in names:
            assert name in metrics, target["expr"]
            labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert labels <= metrics[name] | OF_PUSHGATEWAY, target["legendFormat"]
    assert len(asked) > 8
    variables = json.dumps(dashboard["templating"])
    assert set(re.findall(r"overlapscope_\w+", variables)) <= set(metrics)


def test_queries_choose_by_the_run_and_are_balanced(dashboard: dict[str, Any]) -> None:
    variables = {each["name"] for each in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard["panels"])))
    assert used == variables == {"datasource", "run"}
    for target in targets(dashboard):
        asked = re.findall(r"overlapscope_\w+(\{[^}]*\})?", target["expr"])
        assert set(asked) == {'{run=~"$run"}'}
        assert target["expr"].count("(") == target["expr"].count(")")
    (run,) = (each for each in dashboard["templating"]["list"] if each["name"] == "run")
    assert (run["includeAll"], run["allValue"]) == (True, ".*"), "samples without the label are shown, too"


def test_the_form_is_the_one_that_grafana_imports(dashboard: dict[str, Any]) -> None:
    assert dashboard["id"] is None, "Grafana gives the number"
    assert isinstance(dashboard["schemaVersion"], int)
    assert {"uid", "title", "time", "templating", "annotations", "panels", "refresh", "version"} <= set(dashboard)
    assert len({each["id"] for each in dashboard["panels"]}) == len(dashboard["panels"])
    for panel in dashboard["panels"]:
        assert panel["type"] in PANELS
        assert panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert len({each["refId"] for each in panel["targets"]}) == len(panel["targets"])
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24, "Grafana's grid has 24 columns"


def test_no_panel_lies_on_another(dashboard: dict[str, Any]) -> None:
    for one, other in combinations([each["gridPos"] for each in dashboard["panels"]], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above


def test_seconds_are_shown_as_seconds_and_shares_as_shares(dashboard: dict[str, Any]) -> None:
    for panel in dashboard["panels"]:
        is_share = "_ratio" in panel["targets"][0]["expr"]
        assert (panel["fieldConfig"]["defaults"]["unit"] == "percentunit") == is_share
        assert is_share or all("_seconds" in each["expr"] for each in panel["targets"])


def test_the_exposed_share_is_that_of_analyze(dashboard: dict[str, Any]) -> None:
    """A median of shares: what the medians of two times would give is another figure."""
    head = overlapscope.load(ROOT / "traces" / "regressed").analysis()
    text = openmetrics.render(head)
    values = {each.name: each.value for family in text_string_to_metric_families(text) for each in family.samples}
    (panel,) = (each for each in dashboard["panels"] if each["title"] == "Exposed share of a step")
    (asked,) = (each["expr"].removesuffix('{run=~"$run"}') for each in panel["targets"])
    assert values[asked] == head.headline.exposed_fraction
    assert values["overlapscope_job_overlap_efficiency_ratio"] == head.headline.overlap_efficiency
