"""Cards: a heading with content; a chart with its description and table; a message where there is nothing to show."""

from collections.abc import Sequence
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from overlapscope_dashboards.parts.quantities import Figure, time, with_times
from overlapscope_dashboards.parts.text import aria, with_code
from overlapscope_dashboards.theme import CONFIG

Children = Component | Sequence[Component]


def card(title: str, children: Children, *, words: str = "", wide: str = "") -> Component:
    """Return a section with a heading; `wide` is `half`, `third`, `twothirds`, or empty for the whole width."""
    inside = [children] if isinstance(children, Component) else list(children)
    description = [html.P(words, className="words")] if words else []
    return html.Section([html.H2(title), *description, *inside], className=f"card {wide}".strip())


def figure_card(
    title: str,
    figure: dict[str, Any],
    twin: Component,
    *,
    words: str,
    id: str,
    height: int = 280,
    wide: str = "",
    controls: Sequence[Component] = (),
    after: Sequence[Component] = (),
) -> Component:
    """Return a card with a heading, a one-sentence description, a chart, and the same figures as a table.

    `twin` is that table (`parts.table`). The height is fixed from the start, so that the layout does not shift.
    `controls` are placed between description and chart, `after` below both.
    """
    config: Any = CONFIG
    graph = dcc.Graph(id=id, figure=figure, config=config, style={"height": f"{height}px"}, responsive=True)
    drawn = html.Div(graph, role="img", className="chart", style={"height": f"{height}px"},
                     **aria(label=f"{title}. {words}"))  # fmt: skip
    as_table = html.Details([html.Summary("Show as table"), twin])
    return card(title, [*controls, drawn, as_table, *after], words=words, wide=wide)


def key_figures(figures: Sequence[Figure]) -> Component:
    """Return a row of figures; times have three significant digits, and are exact on hover."""
    return html.Dl(
        [
            html.Div(
                [
                    html.Dt(name),
                    html.Dd(
                        html.Span(value, className="value")
                        if isinstance(value, str)
                        else [time(value.ns, unit=False, kind="value"), html.Span(" ms", className="unit")]
                    ),
                    html.Dd(with_times(below), className="below"),
                ]
            )
            for name, value, below in figures
        ],
        className="key-figures",
    )


def notes(lines: Sequence[str | list[Any]], *, warning: bool = False) -> Component:
    """Return a list of short remarks, each text or children; `commands` in text are shown as code."""
    items = [html.Li(with_code(each) if isinstance(each, str) else each) for each in lines]
    return html.Ul(items, className="notes warning" if warning else "notes")


def empty(words: str, then: Children = ()) -> Component:
    """Return a message why there is nothing to show, and what to do about it."""
    more = [then] if isinstance(then, Component) else list(then)
    return html.Div([html.P(words), *more], className="empty")


def next_command(words: str, command: str) -> Component:
    """Return a command to type."""
    return html.P([html.Span(f"{words}: "), html.Code(command)], className="command")
