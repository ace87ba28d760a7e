"""Render the prices of a dry run as text: what is estimated, what it rests on, and what it leaves out."""

from overlapscope.report.formatting import aligned, ms, percent
from overlapscope.whatif.pricing.result import Interval, Prices, RankPrice

MOST_PARTS = 8
"""Parts of the critical path that are shown."""


def render(prices: Prices) -> str:
    """Return the whole text, ending in a newline."""
    parts = [
        f"Priced for {prices.device} with {prices.links} ({prices.recipe}); estimated, nothing was measured here.",
        *(_rank(each) for each in prices.ranks),
        _basis(prices),
    ]
    return "\n\n".join(parts) + "\n"


def _rank(price: RankPrice) -> str:
    lines = []
    if price.step is None:
        lines.append(f"rank {price.rank}: no price")
    else:
        lines.append(f"rank {price.rank}: a step of {_time(price.step)}")
        if price.exposed_comm is not None:
            lines.append(f"  exposed communication {_time(price.exposed_comm)}")
    lines += [f"  because {each}" for each in price.reasons]
    if price.path:
        lines.append("  critical path:")
        shown = list(price.path.items())[:MOST_PARTS]
        lines += aligned([[f"    {name}", percent(share)] for name, share in shown])
    lines += [f"  note: {each}" for each in price.notes]
    return "\n".join(lines)


def _time(found: Interval) -> str:
    spread = f"{ms(found.low_ns)} to {ms(found.high_ns)} ms"
    if found.value_ns is None:
        return f"{spread} (a range, no estimate)"
    return f"{ms(found.value_ns)} ms (80 % interval {spread})"


def _basis(prices: Prices) -> str:
    lines = ["It rests on:"]
    lines += [f"  measured: {each}" for each in prices.measured] or ["  measured: nothing"]
    lines += [f"  {each}" for each in prices.sources]
    rows = [
        [f"  {each.name}", f"{each.value:.3g}", "" if each.low is None else f"{each.low:.3g} .. {each.high:.3g}"]
        for each in prices.constants
    ]
    lines += [f"{row}  {each.source}" for row, each in zip(aligned(rows), prices.constants, strict=True)]
    return "\n".join(lines)
