"""Stacked charts that share one horizontal axis."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from overlapscope_dashboards.theme import figure

GAP_PX: Final = 44
"""Gap between panels, which contains the title of the lower one."""
TOP_PX: Final = 30
BOTTOM_PX: Final = 44


def height(panels: int, each_px: int) -> int:
    """Return the height in pixels of a number of panels, for `figure_card`."""
    return TOP_PX + BOTTOM_PX + panels * each_px + (panels - 1) * GAP_PX


def panels(
    rows: Sequence[tuple[str, Sequence[Mapping[str, Any]]]],
    *,
    x: str,
    each_px: int,
    xaxis: Mapping[str, Any] | None = None,
    layout: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a figure with one panel for each row (title, traces), the first on top."""
    inner = height(len(rows), each_px) - TOP_PX - BOTTOM_PX
    traces: list[dict[str, Any]] = []
    axes: dict[str, Any] = {}
    titles = []
    for at, (title, own) in enumerate(rows):
        top = 1 - at * (each_px + GAP_PX) / inner
        name = "" if at == 0 else str(at + 1)
        axes[f"yaxis{name}"] = {"domain": [max(top - each_px / inner, 0), top], "nticks": 5}
        traces += [{**each, "yaxis": f"y{name}"} for each in own]
        titles.append({"text": title, "x": 0, "xref": "paper", "xanchor": "left", "y": top, "yref": "paper",
                       "yanchor": "bottom", "yshift": 3, "showarrow": False, "font": {"size": 12}})  # fmt: skip
    own_layout = dict(layout or {})
    annotations = [*titles, *own_layout.pop("annotations", [])]
    last = "y" if len(rows) == 1 else f"y{len(rows)}"
    return figure(
        traces,
        x=x,
        layout={
            **axes,
            "xaxis": {"anchor": last, **(xaxis or {})},
            "annotations": annotations,
            "margin": {"l": 8, "r": 8, "t": TOP_PX, "b": BOTTOM_PX},
            **own_layout,
        },
    )
