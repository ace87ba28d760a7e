"""Small pieces of text: ARIA attributes, what can be copied (`assets/copy.js`), and rows of links."""

from collections.abc import Sequence
from typing import Any, Literal
from urllib.parse import quote

from dash import dcc, html
from dash.development.base_component import Component


def aria(**states: str) -> dict[str, Any]:
    """Return ARIA attributes (`aria-label` ...) as keyword arguments: `html.Div(..., **aria(label="Figures"))`."""
    return {f"aria-{name}": value for name, value in states.items()}


def code(text: str, *, label: str) -> Component:
    """Return text with a copy button; `label` describes the text."""
    return html.Div(
        [
            html.Pre(html.Code(text), tabIndex=0, **aria(label=label)),
            html.Button("Copy", type="button", className="copy", **aria(label=f"Copy: {label}")),
            html.Span("", className="unseen", role="status"),
        ],
        className="code",
    )


def with_code(text: str) -> str | list[Component | str]:
    """Return text as children of a component: what stands in a pair of backticks is code."""
    parts = text.split("`")
    if len(parts) < 3 or len(parts) % 2 == 0:
        return text
    return [html.Code(each) if at % 2 else each for at, each in enumerate(parts)]


def copy_link() -> Component:
    """Return a button that copies the address of the page, which is its whole state."""
    return html.Button("Copy link", type="button", className="copy-link", **aria(live="polite"))


def evidence(words: str, address: str, description: str) -> Component:
    """Return a link from a sentence to the place that proves it; `description` says what is there."""
    unseen = html.Span(f": {description}", className="unseen")
    return dcc.Link([words, unseen, " ↗"], href=address, className="evidence", title=description)


def chips(label: str, links: Sequence[tuple[str, str, bool]]) -> Component:
    """Return a row of links to other states of a page, given as (text, address, whether it is the current state)."""
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


def documentation(kind: Literal["findings", "advice"], name: str, words: str = "what it means") -> Component:
    """Return a link to the page of a finding or of a recommendation; `name` is its id, of which the kind counts."""
    page = name.split(":", 1)[0]
    unseen = html.Span(f": {page}", className="unseen")
    return html.A([words, unseen], href=f"/docs/{kind}/{quote(page)}.html", className="documentation")
