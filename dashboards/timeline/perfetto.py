"""Export a window of the timeline to Perfetto: the selected ranks, trimmed to the window."""

import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from threading import BoundedSemaphore
from typing import Any, Final
from urllib.parse import urlencode

from dash import Dash
from flask import Response, request

from overlapscope.errors import OverlapScopeError
from overlapscope.report.perfetto.export import ExportSelection, PerfettoTrace
from overlapscope.version import __version__
from overlapscope_dashboards.runs.site import NotFound, Site
from overlapscope_dashboards.timeline.query import parse_timeline_query
from overlapscope_dashboards.timeline.source import source_of

FILE: Final = "window.json.gz"
AT_ONCE: Final = 2
"""Windows written at the same time, so that the server's other threads stay free for pages."""
RETRY_S: Final = 5
_ASKED: Final = ("t0", "t1", "ranks")


def tail(state: Mapping[str, Any]) -> str:
    """Return the part of the download address after the page's path."""
    return f"/{FILE}?" + urlencode({name: state[name] for name in _ASKED if state.get(name) not in (None, "")})


def register(app: Dash, site: Site) -> None:
    """Register the download endpoint."""

    places = BoundedSemaphore(AT_ONCE)

    def window(run: str) -> Response:
        if not places.acquire(blocking=False):
            busy = {"Retry-After": str(RETRY_S)}
            return Response("Other windows are being written; try again.\n", 503, busy, mimetype="text/plain")
        with ExitStack() as place:
            place.callback(places.release)
            answer = _answer(site, run)
            if answer.status_code == 200:
                answer.call_on_close(place.pop_all().close)  # it is written while sent; free the slot then
        return answer

    app.server.add_url_rule(f"/runs/<run>/timeline/{FILE}", "timeline_window", window)


def _answer(site: Site, run: str) -> Response:
    try:
        opened = site.run(run)
        source = source_of(opened)
        view = parse_timeline_query(request.args, source.whole, source.ranks)
        begin, end = (each + source.origin_ns for each in (view.window.start_ns, view.window.end_ns))
        trace = PerfettoTrace(
            run=opened.run,
            choice=ExportSelection(ranks=frozenset(view.ranks), window=(begin, end)),
            version=__version__,
            together=opened.cross_rank,
        )
    except NotFound as unknown:
        return Response(f"{unknown}\n", status=404, mimetype="text/plain")
    except OverlapScopeError as error:
        return Response(f"{error}\n", status=422, mimetype="text/plain")
    return Response(
        compressed(trace.pieces()), mimetype="application/gzip",
        headers={"Content-Disposition": f'attachment; filename="{FILE}"'},
    )  # fmt: skip


def compressed(pieces: Iterable[str]) -> Iterator[bytes]:
    """Yield the bytes of a gzip file of the text pieces."""
    packer = zlib.compressobj(6, wbits=31)
    for piece in pieces:
        packed = packer.compress(piece.encode("utf-8", "replace"))
        if packed:
            yield packed
    yield packer.flush()
