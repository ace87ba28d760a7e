"""Trainings that own their loop: a profile in them says which step is recorded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import overlapscope
from overlapscope.capture.session import Session
from overlapscope.errors import InputError

torch = pytest.importorskip("torch", reason="torch is not installed: no step can run")

from tests.unit.dry_run import steps  # noqa: E402 - skipped without torch

pytestmark = [pytest.mark.torch, pytest.mark.dry_run]

COLUMNS = ["work", "name", "phase", "module", "flops", "read_bytes", "live_bytes"]


def loop(build: Callable[[Any], Any], count: int, path: Path) -> Callable[[Any], Any]:
    """A training of `count` steps that records itself."""

    def training(device: Any) -> Callable[[], None]:
        step = build(device)

        def run() -> None:
            with overlapscope.profile(path, mode="events") as scope:
                for _ in range(count):
                    with scope.step(), scope.region("all"):
                        step()

        return run

    return training


def operations(build: Callable[[Any], Any]) -> pd.DataFrame:
    return overlapscope.dryrun(build, world_size=4).table("operations", 0)[COLUMNS]


@pytest.mark.slow
@pytest.mark.parametrize("build", [steps.plain, steps.ddp])
def test_the_step_of_a_loop_is_that_of_a_function(build: Callable[[Any], Any], tmp_path: Path) -> None:
    before = (Session.__enter__, Session.close, Session.step)
    pd.testing.assert_frame_equal(operations(loop(build, 9, tmp_path / "run")), operations(build))
    assert not (tmp_path / "run").exists(), "a profile inside a dry run writes nothing"
    assert (Session.__enter__, Session.close, Session.step) == before


@pytest.mark.slow
def test_a_function_that_marks_its_own_step_is_called_again(tmp_path: Path) -> None:
    def decorated(device: Any) -> Callable[[], None]:
        decorate: Callable[[Callable[[], None]], Callable[[], None]] = overlapscope.profile(tmp_path, mode="events")
        return decorate(steps.plain(device))

    pd.testing.assert_frame_equal(operations(decorated), operations(steps.plain))


@pytest.mark.slow
def test_a_training_without_a_step_to_record_is_refused(tmp_path: Path) -> None:
    for count in (0, 1):
        with pytest.raises(InputError, match=f"ended after {count} steps of its profile: let it run for 2 or more"):
            overlapscope.dryrun(loop(steps.plain, count, tmp_path), world_size=4)


@pytest.mark.slow
def test_a_loop_without_a_profile_is_named(tmp_path: Path) -> None:
    def build(device: Any) -> Callable[[], None]:
        step = steps.plain(device)
        return lambda: [step() for _ in range(5)] and None

    run = overlapscope.dryrun(build, world_size=4)
    assert "the function ran 5 steps of SGD" in run.sources[0].warnings[0]
    assert overlapscope.dryrun(steps.plain, world_size=4).sources[0].warnings == ()


def test_forward_and_backward_inside_of_an_optimizer_are_no_part_of_it() -> None:
    def build(device: Any) -> Callable[[], None]:
        model, x = steps.layers(2), torch.randn(64, 256, device=device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def closure() -> Any:
            optimizer.zero_grad()
            loss = model(x).sum()
            loss.backward()
            return loss

        return lambda: optimizer.step(closure)

    rows = operations(build)
    assert rows[rows.work == "matmul"].phase.tolist() == ["forward"] * 2 + ["backward"] * 3
    assert set(rows[rows.work == "optimizer"].phase) == {"optimizer"}


def test_tensors_are_where_real_ones_are_and_have_addresses_of_their_own() -> None:
    found: list[Any] = []

    def build(device: Any) -> Callable[[], None]:
        x = torch.zeros(8, device=f"{device.type}:0")
        found.extend([x.device, torch.ones(8).to("cpu:1").device, {x.data_ptr(), x[4:].data_ptr(), (x + 1).data_ptr()}])
        return lambda: None

    overlapscope.dryrun(build, world_size=2)
    assert found[:2] == [torch.device("cpu")] * 2
    assert len(found[2]) == 3


def test_a_tensor_of_another_device_is_none_of_the_cpu() -> None:
    with pytest.raises(InputError, match="device"):
        overlapscope.dryrun(lambda _: lambda: torch.ones(8, device="cuda:0") + torch.ones(8), world_size=2)
