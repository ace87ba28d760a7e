"""The application: one callback from address to page, and the callbacks of the pages."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, ctx, html, no_update, set_props
from flask import Response, request

from overlapscope.ingest.read import ReadOptions
from overlapscope_dashboards import pages, router, security, shell
from overlapscope_dashboards.parts import empty
from overlapscope_dashboards.site import Site, query_of

_LOG = logging.getLogger(__name__)


def create_app(
    roots: Sequence[Path], *, options: ReadOptions | None = None, guard: security.Guard | None = None
) -> Dash:
    """Give the dashboard of what lies below `roots`; its WSGI application is `.server`.

    `guard` says whom to answer, by default this machine alone. `options` say how to read traces.
    """
    site = Site(roots, options)
    app = Dash(
        "overlapscope_dashboards",
        assets_folder=str(shell.ASSETS),
        use_pages=False,
        index_string=shell.DOCUMENT,
        title="OverlapScope",
        update_title="",
        suppress_callback_exceptions=True,
        on_error=_failed,
    )
    app.layout = shell.shell()
    _register(app, site)
    pages.register(app, site)
    content_policy = security.policy([shell.theme_script_hash(), *app.csp_hashes()])
    security.protect(app.server, guard or security.guard_for("127.0.0.1"), lambda: content_policy)
    app.server.after_request(_not_found(site))
    return app


def _register(app: Dash, site: Site) -> None:
    @app.callback(
        Output("nav", "children"),
        Output("main", "children"),
        Output("title", "data"),
        Output("revision", "data"),
        Output("poll", "disabled"),
        Input("address", "pathname"),
        Input("address", "search"),
        Input("poll", "n_intervals"),
        State("revision", "data"),
    )
    def show(path: str | None, search: str | None, _: int | None, revision: str | None) -> tuple[Any, ...]:
        shown = router.show(site, path or "/", query_of(search))
        if ctx.triggered_id == "poll" and shown.revision == revision:
            return (no_update,) * 5
        return shown.nav, shown.content, shown.title, shown.revision, not shown.growing

    arrived = ClientsideFunction("shell", "arrived")
    app.clientside_callback(arrived, Output("main", "aria-busy"), Input("title", "data"))  # type: ignore[no-untyped-call]


def _failed(error: Exception) -> None:
    """Say that a callback failed, in place of the page; what went wrong is for the terminal."""
    _LOG.error("a callback failed", exc_info=error)
    words = "Something went wrong here; the terminal that serves this says what. Other pages still work."
    set_props("main", {"children": [html.H1("A fault"), empty(words)]})


def _not_found(site: Site) -> Any:
    def status(response: Response) -> Response:
        page = request.endpoint in ("/", "/<path:path>") and response.mimetype == "text/html"
        if page and response.status_code == 200 and not router.exists(site, request.path):
            response.status_code = 404
        return response

    return status
