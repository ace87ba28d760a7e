"""Rule: the largest loss is time in which the device only copies, and no rule of copies names it."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from overlapscope.advice.copies.stream_copies import AWAITED, ON_STREAM
from overlapscope.advice.rule_input import RuleInput, Windows, gain_ns, ms, per_step, recommended, time_of
from overlapscope.analysis.common.wording import short
from overlapscope.analysis.result import Recommendation
from overlapscope.display import percent_text
from overlapscope.timeline.columns import COPY
from overlapscope.timeline.intervals import difference, intersection, length, union
from overlapscope.timeline.rows import values_in
from overlapscope.timeline.run import RankTimeline

OF_COPIES: Final = (ON_STREAM, AWAITED)
"""Recommendations that name time in which the device only copies."""
NAMED: Final = 0.5
"""They name it if they have this share of it. A choice."""


def copies_alone(given: RuleInput, found: Sequence[Recommendation]) -> Recommendation | None:
    """Return what names time in which the device only copies, where it is more than the step is exposed or idle, and
    than what any of `found` costs, and those of copies name less than half of it; else None."""
    ns = given.figures.copy_only_ns or 0
    others = max(given.figures.exposed_comm_ns or 0, given.figures.idle_ns or 0)
    costs = {each.id: per_step(each, max(each.loss_ns or 0, gain_ns(each) or 0), given.steps) for each in found}
    named = sum(costs.get(each, 0.0) for each in OF_COPIES)
    if (
        not given.run_has_device
        or not given.is_worth(ns)
        or ns <= max(others, *costs.values(), 0)
        or named >= NAMED * ns
    ):
        return None
    alone: Counter[str] = Counter()
    for timeline, windows in given.some_at_hand():
        if timeline.has_device:
            alone.update(_alone_ns(given, timeline, windows))
    most = alone.most_common(1)
    which = f", {percent_text(most[0][1] / alone.total())} of it {short(most[0][0])}" if alone.total() else ""
    return recommended(
        given,
        id="copies_alone",
        title=f"Largest loss: the device only copies for {ms(ns)} of a {ms(given.step_ns)} {given.per}{which}",
        verdict="look",
        loss_ns=ns,
        apply={},
        evidence={"copies_alone_ns": ns, "named_ns": round(named)},
        measured=["time in which copies run, and neither compute nor communication"],
        assumed=[],
        verify="overlapscope analyze NEW_RUN: the loss is smaller",
    )


def _alone_ns(given: RuleInput, timeline: RankTimeline, windows: Windows) -> Counter[str]:
    """Return for how long copies of each name ran in the windows of a rank beside neither compute nor communication."""
    spans, cover = timeline.spans, given.coverage[timeline.rank]
    copies = np.flatnonzero(spans.kind == COPY)
    found: Counter[str] = Counter()
    for code in values_in(spans.name[copies]).tolist():
        own = copies[spans.name[copies] == code]
        ran = difference(difference(union((spans.start_ns[own], spans.end_ns[own])), cover.compute), cover.comm)
        found[timeline.names[code]] = length(intersection(ran, time_of(windows)))
    return found
