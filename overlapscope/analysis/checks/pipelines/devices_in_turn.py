"""Find devices of one process that work in turn: each idles while another one works.

So it is where layers lie on several devices and one batch goes through them, and where one device gathers for all.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from overlapscope.analysis.common.findings import Finding, format_ms
from overlapscope.analysis.common.one_process import ranks_of_one_process
from overlapscope.analysis.common.wording import rank_list
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.steps import StepWindow, complete_steps, of_the_same_ranks
from overlapscope.display import list_some
from overlapscope.timeline.intervals import Intervals, complement, intersection, length, union
from overlapscope.timeline.run import RankTimeline

LEAST_SHARE: Final = 0.1
"""Least share of the time of all devices in which one idles while another works. A choice: a bubble of a tenth."""
LEAST_NS: Final = 500_000
"""Shorter idle time does not count. A choice: gaps between kernels are staggered by chance, turns are long."""
MOST_SHOWN: Final = 4
"""Ranks whose times a title has."""


class _Turns(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks of one process; times in ns, sums over the steps."""

    ranks: Sequence[int]
    steps: int
    """Number of steps that all completed; 0: times are of the whole recording."""
    window_ns: int
    idle_ns: Sequence[int]
    in_turn_ns: Sequence[int]
    """Of the idle time of each rank: while another one works."""

    @property
    def share(self) -> float:
        """What all idle in turn, as a share of the time of all."""
        return sum(self.in_turn_ns) / max(len(self.ranks) * self.window_ns, 1)


def devices_in_turn(
    ranks: Mapping[int, RankTimeline],
    coverage: Mapping[int, Coverage],
    windows: Mapping[int, Sequence[StepWindow]],
    whole: Mapping[int, Sequence[tuple[int, int]]],
) -> list[Finding]:
    """Return at most one finding: the process whose devices idle most of all while another of them works, where that
    is much of their time.

    `ranks` are those of which idle time is known, `windows` their steps, `whole` the time of each of their recordings.
    """
    every = [_turns(own, coverage, windows, whole) for own in ranks_of_one_process(ranks)]
    found = [each for each in every if each.share >= LEAST_SHARE]
    return [_finding(max(found, key=lambda each: each.share))] if found else []


def _turns(
    ranks: Sequence[int],
    coverage: Mapping[int, Coverage],
    windows: Mapping[int, Sequence[StepWindow]],
    whole: Mapping[int, Sequence[tuple[int, int]]],
) -> _Turns:
    steps = of_the_same_ranks(complete_steps({rank: _steps(windows[rank]) for rank in ranks}))
    steps = steps if steps and len(steps[0]) == len(ranks) else []
    if steps:  # in the steps of the device that begins first: the others' lie a little later
        first = min(ranks, key=lambda rank: steps[0][rank])
        begin, end = steps[0][first][0], steps[-1][first][1]
    else:
        times = [window for rank in ranks for window in whole[rank]]
        begin, end = min((each[0] for each in times), default=0), max((each[1] for each in times), default=0)
    busy = {rank: union(coverage[rank].comm, coverage[rank].compute, coverage[rank].copy) for rank in ranks}
    idle = [_long(complement(busy[rank], begin, end)) for rank in ranks]
    others = [union(*(busy[other] for other in ranks if other != rank)) for rank in ranks]
    return _Turns(
        ranks=ranks,
        steps=len(steps),
        window_ns=end - begin,
        idle_ns=[length(each) for each in idle],
        in_turn_ns=[length(intersection(one, other)) for one, other in zip(idle, others, strict=True)],
    )


def _long(idle: Intervals) -> Intervals:
    long = idle.ends - idle.starts >= LEAST_NS
    return Intervals(idle.starts[long], idle.ends[long])


def _steps(windows: Sequence[StepWindow]) -> list[tuple[int, bool, tuple[int, int]]]:
    return [(each.step, each.complete, each.window) for each in windows if each.window is not None]


def _finding(found: _Turns) -> Finding:
    parts = max(found.steps, 1)
    each = [
        f"rank {rank} idles for {format_ms(idle / parts)}, {format_ms(turn / parts)} of it while another one works"
        for rank, idle, turn in zip(found.ranks, found.idle_ns, found.in_turn_ns, strict=True)
    ]
    of = f"a step of {format_ms(found.window_ns / parts)}" if found.steps else "the recording"
    return Finding(
        id="devices_in_turn",
        severity="warning",
        title=f"the devices of {rank_list(found.ranks)}, which one process drives, work in turn. Of {of} "
        + list_some(each, MOST_SHOWN),
        evidence={
            "ranks": list(found.ranks),
            "steps": found.steps,
            "window_ns": found.window_ns,
            "idle_ns": {str(rank): ns for rank, ns in zip(found.ranks, found.idle_ns, strict=True)},
            "in_turn_ns": {str(rank): ns for rank, ns in zip(found.ranks, found.in_turn_ns, strict=True)},
        },
        known_from="trace",
    )
