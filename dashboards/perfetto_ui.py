"""A build of Perfetto's UI, served from a folder of the user's on its own port: its service worker wants the root."""

import threading
from pathlib import Path
from typing import Final

from flask import Flask, Response, abort, request, send_from_directory
from waitress.server import create_server

from overlapscope.errors import InputError
from overlapscope.ingest.shown import shown
from overlapscope_dashboards.security import Guard, host_allowed

INDEX: Final = "index.html"
THREADS: Final = 4


def perfetto_server(folder: Path, guard: Guard) -> Flask:
    """Give the application that serves the folder's files, to those who call this server by a name of its own.

    Raises InputError where the folder holds no such build. Traces never come here: the browser hands them over itself.
    """
    if not (folder / INDEX).is_file():
        raise InputError(f"{shown(folder)}: has no {INDEX}; --perfetto-dir wants an unpacked perfetto-ui.zip")
    server = Flask("overlapscope_perfetto", static_folder=None)

    def check() -> None:
        if not host_allowed(guard, request.headers.get("Host", "")):
            abort(400)

    def file(name: str = INDEX) -> Response:
        return send_from_directory(folder.resolve(), name)

    server.before_request(check)
    server.add_url_rule("/", "index", file)
    server.add_url_rule("/<path:name>", "file", file)
    return server


def serve_beside(folder: Path, guard: Guard, host: str) -> int:
    """Serve the folder from a thread, on any free port; gives the port. Raises InputError as above."""
    application = perfetto_server(folder, guard)
    try:
        server = create_server(application, host=host, port=0, threads=THREADS, ident=None)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot serve Perfetto on {host}: {error}") from error
    threading.Thread(target=server.run, daemon=True).start()
    return int(server.effective_port)
