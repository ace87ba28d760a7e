"""The what-if page: the predicted step time with other settings, which are the query of the address."""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, Final

from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from overlapscope.advice.setting_code import setting_code
from overlapscope.errors import InputError
from overlapscope.report.formatting import ms, size
from overlapscope.timeline.operations import ITEM_BYTES
from overlapscope.whatif.ddp.cap_curve import caps_to_draw
from overlapscope.whatif.ddp.ddp_recording import RecordedCase, ddp_case_of_run
from overlapscope.whatif.ddp.ddp_step import Settings
from overlapscope.whatif.ddp.lane_usage import ReplayedStep
from overlapscope_dashboards.parts import card, empty, figure_card, key_figures, next_command, notes, stacked_bar, table
from overlapscope_dashboards.parts.text import aria, chips, code
from overlapscope_dashboards.runs.open_run import OpenRun
from overlapscope_dashboards.runs.site import Site, parse_query, run_address
from overlapscope_dashboards.theme import COLOURS, figure
from overlapscope_dashboards.views import what_if as view

TITLE = "What-if"
ORDER = 50
MAX_REPLAYED: Final = 64
"""Most cached replays of a run."""
BAND: Final = "rgba(15,127,192,0.16)"
FLAT: Final = "rgba(0,158,115,0.14)"
SHADE_MARGIN: Final = 1.12
"""Factor by which the shade of a flat region extends beyond its caps."""
NOT_REPLAYED: Final = (
    "Replayed: bucket caps, 16-bit gradients, gradient views, accumulation, link speed and no stragglers. Not "
    "replayed: algorithms and prefetching, because their cost was never measured in this job."
)

ASSUMED = {
    "per_bucket_us": "overhead per bucket, µs",
    "latency_us": "latency per call, µs",
    "comm_share": "share of the slowdown on transfers, times",
    "transfer_beside_compute": "transfers overlapped with compute, times",
    "transfer_time": "transfers, times as recorded",
    "compute_time": "compute, times as recorded",
}
"""Labels of a replay's assumptions."""


def layout(opened: OpenRun, query: Mapping[str, str]) -> list[Component]:
    """Return the page; every setting is a name of the query, see `views.what_if.SETTING_NAMES`."""
    try:
        case = opened.once("what_if.case", lambda: ddp_case_of_run(opened.run, opened.cross_rank))
    except InputError as error:
        inside = [
            html.P(f"This recording cannot be replayed: {error}."),
            next_command(
                "Record the gradients of every rank", "with overlapscope.profile(path, model=model) as scope:"
            ),
        ]
        return [html.Section(html.Div(inside, className="empty"), className="card")]
    outcome = _replayer(opened, case)(view.read_settings(query, case.baseline))
    return [
        html.Div([html.P(view.lead(outcome), className="lead")], className="intro"),
        key_figures(view.figures(outcome)),
        html.Div(
            [
                html.Div([_controls(opened, case, outcome, query), _code(opened, case, outcome, query)],
                         className="stack third"),
                html.Div([_parts(outcome), _curve(outcome)], className="stack twothirds"),
                _lanes(outcome),
                _rests_on(case),
            ],
            className="grid",
        ),
    ]  # fmt: skip


def register(app: Dash, site: Site) -> None:
    """Register the callback that writes the bucket cap of the slider into the address."""

    @app.callback(
        Output("address", "search", allow_duplicate=True),
        Input("what-if-cap", "value"),
        State("address", "search"),
        State("address", "pathname"),
        prevent_initial_call=True,
    )
    def choose(place: float | None, search: str | None, path: str) -> Any:
        if place is None:
            return no_update
        key = ("what_if.cap", place, search)
        to = site.in_background(key, path, lambda opened: query_with_cap(opened, place, parse_query(search)))
        return no_update if to is None else to


