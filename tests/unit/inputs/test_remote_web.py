"""Misbehaving web servers cause an error message, never endless time or memory."""

import http.server
import re
import ssl
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from overlapscope.errors import InputError
from overlapscope.ingest.inputs import discover, remote
from overlapscope.ingest.read_run import ReadOptions, read_inputs
from overlapscope.ingest.write_run import write_run
from tests.support.writers.kineto import distributed, training, write
from tests.unit.parallel.test_write_run import Interrupting

pytest.importorskip("aiohttp", reason="aiohttp is not installed")
pytestmark = pytest.mark.usefixtures("temporary_folder")

TRACES: Final = [write(training(), metadata=distributed(rank, 4)) for rank in range(4)]
LARGE: Final = TRACES[0] + b" " * (3 * remote.BLOCK_BYTES)


MOVED: Final = {
    "/moved.json": "/rank1.json",
    "/twice.json": "/moved.json",
    "/to_a_file": "file:///etc/passwd",
    "/to_ftp": "ftp://127.0.0.1/x",
    "/circle": "/circle_back",
    "/circle_back": "/circle",
    "/job": "/job/",
}
JOB: Final = ["../", "/", "?C=N", "http://elsewhere.invalid/x.json", "//[", ".hidden", "rank0.json", "/job/deep/"]
PAGES: Final = {
    "/job/": JOB,
    "/job/?all=1": [*JOB, "rank7.json"],
    "/job/chosen.html": ["rank3.json", "chosen.html#top"],
    "/job/deep/": ["rank1.json", "#top", "rank1.json#part", "notes.md", "../deep/", "down/../rank2.json"],
    "/mixed": ["mailto:me@host", "javascript:void(0)", "this&amp;rank2.json", "my%20rank3.json"],
    "/page": ["../", "/other"],
    "/damaged": ['rank0.json"></a><![x><a href="rank1.json'],
}


class Server(http.server.BaseHTTPRequestHandler):
    """What each path does is described in `go`; no path supports requests for parts of a file."""

    protocol_version = "HTTP/1.1"
    ended: Any

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.go(content=False)

    def do_GET(self) -> None:
        self.go(content=True)

    def go(self, *, content: bool) -> None:
        path = self.path.partition("?")[0]
        if path in MOVED:
            self.answer(b"", content, 302, Location=MOVED[path])
        elif self.path in PAGES:
            self.page(PAGES[self.path], content)
        elif path.startswith("/without_end"):
            self.page([f"{number}/" for number in range(10)], content)
        elif path.startswith("/status/"):
            self.answer(b"", content, int(path.removeprefix("/status/")))
        elif path == "/large.json":
            self.answer(LARGE, content, ETag="one")
        elif path == "/no_head.json" and not content:
            self.answer(b"", content, 405)
        elif path == "/cut.json":
            self.answer(TRACES[0], content, **{"Content-Length": str(len(TRACES[0]) + 1)})
            self.close_connection = True
        elif path in ("/endless.json", "/endless_page"):
            self.send_response(200)
            self.send_header("Content-Type", "text/html" if path == "/endless_page" else "text/plain")
            self.end_headers()
            self.close_connection = True
            while content and not self.ended.is_set():
                self.wfile.write(b"<a href='x'>" * 5_000)
        elif path in ("/drip.json", "/stuck.json"):
            self.answer(b"", content, **{"Content-Length": "100000"})
            while content and not self.ended.wait(0.05):
                self.wfile.write(b" " if path == "/drip.json" else b"")
            self.close_connection = True
        elif path == "/silent.json":
            self.ended.wait()
            self.close_connection = True
        elif path.endswith("notes.md"):
            self.answer(b"# Notes\n" * 100, content)
        elif (found := re.search(r"rank(\d)\.json$", path)) or path == "/no_head.json":
            self.answer(TRACES[int(found[1]) if found else 3], content)
        else:
            self.answer(b"", content, 404)

    def page(self, links: list[str], content: bool) -> None:
        page = "<!DOCTYPE html><body>" + "".join(f'<A HREF="{each}">x</A>' for each in links)
        self.answer(page.encode(), content, **{"Content-Type": "text/html; charset=utf-8"})

    def answer(self, body: bytes, content: bool, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body if content else b"")


