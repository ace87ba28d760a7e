"""The calls of one group on all its recorded ranks as one table, with what kind each is: operation, type and size."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from overlapscope.timeline.columns import NONE, Codes, Ints, or_none
from overlapscope.timeline.rows import distinct
from overlapscope.timeline.run import RankTimeline, Run

EXCHANGE = "all_to_all"


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """What makes two calls comparable; of uneven ones (False for `even`) `bytes` is None."""

    op: str
    dtype: str | None
    bytes: int | None
    even: bool = True

    def __str__(self) -> str:
        return f"{self.op} of {spelled_size(self.bytes)}"


class GroupCalls(msgspec.Struct, frozen=True, kw_only=True):
    """One row a call, rank by rank, on each in order of time."""

    ranks: tuple[int, ...]
    place: Codes
    """Which of `ranks` made it."""
    row: Codes
    """Row in that rank's `Collectives`."""
    kind: Codes
    """Which of `kinds` it is."""
    kinds: tuple[Kind, ...]
    """In the order of their first call; then those that calls are of only where an all-to-all is uneven."""
    loose_of: Codes
    """Which of `kinds` a call of each kind is where an all-to-all is uneven, whatever its size."""
    end_ns: Ints

    @property
    def loose(self) -> Codes:
        """The kind of each call where an all-to-all is uneven."""
        return self.loose_of[self.kind]

    def of(self, place: int) -> slice:
        """Return the rows of one rank."""
        first, last = np.searchsorted(self.place, [place, place + 1]).tolist()
        return slice(first, last)


_Key = tuple[str, str | None, int, bool]
"""Operation, type, size and evenness."""


def group_calls(run: Run, ranks: Sequence[int], rows_of: Mapping[int, Codes]) -> GroupCalls:
    """Put the calls of a group together; `rows_of` holds their rows by rank, in order of time."""
    known: dict[_Key, int] = {}
    kind, end = [], []
    for rank in ranks:
        codes, ends = _kinds_and_ends(run.ranks[rank], rows_of[rank], known)
        kind.append(codes)
        end.append(ends)
    loose_of = [known.setdefault(_loose(key), len(known)) for key in list(known)]
    loose_of += range(len(loose_of), len(known))
    counts = [rows_of[rank].size for rank in ranks]
    return GroupCalls(
        ranks=tuple(ranks),
        place=np.repeat(np.arange(len(ranks), dtype=np.int32), counts),
        row=np.concatenate([rows_of[rank] for rank in ranks]),
        kind=np.concatenate(kind),
        kinds=tuple(Kind(op=op, dtype=dtype, bytes=or_none(volume), even=even) for op, dtype, volume, even in known),
        loose_of=np.array(loose_of, np.int32),
        end_ns=np.concatenate(end),
    )


def _kinds_and_ends(timeline: RankTimeline, rows: Codes, known: dict[_Key, int]) -> tuple[Codes, Ints]:
    """Return the kind of each call of a rank, as its number in `known`, and when it ended."""
    calls, names = timeline.collectives, timeline.names
    op, dtype, volume, received = (
        getattr(calls, column)[rows] for column in ("op", "dtype", "bytes", "received_bytes")
    )
    even = (received == NONE) | (received == volume)
    volume = np.where(even, volume, NONE)
    which, first = distinct([op, dtype, volume, even])
    keys = zip(*(each[first].tolist() for each in (op, dtype, volume, even)), strict=True)
    told = [(names[op], names[dtype] if dtype >= 0 else None, volume, even) for op, dtype, volume, even in keys]
    numbers = [known.setdefault(key, len(known)) for key in told]
    return np.array(numbers, np.int32)[which], calls.end_ns[rows]


def _loose(key: _Key) -> _Key:
    op, dtype, _, _ = key
    return (op, dtype, NONE, False) if op == EXCHANGE else key


def spelled_size(volume: int | None) -> str:
    """Name a size for a reason."""
    return "unknown size" if volume is None else f"{volume} bytes"


def named(group: str | None) -> str:
    """Name a group for a reason."""
    return f"group {group}" if group is not None else "calls of no named group"
