"""Rows beside the streams: host threads with their operations and runtime calls, and the critical path."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from overlapscope.analysis.graph.step_paths import FollowedPaths
from overlapscope.analysis.graph.walk import PARTS
from overlapscope.errors import HostEventsError
from overlapscope.report.palette import PATH_COLOURS
from overlapscope.report.perfetto.tracks import lane_name
from overlapscope.timeline.columns import ANNOTATION, NONE, OPERATION, RUNTIME, Codes, HostSpans, Ints, make, take
from overlapscope.timeline.intervals import BusyTime, union
from overlapscope.timeline.lazy_host_spans import select_host_spans
from overlapscope.timeline.python_stack import FRAME_KINDS
from overlapscope.timeline.run import RankTimeline, Run
from overlapscope_dashboards.timeline.lanes import places_in_view

HOST, PATH = "host", "path"
SHOWN: Final = (HOST, PATH)
"""What is shown on demand, by name in addresses."""
MOST_THREADS: Final = 2
"""Threads of a rank that are shown: those with the most calls; where none has any, the busiest one."""
MOST_LEVELS: Final = 4
"""Levels of operations and annotations that are shown, the outermost first."""
TRACK_COLOURS: Final = ("host", "launch", "compute", "exposed", "copy", "idle")
_OF_HOST, _OF_CALLS = 0, 1
_OF_PART: Final = np.array([TRACK_COLOURS.index(PATH_COLOURS[part]) for part in PARTS], np.int8)
Words = Callable[[Ints], list[str]]


class Track(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One row of named times, by start; relative to the run's start."""

    label: str
    lane: int
    """Row in the rank's `Lanes` that this row stands for in a chain; -1 for none."""
    thread: int
    """Row in the rank's `Lanes` of the host thread; -1 for none."""
    start_ns: Ints
    end_ns: Ints
    reach_ns: Ints
    """Running maximum of `end_ns`."""
    colour: npt.NDArray[np.int8]
    """Positions in `TRACK_COLOURS`."""
    busy: Mapping[int, BusyTime]
    """Covered time by colour."""
    words: Words
    """Names of the times at some positions."""

    @classmethod
    def of(
        cls, label: str, lane: int, start_ns: Ints, end_ns: Ints, colour: Any, words: Words, thread: int = -1
    ) -> "Track":  # fmt: skip
        """Return a row of these times; `colour` may be one value for all."""
        colours = np.broadcast_to(np.asarray(colour, np.int8), start_ns.shape)
        busy = {each: BusyTime(union((start_ns[colours == each], end_ns[colours == each])))
                for each in np.unique(colours).tolist()}  # fmt: skip
        reach = np.maximum.accumulate(end_ns) if end_ns.size else end_ns
        return cls(
            label=label, lane=lane, thread=thread, start_ns=start_ns, end_ns=end_ns, reach_ns=reach, colour=colours,
            busy=busy, words=words,
        )  # fmt: skip

    def in_view(self, start_ns: int, end_ns: int) -> Ints:
        """Return the positions of the times that overlap [start, end), in order."""
        return places_in_view(self.start_ns, self.end_ns, self.reach_ns, start_ns, end_ns)

    def cells(self, bins: Ints) -> npt.NDArray[np.uint8]:
        """Return for each bin 0 where nothing ran, else 1 + the colour with the most time."""
        if not self.busy:
            return np.zeros(bins.size - 1, np.uint8)
        spent = np.stack([each.within(bins[:-1], bins[1:]) for each in self.busy.values()])
        codes = np.array(list(self.busy), np.uint8) + 1
        return np.where(spent.any(axis=0), codes[spent.argmax(axis=0)], 0).astype(np.uint8)


