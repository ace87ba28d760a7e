"""The timeline page: an exact heat map of all ranks at any zoom, and the lanes (streams and threads) of some ranks."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from dash import ClientsideFunction, Dash, Input, Output, dcc, html
from dash.development.base_component import Component

from overlapscope_dashboards.parts.text import aria
from overlapscope_dashboards.runs.open_run import OpenRun
from overlapscope_dashboards.runs.site import Site, run_address
from overlapscope_dashboards.timeline import endpoints as answers
from overlapscope_dashboards.timeline import perfetto
from overlapscope_dashboards.timeline.endpoints import state_of
from overlapscope_dashboards.timeline.figure import expected_height
from overlapscope_dashboards.timeline.heat_map import DOMINATING, MODES
from overlapscope_dashboards.timeline.labels import NAMES
from overlapscope_dashboards.timeline.query import parse_timeline_query
from overlapscope_dashboards.timeline.source import source_of
from overlapscope_dashboards.timeline.tracks import HOST, PATH

TITLE = "Timeline"
ORDER = 20
MODE_WORDS = {
    DOMINATING: "Longest",
    **{mode: mode.capitalize() for mode in MODES[1:]},
    "hidden": "Overlapped",
    "copy": "Memcpy",
}
KEYS = (
    "The wheel zooms, drag moves, Shift and drag zooms to a stretch; w and s zoom, a and d move, "
    "f shows what is selected, 0 shows all, / searches a name, n and N step through the hits, e explains a span."
)


def layout(opened: OpenRun, query: Mapping[str, str]) -> list[Component]:
    """Return the page for the window, ranks, mode and search text of the address.

    `assets/timeline.js` requests the view (`timeline/endpoints.py`) before this is laid out, and fills it in.
    """
    source = source_of(opened)
    first = parse_timeline_query(query, source.whole, source.ranks)
    state = state_of(first)
    place = html.Div(id="timeline-figure", style={"height": f"{expected_height(source, first)}px"})
    return [
        html.Section(
            [
                _controls(opened, state, len(source.ranks)),
                html.Div(id="timeline-legend", className="tl-legend"),
                html.Div(id="timeline-pointed", className="tl-pointed", role="status", **aria(live="polite")),
                html.Div(
                    [
                        html.Div([_minimap(), _chart(place)], className="tl-main"),
                        html.Aside(id="timeline-chain", className="tl-chain", hidden=True,
                                   **aria(label="Blocking chain")),
                    ],
                    className="tl-body", id="timeline-body",
                ),
                html.P(id="timeline-note", className="note"),
                html.P("", id="timeline-said", className="note warn", role="status"),
                html.Details([html.Summary("Show as table"), html.Div(id="timeline-twin")]),
            ],
            className="card tl",
        ),
        dcc.Store(id="timeline-laid", data=f"{opened.revision} {json.dumps(state)}"),
        dcc.Store(id="timeline-echo"),
    ]  # fmt: skip


def _chart(place: Component) -> Component:
    return html.Div(
        [html.Canvas(id="timeline-map", **aria(hidden="true")), place,
         html.Div(id="timeline-drawn", className="tl-drawn", **aria(hidden="true"))],
        className="chart tl-chart", role="img", id="timeline-chart",
        **aria(label="Timeline of ranks. The table below has the same figures. " + KEYS),
    )  # fmt: skip


def _minimap() -> Component:
    """Return the row above the chart, which `assets/minimap.js` fills: the whole recording, and the window in it."""
    states = aria(label="Window in the recording", valuemin="0", valuemax="100", valuenow="0", orientation="horizontal")
    return html.Div(
        [html.Canvas(**aria(hidden="true")), html.Div(className="tl-frame")],
        id="timeline-minimap", className="tl-minimap", role="slider", tabIndex=0,
        title="The whole recording; drag the frame to move the window", **states,
    )  # fmt: skip


def register(app: Dash, site: Site) -> None:
    """Register the script's endpoints and the Perfetto export, and notify the script of a new layout."""
    perfetto.register(app, site)
    answers.register(app, site)
    cast(Any, app.clientside_callback)(  # it has no types
        ClientsideFunction("timeline", "laid"), Output("timeline-echo", "data"), Input("timeline-laid", "data")
    )


def _controls(opened: OpenRun, state: Mapping[str, Any], ranks: int) -> Component:
    def button(label: str, does: str, description: str) -> Component:
        return html.Button(label, type="button", title=description, **_data(timeline=does), **aria(label=description))

    moves = [
        button("←", "left", "Earlier"), button("→", "right", "Later"), button("+", "in", "Zoom in"),
        button("-", "out", "Zoom out"), button("All", "all", "All of the run"),
    ]  # fmt: skip
    modes = [
        html.Button(
            MODE_WORDS[mode], type="button", title="The state with the most time in a cell" if mode == DOMINATING else
            f"Share of time: {NAMES[mode]}", **_data(timeline="mode", mode=mode),
            **aria(pressed="true" if state["mode"] == mode else "false"),
        )
        for mode in MODES
    ]  # fmt: skip
    rows = [
        html.Button(
            words, type="button", title=title, **_data(timeline="show", show=name),
            **aria(pressed="true" if name in state["show"].split(",") else "false"),
        )
        for name, words, title in (
            (HOST, "Host threads", "Operations, annotations and runtime calls of the chosen ranks"),
            (PATH, "Critical path", "The chain of dependencies that decided how long each step took"),
        )
    ]  # fmt: skip
    return html.Div(
        [
            html.Div(moves, className="tl-group", role="group", **aria(label="Window of time")),
            html.Div(modes, className="tl-group", role="group", **aria(label="Meaning of colours")),
            html.Div(rows, className="tl-group", role="group", **aria(label="More rows")),
            html.Label(
                ["Ranks", dcc.Input(id="timeline-ranks", value=state["ranks"], debounce=True, type="text",
                                    autoComplete="off")],
                title=f"Ranks whose streams and threads are shown, at most 16 of {ranks}: 0-3,6",
            ),
            html.Div(
                [html.Label(
                    ["Find", dcc.Input(id="timeline-text", value=state["q"], debounce=True, type="text",
                                       placeholder="name of a kernel", autoComplete="off")],
                    className="tl-find",
                 ),
                 button("↑", "previous", "Previous hit"), button("↓", "next", "Next hit"),
                 html.Span("", id="timeline-hits", className="tl-hits", role="status")],
                className="tl-group", role="group", **aria(label="Search"),
            ),
            html.Button("Open in Perfetto", id="timeline-open", type="button", hidden=True,
                        **_data(timeline="perfetto")),
            html.A("To Perfetto", id="timeline-take", className="button",
                   title="Download this window and these ranks as a trace for ui.perfetto.dev",
                   href=run_address(opened.id, "timeline") + perfetto.tail(state), download="window.json.gz"),
        ],
        className="tl-controls",
    )  # fmt: skip


def _data(**values: str) -> dict[str, Any]:
    """Return `data-...` attributes as keyword arguments."""
    return {f"data-{name}": value for name, value in values.items()}


__all__: Sequence[str] = ("ORDER", "TITLE", "layout", "register")
