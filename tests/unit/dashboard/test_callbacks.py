"""Callbacks of pages: a failing one is reported, and a slow one blocks no other request."""

import logging
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from overlapscope.errors import InputError
from overlapscope_dashboards.pages import overview
from overlapscope_dashboards.runs import open_run
from overlapscope_dashboards.runs import site as site_module
from overlapscope_dashboards.runs.open_run import OpenRun
from overlapscope_dashboards.runs.site import Site, run_address
from overlapscope_dashboards.server.app import create_app
from overlapscope_dashboards.timeline.perfetto import AT_ONCE
from tests.support.dashboard_runs import copy_run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return copy_run(tmp_path / "run")


@pytest.fixture
def path(root: Path) -> str:
    return run_address(Site([root]).find_runs().runs[0].id)


def called(client: Any, output: str, inputs: dict[str, Any], states: dict[str, Any]) -> Any:
    """Call the callback that has this output, as a browser does."""
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
    assert "Internal error" in str(answer.json["sideUpdate"]["main"])
    assert answer.json["sideUpdate"]["revision"] == {"data": ""}


@pytest.mark.slow
def test_callbacks_of_a_slow_run_are_answered_at_once_and_again_when_it_is_read(
    root: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, plain = Event(), OpenRun._read
    monkeypatch.setattr(OpenRun, "_read", lambda opened: read.wait() and plain(opened))
    monkeypatch.setattr(site_module, "PATIENCE_S", 0)
    client = create_app([root]).server.test_client()
    states = {"address.pathname": f"{path}/timeline", "address.search": ""}
    asks = [
        ("overview-advice.children", ADVICE, "overview-look"),
        ("address.search", {"ranks-chosen.value": "0"}, ""),
        ("address.search", {"what-if-cap.value": 1}, ""),
    ]
    for output, inputs, look in asks:
        answer = called(client, output, inputs, states)
        result = answer.json["response"] if answer.status_code == 200 else {}
        assert result == ({look: {"disabled": False}} if look else {})
    timeline = [f"{path}/timeline/view?ranks=0", f"{path}/timeline/point?row=0&bin=1&part=map"]
    for address in timeline:
        assert client.get(address).status_code == 202
    read.set()
    monkeypatch.setattr(site_module, "PATIENCE_S", 60)
    for address, words in zip(timeline, (b'"rasters"', b'"rank 0 at '), strict=True):
        answer = client.get(address)
        assert answer.status_code == 200
        assert words in answer.data
    shown = ('"overview-look":{"disabled":true}', "?ranks=0", "?cap=")
    for (output, inputs, _), words in zip(asks, shown, strict=True):
        assert words in called(client, output, inputs, states).get_data(as_text=True)


@pytest.mark.slow
def test_a_page_that_many_ask_for_is_made_once_for_a_state_of_its_files(
    root: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, plain = [], overview.layout
    monkeypatch.setattr(overview, "layout", lambda *given: made.append(given) or plain(*given))
    client = create_app([root]).server.test_client()

    def shown(search: str = "") -> Any:
        asked = {"address.pathname": path, "address.search": search, "poll.n_intervals": 0}
        return called(client, "..nav.children...main.children", asked, {}).json["response"]

    first = shown()
    assert "exposed" in str(first)
    assert [shown() for _ in range(5)] == [first] * 5
    assert len(made) == 1
    assert shown("?ranks=0")["revision"] == first["revision"]
    assert len(made) == 2
    (root / "later.txt").write_text("one file more", encoding="utf-8")
    monkeypatch.setattr(open_run, "RECENT_S", 0)
    assert shown()["revision"] != first["revision"]
    assert len(made) == 3


def test_a_page_that_could_not_be_made_is_made_anew(root: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise InputError("memory was short")

    client, plain = create_app([root]).server.test_client(), overview.layout
    asked = {"address.pathname": path, "address.search": "", "poll.n_intervals": 0}
    monkeypatch.setattr(overview, "layout", fail)
    assert "memory was short" in str(called(client, "..nav.children...main.children", asked, {}).json)
    monkeypatch.setattr(overview, "layout", plain)
    assert "memory was short" not in str(called(client, "..nav.children...main.children", asked, {}).json)


def test_few_windows_are_written_at_once_and_each_makes_room_for_the_next(root: Path, path: str) -> None:
    client = create_app([root]).server.test_client()
    address = f"{path}/timeline/window.json.gz?ranks=0"
    for method in (client.head, client.get, client.head, client.get, client.get):
        with method(address) as answer:
            assert answer.status_code == 200
    for _ in range(AT_ONCE + 1):
        with client.get("/runs/none/timeline/window.json.gz") as answer:
            assert answer.status_code == 404
    open_ = [client.get(address, buffered=False) for _ in range(AT_ONCE)]
    refused = client.get(address)
    assert refused.status_code == 503
    assert int(refused.headers["Retry-After"]) > 0
    open_.pop().close()
    with client.get(address) as answer:
        assert answer.status_code == 200
    for each in open_:
        each.close()


ADVICE = {"overview-advice.id": "overview-advice", "overview-look.n_intervals": None}
