"""Find a few steps that are alike, and longer than all others, though they do the same work: as when a link, or a host,
is slow for a while. Beside each other none of them stands out alone."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.common.findings import Finding, format_ms
from overlapscope.analysis.common.wording import short
from overlapscope.analysis.job_step.headline import Headline, StepOfJob
from overlapscope.analysis.job_step.slowing_steps import PARTS
from overlapscope.display import list_some, size_text
from overlapscope.timeline.columns import NONE, Flags, Floats, Ints
from overlapscope.timeline.rows import factorize_rows, sum_by
from overlapscope.timeline.run import RankTimeline, Run

FEWEST: Final = 5
"""Steps of which two may be slow, and most are not, or half."""
APART: Final = 3.0
"""The gap between the slow steps and the others is at least so many times the range of either. A choice: of steps that
vary the ranges are as large as the gap."""
WORTH: Final = 0.1
"""Least share of the others' median that the gap is. A choice."""
MOSTLY: Final = 0.5
"""Least share of the difference that is in one part of the step; likewise of what is more in a kind of calls."""
LONGER: Final = 1.5
"""Where half of the steps are slow, so that neither half is the usual one, calls of one kind last at least so many
times as long in them on each rank. A choice, as for one link among many."""
MOST_RANKS: Final = 8
"""Whose calls are read."""
EXPOSED: Final = "exposed communication"
Kind = tuple[str, int]
"""Operation and bytes of a call; NONE where these are not known."""


class _Longer(msgspec.Struct, frozen=True, kw_only=True):
    """The kind of calls that last longer in slow steps by most; ns a step, means over ranks, waiting included."""

    kind: Kind
    slow_ns: float
    usual_ns: float
    times: float
    """How many times as long they last in slow steps, on the rank where that is least."""


