"""The Dash application: one callback that turns an address into a page, and the callbacks of the pages."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from dash import ClientsideFunction, Dash, Input, Output, State, ctx, html, no_update, set_props
from dash.exceptions import DependencyException
from flask import Response, redirect, request

from overlapscope.ingest.options import ReadOptions
from overlapscope_dashboards import pages
from overlapscope_dashboards.compare import steps as comparison_steps
from overlapscope_dashboards.parts import empty
from overlapscope_dashboards.runs.recent import RecentCache
from overlapscope_dashboards.runs.site import Site, parse_query, path_parts, run_address
from overlapscope_dashboards.runs.work import BackgroundWork
from overlapscope_dashboards.server import documentation, listing, router, security, shell

PATIENCE_S: Final = 1.0
"""How long a request waits for a page before it is answered with the progress instead."""
POLL_PATIENCE_S: Final = 0.3
KEPT_PAGES: Final = 64
"""Pages of runs that are kept as they were sent, until their files change: many may ask for one at the same time."""
SITE: Final = "overlapscope"
"""Where an application keeps its site."""
_LOG = logging.getLogger(__name__)


def create_app(
    roots: Sequence[Path],
    *,
    options: ReadOptions | None = None,
    guard: security.Guard | None = None,
    perfetto_url: str | None = None,
) -> Dash:
    """Return the dashboard of the runs below `roots`; its WSGI application is `.server`.

    `guard` decides which requests are answered, by default only those from this machine. `options` configure how traces
    are read. `perfetto_url` is the address of a Perfetto UI on this machine.
    """
    site = Site(roots, options, perfetto_url)
    app = Dash(
        "overlapscope_dashboards",
        assets_folder=str(shell.ASSETS),
        use_pages=False,
        index_string=shell.document(),
        title="OverlapScope",
        update_title="",
        suppress_callback_exceptions=True,
        on_error=_failed,
        add_log_handler=False,  # its own handler would write to standard output, unformatted
    )
    app.layout = shell.shell()
    _register(app, site)
    pages.register(app, site)
    comparison_steps.register(app)
    listing.register(app, site)
    documentation.register(app.server)
    content_policy = security.policy([shell.theme_script_hash(), *app.csp_hashes()])
    security.protect(app.server, guard or security.guard_for("127.0.0.1"), lambda: content_policy)
    app.server.register_error_handler(DependencyException, _no_such_suite)
    app.server.before_request(_only_run(site))
    app.server.after_request(_not_found(site))
    app.server.extensions[SITE] = site
    return app


def _register(app: Dash, site: Site) -> None:
    work = BackgroundWork[router.RenderedPage]()
    kept = RecentCache[router.RenderedPage](KEPT_PAGES)

    def made(here: str, search: str | None) -> router.RenderedPage:
        def render() -> router.RenderedPage:
            return router.as_plain(router.show(site, here, parse_query(search)))

        revision = router.revision(site, here)
        return render() if revision is None else kept.get((here, search, revision), render, lambda page: page.lasts)

    def ready(here: str, search: str | None) -> router.RenderedPage | None:
        """Return a page that was rendered before, if its files were checked a moment ago."""
        parts = path_parts(here)
        opened = site.open_runs.recently_checked(parts[1]) if parts[1:] else None
        return None if opened is None else kept.find((here, search, opened.revision))

    @app.callback(
        Output("nav", "children"),
        Output("main", "children"),
        Output("title", "data"),
        Output("revision", "data"),
        Output("poll", "disabled"),
        Output("poll", "interval"),
        Input("address", "pathname"),
        Input("address", "search"),
        Input("poll", "n_intervals"),
        State("revision", "data"),
    )
    def show(path: str | None, search: str | None, _: int | None, revision: str | None) -> tuple[Any, ...]:
        here, polled = path or "/", ctx.triggered_id == "poll"
        patience = POLL_PATIENCE_S if polled else PATIENCE_S
        found = ready(here, search) or work.fetch((here, search), lambda: made(here, search), patience, of=here)
        shown = found or router.busy(site, here, parse_query(search))
        has_page = not (revision or "").startswith(router.BUSY)
        if polled and (shown.revision == revision or (shown.busy and has_page)):
            return (no_update,) * 6  # the page stays until another one replaces it
        every_ms = shell.BUSY_POLL_MS if shown.busy else shell.POLL_MS
        return shown.nav, shown.content, shown.title, shown.revision, not shown.growing, every_ms

    arrived = ClientsideFunction("shell", "arrived")
    app.clientside_callback(arrived, Output("main", "aria-busy"), Input("title", "data"))  # type: ignore[no-untyped-call]


def _failed(error: Exception) -> None:
    """Show that a callback failed, in place of the page, and log the error to the terminal."""
    _LOG.error("a callback failed", exc_info=error)
    words = "Something went wrong. The error is in the terminal that runs the server. Other pages still work."
    set_props("main", {"children": [html.H1("Internal error"), empty(words)]})
    set_props("revision", {"data": ""})  # so that the page is shown when it is opened again


def _no_such_suite(_: DependencyException) -> Response:
    """Answer a request for a file of an unknown component: the request is wrong, not the server."""
    return Response("Not Found\n", status=404, mimetype="text/plain")


def _only_run(site: Site) -> Any:
    def overview() -> Any:
        """Open the overview of the only run instead of a list of one."""
        only = site.only_run() if request.path == "/" else None
        return redirect(run_address(only)) if only else None

    return overview


def _not_found(site: Site) -> Any:
    def status(response: Response) -> Response:
        page = request.endpoint in ("/", "/<path:path>") and response.mimetype == "text/html"
        if page and response.status_code == 200 and not router.exists(site, request.path):
            response.status_code = 404
        return response

    return status
