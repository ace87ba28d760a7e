"""The components that pages are built from."""

from overlapscope_dashboards.parts.bars import BarRow, Segment, bar_table, stacked_bar
from overlapscope_dashboards.parts.cards import card, empty, figure_card, key_figures, next_command, notes
from overlapscope_dashboards.parts.tables import table
from overlapscope_dashboards.parts.waterfall import Waterfall, WaterfallRow, waterfall

__all__ = [
    "BarRow",
    "Segment",
    "Waterfall",
    "WaterfallRow",
    "bar_table",
    "card",
    "empty",
    "figure_card",
    "key_figures",
    "next_command",
    "notes",
    "stacked_bar",
    "table",
    "waterfall",
]  # fmt: skip
