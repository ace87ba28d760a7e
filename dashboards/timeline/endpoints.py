"""The HTTP endpoints of the timeline's script: a view of a time window, the details under the pointer, and chains.

They bypass Dash, which would treat each answer like a page layout and take longer than everything else together.

    GET /runs/<run>/timeline/view    4-byte length (little-endian), JSON of that length, cells of the rasters (bytes)
    GET /runs/<run>/timeline/point   JSON
    GET /runs/<run>/timeline/chain   JSON

The first two take the query of the page's address (`t0`, `t1`, `ranks`, `mode`, `q`, `hit`) and `width`, the pixels of
the axis; the last takes `chain`, and `at` where a span was clicked. Status 202 means not ready: ask again; its text is
the progress. Where there is nothing to show, all return JSON with the reason in `problem`, because a browser would log
any other status as an error of the page.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from dash import Dash
from flask import Response, request
from msgspec.structs import asdict

from overlapscope.errors import OverlapScopeError
from overlapscope.report.formatting import count, ms, percent
from overlapscope_dashboards.runs.open_run import OpenRun
from overlapscope_dashboards.runs.site import NotFound, Site, run_address
from overlapscope_dashboards.theme import CONFIG
from overlapscope_dashboards.timeline import perfetto, view
from overlapscope_dashboards.timeline.blocking_chain import blocking_chain
from overlapscope_dashboards.timeline.figure import WIDTH
from overlapscope_dashboards.timeline.labels import NAMES
from overlapscope_dashboards.timeline.query import TimelineQuery, format_ranks, parse_timeline_query
from overlapscope_dashboards.timeline.raster import state_rgba
from overlapscope_dashboards.timeline.source import source_of
from overlapscope_dashboards.timeline.view import TimelineView

MAX_WIDTH: Final = 10_000
CELLS: Final = "application/octet-stream"


def register(app: Dash, site: Site) -> None:
    """Register the endpoints."""

    def show(run: str) -> Response:
        given = request.args.to_dict()
        return _answer(site, run, "view", lambda opened: _view(site, opened, given))

    def point(run: str) -> Response:
        given = request.args.to_dict()
        return _answer(site, run, "point", lambda opened: _point(opened, given))

    def chain(run: str) -> Response:
        given = request.args.to_dict()
        return _answer(site, run, "chain", lambda opened: _chain(opened, given))

    app.server.add_url_rule("/runs/<run>/timeline/chain", "timeline_chain", chain)
    app.server.add_url_rule("/runs/<run>/timeline/view", "timeline_view", show)
    app.server.add_url_rule("/runs/<run>/timeline/point", "timeline_point", point)


def _answer(site: Site, run: str, what: str, make: Callable[[OpenRun], bytes]) -> Response:
    def made(opened: OpenRun) -> bytes | str:
        try:
            return make(opened)
        except OverlapScopeError as error:
            return opened.without_root(error)

    try:
        # Clicks that wait for a graph must not take the places of views: chains are a page of their own.
        page = "timeline/chain" if what == "chain" else "timeline"
        answer = site.in_background((what, request.query_string), run_address(run, page), made)
    except NotFound as unknown:
        answer = str(unknown)
    except OverlapScopeError:
        answer = "This run cannot be read."
    if answer is None:
        return Response(site.open_runs.doing(run), status=202, mimetype="text/plain")
    if isinstance(answer, str):
        return Response(msgspec.json.encode({"problem": answer}), mimetype="application/json")
    return Response(answer, mimetype=CELLS if what == "view" else "application/json")


def _view(site: Site, opened: OpenRun, given: Mapping[str, str]) -> bytes:
    source = source_of(opened)
    now = parse_timeline_query(given, source.whole, source.ranks)
    shown = view.show(source, now, _width(given), hit=given.get("hit", ""))
    state = state_of(now)
    of_recorded = ", % of recorded time" if any(each.state == "unrecorded" for each in shown.amounts) else ""
    head = {
        **asdict_but_cells(shown),
        "state": state,
        "whole": [source.whole.start_ns, source.whole.end_ns],
        "config": {**CONFIG, "doubleClick": False, "responsive": True},
        "amounts": [
            {"state": each.state, "name": NAMES[each.state],
             "amount": f"{ms(each.spent_ns / max(shown.ranks, 1))} ms",
             "share": "" if each.share is None else percent(each.share)}
            for each in shown.amounts
        ],
        "mean_of": f"mean of {count(shown.ranks, 'rank')}{of_recorded}",
        "take": run_address(opened.id, "timeline") + perfetto.tail(state),
        "perfetto": site.perfetto_url,
        "minimap": {
            "cells": "".join(map(str, source.overview.cells)), "cell_ns": source.overview.cell_ns,
            "colours": state_rgba(),
        },
    }  # fmt: skip
    encoded = msgspec.json.encode(head)
    return b"".join((len(encoded).to_bytes(4, "little"), encoded, *(each.cells for each in shown.rasters)))


def _point(opened: OpenRun, given: Mapping[str, str]) -> bytes:
    source = source_of(opened)
    pointed = view.point(source, parse_timeline_query(given, source.whole, source.ranks), _width(given), given)
    return msgspec.json.encode({**asdict(pointed), "coming": source.is_working})


def _chain(opened: OpenRun, given: Mapping[str, str]) -> bytes:
    at = given.get("at", "")
    clicked = int(at) if at.isdecimal() and len(at) < 19 else None
    return msgspec.json.encode(blocking_chain(opened, given.get("chain", ""), clicked))


def state_of(now: TimelineQuery) -> dict[str, Any]:
    """Return a query as the values of its address."""
    window = now.window
    return {
        "t0": window.start_ns,
        "t1": window.end_ns,
        "ranks": format_ranks(now.ranks),
        "mode": now.mode,
        "q": now.text,
        "show": ",".join(now.show),
    }


def asdict_but_cells(shown: TimelineView) -> dict[str, Any]:
    """Return the fields of a view, without the cells of its rasters."""
    fields = {name: getattr(shown, name) for name in TimelineView.__struct_fields__}
    fields["rasters"] = [
        {name: getattr(each, name) for name in each.__struct_fields__ if name != "cells"} for each in shown.rasters
    ]
    return fields


def _width(given: Mapping[str, str]) -> int:
    text = given.get("width", "")
    return min(int(text), MAX_WIDTH) if text.isdecimal() and len(text) < 9 and int(text) else WIDTH
