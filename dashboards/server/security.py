"""Which requests are answered, and what a browser may do with the answers.

The dashboard is for one person on one machine. It answers only to host names of this machine, so that a page on another
site cannot reach it through a name of its own (DNS rebinding). Beyond loopback it requires a token. Its pages may load
nothing from elsewhere and may not be framed.
"""

import hmac
import ipaddress
import logging
import re
import secrets
import socket
from collections.abc import Callable, Sequence
from html import escape
from typing import Final
from urllib.parse import urlencode, urlsplit

import msgspec
from flask import Flask, Response, request
from werkzeug.datastructures import Headers
from werkzeug.exceptions import HTTPException

from overlapscope.report.formatting import inert

COOKIE: Final = "overlapscope"
TOKEN: Final = "token"
MAX_BODY: Final = 4 << 20
"""Most bytes of a request body, which holds the state of a page's components."""
MAX_LOGGED: Final = 10_000
"""Most characters of a line in the log."""
LOOPBACK: Final = ("localhost",)
_HOST: Final = re.compile(r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[0-9a-z._-]+))(?::[0-9]{1,5})?")


class Guard(msgspec.Struct, frozen=True, kw_only=True):
    """Which requests to answer."""

    names: frozenset[str]
    """Host names, in lower case, that this server answers to, besides addresses."""
    any_address: bool = False
    """Whether any IP address is accepted as Host, or only loopback. DNS rebinding needs a name, never an address."""
    token: str | None = None
    """Secret that must be presented once; None where only this machine can reach the server."""


class OneLineFormatter(logging.Formatter):
    """Write a record and its traceback as one printable line, because both may contain text from requests."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; a long one is cut in the middle."""
        lines = [each.strip() for each in inert(super().format(record)).split("\n")]
        line = " | ".join(each for each in lines if each.strip("^~ "))
        half = MAX_LOGGED // 2
        return line if len(line) <= MAX_LOGGED else f"{line[: half - 3]}...{line[-half:]}"


def guard_for(host: str) -> Guard:
    """Return the guard for a serving address: beyond loopback with a fresh random token."""
    if is_loopback(host):
        return Guard(names=frozenset(LOOPBACK))
    own = {host.lower(), socket.gethostname().lower(), socket.getfqdn().lower(), *LOOPBACK}
    return Guard(names=frozenset(own), any_address=True, token=secrets.token_urlsafe(32))


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached only from this machine."""
    return host in LOOPBACK or (_address(host) or ipaddress.ip_address("0.0.0.0")).is_loopback


def is_host_allowed(guard: Guard, host: str) -> bool:
    """Return whether a Host header names this server."""
    found = _HOST.fullmatch(host.lower())
    name = (found["address"] or found["name"]) if found else ""
    address = _address(name)
    if address is not None:
        return guard.any_address or address.is_loopback
    return name in guard.names


def has_token(guard: Guard, *, query: str | None, cookie: str | None) -> bool:
    """Return whether the request carries the token, or none is required."""
    if guard.token is None:
        return True
    return any(
        each is not None and hmac.compare_digest(each.encode(), guard.token.encode()) for each in (query, cookie)
    )


def is_same_site(headers: Headers) -> bool:
    """Return whether a request comes from our own pages, or opens a page by a click, not from another site's image.

    A request without `Sec-Fetch-Site` comes from a program or an old browser, and is answered.
    """
    if headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin"):
        return True
    return headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"


def policy(script_hashes: Sequence[str]) -> str:
    """Return the content security policy: only this server, and only scripts from its files or with these hashes."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src 'self' {' '.join(script_hashes)}".strip(),
            "style-src 'self' 'unsafe-inline'",  # plotly and Dash write style elements
            "img-src 'self' data: blob:",  # heat maps are drawn as images; a chart can be saved as one
            "font-src 'self'",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


def protect(server: Flask, guard: Guard, content_policy: Callable[[], str]) -> None:
    """Check every request with the guard and set the security headers on every answer."""
    server.config["MAX_CONTENT_LENGTH"] = MAX_BODY

    def check() -> Response | None:
        if not is_host_allowed(guard, request.headers.get("Host", "")):
            return _text_response(400, "This server does not answer to that host name.")
        origin = request.headers.get("Origin")
        elsewhere = origin is not None and urlsplit(origin).netloc != request.headers.get("Host")
        if elsewhere or not is_same_site(request.headers):
            return _text_response(400, "Requests from other sites are not answered.")
        given = request.args.get(TOKEN)
        if not has_token(guard, query=given, cookie=request.cookies.get(COOKIE)):
            return _text_response(403, "This dashboard needs its token. Open the address that was printed at start.")
        return _remember(guard.token) if guard.token is not None and given is not None else None

    def headers(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = content_policy()
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["X-Frame-Options"] = "DENY"
        response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    def fault(error: Exception) -> Response:
        if isinstance(error, HTTPException):
            return _text_response(error.code or 500, error.name)
        server.logger.error("a request failed: %s", request.path, exc_info=error)
        return _text_response(500, "Something went wrong. The error is in the terminal that runs the server.")

    server.before_request(check)
    server.after_request(headers)
    server.register_error_handler(Exception, fault)


def _remember(token: str) -> Response:
    """Return a page that stores the token as a cookie and reloads the address without it.

    The page reloads itself, because a redirect does not work: after a click on another site, a browser treats the
    redirect as that site's request and does not send the cookie.
    """
    rest = urlencode([(name, value) for name, value in request.args.items(multi=True) if name != TOKEN])
    there = escape("/" + request.path.lstrip("/") + (f"?{rest}" if rest else ""))
    answer = Response(
        f'<!DOCTYPE html><meta http-equiv="refresh" content="0;url={there}"><a href="{there}">Continue</a>',
        mimetype="text/html",
    )
    answer.set_cookie(COOKIE, token, httponly=True, samesite="Strict", path="/")
    return answer


def _text_response(status: int, words: str) -> Response:
    return Response(f"{words}\n", status=status, mimetype="text/plain")


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
