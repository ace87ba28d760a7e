"""A trace that is read in shares gives what one process finds in it, whole or damaged, whoever is lost on the way."""

import gzip
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope.errors import InputError
from overlapscope.ingest.build.trace_columns import Ranges, TraceColumns, concatenate_columns
from overlapscope.ingest.formats.kineto import event_file as kineto_file
from overlapscope.ingest.formats.kineto.event_file import EventFile, read_events
from overlapscope.ingest.inputs import Inputs, Unpacked
from overlapscope.ingest.options import ReadOptions
from overlapscope.ingest.parallel import read_parallel
from overlapscope.ingest.parallel.task import task_of
from overlapscope.ingest.parsing import gzip_stream as bytestream
from overlapscope.ingest.parsing.event_chunks import EventChunks
from overlapscope.ingest.read_run import read_inputs
from overlapscope.ingest.reader import ReadContext, Sharing
from overlapscope.ingest.write_run import write_run
from overlapscope.timeline.columns import NONE, Columns
from tests.conftest import ROOT
from tests.property.examples import examples
from tests.support.reading_processes import Here, PoolHere, dead
from tests.support.writers.kineto import (
    ABSOLUTE_FLOATS,
    TORCH_1_8,
    TORCH_2022,
    TORCH_2024,
    US,
    Event,
    distributed,
    op,
    sync,
    training,
    write,
    write_job,
)
from tests.unit.parallel.test_write_run import files_in, files_of, wait_for_end


def host_only(at: int) -> list[Event]:
    """Return events that are no work: the profiler's own, functions of a stack, and synchronisations of streams."""
    awaited = {"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": at, "wait_on_cuda_event_id": 5}
    return [
        op("Activity Buffer Request", at * US, 5 * US, sort="overhead"),
        op(f"train.py({at}): step", at * US, 7 * US, sort="python_function"),
        op(f"nn.Module: Linear_{at}", at * US, 7 * US, sort="python_function"),
        sync("Stream Wait Event", at * US, 1 * US, 70 + at, 20 + at, **awaited),
        sync("Context Sync", at * US, 1 * US, 90 + at, -1),
    ]


CONTENTS = [
    write(training(steps=5), metadata=distributed(0)),
    write(training(steps=4), TORCH_2022, metadata=distributed(1)),
    write(training(steps=3), TORCH_1_8),
    write(training(steps=3), ABSOLUTE_FLOATS, indent=True),
    write(training(steps=3), TORCH_2024, array=True),
    write([*training(steps=3), *(each for at in range(9) for each in host_only(at))], metadata=distributed(0)),
]


class _Counting(Here):
    """Does each share here, and knows what came of them."""

    def __init__(self) -> None:
        self.given: list[bool] = []

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(function, *args, **kwargs)
        self.given.append(future.result())
        return future


