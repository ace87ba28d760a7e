"""The running server: real sockets, the token, and a Perfetto UI build."""

import http.client
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import pytest

from overlapscope.cli.main import main
from overlapscope.errors import InputError, UsageError
from overlapscope_dashboards.server.serve import perfetto_app, serve
from overlapscope_dashboards.server.sockets import bind_all, close
from tests.support.dashboard_runs import folder_of_runs, served


def answer(port: int, path: str, *, host: str, cookie: str = "") -> http.client.HTTPResponse:
    asked = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    asked.request("GET", path, headers={"Host": host, **({"Cookie": cookie} if cookie else {})})
    got = asked.getresponse()
    got.read()
    asked.close()
    return got


def test_beyond_this_machine_the_token_is_wanted_and_a_foreign_name_refused(tmp_path: Path) -> None:
    there = urlsplit(served([folder_of_runs(tmp_path)], host="0.0.0.0"))
    port, token = there.port or 0, there.query.removeprefix("token=")
    own = f"127.0.0.1:{port}"
    assert len(token) >= 32
    assert answer(port, "/", host=own).status == 403
    assert answer(port, "/?token=wrong", host=own).status == 403
    assert answer(port, "/_dash-layout", host=own).status == 403
    given = answer(port, f"/?token={token}", host=own)
    assert given.status == 200
    cookie = (given.getheader("Set-Cookie") or "").partition(";")[0]
    assert answer(port, "/_dash-layout", host=own, cookie=cookie).status == 200
    assert answer(port, f"/?token={token}", host="evil.example").status == 400


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port}.*choose another --port"):
            serve([tmp_path], host="127.0.0.1", port=port, say=print)


def two_addresses(monkeypatch: pytest.MonkeyPatch, second: str) -> None:
    """Make localhost resolve to two addresses of this machine, as with IPv6."""
    plain = socket.getaddrinfo

    def both(host: Any, *given: Any, **named: Any) -> list[Any]:
        names = ["127.0.0.1", second] if host == "localhost" else [host]
        return [each for name in names for each in plain(name, *given, **named)]

    monkeypatch.setattr(socket, "getaddrinfo", both)


def test_a_name_of_two_addresses_is_served_on_one_port_of_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two_addresses(monkeypatch, "127.0.0.2")
    there = urlsplit(served([folder_of_runs(tmp_path)], host="localhost"))
    assert there.hostname == "localhost"
    assert there.port
    for address in ("127.0.0.1", "127.0.0.2"):
        asked = http.client.HTTPConnection(address, there.port, timeout=60)
        asked.request("GET", "/", headers={"Host": there.netloc})
        assert asked.getresponse().status == 200
        asked.close()


def test_an_address_that_this_machine_has_not_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    two_addresses(monkeypatch, "192.0.2.1")  # from a network reserved for documentation (RFC 5737)
    sockets, port = bind_all("localhost", 0)
    assert [each.getsockname() for each in sockets] == [("127.0.0.1", port)]
    close(sockets)
    with pytest.raises(OSError, match="assign"):
        bind_all("192.0.2.1", 0)


def test_a_port_that_is_taken_on_one_of_two_addresses_is_refused_and_a_free_one_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    two_addresses(monkeypatch, "127.0.0.2")
    with socket.create_server(("127.0.0.2", 0)) as other:
        with pytest.raises(OSError, match="in use"):
            bind_all("localhost", other.getsockname()[1])
        sockets, port = bind_all("localhost", 0)
        assert len({each.getsockname()[1] for each in sockets} | {port}) == 1
        assert len(sockets) == 2
        close(sockets)


def test_a_port_that_is_none_and_a_path_that_is_not_there_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(tmp_path), "--port", "70000"]) == 2
    assert "--port must be 0 to 65535" in capsys.readouterr().err
    assert main(["serve", str(tmp_path / "nowhere")]) == 3
    assert "no such file or folder" in capsys.readouterr().err


def test_a_folder_without_runs_is_said_and_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[object] = []
    monkeypatch.setattr("overlapscope_dashboards.server.serve.serve", lambda paths, **options: served.append(paths))
    assert main(["serve", str(tmp_path), "--port", "0"]) == 0
    assert "no run is there yet: those that are recorded there will be listed" in capsys.readouterr().err
    assert served == [[tmp_path]]


SERVER = """
import sys
from pathlib import Path
from overlapscope_dashboards.server import app, serve
{before}
serve.serve([Path(sys.argv[1])], host="127.0.0.1", port=0, say=lambda served: print(served.url, flush=True))
"""
BREAKS = """
def broken(*args):
    raise ValueError("broken \\x1b[2J\\nFAKE")
app.router.exists = broken
"""


