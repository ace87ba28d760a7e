"""What an interrupted ingest left is gone on with by the same files and the same code alone."""

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from zipfile import ZipFile

import pytest

import overlapscope
from overlapscope.errors import InputError
from overlapscope.files.source_digest import source_digest
from overlapscope.ingest import registry as read_by
from overlapscope.ingest.parallel import spool
from overlapscope.ingest.write_run import write_run
from tests.support.reading_processes import Here
from tests.unit.parallel.test_write_run import Interrupting, assert_as_if_read_at_once, trace


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    """The inputs of an ingest to `apart` that was interrupted behind its first file."""
    (tmp_path / "job").mkdir()
    for rank in (0, 1):
        (tmp_path / "job" / f"rank{rank}.json").write_bytes(trace(rank))
    with pytest.raises(KeyboardInterrupt):
        write_run([tmp_path / "job"], tmp_path / "apart", workers=1, watch=Interrupting(1))
    return [tmp_path / "job"]


@pytest.mark.parametrize("how", ["written over", "put in its place"])
def test_another_file_of_equal_size_and_time_is_read_again(inputs: list[Path], tmp_path: Path, how: str) -> None:
    file = inputs[0] / "rank0.json"
    before = file.stat()
    content = trace(0).replace(b'"ncclDevKernel_AllReduce', b'"ncclDevKernel_AllReducf')
    assert content != file.read_bytes()
    assert len(content) == before.st_size
    target = file if how == "written over" else tmp_path / "new"
    target.write_bytes(content)
    os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))
    target.replace(file)
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert assert_as_if_read_at_once(inputs, tmp_path, workers=1).resumed_files == 0


def test_what_other_code_read_is_read_again(
    inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (spool, read_by):
        monkeypatch.setattr(module, "reader_code_digest", lambda: "later code")
    assert assert_as_if_read_at_once(inputs, tmp_path, workers=1).resumed_files == 0


def test_a_worker_with_other_code_reads_nothing(
    inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_by, "reader_code_digest", lambda: "later code")
    with Here() as executor, pytest.raises(InputError, match="another version of overlapscope"):
        write_run(inputs, tmp_path / "apart", executor=executor)
    monkeypatch.undo()
    assert assert_as_if_read_at_once(inputs, tmp_path, workers=1).resumed_files == 1


def output_of(code: str, place: Path, path: Path) -> str:
    """Return what Python code prints that runs in a folder and imports from `path`."""
    variables = {**os.environ, "PYTHONPATH": str(path)}
    return subprocess.check_output([sys.executable, "-c", code], cwd=place, env=variables, text=True)


@pytest.mark.slow
def test_code_is_known_by_its_text(tmp_path: Path) -> None:
    """The same wherever it lies; another one as soon as one letter of one file is."""
    code = (
        "from overlapscope.files.source_digest import source_digest;"
        "print(source_digest('overlapscope.ingest', 'overlapscope.timeline'))"
    )
    here = Path(overlapscope.__file__).parents[1]
    shutil.copytree(here / "overlapscope", tmp_path / "overlapscope", ignore=shutil.ignore_patterns("__pycache__"))
    before = output_of(code, tmp_path, tmp_path)
    assert before == output_of(code, here, here)
    for changed in ("ingest/build/comm_names.toml", "timeline/columns.py"):
        with open(tmp_path / "overlapscope" / changed, "a", encoding="utf-8") as file:
            file.write("#\n")
        after = output_of(code, tmp_path, tmp_path)
        assert after != before
        before = after


def test_code_that_is_no_files_is_never_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NotADirectoryError

    monkeypatch.setattr("overlapscope.files.source_digest.os.scandir", refuse)
    source_digest.cache_clear()
    first = source_digest("overlapscope.ingest")
    source_digest.cache_clear()
    assert source_digest("overlapscope.ingest") != first
    source_digest.cache_clear()


def test_code_in_an_archive_is_known_by_the_archive(tmp_path: Path) -> None:
    """So that other processes of the same program are of the same code."""
    archive = tmp_path / "program.zip"
    code = (
        "from overlapscope.files import source_digest as code;"
        "print(code.__file__, code.source_digest('overlapscope.ingest'), code.module_digest('overlapscope.version'))"
    )
    packages = Path(overlapscope.__file__).parent
    with ZipFile(archive, "w") as file:
        for name in ("__init__", "errors", "version", "files/__init__", "ingest/__init__", "files/source_digest"):
            file.write(packages / f"{name}.py", f"overlapscope/{name}.py")
    first = output_of(code, tmp_path, archive)
    assert first.startswith(str(archive))
    assert output_of(code, tmp_path, archive) == first
    with ZipFile(archive, "a") as file:
        file.writestr("overlapscope/ingest/more.py", "")
    after = output_of(code, tmp_path, archive)
    assert all(one != other for one, other in zip(first.split()[1:], after.split()[1:], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    ["emptied", "cut", "nulls", "gone", "marker", "no marker", "a folder", "a pipe", "a link", "a file"],
)
def test_what_was_damaged_since_is_read_again(inputs: list[Path], tmp_path: Path, damage: str) -> None:
    """As by a power cut, or by hand."""
    (whole,) = (tmp_path / ".apart.ingest" / "read").glob("[0-9a-f]*")
    table, marker = whole / "0" / "0" / "spans.parquet", whole / "file.json"
    content = table.read_bytes()
    half = len(content) // 2
    if damage in ("emptied", "cut", "nulls"):
        left = {"emptied": b"", "cut": content[:half], "nulls": content[:half].ljust(len(content), b"\0")}
        table.write_bytes(left[damage])
    elif damage == "gone":
        table.unlink()
    elif damage == "marker":
        marker.write_bytes(b"")
    elif damage == "a file":
        shutil.rmtree(whole)
        whole.write_text("")
    else:
        marker.unlink()
        instead = {"a folder": marker.mkdir, "a pipe": partial(os.mkfifo, marker)}
        instead |= {"a link": partial(marker.symlink_to, "nowhere"), "no marker": lambda: None}
        instead[damage]()
    assert assert_as_if_read_at_once(inputs, tmp_path, workers=1).resumed_files == 0
