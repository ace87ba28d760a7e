"""What else goes on in a training process goes on with a profile open: forks, signals, threads, the compiler."""

import asyncio
import multiprocessing
import os
import signal
import textwrap
import threading
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import overlapscope
from tests.support.fork_server import Ended, start

torch = pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")

from overlapscope.capture.lifecycle.guard import CaptureWarning  # noqa: E402 - behind the check for torch
from tests.integration.exits.second_profiler import ORDERS  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("training")]
dist = torch.distributed


def profiled(path: Path, **options: Any) -> Any:
    return overlapscope.profile(path, **{"mode": "events", "warmup": 0, "measure_overhead": False, **options})


def run(script: str, *arguments: str) -> Ended:
    (ended,) = start([["-c", textwrap.dedent(script), *arguments]], whole_end=True).wait(120)
    return ended


@pytest.mark.slow
def test_a_forked_child_that_is_terminated_ends_nothing_of_its_parent(tmp_path: Path) -> None:
    done = run(
        """
        import os, signal, sys, time, overlapscope
        with overlapscope.profile(sys.argv[1], mode="events", warmup=0, measure_overhead=False) as scope:
            with scope.step():
                pass
            child = os.fork()
            if child == 0:
                time.sleep(60)
            time.sleep(0.2)
            os.kill(child, signal.SIGTERM)
            print("status", os.waitpid(child, 0)[1])
            time.sleep(3)  # longer than a stuck main thread is given
            with scope.step():
                pass
        print("steps", len(scope.steps.records))
        """,
        str(tmp_path / "run"),
    )
    assert done.code == 0, done.output
    assert "status 15" in done.output
    assert "steps 2" in done.output
    assert done.output.count("overlapscope:") == 1
    assert overlapscope.load(tmp_path / "run").run.ranks[0].recorded["failures"] == []


@pytest.mark.slow
def test_a_forked_child_that_ends_writes_no_run(tmp_path: Path) -> None:
    done = run(
        """
        import os, sys, overlapscope
        with overlapscope.profile(sys.argv[1], mode="events", warmup=0, measure_overhead=False) as scope:
            with scope.step():
                pass
            if os.fork() == 0:
                sys.exit(0)
            os.wait()
            print("there", os.path.exists(os.path.join(sys.argv[1], "run.json")))
        """,
        str(tmp_path / "run"),
    )
    assert done.code == 0, done.output
    assert "there False" in done.output
    assert done.output.count("overlapscope:") == 1


def test_a_second_sigterm_while_the_run_is_written_costs_no_run(tmp_path: Path) -> None:
    done = run(
        """
        import os, signal, sys, overlapscope
        scope = overlapscope.profile(sys.argv[1], mode="events", warmup=0, measure_overhead=False)
        finish = scope._finish
        def terminated_again(session):
            os.kill(os.getpid(), signal.SIGTERM)
            finish(session)
        scope._finish = terminated_again
        with scope:
            with scope.step():
                pass
            os.kill(os.getpid(), signal.SIGTERM)
        """,
        str(tmp_path / "run"),
    )
    assert done.code == -signal.SIGTERM, done.output
    assert overlapscope.load(tmp_path / "run").ranks == [0]


@pytest.mark.slow
def test_sigterm_inside_a_hook_of_ddp_which_holds_its_lock_costs_no_run(tmp_path: Path) -> None:
    done = run(
        """
        import os, signal, sys, torch, overlapscope
        import torch.distributed as dist
        dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=0, world_size=1)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        seen = []
        def hook(state, bucket):
            seen.append(0)
            if len(seen) == 4:
                os.kill(os.getpid(), signal.SIGTERM)
            future = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future
        model.register_comm_hook(None, hook)
        with overlapscope.profile(sys.argv[1], model=model, mode="events", warmup=0, measure_overhead=False) as scope:
            while True:
                with scope.step():
                    model(torch.ones(1, 4)).sum().backward()
        """,
        str(tmp_path / "run"),
        str(tmp_path / "store"),
    )
    assert done.code == -signal.SIGTERM, done.output
    (rank,) = overlapscope.load(tmp_path / "run").run.ranks.values()
    assert (rank.steps.step.size, rank.recorded["ddp"]["bucket_bytes"]) == (3, [80])  # the fourth was cut


