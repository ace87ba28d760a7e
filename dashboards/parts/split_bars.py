"""Bars of several parts that are a table: a name, the parts one after another, and each of them in milliseconds."""

from collections.abc import Sequence

import msgspec
from dash import html
from dash.development.base_component import Component

from overlapscope.report.amounts import ms
from overlapscope_dashboards.parts.aria import aria


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one part of every bar is; `kind` is its colour and pattern, a class of the style sheet."""

    name: str
    kind: str


class SplitRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row: a value in nanoseconds for each part, and cells that stand before them."""

    name: str
    parts_ns: tuple[float, ...]
    cells: tuple[str, ...] = ()


def split_bar_table(
    rows: Sequence[SplitRow], parts: Sequence[Part], *, caption: str, first: str, unit: str, cells: Sequence[str] = ()
) -> Component:
    """Give a table of bars against the longest row; heads of parts show their colour, so that no legend is needed."""
    longest = max((sum(each.parts_ns) for each in rows), default=0)
    head = [html.Th(first, scope="col", className="word"), html.Td("", className="bar")]
    head += [html.Th(each, scope="col") for each in cells]
    head += [
        html.Th([html.Span(className=f"swatch k-{each.kind}"), f"{each.name}, {unit}"], scope="col") for each in parts
    ]
    body = []
    for row in rows:
        bars = [
            html.Div(className=f"k-{part.kind}", style={"width": f"{100 * ns / longest:.2f}%"})
            for part, ns in zip(parts, row.parts_ns, strict=True)
            if ns > 0 and longest
        ]
        drawn = html.Td(html.Div(bars, className="split"), className="bar", **aria(hidden="true"))
        figures = [html.Td(each) for each in (*row.cells, *(ms(ns) for ns in row.parts_ns))]
        body.append(html.Tr([html.Th(row.name, scope="row", className="word"), drawn, *figures]))
    inner = html.Table(
        [html.Caption(caption, className="unseen"), html.Thead(html.Tr(head)), html.Tbody(body)], className="bars"
    )
    return html.Div(inner, className="wide", role="region", tabIndex=0, **aria(label=caption))
