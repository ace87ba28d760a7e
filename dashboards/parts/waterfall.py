"""A waterfall chart as a table: from one total to another, each part starting where the previous one ended.

All bars are on one scale that begins at 0.
"""

import msgspec
from dash import dcc, html
from dash.development.base_component import Component

from overlapscope.report.formatting import ms, signed_ms
from overlapscope_dashboards.parts.text import aria


class WaterfallRow(msgspec.Struct, frozen=True, kw_only=True):
    """One part: its time in both runs, and start and end of its bar, in nanoseconds."""

    name: str
    base_ns: int
    candidate_ns: int
    from_ns: int
    to_ns: int
    kind: str = ""
    """Its colour in a related bar, a class of the style sheet; empty for no colour."""
    address: str = ""
    """Of the place that shows it; empty without one."""


class Waterfall(msgspec.Struct, frozen=True, kw_only=True):
    """The parts that lead from `base_ns` to `candidate_ns`."""

    title: str
    base_ns: int
    candidate_ns: int
    rows: tuple[WaterfallRow, ...]


def waterfall(drawn: Waterfall, *, unit: str) -> Component:
    """Return the table; `unit` is the unit of the figures, as `ms per step`."""
    edges = [0, drawn.base_ns, drawn.candidate_ns, *(each.to_ns for each in drawn.rows)]
    low, span = min(edges), max(max(edges) - min(edges), 1)

    def bar(start_ns: int, end_ns: int, kind: str) -> Component:
        left, right = sorted((100 * (start_ns - low) / span, 100 * (end_ns - low) / span))
        style = {"marginLeft": f"{left:.4f}%", "width": f"{right - left:.4f}%"}
        return html.Td(html.Div(className=f"bar {kind}", style=style), className="bar", **aria(hidden="true"))

    rows = [_total("base", bar(0, drawn.base_ns, "k-total"), drawn.base_ns, first=True)]
    for each in drawn.rows:
        moved = each.candidate_ns - each.base_ns
        kind = "k-more" if moved > 0 else "k-less"
        rows.append(
            html.Tr(
                [
                    html.Th([*_swatch(each.kind), _name(each)], scope="row", className="word"),
                    bar(each.from_ns, each.to_ns, kind),
                    html.Td(ms(each.base_ns)),
                    html.Td(ms(each.candidate_ns)),
                    html.Td(signed_ms(moved), className="moved"),
                ]
            )
        )
    rows.append(_total("candidate", bar(0, drawn.candidate_ns, "k-total"), drawn.candidate_ns,
                       first=False, moved_ns=drawn.candidate_ns - drawn.base_ns))  # fmt: skip
    heads = [html.Th(unit, scope="col", className="word"), html.Td("", className="bar")]
    heads += [html.Th(each, scope="col") for each in ("base", "candidate", "difference")]
    drawing = html.Table(
        [html.Caption(drawn.title, className="unseen"), html.Thead(html.Tr(heads)), html.Tbody(rows)],
        className="bars waterfall",
    )
    return html.Div(drawing, className="wide", role="region", tabIndex=0, **aria(label=drawn.title))


def _name(row: WaterfallRow) -> Component | str:
    return dcc.Link(row.name, href=row.address, title="The longest one, on the timeline") if row.address else row.name


def _swatch(kind: str) -> list[Component]:
    return [html.Span(className=f"swatch k-{kind}", **aria(hidden="true"))] if kind else []


def _total(name: str, bar: Component, ns: int, *, first: bool, moved_ns: int | None = None) -> Component:
    cells = [html.Td(ms(ns)), html.Td("")] if first else [html.Td(""), html.Td(ms(ns))]
    moved = html.Td("" if moved_ns is None else signed_ms(moved_ns), className="moved")
    return html.Tr([html.Th(name, scope="row", className="word"), bar, *cells, moved], className="total")
