"""Colour and pattern of a kind of time, for what is drawn without the style sheet of the dashboard."""

from typing import Final

from overlapscope.analysis.common.cause_table import CAUSES, IDLE_CAUSES
from overlapscope_dashboards.theme import COLOURS

_MARK: Final = "rgba(255,255,255,.42)"
_STRIPES: Final = "repeating-linear-gradient({}, transparent 0 5px, {} 5px 7px) "
_CSS: Final = {
    "": "",
    "/": _STRIPES.format("45deg", _MARK),
    "\\": _STRIPES.format("135deg", _MARK),
    "|": _STRIPES.format("90deg", _MARK),
    "-": _STRIPES.format("0deg", _MARK),
    ".": f"radial-gradient({_MARK} 1.4px, transparent 1.6px) 0 0 / 7px 7px ",
}
"""CSS of a pattern, by plotly's name."""
_TOTAL: Final = {"total": "compute", "more": "exposed", "less": "hidden"}


def looks(kind: str) -> tuple[str, str]:
    """Return colour and pattern (as plotly names it) of a segment's `kind`; that of idle time for an unknown one."""
    cause = IDLE_CAUSES.get(kind.removeprefix("idle-")) if kind.startswith("idle-") else CAUSES.get(kind)
    if cause is not None:
        return COLOURS[cause.colour], cause.pattern
    return COLOURS.get(_TOTAL.get(kind, kind), COLOURS["idle"]), ""


def background(kind: str) -> str:
    """Return the same as a value of the CSS property `background`."""
    colour, pattern = looks(kind)
    return f"{_CSS[pattern]}{colour}"
