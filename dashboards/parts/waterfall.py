"""A waterfall chart as a table: from one total to another, each part starting where the previous one ended."""

from typing import Final

import msgspec
from dash import html
from dash.development.base_component import Component

from overlapscope.report.formatting import ms, signed_ms
from overlapscope_dashboards.parts.text import aria

ZERO_AXIS_SHARE: Final = 0.6
"""The axis starts at 0 if the lowest bar edge is below this share of the highest, else slightly below the lowest."""


class WaterfallRow(msgspec.Struct, frozen=True, kw_only=True):
    """One part: its time in both runs, and start and end of its bar, in nanoseconds."""

    name: str
    base_ns: int
    candidate_ns: int
    from_ns: int
    to_ns: int
    kind: str = ""
    """Its colour in a related bar, a class of the style sheet; empty for no colour."""


class Waterfall(msgspec.Struct, frozen=True, kw_only=True):
    """The parts that lead from `base_ns` to `candidate_ns`."""

    title: str
    base_ns: int
    candidate_ns: int
    rows: tuple[WaterfallRow, ...]


def waterfall(drawn: Waterfall, *, unit: str) -> Component:
    """Return the table; `unit` is the unit of the figures, as `ms per step`."""
    edges = [drawn.base_ns, drawn.candidate_ns, *(each.to_ns for each in drawn.rows)]
    low, high = min(edges), max(edges)
    foot = 0 if low < ZERO_AXIS_SHARE * high else max(0, low - max((high - low) // 4, high // 100))
    span = max(high - foot, 1)

    def bar(start_ns: int, end_ns: int, kind: str) -> Component:
        left, right = sorted(((start_ns - foot) / span * 100, (end_ns - foot) / span * 100))
        style = {"marginLeft": f"{left:.2f}%", "width": f"{right - left:.2f}%"}
        return html.Td(html.Div(className=f"bar {kind}", style=style), className="bar", **aria(hidden="true"))

    rows = [_total("base", bar(foot, drawn.base_ns, "k-total"), drawn.base_ns, first=True)]
    for each in drawn.rows:
        moved = each.candidate_ns - each.base_ns
        kind = "k-more" if moved > 0 else "k-less"
        rows.append(
            html.Tr(
                [
                    html.Th([*_swatch(each.kind), each.name], scope="row", className="word"),
                    bar(each.from_ns, each.to_ns, kind),
                    html.Td(ms(each.base_ns)),
                    html.Td(ms(each.candidate_ns)),
                    html.Td(signed_ms(moved), className="moved"),
                ]
            )
        )
    rows.append(_total("candidate", bar(foot, drawn.candidate_ns, "k-total"), drawn.candidate_ns,
                       first=False, moved_ns=drawn.candidate_ns - drawn.base_ns))  # fmt: skip
    heads = [html.Th(unit, scope="col", className="word"), html.Td("", className="bar")]
    heads += [html.Th(each, scope="col") for each in ("base", "candidate", "difference")]
    drawing = html.Table(
        [html.Caption(drawn.title, className="unseen"), html.Thead(html.Tr(heads)), html.Tbody(rows)],
        className="bars waterfall",
    )
    note = [html.P(f"The bars start at {ms(foot)} ms.", className="note")] if foot else []
    return html.Div([html.Div(drawing, className="wide", role="region", tabIndex=0, **aria(label=drawn.title)), *note])


def _swatch(kind: str) -> list[Component]:
    return [html.Span(className=f"swatch k-{kind}", **aria(hidden="true"))] if kind else []


def _total(name: str, bar: Component, ns: int, *, first: bool, moved_ns: int | None = None) -> Component:
    cells = [html.Td(ms(ns)), html.Td("")] if first else [html.Td(""), html.Td(ms(ns))]
    moved = html.Td("" if moved_ns is None else signed_ms(moved_ns), className="moved")
    return html.Tr([html.Th(name, scope="row", className="word"), bar, *cells, moved], className="total")
