"""Callbacks of pages: one that fails says so, and one that takes long holds up nobody."""

import logging
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from overlapscope_dashboards.app import create_app
from overlapscope_dashboards.pages import overview
from overlapscope_dashboards.site import Site, run_address
from tests.dashboard_runs import copy_run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return copy_run(tmp_path / "run")


@pytest.fixture
def path(root: Path) -> str:
    return run_address(Site([root]).places().places[0].id)


def called(client: Any, output: str, inputs: dict[str, Any], states: dict[str, Any]) -> Any:
    """Call the callback with this output as a browser does."""
    (spec,) = (
        each for each in client.get("/_dash-dependencies").json
        if output in each["output"] and all(f"{one['id']}.{one['property']}" in inputs for one in each["inputs"])
    )  # fmt: skip

    def given(each: dict[str, str], values: dict[str, Any]) -> dict[str, Any]:
        return {**each, "value": values.get(f"{each['id']}.{each['property']}")}

    names = [each.rpartition(".") for each in spec["output"].strip(".").split("...")]
    outputs = [{"id": name, "property": what.partition("@")[0]} for name, _, what in names]
    body = {
        "output": spec["output"],
        "outputs": outputs if spec["output"].startswith("..") else outputs[0],
        "inputs": [given(each, inputs) for each in spec["inputs"]],
        "state": [given(each, states) for each in spec["state"]],
        "changedPropIds": [next(iter(inputs))],
    }
    return client.post("/_dash-update-component", json=body)


def test_a_fault_is_said_and_the_page_that_grows_comes_back(
    root: Path, path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr(overview, "recommended", fail)
    client = create_app([root]).server.test_client()
    with caplog.at_level(logging.CRITICAL):
        answer = called(client, "overview-advice.children", ADVICE, {"address.pathname": path})
    assert "A fault" in str(answer.json["sideUpdate"]["main"])
    assert answer.json["sideUpdate"]["revision"] == {"data": ""}


ADVICE = {"overview-advice.id": "overview-advice"}
