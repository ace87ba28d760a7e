"""Find when the host of one rank of a CPU run certainly ran, and when it paused though it had work to do.

How long an operation pauses is not recorded without a device, as it may be long by itself. But where calls begin and
end close together their host ran, and through an operation that is shorter than a turn on a core.

Steps that make the same calls in the same order do the same work. What one of them takes much longer for than the
others do is a pause. A host wants to run where it ran, and where it paused in what is otherwise shorter than a turn.
What is always long says nothing, so that hosts which do little and much in turn, by their job's own schedule, are not
compared there.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.errors import HostEventsError
from overlapscope.timeline.columns import COMPUTE, OPERATION, Flags, HostSpans, Ints
from overlapscope.timeline.intervals import BusyTime, Intervals, difference, intersection, length, union
from overlapscope.timeline.lazy_host_spans import without_functions
from overlapscope.timeline.readings import COLLECTOR, QUEUED, reading_series, recorded_pauses
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import RankTimeline

CLOSE_NS: Final = 100_000
"""A host ran between calls that follow each other so closely: a core is hardly given away and back in less ..."""
OPERATION_NS: Final = 1_000_000
"""... and it ran through an operation, or a part of one between others, that lasts no longer: turns last for 2 to 4 ms.
It did ..."""
LASTING_NS: Final = 300_000
"""... if what shows that it ran lasts for so long together, less ..."""
EDGE_NS: Final = 100_000
"""... this at both ends, by which clocks of processes of one machine may differ."""
ALIKE: Final = 3
"""What a host usually needs between two moments of its calls is known of so many steps that make the same calls: ..."""
USUAL: Final = 0.25
"""... this quantile of them, since some of the others pause there."""
PAUSE_NS: Final = 1_000_000
"""A pause for another one's turn mostly takes no less ..."""
STILL_NS: Final = 2_000_000
"""A host that stands still does for a turn or longer: what many operations take longer by less, they compute, as where
they are the first to touch fresh memory."""
SLOWED: Final = 3
"""... and makes what is shorter than a turn take so many times as long: beside another host that shares its memory, or
half of a core, it takes up to twice as long. What takes so many times as long without such a pause, and CLOSE_NS more,
shows neither: turns may be cut short."""
ABOUT, MOSTLY = 1.25, 0.5
"""A host stands still in a step of which this share, by what it usually takes, took at most so many times as long as
usual: with a larger batch, or on a slower core, nearly all of it takes longer."""


class HostRuns(msgspec.Struct, frozen=True, kw_only=True):
    """What the host of one rank of a CPU run did, on its own clock."""

    computing: Intervals
    """In operations that wait for no other rank, or where it certainly ran."""
    ran: Intervals
    """Where it certainly ran."""
    wanted: Intervals
    """The same, and where it paused in what is usually shorter than a turn: there it would certainly run."""
    paused: Intervals
    """What it took longer than usual in operations; each pause is taken to lie at the end of what was longer."""
    stood_still: Intervals
    """Those in steps that otherwise took what they usually take, but for garbage that it was seen to collect."""
    recorded_ns: int
    stretch_ns: float
    """How long it ran at a time, in the mean: each such stretch is one event for statistics."""
    usual_ns: float = 0.0
    """What it usually computes in a step, without pauses, in the mean of the steps that make the same calls as others;
    0 where there are none."""


def host_runs(timeline: RankTimeline, covered: Coverage) -> HostRuns | None:
    """Return when the host of a CPU run computed, ran and paused; None where nothing shows that it ran, and with a
    device.

    None also where the system's own account says how long its thread waited for a core. Raises HostEventsError.
    """
    if timeline.has_device or not timeline.has_host_events or reading_series(timeline, QUEUED)[0].size > 1:
        return None
    host = without_functions(timeline.host)
    moments = unique(np.concatenate([host.start_ns, host.end_ns]))
    close = np.flatnonzero(np.diff(moments) < CLOSE_NS)
    series = list(_series(timeline, host))
    longer = [each.longer for each in series]
    shown = difference(
        union((moments[close], moments[close + 1]), *_short_operations(timeline, host)),
        union(*((each.start_ns, each.end_ns) for each in longer)),
    )
    ran = _lasting(shown)
    if not ran.starts.size:
        return None
    return HostRuns(
        computing=union(covered.compute, ran), ran=ran,
        wanted=_lasting(union(shown, *(each.otherwise_short() for each in longer))),
        paused=union(*(each.pauses() for each in longer)),
        stood_still=difference(
            union(*(each.pauses(each.usual_step, STILL_NS) for each in longer)), recorded_pauses(timeline, COLLECTOR)
        ),
        recorded_ns=int(moments[-1] - moments[0]), stretch_ns=length(ran) / ran.starts.size,
        usual_ns=_usual_ns(series),
    )  # fmt: skip


def readable_host_runs(timeline: RankTimeline, covered: Coverage) -> HostRuns | None:
    """Return `host_runs`; None also where the rank's host events cannot be read: other figures do not need them."""
    if timeline.host_is_lost:
        return None
    try:
        return host_runs(timeline, covered)
    except HostEventsError:  # `RankTimeline.host_error` has it
        return None


