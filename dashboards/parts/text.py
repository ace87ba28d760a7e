"""What elements say to assistive technology."""

from collections.abc import Sequence
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component


def aria(**states: str) -> dict[str, Any]:
    """Return `aria-label="..."` and its like as keyword arguments: `html.Div(..., **aria(label="Figures"))`."""
    return {f"aria-{name}": value for name, value in states.items()}


def code(text: str, *, label: str) -> Component:
    """Return text to copy; `label` says what it is."""
    return html.Div(
        [
            html.Pre(html.Code(text), tabIndex=0, **aria(label=label)),
            html.Button("Copy", type="button", className="copy", **aria(label=f"Copy: {label}")),
            html.Span("", className="unseen", role="status"),
        ],
        className="code",
    )


def chips(label: str, links: Sequence[tuple[str, str, bool]]) -> Component:
    """Return links as (words, address, whether it is the present state)."""
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