def test_a_profile_that_is_closed_elsewhere_or_interrupted_leaves_sigterm_to_the_job(tmp_path: Path) -> None:
    def interrupt(session: Any) -> None:
        raise KeyboardInterrupt

    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        with profiled(tmp_path / "thread") as scope:
            with scope.step():
                pass
            closing = threading.Thread(target=scope.close)
            closing.start()
            closing.join()
            os.kill(os.getpid(), signal.SIGTERM)
        assert (received, scope.guard.failures) == ([signal.SIGTERM], [])
        scope = profiled(tmp_path / "interrupted")
        scope._finish = interrupt
        with pytest.raises(KeyboardInterrupt), scope, scope.step():
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        assert received == [signal.SIGTERM] * 2
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_pool_of_forked_workers_is_terminated_as_without_us(tmp_path: Path) -> None:
    with profiled(tmp_path / "run") as scope:
        with scope.step(), multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(abs, [-1, -2]) == [1, 2]
        pool.join()
        with scope.step():
            pass
    assert len(scope.steps.records) == 2
    assert scope.guard.failures == []


@pytest.mark.slow
def test_children_that_are_terminated_as_soon_as_they_are_forked_end_and_their_parent_goes_on(tmp_path: Path) -> None:
    """Some of a hundred are terminated before they have left our handler."""
    done = run(
        """
        import os, signal, sys, time, overlapscope
        with overlapscope.profile(sys.argv[1], mode="events", warmup=0, measure_overhead=False) as scope:
            with scope.step():
                children = []
                for _ in range(100):
                    children.append(os.fork())
                    if not children[-1]:
                        time.sleep(30)
                        os._exit(0)
                    os.kill(children[-1], signal.SIGTERM)
                ends = {os.waitstatus_to_exitcode(os.waitpid(each, 0)[1]) for each in children}
            held = signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        print("ended", ends, held, scope.guard.failures)
        """,
        str(tmp_path / "run"),
    )
    assert done.code == 0, done.output
    assert "ended {-15} False []" in done.output


def test_steps_after_the_jobs_groups_are_gone_are_left_alone(tmp_path: Path) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    ran = 0
    with profiled(tmp_path / "run") as scope:
        for number in range(4):
            with scope.step():
                ran += 1
            if number == 1:
                dist.destroy_process_group()
    assert ran == 4
    assert len(overlapscope.load(tmp_path / "run").table("steps", 0)) == 2
    with pytest.raises(overlapscope.UsageError, match="outside of its profile"), scope.step():
        pass


def test_a_loop_that_asyncio_listens_for_keeps_its_signals(tmp_path: Path) -> None:
    async def job() -> None:
        came = asyncio.Event()
        with profiled(tmp_path / "run") as scope:
            with scope.step():
                pass
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, came.set)
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.wait_for(came.wait(), 10)

    asyncio.run(job())


