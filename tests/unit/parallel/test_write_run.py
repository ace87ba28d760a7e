"""A run written file by file is the run read at once; what is interrupted goes on; what is killed costs itself."""

import contextlib
import gzip
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from overlapscope.cli.main import main
from overlapscope.errors import InputError, UsageError
from overlapscope.ingest import write_run_tables
from overlapscope.ingest.options import ReadOptions
from overlapscope.ingest.parallel.process_pool import can_start
from overlapscope.ingest.progress import NoProgress
from overlapscope.ingest.read_run import read_inputs
from overlapscope.ingest.write_run import Written, write_run
from overlapscope.timeline.run import Run
from overlapscope.timeline.store.load_save import save_run
from overlapscope.version import __version__
from tests.conftest import needs_archives, shared_file
from tests.support.reading_processes import Here, dead, workers_die_over
from tests.support.writers.kineto import TORCH_2022, distributed, training, write
from tests.support.writers.nsight import Export, Kernel


def trace(rank: int, *, windows_later: int = 0, steps: int = 2) -> bytes:
    events = training(steps=steps, first=3 + 10 * windows_later)
    later = [
        # A later recording of the same rank: each event a second on.
        type(event)(
            **{name: getattr(event, name) for name in event.__struct_fields__ if name != "start_ns"},
            start_ns=event.start_ns + windows_later * 10**9,
        )
        for event in events
    ]
    return write(later, metadata=distributed(rank))


def old_trace() -> bytes:
    """A trace that does not say which rank it is."""
    return write(training(), TORCH_2022)


def files_in(run: Path) -> dict[str, bytes]:
    return {str(file.relative_to(run)): file.read_bytes() for file in sorted(run.rglob("*")) if file.is_file()}


def files_of(run: Run, place: Path) -> dict[str, bytes]:
    """Return the files of the directory that a run is saved to."""
    save_run(run, place, version=__version__)
    return files_in(place)


def assert_as_if_read_at_once(inputs: list[Path], tmp_path: Path, **how: Any) -> Written:
    """Every file of both run directories is the same, byte for byte."""
    options = how.pop("options", None)
    wanted = files_of(read_inputs(inputs, options), tmp_path / "at once")
    written = write_run(inputs, tmp_path / "apart", options, **how)
    found = files_in(tmp_path / "apart")
    assert found.keys() == wanted.keys()
    assert [name for name in wanted if found[name] != wanted[name]] == []
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []
    return written


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_run_may_be_called_what_is_no_text(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / os.fsdecode(b"run \xff")
    try:
        place.mkdir()
    except OSError:
        pytest.skip("names of files are text here")
    inputs = [place / "rank0.json", place / "topo.txt"]
    inputs[0].write_bytes(trace(0))
    inputs[1].write_text("\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n")
    assert main(["ingest", *map(str, inputs), "-o", str(place / "run"), *more]) == 0
    assert "run \ufffd/run" in capsys.readouterr().out
    assert (place / "run" / "facts" / "links.parquet").exists()
    assert files_in(place / "run") == files_of(read_inputs([place / "run"]), place / "again")


def job(folder: Path) -> list[Path]:
    """Two ranks, the first recorded twice; one that only its file's name states; a damaged file; one in an archive."""
    folder.mkdir()
    (folder / "rank0.json").write_bytes(trace(0))
    (folder / "rank0_later.json.gz").write_bytes(gzip.compress(trace(0, windows_later=2)))
    (folder / "rank1.json").write_bytes(trace(1))
    (folder / "rank_2.json").write_bytes(old_trace())
    (folder / "rank3.json").write_bytes(trace(3)[:40])
    (folder / "notes.txt").write_text("nothing\n")
    with tarfile.open(folder / "more.tar.gz", "w:gz") as archive:
        (folder.parent / "member").write_bytes(trace(1, windows_later=1))
        archive.add(folder.parent / "member", "rank1_later.json")
    return [folder]


def test_a_run_written_file_by_file_is_the_run_read_at_once(tmp_path: Path) -> None:
    written = assert_as_if_read_at_once(job(tmp_path / "job"), tmp_path, workers=1)
    assert written.ranks == (0, 1, 2)
    assert written.resumed_files == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        ("gloo_torch2.13", "flight_recorder/gloo_ddp"),
        ("ascend",),
        pytest.param(("kineto/megatron_tp8",), marks=pytest.mark.long),
        pytest.param(("kineto/sampled_pair", "topo", "nccl_log"), marks=pytest.mark.long),
        pytest.param(("nsys", "nccl_tests"), marks=pytest.mark.long),
        pytest.param(("horovod", "rocprof"), marks=pytest.mark.long),
    ],
    ids=" ".join,
)
def test_real_sources_of_all_kinds_give_the_same_either_way(names: tuple[str, ...], tmp_path: Path) -> None:
    inputs = [shared_file(name) for name in names]
    try:
        wanted: Exception | None = None
        read_inputs(inputs)
    except (InputError, UsageError) as error:
        wanted = error
    if wanted is None:
        assert_as_if_read_at_once(inputs, tmp_path, workers=1)
        return
    with pytest.raises(type(wanted), match=re.escape(str(wanted))):
        write_run(inputs, tmp_path / "apart", workers=1)


