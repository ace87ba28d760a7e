"""A Perfetto UI build from a folder, served to this machine alone on a port of its own: its worker wants the root."""

import mimetypes
from pathlib import Path
from typing import Final

from flask import Flask, Response, abort, send_from_directory
from werkzeug.security import safe_join

from overlapscope.display_path import shown
from overlapscope.errors import InputError
from overlapscope_dashboards.security import guard_for, protect

INDEX: Final = "index.html"
POLICY: Final = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' 'wasm-unsafe-eval' blob: data:; base-uri 'self'; "
    "form-action 'none'; frame-ancestors 'none'"
)
"""What the build needs of its own files; it may ask no other server for anything, and send none anything."""


def perfetto_app(folder: Path) -> Flask:
    """Give the server of a build's files; raises InputError where the folder holds none."""
    root = folder.resolve()
    if not (root / INDEX).is_file():
        raise InputError(f"{shown(folder)}: holds no {INDEX}; unpack a perfetto-ui.zip there")
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
