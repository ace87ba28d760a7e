"""Bars drawn as HTML tables: one bar per row, bars split into parts, and one stacked bar whose segments add up.

They need no chart library, are sharp at any size, use the page's colours, and screen readers read them as tables.
"""

from collections.abc import Sequence

import msgspec
from dash import html
from dash.development.base_component import Component

from overlapscope.report.formatting import ms, percent
from overlapscope_dashboards.parts.quantities import time
from overlapscope_dashboards.parts.text import aria, evidence

LABELLED = 0.09
"""Share of the bar above which a segment contains its name."""
SEPARATED = 0.01
"""Share from which a hairline separates a segment from the one before it."""


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a whole, in nanoseconds; `kind` is its colour and pattern, a class of the style sheet."""

    name: str
    ns: float
    kind: str


class BarRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a table of bars."""

    name: str
    ns: float
    kind: str = "exposed"
    address: str = ""
    """Of the place that shows it best; empty without one."""
    shows: str = ""
    """What is there, if it is not the longest time of the row's name."""


def stacked_bar(segments: Sequence[Segment], whole_ns: float) -> Component:
    """Return the segments side by side, to scale. A table beside it must list them for screen readers: `bar_table`."""
    drawn = [
        html.Div(
            [html.Span(each.name), html.Span(f"{ms(each.ns)} ms")] if each.ns >= LABELLED * whole_ns else [],
            className=f"segment k-{each.kind}" + ("" if each.ns >= SEPARATED * whole_ns else " thin"),
            style={"width": width(each.ns, whole_ns)},
            title=f"{each.name}: {ms(each.ns)} ms",
        )
        for each in segments
        if each.ns > 0 and whole_ns
    ]
    return html.Div(drawn, className="stacked", **aria(hidden="true"))


def width(ns: float, whole_ns: float) -> str:
    """Return a length to scale, as CSS: to a thousandth of a pixel of a wide screen."""
    return f"{100 * ns / whole_ns if whole_ns else 0:.5f}%"


def bar_table(
    rows: Sequence[BarRow], *, caption: str, unit: str, whole_ns: float | None, share_of: str = "", first: str = "",
    stacked_ns: float | None = None,
) -> Component:  # fmt: skip
    """Return a table of bars: name, bar relative to the longest row, milliseconds (`unit`), and share of `whole_ns`.

    With `stacked_ns` it is the legend of a stacked bar of that length: bars have its scale and begin where they do in
    it.
    """
    longest = stacked_ns or max((each.ns for each in rows), default=0)
    begins_ns = 0.0
    head = [html.Th(first or "part", scope="col", className="word"), html.Td("", className="bar")]
    head.append(html.Th(unit, scope="col"))
    if whole_ns:
        head.append(html.Th(share_of or "share", scope="col"))
    linked = any(each.address for each in rows)
    if linked:
        head.append(html.Th("the longest", scope="col"))
    body = []
    for each in rows:
        style, swatch = {"width": width(each.ns, longest)}, []
        if stacked_ns:
            style["marginLeft"] = width(begins_ns, longest)
            begins_ns += each.ns
            swatch = [html.Span(className=f"swatch k-{each.kind}", **aria(hidden="true"))]
        cells = [
            html.Th([*swatch, each.name], scope="row", className="word"),
            html.Td(html.Div(className=f"bar k-{each.kind}", style=style), className="bar", **aria(hidden="true")),
            html.Td(time(each.ns, unit=False)),
        ]
        cells += [html.Td(percent(each.ns / whole_ns))] if whole_ns else []
        if linked:
            shown = (
                evidence("show", each.address, each.shows or f"the longest time of {each.name}") if each.address else ""
            )
            cells.append(html.Td(shown))
        body.append(html.Tr(cells))
    return html.Table(
        [html.Caption(caption, className="unseen"), html.Thead(html.Tr(head)), html.Tbody(body)], className="bars"
    )


class SplitPart(msgspec.Struct, frozen=True, kw_only=True):
    """Name of one part of every bar; `kind` is its colour and pattern, a class of the style sheet."""

    name: str
    kind: str


class SplitRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row: a value in nanoseconds for each part, and text cells before them."""

    name: str
    parts_ns: tuple[float, ...]
    cells: tuple[str, ...] = ()


def split_bar_table(
    rows: Sequence[SplitRow],
    parts: Sequence[SplitPart],
    *,
    caption: str,
    first: str,
    unit: str,
    cells: Sequence[str] = (),
) -> Component:
    """Return a table of split bars relative to the longest row; column heads show the colours instead of a legend."""
    longest = max((sum(each.parts_ns) for each in rows), default=0)
    head = [html.Th(first, scope="col", className="word"), html.Td("", className="bar")]
    head += [html.Th(each, scope="col") for each in cells]
    head += [
        html.Th([html.Span(className=f"swatch k-{each.kind}"), f"{each.name}, {unit}"], scope="col") for each in parts
    ]
    body = []
    for row in rows:
        bars = [
            html.Div(className=f"k-{part.kind}", style={"width": width(ns, longest)})
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
