"""Colours and figures: one palette for the light and the dark theme, one plotly template, one plotly configuration.

Figures need no second set of colours (`report/palette.py`): the style sheet alone makes text and lines of a chart dark
or light. For that, text in figures must have no colour of its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from overlapscope.analysis.common.cause_table import CAUSES, IDLE_CAUSES, Cause
from overlapscope.report.formatting import inert, one_row
from overlapscope.report.palette import PALETTE, SEQUENCE
from overlapscope.report.verdicts import TONES

COLOURS: Final[Mapping[str, str]] = {name: each.rgb for name, each in PALETTE.items()}
"""Colour by meaning; the style sheet calls them `--c-NAME`."""


def faded(name: str, opacity: float) -> str:
    """Return a colour by meaning with an opacity of 0 to 1."""
    return f"rgba({','.join(str(int(COLOURS[name][at : at + 2], 16)) for at in (1, 3, 5))},{opacity:g})"


HEAT_SCALE: Final = ((0.0, faded("exposed", 0.04)), (1.0, faded("exposed", 1)))
"""Colour scale of heat maps, from the background (light or dark) to `exposed`."""
GRID: Final = faded("idle", 0.22)
FONT: Final = {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 12}
CONFIG: Final[Mapping[str, Any]] = {
    "displaylogo": False,
    "showSendToCloud": False,  # plotly 7 offers to upload a chart: traces are private
    "plotlyServerURL": "",
    "displayModeBar": False,
    "scrollZoom": False,
    "doubleClick": "reset",
}
_STRIPES: Final = "repeating-linear-gradient({}, transparent 0 5px, var(--mark) 5px 7px) "
_PATTERNS: Final = {
    "": "",
    "/": _STRIPES.format("45deg"),
    "\\": _STRIPES.format("135deg"),
    "|": _STRIPES.format("90deg"),
    "-": _STRIPES.format("0deg"),
    "x": f"{_STRIPES.format('45deg').strip()}, {_STRIPES.format('135deg')}",
    ".": "radial-gradient(var(--mark) 1.4px, transparent 1.6px) 0 0 / 7px 7px ",
}
"""CSS patterns of causes, by plotly's pattern name."""
_AXIS: Final = {
    "gridcolor": GRID, "zeroline": False, "linecolor": GRID, "ticks": "", "automargin": True, "fixedrange": True,
    "title": {"standoff": 12, "font": {"size": 12}},
}  # fmt: skip
_TEMPLATE: Final[Mapping[str, Any]] = {
    "layout": {
        "font": FONT,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "colorway": [COLOURS[each] for each in SEQUENCE],
        "xaxis": {**_AXIS, "showgrid": False},
        "yaxis": {**_AXIS, "rangemode": "tozero"},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "itemclick": "toggle"},
        "hoverlabel": {"font": FONT, "align": "left", "namelength": -1},
        "hovermode": "closest",
        "bargap": 0.35,
        "dragmode": False,
        "separators": ".,",
    }
}


def figure(
    traces: Sequence[Mapping[str, Any]], *, x: str = "", y: str = "", layout: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a figure as a dict; `x` and `y` are axis titles with units, `layout` overrides the template."""
    own: dict[str, Any] = {"template": _TEMPLATE, **(layout or {})}
    for name, title in (("xaxis", x), ("yaxis", y)):
        if title:
            own[name] = {"title": {"text": title, "standoff": 12, "font": {"size": 12}}, **own.get(name, {})}
    return {"data": [dict(each) for each in traces], "layout": own}


def palette_rules() -> str:
    """Return the CSS of all colours, of each cause of exposed communication (class `k-CAUSE`) and of idle time
    (`k-idle-CAUSE`)."""
    palette = "".join(f"--c-{name}: {colour}; " for name, colour in COLOURS.items())
    palette += "".join(f"--{name}: light-dark({light}, {dark}); " for name, (light, dark) in TONES.items())
    return "\n".join([f":root {{ {palette}}}", *_rules("k-", CAUSES), *_rules("k-idle-", IDLE_CAUSES)])


def _rules(prefix: str, causes: Mapping[str, Cause]) -> list[str]:
    return [
        f".{prefix}{name} {{ background: {_PATTERNS[cause.pattern]}var(--c-{cause.colour}); }}"
        for name, cause in causes.items()
    ]


def plain(text: str) -> str:
    """Return a name from a trace escaped for a figure, because plotly interprets tags and entities."""
    shown = one_row(inert(text))
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
