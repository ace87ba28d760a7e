"""The colours of states: as plotly takes them, and as the page draws cells by itself."""

from typing import Final

import numpy as np

from overlapscope.analysis.occupancy import STATES
from overlapscope_dashboards.theme import COLOURS
from overlapscope_dashboards.timeline.heat import FULL

Seen = tuple[int, int, int, int]
"""Red, green, blue and how much of it is seen, 0 to 255."""
_NOTHING: Final = (0, 0, 0, 0)
_IDLE_SEEN: Final = 0.16
"""How much of its colour is seen where a rank is idle."""
_IDLE: Final = f"rgba(134,142,150,{_IDLE_SEEN})"
STATE_COLOURS: Final = (
    "rgba(0,0,0,0)", _IDLE, COLOURS["compute"], COLOURS["hidden"], COLOURS["exposed"], COLOURS["copy"]
)  # fmt: skip
"""Those of `STATES`, as plotly takes them."""


def state_colours() -> list[Seen]:
    """Give the colours of `STATES`."""
    seen = {"idle": _IDLE_SEEN}
    return [_NOTHING if each == "unrecorded" else _seen(each, seen.get(each, 1.0)) for each in STATES]


def fading(state: str) -> list[Seen]:
    """Give colours from the paper to the state's; 0, not recorded, has none."""
    shares = np.linspace(0.2, 1.0, FULL - 1).tolist()
    return [_NOTHING, _seen(state, 0.07), *(_seen(state, share) for share in shares)]


def _seen(state: str, share: float) -> Seen:
    red, green, blue = (int(COLOURS[state][at : at + 2], 16) for at in (1, 3, 5))
    return red, green, blue, round(255 * share)
