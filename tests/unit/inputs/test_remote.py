"""Inputs by URL are read like local files and folders, and errors say what to do."""

import gzip
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from overlapscope.cli.main import main
from overlapscope.display import display_path, hide_secrets, url_of
from overlapscope.errors import InputError
from overlapscope.ingest.inputs import remote
from overlapscope.ingest.options import ReadOptions
from overlapscope.ingest.read_run import read_inputs
from overlapscope.ingest.write_run import write_run
from overlapscope.timeline.run import Run
from overlapscope.timeline.store.load_save import load_run, save_run
from tests.support.writers.kineto import TORCH_2022, distributed, training, write
from tests.unit.parallel.test_write_run import Interrupting, files_in

pytestmark = pytest.mark.usefixtures("temporary_folder")
FILES = {
    "rank0.json": write(training(), metadata=distributed(0)),
    "rank1.json.gz": write(training(), metadata=distributed(1), compress=True),
    "deep/rank2/trace.json": write(training(), TORCH_2022),
    "deep/.hidden.json": b"{}",
    "README.md": b"# Traces\n",
}


@pytest.fixture
def storage() -> Iterator[Any]:
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    files = fsspec.filesystem("memory")
    for name, content in FILES.items():
        files.pipe_file(f"/job/{name}", content)
    yield files
    files.rm("/job", recursive=True)


