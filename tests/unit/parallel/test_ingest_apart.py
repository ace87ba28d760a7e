"""Who writes what of a run that is read file by file, in which order, and what becomes of an older run."""

import errno
import gzip
import json
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from overlapscope.cli.main import main
from overlapscope.errors import InputError
from overlapscope.files.temporary_folder import READER_PREFIX, locked_folder
from overlapscope.ingest import write_run_tables
from overlapscope.ingest.parallel import spool, task
from overlapscope.ingest.parallel.process_pool import WorkerPool
from overlapscope.ingest.parallel.work_dir import work_dir_of
from overlapscope.ingest.read_run import read_inputs
from overlapscope.ingest.write_run import write_run
from overlapscope.timeline.store.manifest import SCHEMA
from tests.conftest import needs_archives
from tests.support.reading_processes import Here
from tests.support.writers.kineto import distributed, training, write
from tests.unit.parallel.test_write_run import (
    assert_as_if_read_at_once,
    files_in,
    files_of,
    job,
    trace,
    workers,
)


@pytest.fixture
def written_here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tables that the command itself writes into folders of ranks."""
    files: list[str] = []
    write_table = write_run_tables.write_table

    def noted(table: Any, names: Any, rank: int, file: Path) -> None:
        if file.parent.name.startswith("rank_"):
            files.append(f"{file.parent.name}/{file.name}")
        write_table(table, names, rank, file)

    monkeypatch.setattr(write_run_tables, "write_table", noted)
    return files


def job_of_two(folder: Path, *descriptions: str) -> Path:
    """A rank a file, each of which describes the one group as it likes."""
    folder.mkdir()
    for rank, description in enumerate(descriptions):
        metadata = json.dumps(distributed(rank)).replace("default_pg", description)
        (folder / f"rank{rank}.json").write_bytes(write(training(), metadata=json.loads(metadata)))
    return folder


def test_what_a_file_tells_of_its_own_calls_is_written_by_who_reads_it(tmp_path: Path, written_here: list[str]) -> None:
    folder = job_of_two(tmp_path / "job", "mesh_dp", "mesh_dp")
    assert_as_if_read_at_once([folder], tmp_path, workers=1)
    assert written_here == []


def test_calls_of_which_another_file_tells_more_are_written_again(tmp_path: Path, written_here: list[str]) -> None:
    folder = job_of_two(tmp_path / "job", "mesh_dp", "default_pg")
    assert_as_if_read_at_once([folder], tmp_path, workers=1)
    assert written_here == ["rank_00001/collectives.parquet"]


# --- order and processes ----------------------------------------------------------------------------------------------


class _Noting(Here):
    """Notes what it is asked to read."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if hasattr(args[0], "named"):
            self.asked.append(args[0].named.name)
        return super().submit(function, *args, **kwargs)


def test_the_largest_files_are_begun_first(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "rank0.json").write_bytes(trace(0))
    (folder / "rank1.json").write_bytes(trace(1, steps=9))
    (folder / "rank2.json.gz").write_bytes(gzip.compress(trace(2, steps=90)))
    noting = _Noting()
    assert_as_if_read_at_once([folder], tmp_path, executor=noting)
    assert noting.asked == ["rank2.json.gz", "rank1.json", "rank0.json"]


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--workers", "1"], ["--workers", "3"]], ids=" ".join)
def test_the_command_writes_the_same_run_however_many_processes_it_starts(more: list[str], tmp_path: Path) -> None:
    inputs = job(tmp_path / "job")
    wanted = files_of(read_inputs(inputs), tmp_path / "at once")
    assert main(["ingest", *map(str, inputs), "-o", str(tmp_path / "apart"), *more]) == 0
    assert files_in(tmp_path / "apart") == wanted
    assert not workers()


def hold_a_folder(noted: Path) -> None:
    with locked_folder(Path(tempfile.gettempdir()), READER_PREFIX):
        noted.touch()
        time.sleep(75)


@pytest.mark.slow
def test_what_a_process_holds_goes_with_it_when_work_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with suppress(KeyboardInterrupt), WorkerPool(1) as processes:
        future = processes.submit(hold_a_folder, tmp_path / "noted")
        while not (tmp_path / "noted").exists() and not future.done():
            time.sleep(0.01)
        assert len(list(place.iterdir())) == 1
        begun = time.monotonic()
        raise KeyboardInterrupt
    assert time.monotonic() - begun < 60
    assert list(place.iterdir()) == []
    assert not workers()


