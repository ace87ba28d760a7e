"""How anything looks: the parts that pages are put together from."""

from overlapscope_dashboards.parts.bars import BarRow, Segment, bar_table, stacked_bar
from overlapscope_dashboards.parts.cards import card, empty, figure_card, key_figures, next_command, notes
from overlapscope_dashboards.parts.tables import table
from overlapscope_dashboards.parts.waterfall import Fall, Waterfall, waterfall

__all__ = [
    "BarRow", "Fall", "Segment", "Waterfall", "bar_table", "card", "empty", "figure_card", "key_figures",
    "next_command", "notes", "stacked_bar", "table", "waterfall",
]  # fmt: skip
