"""What really listens: real sockets, the token, and a Perfetto build beside it."""

import http.client
import re
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from overlapscope.cli.main import main
from overlapscope.errors import InputError, UsageError
from overlapscope_dashboards.perfetto import perfetto_app
from overlapscope_dashboards.serve import serve
from overlapscope_dashboards.sockets import bound, close
from tests.dashboard_runs import folder_of_runs, served


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


def test_on_this_machine_no_token_is_wanted_and_a_foreign_name_refused(tmp_path: Path) -> None:
    port = urlsplit(served([folder_of_runs(tmp_path)])).port or 0
    assert answer(port, "/", host=f"localhost:{port}").status == 200
    assert answer(port, "/", host="evil.example").status == 400
    assert answer(port, "/", host=f"evil.example:{port}").status == 400


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port}.*choose another --port"):
            serve([tmp_path], host="127.0.0.1", port=port, say=print)


def two_addresses(monkeypatch: pytest.MonkeyPatch, second: str) -> None:
    """Let localhost stand for two addresses of this machine, as it does where IPv6 is on."""
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
    two_addresses(monkeypatch, "192.0.2.1")  # of a network that is for documentation only
    sockets, port = bound("localhost", 0)
    assert [each.getsockname() for each in sockets] == [("127.0.0.1", port)]
    close(sockets)
    with pytest.raises(OSError, match="assign"):
        bound("192.0.2.1", 0)


def test_a_port_that_is_taken_on_one_of_two_addresses_is_refused_and_a_free_one_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    two_addresses(monkeypatch, "127.0.0.2")
    with socket.create_server(("127.0.0.2", 0)) as other:
        with pytest.raises(OSError, match="in use"):
            bound("localhost", other.getsockname()[1])
        sockets, port = bound("localhost", 0)
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
    with pytest.raises(UsageError, match="this machine alone"):
        serve([tmp_path], host="0.0.0.0", port=0, perfetto=build, say=print)
