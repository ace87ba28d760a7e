"""Code to copy: the text, and a button that says when it is done (`assets/copy.js`)."""

from dash import html
from dash.development.base_component import Component

from overlapscope_dashboards.parts.aria import aria


def code(text: str, *, label: str) -> Component:
    """Give text to copy; `label` says what it is."""
    return html.Div(
        [
            html.Pre(html.Code(text), tabIndex=0, **aria(label=label)),
            html.Button("Copy", type="button", className="copy", **aria(label=f"Copy: {label}")),
            html.Span("", className="unseen", role="status"),
        ],
        className="code",
    )
