"""`overlapscope demo --public`: fetched once, checked, refused in one line. Nothing here leaves this machine."""

import gzip
import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from msgspec.structs import replace

from overlapscope.cli import public_trace
from overlapscope.cli.main import main
from overlapscope.cli.public_trace import MEGATRON_TP8, PublicTrace, PublishedFile
from overlapscope.cli.verbs import demo
from tests.conftest import ROOT, shared_file
from tests.integration.test_docs import not_printed

CONTENT = b'{"traceEvents": []}' * 50


@contextmanager
def web(files: dict[str, bytes], *, packed: bool = True, cut: int | None = None) -> Iterator[tuple[str, list[str]]]:
    """Serve files as a web server does, compressed on the way; yield the address and the names that are asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            asked.append(name)
            if name not in files:
                self.send_error(404)
                return
            body = gzip.compress(files[name]) if packed else files[name]
            self.send_response(200)
            if packed:
                self.send_header("Content-Encoding", "gzip")
            self.end_headers()
            self.wfile.write(body[:cut])

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/a/", asked
    finally:
        server.shutdown()
        server.server_close()


def published(address: str, content: bytes = CONTENT) -> PublicTrace:
    one = PublishedFile(name="a.json", size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    return replace(MEGATRON_TP8, address=address, files=(one,))


@pytest.mark.slow
@pytest.mark.parametrize("packed", [True, False])
def test_what_is_there_is_not_fetched_again(tmp_path: Path, *, packed: bool) -> None:
    with web({"a.json": CONTENT}, packed=packed) as (address, asked):
        for _ in range(2):
            (place,) = public_trace.fetch(published(address), tmp_path / "new", lambda words: None)
    assert gzip.decompress(place.read_bytes()) == CONTENT
    assert asked == ["a.json"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "cut", "reason"),
    [
        (
            {"a.json": CONTENT[:-1] + b"x"},
            None,
            "is not the file that was published (SHA-256 differs): it was not kept",
        ),
        ({"a.json": CONTENT * 1000}, None, "is not the file that was published (SHA-256 differs): it was not kept"),
        ({"a.json": CONTENT}, 20, "is not the file that was published (SHA-256 differs): it was not kept"),
        ({}, None, "cannot be fetched from 127.0.0.1 (status 404)"),
    ],
    ids=["changed", "longer", "cut", "gone"],
)
def test_another_file_is_refused_in_one_line_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    files: dict[str, bytes], cut: int | None, reason: str,
) -> None:  # fmt: skip
    with web(files, cut=cut) as (address, _):
        monkeypatch.setattr(public_trace, "MEGATRON_TP8", published(address))
        assert main(["demo", "--public", "-o", str(tmp_path / "run")]) == 3
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("overlapscope demo: a.json ")
    assert reason in line
    assert line.endswith("`overlapscope demo` without --public needs no network")
    assert not (tmp_path / "run").exists()


def test_without_a_network_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with web({}) as (address, _):
        pass  # nobody listens there any more
    monkeypatch.setattr(public_trace, "MEGATRON_TP8", published(address))
    assert main(["demo", "--public", "-o", str(tmp_path / "run")]) == 3
    assert "a.json cannot be fetched from 127.0.0.1 (Connection refused); " in capsys.readouterr().err


def test_another_file_of_the_same_name_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / f"{MEGATRON_TP8.files[3].name}.gz"
    mine.write_bytes(b"mine")
    assert main(["demo", "--public", "-o", str(tmp_path)]) == 2
    assert "is another file; choose another folder with -o, or replace it with -f" in capsys.readouterr().err
    assert mine.read_bytes() == b"mine"


@pytest.mark.slow
def test_the_public_recording_is_the_one_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shared_file("kineto/megatron_tp8")
    files = {each.name: gzip.decompress((folder / f"{each.name}.gz").read_bytes()) for each in MEGATRON_TP8.files}
    assert {name: len(content) for name, content in files.items()} == {
        each.name: each.size_bytes for each in MEGATRON_TP8.files
    }
    with web(files) as (address, asked):
        monkeypatch.setattr(public_trace, "MEGATRON_TP8", replace(MEGATRON_TP8, address=address))
        assert main(["demo", "--public", "-o", str(tmp_path / "run")]) == 0
    assert asked == sorted(files)
    printed = capsys.readouterr().out
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^\$ overlapscope demo --public\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert len(shown.splitlines()) > 12
    assert not_printed(shown, printed) == []
    assert f"next: overlapscope serve {tmp_path / 'run'}" in printed


def test_what_is_no_folder_for_it_is_refused_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").touch()
    with web({"a.json": CONTENT}) as (address, asked):
        monkeypatch.setattr(public_trace, "MEGATRON_TP8", published(address))
        for name, why in (("file", "is not a folder; choose another one"), ("run", "holds other files (run.json)")):
            assert main(["demo", "--public", "-f", "-o", str(tmp_path / name)]) == 2
            *_, line = capsys.readouterr().err.splitlines()
            assert line.startswith(f"overlapscope demo: {tmp_path / name} {why}")
        with pytest.raises(SystemExit):
            main(["demo", "--public", "-o", ""])
        assert "the path is empty" in capsys.readouterr().err
    assert not asked


def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "run"
    with web({"a.json": CONTENT}) as (address, _):
        monkeypatch.setattr(public_trace, "MEGATRON_TP8", published(address))
        assert main(["demo", "--public", "-o", str(place)]) == 3
    *_, line = capsys.readouterr().err.splitlines()
    assert line == f"overlapscope demo: {place}: cannot be written: Not a directory"


def test_without_torch_the_demo_names_the_one_that_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda _: None)
    assert main(["demo", "-o", str(tmp_path / "run")]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.endswith("pip install 'overlapscope[torch]', or take `overlapscope demo --public`, which needs none")
    assert not (tmp_path / "run").exists()
