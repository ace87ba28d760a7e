"""Tables: a caption, column heads with scope and unit, text left-aligned, figures right-aligned."""

from collections.abc import Sequence
from typing import Final

from dash import html
from dash.development.base_component import Component

from overlapscope.report.verdicts import tone_of
from overlapscope_dashboards.parts.text import aria

Cell = str | Component
VERDICT: Final = "verdict"
"""Head of the column whose cells have the colour of their verdict; elsewhere a run may be named `regressed`."""


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    caption: str,
    left: int = 1,
    note: str = "",
    hide_caption: bool = False,
) -> Component:
    """Return a table whose first `left` columns are text and whose first column names the row.

    A wide table scrolls on its own, also with the keyboard. `hide_caption` shows the caption only to screen readers,
    for tables directly below a heading that says the same.
    """
    heads = [html.Th(cell, scope="col", className="word" if at < left else "") for at, cell in enumerate(head)]
    body = [
        html.Tr([_cell(cell, at, left, has_tone=at < len(head) and head[at] == VERDICT) for at, cell in enumerate(row)])
        for row in rows
    ]
    inner = html.Table(
        [
            html.Caption(caption, className="unseen" if hide_caption else ""),
            html.Thead(html.Tr(heads)),
            html.Tbody(body),
        ]
    )
    region = html.Div(inner, className="wide", role="region", tabIndex=0, **aria(label=caption))
    return html.Div([region, html.P(note, className="note")]) if note else region


def _cell(cell: Cell, at: int, left: int, *, has_tone: bool) -> Component:
    tone = tone_of(cell) if has_tone and isinstance(cell, str) else ""
    kind = f"{'word' if at < left else ''} {tone}".rstrip()
    return html.Th(cell, scope="row", className=kind) if at == 0 else html.Td(cell, className=kind)