@pytest.mark.parametrize("kept", [True, False])
def test_what_an_interruption_keeps_is_shown_where_there_is_any(
    kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        if kept:
            work_dir_of(tmp_path / "run").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr("overlapscope.ingest.write_run.write_run", interrupted)
    assert main(["ingest", str(tmp_path / "trace.json"), "-o", str(tmp_path / "run")]) == 130
    assert ("files read so far are kept: repeat the command to continue" in capsys.readouterr().err) == kept


# --- an older run -----------------------------------------------------------------------------------------------------


class _Losing(Here):
    """Loses its process whenever one of some files is read."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if getattr(args[0], "named", Path()).name not in self._names:
            return super().submit(function, *args, **kwargs)
        future: Future[Any] = Future()
        future.set_exception(RuntimeError("its worker was killed (SIGKILL)"))
        return future


@pytest.fixture
def older(tmp_path: Path) -> tuple[list[Path], Path]:
    """Inputs, and the run that was written of them."""
    inputs, out = job(tmp_path / "job"), tmp_path / "apart"
    assert write_run(inputs, out, workers=1).ranks == (0, 1, 2)
    return inputs, out


@needs_archives
def test_an_older_run_is_not_replaced_by_one_that_lost_what_it_has(older: tuple[list[Path], Path]) -> None:
    inputs, out = older
    before = files_in(out)
    with pytest.raises(InputError, match=r"left as it was.*rank1\.json: .*SIGKILL.*1 more.*goes on") as raised:
        write_run(inputs, out, executor=_Losing("rank1.json", "rank_2.json"), force=True)
    assert raised.value.exit_code == 3
    assert files_in(out) == before
    written = write_run(inputs, out, workers=1, force=True)
    assert written.resumed_files == 3  # all but the damaged one, and those that were lost
    assert files_in(out) == before


@pytest.mark.slow
@needs_archives
def test_an_older_run_is_replaced_by_one_that_lost_no_more(tmp_path: Path) -> None:
    inputs, out = job(tmp_path / "job"), tmp_path / "apart"
    assert write_run(inputs, out, executor=_Losing("rank1.json", "rank_2.json")).ranks == (0, 1)
    assert write_run(inputs, out, executor=_Losing("rank_2.json"), force=True).ranks == (0, 1)
    with pytest.raises(InputError, match=r"rank0\.json"):
        write_run(inputs, out, executor=_Losing("rank_2.json", "rank0.json"), force=True)


def test_an_older_run_is_replaced_where_a_file_is_damaged_now(older: tuple[list[Path], Path]) -> None:
    inputs, out = older
    (inputs[0] / "rank_2.json").write_bytes(b"{")
    assert write_run(inputs, out, workers=1, force=True).ranks == (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("short", "named_at"), [((task, "read_file"), 0), ((spool, "save_reading"), 1)])
def test_a_file_that_memory_was_short_for_is_lost_and_not_damaged(
    short: tuple[object, str], named_at: int, older: tuple[list[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, out = older
    works = getattr(*short)

    def run_short(*given: Any) -> Any:
        if given[named_at].name == "rank_2.json":
            raise MemoryError
        return works(*given)

    monkeypatch.setattr(*short, run_short)
    with pytest.raises(InputError, match=r"left as it was.*rank_2\.json: not enough memory"):
        write_run(inputs, out, executor=Here(), force=True)


def test_a_run_of_a_newer_version_may_hold_what_was_lost_and_one_that_cannot_be_read_does_not(
    older: tuple[list[Path], Path],
) -> None:
    inputs, out = older
    manifest = out / "run.json"
    manifest.write_bytes(manifest.read_bytes().replace(SCHEMA.encode(), b"overlapscope.run/9"))
    with pytest.raises(InputError, match="left as it was"):
        write_run(inputs, out, executor=_Losing("rank_2.json"), force=True)
    manifest.write_bytes(b"{")
    assert write_run(inputs, out, executor=_Losing("rank_2.json"), force=True).ranks == (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "full", [(spool, "save_reading"), (write_run_tables, "take_over"), (write_run_tables, "write_entry")]
)
def test_a_full_disk_is_reported_with_what_to_do_and_costs_neither_the_older_run_nor_what_was_read(
    full: tuple[object, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder,), out = job(tmp_path / "job"), tmp_path / "apart"
    words = ["ingest", str(folder), "-o", str(out), "--workers", "1", "-f"]
    assert main(words) == 0
    before = files_in(out)
    left = [2]  # files, tables or ranks are written, then there is no room

    def save(*given: Any, **named: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return works(*given, **named)

    works = getattr(*full)
    with monkeypatch.context() as patch:
        patch.setattr(*full, save)
        assert main(words) == 3
    message = capsys.readouterr().err.splitlines()[-1]
    assert "No space left on device" in message
    assert "make room" in message
    assert files_in(out) == before
    assert main(words) == 0
    assert "read before the interruption" in capsys.readouterr().out
    assert files_in(out) == before