@contextmanager
def server_process(folder: Path, before: str = "") -> Iterator[tuple[int, "subprocess.Popen[str]"]]:
    """Serve from a separate process; yield its port and the process."""
    command = [sys.executable, "-c", SERVER.format(before=before), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield urlsplit(process.stdout.readline()).port or 0, process
        finally:
            process.kill()


@contextmanager
def idle_connections(port: int, number: int) -> Iterator[list[socket.socket]]:
    """Open connections that send nothing, or a part of a request."""
    with ExitStack() as held:
        made = [held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30)) for _ in range(number)]
        for each in made[::2]:
            each.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        yield made


@pytest.mark.slow
def test_the_log_of_a_server_holds_no_escape_of_a_terminal_and_no_forged_line(tmp_path: Path) -> None:
    with server_process(folder_of_runs(tmp_path), BREAKS) as (port, process):
        own = f"127.0.0.1:{port}"
        assert answer(port, "/_dash-component-suites/%1b%5d0;X%07%0aFAKE/x.js", host=own).status == 404
        assert answer(port, "/%1b%5d0;X%07", host=own).status == 500
        process.kill()
        _, said = process.communicate(timeout=60)
    lines = said.splitlines()
    assert len(lines) == 1
    assert lines[0].isprintable()
    assert "Exception on /\\x1b]0;X" in lines[0]
    assert "ValueError: broken \\x1b[2J" in lines[0]


@pytest.mark.slow
def test_users_are_served_while_hundreds_of_connections_idle(tmp_path: Path) -> None:
    with server_process(folder_of_runs(tmp_path)) as (port, _), idle_connections(port, 300):
        for _ in range(3):
            assert answer(port, "/", host=f"127.0.0.1:{port}").status == 200


@pytest.mark.slow
def test_past_the_limit_of_open_files_a_new_connection_takes_the_place_of_the_one_idle_longest(tmp_path: Path) -> None:
    few = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
serve.REQUEST_S = 3600
"""
    with server_process(folder_of_runs(tmp_path), few) as (port, process), idle_connections(port, 200) as idle:
        for _ in range(3):
            assert answer(port, "/", host=f"127.0.0.1:{port}").status == 200
        with suppress(ConnectionResetError):  # where it was closed before its bytes were read
            assert idle[0].recv(1) == b""
        idle[-1].settimeout(0.2)
        with pytest.raises(TimeoutError):
            idle[-1].recv(1)
        assert process.poll() is None


@pytest.mark.slow
def test_a_request_that_comes_byte_by_byte_is_given_up_and_a_whole_one_may_take_its_time(tmp_path: Path) -> None:
    short = """
import time
serve.REQUEST_S = serve.CLEANUP_S = 1
app.router.exists = lambda *args: time.sleep(3) or True
"""
    with server_process(folder_of_runs(tmp_path), short) as (port, _):
        assert answer(port, "/", host=f"127.0.0.1:{port}").status == 200  # answered after 3 s
        with socket.create_connection(("127.0.0.1", port), timeout=0.2) as slow:
            begun = monotonic()
            with suppress(ConnectionError):
                while monotonic() - begun < 60:
                    slow.sendall(b"G")
                    with suppress(TimeoutError):
                        if not slow.recv(1):
                            break
            assert monotonic() - begun < 40


@pytest.fixture
def build(tmp_path: Path) -> Path:
    folder = tmp_path / "perfetto"
    (folder / "v1").mkdir(parents=True)
    (folder / "index.html").write_text("<title>Perfetto</title>", encoding="utf-8")
    (folder / "v1" / "engine.wasm").write_bytes(b"\0asm")
    (tmp_path / "secret").write_text("secret", encoding="utf-8")
    (folder / "out").symlink_to(tmp_path / "secret")
    return folder


def test_a_perfetto_build_is_served_to_this_machine_alone(build: Path) -> None:
    client = perfetto_app(build).test_client()
    with client.get("/") as page:
        assert b"Perfetto" in page.data
        assert not re.search(r"https?:|\*", page.headers["Content-Security-Policy"])
    with client.get("/v1/engine.wasm") as wasm:
        assert wasm.mimetype == "application/wasm"
    for path in ("/out", "/../secret", "/%2e%2e/secret", "/nowhere", "//etc/passwd", "/v1"):
        with client.get(path) as refused:
            assert refused.status_code in (400, 404), path
            assert b"secret" not in refused.data
    with client.get("/", headers={"Host": "evil.example"}) as foreign:
        assert foreign.status_code == 400


def test_a_folder_without_a_build_is_refused_and_so_is_another_host(build: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"index\.html.*perfetto-ui\.zip"):
        perfetto_app(tmp_path)
    with pytest.raises(UsageError, match="only this machine"):
        serve([tmp_path], host="0.0.0.0", port=0, perfetto=build, say=print)
