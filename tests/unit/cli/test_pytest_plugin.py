"""The pytest plugin: a real training step in a real pytest, judged against the baseline that it kept itself."""

import os
import subprocess
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.conftest import ROOT
from tests.support.fork_server import start
from tests.unit.cli.test_light_start import loaded_by

pytestmark = pytest.mark.xdist_group("training")
HEAVY = {"torch", "numpy", "pandas", "pyarrow", "msgspec", "dash", "plotly"}
TRAINING = """
import os
import time

import pytest
import torch


def train(overlap, sleep="0.01"):
    model = torch.nn.Linear(32, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with overlap.record(model=model) as scope:
        for batch in torch.randn(9, 4, 32):
            with scope.step():
                model(batch).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                time.sleep(float(sleep))


@pytest.mark.overlap(baseline="kept/step", min_relative=2.0, budgets={"step_time_ns": 60_000_000_000})
def test_a_step(overlap):
    train(overlap)


@pytest.mark.overlap(baseline="kept/slow", min_relative=2.0)
def test_a_slower_step(overlap):
    train(overlap, sleep=os.environ.get("SLEEP", "0.01"))


@pytest.mark.overlap(budgets={"step_time_ns": 1_000})
def test_a_budget_that_is_not(overlap):
    train(overlap)


def test_that_is_not_marked(overlap):
    assert not overlap.folder.exists()
"""
MISUSED = """
import pytest


@pytest.mark.overlap(baseline="kept/step")
def test_without_the_fixture():
    pass


@pytest.mark.overlap(baseline="kept/step")
def test_that_records_nothing(overlap):
    pass


@pytest.mark.overlap(baseline="kept/step", min_relativ=0.1)
def test_with_an_unknown_key(overlap):
    overlap.new_run().mkdir()


@pytest.mark.overlap
def test_with_nothing_to_hold_it_against(overlap):
    overlap.new_run().mkdir()


@pytest.mark.overlap(baseline="kept/nowhere")
def test_without_its_baseline(overlap):
    overlap.new_run().mkdir()


@pytest.mark.overlap(baseline="kept/step")
def test_that_fails_itself(overlap):
    raise AssertionError("its own words")
"""


PLUGIN = "overlapscope.pytest_plugin"


def pytest_of(folder: Path, *arguments: str, **environment: str) -> tuple[str, dict[str, str]]:
    """Run pytest there; give what it prints and how each test ended."""
    installed = any(each.value == PLUGIN for each in entry_points(group="pytest11"))
    named = [] if installed else ["-p", PLUGIN]
    command = ["-m", "pytest", "-p", "no:dash", "-p", "no:cacheprovider", *named,
               "--strict-markers", "--junitxml=out.xml", "-q", *arguments]  # fmt: skip
    if find_spec("torch"):
        (done,) = start([command], folder=folder, **environment).wait(300)
        shown = done.output
    else:
        found = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        shown = subprocess.run(
            [sys.executable, *command], cwd=folder, env=found, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ).stdout  # fmt: skip
    assert "INTERNALERROR" not in shown
    ended = {}
    for case in ElementTree.parse(folder / "out.xml").iter("testcase"):
        ended[case.attrib["name"]] = next((each.tag for each in case if each.tag in ("failure", "error")), "passed")
    return shown, ended


@pytest.mark.slow
@pytest.mark.torch
def test_a_training_step_is_recorded_kept_and_judged(tmp_path: Path) -> None:
    if find_spec("torch") is None:
        pytest.skip("torch is not installed: nothing can be recorded")
    (tmp_path / "test_training.py").write_text(TRAINING, encoding="utf-8")
    _, ended = pytest_of(tmp_path, "--overlap-save")
    assert ended.pop("test_a_budget_that_is_not") == "failure"
    assert set(ended.values()) == {"passed"}
    assert (tmp_path / "kept" / "step" / "run.json").exists()
    assert (tmp_path / "kept" / "slow" / "run.json").exists()

    shown, ended = pytest_of(tmp_path, SLEEP="0.4")  # far more than busy cores delay a step
    assert ended.pop("test_a_step") == "passed"
    assert ended.pop("test_that_is_not_marked") == "passed"
    assert ended == {"test_a_slower_step": "failure", "test_a_budget_that_is_not": "failure"}
    assert "over its budget of 0.001 ms" in shown
    assert "REGRESSED: step time +" in shown
    assert "threshold" in shown  # the whole report, not its head alone
    assert "Traceback" not in shown


@pytest.mark.slow
def test_a_misuse_fails_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "test_misused.py").write_text(MISUSED, encoding="utf-8")
    (tmp_path / "kept" / "step").mkdir(parents=True)
    shown, ended = pytest_of(tmp_path)
    assert set(ended.values()) == {"failure"}
    assert len(ended) == 6
    assert shown.count("the test recorded nothing") >= 2
    assert "did you mean 'min_relative'" in shown
    assert "needs a baseline or budgets" in shown
    assert "pytest --overlap-save" in shown
    assert "its own words" in shown
    assert "Traceback" not in shown


def test_the_plugin_costs_next_to_nothing_until_it_is_used() -> None:
    assert not loaded_by("import overlapscope.pytest_plugin") & HEAVY


def test_the_entry_point_is_the_plugin() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert '[project.entry-points.pytest11]\noverlapscope = "overlapscope.pytest_plugin"' in text


DRY = """
import os

import torch


def build(device):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8, device=device))
    batch = torch.randn(4, 8, device=device)

    def step():
        loss = model(batch).sum()
        loss.backward()
        if os.environ.get("LOGGED"):
            loss.item()

    return step


def test_what_a_step_does(overlapscope_dryrun):
    overlapscope_dryrun(build, world_size=4, baseline="kept/dry")


def test_with_a_policy(overlapscope_dryrun):
    overlapscope_dryrun(build, world_size=4, baseline="kept/dry", structure={"fail": ["collective_added"]})


def test_without_its_baseline(overlapscope_dryrun):
    overlapscope_dryrun(build, world_size=4, baseline="kept/nowhere")


def test_with_an_unknown_key(overlapscope_dryrun):
    overlapscope_dryrun(build, world_size=4, baseline="kept/dry", structures={})
"""


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.dry_run
def test_a_dry_run_is_kept_and_judged(tmp_path: Path) -> None:
    if find_spec("torch") is None:
        pytest.skip("torch is not installed: nothing can be dry-run")
    (tmp_path / "test_dry.py").write_text(DRY, encoding="utf-8")
    pytest_of(tmp_path, "--overlap-save", "-k", "does")
    assert (tmp_path / "kept" / "dry" / "run.json").exists()

    shown, ended = pytest_of(tmp_path, LOGGED="1")
    assert ended.pop("test_with_an_unknown_key") == "failure"
    assert "did you mean 'structure'" in shown
    assert ended.pop("test_without_its_baseline") == "failure"
    assert "pytest --overlap-save" in shown
    assert ended == {"test_what_a_step_does": "failure", "test_with_a_policy": "passed"}
    assert "REGRESSED: the host waits for the device" in shown
    assert "test_dry.py:15" in shown
    assert "Traceback" not in shown