class HostTracks(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The host threads of a rank: rows, and the calls that launched its spans."""

    tracks: tuple[Track, ...]
    calls: HostSpans
    """Runtime calls, on the rank's own clock."""
    frames: HostSpans
    """What was recorded of the Python stacks, on the rank's own clock: functions, or calls of modules alone."""
    left_out: int
    """Threads that are not shown."""


def host_tracks(timeline: RankTimeline, to_common_clock: Callable[[Ints], Ints]) -> HostTracks:
    """Return the rows of a rank's busiest host threads: nested operations and annotations, then runtime calls.

    There are none where its host events cannot be read; `host_is_lost` of the rank is then True.
    """
    try:
        table = select_host_spans(timeline.host, (OPERATION, ANNOTATION, RUNTIME))
        frames = select_host_spans(timeline.host, FRAME_KINDS)
    except HostEventsError:  # all else of the rank can be shown
        table = frames = make(HostSpans, 0)
    is_call = table.kind == RUNTIME
    lanes, number = np.unique(table.lane, return_inverse=True)
    calls = np.bincount(number[is_call], minlength=lanes.size)
    order = np.lexsort((-np.bincount(number, minlength=lanes.size), -calls))
    shown = order[: max(min(int(np.count_nonzero(calls)), MOST_THREADS), 1)]
    tracks = [track for lane in lanes[shown].tolist() for track in _thread(timeline, table, lane, to_common_clock)]
    return HostTracks(
        tracks=tuple(tracks), calls=take(table, is_call), frames=frames, left_out=int(lanes.size - shown.size),
    )  # fmt: skip


def _thread(
    timeline: RankTimeline, table: HostSpans, lane: int, to_common_clock: Callable[[Ints], Ints]
) -> list[Track]:
    thread = lane_name(timeline, lane).partition(" (")[0]
    own = np.flatnonzero(table.lane == lane)
    calls, nested = own[table.kind[own] == RUNTIME], own[table.kind[own] != RUNTIME]
    depth = nesting(table.start_ns[nested], table.end_ns[nested])
    parts = [(nested[depth == level], _OF_HOST) for level in range(MOST_LEVELS) if (depth == level).any()]
    parts += [(calls, _OF_CALLS)] if calls.size else []
    found = []
    for at, (rows, colour) in enumerate(parts):
        last = at == len(parts) - 1
        label = thread if at == 0 else "calls" if colour == _OF_CALLS else ""
        found.append(Track.of(
            label, lane if last else -1, to_common_clock(table.start_ns[rows]), to_common_clock(table.end_ns[rows]),
            colour, _names(timeline, table.name[rows]), lane,
        ))  # fmt: skip
    return found


def nesting(start_ns: Ints, end_ns: Ints) -> Ints:
    """Return how many of the times, sorted by start and then longest first, each lies in."""
    ends = np.sort(np.maximum(end_ns, start_ns + 1))
    depth: Ints = np.arange(start_ns.size) - np.searchsorted(ends, start_ns, side="right")
    return depth


def _names(timeline: RankTimeline, codes: Codes) -> Words:
    names = timeline.names
    return lambda at: [names[code] if code >= 0 else "unnamed" for code in codes[at].tolist()]


def launching_call(host: HostTracks, correlation: int, launch_ns: int) -> int | None:
    """Return the row in `calls` that launched a span at `launch_ns`, of the rank's own clock; None without a record.

    Each recording of a rank counts correlations anew: the number alone may be that of a call of another one.
    """
    if NONE in (correlation, launch_ns):
        return None
    found = np.flatnonzero((host.calls.correlation == correlation) & (host.calls.start_ns == launch_ns))
    return int(found[0]) if found.size else None


def path_track(run: Run, found: FollowedPaths, origin_ns: int) -> Track:
    """Return the critical paths as one row: neighbours of one rank and one part are one time."""
    parts, ranks, rows, names, starts, ends = (
        np.concatenate([getattr(path.segments, field) for path in found.paths] or [np.empty(0, np.int64)])
        for field in ("part", "rank", "row", "name", "start_ns", "end_ns")
    )
    del rows
    opens = np.flatnonzero(
        np.append(True, (np.diff(parts) != 0) | (np.diff(ranks) != 0) | (starts[1:] != ends[:-1]))[: parts.size]
    )
    last = np.append(opens[1:], parts.size)[: opens.size] - 1
    part, rank, name, number = parts[opens], ranks[opens], names[opens], last - opens + 1

    def words(at: Ints) -> list[str]:
        said = []
        for each in at.tolist():
            named = number[each] == 1 and name[each] >= 0
            known = run.ranks[int(rank[each])].name(int(name[each])) if named else None
            said.append(f"rank {rank[each]} {PARTS[part[each]].replace('_', ' ')}" + (f": {known}" if known else ""))
        return said

    return Track.of("critical path", -1, starts[opens] - origin_ns, ends[last] - origin_ns, _OF_PART[part], words)