def _short_operations(timeline: RankTimeline, host: HostSpans) -> Iterator[Intervals]:
    """Yield, thread by thread, the stretches of computation between two moments of its calls that last no longer."""
    for lane, computes in _computation(timeline):
        calls = host.lane == lane
        moments = unique(np.concatenate([host.start_ns[calls], host.end_ns[calls]]))
        short = np.flatnonzero(np.diff(moments) <= OPERATION_NS)
        yield intersection(union((moments[short], moments[short + 1])), computes)


def _computation(timeline: RankTimeline) -> Iterator[tuple[int, Intervals]]:
    """Yield each thread that computes, and when it did."""
    spans = timeline.spans
    computes = spans.kind == COMPUTE
    for lane in unique(spans.lane[computes]).tolist():
        own = computes & (spans.lane == lane)
        yield lane, union((spans.start_ns[own], spans.end_ns[own]))


def _lasting(ran: Intervals) -> Intervals:
    """Return the long intervals, without their edges."""
    long = ran.ends - ran.starts >= LASTING_NS
    return Intervals(ran.starts[long] + EDGE_NS, ran.ends[long] - EDGE_NS)


class _LongerParts(NamedTuple):
    """Parts of operations, between two moments of the calls of a thread, that took longer than usual."""

    start_ns: Ints
    end_ns: Ints
    usual_ns: Ints
    usual_step: Flags
    """Whether most of its step took no longer."""

    def pauses(self, among: Flags | None = None, least_ns: int = PAUSE_NS) -> tuple[Ints, Ints]:
        """Return the starts and ends of what was longer by so much; of `among` alone, if given."""
        paused = self.end_ns - self.start_ns - self.usual_ns >= least_ns
        paused = paused if among is None else paused & among
        return (self.start_ns + self.usual_ns)[paused], self.end_ns[paused]

    def otherwise_short(self) -> tuple[Ints, Ints]:
        """Return the starts and ends of those with a pause that are usually shorter than a turn."""
        took = self.end_ns - self.start_ns
        short = (took - self.usual_ns >= PAUSE_NS) & (self.usual_ns <= OPERATION_NS) & (took >= SLOWED * self.usual_ns)
        return self.start_ns[short], self.end_ns[short]


class _Series(NamedTuple):
    """Steps in which a thread makes the same calls."""

    lane: int
    steps: int
    usual_ns: float
    """What the thread usually computes in one."""
    longer: _LongerParts


def _usual_ns(series: Sequence[_Series]) -> float:
    """Return what all threads usually compute in a step."""
    found = 0.0
    for lane in {each.lane for each in series}:
        own = [each for each in series if each.lane == lane]
        found += sum(each.steps * each.usual_ns for each in own) / sum(each.steps for each in own)
    return found


def _series(timeline: RankTimeline, host: HostSpans) -> Iterator[_Series]:
    """Yield, for each thread, each series of steps in which it makes the same calls.

    Of operations alone: what lies between two may be a wait.
    """
    for lane, computation in _computation(timeline):
        computes = BusyTime(computation)
        calls = (host.lane == lane) & (host.kind == OPERATION)
        moments = np.sort(np.concatenate([host.start_ns[calls], host.end_ns[calls]]))
        for first, number in _like_steps(timeline, host.start_ns[calls], host.name[calls], moments):
            rows = first[:, None] + np.arange(number - 1)
            start, end = moments[rows], moments[rows + 1]
            took = end - start
            usual = np.broadcast_to(np.quantile(took, USUAL, axis=0, method="lower"), took.shape)
            in_compute = (computes.within(start.ravel(), end.ravel()) == took.ravel()).reshape(took.shape)
            weighs = usual * in_compute
            as_usual = (weighs * (took <= ABOUT * usual)).sum(axis=1) >= MOSTLY * weighs.sum(axis=1)
            long = ((took >= SLOWED * usual + CLOSE_NS) | (took - usual >= PAUSE_NS)) & in_compute
            parts = _LongerParts(
                start[long], end[long], usual[long], np.broadcast_to(as_usual[:, None], took.shape)[long]
            )
            yield _Series(lane, first.size, float(weighs.sum(axis=1).mean()), parts)


def _like_steps(timeline: RankTimeline, start_ns: Ints, name: Ints, moments: Ints) -> Iterator[tuple[Ints, int]]:
    """Yield the first moments (rows) of all steps in which a thread made the same calls, and how many each has.

    `start_ns` and `name` are those of its calls, `moments` their sorted starts and ends.
    """
    order = np.argsort(start_ns, kind="stable")
    start_ns, name = start_ns[order], name[order]
    whole = ~timeline.steps.cut
    found: dict[tuple[bytes, int], list[int]] = {}
    for times in zip(timeline.steps.start_ns[whole].tolist(), timeline.steps.end_ns[whole].tolist(), strict=True):
        begin, end = np.searchsorted(start_ns, times).tolist()
        first, last = np.searchsorted(moments, times).tolist()
        found.setdefault((name[begin:end].tobytes(), last - first), []).append(first)
    for (_, number), firsts in found.items():
        if len(firsts) >= ALIKE and number > 1:
            yield np.array(firsts, np.int64), number
