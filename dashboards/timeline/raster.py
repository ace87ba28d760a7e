"""The heat map above the lanes, as cells that the page draws by itself."""

import msgspec

from overlapscope.timeline.columns import Ints
from overlapscope_dashboards.timeline.heat import DOMINATING, Cells, map_row_pixels
from overlapscope_dashboards.timeline.plotted import axis_ms
from overlapscope_dashboards.timeline.state_colours import Seen, fading, state_colours


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
    """Give the cells of a heat map with their colours."""
    return Raster(
        part="map", axis="yaxis", first_ms=axis_ms(int(bins[0])), width_ms=axis_ms(int(bins[1] - bins[0])),
        rows=len(cells), bins=bins.size - 1, gap=1 if map_row_pixels(len(cells)) > 6 else 0,
        colours=state_colours() if mode == DOMINATING else fading(mode), cells=cells.tobytes(),
    )  # fmt: skip