def query_with_cap(opened: OpenRun, place: float, query: Mapping[str, str]) -> str | None:
    """Return the query with the cap at a slider position; None if it is the current cap."""
    case = opened.once("what_if.case", lambda: ddp_case_of_run(opened.run, opened.cross_rank))
    settings = view.read_settings(query, case.baseline)
    caps = caps_to_draw(case.workload(), case.baseline.ddp.bucket_cap_mb, settings.ddp.bucket_cap_mb)
    cap = caps[max(0, min(round(place), len(caps) - 1))]
    if cap == settings.ddp.bucket_cap_mb:
        return None
    chosen = None if cap == case.baseline.ddp.bucket_cap_mb else f"{cap:g}"
    address = run_address(opened.id, "what-if", view.change_setting(query, "cap", chosen))
    return address[address.index("?") :] if "?" in address else ""


def _replayer(opened: OpenRun, case: RecordedCase) -> Callable[[Settings], view.SettingsOutcome]:
    return opened.once("what_if.asked", lambda: lru_cache(MAX_REPLAYED)(partial(view.replay_settings, case)))


def _controls(
    opened: OpenRun, case: RecordedCase, outcome: view.SettingsOutcome, query: Mapping[str, str]
) -> Component:
    base, cap = case.baseline.ddp.bucket_cap_mb, outcome.settings.ddp.bucket_cap_mb
    caps = caps_to_draw(case.workload(), base, cap)
    marks: Any = {at: {"label": f"{each:g}"} for at, each in enumerate(caps)}
    slider = dcc.Slider(
        id="what-if-cap", min=0, max=len(caps) - 1, step=1, marks=marks, included=False,
        value=caps.index(cap) if cap is not None else 0, updatemode="mouseup", allow_direct_input=False,
    )  # fmt: skip
    now = f", now {base:g}" if base is not None else ", now a list of caps"
    groups: list[Component] = [
        html.Div([html.H3(f"bucket cap, MiB{now}", id="what-if-cap-label"), slider], className="knob", role="group",
                 **aria(labelledby="what-if-cap-label"))
    ]  # fmt: skip
    for each in view.choices(case, outcome.settings):
        links = [
            (words, run_address(opened.id, "what-if", view.change_setting(query, each.name, value)), chosen)
            for words, value, chosen in each.options
        ]
        groups.append(html.Div([html.H3(each.label), chips(each.label, links)], className="knob"))
    if outcome.changed:
        groups.append(html.P(dcc.Link("As recorded", href=run_address(opened.id, "what-if"))))
    return card("Settings", groups)


def _code(opened: OpenRun, case: RecordedCase, outcome: view.SettingsOutcome, query: Mapping[str, str]) -> Component:
    found = setting_code(outcome.settings.knobs(), ITEM_BYTES[case.recorded.dtypes[0]])
    if not found:
        return card(
            "How to set it", empty("No setting achieves this on its own. The figures show what it would be worth.")
        )
    chosen = query.get("for", "")
    chosen = chosen if chosen in found else next(iter(found))
    links = [
        (
            view.FRAMEWORKS[each],
            run_address(opened.id, "what-if", view.change_setting(query, "for", each)),
            each == chosen,
        )
        for each in found
    ]
    verify = opened.command("overlapscope compare RUN NEW_RUN")
    return card(
        "How to set it",
        [
            chips("Framework", links),
            code(found[chosen], label=f"{view.FRAMEWORKS[chosen]} code"),
            next_command("Verify: record a run with it, then", verify),
        ],
    )


def _parts(outcome: view.SettingsOutcome) -> Component:
    longest = max(outcome.before.step_ns, outcome.after.step_ns)
    bars: list[Component] = []
    for words, shown in (("as recorded", outcome.before), ("with these settings", outcome.after)):
        bar = html.Div(
            stacked_bar(view.segments(shown), shown.step_ns), style={"width": f"{100 * shown.step_ns / longest:.2f}%"}
        )
        bars += [html.P(f"{words}, {ms(shown.step_ns)} ms", className="note"), bar]
        if not outcome.changed:
            break
    rows = view.part_rows(outcome.before, outcome.after)
    twin = table(("part of a step", "now ms", "then ms", "difference ms"), rows, caption="Parts of a replayed step",
                 hide_caption=True)  # fmt: skip
    words = "Replayed, for the rank that ends last. Both bars have the same scale."
    return card("Step before and after" if outcome.changed else "Step", [*bars, twin], words=words)


