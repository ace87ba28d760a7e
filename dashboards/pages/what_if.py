"""The what-if page: the predicted step time with other settings, which are the query of the address."""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, Final

from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from overlapscope.advice.replayed_settings import fsdp_code
from overlapscope.advice.setting_code import setting_code
from overlapscope.analysis.compare.prediction_check import Outcome
from overlapscope.errors import InputError, UsageError
from overlapscope.report.formatting import ms, percent, size
from overlapscope.report.verdicts import ADVICE
from overlapscope.timeline.operations import ITEM_BYTES
from overlapscope.whatif.ddp.cap_curve import caps_to_draw
from overlapscope.whatif.ddp.ddp_recording import RecordedCase, ddp_case_of_run
from overlapscope.whatif.ddp.ddp_step import Settings
from overlapscope.whatif.ddp.lane_usage import ReplayedStep
from overlapscope.whatif.listing import replayable_settings
from overlapscope.whatif.parallelism import NOT_REPLAYED, Parallelism
from overlapscope.whatif.pricing.prices import price_run
from overlapscope.whatif.pricing.result import Prices, RankPrice
from overlapscope.whatif.result import WhatIf
from overlapscope_dashboards.parts import card, empty, figure_card, key_figures, next_command, notes, stacked_bar, table
from overlapscope_dashboards.parts.forest import draw_forest
from overlapscope_dashboards.parts.quantities import Words, with_times
from overlapscope_dashboards.parts.text import aria, chips, code
from overlapscope_dashboards.runs.open_run import OpenRun
from overlapscope_dashboards.runs.site import Site, parse_query, run_address
from overlapscope_dashboards.theme import COLOURS, faded, figure
from overlapscope_dashboards.views import dry_price, scenarios
from overlapscope_dashboards.views import recommendations as advice
from overlapscope_dashboards.views import what_if as view
from overlapscope_dashboards.views.scenarios import AS_RECORDED