def test_a_warning_turned_into_an_error_stops_no_recording(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("error")
        for _ in range(2):
            with profiled(tmp_path / "run") as scope, scope.step():
                pass
    assert ["will be replaced" in str(each.message) for each in shown] == [True]
    assert scope.guard.failures == []
    assert overlapscope.load(tmp_path / "run").ranks == [0]


@pytest.mark.parametrize("place", ["rank_00000/notes.txt", "facts/table.csv", "rank_00000/part_000000.1/notes.txt"])
def test_files_of_others_inside_an_older_run_are_not_replaced(place: str, tmp_path: Path) -> None:
    def record() -> None:
        with profiled(tmp_path / "run") as scope, scope.step():
            pass

    record()
    mine = tmp_path / "run" / place
    mine.parent.mkdir(parents=True, exist_ok=True)
    mine.write_text("mine", encoding="utf-8")
    with pytest.raises(overlapscope.UsageError, match=f"{place} would be deleted with it"):
        record()
    assert mine.read_text(encoding="utf-8") == "mine"
    mine.rename(tmp_path / "run" / "notes.txt")  # beside what is replaced
    with pytest.warns(CaptureWarning, match="will be replaced"):
        record()
    assert (tmp_path / "run" / "notes.txt").is_file()


@pytest.mark.slow
def test_time_between_steps_does_not_hold_a_step_that_was_left_alone(tmp_path: Path) -> None:
    lasts_ns = 100_000_000
    with profiled(tmp_path / "run", measure_overhead=True) as scope:
        for _ in range(12):
            with scope.step():
                time.sleep(lasts_ns / 1e9)
    assert len(scope.steps.records) < 12
    between = [
        value for record in scope.steps.records for name, _, value in record.readings if name == "between_steps_ns"
    ]
    assert median(between) < lasts_ns  # each would be longer, were the step between counted


def test_a_step_that_could_not_be_begun_has_no_part_in_the_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.warns(CaptureWarning, match="beginning a step"), profiled(tmp_path / "run") as scope:
        for number in range(4):
            with monkeypatch.context() as patch:
                if number == 1:
                    patch.setattr(scope.hooks, "step_begins", lambda _: 1 / 0)
                with scope.step():
                    pass
    assert len(scope.steps.lasted) == 3
    assert all(lasted < 60e9 for lasted, _ in scope.steps.lasted)
    assert [record.number for record in scope.steps.records] == [0, 2, 3]


def test_a_host_without_load_figures_is_recorded_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> None:
        raise OSError("no load here")

    monkeypatch.setattr(os, "getloadavg", unknown)
    with pytest.warns(CaptureWarning, match="no load here"), profiled(tmp_path / "run") as scope:
        for _ in range(3):
            with scope.step():
                pass
    assert [record.number for record in scope.steps.records] == [0, 1, 2]


def test_what_is_kept_is_bounded_by_what_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlapscope.capture.steps.MAX_NOTES", 60)
    with (
        pytest.warns(CaptureWarning, match="steps after the first .* were not kept") as shown,
        profiled(tmp_path / "run") as scope,
    ):
        for _ in range(40):
            with scope.step():
                for _ in range(10):
                    with scope.region("one"):
                        pass
    recorded = len(overlapscope.load(tmp_path / "run").table("steps", 0))
    assert 1 < recorded <= 6  # of each at least ten regions
    assert f"{40 - recorded} steps after the first {recorded} were not kept" in str(shown[0].message)


@pytest.mark.filterwarnings("ignore:.*cpu.amp.autocast:FutureWarning")  # torch 2.4's own checkpoint
def test_a_checkpoint_that_runs_backward_inside_backward_is_one_backward(tmp_path: Path) -> None:
    from torch.utils.checkpoint import checkpoint

    model = torch.nn.Linear(4, 4)
    with profiled(tmp_path / "run", model=model) as scope:
        for _ in range(2):
            with scope.step():
                checkpoint(model, torch.ones(2, 4, requires_grad=True), use_reentrant=True).sum().backward()
    for record in scope.steps.records:
        assert [phase.name for phase in record.phases] == ["forward", "backward"]
        assert all(phase.end is not None for phase in record.phases)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
@pytest.mark.parametrize("whole_step", [False, True])
def test_the_compiler_makes_the_same_graphs_with_and_without_us(whole_step: bool, tmp_path: Path) -> None:
    from torch._dynamo.utils import counters

    def train(path: Path | None) -> tuple[list[int], int]:
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        graphs = []

        def backend(graph: Any, _: Any) -> Any:
            graphs.append(sum(node.op.startswith("call_") for node in graph.graph.nodes))
            return graph.forward

        called = model if whole_step else torch.compile(model, backend=backend, fullgraph=True)

        def step() -> None:
            called(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        compiled = torch.compile(step, backend=backend) if whole_step else step
        if path is None:
            for _ in range(6):
                compiled()
        else:
            with profiled(path, model=model, warmup=2) as scope:
                for _ in range(6):
                    with scope.step():
                        compiled()
            names = [phase.name for phase in scope.steps.records[-1].phases]
            assert names[:2] == ["forward", "backward"]
        return graphs, sum(counters["graph_break"].values())

    (graphs, breaks), (graphs_without, breaks_without) = train(tmp_path / "run"), train(None)
    assert graphs == graphs_without
    assert breaks <= breaks_without  # on Python 3.14 one fewer, of those that torch's optimizers ask for


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_r1_a_second_profiler_costs_the_recording_and_not_the_job(order: str, tmp_path: Path) -> None:
    command = ["-m", "tests.integration.exits.second_profiler", order, str(tmp_path / "run")]
    (done,) = start([command], whole_end=True).wait(120)
    assert done.code == 0, done.output
    assert "another profiler runs in this process" in done.output
    theirs = next(line for line in done.output.splitlines() if line.startswith("theirs"))
    assert int(theirs.partition("[")[2].rstrip("]")) > 20
