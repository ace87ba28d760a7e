"""Recommendations for people: what, what it gains, how, how to verify, and the page that says more."""

from collections.abc import Sequence
from typing import Final

from overlapscope.analysis.analyze import Recommendation
from overlapscope.report.amounts import ms

PAGES: Final = "docs/advice"


def render(recommendations: Sequence[Recommendation], reasons: Sequence[str]) -> str:
    """Give the whole text, ending in a newline."""
    parts = [_one(number, each) for number, each in enumerate(recommendations, 1)] or ["Nothing to recommend."]
    parts += ["\n".join(f"- {each}" for each in reasons)] if reasons else []
    return "\n\n".join(parts) + "\n"


def _one(number: int, each: Recommendation) -> str:
    lines = [f"{number}. {each.title} [{each.id}]"]
    if each.predicted_gain_ns is not None:
        low, high = ms(each.gain_low_ns or 0), ms(each.gain_high_ns or 0)
        lines.append(f"   saves {ms(each.predicted_gain_ns)} ms a step ({low} to {high}, 90 %), {each.confidence}")
    for name, text in each.apply.items():
        lines += [
            f"   {name + ':':11}{line}" if at == 0 else f"   {'':11}{line}" for at, line in enumerate(text.split("\n"))
        ]
    return "\n".join([*lines, f"   verify:    {each.verify}", f"   more:      {PAGES}/{each.id}.md"])
