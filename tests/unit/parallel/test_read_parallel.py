"""Files read side by side give the run that reading one after another gives, whoever reads which."""

import gzip
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from overlapscope.errors import InputError
from overlapscope.ingest import column_handoff
from overlapscope.ingest.parallel import read_parallel
from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.run import Run
from tests.support.reading_processes import Dying, PoolHere, workers_die_over
from tests.support.writers.kineto import TORCH_2022, distributed, training, write, write_job
from tests.unit.parallel.test_write_run import files_of


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Two ranks, one whose file name alone states its rank, one damaged, and a log."""
    folder = write_job(tmp_path / "job", 2)
    (folder / "rank_2.json.gz").write_bytes(gzip.compress(write(training(), TORCH_2022)))
    (folder / "rank3.json").write_bytes(write(training(), metadata=distributed(3))[:40])
    return folder


@pytest.fixture
def same(job: Path, tmp_path: Path) -> Callable[[Run], bool]:
    """Return whether a run is the one that reading here, one file after another, gives."""
    wanted = files_of(read_inputs([job]), tmp_path / "wanted")
    return lambda run: files_of(run, tmp_path / "found") == wanted


@pytest.mark.slow
def test_processes_that_share_the_files_give_the_same_run(job: Path, same: Callable[[Run], bool]) -> None:
    seen: dict[str, int] = {}

    def progress(path: Path, done: int) -> None:
        seen[path.name] = seen.get(path.name, 0) + done

    assert same(read_inputs([job], workers=3, progress=progress))
    assert set(seen) == {file.name for file in job.iterdir()}


def test_what_another_process_hands_over_is_what_was_read(
    job: Path, same: Callable[[Run], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All files are read before this process could take one."""
    given: list[str] = []

    class All(PoolHere):
        def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            given.append(args[0].path.name)
            return super().submit(function, *args, **kwargs)

    monkeypatch.setattr(read_parallel, "WorkerPool", All)
    assert same(read_inputs([job], workers=2))
    assert sorted(given) == sorted(file.name for file in job.iterdir())


def test_where_nothing_can_be_written_this_process_reads_all(
    job: Path, same: Callable[[Run], bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    assert same(read_inputs([job], workers=2))


def test_a_killed_worker_costs_nothing_when_its_file_can_be_read_alone(
    job: Path, same: Callable[[Run], bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = workers_die_over("rank1.json", tmp_path / "site", monkeypatch, times=1)
    monkeypatch.setattr(read_parallel, "bytes_in", lambda path: path.name == "rank1.json")  # a worker begins with it
    assert same(read_inputs([job], workers=2))
    assert len(list(noted.iterdir())) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("death", "words"),
    [("os.kill(os.getpid(), 9)", "was killed (SIGKILL; so do systems"), ("os._exit(1)", "ended with exit code 1")],
)
def test_a_file_that_kills_whoever_reads_it_costs_itself(
    death: str, words: str, job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = workers_die_over("rank1.json", tmp_path / "site", monkeypatch, times=9, death=death)
    monkeypatch.setattr(read_parallel, "bytes_in", lambda path: path.name == "rank1.json")
    run = read_inputs([job], workers=2)
    assert list(run.ranks) == [0, 2]
    (lost,) = [source for source in run.sources if source.path.endswith("rank1.json")]
    assert words in lost.warnings[0]
    assert len(list(noted.iterdir())) == 2


def test_a_worker_that_dies_costs_no_file_but_its_own(
    job: Path, same: Callable[[Run], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that were not begun are read by others, the one that was by a worker of its own."""
    counts: list[int] = []

    class Noted(Dying):
        def __init__(self, count: int) -> None:
            counts.append(count)
            super().__init__(count)

    monkeypatch.setattr(read_parallel, "WorkerPool", Noted)
    assert same(read_inputs([job], workers=3))
    assert counts == [2, 1]


def test_where_nothing_can_be_handed_over_readings_come_through_the_pipe(
    job: Path, same: Callable[[Run], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(read_parallel, "WorkerPool", PoolHere)
    monkeypatch.setattr(column_handoff, "save", full)
    assert same(read_inputs([job], workers=2))


def test_one_worker_starts_no_process(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(read_parallel, "WorkerPool", refuse)
    assert list(read_inputs([job], workers=1).ranks) == [0, 1, 2]
    monkeypatch.setattr(read_parallel, "can_start", lambda: False)
    assert list(read_inputs([job], workers=2).ranks) == [0, 1, 2]


def test_a_job_that_gives_nothing_says_so(job: Path) -> None:
    for file in job.iterdir():
        file.write_bytes(b'{"traceEvents": []}')
    with pytest.raises(InputError, match=r"rank0\.json: holds no device or host work.*3 more like it"):
        read_inputs([job], workers=2)
