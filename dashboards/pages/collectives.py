"""The collectives page: bandwidth by message size, and transfer and wait time."""

from collections.abc import Mapping
from math import isnan
from typing import Any, Final

from dash import html
from dash.development.base_component import Component

from overlapscope.analysis.checks.links.possible_bandwidth import curves_of, link_speed
from overlapscope.analysis.exposure.collectives import CollectiveRow
from overlapscope.analysis.exposure.operation_times import OpTime, op_times
from overlapscope.report.palette import SEQUENCE
from overlapscope.whatif.cost.recorded_curves import RecordedCurve, recorded_curves
from overlapscope_dashboards.parts import card, empty, figure_card, next_command, table
from overlapscope_dashboards.parts.bars import SplitPart, SplitRow, split_bar_table
from overlapscope_dashboards.parts.charts import DASHES
from overlapscope_dashboards.parts.text import chips
from overlapscope_dashboards.runs.open_run import OpenRun
from overlapscope_dashboards.runs.site import NotFound, run_address
from overlapscope_dashboards.theme import COLOURS, figure, plain
from overlapscope_dashboards.views import collectives as view

TITLE = "Collectives"
ORDER = 30
MAX_ROWS: Final = 24
SYMBOLS: Final = ("circle", "square", "diamond", "triangle-up", "cross", "x", "pentagon", "star")
PARTS: Final = (
    SplitPart(name="transfer", kind="transfer"),
    SplitPart(name="wait", kind="waiting"),
    SplitPart(name="not separated", kind="idle"),
)


def layout(opened: OpenRun, query: Mapping[str, str]) -> list[Component]:
    """Return the page; `?op=all_reduce` shows only that operation."""
    analysis = opened.analysis
    if not analysis.collectives:
        words = "No collective was recorded. A trace of any rank of a communicating job contains them."
        return [html.Section(empty(words, _record()), className="card")]
    times = opened.once("collectives.times", lambda: op_times(opened.run, opened.cross_rank))
    curves = recorded_curves(analysis.collectives)
    what = analysis.headline.window or "recording"
    op = _op(query, opened)
    chosen = [each for each in curves if op in (None, each.op)]
    rows = [each for each in analysis.collectives if op in (None, each.op)]
    own_times = [each for each in times if op in (None, each.op)]
    sentences = view.lead(own_times, what)
    return [
        html.Div([html.P(sentences, className="lead")] if sentences else [], className="intro"),
        *_choose(opened, op),
        html.Div([_bandwidth(opened, chosen), *_times(own_times, what), _kinds(view.kinds(rows), rows)],
                 className="grid"),
    ]  # fmt: skip


def _op(query: Mapping[str, str], opened: OpenRun) -> str | None:
    requested = query.get("op")
    ops = list(dict.fromkeys(each.op for each in opened.analysis.collectives))
    if requested is None or requested in ops:
        return requested
    there = [(each, run_address(opened.id, "collectives", {"op": each})) for each in ops]
    raise NotFound(f"This run has no calls of {requested[:40]}.", there)


def _choose(opened: OpenRun, chosen: str | None) -> list[Component]:
    """Return links to each operation, where there are several."""
    ops = list(dict.fromkeys(each.op for each in opened.analysis.collectives))
    if len(ops) < 2:
        return []
    links = [
        (each or "all operations", run_address(opened.id, "collectives", {"op": each}), each == chosen)
        for each in (None, *ops)
    ]
    return [chips("Operations", links)]


def _bandwidth(opened: OpenRun, curves: list[RecordedCurve]) -> Component:
    if not curves:
        words = "Bandwidth is not known: it needs size, time and group size of calls."
        return card("Bandwidth by size", empty(words, _record()))
    series = view.series(curves)
    tables = view.matching_benchmarks([*curves_of(opened.run.facts)], curves)
    benchmarks = tables[: view.MAX_BENCHMARKS]
    ceiling = link_speed(opened.run)
    notes = ["Bus bandwidth of each kind of call, wait time excluded: the median, and a bar up to the fastest tenth."]
    if any(each.bounds.sizes_bytes for each in series):
        notes.append("Hollow: wait time could not be separated from transfer time, so the call may have been faster.")
    if any(each.guess for each in series):
        notes.append("Dotted: interpolated between sizes that are far apart.")
    alone = len({size for each in curves for size in {row.bytes for row in each.rows}}) == 1
    if alone:
        notes.append("Only one size, so there is no curve.")
    if not benchmarks and ceiling is None:
        notes.append("No benchmark table and no link speed is known for comparison.")
    if len(tables) > len(benchmarks):
        notes.append(f"The first {len(benchmarks)} of {len(tables)} benchmark tables.")
    if len(curves) > len(series):
        notes.append(f"The {len(series)} longest operations of {len(curves)}.")
    return figure_card(
        "Bandwidth by size", _chart(series, benchmarks, ceiling), _points_table(series, benchmarks, ceiling),
        words=" ".join(notes), id="collectives-bandwidth", height=240 if alone else 380,
    )  # fmt: skip


