"""Rule: each launch waits for the kernel before it, by a setting or a synchronisation that was not recorded."""

from typing import Final

import numpy as np

from overlapscope.advice.copies.copy_rows import BETWEEN
from overlapscope.advice.job_kind import uses_rocm
from overlapscope.advice.rule_input import RuleInput, ms, recommended
from overlapscope.advice.step_shape import CUDA, LONG_NS, ROCM
from overlapscope.analysis.graph.building.host_calls import LAUNCHES_GRAPH, SYNCHRONIZES
from overlapscope.analysis.graph.building.host_waits import TO_DEVICE
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import COMPUTE, COPY, NONE, RUNTIME
from overlapscope.timeline.lazy_host_spans import select_host_spans
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.run import RankTimeline

MOST_AHEAD: Final = 1
"""Kernels that were launched earlier and have not ended, at nearly all launches: an operation of two kernels may launch
both before it waits."""
NEARLY_ALL: Final = 99
"""In percent: what launches at the edge of a recording may differ by."""
MOSTLY: Final = 0.5
"""Share of the long kernels whose end the next launch follows. A choice: the others are the first of two."""
FEWEST: Final = 10
"""Fewest long and fewest short kernels that a launch follows. A choice."""
SHORT_NS: Final = LONG_NS // 4
"""Kernels of less are short, and launches so soon after an end follow it. A choice: a host that is merely slow launches
as late after a short kernel as a long one takes."""
EXPLAINED: Final = 0.5
"""From this share of recorded waits on among those for a kernel the waits are no secret. A choice."""


def blocking_launches(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where on every rank no launch runs ahead of the device, and no recorded call says why;
    None for runs without devices or launches, and where devices idle for too short a time."""
    if not given.run_has_device or given.job.is_npu:
        return None
    idle, exposed = given.figures.idle_ns or 0, given.figures.exposed_comm_ns or 0
    ranks = [timeline for timeline, _ in given.some_at_hand() if timeline.has_device]
    if not given.is_worth(idle + exposed) or not ranks or not all(map(_waits_for_each, ranks)):
        return None
    blocking = (ROCM if uses_rocm(given.run) else CUDA)[0]
    beside = f", and {ms(exposed)} of communication are exposed, some perhaps for late launches," if exposed else ""
    return recommended(
        given,
        id="blocking_launches",
        title="Let launches run ahead of the device: none does (a launch-blocking setting, or a synchronisation after "
        f"each operation); the device idles for {ms(idle)}{beside} in a {ms(given.step_ns)} {given.per}",
        verdict="look",
        at_most_ns=idle + exposed,
        apply={
            "environment": f"unset {blocking}  # each launch then lasts until its kernel has ended",
            "torch": "# no torch.cuda.synchronize() after each operation, as for debugging or timing; no profiler that "
            "counts events\n# of kernels and runs them one by one",
        },
        evidence={"idle_ns": idle, "exposed_ns": exposed},
        measured=[
            f"at {NEARLY_ALL} % of launches at most {MOST_AHEAD} kernel launched before has not ended, and launches "
            "follow the ends of long and short kernels alike",
            "idle time, and exposed communication",
        ],
        assumed=["that all of it is for these waits: the gain is an upper bound"],
    )


def _waits_for_each(timeline: RankTimeline) -> bool:
    """Return whether a rank launches each kernel only when nearly all before it have ended, however long they took.

    Launches of collectives are none of these. A call that blocks may last as long as its kernel: what counts is when
    it begins.
    """
    spans = timeline.spans
    if any(map(LAUNCHES_GRAPH.search, timeline.names)):
        return False
    rows = np.flatnonzero((spans.kind == COMPUTE) & (spans.launch_ns != NONE))
    rows = rows[np.argsort(spans.launch_ns[rows], kind="stable")]
    launch, end = spans.launch_ns[rows], spans.end_ns[rows]
    ended = np.searchsorted(np.sort(end), launch, side="right")
    ahead = np.arange(rows.size) - ended
    after = launch[1:] - end[:-1]
    took = (end - spans.start_ns[rows])[:-1]
    follows = after >= 0
    long, short = (follows & each for each in (took >= LONG_NS, took < SHORT_NS))
    if min(np.count_nonzero(long), np.count_nonzero(short)) < FEWEST:
        return False
    nearly_most = np.percentile(ahead, NEARLY_ALL)
    usual_ns = max(np.median(after[long]), np.median(after[short]))
    waited = np.count_nonzero(long) >= MOSTLY * np.count_nonzero(took >= LONG_NS)
    secret = _recorded_waits(timeline) < EXPLAINED * np.count_nonzero(follows)
    return bool(nearly_most <= MOST_AHEAD and usual_ns < SHORT_NS and waited and secret)


def _recorded_waits(timeline: RankTimeline) -> int:
    """Return how often a host waited for its device in ways that were recorded: synchronisations, and copies to it."""
    spans, names = timeline.spans, timeline.names
    copies = (spans.kind == COPY) & rows_named(spans.name, names, BETWEEN.search)
    copies &= ~rows_named(spans.name, names, TO_DEVICE.search)
    named = np.array([SYNCHRONIZES.search(name) is not None for name in names], np.bool_)
    calls = int(np.count_nonzero(rows_named(timeline.annotations.name, names, SYNCHRONIZES.search)))
    if named.any() and not timeline.host_is_lost:  # a source may write such a call as a range, too
        calls = max(calls, select_host_spans(timeline.host, (RUNTIME,), named).start_ns.size)
    return int(np.count_nonzero(copies)) + calls
