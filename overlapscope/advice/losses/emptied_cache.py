"""Find device memory that is given back in runs of calls, as `torch.cuda.empty_cache()` does, and not one by one."""

import re
from typing import Final

import numpy as np

from overlapscope.advice.rule_input import RuleInput, Windows, window_of
from overlapscope.timeline.columns import NONE, RUNTIME
from overlapscope.timeline.lazy_host_spans import select_host_spans
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import sort_order, values_in
from overlapscope.timeline.run import RankTimeline

FREES: Final = re.compile(r"^(?:cuda|hip)Free(?:_v\d+)?$")
ALLOCATES: Final = re.compile(r"^(?:cuda|hip)Malloc(?:_v\d+)?$")
WAITS: Final = re.compile(r"Synchronize|Event")
"""Calls before a run: an allocator waits for blocks in use before it frees."""
MOST_RUNS: Final = 2
"""Most runs of a window. A choice: who empties the cache does so once or twice a step."""
OF_WINDOWS: Final = 0.5
"""Least share of the windows that have a run. A choice: one run in many steps is of something else."""
FEWEST_FREES: Final = 2
"""Fewest calls of a run: a tensor that is freed without a cache makes one call."""


def empties_cache(given: RuleInput) -> bool:
    """Return whether every rank that is looked at gives memory back in one or two runs of calls a window, in most
    windows, none of them right after an allocation, which torch tries again when it has freed what it kept."""
    each = [_empties(timeline, windows) for timeline, windows in given.some_ranks() if timeline.has_device]
    return bool(each) and all(each)


def _empties(timeline: RankTimeline, windows: Windows) -> bool:
    if timeline.host_is_lost or not any(map(FREES.match, timeline.names)):
        return False
    host = select_host_spans(timeline.host, (RUNTIME,))
    order = sort_order(host.lane, host.start_ns)
    name, lane = host.name[order], host.lane[order]
    frees, allocates, waits = (rows_named(name, timeline.names, each.search) for each in (FREES, ALLOCATES, WAITS))
    told = frees | ~waits  # waits neither end a run nor come before it
    frees, allocates, lane = frees[told], allocates[told], lane[told]
    begins = np.flatnonzero(frees & ~(np.append(False, frees[:-1]) & np.append(False, lane[1:] == lane[:-1])))
    window = window_of(windows, host.start_ns[order][told][begins])
    inside = window != NONE
    calls = np.diff(np.append(np.cumsum(frees)[begins] - 1, np.count_nonzero(frees)))[inside]
    retried = np.append(False, allocates)[begins[inside]]
    often = calls.size and values_in(window[inside]).size >= OF_WINDOWS * len(windows)
    few = calls.size <= MOST_RUNS * len(windows)
    return bool(often and few and not retried.any() and np.median(calls) >= FEWEST_FREES)