def in_small_pieces() -> Iterator[None]:
    """Have pieces and blocks of some hundred bytes: small traces have many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kineto_file, "EventChunks", lambda blocks, name: EventChunks(blocks, name, piece_bytes=700))
        patch.setattr(bytestream, "BLOCK_BYTES", 300)
        yield


small_pieces = pytest.fixture(in_small_pieces)


def contents(
    path: Path,
    shares: int = 1,
    executor: Here | None = None,
    progress: Callable[[int], None] | None = None,
) -> Any:
    """Return all that reading a file gives, names and lanes in words."""
    sharing = Sharing(executor=executor or _Counting(), shares=shares, folder=path.parent) if shares > 1 else None
    try:
        file = read_events(path, ReadContext(sharing=sharing, progress=progress, stacks=True))
    except InputError as error:
        return str(error)
    return {name: getattr(file, name) for name in EventFile.__struct_fields__ if name != "columns"} | spelled(
        file.columns
    )


def spelled(columns: TraceColumns) -> dict[str, Any]:
    names = np.array(columns.names.to_list(), object)
    lanes = np.array([*(f"{process}/{thread}" for process, thread in columns.lanes), "none"], object)
    found: dict[str, Any] = {}

    def add(prefix: str, table: Any) -> None:
        for name in table.__struct_fields__:
            value = getattr(table, name)
            if isinstance(value, Ranges | Columns):
                add(f"{name}.", value)
            elif isinstance(value, np.ndarray):
                words = names if name.endswith("name") else lanes if name.endswith("lane") else None
                found[prefix + name] = (value if words is None else words[np.where(value == NONE, -1, value)]).tolist()
            elif name not in ("names", "lanes"):
                found[prefix + name] = value

    add("", columns)
    return found | {"names": sorted(names), "lanes": sorted(lanes), "window": columns.window}


@pytest.mark.slow
@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("shares", [2, 3, 8])
@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("content", CONTENTS, ids=range(len(CONTENTS)))
def test_shares_give_what_one_process_finds(tmp_path: Path, content: bytes, compressed: bool, shares: int) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(content) if compressed else content)
    executor = _Counting()
    assert contents(path, shares, executor) == contents(path)
    assert executor.given == [True] * (shares - 1)


@pytest.mark.slow
@examples(120, deadline=None)
@given(
    which=st.integers(0, len(CONTENTS) - 1),
    damage=st.lists(st.tuples(st.floats(0, 1), st.sampled_from(b'"{}[],\\x00 ')), max_size=3),
    cut=st.floats(0.1, 1),
    compressed=st.booleans(),
    shares=st.integers(2, 4),
)
def test_damage_anywhere_is_read_as_one_process_reads_it(
    tmp_path_factory: pytest.TempPathFactory,
    which: int,
    damage: list[tuple[float, int]],
    cut: float,
    compressed: bool,
    shares: int,
) -> None:
    content = bytearray(CONTENTS[which])
    for place, letter in damage:
        content[int(place * (len(content) - 1))] = letter
    whole = gzip.compress(bytes(content)) if compressed else bytes(content)
    path = tmp_path_factory.mktemp("damaged") / "trace.json"
    path.write_bytes(whole[: int(cut * len(whole))])
    with contextmanager(in_small_pieces)():
        assert contents(path, shares) == contents(path)


@pytest.mark.usefixtures("small_pieces")
def test_a_share_that_is_damaged_is_not_taken(tmp_path: Path) -> None:
    content = bytearray(CONTENTS[0])
    content[content.index(b'"ph"', len(content) // 4) - 1] = ord("}")
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    executor = _Counting()
    read: list[int] = []
    assert contents(path, 2, executor, read.append) == contents(path)
    assert executor.given == [False]
    assert sum(read) == len(content)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(write(training(steps=400), metadata=distributed(0))))
    return path


@pytest.fixture
def alone(job: Path, tmp_path: Path) -> dict[str, bytes]:
    """The files of the run that one process reads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kineto_file, "_read_in_shares", lambda *_: pytest.fail("one process reads alone"))
        return files_of(read_inputs([job]), tmp_path / "alone")


@pytest.fixture
def merged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note of how many shares files were put together."""
    counts: list[int] = []
    plain = concatenate_columns
    monkeypatch.setattr(kineto_file, "concatenate_columns", lambda parts: counts.append(len(parts)) or plain(parts))
    return counts


@pytest.mark.slow
def test_real_processes_give_the_same_run(
    job: Path, tmp_path: Path, alone: dict[str, bytes], merged: list[int]
) -> None:
    progress: list[int] = []
    shared = read_inputs([job], workers=3, progress=lambda _, done: progress.append(done))
    assert merged == [3]
    assert files_of(shared, tmp_path / "shared") == alone
    assert sum(progress) == len(gzip.decompress(job.read_bytes()))


@pytest.mark.slow
@pytest.mark.parametrize("shares", [1, 2, 3])
def test_who_reads_a_file_to_disk_may_read_it_in_shares(
    job: Path, tmp_path: Path, alone: dict[str, bytes], merged: list[int], shares: int
) -> None:
    write_run([job], tmp_path / "written", workers=shares)
    assert merged == [shares] * (shares > 1)
    assert files_in(tmp_path / "written") == alone


@pytest.mark.slow
@pytest.mark.parametrize("way", ["analyze", "ingest"])
def test_processes_that_read_several_files_have_others_help_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """They are real ones: each notes whose child it is."""
    monkeypatch.setattr("overlapscope.ingest.parallel.worker_count.bytes_in", lambda _: 100 << 20)
    folder = write_job(tmp_path / "job", 2, steps=300)
    alone = files_of(read_inputs([folder]), tmp_path / "alone")
    noted = tmp_path / "noted"
    noted.mkdir()
    (tmp_path / "sitecustomize.py").write_text(
        f"import os\nopen(os.path.join({str(noted)!r}, f'{{os.getpid()}} {{os.getppid()}}'), 'w').close()\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    if way == "analyze":
        assert files_of(read_inputs([folder], workers=4), tmp_path / "shared") == alone
    else:
        write_run([folder], tmp_path / "shared", workers=4)
        assert files_in(tmp_path / "shared") == alone
    started = dict(each.name.split() for each in noted.iterdir())
    helpers = [parent for parent in started.values() if parent in started]
    assert len(helpers) == (1 if way == "analyze" else 2), started


HELPERS_WAIT = """
import os, sys, time
import overlapscope.ingest.parallel.worker_count
overlapscope.ingest.parallel.worker_count.bytes_in = lambda _: 100 << 20
parent = os.getppid()
with open(f"/proc/{parent}/cmdline", "rb") as file:
    helps = b"spawn_main" in file.read()