def _curve(outcome: view.SettingsOutcome) -> Component:
    curve = outcome.curve
    if len(curve.caps_mb) < 2:
        return card(
            "Step by bucket cap", empty("All gradients fit into the smallest bucket, so the cap has no effect.")
        )
    caps = list(curve.caps_mb)
    low, high = ([getattr(each, name) / 1e6 for each in curve.steps] for name in ("low_ns", "high_ns"))
    steps = [each.predicted_step_ns / 1e6 for each in curve.steps]
    quiet = {"hoverinfo": "skip", "showlegend": False, "mode": "lines", "type": "scatter", "line": {"width": 0}}
    blue = {"color": COLOURS["accent"], "width": 2}
    traces: list[dict[str, Any]] = [
        {**quiet, "x": caps, "y": low},
        {**quiet, "x": caps, "y": high, "fill": "tonexty", "fillcolor": BAND, "showlegend": True,
         "name": "90 % interval"},
        {"type": "scatter", "mode": "lines+markers", "x": caps, "y": steps, "name": "replayed", "line": blue,
         "marker": {"size": 6},
         "customdata": [[each.buckets, a, b] for each, a, b in zip(curve.steps, low, high, strict=True)],
         "hovertemplate": "cap %{x:g} MiB, %{customdata[0]} buckets<br><b>%{y:,.3f} ms</b>, %{customdata[1]:,.3f} to "
         "%{customdata[2]:,.3f}<extra></extra>"},
    ]  # fmt: skip
    base, cap = outcome.present, outcome.present.knobs.get("bucket_cap_mb")
    if cap and base.known_from == "measured":
        traces.append(
            {"type": "scatter", "mode": "markers", "x": [cap], "y": [base.predicted_step_ns / 1e6],
                       "name": "measured", "marker": {"symbol": "diamond", "size": 11, "color": COLOURS["exposed"]},
                       "hovertemplate": "cap %{x:g} MiB, as recorded<br><b>%{y:,.3f} ms</b> measured<extra></extra>"}
        )  # fmt: skip
    shapes: list[dict[str, Any]] = []
    shapes += [
        {"type": "rect", "yref": "paper", "y0": 0, "y1": 1, "layer": "below", "line": {"width": 0},
         "fillcolor": FLAT, "x0": low_mb / SHADE_MARGIN, "x1": high_mb * SHADE_MARGIN}
        for low_mb, high_mb in view.best_cap_ranges(curve)
    ]  # fmt: skip
    chosen = outcome.settings.ddp.bucket_cap_mb
    if outcome.changed and chosen is not None:
        shapes.append({"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": chosen, "x1": chosen,
                       "line": {"color": COLOURS["idle"], "width": 2, "dash": "dot"}})  # fmt: skip
    marks = [each for each in caps if f"{each:g}"[0] in "125"]
    layout = {
        "xaxis": {"type": "log", "tickvals": marks, "ticktext": [f"{each:g}" for each in marks], "showgrid": True},
        "yaxis": {"rangemode": "normal"},
        "shapes": shapes,
    }
    words = f"{view.best_caps_sentence(curve)} The other settings are as selected." + (
        " The dotted line is the selected cap." if outcome.changed else ""
    )
    twin = table(("cap MiB", "step ms", "low ms", "high ms", "exposed ms", "buckets", "near the best"),
                 view.curve_rows(curve), caption="Step by bucket cap", hide_caption=True)  # fmt: skip
    return figure_card("Step by bucket cap", figure(traces, x="bucket cap, MiB", y="step, ms", layout=layout), twin,
                       words=words, id="what-if-curve", height=320)  # fmt: skip