def local(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        place = tmp_path / "job" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    return tmp_path / "job"


def sources_of(run: Run, place: str) -> list[tuple[str, Any]]:
    return [(source.path.removeprefix(place), replace(source, path="")) for source in run.sources]


def test_a_url_survives_being_made_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("s3://bucket/a b/c.json", "gs://b/x", "https://host:81/x.json?y=1", "file:///tmp/x", "memory://a"):
        assert url_of(Path(url)) == url
        assert display_path(Path(url)) == url
    for path in ("a/b", "/a:/b", "c:/x", "rank:0", "./s3:/x/../y"):
        assert url_of(Path(path)) is None or path.startswith("./")
        assert display_path(Path("a/b")) == "a/b"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd:").mkdir()
    (tmp_path / "odd:" / "file").touch()
    assert url_of(Path("odd:/file")) is None  # what is there is what is meant


def test_a_folder_behind_a_url_is_read_like_one_here(storage: Any, tmp_path: Path) -> None:
    here = read_inputs([local(tmp_path)])
    there = read_inputs([Path("memory://job")])
    assert list(there.ranks) == [0, 1, 2]
    assert sources_of(there, "memory://job") == sources_of(here, str(tmp_path / "job"))
    assert [each.size for each in there.groups] == [each.size for each in here.groups]


@pytest.mark.slow
def test_a_run_is_written_from_urls_and_gone_on_with(storage: Any, tmp_path: Path) -> None:
    inputs = [Path("memory://job")]
    with pytest.raises(KeyboardInterrupt):
        write_run(inputs, tmp_path / "run", workers=1, watch=Interrupting(2))
    storage.pipe_file("/job/rank0.json", write(training(3), metadata=distributed(0)))
    with ThreadPoolExecutor(2) as executor:
        written = write_run(inputs, tmp_path / "run", executor=executor)
    assert written.resumed_files == 1  # of the two that were read one has changed
    save_run(read_inputs(inputs), tmp_path / "at once", version="")
    found, wanted = (files_in(tmp_path / name) for name in ("run", "at once"))
    assert {name for name in wanted if found[name] != wanted[name]} == {"run.json"}  # which says the version
    assert load_run(tmp_path / "run").sources == load_run(tmp_path / "at once").sources


def test_a_named_file_is_read_whatever_it_is_called(storage: Any) -> None:
    storage.pipe_file("/job/blob", FILES["rank0.json"])
    assert list(read_inputs([Path("memory://job/blob")]).ranks) == [0]


def test_a_local_url_needs_no_slash_to_be_lost(tmp_path: Path) -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    run = read_inputs([Path(f"file://{local(tmp_path)}")])
    assert list(run.ranks) == [0, 1, 2]
    assert run.sources[0].path == f"file://{tmp_path}/job/deep/rank2/trace.json"


def test_a_file_that_is_larger_than_allowed_costs_itself(storage: Any) -> None:
    storage.pipe_file("/job/rank3.json", FILES["rank0.json"] + b" " * (1 << 20))
    run = read_inputs([Path("memory://job")], ReadOptions(max_bytes=1 << 20))
    (source,) = [each for each in run.sources if each.path.endswith("rank3.json")]
    assert source.warnings == ("holds more than 1 MiB, the most that may be copied",)


def test_a_broken_file_is_called_by_its_url(storage: Any) -> None:
    storage.pipe_file("/job/rank3.json", b'{"traceEvents": [')
    run = read_inputs([Path("memory://job")])
    (source,) = [each for each in run.sources if not each.ranks]
    assert source.path == "memory://job/rank3.json"
    assert "temporary" not in source.warnings[0]


def test_an_archive_or_a_run_is_to_be_copied_first(storage: Any) -> None:
    storage.pipe_file("/job/more.zip", b"PK\x05\x06" + bytes(18))
    with pytest.raises(InputError, match=r"memory://job/more\.zip: is an archive on remote storage: copy it"):
        read_inputs([Path("memory://job/more.zip")])
    storage.pipe_file("/job/run.json", b"{}")
    with pytest.raises(InputError, match="memory://job: is a run directory: copy it"):
        read_inputs([Path("memory://job")])


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("memory://nothing", "no such file or folder"),
        ("file:///nothing/here", "no such file or folder"),
        ("unheard-of://a/b", "unheard-of:// is not supported: use s3://"),
        ("ftp://127.0.0.1:9/job", "127.0.0.1:9 refuses the connection: is the server running"),
    ],
)
def test_a_wrong_url_ends_in_3_with_one_line(url: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    assert main(["analyze", url]) == 3
    printed = capsys.readouterr().err
    assert printed.startswith(f"overlapscope analyze: {url}: ")
    assert words in printed
    assert printed.count("\n") == 1


def test_a_storage_that_breaks_off_costs_the_file(storage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = type(storage).open

    def broken(self: Any, path: str, *args: Any, **kwargs: Any) -> Any:
        if path.endswith("rank1.json.gz"):
            raise RuntimeError("connection\nreset")
        return whole(self, path, *args, **kwargs)

    monkeypatch.setattr(type(storage), "open", broken)
    run = read_inputs([Path("memory://job")])
    assert list(run.ranks) == [0, 2]
    assert run.sources[-1].warnings == ("cannot be read: connection reset",)


def test_without_fsspec_the_command_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "fsspec"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    assert main(["ingest", "s3://bucket/traces", "-o", "run"]) == 3
    assert "pip install 'overlapscope[remote]'" in capsys.readouterr().err


def test_gzip_is_known_by_its_first_bytes_alone(storage: Any) -> None:
    storage.pipe_file("/other/rank4", gzip.compress(write(training(400), metadata=distributed(4, 8))))
    assert 4 in read_inputs([Path("memory://other")]).ranks


# --- secrets in URLs --------------------------------------------------------------------------------------------------

SIGNED = "rank7.json?X-Amz-Credential=KEYID%2F2026&X-Amz-Date=20261122&X-Amz-Signature=HUSH" + "0123456789abcdef" * 30


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:HUSH@host:81/x.json", "https://***@host:81/x.json"),
        ("https://HUSH@host/x@y.json", "https://***@host/x@y.json"),
        ("ftp://me:HU@SH@host/x.json", "ftp://me:***@host/x.json"),
        ("https://host/x.json?y=1&sig=HUSH&sv=2", "https://host/x.json?y=1&sig=***&sv=2"),
        ("https://host/x.json?AccessToken=HUSH", "https://host/x.json?AccessToken=***"),
        ("abfs://folder@account/x.json", "abfs://folder@account/x.json"),
        ("s3://bucket/key:a@b.json", "s3://bucket/key:a@b.json"),
    ],
)
def test_what_opens_a_url_is_not_shown(url: str, shown: str) -> None:
    assert display_path(Path(url)) == hide_secrets(url) == shown
    assert hide_secrets(f"404, url={url!r}, and (https://me:HUSH@h/)") == f"404, url={shown!r}, and (https://***@h/)"
    assert display_path(Path("folder/me:you@there?sig=1")) == "folder/me:you@there?sig=1"  # of this machine


