"""Which requests are answered, and what a browser may do with the answers."""

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from overlapscope_dashboards.server import security
from overlapscope_dashboards.server.app import create_app


@pytest.fixture(scope="module")
def client(root: Path) -> Any:
    return create_app([root]).server.test_client()


@pytest.fixture(scope="module")
def guarded(root: Path) -> Any:
    guard = security.Guard(names=frozenset({"box"}), any_address=True, token="right")
    return create_app([root], guard=guard).server


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8050", "localhost:1", "LOCALHOST", "[::1]:8050", "127.0.0.2"])
def test_this_machine_is_answered(client: Any, host: str) -> None:
    assert client.get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "evil.example:8050", "10.0.0.1", "", "localhost@evil.example", "[::1",
     "127.0.0.1.evil.example", "evil.example#localhost", "localhost\\.evil.example", "[[::1]]", "2130706433"],
)  # fmt: skip
def test_a_foreign_host_gets_400(client: Any, host: str) -> None:
    for path in ("/", "/_dash-layout", "/assets/style.css", "/_dash-dependencies"):
        answer = client.get(path, headers={"Host": host})
        assert answer.status_code == 400
        assert b"run" not in answer.data


def test_another_page_cannot_ask(client: Any) -> None:
    for origin in ("http://evil.example", "null", "http://localhost:9999"):
        assert client.post("/_dash-update-component", json={}, headers={"Origin": origin}).status_code == 400


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_page_cannot_load_anything_and_can_lead_here(client: Any, site: str) -> None:
    for mode, dest in (("no-cors", "image"), ("no-cors", "script"), ("navigate", "iframe"), ("cors", "empty")):
        asked = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest}
        for path in ("/", "/_dash-layout", "/runs/x/timeline/window.json.gz"):
            assert client.get(path, headers=asked).status_code == 400
    clicked = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert client.get("/", headers=clicked).status_code == 200


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_its_own_pages_load_what_they_need(client: Any, site: str) -> None:
    asked = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}
    assert client.get("/_dash-layout", headers=asked).status_code == 200


def test_every_answer_carries_the_headers(client: Any) -> None:
    for path in ("/", "/nowhere", "/assets/style.css", "/_dash-layout", "/runs/x"):
        with client.get(path) as answer:
            headers = answer.headers
        rules = headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in rules
        assert "default-src 'none'" in rules
        assert "unsafe-eval" not in rules
        assert "'unsafe-inline'" not in re.search(r"script-src ([^;]*)", rules)[1]  # type: ignore[index]
        assert not re.search(r"https?:|\*", rules)
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"


def test_the_page_names_nothing_elsewhere(client: Any, root: Path) -> None:
    text = client.get("/").get_data(as_text=True)
    assert not re.search(r"""(?:src|href)=["'](?:https?:)?//""", text)
    assert str(root) not in text
    assert str(root) not in client.get("/_dash-layout").get_data(as_text=True)


@pytest.mark.parametrize(
    "path",
    ["/assets/../app.py", "/assets/%2e%2e/app.py", "/assets/..%2fapp.py", "/assets//etc/passwd",
     "/_dash-component-suites/dash/../../app.py", "/_dash-component-suites/os/os.py", "/runs/..%2f..%2fetc/passwd"],
)  # fmt: skip
def test_no_path_leads_to_other_files(client: Any, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code >= 400
    assert b"import " not in answer.data
    assert b"Traceback" not in answer.data


ESCAPES = "%1b%5d0;X%07%0aFAKE"


@pytest.mark.parametrize(
    "path",
    [f"/_dash-component-suites/{ESCAPES}/x.js", f"/_dash-component-suites/dash/{ESCAPES}.js",
     "/_dash-component-suites/dash/../../app.py", "/_dash-component-suites/os/os.py"],
)  # fmt: skip
def test_an_unknown_component_suite_is_404_and_no_fault(
    client: Any, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert b"FAKE" not in answer.data
    assert not caplog.records


def test_a_log_record_is_one_printable_line_of_bounded_length_whatever_it_holds() -> None:
    hostile = "/\x1b]0;X\x07\r\n2026-01-01 ERROR FAKE \u2028\udc80 ::error::boom"
    with pytest.raises(ValueError, match="FAKE") as fault:
        int(hostile)
    error = (fault.type, fault.value, fault.tb)
    record = logging.LogRecord("x", logging.ERROR, __file__, 1, "failed: %s", (hostile,), error)
    line = security.OneLineFormatter().format(record)
    assert line.isprintable()
    assert "failed: /\\x1b]0;X" in line
    assert "ValueError: invalid literal" in line
    assert "in test_a_log_record" in line
    long = logging.LogRecord("x", logging.ERROR, __file__, 1, "begin %s end", ("x" * 1_000_000,), None)
    result = security.OneLineFormatter().format(long)
    assert len(result) <= security.MAX_LOGGED
    assert "begin x" in result
    assert result.endswith("x end")


def test_a_fault_shows_no_traceback(client: Any) -> None:
    for body in (b"{", b"null", b'{"output": "x.y"}', b"[]"):
        answer = client.post("/_dash-update-component", data=body, content_type="application/json")
        assert answer.status_code >= 400
        assert b"Traceback" not in answer.data
        assert b"File " not in answer.data


def test_an_unknown_address_is_404_to_a_program_too(client: Any) -> None:
    for path in ("/nowhere", "/runs/0123456789ab"):
        answer = client.get(path)
        assert answer.status_code == 404
        assert b"<title>OverlapScope</title>" in answer.data, "the page that says what exists"


def test_a_large_body_is_refused(client: Any) -> None:
    answer = client.post(
        "/_dash-update-component", data=b" " * (security.MAX_BODY + 1), content_type="application/json"
    )
    assert answer.status_code == 413


def test_loopback_wants_no_token_and_another_host_does() -> None:
    assert security.guard_for("127.0.0.1").token is None
    assert security.guard_for("localhost").token is None
    assert security.guard_for("::1").token is None
    first, second = (security.guard_for("0.0.0.0").token for _ in range(2))
    assert first is not None
    assert len(first) >= 32
    assert first != second
    assert security.guard_for("box.example").token is not None


@pytest.mark.parametrize("path", ["/", "/_dash-layout", "/assets/style.css", "/_dash-component-suites/x", "/runs/x"])
def test_without_the_token_nothing_is_answered(guarded: Any, path: str) -> None:
    for asked in (path, f"{path}?token=wrong", f"{path}?token="):
        assert guarded.test_client().get(asked, headers={"Host": "box"}).status_code == 403


def test_the_token_is_given_once_and_then_kept_in_a_cookie(guarded: Any) -> None:
    client = guarded.test_client()
    first = client.get("/?token=right&x=1", headers={"Host": "box"})
    cookie = first.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "token" not in first.get_data(as_text=True)
    assert "/?x=1" in first.get_data(as_text=True)
    client.set_cookie("overlapscope", "right", domain="box")
    assert client.get("/", headers={"Host": "box"}, base_url="http://box").status_code == 200


def test_the_token_leads_nowhere_else(guarded: Any) -> None:
    answer = guarded.test_client().get("//evil.example/?token=right", headers={"Host": "box"})
    assert "//evil" not in answer.get_data(as_text=True)
    answer = guarded.test_client().get('/x"><script>?token=right', headers={"Host": "box"})
    assert "<script>" not in answer.get_data(as_text=True)
