"""Calls whose kernels read or write their peers' memory themselves: what a server would be told to use is in use."""

from collections.abc import Iterable
from typing import Final

import numpy as np

from overlapscope.advice.rule_input import RuleInput
from overlapscope.analysis.exposure.collectives import CollectiveRow
from overlapscope.ingest.build.kernel_names import reaches_peers
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.names import rows_named

NEARLY_ALL: Final = 0.9
"""Share of their time from which on calls are direct ones. A choice: with less, those of another library can be."""


def are_direct(given: RuleInput, rows: Iterable[CollectiveRow]) -> bool:
    """Return whether calls of these rows spend nearly all of their time in custom, one-shot or two-shot kernels."""
    asked = list(rows)
    direct = every = 0
    for timeline, _ in given.some_at_hand():
        spans, of_rows = timeline.spans, given.calls_of(timeline, asked)
        own = np.flatnonzero(spans.collective != NONE)
        own = own[of_rows[spans.collective[own]]]
        lasted = spans.end_ns[own] - spans.start_ns[own]
        every += int(lasted.sum())
        direct += int(lasted[rows_named(spans.name[own], timeline.names, reaches_peers)].sum())
    return every > 0 and direct >= NEARLY_ALL * every
