"""The calls of one group on all its recorded ranks as one table, with what kind each is: operation, type and size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from overlapscope.analysis.distinct import distinct
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.run import Run

EXCHANGE = "all_to_all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What makes two calls comparable; of uneven ones (False for `even`) `bytes` is None."""

    op: str
    dtype: str | None
    bytes: int | None
    even: bool = True

    def __str__(self) -> str:
        return f"{self.op} of {spelled_size(self.bytes)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCalls:
    """One row a call, rank by rank, on each in order of time."""

    ranks: tuple[int, ...]
    place: Ints
    """Which of `ranks` made it."""
    row: Ints
    """Row in that rank's `Collectives`."""
    kind: Ints
    """Which of `kinds` it is; these stand in the order of their first call."""
    loose: Ints
    """The same, where an all-to-all is uneven, whatever its size."""
    kinds: tuple[Kind, ...]
    end_ns: Ints

    def of(self, place: int) -> slice:
        """Give the rows of one rank."""
        first, last = np.searchsorted(self.place, [place, place + 1]).tolist()
        return slice(first, last)


def group_calls(run: Run, ranks: Sequence[int], rows_of: Mapping[int, Ints]) -> GroupCalls:
    """Put the calls of a group together; `rows_of` holds their rows by rank, in order of time."""
    ops: dict[str, int] = {}
    dtypes: dict[str, int] = {}
    columns: list[tuple[Ints, ...]] = []
    for at, rank in enumerate(ranks):
        calls, rows = run.ranks[rank].collectives, rows_of[rank]
        names = run.ranks[rank].names
        volume, received = calls.bytes[rows], calls.received_bytes[rows]
        columns.append(
            (
                np.full(rows.size, at, np.int64),
                rows,
                _coded(calls.op[rows], names, ops),
                _coded(calls.dtype[rows], names, dtypes),
                volume,
                ((received == NONE) | (received == volume)).astype(np.int64),
                calls.end_ns[rows],
            )
        )
    place, row, op, dtype, volume, even, end = (np.concatenate(each) for each in zip(*columns, strict=True))
    exchange = op == ops.get(EXCHANGE, NONE)
    volume = np.where(even == 1, volume, NONE)
    size = op.size
    # Every call twice: as it is, and as the uneven exchange that it may be part of.
    every = [np.tile(each, 2) for each in (op, dtype)]
    every += [np.append(volume, np.where(exchange, NONE, volume)), np.append(even, np.where(exchange, 0, even))]
    code, first = distinct(every)
    op_names, dtype_names = list(ops), list(dtypes)
    kinds = tuple(
        Kind(
            op=op_names[int(every[0][at])],
            dtype=dtype_names[int(every[1][at])] if every[1][at] >= 0 else None,
            bytes=None if every[2][at] == NONE else int(every[2][at]),
            even=bool(every[3][at]),
        )
        for at in first.tolist()
    )
    return GroupCalls(
        ranks=tuple(ranks), place=place, row=row, kind=code[:size], loose=code[size:], kinds=kinds, end_ns=end
    )


def _coded(codes: npt.NDArray[np.int32], names: Sequence[str], known: dict[str, int]) -> Ints:
    """Give names' codes of one rank as codes that all ranks share."""
    found, at = np.unique(codes, return_inverse=True)
    shared = [known.setdefault(names[code], len(known)) if code >= 0 else -1 for code in found.tolist()]
    return np.array(shared, np.int64)[at]


def spelled_size(volume: int | None) -> str:
    """Name a size for a reason."""
    return "unknown size" if volume is None else f"{volume} bytes"


def named(group: str | None) -> str:
    """Name a group for a reason."""
    return f"group {group}" if group is not None else "calls of no named group"


def listed(ranks: Sequence[int]) -> str:
    """Name a few ranks for a reason."""
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
