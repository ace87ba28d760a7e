"""Ranks by time: an exact heat map at any zoom, the chosen ranks lane by lane, single spans where few are in view."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from overlapscope.report.amounts import count, ms, percent
from overlapscope_dashboards.opened import Opened
from overlapscope_dashboards.parts import table
from overlapscope_dashboards.parts.aria import aria
from overlapscope_dashboards.site import Site, Unknown, run_address
from overlapscope_dashboards.theme import CONFIG
from overlapscope_dashboards.timeline import perfetto, view
from overlapscope_dashboards.timeline.asked import asked, spelled
from overlapscope_dashboards.timeline.drawing import WIDTH
from overlapscope_dashboards.timeline.heat import DOMINATING, MODES
from overlapscope_dashboards.timeline.said import NAMES
from overlapscope_dashboards.timeline.source import source_of
from overlapscope_dashboards.timeline.view import Pointed, View

TITLE = "Timeline"
ORDER = 20
LOOK_MS = 1_500
"""How often to look whether what is worked out in the background is there."""
MODE_WORDS = {DOMINATING: "Longest", **{mode: mode.capitalize() for mode in MODES[1:]}}
KEYS = "Drag to zoom; arrows move, + and - zoom, 0 shows all, / finds a name, n and N go through what was found."


def layout(opened: Opened, query: Mapping[str, str]) -> list[Component]:
    """Give the page at the window, ranks, mode and name that the address asks for."""
    source = source_of(opened)
    first = asked(query, source.whole, source.ranks)
    shown = view.show(source, first, WIDTH)
    state = {
        "t0": first.window.start_ns, "t1": first.window.end_ns, "ranks": spelled(first.ranks), "mode": first.mode,
        "q": first.text,
    }  # fmt: skip
    # Dash brings plotly to the browser with a graph; this one shows nothing.
    loader = dcc.Graph(id="timeline-loader", figure={}, config=cast(Any, {**CONFIG}), style={"display": "none"})
    place = html.Div(id="timeline-figure", style={"height": f"{shown.height}px"})
    return [
        html.Section(
            [
                _controls(opened, state, len(source.ranks)),
                html.Div(_legend(shown), id="timeline-legend", className="tl-legend"),
                html.Div(_pointed(view.nothing(first)), id="timeline-pointed", className="tl-pointed",
                         role="status", **aria(live="polite")),
                html.Div(
                    place, className="chart tl-chart", role="img", id="timeline-chart",
                    **aria(label="Timeline of ranks. The table below holds the same figures; " + KEYS),
                ),
                html.P(shown.note, id="timeline-note", className="note"),
                html.P("", id="timeline-said", className="note warn", role="status"),
                html.Details([html.Summary("Show as table"), html.Div(_twin(shown), id="timeline-twin")]),
            ],
            className="card tl",
        ),
        dcc.Store(id="timeline-view", data=state),
        dcc.Store(id="timeline-whole", data=[source.whole.start_ns, source.whole.end_ns]),
        dcc.Store(id="timeline-found", data=shown.found),
        dcc.Store(id="timeline-probe"),
        dcc.Store(id="timeline-links"),
        dcc.Store(id="timeline-drawn", data=_drawn(shown)),
        dcc.Store(id="timeline-echo"),
        loader,
        dcc.Store(id="timeline-perfetto"),
        dcc.Interval(id="timeline-look", interval=LOOK_MS, disabled=not shown.coming),
    ]  # fmt: skip


def register(app: Dash, site: Site) -> None:
    """Draw what is asked for, say what is pointed at, and give the window to take away."""
    perfetto.register(app, site)

    @app.callback(
        Output("timeline-drawn", "data"),
        Output("timeline-legend", "children"),
        Output("timeline-note", "children"),
        Output("timeline-twin", "children"),
        Output("timeline-found", "data"),
        Output("timeline-look", "disabled"),
        Output("timeline-take", "href"),
        Input("timeline-view", "data"),
        Input("timeline-look", "n_intervals"),
        State("address", "pathname"),
        prevent_initial_call=True,
    )
    def draw(state: dict[str, Any], _: int | None, path: str) -> tuple[Any, ...]:
        found = site.beside(("timeline.draw", json.dumps(state)), path, lambda opened: _drawing(opened, state))
        return (*(no_update,) * 5, False, no_update) if found is None else found

    @app.callback(
        Output("timeline-pointed", "children"),
        Output("timeline-links", "data"),
        Output("timeline-look", "disabled", allow_duplicate=True),
        Input("timeline-probe", "data"),
        State("timeline-view", "data"),
        State("address", "pathname"),
        prevent_initial_call=True,
    )
    def point(probe: dict[str, Any] | None, state: dict[str, Any], path: str) -> tuple[Any, ...]:
        key = ("timeline.point", json.dumps([probe, state]))
        return site.beside(key, path, lambda opened: _pointing(opened, state, probe or {})) or (no_update,) * 3

    @app.callback(Output("timeline-perfetto", "data"), Input("timeline-perfetto", "id"))
    def perfetto_url(_: str) -> str | None:
        return site.perfetto_url

    here = "timeline"
    in_browser = cast(Any, app.clientside_callback)  # it has no types
    in_browser(
        ClientsideFunction(here, "shown"), Output("timeline-echo", "data"), Input("timeline-view", "data"),
        Input("timeline-found", "data"), Input("timeline-whole", "data"),
    )  # fmt: skip
    in_browser(
        ClientsideFunction(here, "perfetto"), Output("timeline-open", "hidden"), Input("timeline-perfetto", "data")
    )
    in_browser(
        ClientsideFunction(here, "drawn"), Output("timeline-echo", "data", allow_duplicate=True),
        Input("timeline-drawn", "data"), prevent_initial_call="initial_duplicate",
    )  # fmt: skip
    in_browser(
        ClientsideFunction(here, "linked"), Output("timeline-echo", "data", allow_duplicate=True),
        Input("timeline-links", "data"), prevent_initial_call=True,
    )  # fmt: skip


def _drawing(opened: Opened, state: Mapping[str, Any]) -> tuple[Any, ...]:
    source = source_of(opened)
    try:
        now = asked(state, source.whole, source.ranks)
    except Unknown as unknown:  # what was typed is not there: what is shown stays
        return (None, no_update, str(unknown), *(no_update,) * 4)
    shown = view.show(source, now, int(state.get("width") or WIDTH), at=state.get("at"))
    take = run_address(opened.id, "timeline", None) + perfetto.tail(state)
    return _drawn(shown), _legend(shown), shown.note, _twin(shown), shown.found, not shown.coming, take


def _pointing(opened: Opened, state: Mapping[str, Any], probe: Mapping[str, Any]) -> tuple[Any, ...]:
    source = source_of(opened)
    try:
        now = asked(state, source.whole, source.ranks)
    except Unknown:
        return (no_update,) * 3
    pointed = view.point(source, now, int(state.get("width") or WIDTH), probe)
    return _pointed(pointed), pointed.links, not source.waiting


def _drawn(shown: View) -> dict[str, Any]:
    config = {**CONFIG, "doubleClick": False, "responsive": True}
    return {"figure": shown.figure, "height": shown.height, "config": config}


def _controls(opened: Opened, state: Mapping[str, Any], ranks: int) -> Component:
    def button(label: str, does: str, said: str) -> Component:
        return html.Button(label, type="button", title=said, **_data(timeline=does), **aria(label=said))

    moves = [
        button("←", "left", "Earlier"), button("→", "right", "Later"), button("+", "in", "Zoom in"),
        button("-", "out", "Zoom out"), button("All", "all", "All of the run"),
    ]  # fmt: skip
    modes = [
        html.Button(
            MODE_WORDS[mode], type="button", title="The state a cell was in longest" if mode == DOMINATING else
            f"Share of time that was {NAMES[mode]}", **_data(timeline="mode", mode=mode),
            **aria(pressed="true" if state["mode"] == mode else "false"),
        )
        for mode in MODES
    ]  # fmt: skip
    return html.Div(
        [
            html.Div(moves, className="tl-group", role="group", **aria(label="Window of time")),
            html.Div(modes, className="tl-group", role="group", **aria(label="What colours show")),
            html.Label(
                ["Ranks", dcc.Input(id="timeline-ranks", value=state["ranks"], debounce=True, type="text",
                                    autoComplete="off")],
                title=f"Ranks shown lane by lane, at most 16 of {ranks}: 0-3,6",
            ),
            html.Label(
                ["Find", dcc.Input(id="timeline-text", value=state["q"], debounce=True, type="text",
                                   placeholder="name of a kernel", autoComplete="off")],
                className="tl-find",
            ),
            html.Div(
                [button("↑", "previous", "Previous found"), button("↓", "next", "Next found"),
                 html.Span("", id="timeline-hits", className="tl-hits", role="status")],
                className="tl-group", role="group", **aria(label="What was found"),
            ),
            html.Button("Open in Perfetto", id="timeline-open", type="button", hidden=True,
                        **_data(timeline="perfetto")),
            html.A("To Perfetto", id="timeline-take", className="button",
                   title="This window and these ranks as a trace for ui.perfetto.dev",
                   href=run_address(opened.id, "timeline") + perfetto.tail(state), download="window.json.gz"),
        ],
        className="tl-controls",
    )  # fmt: skip


def _data(**values: str) -> dict[str, Any]:
    """Give `data-...` attributes as keyword arguments."""
    return {f"data-{name}": value for name, value in values.items()}


def _legend(shown: View) -> list[Component]:
    whole = [
        html.Div(
            [
                html.Span(className=f"swatch k-{each.state}"),
                html.Span(NAMES[each.state], className="what"),
                html.Span(f"{ms(each.spent_ns / max(shown.ranks, 1))} ms", className="amount"),
                html.Span("" if each.share is None else percent(each.share), className="share"),
            ]
        )
        for each in shown.amounts
    ]
    return [html.Div([html.Strong(shown.when), html.Span("mean of " + count(shown.ranks, "rank"))], className="when"),
            *whole]  # fmt: skip


def _pointed(pointed: Pointed) -> list[Component]:
    return [html.Strong(pointed.title), html.Span(" · ".join(pointed.parts))]


def _twin(shown: View) -> list[Component]:
    tables: list[Component] = [
        table(shown.twin_head, shown.twin, caption="Time in view by rank, milliseconds", note=shown.twin_note)
    ]
    if shown.listed:
        head = ("span", "rank", "lane", "start, ms", "length")
        tables.append(table(head, shown.listed, caption="Spans in view, the longest first", left=1))
    return tables


__all__: Sequence[str] = ("ORDER", "TITLE", "layout", "register")
