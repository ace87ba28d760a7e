"""What the timeline's own script asks for: a view of a window, and what is pointed at.

It goes past Dash, which lays out each answer as if it were a page, and takes longer for that than all else together.

    GET /runs/<run>/timeline/view    four bytes with a length, so much JSON, then the cells of its rasters, a byte each
    GET /runs/<run>/timeline/point   JSON

Both take what the page's address has (`t0`, `t1`, `ranks`, `mode`, `q`) and `width`, the pixels of the axis. What is
not ready yet is answered with 202: ask again. Where there is nothing to show, both are JSON with `problem`, in words; a
browser would note any other status as a fault of the page.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from dash import Dash
from flask import Response, request
from msgspec.structs import asdict

from overlapscope.errors import OverlapScopeError
from overlapscope.report.formatting import count, ms, percent
from overlapscope_dashboards.runs.open_run import Opened
from overlapscope_dashboards.runs.site import Site, Unknown, run_address
from overlapscope_dashboards.theme import CONFIG
from overlapscope_dashboards.timeline import perfetto, view
from overlapscope_dashboards.timeline.figure import WIDTH
from overlapscope_dashboards.timeline.labels import NAMES
from overlapscope_dashboards.timeline.query import Asked, asked, spelled
from overlapscope_dashboards.timeline.source import source_of
from overlapscope_dashboards.timeline.view import View

MAX_WIDTH: Final = 10_000
CELLS: Final = "application/octet-stream"


def register(app: Dash, site: Site) -> None:
    """Answer both."""

    def show(run: str) -> Response:
        given = request.args.to_dict()
        return _answer(site, run, "view", lambda opened: _view(site, opened, given))

    def point(run: str) -> Response:
        given = request.args.to_dict()
        return _answer(site, run, "point", lambda opened: _point(opened, given))

    app.server.add_url_rule("/runs/<run>/timeline/view", "timeline_view", show)
    app.server.add_url_rule("/runs/<run>/timeline/point", "timeline_point", point)


def _answer(site: Site, run: str, what: str, make: Callable[[Opened], bytes]) -> Response:
    def made(opened: Opened) -> bytes | str:
        try:
            return make(opened)
        except OverlapScopeError as error:
            return opened.without_root(error)

    try:
        told = site.beside((what, request.query_string), run_address(run, "timeline"), made)
    except Unknown as unknown:
        told = str(unknown)
    except OverlapScopeError:
        told = "This run cannot be read."
    if told is None:
        return Response(status=202)
    if isinstance(told, str):
        return Response(msgspec.json.encode({"problem": told}), mimetype="application/json")
    return Response(told, mimetype=CELLS if what == "view" else "application/json")


def _view(site: Site, opened: Opened, given: Mapping[str, str]) -> bytes:
    source = source_of(opened)
    now = asked(given, source.whole, source.ranks)
    shown = view.show(source, now, _width(given), at=_at(given))
    state = state_of(now)
    told = {
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
        "mean_of": f"mean of {count(shown.ranks, 'rank')}",
        "take": run_address(opened.id, "timeline") + perfetto.tail(state),
        "perfetto": site.perfetto_url,
    }  # fmt: skip
    head = msgspec.json.encode(told)
    return b"".join((len(head).to_bytes(4, "little"), head, *(each.cells for each in shown.rasters)))


def _point(opened: Opened, given: Mapping[str, str]) -> bytes:
    source = source_of(opened)
    pointed = view.point(source, asked(given, source.whole, source.ranks), _width(given), given)
    return msgspec.json.encode({**asdict(pointed), "coming": source.waiting})


def state_of(now: Asked) -> dict[str, Any]:
    """Return a view as its address has it."""
    window = now.window
    return {"t0": window.start_ns, "t1": window.end_ns, "ranks": spelled(now.ranks), "mode": now.mode, "q": now.text}


def asdict_but_cells(shown: View) -> dict[str, Any]:
    """Return what a view holds, without the cells of its rasters."""
    told = {name: getattr(shown, name) for name in View.__struct_fields__}
    told["rasters"] = [
        {name: getattr(each, name) for name in each.__struct_fields__ if name != "cells"} for each in shown.rasters
    ]
    return told


def _width(given: Mapping[str, str]) -> int:
    told = given.get("width", "")
    return min(int(told), MAX_WIDTH) if told.isdecimal() and len(told) < 9 and int(told) else WIDTH


def _at(given: Mapping[str, str]) -> int | None:
    told = given.get("at", "")
    return int(told) if told.isdecimal() and len(told) < 9 else None
