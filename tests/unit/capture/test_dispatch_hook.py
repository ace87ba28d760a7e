"""What passes torch's dispatcher is seen, wherever it begins; on one rank over gloo, in this process."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import overlapscope

torch = pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")

from overlapscope.capture.hooks import dispatch_hook as doorway  # noqa: E402 - behind the check for torch
from overlapscope.capture.hooks import nvtx  # noqa: E402
from overlapscope.capture.hooks.collectives import CollectiveWatch  # noqa: E402
from overlapscope.capture.lifecycle.guard import Guard  # noqa: E402
from overlapscope.capture.records import StepRecord  # noqa: E402
from overlapscope.capture.timestamps import HostClock  # noqa: E402

pytestmark = pytest.mark.torch
dist = torch.distributed


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def recorded(path: Path, what: Callable[[], object]) -> StepRecord:
    """Do it in three steps; give what was noted in the last."""
    with overlapscope.profile(path, mode="events", warmup=0, measure_overhead=False) as scope:
        for _ in range(3):
            with scope.step():
                what()
    assert scope.guard.failures == []
    return scope.steps.records[-1]


def calls(record: StepRecord) -> list[tuple[str, int | None]]:
    assert all(call.transfer.done is not None for call in record.calls)
    return [(call.op, call.elements) for call in record.calls]


def functional(op: str) -> None:
    from torch.distributed import _functional_collectives as collectives

    call = {
        "all_reduce": lambda: collectives.all_reduce(torch.ones(8), "sum", dist.group.WORLD),
        "all_gather": lambda: collectives.all_gather_tensor(torch.ones(8), 0, dist.group.WORLD),
        "reduce_scatter": lambda: collectives.reduce_scatter_tensor(torch.ones(8), "sum", 0, dist.group.WORLD),
    }
    call[op]().sum()  # which waits


# Names of torch 2.4, which later versions warn of.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
def test_functional_collectives_and_their_waits_are_seen(op: str, tmp_path: Path) -> None:
    record = recorded(tmp_path / "run", lambda: functional(op))
    assert calls(record) == [(op, 8)]
    assert len(record.waits) == 1


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_collectives_are_seen_once_in_every_mode_of_autograd(mode: Callable[[], Any], tmp_path: Path) -> None:
    def reduce() -> None:
        with mode():
            dist.all_reduce(torch.ones(8))

    record = recorded(tmp_path / "run", reduce)
    assert calls(record) == [("all_reduce", 8)]
    assert len(record.waits) == 1


def test_what_the_compiler_tries_out_is_no_collective(tmp_path: Path) -> None:
    from torch._subclasses import FakeTensorMode

    def reduce() -> None:
        with FakeTensorMode():
            functional("all_reduce")

    assert calls(recorded(tmp_path / "run", reduce)) == []


def test_a_wait_on_another_thread_holds_up_nothing(tmp_path: Path) -> None:
    def reduce() -> None:
        other = threading.Thread(target=lambda: dist.all_reduce(torch.ones(8), async_op=True).wait())
        other.start()
        other.join()

    record = recorded(tmp_path / "run", reduce)
    assert calls(record) == [("all_reduce", 8)]
    assert record.waits == []


def test_a_backend_that_gives_no_work_has_ended_in_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL since torch 2.8, of a collective that is not asynchronous."""
    monkeypatch.setattr(dist.Work, "unbox", staticmethod(lambda _: None))
    record = recorded(tmp_path / "run", lambda: dist.all_reduce(torch.ones(8), async_op=True))
    assert calls(record) == [("all_reduce", 8)]
    (wait,) = record.waits
    assert (wait.begin, wait.end) == (record.calls[0].transfer.ready, record.calls[0].transfer.done)


def test_calls_of_a_group_of_calls_end_when_the_group_was_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """batch_isend_irecv over NCCL, whose calls give no work and whose group's work has no future."""

    monkeypatch.setattr(dist.ProcessGroup, "_start_coalescing", lambda *_: None)
    monkeypatch.setattr(dist.ProcessGroup, "_end_coalescing", lambda *_: dist.Work())
    monkeypatch.setattr(dist.Work, "wait", lambda _: True)
    group = dist.group.WORLD

    def batch() -> None:
        group._start_coalescing(torch.device("cpu"))
        dist.all_reduce(torch.ones(8), async_op=True)
        dist.all_reduce(torch.ones(4), async_op=True)
        group._end_coalescing(torch.device("cpu")).wait()

    record = recorded(tmp_path / "run", batch)
    assert calls(record) == [("all_reduce", 8), ("all_reduce", 4)]
    assert {call.transfer.done for call in record.calls} == {record.waits[-1].end}


def test_ranges_stand_around_collectives_without_changing_them() -> None:
    pushed: list[str] = []

    class Nvtx:
        @staticmethod
        def range_push(name: str) -> int:
            pushed.append(name)
            return 0

        range_pop = staticmethod(lambda: 0)

    guard = Guard()
    watch = CollectiveWatch(HostClock(), guard, lambda: None, nvtx.NvtxRanges(Nvtx(), guard))
    watch.open()
    value = torch.full((3,), 2.0)
    dist.all_reduce(value)
    watch.close()
    assert value.tolist() == [2.0] * 3
    assert pushed == ["overlapscope.all_reduce#0"]


def test_kernels_stay_where_another_thread_calls_collectives_and_go_when_it_has_ended() -> None:
    """Taken away under a thread that is on its way into one, they crash it."""
    watch = CollectiveWatch(HostClock(), Guard(), lambda: None)
    other_group = dist.new_group([0])
    stop, failed = threading.Event(), []

    def reduce() -> None:
        value = torch.ones(4)
        try:
            while not stop.is_set():
                dist.all_reduce(value, group=other_group)
        except Exception as error:  # noqa: BLE001 - whatever a thread raises fails the test
            failed.append(error)

    others = [threading.Thread(target=reduce) for _ in range(2)]
    for other in others:
        other.start()
    for _ in range(300):
        watch.open()
        stop.wait(0.002)
        watch.close()
    stop.set()
    for other in others:
        other.join()
    assert not failed
    watch.open()
    watch.close()
    assert not doorway.DISPATCH_HOOK._libraries
    assert "BackendSelect" not in torch._C._dispatch_dump("c10d::allreduce_")
