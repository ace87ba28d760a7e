"""What NCCL chose for a call is written by member 0 alone and holds for all: the other members' calls get it too."""

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.timeline.columns import Flags, Ints
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import RankTimeline


class _Told(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one group on the rank that knows what was chosen."""

    timeline: RankTimeline
    rows: Ints
    seq: Ints


def share_choices(timelines: Sequence[RankTimeline]) -> tuple[RankTimeline, ...]:
    """Give each call without a choice that of the same call on another rank: of the same group, number and size.

    Calls of one number were launched together; they are told apart by their order, which all ranks share.
    """
    told: dict[str, _Told] = {}
    for timeline in timelines if len(timelines) > 1 else ():
        calls = timeline.collectives
        for code in np.unique(calls.group[calls.algorithm >= 0]).tolist():
            rows = np.flatnonzero(calls.group == code)
            if code >= 0 and _ascends(calls.seq[rows]):
                told.setdefault(timeline.names[code], _Told(timeline=timeline, rows=rows, seq=calls.seq[rows]))
    return tuple(_with_choices(timeline, told) for timeline in timelines)


def _ascends(seq: Ints) -> bool:
    return bool((seq[1:] >= seq[:-1]).all())


def _with_choices(timeline: RankTimeline, told: dict[str, _Told]) -> RankTimeline:
    calls = timeline.collectives
    names = NameTable(timeline.names)
    algorithm, protocol, channels = calls.algorithm, calls.protocol, calls.channels
    for code in np.unique(calls.group).tolist():
        leader = told.get(timeline.names[code]) if code >= 0 else None
        if leader is None or leader.timeline is timeline:
            continue
        rows = np.flatnonzero(calls.group == code)
        seq = calls.seq[rows]
        if not _ascends(seq):
            continue
        if np.array_equal(seq, leader.seq):
            place = leader.rows
        else:
            nth = np.arange(seq.size) - np.searchsorted(seq, seq)
            place = np.searchsorted(leader.seq, seq) + nth
            there = place < np.searchsorted(leader.seq, seq, side="right")
            rows, place = rows[there], leader.rows[place[there]]
        same = _same(timeline, rows, leader.timeline, place) & (algorithm[rows] < 0)
        rows, place = rows[same], place[same]
        if not rows.size:
            continue
        of = leader.timeline.collectives
        codes = np.append(names.encode(leader.timeline.names), np.int32(-1))
        algorithm, protocol, channels = algorithm.copy(), protocol.copy(), channels.copy()
        algorithm[rows], protocol[rows] = codes[of.algorithm[place]], codes[of.protocol[place]]
        channels[rows] = of.channels[place]
    if algorithm is calls.algorithm:
        return timeline
    calls = replace(calls, algorithm=algorithm, protocol=protocol, channels=channels)
    return replace(timeline, names=tuple(names.to_list()), collectives=calls)


def _same(one: RankTimeline, rows: Ints, other: RankTimeline, places: Ints) -> Flags:
    """Whether these calls of two ranks are of the same operation and size."""
    table = NameTable(one.names)
    codes = np.append(table.encode(other.names), np.int32(-1))
    same: Flags = one.collectives.elements[rows] == other.collectives.elements[places]
    for name in ("op", "dtype"):
        same &= getattr(one.collectives, name)[rows] == codes[getattr(other.collectives, name)[places]]
    return same
