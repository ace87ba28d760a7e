"""The documentation under /docs: the site that `make docs` builds, where this copy has one."""

from pathlib import Path
from typing import Final

from flask import Flask, Response, redirect, send_from_directory
from werkzeug.wrappers import Response as AnyResponse

SITE: Final = Path(__file__).parents[1] / "site"
"""Where the wheel has the built site; in a checkout `make docs` writes it there."""
HOW: Final = """This copy of OverlapScope has no documentation pages: it comes from the source, and they were not built.

Build them there, then reload this page:

  make docs

Or read docs/README.md in the source. overlapscope explain ID prints the page of a finding or of a recommendation.
"""


def register(server: Flask, site: Path = SITE) -> None:
    """Answer /docs and everything below it from the folder of a built site, or say how to build it."""

    @server.get("/docs")
    def docs_root() -> AnyResponse:
        return redirect("/docs/")

    @server.get("/docs/")
    @server.get("/docs/<path:path>")
    def docs(path: str = "index.html") -> Response:
        if not (site / "index.html").is_file():
            return Response(HOW, status=404, mimetype="text/plain")
        return send_from_directory(site, path, max_age=0)
