"""Run the dashboard with the waitress server (threads, pure Python, never the debug server).

A Perfetto UI build can be served from a folder too: to this machine only, and on a port of its own, because its service
worker must be served from the root.
"""

import logging
import mimetypes
import select
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import Any, Final

import msgspec
from flask import Flask, Response, abort, send_from_directory
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer, create_server
from werkzeug.security import safe_join

from overlapscope.display import display_path
from overlapscope.errors import InputError, UsageError
from overlapscope.ingest.options import ReadOptions
from overlapscope_dashboards.server.app import SITE, create_app
from overlapscope_dashboards.server.security import TOKEN, OneLineFormatter, guard_for, is_loopback, protect
from overlapscope_dashboards.server.sockets import bind_all

if sys.platform != "win32":
    import resource
THREADS: Final = 10
"""More than twice `work.MAX_WAITING`: some always answer what is ready, whoever waits for pages and for callbacks."""
MAX_CONNECTIONS: Final = 1_000
REQUEST_S: Final = 20
"""How long a connection may be idle, and how long a request may take to arrive; the answer may take longer."""
CLEANUP_S: Final = 5
"""How often idle connections are searched for."""
INDEX: Final = "index.html"
POLICY: Final = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' 'wasm-unsafe-eval' blob: data:; base-uri 'self'; "
    "form-action 'none'; frame-ancestors 'none'"
)
"""What the Perfetto build needs; it can neither load from nor send to another server."""


class Served(msgspec.Struct, kw_only=True, frozen=True):
    """Where the dashboard listens."""

    url: str
    perfetto_url: str | None
    others: bool
    """Whether other machines can reach it, with the token that is part of the address."""

    def words(self) -> str:
        """Return the lines to print."""
        lines = [f"serving on {self.url}"]
        if self.perfetto_url:
            lines.append(f"Perfetto on {self.perfetto_url}")
        if self.others:
            lines.append("other machines can reach this address; they need the token that is part of it")
        return "\n".join(lines)


class TimedChannel(HTTPChannel):  # type: ignore[misc]
    """A connection whose request must arrive within `REQUEST_S`: waitress has no limit for one sent byte by byte.

    Where the limit of open connections is reached, a new one takes the place of the one that has been idle longest:
    waitress would let it wait until others have been idle for `REQUEST_S`.
    """

    last_activity: float

    def __init__(self, server: Any, sock: Any, addr: Any, adj: Any, map: dict[int, Any]) -> None:
        """Take an accepted connection; `map` holds all sockets of the server."""
        super().__init__(server, sock, addr, adj, map)
        if len(map) >= adj.connection_limit - 1:
            others = [each for each in map.values() if isinstance(each, TimedChannel) and each is not self]
            idle = [each for each in others if not (each.requests or each.total_outbufs_len or each.will_close)]
            if idle:
                min(idle, key=lambda each: each.last_activity).handle_close()

    def handle_read(self) -> None:
        """Read available bytes; more of a request that has begun does not count as activity."""
        has_begun, active_s = self.request is not None, self.last_activity
        super().handle_read()
        if has_begun and self.request is not None:
            self.last_activity = active_s


def serve(
    roots: Sequence[Path],
    *,
    host: str,
    port: int,
    options: ReadOptions | None = None,
    perfetto: Path | None = None,
    say: Callable[[Served], None],
) -> None:
    """Serve until interrupted; `say` is called with the address once the server listens. Port 0 takes any free port.

    `perfetto` is a folder with a Perfetto UI build, which is served too. Raises InputError where the port cannot be
    bound, or that folder contains no build.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(OneLineFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[handler])  # before Flask adds its own handler
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # a short queue is not worth a warning
    guard = guard_for(host)
    if perfetto is not None and not is_loopback(host):
        raise UsageError(
            "--perfetto-dir serves only this machine, but --host names another address: leave one of them out"
        )
    perfetto_url = None if perfetto is None else _serve_perfetto(perfetto)
    app = create_app(roots, options=options, guard=guard, perfetto_url=perfetto_url)
    server, bound_port = _listening(app.server, host, port)
    secret = f"?{TOKEN}={guard.token}" if guard.token else ""
    name = f"[{host}]" if ":" in host else host
    if host in ("0.0.0.0", "::"):
        name = socket.gethostname()
    say(Served(url=f"http://{name}:{bound_port}/{secret}", perfetto_url=perfetto_url, others=not is_loopback(host)))
    try:
        server.run()
    finally:
        app.server.extensions[SITE].listed.close()


def _listening(app: Any, host: str, port: int) -> tuple[Any, int]:
    try:
        sockets, bound_port = bind_all(host, port)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"cannot serve on {host} port {port}: {reason}; choose another --port or --host") from error
    listening: dict[int, Any] = {}
    server = create_server(
        app,
        listening,
        sockets=sockets,
        threads=THREADS,
        ident=None,
        clear_untrusted_proxy_headers=True,
        connection_limit=_most_connections(),
        channel_timeout=REQUEST_S,
        cleanup_interval=CLEANUP_S,
        asyncore_use_poll=hasattr(select, "poll"),  # select fails on the 1,024th open file
    )
    for each in listening.values():
        if isinstance(each, TcpWSGIServer):
            each.channel_class = TimedChannel
    return server, bound_port


def _most_connections() -> int:
    """Return the limit of open connections: a third of the allowed open files, as Perfetto and runs need some too."""
    if sys.platform == "win32":
        return MAX_CONNECTIONS // 4  # its select takes 512 sockets
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, soft // 3)


def _serve_perfetto(folder: Path) -> str:
    server, bound_port = _listening(perfetto_app(folder), "127.0.0.1", 0)
    Thread(target=server.run, daemon=True).start()
    return f"http://127.0.0.1:{bound_port}/"


def perfetto_app(folder: Path) -> Flask:
    """Return the application that serves a Perfetto UI build; raises InputError where the folder contains none."""
    root = folder.resolve()
    if not (root / INDEX).is_file():
        raise InputError(f"{display_path(folder)}: has no {INDEX}; unpack a perfetto-ui.zip there")
    mimetypes.add_type("application/wasm", ".wasm")
    app = Flask("overlapscope_perfetto", static_folder=None)

    @app.get("/")
    @app.get("/<path:path>")
    def file(path: str = INDEX) -> Response:
        found = safe_join(str(root), path)
        if found is None or not Path(found).resolve().is_relative_to(root):
            abort(404)
        return send_from_directory(root, path)

    protect(app, guard_for("127.0.0.1"), lambda: POLICY)
    return app
