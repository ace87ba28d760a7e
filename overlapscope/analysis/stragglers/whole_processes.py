"""Take from the pauses of a rank's host what its process did for other ranks.

A process that drives several devices is several ranks, each with the calls to its own device.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.graph.idle import LONG_PAUSE_NS
from overlapscope.analysis.stragglers.long_pauses import Around, LongPauses, acting, around, launching
from overlapscope.timeline.columns import HOST, HostSpans, Ints, take
from overlapscope.timeline.lazy_host_spans import without_functions
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import RankTimeline

Thread = tuple[str | None, str | None]
"""Its process and its label, as the source writes them."""


def of_whole_processes(ranks: Mapping[int, RankTimeline], known: Mapping[int, LongPauses]) -> dict[int, LongPauses]:
    """Return the pauses of each of the `known` ranks, cut to the longest part in which the threads that launch for it
    launched nothing for other ranks of its process, either; without those that are then short.

    Processes are the same if one file names them alike. Raises HostEventsError.
    """
    processes = {rank: _processes(timeline) for rank, timeline in ranks.items()}
    found = {}
    for rank, own in known.items():
        others = [
            timeline
            for other, timeline in ranks.items()
            if other != rank and processes[other] & processes[rank] and not timeline.host_is_lost
        ]
        found[rank] = _cut(own, ranks[rank], others) if own.start_ns.size and others else own
    return found


def _processes(timeline: RankTimeline) -> set[Thread]:
    """Return the processes of a rank's threads: the file, and the number in it."""
    sources = {timeline.name(code) for code in unique(timeline.recordings.source).tolist()}
    numbers = {timeline.name(code) for code in unique(timeline.lanes.process[timeline.lanes.kind == HOST]).tolist()}
    return {(source, number) for source in sources - {None} for number in numbers - {None}}


def _cut(pauses: LongPauses, timeline: RankTimeline, others: Sequence[RankTimeline]) -> LongPauses:
    """Return the pauses without what other ranks' calls of the same threads take from them."""
    host = without_functions(timeline.host)
    threads = {_thread(timeline, lane) for lane in unique(host.lane[launching(timeline, host)]).tolist()}
    shared = [(timeline, acting(timeline, host)), *((each, _of_threads(each, threads)) for each in others)]
    moments = unique(np.concatenate([each for _, own in shared for each in (own.start_ns, own.end_ns)]))
    parts = [_longest_part(moments, *each) for each in zip(pauses.start_ns, pauses.end_ns, strict=True)]
    start, end = (np.array(each, np.int64) for each in zip(*parts, strict=True))
    kept = np.flatnonzero(end - start >= LONG_PAUSE_NS)
    start, end = start[kept], end[kept]
    return replace(
        pauses, start_ns=start, end_ns=end, idle_ns=np.minimum(pauses.idle_ns[kept], end - start),
        step=pauses.step[kept], into_step_ns=pauses.into_step_ns[kept] + start - pauses.start_ns[kept],
        between=_between([around(each, own, start, end) for each, own in shared if own.start_ns.size]),
        lane=tuple(pauses.lane[row] for row in kept.tolist()),
        inside=tuple(pauses.inside[row] for row in kept.tolist()),
    )  # fmt: skip


def _thread(timeline: RankTimeline, lane: int) -> Thread:
    return timeline.name(int(timeline.lanes.process[lane])), timeline.name(int(timeline.lanes.label[lane]))


def _of_threads(timeline: RankTimeline, threads: set[Thread]) -> HostSpans:
    """Return the host spans of a rank in these threads, of those that make its step."""
    host = acting(timeline, without_functions(timeline.host))
    lanes = [lane for lane in unique(host.lane).tolist() if _thread(timeline, lane) in threads]
    return take(host, np.isin(host.lane, lanes))


def _longest_part(moments: Ints, start: int, end: int) -> tuple[int, int]:
    """Return the longest part of a pause without any of these moments inside."""
    inside = moments[np.searchsorted(moments, start, side="right") : np.searchsorted(moments, end)]
    borders = np.concatenate([[start], inside, [end]])
    at = int(np.argmax(np.diff(borders)))
    return int(borders[at]), int(borders[at + 1])


def _between(found: Sequence[Around]) -> tuple[tuple[str, str], ...]:
    """Return what is nearest before and after each pause, of several ranks."""
    first = np.argmax([each.before_ns for each in found], axis=0).tolist()
    last = np.argmin([each.after_ns for each in found], axis=0).tolist()
    return tuple(
        (found[a].before[row], found[b].after[row]) for row, (a, b) in enumerate(zip(first, last, strict=True))
    )
