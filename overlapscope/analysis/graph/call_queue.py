"""For how long calls were held on their stream by calls of another operation or group that ran before them."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Self

import msgspec
import numpy as np

from overlapscope.timeline.columns import NONE, Flags, Ints
from overlapscope.timeline.intervals import BusyTime, Intervals, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import POINT_TO_POINT
from overlapscope.timeline.rows import ascending, factorize_rows, split_by, values_in
from overlapscope.timeline.run import RankTimeline


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """The communication of a rank on its streams; one row for each span."""

    start_ns: Ints
    end_ns: Ints
    lane: Ints
    kind: Ints
    """Number of its stream, operation and group; of a span without a collective by its name."""
    is_message: Flags
    """Whether it is a send or a receive."""

    @classmethod
    def of(cls, timeline: RankTimeline, rows: Ints, times: tuple[Ints, Ints]) -> Self:
        """Return the queue of these spans (rows), with their times."""
        spans, calls = timeline.spans, timeline.collectives
        lane, call = spans.lane[rows].astype(np.int64), spans.collective[rows]
        op, group = (np.append(each, NONE)[np.where(call == NONE, -1, call)] for each in (calls.op, calls.group))
        kind, _ = factorize_rows([lane, op, group, np.where(call == NONE, spans.name[rows], NONE)])
        messages = np.append(rows_named(calls.op, timeline.names, POINT_TO_POINT.__contains__), False)
        is_message = messages[np.where(call == NONE, -1, call)]
        return cls(start_ns=times[0], end_ns=times[1], lane=lane, kind=kind, is_message=is_message)

    def since_like(self, asked: Ints, since_ns: Ints) -> Ints:
        """Return the later of a moment and the end of the last call like each of the `asked` spans on its stream, which
        has the delay until then already; at most the span's start.

        A call behind its like waits for the link: on another stream both would share it.
        """
        found = np.empty(asked.size, np.int64)
        for own in split_by(self.kind[asked]):
            like, starts = np.flatnonzero(self.kind == self.kind[asked[own[0]]]), self.start_ns[asked[own]]
            ends = np.append(NONE, ascending(self.end_ns[like]))
            last = ends[np.searchsorted(ends[1:], starts, side="right")]
            found[own] = np.minimum(np.maximum(since_ns[own], last), starts)
        return found

    def held_ns(self, asked: Ints, since_ns: Ints) -> Ints:
        """Return for how long, from a moment to the start of each of the `asked` spans, calls of another operation or
        group ran on its stream: since the last one like it (`since_like`)."""
        held, since_ns = np.zeros(asked.size, np.int64), self.since_like(asked, since_ns)
        later = np.flatnonzero(since_ns < self.start_ns[asked])
        for lane in values_in(self.lane[asked[later]]).tolist():
            own = later[self.lane[asked[later]] == lane]
            held[own] = self._held_on(np.flatnonzero(self.lane == lane), asked[own], since_ns[own])
        return held

    def _held_on(self, rows: Ints, asked: Ints, since_ns: Ints) -> Ints:
        """Return the same for spans of one stream, which has these rows: for how long it was busy, less for how long
        with none but their like."""
        held = np.zeros(asked.size, np.int64)
        kinds = split_by(self.kind[rows])
        if len(kinds) == 1:
            return held
        busy = BusyTime(union((self.start_ns[rows], self.end_ns[rows])))
        like = {int(self.kind[rows[each[0]]]): rows[each] for each in kinds}
        running = [union((self.start_ns[each], self.end_ns[each])) for each in like.values()]
        alone = dict(zip(like, _alone(running), strict=True))
        for own in split_by(self.kind[asked]):
            since, until = since_ns[own], self.start_ns[asked[own]]
            held[own] = busy.within(since, until) - alone[int(self.kind[asked[own[0]]])].within(since, until)
        return held

    def held_in_ns(self, times: Intervals, lanes: Ints, asked: Ints, since_ns: Ints) -> Ints:
        """Return how much of some times, each on one stream, lies where `held_ns` looks."""
        found, since_ns = np.zeros(asked.size, np.int64), self.since_like(asked, since_ns)
        for lane in values_in(lanes).tolist():
            own, on_lane = np.flatnonzero(self.lane[asked] == lane), lanes == lane
            busy = BusyTime(union((times.starts[on_lane], times.ends[on_lane])))
            found[own] = busy.within(since_ns[own], self.start_ns[asked[own]])
        return found


def _alone(running: Sequence[Intervals]) -> list[BusyTime]:
    """Return of each of several activities when it ran and no other did."""
    number = np.repeat(np.arange(len(running)), [each.starts.size for each in running])
    times = np.concatenate([each.starts for each in running] + [each.ends for each in running])
    change = np.repeat([1, -1], number.size)
    order = np.argsort(times, kind="stable")
    at, many = times[order], np.cumsum(change[order])
    which = np.cumsum((change * np.tile(number, 2))[order])  # the sum of those that run: of one, its number
    one = np.flatnonzero((many[:-1] == 1) & (at[1:] > at[:-1]))
    one = one[np.argsort(which[one], kind="stable")]
    cuts = np.searchsorted(which[one], np.arange(len(running) + 1))
    return [BusyTime(Intervals(at[one[begin:end]], at[one[begin:end] + 1])) for begin, end in pairwise(cuts.tolist())]
