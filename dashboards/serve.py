"""The dashboard behind waitress: threads, pure Python, and never the debug server."""

import logging
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from waitress.server import create_server

from overlapscope.errors import InputError
from overlapscope.ingest.read import ReadOptions
from overlapscope_dashboards.app import create_app
from overlapscope_dashboards.perfetto_ui import serve_beside
from overlapscope_dashboards.security import TOKEN, guard_for, is_loopback

THREADS: Final = 8


def serve(
    roots: Sequence[Path],
    *,
    host: str,
    port: int,
    options: ReadOptions | None = None,
    perfetto: Path | None = None,
    say: Callable[[str], None],
) -> None:
    """Serve until interrupted; `say` gets the line with the address, once it answers. Port 0 takes any free one.

    `perfetto` is a folder with a build of Perfetto's UI, which is served beside it.

    Raises InputError where nothing can listen there.
    """
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # a busy moment is no news
    guard = guard_for(host)
    perfetto_port = None if perfetto is None else serve_beside(perfetto, guard, host)
    app = create_app(roots, options=options, guard=guard, perfetto_port=perfetto_port)
    try:
        server = create_server(
            app.server, host=host, port=port, threads=THREADS, ident=None, clear_untrusted_proxy_headers=True
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"cannot serve on {host} port {port}: {reason}; choose another --port or --host") from error
    taken = getattr(server, "effective_port", None) or port
    secret = f"?{TOKEN}={guard.token}" if guard.token else ""
    name = f"[{host}]" if ":" in host else host
    if host in ("0.0.0.0", "::"):
        name = socket.gethostname()
    say(f"serving on http://{name}:{taken}/{secret}")
    if not is_loopback(host):
        say("others on the network can reach this: without the token in the address they are turned away")
    server.run()