if helps:
    open(os.path.join(os.environ["NOTED"], str(os.getpid())), "w").close()
while helps and os.getppid() == parent:
    time.sleep(0.01)
"""
"""Run by each process at its start: those that help a process that reads a file wait until it has gone."""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="there is no /proc to tell processes apart by")
def test_an_interruption_ends_those_that_help_and_leaves_nothing_of_theirs(tmp_path: Path) -> None:
    places = {name: tmp_path / name for name in ("job", "noted", "temporary", "site")}
    for place in places.values():
        place.mkdir()
    write_job(places["job"], 2, steps=3)
    (places["site"] / "sitecustomize.py").write_text(HELPERS_WAIT)
    path = os.pathsep.join([str(places["site"]), str(ROOT)])
    variables = {"PYTHONPATH": path, "NOTED": str(places["noted"]), "TMPDIR": str(places["temporary"])}
    words = [sys.executable, "-m", "overlapscope", "ingest", "--workers", "4", str(places["job"]), "-o", "run"]
    command = subprocess.Popen(words, env=os.environ | variables, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while len(helpers := os.listdir(places["noted"])) < 2 and command.poll() is None:
        time.sleep(0.01)
    assert os.listdir(places["temporary"]) != []
    command.send_signal(signal.SIGTERM)
    _, printed = command.communicate()
    assert command.returncode == 143, printed
    for each in helpers:
        wait_for_end(int(each))
    assert os.listdir(places["temporary"]) == []


def run_short(*_: object) -> None:
    raise MemoryError


def run_full(*_: object) -> None:
    raise OSError("full")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "instead"),
    [
        ((PoolHere, "submit"), lambda *_, **__: dead()),
        ((kineto_file, "_read_in_shares"), run_short),
        ((kineto_file, "save"), run_full),
    ],
    ids=["its processes died", "memory is short for shares", "nothing can be written"],
)
def test_a_file_that_cannot_be_read_in_shares_is_read_by_one(
    broken: tuple[object, str], instead: Any, job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = files_of(read_inputs([job]), tmp_path / "alone")
    monkeypatch.setattr(*broken, instead)
    monkeypatch.setattr(read_parallel, "WorkerPool", PoolHere)
    assert files_of(read_inputs([job], workers=2), tmp_path / "shared") == alone


def test_where_no_thread_can_be_started_the_file_is_read_here(
    job: Path, tmp_path: Path, alone: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    start, left = threading.Thread.start, [1]

    def started(thread: threading.Thread) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)
    shared = read_inputs([job], workers=3)
    monkeypatch.undo()
    assert left[0] < 0
    assert files_of(shared, tmp_path / "shared") == alone


@pytest.mark.usefixtures("small_pieces")
def test_shares_that_do_not_meet_are_not_put_together(tmp_path: Path) -> None:
    """As when the file was replaced between the readings of two processes."""
    path, other = tmp_path / "trace.json", tmp_path / "other.json"
    path.write_bytes(CONTENTS[0])
    other.write_bytes(write(training(steps=6, first=90), metadata=distributed(0)))

    class Other(_Counting):
        def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            return super().submit(function, other, *args[1:], **kwargs)

    executor = Other()
    assert contents(path, 2, executor) == contents(path)
    assert executor.given == [True]


@pytest.mark.usefixtures("small_pieces")
def test_shares_of_two_files_are_not_put_together_however_alike(tmp_path: Path) -> None:
    """As when a trace is replaced, between the readings of two processes, by one whose events are as long."""
    path, other = tmp_path / "trace.json", tmp_path / "other.json"
    path.write_bytes(CONTENTS[0])
    other.write_bytes(CONTENTS[0].replace(b"ncclDevKernel", b"ncclDevBrunel"))

    class Replacing(_Counting):
        def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            given = super().submit(function, *args, **kwargs)
            if other.exists():
                other.replace(path)
            return given

    executor = Replacing()
    shared = contents(path, 2, executor)
    assert executor.given == [True]
    assert shared == contents(path)


def test_what_is_handed_over_goes_with_the_file_and_does_not_gather_up_to_the_end(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    found = Unpacked(inputs=Inputs(runs=(), files=(job,), passed_over=()))
    task = replace(task_of(found, job, ReadOptions()), shares=2)
    there: list[int] = []
    read = read_parallel.read_task_in_shares(task, lambda _: there.append(len(list(place.iterdir()))))
    assert there[0] == 1
    assert len(read.readings) == 1
    assert list(place.iterdir()) == []
