"""Processes that read: what they load, and what happens where the system starts none."""

import subprocess
import sys
from pathlib import Path

import pytest

from overlapscope.ingest import processes
from overlapscope.ingest.processes import Process, Processes, TaskFailedError, started
from overlapscope.ingest.read import read_inputs
from tests.conftest import ROOT
from tests.kineto_writer import distributed, training, write


def test_nothing_of_the_folder_that_a_command_is_called_in_is_run(tmp_path: Path) -> None:
    for name in ("signal", "os", "enum", "multiprocessing", "numpy"):
        (tmp_path / f"{name}.py").write_text("print('a module of this folder was run')\n", encoding="utf-8")
    (tmp_path / "trace.json").write_bytes(write(training(steps=2), metadata=distributed(0)))
    launcher = (
        f"import sys; sys.path[:] = [{str(ROOT)!r}] + [each for each in sys.path if each]\n"
        "from overlapscope.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-P", "-c", launcher, "analyze", "trace.json", "--workers", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "was run" not in done.stdout + done.stderr
    assert "is exposed communication" in done.stdout


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", refuse)


@pytest.mark.usefixtures("no_process")
def test_where_the_system_starts_no_process_the_work_is_done_here(tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"rank{rank}.json").write_bytes(write(training(steps=2), metadata=distributed(rank, 3)))
    assert list(read_inputs([tmp_path], workers=3).ranks) == [0, 1, 2]
    assert list(read_inputs([tmp_path / "rank1.json"], workers=2).ranks) == [1]
    with started(3, "overlapscope.ingest.worker") as found:
        assert found == []
    with Processes(2) as executor:
        assert executor.submit(divmod, 7, 2).result() == (3, 1)
        with pytest.raises(TaskFailedError, match="ZeroDivisionError"):
            executor.submit(divmod, 7, 0).result()


def test_processes_that_were_started_before_one_failed_are_used_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Process] = []

    class Second(Process):
        def __init__(self, module: str = "") -> None:
            if made:
                raise BlockingIOError("no more processes")
            super().__init__(module)
            made.append(self)

    monkeypatch.setattr(processes, "Process", Second)
    with started(3, "overlapscope.ingest.worker") as found:
        assert found == made
    assert made[0].has_ended()
