"""Findings on what calls take longer than the shortest of their like: in sum, and a single call that is most of it."""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from overlapscope.analysis.common.findings import Finding, format_ms
from overlapscope.analysis.common.wording import short
from overlapscope.analysis.exposure.longer_than_like import LongerThanLike
from overlapscope.analysis.job_step.headline import Headline
from overlapscope.analysis.job_step.step_table import RankWindows
from overlapscope.display import percent_text, size_text
from overlapscope.timeline.columns import NONE, or_none
from overlapscope.timeline.intervals import WindowSets
from overlapscope.timeline.run import RankTimeline, Run

LONGER_THAN_LIKE: Final = "longer_than_like"
"""Id of the finding on all calls, which the text shows below the causes."""
WORTH: Final = 0.05
"""Least share of exposed communication that is said. A choice."""
OF_ONE_CALL: Final = 0.25
"""A single call is named whose excess is this share of all that its rank exposed, and ... A choice."""
MOST_OF_LONGER: Final = 0.5
"""... more than this share of all excess: one event is then most of what is longer."""


def longer_calls(
    run: Run, head: Headline, ranks: Mapping[int, RankWindows], longer: Mapping[int, LongerThanLike]
) -> list[Finding]:
    """Return what calls take longer than their like, over the complete steps of the main figures, else the recordings;
    nothing where that is little, or too few calls are alike."""
    parts = [each for rank in head.ranks if rank in longer for each in _parts(ranks[rank], longer[rank], head)]
    longer_ns, exposed_ns = sum(ns for ns, _ in parts), sum(ns for _, ns in parts)
    if not exposed_ns or longer_ns < WORTH * exposed_ns:
        return []
    mean_ns, share = longer_ns / len(parts), longer_ns / exposed_ns
    within = f"{format_ms(mean_ns)} a {head.window}" + (" in the mean" if len(parts) > 1 else "")
    compared, are_longer = (
        sum(int(which.sum()) for which in each)
        for each in zip(*((own.needs_ns != NONE, own.is_longer) for own in longer.values()), strict=True)
    )
    found = Finding(
        id="longer_than_like",
        severity="info",
        title=f"at least {percent_text(share)} of exposed communication ({within}) is what calls take longer than the "
        f"shortest of their like: waiting for {_others(run)}, or other traffic on the link",
        evidence={
            "longer_ns": round(mean_ns),
            "share_of_exposed": share,
            "calls_compared": compared,
            "calls_longer": are_longer,
        },
        known_from="trace",
    )
    return [found, *_one_call(run, head, ranks, longer)]


def _others(run: Run) -> str:
    return "other ranks" if len(run.ranks) == run.world_size else "ranks that were not recorded"


def _parts(own: RankWindows, longer: LongerThanLike, head: Headline) -> Iterator[tuple[int, int]]:
    """Yield what calls of a rank take longer, and its exposed time, in ns, of each complete step of the main figures,
    else of its recordings."""
    if head.window == "step":
        numbers = {each.step for each in head.job_steps}
        chosen = [(at.window, figures) for at, figures in own.steps if at.complete and at.step in numbers]
        sets = WindowSets.of([() if window is None else (window,) for window, _ in chosen])
        exposed = [figures.exposed_comm_ns or 0 for _, figures in chosen]
    else:
        sets, exposed = WindowSets.of([own.recordings]), [own.whole.exposed_comm_ns or 0]
    yield from zip(sets.within(longer.exposed), exposed, strict=True)


def _one_call(
    run: Run, head: Headline, ranks: Mapping[int, RankWindows], longer: Mapping[int, LongerThanLike]
) -> list[Finding]:
    """Return the single call that is most of what its rank exposed, of the rank where it is longest."""
    most = {rank: (int(each.exposed_ns.max(initial=0)), ranks[rank].whole.exposed_comm_ns or 0)
            for rank, each in longer.items() if rank in ranks}  # fmt: skip
    most = {
        rank: (ns, exposed)
        for rank, (ns, exposed) in most.items()
        if ns >= OF_ONE_CALL * exposed and ns > MOST_OF_LONGER * int(longer[rank].exposed_ns.sum())
    }
    if not most:
        return []
    rank = max(most, key=lambda each: most[each])
    timeline, row = run.ranks[rank], int(longer[rank].exposed_ns.argmax())
    calls, (longer_ns, exposed_ns) = timeline.collectives, most[rank]
    lasted_ns = int(calls.end_ns[row] - calls.start_ns[row])
    after_ns = int(calls.start_ns[row] - timeline.recordings.start_ns.min())
    like_ns, like = _like(timeline, row)
    op, size_bytes = timeline.name(int(calls.op[row])) or "call", or_none(int(calls.bytes[row]))
    size = "" if size_bytes is None else f" of {size_text(size_bytes)}"
    of_like = f", its {like} like {format_ms(like_ns)} in the median" if like else ""
    per = f"recording of {format_ms(head.step_ns or 0)}" if head.window == "recording" else f"{head.steps} steps"
    return [
        Finding(
            id=f"one_long_call:rank{rank}",
            severity="warning",
            title=f"one {short(op)}{size}, {format_ms(after_ns)} after the recording of rank {rank} began, takes "
            f"{format_ms(lasted_ns)}{of_like}; that is {percent_text(longer_ns / exposed_ns)} of what the rank "
            f"exposed: one of the {_others(run)} was late once, or the network stalled; GPU-hours a day count on it "
            f"once in each {per}",
            evidence={
                "ranks": sorted(most),
                "op": op,
                "bytes": size_bytes,
                "after_ns": after_ns,
                "duration_ns": lasted_ns,
                "like": like,
                "like_ns": like_ns,
                "exposed_longer_ns": longer_ns,
                "share_of_exposed": longer_ns / exposed_ns,
            },
            known_from="trace",
        )
    ]


def _like(timeline: RankTimeline, row: int) -> tuple[float, int]:
    """Return how long the other calls of one operation, group, type and size last in the median, and their number; none
    where the size is not known."""
    calls = timeline.collectives
    alike = (calls.start_ns != NONE) & (calls.end_ns != NONE) & (calls.bytes != NONE)
    for column in (calls.op, calls.group, calls.dtype, calls.bytes):
        alike &= column == column[row]
    alike[row] = False
    lasted = (calls.end_ns - calls.start_ns)[alike]
    return (float(np.median(lasted)), lasted.size) if lasted.size else (0.0, 0)
