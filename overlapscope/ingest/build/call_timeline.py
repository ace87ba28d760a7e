"""Build the timeline of a rank's logged calls: in order, without times of device work, basis `log`."""

from collections.abc import Sequence

import msgspec

from overlapscope.timeline.columns import (
    Annotations,
    Collectives,
    Lanes,
    Recordings,
    Spans,
    Steps,
    integers,
    make,
)
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import UNKNOWN_RANK, RankTimeline

_NAMES = ("op", "group", "dtype")
_NUMBERS = ("group_size", "seq", "elements", "bytes", "record_function_id")


class LoggedCall(msgspec.Struct, frozen=True, kw_only=True):
    """One collective in a log; None for values that the log does not state."""

    op: str
    group: str | None = None
    group_size: int | None = None
    seq: int | None = None
    dtype: str | None = None
    elements: int | None = None
    bytes: int | None = None
    record_function_id: int | None = None


def call_timeline(calls: Sequence[LoggedCall], source: str, rank: int = UNKNOWN_RANK) -> RankTimeline:
    """Return the timeline of a log's calls, in order, without spans and times."""
    names = NameTable()
    place = names.code(source)
    columns = {key: [getattr(call, key) for call in calls] for key in (*_NAMES, *_NUMBERS)}
    collectives = make(
        Collectives,
        len(calls),
        recording=0,
        **{key: [-1 if each is None else names.code(str(each)) for each in columns[key]] for key in _NAMES},
        **{key: integers(columns[key]) for key in _NUMBERS},
    )
    return timeline_from_calls(collectives, names, rank=rank, source=place, has_device=False)


def timeline_from_calls(
    calls: Collectives, names: NameTable, *, rank: int, source: int, has_device: bool, truncated: bool = False
) -> RankTimeline:
    """Return the timeline of calls that are already columns; `source` is the code of the log's name in `names`."""
    return RankTimeline(
        rank=rank,
        basis="log",
        has_device=has_device,
        recordings=make(Recordings, 1, source=source, truncated=truncated),
        spans=make(Spans, 0),
        collectives=calls,
        steps=make(Steps, 0),
        lanes=make(Lanes, 0),
        annotations=make(Annotations, 0),
        names=tuple(names.to_list()),
    )
