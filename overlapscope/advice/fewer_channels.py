"""Rule: collectives slow the compute beside them; use fewer channels, which leaves more multiprocessors to compute."""

from typing import Final

from overlapscope.advice.nccl_settings import Library, channels_of, fewer_channels
from overlapscope.advice.rule_input import RuleInput, ms, recommended
from overlapscope.analysis.result import Recommendation, slowed_by_communication

TRIED: Final = 8
"""Channels to try where the present number is not known: a quarter of the maximum of 32 before NCCL 2.25."""
FEWEST: Final = 2


def interference(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where the same kernels take longer beside communication, and it costs enough."""
    library = Library.of(given.run)
    lost = slowed_by_communication(given.analysis)
    if library is None or lost is None:
        return None
    cost, least, _ = lost
    worst = max((each.interference for each in given.analysis.ranks if each.interference), key=lambda each: each.times)
    if worst.low <= 1 or least <= 0 or not given.is_worth(cost):
        return None
    present = channels_of(given.run)
    tried = max(present // 2, FEWEST) if present else TRIED
    now = f" (now {present})" if present else ""
    return recommended(
        given,
        id="fewer_channels",
        title=f"Compute takes {worst.times:.2f} times as long beside communication, {ms(cost)} of a "
        f"{ms(given.step_ns)} {given.per}: try {tried} channels{now}",
        at_most_ns=cost,
        apply=fewer_channels(library, tried),
        evidence={
            "slowdown": worst.times, "slowdown_low": worst.low, "slowdown_high": worst.high,
            "launches": worst.launches, "compared": worst.compared_share, "interference_ns": round(cost),
            "channels": present,
        },
        measured=["the same launches beside communication and free of it, in different steps"],
        assumed=["that fewer channels do not slow the transfers themselves: the gain is an upper bound"],
    )  # fmt: skip