def _chart(
    series: tuple[view.MeasuredCurve, ...],
    benchmarks: tuple[tuple[str, view.BandwidthLine], ...],
    ceiling: tuple[float, str] | None,
) -> dict[str, Any]:
    traces: list[dict[str, Any]] = []
    sizes: list[float] = []
    for at, each in enumerate(series):
        colour, symbol = COLOURS[SEQUENCE[at % len(SEQUENCE)]], SYMBOLS[at % len(SYMBOLS)]
        for line, dash in ((each.line, "solid"), (each.guess, "dot")):
            if line is not None:
                traces.append(_line(line, f"{each.name}, curve", colour, dash, group=each.name, legend=False))
        for points, mark in ((each.matched, symbol), (each.bounds, f"{symbol}-open")):
            if points.sizes_bytes:
                sizes += points.sizes_bytes
                traces.append(_points(points, each.name, colour, mark))
    for at, (name, line) in enumerate(benchmarks):
        sizes += line.sizes_bytes
        traces.append(_line(line, name, COLOURS["idle"], DASHES[1 + at % 3], group=name, legend=True))
    marks = view.size_axis(sizes)
    layout: dict[str, Any] = {
        "xaxis": {
            "type": "log",
            "tickvals": marks.at,
            "ticktext": marks.words,
            "range": marks.decades,
            "showgrid": True,
        },
        "yaxis": {"rangemode": "tozero"},
    }
    if ceiling is not None:
        gbs, sentences = ceiling
        dotted = {"color": COLOURS["exposed"], "dash": "dot", "width": 2}
        layout["shapes"] = [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": gbs, "y1": gbs, "line": dotted}]
        layout["annotations"] = [
            {"xref": "paper", "x": 1, "xanchor": "right", "y": gbs, "yanchor": "bottom", "showarrow": False,
             "text": plain(f"{view.gbs(gbs)} GB/s, {sentences}")}
        ]  # fmt: skip
        layout["yaxis"] |= {"range": [0, 1.1 * max(gbs, *(v for t in traces for v in t["y"]))]}
    return figure(traces, x="size of a call", y="bus bandwidth, GB/s", layout=layout)


def _points(points: view.MeasuredPoints, name: str, colour: str, mark: str) -> dict[str, Any]:
    up = [
        0 if best is None else max(best - gbs, 0) for best, gbs in zip(points.best_gbs, points.busbw_gbs, strict=True)
    ]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": plain(name) + (" (bounds)" if mark.endswith("-open") else ""),
        "legendgroup": plain(name),
        "x": list(points.sizes_bytes),
        "y": list(points.busbw_gbs),
        "cliponaxis": False,
        "error_y": {"type": "data", "symmetric": False, "array": up, "arrayminus": [0] * len(up), "width": 3,
                    "thickness": 1.5, "visible": any(up)},
        "marker": {"color": colour, "symbol": mark, "size": 9, "line": {"width": 1.5, "color": colour}},
        "customdata": [plain(each) for each in points.words],
        "hovertemplate": "<b>%{y:,.3f} GB/s</b><br>%{customdata}<extra>%{fullData.name}</extra>",
    }  # fmt: skip


def _line(line: view.BandwidthLine, name: str, colour: str, dash: str, *, group: str, legend: bool) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": plain(name),
        "legendgroup": plain(group),
        "showlegend": legend,
        "x": [None if isnan(each) else each for each in line.sizes_bytes],
        "y": [None if isnan(each) else each for each in line.busbw_gbs],
        "line": {"color": colour, "dash": dash, "width": 2},
        "hovertemplate": "%{y:,.3f} GB/s<extra>%{fullData.name}</extra>",
    }


def _points_table(
    series: tuple[view.MeasuredCurve, ...],
    benchmarks: tuple[tuple[str, view.BandwidthLine], ...],
    ceiling: tuple[float, str] | None,
) -> Component:
    rows = view.point_rows(series, benchmarks)
    notes = [f"Link speed {view.gbs(ceiling[0])} GB/s: {ceiling[1]}."] if ceiling else []
    if len(rows) > view.MAX_KINDS:
        notes.append(f"The first {view.MAX_KINDS} of {len(rows)} points.")
    head = ("operation", "size", "source", "busbw GB/s", "fastest tenth GB/s")
    return table(head, rows[: view.MAX_KINDS], caption="Bus bandwidth by size", note=" ".join(notes), hide_caption=True)


def _times(times: list[OpTime], what: str) -> list[Component]:
    if not times:
        return []
    shown = times[:MAX_ROWS]
    parts = [part for at, part in enumerate(PARTS) if at < 2 or any(each.unsplit_ns for each in shown)]
    rows = [
        SplitRow(
            name=view.op_name(each),
            parts_ns=(each.transfer_ns, each.wait_ns, each.unsplit_ns)[: len(parts)],
            cells=(f"{each.calls:,.1f}".removesuffix(".0"),),
        )
        for each in shown
    ]
    words = f"Total duration of calls per {what} and rank. Overlapped calls are included, so it is no part of a step."
    if len(times) > len(shown):
        words += f" The {len(shown)} longest of {len(times)}."
    bars = split_bar_table(rows, parts, caption="Transfer and wait time by operation and group", first="operation",
                           unit="ms", cells=(f"calls per {what}",))  # fmt: skip
    return [card("Transfer and wait time", bars, words=words)]


def _kinds(kinds: view.KindTable, rows: list[CollectiveRow]) -> Component:
    notes = [
        "Transfer is the median of all calls, exposed the sum per rank; ≤ and ≥ are bounds that include wait time."
    ]
    if kinds.left_out:
        notes.append(f"{kinds.left_out} shorter kinds are not shown: overlapscope analyze RUN --json has them.")
    inside: list[Component] = [
        table(kinds.head, kinds.rows, caption="Kinds of call", left=view.count_word_columns(kinds),
              note=" ".join(notes), hide_caption=True)
    ]  # fmt: skip
    if view.is_algorithm_unknown(rows):
        inside.append(
            next_command(
                "Algorithm and protocol are not known; an NCCL log contains them (NCCL_DEBUG=INFO, "
                "NCCL_DEBUG_SUBSYS=INIT,COLL,TUNING). Read it together with the trace",
                "overlapscope analyze TRACE LOG",
            )
        )
    return card("Kinds of call", inside)


def _record() -> Component:
    return next_command(
        "Record the training loop of every rank", "with overlapscope.profile(path, model=model) as scope:"
    )
