"""Scaling as text."""

from overlapscope.analysis.scaling import Scaling
from overlapscope.report.scaling_sheet import sheet_of_scaling
from overlapscope.report.sheet import text_of


def render(found: Scaling) -> str:
    """Give the text, ending in a newline."""
    return text_of(sheet_of_scaling(found))
