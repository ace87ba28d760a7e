"""NVTX ranges with a fake of `torch.cuda.nvtx`: their names, their balance, and their absence without CUDA."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import overlapscope

torch = pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")

from overlapscope.capture.hooks import nvtx  # noqa: E402 - behind the check for torch
from overlapscope.capture.lifecycle.guard import Guard  # noqa: E402

pytestmark = pytest.mark.torch


class FakeNvtx:
    """What torch.cuda.nvtx offers (torch/cuda/nvtx.py of 2.13): a stack for each thread, and ranges of the process."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        """Names in order; pushed ones with a leading `>`."""
        self.stacks: dict[int, list[str]] = {}
        self.open: dict[int, str] = {}
        self.popped: list[str] = []

    def range_push(self, message: str) -> int:
        self.begun.append(f">{message}")
        stack = self.stacks.setdefault(threading.get_ident(), [])
        stack.append(message)
        return len(stack) - 1

    def range_pop(self) -> int:
        stack = self.stacks[threading.get_ident()]
        self.popped.append(stack.pop())
        return len(stack)

    def range_start(self, message: str) -> int:
        self.begun.append(message)
        self.open[len(self.begun)] = message
        return len(self.begun)

    def range_end(self, handle: int) -> None:
        del self.open[handle]

    @property
    def balanced(self) -> bool:
        return not self.open and not any(self.stacks.values())


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeNvtx:
    made = FakeNvtx()
    monkeypatch.setattr(nvtx, "ranges", lambda guard: nvtx.NvtxRanges(made, guard))
    return made


@pytest.fixture
def group() -> Iterator[None]:
    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def train(path: Path, model: Any, steps: int = 2, **options: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"mode": "events", "warmup": 0, "measure_overhead": False, **options}
    with overlapscope.profile(path, model=model, **options) as scope:
        for _ in range(steps):
            with scope.step():
                with scope.region("data"):
                    batch = torch.ones(4, 8)
                model(batch).sum().backward()
                optimizer.step()


@pytest.mark.usefixtures("group")
def test_steps_phases_regions_and_buckets_are_ranges_inside_one_another(tmp_path: Path, fake: FakeNvtx) -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    train(tmp_path / "run", model, steps=3)  # the second step holds what DDP sends to rebuild its buckets
    assert fake.begun[fake.begun.index("overlapscope.step#2") :] == [
        "overlapscope.step#2",
        "overlapscope.data",
        "overlapscope.forward",
        "overlapscope.backward",
        ">overlapscope.all_reduce#0",
        "overlapscope.optimizer",
    ]
    assert fake.balanced


def test_a_step_that_raises_leaves_no_range_open(tmp_path: Path, fake: FakeNvtx) -> None:
    class Failing(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            raise ZeroDivisionError

    model = torch.nn.Linear(2, 2)
    options: dict[str, Any] = {"mode": "events", "warmup": 0, "measure_overhead": False}
    with overlapscope.profile(tmp_path / "run", model=model, **options) as scope:
        for number in range(3):
            with pytest.raises(ZeroDivisionError), scope.step(), scope.region("part"):  # noqa: PT012 - a whole step
                loss = model(torch.ones(2)).sum()
                if number == 1:
                    1 / 0  # noqa: B018 - in the middle of forward
                loss.backward()
                Failing(model.parameters(), lr=0.1).step()
            assert fake.balanced, number
    steps = [name for name in fake.begun if "step#" in name]
    assert steps == ["overlapscope.step#0", "overlapscope.step#1", "overlapscope.step#2"]


def test_an_operation_that_raises_closes_its_range() -> None:
    fake = FakeNvtx()
    ranges = nvtx.NvtxRanges(fake, Guard())

    def fails(_: int) -> None:
        raise OSError

    for _ in range(2):
        with pytest.raises(OSError):  # noqa: PT011 - its own
            ranges.wrap("broadcast", fails)(1)
    assert fake.begun == [">overlapscope.broadcast#0", ">overlapscope.broadcast#1"]
    assert fake.balanced


def test_collectives_are_numbered_anew_in_each_step() -> None:
    fake = FakeNvtx()
    ranges = nvtx.NvtxRanges(fake, Guard())
    send = ranges.wrap("all_gather", lambda value: value + 1)
    for number in range(2):
        ranges.begin_step(number)
        assert [send(1), send(2)] == [2, 3]
        ranges.end_step(number)
    assert [name for name in fake.begun if name.startswith(">")] == [
        ">overlapscope.all_gather#0",
        ">overlapscope.all_gather#1",
    ] * 2


def test_g13_ranges_of_the_users_own_that_cross_ours_keep_their_ends() -> None:
    fake = FakeNvtx()
    ranges = nvtx.NvtxRanges(fake, Guard())
    ranges.begin_step(0)
    fake.range_push("theirs: model and loss")
    ranges.begin("forward")  # at the model's call
    fake.range_pop()
    fake.range_push("theirs: backward")
    ranges.end("forward")  # where backward begins
    ranges.begin("backward")
    fake.range_pop()
    ranges.end("backward")
    ranges.end_step(0)
    assert fake.popped == ["theirs: model and loss", "theirs: backward"]
    assert fake.balanced


def test_trace_mode_marks_steps_and_regions(tmp_path: Path, fake: FakeNvtx) -> None:
    train(tmp_path / "run", torch.nn.Linear(8, 8), mode="trace", steps=3, warmup=1)
    assert "overlapscope.step#2" in fake.begun
    assert "overlapscope.data" in fake.begun
    assert fake.balanced


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("mode", ["events", "trace"])
def test_without_cuda_nothing_of_nvtx_is_called(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        pytest.skip("a CUDA device is in use here: ranges are expected")
    called: list[str] = []
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        monkeypatch.setattr(torch.cuda.nvtx, name, lambda *_, name=name: called.append(name))
    train(tmp_path / "run", torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8)), mode=mode, warmup=1)
    assert not called
    assert overlapscope.load(tmp_path / "run").run.ranks[0].recorded["complete"]
