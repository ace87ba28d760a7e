"""Take from the pauses of a rank's host what its process did for other ranks.

A process that drives several devices is several ranks, each with the calls to its own device. What they need to know of
each other is found rank by rank, while its host spans are in memory: when each of its threads was silent.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.graph.idle import LONG_PAUSE_NS
from overlapscope.analysis.pauses.long_pauses import LATEST, Around, LongPauses, acting, around, launching, place_names
from overlapscope.timeline.columns import NONE, Flags, Ints, take
from overlapscope.timeline.lazy_host_spans import without_functions
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import RankTimeline

Thread = tuple[str | None, str | None]
"""The number of its process and its label, as the source writes them."""


class Silences(msgspec.Struct, frozen=True, kw_only=True):
    """The times of `LONG_PAUSE_NS` or more in which a thread begins and ends nothing of a rank, by begin, on the rank's
    own clock, one row each; the first is all time before its first span, from NONE on, the last that after its last
    one, until `LATEST`."""

    launches: bool
    """Whether it launches what the rank's device does."""
    start_ns: Ints
    end_ns: Ints
    around: Around
    """What it did before and after each."""

    def at(self, times_ns: Ints) -> Ints:
        """Return the row of the last silence that has begun at each of these times."""
        found: Ints = np.searchsorted(self.start_ns, times_ns, side="right") - 1
        return found

    def hold(self, start_ns: Ints, end_ns: Ints) -> Flags:
        """Return which of these times lie in a silence."""
        return np.asarray(end_ns <= self.end_ns[self.at(start_ns)], np.bool_)


def thread_silences(timeline: RankTimeline) -> dict[Thread, Silences]:
    """Return when each thread that makes a rank's step was silent. Raises HostEventsError."""
    host = without_functions(timeline.host)
    mine, launch = acting(timeline, host), unique(host.lane[launching(timeline, host)])
    named = place_names(timeline, mine)
    lanes_of: dict[Thread, list[int]] = {}
    for lane in unique(mine.lane).tolist():
        lanes_of.setdefault(_thread(timeline, lane), []).append(lane)
    found = {}
    for thread, lanes in lanes_of.items():
        own = np.isin(mine.lane, lanes)
        moments = unique(np.concatenate([mine.start_ns[own], mine.end_ns[own]]))
        long = np.concatenate([[True], np.diff(moments) >= LONG_PAUSE_NS, [True]])
        start, end = np.append(NONE, moments)[long], np.append(moments, LATEST)[long]
        found[thread] = Silences(
            launches=bool(np.isin(lanes, launch).any()), start_ns=start, end_ns=end,
            around=around(timeline, take(named, np.isin(named.lane, lanes)), start, end),
        )  # fmt: skip
    return found


def _thread(timeline: RankTimeline, lane: int) -> Thread:
    return timeline.name(int(timeline.lanes.process[lane])), timeline.name(int(timeline.lanes.label[lane]))


def of_whole_processes(
    known: Mapping[int, LongPauses],
    together: Sequence[Sequence[int]],
    silences: Mapping[int, Mapping[Thread, Silences]],
) -> dict[int, LongPauses]:
    """Return the pauses of each of the `known` ranks, cut to the longest part in which the threads that launch for it
    launched nothing for other ranks of its process, either; without those that are then short.

    `together` are the ranks of each process that is several; `silences` holds `thread_silences` of these, without ranks
    whose host events could not be read.
    """
    others: defaultdict[int, set[int]] = defaultdict(set)
    for ranks in together:
        for rank in ranks:
            others[rank] |= set(ranks) - {rank}
    found = dict(known)
    for rank, own in known.items():
        beside = [silences[other] for other in sorted(others[rank] & silences.keys())]
        if beside and rank in silences:
            found[rank] = _cut(own, _shared(silences[rank], beside))
    return found


def _shared(own: Mapping[Thread, Silences], others: Sequence[Mapping[Thread, Silences]]) -> list[Silences]:
    """Return the silences of a rank's threads, and those that its launching threads have for other ranks."""
    launch = [thread for thread, each in own.items() if each.launches]
    return [*own.values(), *(each[thread] for each in others for thread in launch if thread in each)]


def _cut(pauses: LongPauses, shared: Sequence[Silences]) -> LongPauses:
    """Return the pauses of a rank without what these threads take from them."""
    parts = [_longest_part(shared, *each) for each in zip(pauses.start_ns, pauses.end_ns, strict=True)]
    start, end = np.array(parts, np.int64).reshape(-1, 2).T
    kept = np.flatnonzero(end - start >= LONG_PAUSE_NS)
    start, end = start[kept], end[kept]
    return replace(
        pauses, start_ns=start, end_ns=end, idle_ns=np.minimum(pauses.idle_ns[kept], end - start),
        step=pauses.step[kept], into_step_ns=pauses.into_step_ns[kept] + start - pauses.start_ns[kept],
        between=_between(shared, start),
        outside=None if pauses.outside is None else _cut(pauses.outside, shared),
        lane=tuple(pauses.lane[row] for row in kept.tolist()),
        inside=tuple(pauses.inside[row] for row in kept.tolist()),
    )  # fmt: skip


def _longest_part(shared: Sequence[Silences], start: int, end: int) -> tuple[int, int]:
    """Return the longest part of a pause in which all these threads are silent; an empty one where there is none."""
    moments = np.concatenate([each for own in shared for each in (own.start_ns, own.end_ns)])
    borders = unique(np.concatenate([[start, end], moments[(moments > start) & (moments < end)]]))
    begins, ends = borders[:-1], borders[1:]
    silent = np.all([own.hold(begins, ends) for own in shared], axis=0)
    at = int(np.argmax(np.where(silent, ends - begins, 0)))
    return int(begins[at]), int(ends[at] if silent[at] else begins[at])


def _between(shared: Sequence[Silences], start: Ints) -> tuple[tuple[str, str], ...]:
    """Return what these threads did nearest before and after the silences of all that begin there."""
    rows = [own.at(start) for own in shared]
    first = np.argmax([own.around.before_ns[at] for own, at in zip(shared, rows, strict=True)], axis=0).tolist()
    last = np.argmin([own.around.after_ns[at] for own, at in zip(shared, rows, strict=True)], axis=0).tolist()
    return tuple(
        (shared[a].around.before[rows[a][place]], shared[b].around.after[rows[b][place]])
        for place, (a, b) in enumerate(zip(first, last, strict=True))
    )
