"""The heat map as raster cells that the page draws itself, its colours, and numbers in plotly's format."""

from base64 import b64encode
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from overlapscope.analysis.per_rank.occupancy import STATES
from overlapscope.timeline.columns import Ints
from overlapscope_dashboards.theme import COLOURS, faded
from overlapscope_dashboards.timeline.heat_map import DOMINATING, FULL, Cells, map_row_pixels

Rgba = tuple[int, int, int, int]
"""Red, green, blue and opacity, 0 to 255."""
_NOTHING: Final = (0, 0, 0, 0)
_IDLE_SEEN: Final = 0.16
"""Opacity of the idle colour."""
_IDLE: Final = faded("idle", _IDLE_SEEN)
STATE_COLOURS: Final = (
    "rgba(0,0,0,0)", _IDLE, COLOURS["compute"], COLOURS["hidden"], COLOURS["exposed"], COLOURS["copy"]
)  # fmt: skip
"""Colours of `STATES` as CSS text for plotly."""


class Raster(msgspec.Struct, frozen=True, kw_only=True):
    """Cells that the page draws under the figure itself, because plotly would take longer than for everything else."""

    part: str
    """The part of the figure: "map" or "lanes"."""
    axis: str
    """The plotly axis of the rows; the first row is on top."""
    first_ms: float
    width_ms: float
    """Start of the first bin and width of each bin, on the axis."""
    rows: int
    bins: int
    gap: int
    """Pixels between rows."""
    colours: list[Rgba]
    """Indexed by cell value."""
    cells: bytes
    """One byte per cell, row by row."""


def map_raster(cells: Cells, mode: str, bins: Ints) -> Raster:
    """Return the cells of a heat map with their colours."""
    return Raster(
        part="map", axis="yaxis", first_ms=axis_ms(int(bins[0])), width_ms=axis_ms(int(bins[1] - bins[0])),
        rows=len(cells), bins=bins.size - 1, gap=1 if map_row_pixels(len(cells)) > 6 else 0,
        colours=state_rgba() if mode == DOMINATING else fading_rgba(mode), cells=cells.tobytes(),
    )  # fmt: skip


def state_rgba() -> list[Rgba]:
    """Return the colours of `STATES`, for the raster."""
    seen = {"idle": _IDLE_SEEN}
    return [_NOTHING if each == "unrecorded" else _seen(each, seen.get(each, 1.0)) for each in STATES]


def fading_rgba(state: str) -> list[Rgba]:
    """Return colours from the background to the state's colour; value 0, not recorded, is transparent."""
    shares = np.linspace(0.2, 1.0, FULL - 1).tolist()
    return [_NOTHING, _seen(state, 0.07), *(_seen(state, share) for share in shares)]


def _seen(state: str, share: float) -> Rgba:
    red, green, blue = (int(COLOURS[state][at : at + 2], 16) for at in (1, 3, 5))
    return red, green, blue, round(255 * share)


def plotly_array(values: npt.NDArray[Any]) -> dict[str, str]:
    """Return an array in plotly's binary format (base64 of little-endian values), which needs no parsing."""
    encoded = {
        "dtype": {"uint8": "u1", "float64": "f8"}[str(values.dtype)],
        "bdata": b64encode(values.tobytes()).decode(),
    }
    return encoded | ({"shape": ", ".join(map(str, values.shape))} if values.ndim > 1 else {})


def axis_ms(ns: float) -> float:
    """Return a time in milliseconds, the unit of the axis."""
    return float(ns) / 1e6