class Quiet(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:  # who asked has gone
        pass


@pytest.fixture(scope="module")
def served() -> Iterator[Quiet]:
    ended = threading.Event()
    server = Quiet(("127.0.0.1", 0), type("Ending", (Server,), {"ended": ended}))
    thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.01))
    thread.start()
    yield server
    ended.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def web(served: Quiet) -> str:
    return f"http://127.0.0.1:{served.server_address[1]}"


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("rank2.json", 2),
        ("large.json", 0),  # in several blocks, of a server that gives no parts
        ("no_head.json", 3),
        ("moved.json", 1),
        ("twice.json", 1),
    ],
)
def test_what_a_server_gives_is_read(web: str, path: str, rank: int) -> None:
    assert list(read_inputs([Path(f"{web}/{path}")]).ranks) == [rank]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nothing.json", "no such file or folder"),
        ("status/403", "cannot be read: access is denied (403 Forbidden): does the URL lack a token"),
        ("status/500", "cannot be read: the server fails (500 Internal Server Error): try again later"),
        ("to_a_file", "RedirectClientError: file:///etc/passwd"),
        ("to_ftp", "RedirectClientError: ftp://127.0.0.1/x"),
        ("circle", "TooManyRedirects"),
        ("cut.json", "not completed"),
        ("page", "web page without links to files below it"),
    ],
)
def test_what_a_server_refuses_is_reported(web: str, path: str, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        read_inputs([Path(f"{web}/{path}")])


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("silent.json", "no answer within"),
        ("stuck.json", "no answer within"),
        ("drip.json", "sends less than 16 KiB a second"),
    ],
)
def test_a_server_that_does_not_come_to_an_end_is_given_up(
    web: str, path: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "WAIT_SECONDS", 0.2)
    with pytest.raises(InputError, match=words):
        read_inputs([Path(f"{web}/{path}")])


def test_a_file_without_end_is_read_up_to_what_may_be_copied(web: str) -> None:
    with pytest.raises(InputError, match="holds more than 8 MiB"):
        read_inputs([Path(f"{web}/endless.json")], ReadOptions(max_bytes=8 << 20))


def test_a_page_without_end_is_read_up_to_a_limit(web: str) -> None:
    with pytest.raises(InputError, match="endless_page: is a page of more than 8 MiB; name a file"):
        discover([Path(f"{web}/endless_page")])


def test_a_certificate_that_nobody_vouches_for_is_reported(tmp_path: Path, served: Quiet) -> None:
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    made += ["-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=x", "-addext", "subjectAltName=IP:127.0.0.1"]
    try:
        subprocess.run(made, cwd=tmp_path, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    with Quiet(("127.0.0.1", 0), served.RequestHandlerClass) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.01))
        thread.start()
        with pytest.raises(InputError, match="certificate verify failed"):
            read_inputs([Path(f"https://127.0.0.1:{server.server_address[1]}/rank0.json")])
        server.shutdown()
        thread.join()


@pytest.mark.slow
def test_a_folder_of_a_server_is_read_by_the_links_on_its_pages(web: str) -> None:
    for named in ("job", "job/"):
        found = discover([Path(f"{web}/{named}")])
        assert sorted(map(str, found.files)) == [
            f"{web}/job/{name}".replace("//", "/") for name in ("deep/rank1.json", "deep/rank2.json", "rank0.json")
        ]
        assert [each.name for each in found.passed_over] == ["notes.md"]
    assert list(read_inputs([Path(f"{web}/job")]).ranks) == [0, 1, 2]


@pytest.mark.parametrize(
    ("named", "names"),
    [
        ("job/chosen.html", ["rank3.json"]),
        ("job/?all=1", ["rank0.json", "rank1.json", "rank2.json", "rank7.json"]),
        ("damaged", ["rank0.json", "rank1.json"]),
    ],
)
def test_the_page_that_is_named_is_the_one_whose_links_count(web: str, named: str, names: list[str]) -> None:
    assert sorted(each.name for each in discover([Path(f"{web}/{named}")]).files) == names


def test_links_that_are_no_files_are_left_out_and_names_are_as_people_wrote_them(web: str) -> None:
    found = discover([Path(f"{web}/mixed")])
    assert [each.name for each in found.files] == ["my%20rank3.json", "this&rank2.json"]
    assert list(read_inputs([Path(f"{web}/mixed")]).ranks) == [2, 3]


@pytest.mark.slow
def test_folders_without_end_are_not_searched_for_ever(web: str) -> None:
    with pytest.raises(InputError, match="more than 1000 folders"):
        discover([Path(f"{web}/without_end")])


@pytest.mark.parametrize(("name", "resumed"), [("large.json", 1), ("rank0.json", 0)])
def test_a_file_is_gone_on_with_where_the_server_states_its_version(
    web: str, tmp_path: Path, name: str, resumed: int
) -> None:
    inputs = [Path(f"{web}/{name}"), Path(f"{web}/rank2.json")]
    with pytest.raises(KeyboardInterrupt):
        write_run(inputs, tmp_path / "run", workers=1, watch=Interrupting(1))
    assert write_run(inputs, tmp_path / "run", workers=1).resumed_files == resumed
