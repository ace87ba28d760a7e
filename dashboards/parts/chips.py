"""Links to the same page in another state, in a row, with the present one marked."""

from collections.abc import Sequence

from dash import dcc, html
from dash.development.base_component import Component

from overlapscope_dashboards.parts.aria import aria


def chips(label: str, links: Sequence[tuple[str, str, bool]]) -> Component:
    """Give links as (words, address, whether it is the present state)."""
    return html.Nav(
        html.Ul(
            [
                html.Li(
                    dcc.Link(words, href=address, className="chip chosen" if chosen else "chip"),
                    **(aria(current="true") if chosen else {}),
                )
                for words, address, chosen in links
            ]
        ),
        className="chips",
        **aria(label=label),
    )