@pytest.mark.slow
def test_a_signed_url_is_read_and_its_signature_is_kept_nowhere(
    storage: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overlapscope.cli.progress.EVERY_SECONDS", 0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    storage.pipe_file(f"/job/{SIGNED}", FILES["rank0.json"])
    url = f"memory://job/{SIGNED}"
    for arguments in (["analyze"], ["analyze", "--json"], ["ingest", "-o", str(tmp_path / "run")]):
        assert main([arguments[0], url, *arguments[1:]]) == 0
        output = capsys.readouterr()
        assert "rank7.json?X-Amz-Credential=***&X-Amz-Date=20261122&X-Amz-Signature=***" in output.out + output.err
        assert "HUSH" not in output.out + output.err
    assert not any(b"HUSH" in content for content in files_in(tmp_path / "run").values())
    for verb in ("compare", "gate"):
        main([verb, url, url])
        assert "HUSH" not in "".join(capsys.readouterr())
    storage.rm(f"/job/{SIGNED}")
    assert main(["analyze", url]) == 3
    assert "HUSH" not in capsys.readouterr().err


def test_signed_otherwise_a_file_is_another_one_to_go_on_with(storage: Any, tmp_path: Path) -> None:
    for rank in (0, 1):
        storage.pipe_file(f"/job/trace.json?token={rank}", write(training(), metadata=distributed(rank)))
    inputs = [Path(f"memory://job/trace.json?token={rank}") for rank in (0, 1)]
    assert write_run(inputs, tmp_path / "run", workers=1).ranks == (0, 1)


@pytest.mark.parametrize("header", ["ETag", "Content-MD5", "Digest", "Last-Modified"])
def test_the_headers_of_web_servers_show_when_a_file_changed(
    header: str, storage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = []
    with monkeypatch.context() as patch:
        for value in ("one", "two"):
            patch.setattr(
                type(storage), "info", lambda *_, value=value, **__: {"type": "file", "size": 3, header: value}
            )
            versions += remote.list_url(Path("memory://job"), "memory://job")[0].values()
    assert versions[0] != versions[1]


@contextmanager
def waiting_command(tmp_path: Path, copies: Path) -> Iterator[subprocess.Popen[str]]:
    """A command that copies an input which does not end."""
    os.mkfifo(tmp_path / "waiting.json")
    command = [sys.executable, "-m", "overlapscope.cli.main", "analyze", f"file://{tmp_path}/waiting.json"]
    variables = {**os.environ, "TMPDIR": str(copies)}
    with subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True, encoding="utf-8") as process:
        while not list(copies.glob("*/*/waiting.json")):
            assert process.poll() is None
            time.sleep(0.001)
        yield process


@pytest.mark.slow
def test_the_copy_of_a_killed_command_is_removed_by_the_next_one(tmp_path: Path, temporary_folder: Path) -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    with waiting_command(tmp_path, temporary_folder) as process:
        left = list(temporary_folder.iterdir())
        with pytest.raises(InputError):
            read_inputs([Path(f"file://{tmp_path}/nothing.json")])
        read_inputs([Path(f"file://{local(tmp_path)}")])
        assert list(temporary_folder.iterdir()) == left  # it is in use
        process.kill()
    read_inputs([Path(f"file://{local(tmp_path)}")])
    assert list(temporary_folder.iterdir()) == []


def test_a_command_that_is_asked_to_end_tidies_up_and_says_so(tmp_path: Path, temporary_folder: Path) -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    with waiting_command(tmp_path, temporary_folder) as process:
        process.terminate()
        _, printed = process.communicate()
    assert (process.returncode, printed) == (128 + signal.SIGTERM, "overlapscope analyze: ended by SIGTERM\n")
    assert list(temporary_folder.iterdir()) == []