def slower_steps(run: Run, head: Headline, said: Collection[Finding]) -> list[Finding]:
    """Return at most one finding, with what most of the difference is; none where one of the steps was `said` to be
    odd, where the slow ones come regularly, or communicate other calls, or compute for longer: these do other work."""
    steps = head.job_steps if head.window == "step" else []
    slow = slow_steps(np.array([each.step_ns for each in steps], np.float64))
    numbers = [each.step for each in steps if each.step is not None]
    named = {each.evidence.get("step") for each in said if each.id.startswith("odd_step:")}
    if slow is None or len({*numbers}) < len(steps) or returns(slow):
        return []
    long, others = ([steps[at] for at in np.flatnonzero(which).tolist()] for which in (slow, ~slow))
    longer = [each.step for each in long]
    if named.intersection(longer):
        return []
    took, usual = _median(long, ["step_ns"]), _median(others, ["step_ns"])
    grew = {name: _median(long, fields) - _median(others, fields) for name, fields in PARTS}
    most, more_ns = max(grew, key=grew.__getitem__), took - usual
    read = [run.ranks[rank] for rank in head.ranks[:: -(-len(head.ranks) // MOST_RANKS) or 1]]
    calls = [_calls(timeline, numbers) for timeline in read]
    alike = all(bool((counts == counts[:, :1]).all()) for _, counts, _ in calls)
    if not alike or most == "compute" or grew[most] < MOSTLY * more_ns:
        return []
    kind = _longest_kind(calls, slow, grew[most]) if most == EXPOSED else None
    if len(long) == len(others) and (kind is None or kind.times < LONGER):
        return []
    which = "" if kind is None else _words(kind, unseen=len(run.ranks) != run.world_size)
    return [
        Finding(
            id="slower_steps",
            severity="warning",
            title=f"steps {list_some(longer)} take {format_ms(took)} in the median, the other {len(others)} steps "
            f"{format_ms(usual)}, for the same calls; {format_ms(min(grew[most], more_ns))} of the difference are "
            f"{most}{which}",
            evidence={
                "steps": longer, "slow_ns": took, "others_ns": usual, "grew_ns": grew,
                "lost_ns": more_ns * len(longer) / len(steps),
            },
            known_from=", ".join(sorted({each.basis for each in run.ranks.values()})),
        )
    ]  # fmt: skip


def slow_steps(took_ns: Floats) -> Flags | None:
    """Return which of some steps are the slow ones: two or more, fewer than the others, or half of them in a row, and
    far from these; None where there are none."""
    if took_ns.size < FEWEST:
        return None
    ordered = np.sort(took_ns)
    gaps = np.diff(ordered)
    cut = int(gaps.argmax()) + 1
    few, many = ordered[cut:], ordered[:cut]
    gap = float(few[0] - many[-1])
    ranges = max(float(np.ptp(few)), float(np.ptp(many)))
    slow = np.asarray(took_ns >= few[0])
    if few.size == many.size and np.ptp(np.flatnonzero(slow)) >= few.size:
        return None
    if not 2 <= few.size <= many.size or gap < APART * ranges or gap < WORTH * float(np.median(many)):
        return None
    return slow


def returns(slow: Flags) -> bool:
    """Return whether the slow steps come again in a fixed number of steps, as those of another kind do."""
    periods = range(2, slow.size - 1)  # a single step that fits shows no period
    return any(bool(slow[each:].any()) and bool((slow[each:] == slow[:-each]).all()) for each in periods)


def _median(steps: Sequence[StepOfJob], fields: Sequence[str]) -> float:
    return float(np.median([sum(getattr(each, field) or 0 for field in fields) for each in steps]))


def _calls(timeline: RankTimeline, steps: Sequence[int]) -> tuple[list[Kind], Ints, Ints]:
    """Return the kinds of calls that a rank makes in these steps, and how many of each it makes and how long these
    last, in ns, in each step: shapes (kind, step)."""
    calls, order = timeline.collectives, np.array(steps, np.int64)
    rows = np.flatnonzero(np.isin(calls.step, order) & (calls.start_ns != NONE) & (calls.end_ns != NONE))
    kind, first = factorize_rows([calls.op[rows], calls.bytes[rows]])
    by_step = np.argsort(order)
    at = kind * order.size + by_step[np.searchsorted(order[by_step], calls.step[rows])]
    cells = first.size, order.size
    counts = np.bincount(at, minlength=first.size * order.size).reshape(cells)
    lasted = sum_by(at, calls.end_ns[rows] - calls.start_ns[rows], first.size * order.size).reshape(cells)
    ops, sizes = calls.op[rows[first]].tolist(), calls.bytes[rows[first]].tolist()
    return [(timeline.name(op) or "call", size) for op, size in zip(ops, sizes, strict=True)], counts, lasted


def _longest_kind(calls: Sequence[tuple[list[Kind], Ints, Ints]], slow: Flags, grew_ns: float) -> _Longer | None:
    """Return which calls last longer in slow steps, where one kind is most of what grew."""
    of_ranks: dict[Kind, list[Floats]] = defaultdict(list)
    for kinds, _, lasted in calls:
        each = np.stack([lasted[:, which].mean(axis=1) for which in (slow, ~slow)], axis=1)
        for kind, times in zip(kinds, each, strict=True):
            of_ranks[kind].append(times)
    if not of_ranks:
        return None
    means = {kind: np.sum(times, axis=0) / len(calls) for kind, times in of_ranks.items()}
    most = max(means, key=lambda kind: float(-np.diff(means[kind])[0]))
    took, usual = means[most].tolist()
    if took - usual < MOSTLY * grew_ns:
        return None
    everywhere = len(of_ranks[most]) == len(calls)
    times = min(float(own[0] / max(own[1], 1.0)) for own in of_ranks[most]) if everywhere else 1.0
    return _Longer(kind=most, slow_ns=took, usual_ns=usual, times=times)


def _words(longer: _Longer, *, unseen: bool) -> str:
    """Return in words which calls last longer; `unseen` ranks were not recorded."""
    (op, size), took, usual = longer.kind, format_ms(longer.slow_ns), format_ms(longer.usual_ns)
    of_size = "" if size == NONE else f" of {size_text(size)}"
    included = "waiting included, for ranks that were not recorded, too" if unseen else "waiting included"
    return f": calls of {short(op)}{of_size} last {took} a step instead of {usual}, {included}"
