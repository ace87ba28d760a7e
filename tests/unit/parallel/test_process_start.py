"""Processes that read: what they load, and what happens where the system starts none."""

import os
import signal
import subprocess
import sys
import time
from multiprocessing import get_context, util
from pathlib import Path
from typing import Any

import pytest

from overlapscope.ingest.inputs import Inputs, Unpacked
from overlapscope.ingest.options import ReadOptions
from overlapscope.ingest.parallel.process_pool import WorkerPool, started_ahead
from overlapscope.ingest.parallel.read_parallel import spool_task
from overlapscope.ingest.parallel.spool import spool_tasks
from overlapscope.ingest.read_run import read_inputs
from overlapscope.ingest.write_run import write_run
from tests.conftest import ROOT
from tests.support.writers.kineto import write_job
from tests.unit.parallel.test_write_run import wait_for_end, workers


def test_nothing_of_the_folder_that_a_command_is_called_in_is_run(tmp_path: Path) -> None:
    for name in ("signal", "os", "enum", "multiprocessing", "numpy"):
        (tmp_path / f"{name}.py").write_text("print('a module of this folder was run')\n", encoding="utf-8")
    write_job(tmp_path, 1)
    launcher = (
        f"import sys; sys.path[:] = [{str(ROOT)!r}] + [each for each in sys.path if each]\n"
        "from overlapscope.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-P", "-c", launcher, "analyze", "rank0.json", "--workers", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "was run" not in done.stdout + done.stderr
    assert "is exposed communication" in done.stdout


def start_at_most(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    left, start = [count], util.spawnv_passfds  # type: ignore[attr-defined]  # not in the stubs

    def refuse(path: bytes, args: list[Any], handles: list[int]) -> Any:
        left[0] -= "--multiprocessing-fork" in args
        if left[0] < 0:
            raise BlockingIOError("no more processes")
        return start(path, args, handles)

    monkeypatch.setattr(util, "spawnv_passfds", refuse)


@pytest.mark.slow
@pytest.mark.parametrize("started", [0, 1])
def test_where_the_system_starts_too_few_processes_the_work_is_done_by_those_there_are(
    started: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_at_most(started, monkeypatch)
    write_job(tmp_path / "job", 3)
    assert list(read_inputs([tmp_path / "job"], workers=3).ranks) == [0, 1, 2]
    assert list(read_inputs([tmp_path / "job" / "rank1.json"], workers=2).ranks) == [1]
    assert write_run([tmp_path / "job"], tmp_path / "run", workers=3).ranks == (0, 1, 2)


UNGUARDED = """
import os, sys
with open({noted!r}, "a") as file:
    file.write("run\\n")
import overlapscope
print(overlapscope.load({job!r}, workers=3).ranks)
"""


@pytest.mark.slow
def test_a_script_without_a_guard_is_run_once(tmp_path: Path) -> None:
    """The standard pool would run it again in each worker."""
    write_job(tmp_path / "job", 3)
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED.format(noted=str(tmp_path / "noted"), job=str(tmp_path / "job")))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.stderr, done.returncode) == ("[0, 1, 2]\n", "", 0)
    assert (tmp_path / "noted").read_text() == "run\n"


@pytest.mark.slow
def test_a_process_that_may_have_no_children_reads_alone(tmp_path: Path) -> None:
    """As those of `multiprocessing.Pool`."""
    write_job(tmp_path, 2)
    with get_context("spawn").Pool(1) as pool:
        assert pool.apply(_ranks, (tmp_path,)) == [0, 1]


def _ranks(folder: Path) -> list[int]:
    return list(read_inputs([folder], workers=2).ranks)


@pytest.mark.slow
def test_a_worker_loads_neither_torch_nor_pandas(tmp_path: Path) -> None:
    trace = write_job(tmp_path, 1) / "rank0.json"
    found = Unpacked(inputs=Inputs(runs=(), files=(trace,), passed_over=()))
    (task,) = spool_tasks(found, ReadOptions(), tmp_path)
    with WorkerPool(1) as pool:
        assert not pool.submit(spool_task, task).result().refused
        loaded = pool.submit(eval, "sorted(__import__('sys').modules)").result()
    assert "pyarrow" in loaded
    assert not {"torch", "pandas", "dash", "plotly"} & set(loaded)


def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    code = (
        "import os, time\n"
        "from overlapscope.ingest.parallel.process_pool import WorkerPool\n"
        "pool = WorkerPool(1)\n"
        "print(pool.submit(os.getpid).result(), flush=True)\n"
        "pool.submit(time.sleep, 600)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        process.kill()
        wait_for_end(worker)


@pytest.mark.slow
def test_workers_that_were_started_ahead_are_taken(tmp_path: Path) -> None:
    write_job(tmp_path, 3)
    with started_ahead(2, "overlapscope.ingest.parallel.read_parallel") as pool:
        assert pool is not None
        while len(workers()) < 2:
            time.sleep(0.001)
        assert list(read_inputs([tmp_path], workers=3, started=pool).ranks) == [0, 1, 2]
        assert not workers()
    with started_ahead(0, "") as none:
        assert none is None


def test_where_none_can_be_started_ahead_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    start_at_most(0, monkeypatch)
    with started_ahead(2, "overlapscope") as pool:
        assert pool is None


def test_workers_are_killed_before_they_are_taken_and_cost_nothing(tmp_path: Path) -> None:
    write_job(tmp_path, 3)
    with started_ahead(2, "overlapscope.ingest.parallel.read_parallel") as pool:
        for each in workers():
            os.kill(each, signal.SIGKILL)
        assert list(read_inputs([tmp_path], workers=3, started=pool).ranks) == [0, 1, 2]
