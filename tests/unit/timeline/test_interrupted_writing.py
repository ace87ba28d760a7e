"""Whoever is killed while a run is written: what is found next is the old run, the new one, or a word on it."""

import errno
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from overlapscope.cli.main import main
from overlapscope.cli.prediction_file import NAME, add_noted
from overlapscope.cli.verbs.export import write_file
from overlapscope.errors import InputError, UsageError
from overlapscope.files import atomic as flushed
from overlapscope.files import temporary_folder
from overlapscope.ingest.parallel.work_dir import READ, work_dir
from overlapscope.ingest.run_folder import read_runs
from overlapscope.ingest.write_run import write_run
from overlapscope.timeline.store.load_save import load_run
from overlapscope.timeline.store.run_folder import explain_interrupted, is_taken, replace_run, write_then_replace
from overlapscope_dashboards.runs.catalog import find_runs
from tests.unit.parallel.test_write_run import files_in, job, trace

WEEK_S = 7 * 24 * 3600


@contextmanager
def paused(code: str) -> Iterator["subprocess.Popen[str]"]:
    """Another process that runs so far as to call `pause()`, and goes on when it gets a line."""
    start = "import sys\ndef pause(*_):\n    print('paused', flush=True)\n    sys.stdin.readline()\n"
    process = subprocess.Popen(
        [sys.executable, "-c", start + code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "paused\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def go_on(process: "subprocess.Popen[str]") -> str:
    """Let a paused process go on, and return the next line that it prints."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline()


def older_run(run: Path) -> Path:
    (run / "rank_00000").mkdir(parents=True)
    (run / "run.json").write_text("old")
    (run / "rank_00000" / "spans.parquet").write_text("old")
    return run


def killed(code: str) -> None:
    with paused(code) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()


REPLACING = """
import os
from pathlib import Path
from overlapscope.timeline.store.run_folder import write_then_replace, is_taken, replace_run
from overlapscope.timeline.store.load_save import load_run
replace, left = os.replace, [{steps}]
def step(*args):
    if not left[0]:
        pause()
    left[0] -= 1
    replace(*args)
os.replace = step
with write_then_replace(Path({run!r})) as place:
    (place / "run.json").write_text("new")
pause()
"""


@pytest.mark.slow
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_run_that_is_replaced_by_a_killed_process_is_the_old_or_the_new_one(steps: int, tmp_path: Path) -> None:
    run = older_run(tmp_path / "run")
    before = files_in(run)
    killed(REPLACING.format(steps=steps, run=str(run)))
    assert run.exists() == (steps != 1)
    with pytest.raises(UsageError, match="exists already"):
        write_run(job(tmp_path / "job"), run)
    assert files_in(run) == (before if steps < 2 else {"run.json": b"new"})
    with write_then_replace(run):
        pass
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def test_the_place_of_a_run_that_was_put_aside_is_named_where_it_is_missed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = older_run(tmp_path / "my run")
    before = files_in(run)
    killed(REPLACING.format(steps=1, run=str(run)))
    assert main(["analyze", str(run)]) == 3
    said = capsys.readouterr().err
    assert "replacing what stood there was interrupted" in said
    with pytest.raises(InputError, match="replacing what stood there was interrupted"):
        find_runs([run])  # as `serve` does
    subprocess.run(shlex.split(said.partition("this puts it back: ")[2]), check=True)
    assert files_in(run) == before


@pytest.mark.slow
def test_a_run_that_was_put_aside_is_not_passed_over_among_others(tmp_path: Path) -> None:
    killed(REPLACING.format(steps=1, run=str(older_run(tmp_path / "one"))))
    write_run(job(tmp_path / "job"), tmp_path / "two", workers=1)
    notes, left_out = list[str](), list[str]()
    runs = list(read_runs(tmp_path, note=notes.append, left_out=left_out))
    assert [path.name for path, _ in runs] == ["two"]
    assert any(each.startswith(f"{tmp_path / 'one'}: replacing what stood there was interrupted") for each in notes)
    assert len(left_out) == 1


def test_only_ones_own_runs_are_said_to_be_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".one.overlapscope-old-abcdefgh" / "one").mkdir(parents=True)
    (tmp_path / ".two.overlapscope-old-abcdefgh" / "another").mkdir(parents=True)
    (tmp_path / ".three.overlapscope-old-Results1" / "three").mkdir(parents=True)
    (said,) = explain_interrupted(tmp_path)
    assert said.startswith(f"{tmp_path / 'one'}: ")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert explain_interrupted(tmp_path) == []


def test_a_folder_that_vanishes_while_it_is_looked_at_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aside = tmp_path / ".one.overlapscope-old-abcdefgh"
    (aside / "one").mkdir(parents=True)
    sound = Path.lstat

    def vanishing(path: Path) -> os.stat_result:
        if path == aside and path.exists():
            shutil.rmtree(aside)
        return sound(path)

    monkeypatch.setattr(Path, "lstat", vanishing)
    assert explain_interrupted(tmp_path) == []


@pytest.mark.slow
def test_a_rank_that_was_put_aside_is_said_to_be(tmp_path: Path) -> None:
    run = write_run(job(tmp_path / "job"), tmp_path / "run", workers=1).path
    whole = load_run(run)
    killed(REPLACING.format(steps=1, run=str(run / "rank_00001")))
    loaded = load_run(run)
    assert whole.ranks.keys() - loaded.ranks.keys() == {1}
    words = [each for source in loaded.sources[len(whole.sources) :] for each in source.warnings]
    assert any(each.startswith(f"{run}/rank_00001: replacing what stood there was interrupted") for each in words)


def test_what_is_being_replaced_is_left_alone_by_others(tmp_path: Path) -> None:
    run = older_run(tmp_path / "run")
    with paused(REPLACING.format(steps=1, run=str(run))) as other:
        assert not is_taken(run)
        other.communicate("\n\n", timeout=60)
    assert files_in(run) == {"run.json": b"new"}


def test_an_older_run_is_put_back_when_the_newer_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = older_run(tmp_path / "run")
    before, replace = files_in(run), os.replace

    def refuse(source: Path, target: Path) -> None:
        if target == run and source.name != run.name:
            raise OSError
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError), write_then_replace(run):  # noqa: PT011 - it has no words
        pass
    assert files_in(run) == before
    assert [each.name for each in tmp_path.iterdir()] == ["run"]


# --- two at once ------------------------------------------------------------------------------------------------------

WAITING_AT_THE_LOCK = """
from pathlib import Path
from overlapscope.ingest.parallel import work_dir as module
from overlapscope.errors import UsageError
lock, waited = module.try_lock, []
def wait(handle):
    if not waited:
        waited.append(pause())
    return lock(handle)
module.try_lock = wait
try:
    with module.work_dir(Path({out!r})):
        print("prepares", flush=True)
        pause()
except UsageError as error:
    print(error, flush=True)
"""


def test_a_lock_that_was_removed_locks_nobody_out_of_nothing(tmp_path: Path) -> None:
    """One opens the lock, which another one removes with its folder, and a third one makes anew and takes."""
    out = tmp_path / "run"
    first = work_dir(out)
    first.__enter__()
    with paused(WAITING_AT_THE_LOCK.format(out=str(out))) as second:
        first.__exit__(None, None, None)
        with work_dir(out) as third:
            assert "another process is writing this run" in go_on(second)
            assert (third / READ).is_dir()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_was_removed_is_taken_anew(tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = work_dir(out)
    first.__enter__()
    with paused(WAITING_AT_THE_LOCK.format(out=str(out))) as second:
        first.__exit__(None, None, None)
        assert go_on(second) == "prepares\n"
        with pytest.raises(UsageError, match="another process is writing this run"), work_dir(out):
            pass


@pytest.mark.parametrize("odd", [os.mkfifo, Path.mkdir, lambda place: place.symlink_to("elsewhere")])
def test_what_is_no_file_in_the_place_of_the_lock_is_named_and_not_waited_for(
    odd: Callable[[Path], None], tmp_path: Path
) -> None:
    lock = tmp_path / ".run.ingest" / "lock"
    lock.parent.mkdir()
    odd(lock)
    with pytest.raises(InputError, match=r"\.run\.ingest/lock: cannot be written: it is no file; remove it"):
        work_dir(tmp_path / "run").__enter__()


def test_a_pipe_in_the_place_of_another_run_s_lock_holds_up_nobody(tmp_path: Path) -> None:
    others = tmp_path / ".other.ingest"
    (others / READ).mkdir(parents=True)
    os.mkfifo(others / "lock")
    for each in (others / READ, others):
        os.utime(each, (time.time() - 2 * WEEK_S,) * 2)
    with work_dir(tmp_path / "run") as work:
        assert work.is_dir()
    assert others.is_dir()


def test_a_run_that_came_while_another_command_waited_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = job(tmp_path / "job")
    module = sys.modules["overlapscope.ingest.write_run"]
    enter = work_dir

    def late(out: Path) -> object:
        monkeypatch.undo()
        write_run(inputs, out, workers=1)
        return enter(out)

    monkeypatch.setattr(module, "work_dir", late)
    with pytest.raises(UsageError, match="exists already"):
        write_run(inputs, tmp_path / "run", workers=1)
    assert (tmp_path / "run" / "run.json").exists()


# --- what is left -----------------------------------------------------------------------------------------------------


def age(folder: Path, seconds: float) -> None:
    for each in [*folder.rglob("*"), folder]:
        os.utime(each, (time.time() - seconds,) * 2)


def test_what_killed_processes_left_is_removed_and_what_living_ones_hold_is_not(tmp_path: Path) -> None:
    code = "from pathlib import Path\nfrom overlapscope.files.temporary_folder import locked_folder\n"
    code += f"with locked_folder(Path({str(tmp_path)!r}), '.x-') as folder:\n    pause()\n"
    killed(code)
    (left,) = tmp_path.iterdir()
    (tmp_path / ".x-backup").mkdir()
    (tmp_path / ".x-12345678").symlink_to(left)
    with paused(code) as living:
        assert not left.exists()
        with temporary_folder.locked_folder(tmp_path, ".x-") as own:
            assert len(list(tmp_path.iterdir())) == 4
            assert own.exists()
        living.communicate("\n", timeout=60)
    assert sorted(each.name for each in tmp_path.iterdir()) == [".x-12345678", ".x-backup"]


def test_where_there_are_no_locks_age_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(temporary_folder.fcntl, "flock", refuse)
    for name, seconds in ((".x-youngers", 3600), (".x-olderold", 48 * 3600)):
        (tmp_path / name).mkdir()
        age(tmp_path / name, seconds)
    with temporary_folder.locked_folder(tmp_path, ".x-"):
        pass
    assert [each.name for each in tmp_path.iterdir()] == [".x-youngers"]


def test_what_was_interrupted_long_ago_is_not_gone_on_with(tmp_path: Path) -> None:
    left = {}
    for name in ("recent", "long ago", "in use", "another's"):
        left[name] = tmp_path / f".{name}.ingest"
        (left[name] / READ / "0123").mkdir(parents=True)
        if name != "another's":
            (left[name] / "lock").touch()
        age(left[name], (2 if name != "recent" else 0.5) * WEEK_S)
    code = f"import fcntl\nfile = open({str(left['in use'] / 'lock')!r}, 'r+')\n"
    with paused(code + "fcntl.flock(file, fcntl.LOCK_EX)\npause()\n"), work_dir(tmp_path / "run"):
        pass
    assert {name for name, place in left.items() if not place.exists()} == {"long ago"}


# --- a power cut ------------------------------------------------------------------------------------------------------


@pytest.fixture
def flushes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What was put on disk, renamed and removed, in order."""
    seen: list[tuple[str, str]] = []
    replace, remove = os.replace, shutil.rmtree

    def fsync(handle: int) -> None:
        seen.append(("flush", os.readlink(f"/proc/self/fd/{handle}")))

    def renamed(source: object, target: object) -> None:
        seen.append(("rename", str(target)))
        replace(source, target)  # type: ignore[arg-type]

    def removed(folder: object, **how: object) -> None:
        seen.append(("remove", str(folder)))
        remove(folder, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(flushed.os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", renamed)
    monkeypatch.setattr(shutil, "rmtree", removed)
    return seen


def test_a_run_is_on_disk_before_it_has_its_name_and_its_name_before_the_older_one_goes(
    tmp_path: Path, flushes: list[tuple[str, str]]
) -> None:
    out = tmp_path / "run"
    (tmp_path / "rank0.json").write_bytes(trace(0))
    for force in (False, True):
        flushes.clear()
        write_run([tmp_path / "rank0.json"], out, workers=1, force=force)
        named = flushes.index(("rename", str(out)))
        before = [path for what, path in flushes[:named] if what == "flush"]
        prepared = str(tmp_path / ".run.ingest" / "run")
        assert sorted(before) == sorted(prepared + str(each).removeprefix(str(out)) for each in [out, *out.rglob("*")])
        behind = flushes[named + 1 :]
        assert behind[0] == ("flush", str(tmp_path))
        removed = [path for what, path in behind if what == "remove"]
        assert any(".overlapscope-old-" in path for path in removed) == force
        assert any(".run.ingest" in path for path in removed)


def test_a_file_is_on_disk_before_it_takes_the_place_of_an_older_one(
    tmp_path: Path, flushes: list[tuple[str, str]]
) -> None:
    run = older_run(tmp_path / "run")
    for write, file in (
        (lambda: write_file(run / "report.html", ["new"], force=True), run / "report.html"),
        (lambda: add_noted(run), run / NAME),
    ):
        flushes.clear()
        write()
        (flushed_as, named) = flushes
        assert flushed_as[0] == "flush"
        assert Path(flushed_as[1]).name.startswith(f".{file.name}.")
        assert named == ("rename", str(file))


@pytest.mark.parametrize(("number", "words"), [(errno.EINVAL, ""), (errno.EIO, "Input/output error")])
def test_a_disk_that_fails_is_an_error_and_one_that_cannot_flush_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    run = older_run(tmp_path / "run")
    before = files_in(run)

    def refuse(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(flushed.os, "fsync", refuse)
    with pytest.raises(InputError, match=words) if words else nullcontext(), replace_run(run, force=True) as place:
        (place / "run.json").write_text("new")
    assert files_in(run) == (before if words else {"run.json": b"new"})
    assert [each.name for each in tmp_path.iterdir()] == ["run"]


def test_what_cannot_be_put_on_disk_is_an_error_and_leaves_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rank0.json").write_bytes(trace(0))
    failed = []

    def fsync(handle: int) -> None:
        if "/.run.ingest/run/" in os.readlink(f"/proc/self/fd/{handle}"):
            failed.append(handle)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(flushed.os, "fsync", fsync)
        with pytest.raises(InputError, match="cannot be written: Input/output error"):
            write_run([tmp_path / "rank0.json"], tmp_path / "run", workers=1)
    assert failed
    assert not (tmp_path / "run").exists()
    assert write_run([tmp_path / "rank0.json"], tmp_path / "run", workers=1).resumed_files == 1
