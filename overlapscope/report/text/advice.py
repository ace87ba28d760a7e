"""Render recommendations as text: what to change, the gain, how to apply and verify it, and the page to read."""

from collections.abc import Sequence
from typing import Final

from overlapscope.analysis.result import Recommendation
from overlapscope.report.formatting import EXPLAIN, ms, one_row
from overlapscope.report.text.throughput import cost_text

MAX_WIDTH: Final = 120


def render(recommendations: Sequence[Recommendation], reasons: Sequence[str]) -> str:
    """Return the whole text, ending in a newline."""
    parts = [_one(number, each) for number, each in enumerate(recommendations, 1)] or ["Nothing to recommend."]
    parts += ["\n".join(f"- {each}" for each in reasons)] if reasons else []
    return "\n\n".join(parts) + "\n"


def _one(number: int, each: Recommendation) -> str:
    lines = [f"{number}. {one_row(each.title)} [{each.id}]"]
    cost = cost_text(each.gpu_hours_a_day, each.price_a_day)
    cost = cost and f", {cost}"
    if each.predicted_gain_ns is not None:
        low, high = ms(each.gain_low_ns or 0), ms(each.gain_high_ns or 0)
        lines.append(f"   {gain(each)} ({low} to {high}, 90 %){cost}, {each.confidence}")
    elif each.gain_high_ns is not None:
        lines.append(f"   {gain(each)}{cost}, {each.confidence}")
    for name, reasons in (("measured", each.measured), ("assumed", each.assumed)):
        lines += [f"   {name + ':':11}{'; '.join(reasons)}"] if reasons else []
    for name, text in each.apply.items():
        lines += [
            f"   {name + ':':11}{line}" if at == 0 else f"   {'':11}{line}" for at, line in enumerate(text.split("\n"))
        ]
    return "\n".join([*lines, f"   verify:    {each.verify}", f"   more:      {EXPLAIN} {each.id}"])


def render_brief(recommendations: Sequence[Recommendation], most: int = 3) -> str:
    """Return the first `most` recommendations, one line each with the gain; empty without any."""
    if not recommendations:
        return ""
    lines = []
    for number, each in enumerate(recommendations[:most], 1):
        title, saved = f"{number}. {one_row(each.title)}", gain_with_cost(each)
        apart = " " if len(title) + len(saved) + len(" ()") <= MAX_WIDTH else "\n   "
        lines.append(f"{title}{apart}({saved})" if saved else title)
    left = len(recommendations) - most
    where = f"How: {EXPLAIN} {' '.join(sorted({each.id for each in recommendations[:most]}))}"
    return "\n".join(["What to change:", *lines, *([f"{left} more"] if left > 0 else []), where])


def gain(each: Recommendation) -> str:
    """Return the predicted gain, or its upper bound, as text; empty where neither is known."""
    if each.predicted_gain_ns is not None:
        return f"saves {ms(each.predicted_gain_ns)} ms a {each.per}"
    return "" if each.gain_high_ns is None else f"saves at most {ms(each.gain_high_ns)} ms a {each.per}"


def gain_with_cost(each: Recommendation) -> str:
    """Return the gain as text, with the GPU-hours of a day and their price where they are known."""
    return ", ".join(part for part in (gain(each), cost_text(each.gpu_hours_a_day, each.price_a_day)) if part)
