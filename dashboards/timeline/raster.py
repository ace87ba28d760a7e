"""The heat map above the lanes, as cells that the page draws by itself."""

from base64 import b64encode
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from overlapscope.analysis.occupancy import STATES
from overlapscope.timeline.columns import Ints
from overlapscope_dashboards.theme import COLOURS
from overlapscope_dashboards.timeline.heat_map import DOMINATING, FULL, Cells, map_row_pixels

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


class Raster(msgspec.Struct, frozen=True, kw_only=True):
    """Cells that the page draws under the figure by itself: plotly would take longer than for all the rest."""

    part: str
    """What it shows: "map" or "lanes"."""
    axis: str
    """The axis whose rows they are; the first is on top."""
    first_ms: float
    width_ms: float
    """Where the first bin begins, and how long each is."""
    rows: int
    bins: int
    gap: int
    """Pixels between rows."""
    colours: list[Seen]
    """By the value of a cell."""
    cells: bytes
    """A byte each, row after row."""


def map_raster(cells: Cells, mode: str, bins: Ints) -> Raster:
    """Return the cells of a heat map with their colours."""
    return Raster(
        part="map", axis="yaxis", first_ms=axis_ms(int(bins[0])), width_ms=axis_ms(int(bins[1] - bins[0])),
        rows=len(cells), bins=bins.size - 1, gap=1 if map_row_pixels(len(cells)) > 6 else 0,
        colours=state_colours() if mode == DOMINATING else fading(mode), cells=cells.tobytes(),
    )  # fmt: skip


def state_colours() -> list[Seen]:
    """Return the colours of `STATES`."""
    seen = {"idle": _IDLE_SEEN}
    return [_NOTHING if each == "unrecorded" else _seen(each, seen.get(each, 1.0)) for each in STATES]


def fading(state: str) -> list[Seen]:
    """Return colours from the paper to the state's; 0, not recorded, has none."""
    shares = np.linspace(0.2, 1.0, FULL - 1).tolist()
    return [_NOTHING, _seen(state, 0.07), *(_seen(state, share) for share in shares)]


def _seen(state: str, share: float) -> Seen:
    red, green, blue = (int(COLOURS[state][at : at + 2], 16) for at in (1, 3, 5))
    return red, green, blue, round(255 * share)


def typed(values: npt.NDArray[Any]) -> dict[str, str]:
    """Return numbers as plotly reads them without parsing any: their bytes, little-endian."""
    told = {"dtype": {"uint8": "u1", "float64": "f8"}[str(values.dtype)], "bdata": b64encode(values.tobytes()).decode()}
    return told | ({"shape": ", ".join(map(str, values.shape))} if values.ndim > 1 else {})


def axis_ms(ns: float) -> float:
    """Return a time on the axis, which is in milliseconds."""
    return float(ns) / 1e6
