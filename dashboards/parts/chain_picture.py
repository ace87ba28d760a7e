"""A blocking chain as a small picture to scale: a row for each stream or thread, numbered steps, arrows between rows.

It is drawn with boxes of the page, so that it has the page's colours in the light and the dark theme.
"""

from typing import Final

import msgspec
from dash import html
from dash.development.base_component import Component

from overlapscope_dashboards.parts.text import aria

ROW_PX: Final = 28
BAR_PX: Final = 14
LEAST_NUMBERED: Final = 0.06
LEAST_NAMED: Final = 0.5
"""Shares of the width from which a box contains its number, or its words."""


class ChainBox(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of time in a row; places are shares of the picture's width, 0 to 1."""

    row: int
    start: float
    end: float
    kind: str
    """Its colour, a class of the style sheet."""
    number: int
    """Of its step, as in the panel of the timeline; 0 for what is explained."""
    label: str
    """Written into it where it is wide enough."""
    words: str


class ChainArrow(msgspec.Struct, frozen=True, kw_only=True):
    """An effect on another row, at a place from 0 to 1."""

    at: float
    from_row: int
    to_row: int
    number: int
    words: str


class ChainPicture(msgspec.Struct, frozen=True, kw_only=True):
    """A chain, ready to be drawn."""

    rows: tuple[str, ...]
    boxes: tuple[ChainBox, ...]
    arrows: tuple[ChainArrow, ...]
    start_ns: float
    end_ns: float
    words: str
    """What it shows, in a sentence."""


def draw_chain(found: ChainPicture) -> Component:
    """Return the picture; its sentence stands beside it, and its steps are a list in the panel of the timeline."""
    marks: list[Component] = []
    for each in found.boxes:
        style = {"left": _percent(each.start), "width": _percent(each.end - each.start), "top": f"{_top(each.row)}px"}
        kind = "cp-explained" if not each.number else f"cp-box k-{each.kind}"
        wide = each.end - each.start >= (LEAST_NUMBERED if each.number else LEAST_NAMED)
        marks.append(html.Div(each.label if wide else "", className=kind, style=style, title=each.words))
    for arrow in found.arrows:
        upper, lower = sorted((arrow.from_row, arrow.to_row))
        style = {
            "left": _percent(arrow.at), "top": f"{_top(upper) + BAR_PX}px",
            "height": f"{(lower - upper) * ROW_PX - BAR_PX}px",
        }  # fmt: skip
        kind = "cp-arrow up" if arrow.to_row < arrow.from_row else "cp-arrow"
        marks.append(html.Div(className=kind, style=style, title=arrow.words))
    labels = [html.Div(each, className="cp-label", style={"height": f"{ROW_PX}px"}, title=each) for each in found.rows]
    height = {"height": f"{ROW_PX * len(found.rows)}px"}
    return html.Div(
        [html.Div(labels, className="cp-labels"), html.Div(marks, className="cp-rows", style=height)],
        className="chain-picture",
        **aria(hidden="true"),
    )


def _top(row: int) -> int:
    return row * ROW_PX + (ROW_PX - BAR_PX) // 2


def _percent(share: float) -> str:
    return f"{100 * share:.4f}%"