def test_assumed_ranks_are_said_or_taken_back_either_way(tmp_path: Path) -> None:
    options = ["--nnodes=1", "--nproc-per-node=8"]
    inputs = [tmp_path / f"{name}.sqlite" for name in "abc"]
    for path, device in zip(inputs, (1, 2, 2), strict=True):
        Export(kernels=[Kernel(name="k", start=1, end=9, device=device)], arguments=options).write(path)
    written = assert_as_if_read_at_once(inputs, tmp_path, workers=1)
    assert written.ranks == (1,)
    first, *others = (" ".join(source.warnings) for source in written.sources)
    assert "assumed to be rank 1" in first
    assert all("left out: no rank" in each and "assumed" not in each for each in others)


@pytest.mark.slow
def test_relative_paths_stay_what_the_user_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job(tmp_path / "job")
    monkeypatch.chdir(tmp_path)
    written = assert_as_if_read_at_once([Path("job")], tmp_path, workers=1)
    assert {source.path.split("/")[0] for source in written.sources} == {"job"}


def test_options_count_for_files_that_are_read_apart(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(old_trace())
    (tmp_path / "b.json").write_bytes(old_trace())
    options = ReadOptions(comm=("nothing_like_it", "sgemm"), ranks={"a.json": 4, "b.json": 5})
    written = assert_as_if_read_at_once([tmp_path / "a.json", tmp_path / "b.json"], tmp_path, options=options)
    assert written.ranks == (4, 5)
    (warning,) = [each for source in written.sources for each in source.warnings if "no kernel matches" in each]
    assert "nothing_like_it" in warning
    assert "sgemm" not in warning


def test_any_executor_will_do(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as executor:
        assert_as_if_read_at_once(job(tmp_path / "job"), tmp_path, executor=executor)
        assert executor.submit(int, "7").result() == 7  # it is left open


class Interrupting(NoProgress):
    """Presses Ctrl-C when so many files are done."""

    def __init__(self, after: int) -> None:
        self._left = after

    def done(self, path: Path) -> None:
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt


@pytest.fixture
def interrupted(tmp_path: Path) -> list[Path]:
    """The inputs of an ingest to `apart` that was interrupted behind its second file."""
    inputs = job(tmp_path / "job")
    with pytest.raises(KeyboardInterrupt):
        write_run(inputs, tmp_path / "apart", workers=1, watch=Interrupting(2))
    assert not (tmp_path / "apart").exists()
    return inputs


def test_an_interrupted_ingest_goes_on_where_it_stopped(interrupted: list[Path], tmp_path: Path) -> None:
    assert assert_as_if_read_at_once(interrupted, tmp_path, workers=1).resumed_files == 2


def test_other_options_than_before_the_interruption_read_all_again(interrupted: list[Path], tmp_path: Path) -> None:
    options = ReadOptions(comm=("sgemm",))
    assert assert_as_if_read_at_once(interrupted, tmp_path, workers=1, options=options).resumed_files == 0


def test_what_gives_nothing_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(b'{"traceEvents": []}')
    with pytest.raises(InputError):
        write_run([tmp_path / "rank0.json"], tmp_path / "run")
    with pytest.raises(InputError):
        write_run([tmp_path / "nowhere"], tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["rank0.json"]


@pytest.mark.slow
def test_a_run_among_its_own_traces_is_written_again_and_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    job(folder)
    write_run([folder], folder / "run")
    first = files_in(folder / "run")
    write_run([folder], folder / "run", force=True)
    assert files_in(folder / "run") == first
    with pytest.raises(UsageError, match=r"a run directory stands alone"):
        write_run([folder], tmp_path / "other")


def test_what_others_put_where_a_run_is_prepared_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = job(tmp_path / "job")
    work, precious = tmp_path / ".apart.ingest", tmp_path / "precious"
    precious.write_text("mine")
    work.symlink_to(tmp_path / "job")
    with pytest.raises(InputError, match="is not ours"):
        write_run(inputs, tmp_path / "apart", workers=1)
    work.unlink()
    work.mkdir()
    (work / "lock").symlink_to(precious)
    with pytest.raises(InputError, match="cannot be written"):
        write_run(inputs, tmp_path / "apart", workers=1)
    assert precious.read_text() == "mine"
    (work / "lock").unlink()
    tmp_path.chmod(0o1777)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 12345)
        with pytest.raises(InputError, match="is not ours"):
            write_run(inputs, tmp_path / "apart", workers=1)
    assert write_run(inputs, tmp_path / "apart", workers=1).ranks == (0, 1, 2)


def test_where_links_are_impossible_tables_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(write_run_tables.os, "link", refuse)
    assert_as_if_read_at_once(job(tmp_path / "job"), tmp_path, workers=1)


@pytest.mark.slow
def test_a_killed_command_leaves_no_run_and_goes_on_the_next_time(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    long = trace(5, steps=1500)
    for rank, content in enumerate([trace(0), long, long]):
        (folder / f"rank{rank}.json").write_bytes(content.replace(b'"rank": 5', b'"rank": %d' % rank))
    command = [sys.executable, "-m", "overlapscope.cli.main", "ingest", str(folder), "-o", str(tmp_path / "apart")]
    process = subprocess.Popen([*command, "--workers", "1"], stdout=subprocess.DEVNULL)
    ready = tmp_path / ".apart.ingest" / "read"
    while not any(ready.glob("[0-9a-f]*")):
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "apart").exists()
    done = subprocess.run([*command, "--workers", "1"], check=True, capture_output=True, text=True)
    assert "read before the interruption" in done.stdout
    wanted = files_of(read_inputs([folder]), tmp_path / "at once")
    assert files_in(tmp_path / "apart") == wanted


def workers() -> list[int]:
    """Return the processes that read for this one; other tests' may be its children, too."""
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    children = []
    for task in tasks:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            children += [int(each) for each in task.read_text(encoding="ascii").split()]
    return [each for each in children if _is_worker(Path(f"/proc/{each}/cmdline"))]


def _is_worker(command: Path) -> bool:
    try:
        return b"spawn_main" in command.read_bytes()
    except OSError:
        return False  # it has ended


def wait_for_end(process: int) -> None:
    """Wait until a process that was killed has gone, or is only remembered for its parent to ask about.

    Its last thread may hold its files open while the first one is remembered already.
    """
    place = Path(f"/proc/{process}")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while len(os.listdir(place / "task")) > 1 or _state(place) != "Z":
            time.sleep(0.001)


def _state(process: Path) -> str:
    return (process / "stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]


@pytest.mark.slow
def test_a_killed_process_costs_nothing_when_its_file_can_be_read_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = workers_die_over("rank1.json", tmp_path / "site", monkeypatch, times=1)
    written = assert_as_if_read_at_once(job(tmp_path / "job"), tmp_path, workers=2)
    assert len(list(noted.iterdir())) == 1
    assert written.ranks == (0, 1, 2)


@pytest.mark.slow
def test_a_file_whose_reader_is_killed_again_costs_itself_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = workers_die_over("rank_2.json", tmp_path / "site", monkeypatch, times=9)
    written = write_run(job(tmp_path / "job"), tmp_path / "apart", workers=2)
    assert len(list(noted.iterdir())) == 2
    assert written.ranks == (0, 1)
    (lost,) = [source for source in written.sources if source.path.endswith("rank_2.json")]
    assert "killed (SIGKILL" in lost.warnings[0]
    assert "fewer --workers" in lost.warnings[0]


class _Breaking(Here):
    """Gives up after one task, as the standard pool does when a process dies."""

    def __init__(self) -> None:
        self._left = 1

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self._left -= 1
        return super().submit(function, *args, **kwargs) if self._left == 0 else dead()


def test_an_executor_that_breaks_down_is_no_reason_to_begin_anew(tmp_path: Path) -> None:
    inputs = job(tmp_path / "job")
    with pytest.raises(InputError, match="broke down"):
        write_run(inputs, tmp_path / "apart", executor=_Breaking())
    assert assert_as_if_read_at_once(inputs, tmp_path, workers=1).resumed_files == 1


@needs_archives
def test_workers_that_write_to_another_disk_are_noticed(tmp_path: Path) -> None:
    class Elsewhere(Here):
        def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            future = super().submit(function, *args, **kwargs)
            shutil.rmtree(args[0].folder, ignore_errors=True)
            return future

    with pytest.raises(InputError, match="that all workers share"):
        write_run(job(tmp_path / "job"), tmp_path / "apart", executor=Elsewhere())


@needs_archives
def test_progress_counts_files_and_bytes_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("overlapscope.cli.progress.EVERY_SECONDS", 0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    job(tmp_path / "job")
    assert main(["ingest", str(tmp_path / "job"), "-o", str(tmp_path / "run"), "--workers", "1"]) == 0
    shown = capsys.readouterr().err
    assert "0 of 6 files" in shown
    assert "5 of 6 files" in shown
    assert re.search(r"5 of 6 files, [1-9][0-9.,]* KiB, [1-9][0-9.,]* [KM]iB/s, ", shown)


@pytest.mark.parametrize(("name", "value"), [("frozen", True), ("executable", "")])
def test_a_program_that_is_no_python_starts_none(name: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, name, value, raising=False)
    assert not can_start()
