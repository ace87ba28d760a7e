"""The calls of one group on all its recorded ranks as one table, with the kind (operation, type, size) of each."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from overlapscope.timeline.columns import NONE, Codes, Ints, or_none
from overlapscope.timeline.rows import factorize_rows
from overlapscope.timeline.run import RankTimeline, Run

EXCHANGE = "all_to_all"


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """The key by which calls of two ranks can be the same call; `bytes` is None where `even` is False."""

    op: str
    dtype: str | None
    bytes: int | None
    even: bool = True

    def __str__(self) -> str:
        return f"{self.op} of {spelled_size(self.bytes)}"


class GroupCalls(msgspec.Struct, frozen=True, kw_only=True):
    """One row for each call, rank by rank, and in order of time within a rank."""

    ranks: tuple[int, ...]
    place: Codes
    """Position in `ranks` of the rank that made it."""
    row: Codes
    """Row in that rank's `Collectives`."""
    kind: Codes
    """Position in `kinds`."""
    kinds: tuple[Kind, ...]
    """In the order of their first call; then those that only uneven all-to-all calls have."""
    loose_of: Codes
    """For each kind, the kind to use where an all-to-all is uneven: for all-to-all, the one without a size."""
    end_ns: Ints
    size: Ints
    """Size of the group as the rank recorded it; NONE without a record."""

    @property
    def loose(self) -> Codes:
        """The kind of each call, with all-to-all calls of any size as one kind."""
        return self.loose_of[self.kind]

    def of(self, place: int) -> slice:
        """Return the rows of one rank."""
        first, last = np.searchsorted(self.place, [place, place + 1]).tolist()
        return slice(first, last)


_Key = tuple[str, str | None, int, bool]
"""Operation, type, size and evenness."""


def group_calls(run: Run, ranks: Sequence[int], rows_of: Mapping[int, Codes]) -> GroupCalls:
    """Join the calls of a group into one table; `rows_of` holds their rows by rank, in order of time."""
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
        size=np.concatenate([run.ranks[rank].collectives.group_size[rows_of[rank]] for rank in ranks]),
    )


def _kinds_and_ends(timeline: RankTimeline, rows: Codes, known: dict[_Key, int]) -> tuple[Codes, Ints]:
    """Return the kind of each call of a rank, as its number in `known`, and the end of each call."""
    calls, names = timeline.collectives, timeline.names
    op, dtype, volume, received = (
        getattr(calls, column)[rows] for column in ("op", "dtype", "bytes", "received_bytes")
    )
    even = (received == NONE) | (received == volume)
    volume = np.where(even, volume, NONE)
    which, first = factorize_rows([op, dtype, volume, even])
    keys = zip(*(each[first].tolist() for each in (op, dtype, volume, even)), strict=True)
    keys_as_text = [(names[op], names[dtype] if dtype >= 0 else None, volume, even) for op, dtype, volume, even in keys]
    numbers = [known.setdefault(key, len(known)) for key in keys_as_text]
    return np.array(numbers, np.int32)[which], calls.end_ns[rows]


def _loose(key: _Key) -> _Key:
    op, dtype, _, _ = key
    return (op, dtype, NONE, False) if op == EXCHANGE else key


def spelled_size(volume: int | None) -> str:
    """Return a size as text for a reason."""
    return "unknown size" if volume is None else f"{volume} bytes"


def named(group: str | None) -> str:
    """Return a group as text for a reason."""
    return f"group {group}" if group is not None else "calls of an unnamed group"
