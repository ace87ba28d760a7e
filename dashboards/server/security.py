"""Who may ask, and what a browser may do with the answer.

The dashboard is for one person on one machine. It answers only to names of this machine, so that a page elsewhere
cannot reach it through a name of its own (DNS rebinding); beyond loopback it wants a token; and what it sends may load,
and be framed by, nothing else.
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
"""Bytes of a request: the state of a page's components."""
MAX_LOGGED: Final = 10_000
"""Letters of a line in the log."""
LOOPBACK: Final = ("localhost",)
_HOST: Final = re.compile(r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[0-9a-z._-]+))(?::[0-9]{1,5})?")


class Guard(msgspec.Struct, frozen=True, kw_only=True):
    """Whom to answer."""

    names: frozenset[str]
    """Names, in small letters, by which this server may be called, besides addresses."""
    any_address: bool = False
    """Whether any IP address is a good Host; else those of loopback only. No name elsewhere leads to an address."""
    token: str | None = None
    """What must be shown once; None where nobody else can reach the server."""


class OneLine(logging.Formatter):
    """Write a record as one printable line, its traceback too: requests choose what stands in both."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; what is too long loses its middle."""
        lines = [each.strip() for each in inert(super().format(record)).split("\n")]
        line = " | ".join(each for each in lines if each.strip("^~ "))
        half = MAX_LOGGED // 2
        return line if len(line) <= MAX_LOGGED else f"{line[: half - 3]}...{line[-half:]}"


def guard_for(host: str) -> Guard:
    """Return the guard for the address that is served on: outside of loopback with a token made now."""
    if is_loopback(host):
        return Guard(names=frozenset(LOOPBACK))
    own = {host.lower(), socket.gethostname().lower(), socket.getfqdn().lower(), *LOOPBACK}
    return Guard(names=frozenset(own), any_address=True, token=secrets.token_urlsafe(32))


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine alone."""
    return host in LOOPBACK or (_address(host) or ipaddress.ip_address("0.0.0.0")).is_loopback


def host_allowed(guard: Guard, host: str) -> bool:
    """Return whether a Host header names this server."""
    found = _HOST.fullmatch(host.lower())
    name = (found["address"] or found["name"]) if found else ""
    address = _address(name)
    if address is not None:
        return guard.any_address or address.is_loopback
    return name in guard.names


def token_given(guard: Guard, *, query: str | None, cookie: str | None) -> bool:
    """Return whether the token was shown, or none is wanted."""
    if guard.token is None:
        return True
    return any(
        each is not None and hmac.compare_digest(each.encode(), guard.token.encode()) for each in (query, cookie)
    )


def asked_here(headers: Headers) -> bool:
    """Return whether a browser asks for a page of ours, or for the window of a click; not for another page's picture.

    What sends no `Sec-Fetch-Site` is a program, or an old browser, and is answered.
    """
    if headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin"):
        return True
    return headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"


def policy(script_hashes: Sequence[str]) -> str:
    """Return the content security policy: this server only, and no script but its files and those with these hashes."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src 'self' {' '.join(script_hashes)}".strip(),
            "style-src 'self' 'unsafe-inline'",  # plotly and Dash write style elements
            "img-src 'self' data: blob:",  # heat maps are drawn to an image; a chart is saved as one
            "font-src 'self'",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


def protect(server: Flask, guard: Guard, content_policy: Callable[[], str]) -> None:
    """Put the guard before every request and the headers on every answer."""
    server.config["MAX_CONTENT_LENGTH"] = MAX_BODY

    def check() -> Response | None:
        if not host_allowed(guard, request.headers.get("Host", "")):
            return _said(400, "This server is not called by that name.")
        origin = request.headers.get("Origin")
        elsewhere = origin is not None and urlsplit(origin).netloc != request.headers.get("Host")
        if elsewhere or not asked_here(request.headers):
            return _said(400, "Requests from other pages are not answered.")
        given = request.args.get(TOKEN)
        if not token_given(guard, query=given, cookie=request.cookies.get(COOKIE)):
            return _said(403, "This dashboard wants its token: open the address that was printed when it started.")
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
            return _said(error.code or 500, error.name)
        server.logger.error("a request failed: %s", request.path, exc_info=error)
        return _said(500, "Something went wrong; the terminal that serves this says what.")

    server.before_request(check)
    server.after_request(headers)
    server.register_error_handler(Exception, fault)


def _remember(token: str) -> Response:
    """Keep the token as a cookie, and go on without it in the address.

    The page goes there by itself, where a redirect would not do: after a click elsewhere, a browser takes that for the
    other site's request and keeps the cookie back.
    """
    rest = urlencode([(name, value) for name, value in request.args.items(multi=True) if name != TOKEN])
    there = escape("/" + request.path.lstrip("/") + (f"?{rest}" if rest else ""))
    answer = Response(
        f'<!DOCTYPE html><meta http-equiv="refresh" content="0;url={there}"><a href="{there}">Go on</a>',
        mimetype="text/html",
    )
    answer.set_cookie(COOKIE, token, httponly=True, samesite="Strict", path="/")
    return answer


def _said(status: int, words: str) -> Response:
    return Response(f"{words}\n", status=status, mimetype="text/plain")


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
