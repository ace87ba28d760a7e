"""How the idle time of a device is divided into gaps: a few long ones, in which its host stopped, or many short ones.

It needs no record of the host.
"""

from typing import Final, Self

import msgspec
import numpy as np

from overlapscope.advice.rule_input import RuleInput, Windows, ms, time_of
from overlapscope.analysis.graph.building.host_calls import SILENCE_NS
from overlapscope.display import percent_text, shortened
from overlapscope.timeline.columns import Ints
from overlapscope.timeline.intervals import Intervals, difference, union
from overlapscope.timeline.run import RankTimeline

MOST_OF_IDLE: Final = 0.5
"""The longest gaps are told apart where so few of them hold this share of the idle time, ..."""
FEW: Final = 0.05
"""... at most this share of all gaps. Choices: launches that are slow throughout give many alike."""
SAME_ORDER: Final = 0.1
"""The next shorter gap is named with these, too, if it has this share of the last one's length. A choice."""
MOST_LONG: Final = 5
"""Gaps that are told apart."""
LONGEST_NAME: Final = 40


class IdleGaps(msgspec.Struct, frozen=True, kw_only=True):
    """The gaps of one rank, in which nothing runs on its device."""

    rank: int
    gaps: int
    idle_ns: int
    long: Ints
    """Lengths of the few that hold half of it or more, in ns, the longest first; empty where there are no such."""
    usual_ns: float
    """Median length of the others; 0 without any."""
    between: tuple[str, str]
    """Names of the kernels before and after the longest one."""
    at_ns: int
    """Its middle, since the first recorded span of the run."""

    @classmethod
    def of(cls, given: RuleInput) -> Self | None:
        """Return the gaps of the rank that idles longest; None where none does."""
        found = [(timeline, _gaps(timeline, windows)) for timeline, windows in given.some_at_hand()]
        idle = [int((gaps.ends - gaps.starts).sum()) for _, gaps in found]
        if not any(idle):
            return None
        timeline, gaps = found[int(np.argmax(idle))]
        lasted = gaps.ends - gaps.starts
        order = np.argsort(-lasted, kind="stable")
        number = int(np.searchsorted(np.cumsum(lasted[order]), MOST_OF_IDLE * lasted.sum())) + 1
        few = number <= min(max(FEW * lasted.size, 1), MOST_LONG)
        most = min(MOST_LONG, lasted.size)
        while number < most and lasted[order[number]] >= SAME_ORDER * lasted[order[number - 1]]:
            number += 1
        number = number if few else 0
        longest, rest = int(order[0]), lasted[order[number:]]
        start, end = int(gaps.starts[longest]), int(gaps.ends[longest])
        return cls(
            rank=timeline.rank, gaps=lasted.size, idle_ns=int(lasted.sum()),
            long=lasted[order[:number]], usual_ns=float(np.median(rest)) if rest.size else 0.0,
            between=_between(timeline, start, end), at_ns=_since_first(given, timeline.rank, (start + end) // 2),
        )  # fmt: skip

    def words(self) -> str:
        """Return the sentence for a title, without its full stop."""
        if not self.long.size:
            return f"{self.gaps} gaps, {_length(self.idle_ns / self.gaps)} on average"
        held = int(self.long.sum())
        before, after = (shortened(each, LONGEST_NAME) for each in self.between)
        number = self.long.size
        share, longest = percent_text(held / self.idle_ns, 0), ms(int(self.long[0]))
        lengths = ", ".join(ms(ns).removesuffix(" ms") for ns in self.long.tolist())
        gaps = f"{number} of {self.gaps} gaps hold {share}, {lengths} ms: the longest"
        if number == 1:
            gaps = "one gap of" if self.gaps == 1 else f"one of {self.gaps} gaps holds {share}:"
        where = f"{gaps} {longest} between {before} and {after} (at {self.rank}:{self.at_ns / 1e6:.3f})"
        stops = ", in which the host may have stopped (allocation, garbage collection, synchronisation)"
        rest = self.gaps - number
        others = f"; the median of the rest is {_length(self.usual_ns)}" if rest else ""
        return f"{where}{stops if int(self.long.min()) >= SILENCE_NS else ''}{others}"


def _length(ns: float) -> str:
    return ms(ns) if ns >= 1e5 else f"{ns / 1e3:.1f} us"


def _gaps(timeline: RankTimeline, windows: Windows) -> Intervals:
    spans = timeline.spans
    return difference(time_of(windows), union((spans.start_ns, spans.end_ns)))


def _between(timeline: RankTimeline, start_ns: int, end_ns: int) -> tuple[str, str]:
    """Return the names of the spans that end and begin at the edges of a gap; `the begin` or `the end` of a window."""
    spans = timeline.spans
    ended, begun = np.flatnonzero(spans.end_ns == start_ns), np.flatnonzero(spans.start_ns == end_ns)
    before = timeline.name(int(spans.name[ended[0]])) if ended.size else "the begin of the window"
    after = timeline.name(int(spans.name[begun[0]])) if begun.size else "the end of the window"
    return before or "unnamed", after or "unnamed"


def _since_first(given: RuleInput, rank: int, moment_ns: int) -> int:
    """Return a moment of a rank in ns since the first span of the run, as `overlapscope explain --at` takes it."""
    clocks = given.cross_rank.clocks
    firsts = [
        int(clocks.aligned_ns(each, np.array([timeline.spans.start_ns.min()]))[0])
        for each, timeline in given.run.ranks.items()
        if timeline.num_spans
    ]
    return int(clocks.aligned_ns(rank, np.array([moment_ns]))[0]) - min(firsts)