def _lanes(outcome: view.SettingsOutcome) -> Component:
    shown = [("now", outcome.before)] + ([("then", outcome.after)] if outcome.changed else [])
    traces: list[dict[str, Any]] = []
    for words, each in shown:
        traces += _bars(each, words, legend=words == "now")
    longest = max(each.step_ns for _, each in shown) / 1e6
    ends = [
        {"type": "line", "x0": each.step_ns / 1e6, "x1": each.step_ns / 1e6, "yref": "paper", "y0": 0, "y1": 1,
         "line": {"color": COLOURS["idle"], "width": 1, "dash": "dot"}}
        for _, each in shown
    ]  # fmt: skip
    layout = {
        "barmode": "overlay", "bargap": 0.3, "shapes": ends,
        "xaxis": {"range": [0, longest * 1.02], "showgrid": True},
        "yaxis": {"type": "category", "autorange": "reversed", "showgrid": False},
    }  # fmt: skip
    tables = [
        table(("collective", "gradients", "launched ms", "transfer from ms", "to ms"), view.lane_rows(each),
              caption=f"Collectives of a step, {words}")
        for words, each in shown
    ]  # fmt: skip
    return figure_card(
        "The step as replayed", figure(traces, x="ms from the start of the step", layout=layout), html.Div(tables),
        words="On the rank that ends last. Before its transfer, a collective waits for other ranks or for the link.",
        id="what-if-lanes", height=90 + 96 * len(shown),
    )  # fmt: skip


def _bars(shown: ReplayedStep, words: str, *, legend: bool) -> list[dict[str, Any]]:
    moving = [(each.start_ns, each.end_ns, _name(each.bytes)) for each in shown.sent]
    waiting = [
        (each.begun_ns, each.start_ns, _name(each.bytes)) for each in shown.sent if each.start_ns > each.begun_ns
    ]
    computing = [(*each, "compute") for each in shown.computing_ns]
    kinds = (
        ("compute", f"compute, {words}", computing, "compute", ""),
        ("waiting", f"collectives, {words}", waiting, "waiting", "/"),
        ("moving data", f"collectives, {words}", moving, "accent", ""),
    )
    return [
        {
            "type": "bar", "orientation": "h", "name": name, "legendgroup": name, "showlegend": legend and bool(own),
            "y": [lane] * len(own), "base": [start / 1e6 for start, _, _ in own],
            "x": [(end - start) / 1e6 for start, end, _ in own],
            "customdata": [[label, start / 1e6, end / 1e6] for start, end, label in own],
            "marker": {"color": COLOURS[colour], "line": {"width": 1, "color": "rgba(255,255,255,0.6)"},
                       "pattern": {"shape": pattern, "size": 6, "solidity": 0.25}},
            "hovertemplate": "%{customdata[0]}, " + name + "<br><b>%{x:,.3f} ms</b>, %{customdata[1]:,.3f} to "
            "%{customdata[2]:,.3f}<extra></extra>",
        }
        for name, lane, own, colour, pattern in kinds
    ]  # fmt: skip


def _name(size_bytes: int | None) -> str:
    return "a collective" if size_bytes is None else f"bucket of {size(size_bytes)}"


def _rests_on(case: RecordedCase) -> Component:
    rows = [
        (
            ASSUMED.get(each.name, each.name.replace("_", " ")),
            f"{each.value:,.4g}",
            f"{each.low:,.4g} to {each.high:,.4g}",
            each.known_from,
        )
        for each in case.assumptions
    ]
    slowdown = case.slowdown_fit
    how = "measured" if slowdown.identified else "assumed"
    rows.insert(0, ("slowdown of overlapped compute, times", f"{slowdown.slowdown:.3g}",
                    f"{slowdown.low:.3g} to {slowdown.high:.3g}",
                    how))  # fmt: skip
    head = ("assumption", "value", "range", "source")
    inside = [
        html.Div(table(head, rows, caption="Assumptions of the prediction", hide_caption=True), className="verdicts"),
        notes([*([slowdown.reason] if slowdown.reason else []), *case.notes, NOT_REPLAYED]),
    ]
    words = "Each is varied within its range; the interval covers the resulting step times."
    return card("Assumptions", inside, words=words)