TITLE = "What-if"
ORDER = 50
MOST_PARTS: Final = 8
"""Parts of a critical path that are shown of a dry run."""
MAX_REPLAYED: Final = 64
"""Most cached replays of a run."""
BAND: Final = faded("accent", 0.16)
FLAT: Final = faded("hidden", 0.14)
SHADE_MARGIN: Final = 1.12
"""Factor by which the shade of a flat region extends beyond its caps."""
_SETTINGS: Final = "Settings are those of "
KINDS: Final[Mapping[Parallelism, str]] = {
    "ddp": f"{_SETTINGS}DDP.", "fsdp": f"{_SETTINGS}FSDP2.", "tensor": f"{_SETTINGS}tensor parallelism (TP).",
    "pipeline": f"{_SETTINGS}pipeline parallelism (PP).", "mixed": f"{_SETTINGS}jobs that mix kinds of parallelism.",
    "other": "Not recognised as DDP, FSDP2, TP or PP: what is replayed here fits any recording.",
}  # fmt: skip
"""What settings are of, by the kind of a recording."""
RECORD: Final = (
    next_command("Record the gradients of every rank", "with overlapscope.profile(path, model=model) as scope:"),
    next_command("Or from a whole command", "overlapscope capture -- torchrun train.py"),
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
    """Return the page; every setting is a name of the query, and an address without settings means the best ones."""
    if opened.analysis.headline.window is None and opened.analysis.dry_step is not None:
        return _priced(opened, query)
    try:
        found = opened.prediction
    except InputError as error:
        return [html.Section(empty(f"This recording cannot be replayed: {opened.without_root(error)}.", RECORD),
                             className="card")]  # fmt: skip
    case, asked = _case(opened), scenarios.settings_of(query, found)
    if isinstance(case, str) or "try" in asked:
        return _by_scenario(opened, found, None if isinstance(case, str) else case, asked)
    outcome = _replayer(opened, case)(view.read_settings(asked, case.baseline))
    return [
        _intro(view.lead(outcome), found, changed=outcome.changed),
        key_figures(view.figures(outcome)),
        html.Div(
            [
                html.Div([_controls(opened, case, outcome, asked), _code(opened, case, outcome, asked),
                          _not_replayed(opened), _earlier(opened)], className="stack third"),
                html.Div([_forest(opened, found, outcome.scenario.knobs), _parts(outcome), _curve(outcome, found)],
                         className="stack twothirds"),
                _lanes(outcome),
                _rests_on(case),
            ],
            className="grid",
        ),
    ]  # fmt: skip


def _case(opened: OpenRun) -> RecordedCase | str:
    """Return the case of a DDP recording, or why its buckets cannot be replayed."""

    def made() -> RecordedCase | str:
        try:
            return ddp_case_of_run(opened.run, opened.cross_rank, opened.chains.graphs)
        except InputError as error:
            return opened.without_root(error)

    return opened.once("what_if.case", made)


def _by_scenario(
    opened: OpenRun, found: WhatIf, case: RecordedCase | None, asked: Mapping[str, str]
) -> list[Component]:
    """Return the page of one scenario, where there are no controls for single settings."""
    scenario = scenarios.chosen(found, asked)
    unknown = scenario is None
    scenario = scenario or found.scenarios[0]
    code_of = (
        fsdp_code(scenario.knobs) if case is None
        else setting_code(scenario.knobs, ITEM_BYTES[case.recorded.dtypes[0]], found.baseline.knobs)
    )  # fmt: skip
    beside = [_notes(found)]
    if scenario is not found.scenarios[0]:
        beside.insert(0, _how(opened, code_of, asked, hypothetical=scenario.hypothetical))
    return [
        _intro(scenarios.lead(found, scenario), found, changed=scenario is not found.scenarios[0]),
        *([html.P(f"{asked.get('try', '')[:80]!r} is not among what was replayed of this recording.", className="note")]
          if unknown else []),
        key_figures(scenarios.figures(found, scenario)),
        html.Div(
            [
                html.Div([_forest(opened, found, scenario.knobs), _assumed(found)], className="stack twothirds"),
                html.Div([*beside, _not_replayed(opened), _earlier(opened)], className="stack third"),
            ],
            className="grid",
        ),
    ]  # fmt: skip


def _intro(words: Words, found: WhatIf, *, changed: bool) -> Component:
    words = words if changed else (*words, *scenarios.beside_recorded(found))
    unsure = "" if changed or found.verdict != "insufficient_data" else f"{ADVICE[found.verdict].capitalize()}. "
    said = html.P(f"{unsure}{KINDS[found.kind]}", className="under-lead note")
    return html.Div([html.P(with_times(words), className="lead"), said], className="intro")


def _forest(opened: OpenRun, found: WhatIf, selected: Mapping[str, Any]) -> Component:
    drawn = scenarios.forest(
        found, selected, _outcomes(opened)[0], lambda query: run_address(opened.id, "what-if", query)
    )
    title = "What each setting gives"
    words = (
        f"Circle: predicted step with its 90 % interval; diamond: measured; line: now. {scenarios.good_sentence(drawn)}"
    )
    return card(title, draw_forest(drawn, caption=title), words=words.rstrip())


def _outcomes(opened: OpenRun) -> tuple[list[Outcome], str]:
    """Return earlier predictions that were measured, and why they cannot be read; empty where they can."""
    try:
        return opened.prediction_outcomes, ""
    except InputError as error:
        return [], opened.without_root(error)


def _earlier(opened: OpenRun) -> Component:
    outcomes, problem = _outcomes(opened)
    tested = advice.earlier(outcomes)
    words = problem or advice.earlier_words(tested) or "No prediction of this run was measured by a later run yet."
    link = dcc.Link("All predictions and what was measured", href=run_address(opened.id, "recommendations"))
    return card("How right was this before?", [html.P(words), html.P(link)])


def _not_replayed(opened: OpenRun) -> Component:
    """Return which settings of this kind of recording were not replayed, why, and what to record."""
    listing = opened.once("what_if.listing", lambda: replayable_settings(opened.run, {}))
    said = [f"{name}: {why}" for name, why in listing.refused.items() if not name.startswith("-")]
    missing = [listing.reason] if listing.reason else []
    return card("Not replayed, and what to record", notes([*missing, *said, f"Never replayed: {NOT_REPLAYED}"]))


def _notes(found: WhatIf) -> Component:
    return card("Notes", notes(found.reasons)) if found.reasons else card("Notes", empty("Nothing to add."))


def _assumed(found: WhatIf) -> Component:
    fit = found.interference
    how = "measured" if fit.identified else "could not be measured; assumed"
    rows = [("slowdown of overlapped compute, times", f"{fit.slowdown:.3g}", f"{fit.low:.3g} to {fit.high:.3g}", how)]
    rows += [
        (ASSUMED.get(each.name, each.name.replace("_", " ")), f"{each.value:,.4g}",
         f"{each.low:,.4g} to {each.high:,.4g}", each.known_from)
        for each in found.assumptions
    ]  # fmt: skip
    head = ("assumption", "value", "range", "source")
    inside = html.Div(
        table(head, rows, caption="Assumptions of the prediction", hide_caption=True), className="verdicts"
    )
    return card(
        "Assumptions", inside, words="Each is varied within its range; the interval covers the resulting steps."
    )


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
    case, asked = _case(opened), scenarios.settings_of(query, opened.prediction)
    if isinstance(case, str):
        return None
    settings = view.read_settings(asked, case.baseline)
    caps = caps_to_draw(case.workload(), case.baseline.ddp.bucket_cap_mb, settings.ddp.bucket_cap_mb)
    cap = caps[max(0, min(round(place), len(caps) - 1))]
    if cap == settings.ddp.bucket_cap_mb:
        return None
    chosen = None if cap == case.baseline.ddp.bucket_cap_mb else f"{cap:g}"
    address = run_address(opened.id, "what-if", view.change_setting(asked, "cap", chosen))
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
        recorded = run_address(opened.id, "what-if", {"set": AS_RECORDED})
        groups.append(html.P([dcc.Link("As recorded", href=recorded), " · ",
                              dcc.Link("The best", href=run_address(opened.id, "what-if"))]))  # fmt: skip
    else:
        groups.append(html.P(dcc.Link("The best", href=run_address(opened.id, "what-if"))))
    return card("Settings", groups)


def _code(opened: OpenRun, case: RecordedCase, outcome: view.SettingsOutcome, query: Mapping[str, str]) -> Component:
    found = setting_code(outcome.settings.knobs(), ITEM_BYTES[case.recorded.dtypes[0]])
    return _how(opened, found, query, hypothetical=outcome.scenario.hypothetical)


def _how(opened: OpenRun, found: Mapping[str, str], query: Mapping[str, str], *, hypothetical: bool) -> Component:
    """Return how to apply settings, in the code of one framework, and how to verify them."""
    if not found:
        words = (
            "No setting achieves this on its own. The figures show what it would be worth."
            if hypothetical
            else "How to set it depends on the framework; there is no code for it here."
        )
        return card("How to set it", empty(words))
    selected = query.get("for", "")
    selected = selected if selected in found else next(iter(found))
    links = [
        (view.FRAMEWORKS[each], run_address(opened.id, "what-if", {**query, "for": each}), each == selected)
        for each in found
    ]
    verify = opened.command("overlapscope compare RUN NEW_RUN")
    return card(
        "How to set it",
        [
            *([chips("Framework", links)] if len(links) > 1 else [html.H3(view.FRAMEWORKS[selected])]),
            code(found[selected], label=f"{view.FRAMEWORKS[selected]} code"),
            html.H3("Verify: record a run with it, then"),
            code(verify, label="Verify"),
        ],
    )


def _parts(outcome: view.SettingsOutcome) -> Component:
    longest = max(outcome.before.step_ns, outcome.after.step_ns)
    bars: list[Component] = []
    for words, each in (("as recorded", outcome.before), ("with these settings", outcome.after)):
        bar = html.Div(
            stacked_bar(view.segments(each), each.step_ns), style={"width": f"{100 * each.step_ns / longest:.4f}%"}
        )
        bars += [html.P(f"{words}, {ms(each.step_ns)} ms", className="note"), bar]
        if not outcome.changed:
            break
    rows = view.part_rows(outcome.before, outcome.after)
    twin = table(("part of a step", "now ms", "then ms", "difference ms"), rows, caption="Parts of a replayed step",
                 hide_caption=True)  # fmt: skip
    words = "Replayed, for the rank that ends last. Both bars have the same scale."
    return card("Step before and after" if outcome.changed else "Step", [*bars, twin], words=words)


def _curve(outcome: view.SettingsOutcome, found: WhatIf) -> Component:
    curve, best_mb = outcome.curve, view.best_caps(outcome, found)
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
    shapes: list[dict[str, Any]] = [
        {"type": "rect", "yref": "paper", "y0": 0, "y1": 1, "layer": "below", "line": {"width": 0},
         "fillcolor": FLAT, "x0": best_mb[0] / SHADE_MARGIN, "x1": best_mb[1] * SHADE_MARGIN}
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
    words = f"{view.best_caps_sentence(best_mb)} The other settings are as selected." + (
        " The dotted line is the selected cap." if outcome.changed else ""
    )
    twin = table(("cap MiB", "step ms", "low ms", "high ms", "exposed ms", "buckets", "near the best"),
                 view.curve_rows(curve, best_mb), caption="Step by bucket cap", hide_caption=True)  # fmt: skip
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
        notes([*([slowdown.reason] if slowdown.reason else []), *case.notes]),
    ]
    words = "Each is varied within its range; the interval covers the resulting step times."
    return card("Assumptions", inside, words=words)


# --- a dry run, which has no times: its price on a device -------------------------------------------------------------


def _priced(opened: OpenRun, query: Mapping[str, str]) -> list[Component]:
    asked = dry_price.read_machine(query)
    found = _prices(opened, asked)
    controls = [
        html.Div([html.H3(each.label), chips(each.label, [
            (words, run_address(opened.id, "what-if", {**asked.query, each.name: value}), chosen)
            for words, value, chosen in each.options
        ])], className="knob")
        for each in dry_price.choices(asked)
    ]  # fmt: skip
    command = opened.command(f"overlapscope whatif RUN --device {asked.device} --links {asked.links}")
    title = "The same as a command"
    settings = card("Settings", [*controls, html.H3(title), code(command, label=title)], wide="third")
    if isinstance(found, str):
        shown_prices: list[Component] = [card("No price", empty(f"{found}."), wide="twothirds")]
        words: Words = (f"This dry run cannot be priced for {asked.device} with {asked.links}.",)
    else:
        ranks = [html.Div([_rank_price(each) for each in found.ranks], className="stack twothirds")]
        shown_prices = [*ranks, card("What it rests on", [
            html.Div(table(("constant", "value", "range", "source"), dry_price.constant_rows(found), hide_caption=True,
                           caption="Constants of the price"), className="verdicts"),
            notes(found.sources),
        ])]  # fmt: skip
        words = dry_price.lead(found)
    return [
        html.Div([html.P(with_times(words), className="lead"),
                  html.P("Estimated from data sheets and measured tables; nothing was measured here.",
                         className="under-lead note")], className="intro"),
        html.Div([settings, *shown_prices], className="grid"),
    ]  # fmt: skip


def _prices(opened: OpenRun, asked: dry_price.Machine) -> Prices | str:
    """Return the price of a dry run for a machine, or why there is none."""

    def made() -> Prices | str:
        try:
            return price_run(opened.run, dry_price.terms(asked)).prices
        except (InputError, UsageError) as error:
            return opened.without_root(error)

    return opened.once(f"what_if.price.{asked.device}.{asked.links}", made)


def _rank_price(price: RankPrice) -> Component:
    path = [(name, percent(share)) for name, share in list(price.path.items())[:MOST_PARTS]]
    parts: list[Component] = (
        [table(("critical path", "share"), path, caption="Critical path", hide_caption=True)] if path else []
    )
    said = [*price.reasons, *price.notes]
    return card(f"Rank {price.rank}", [*parts, *([notes(said)] if said else [])], words=dry_price.price_words(price))
