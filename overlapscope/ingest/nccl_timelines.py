"""The calls of an NCCL log as timelines: in order, without times of device work."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from overlapscope.ingest.calls_alone import calls_alone
from overlapscope.ingest.nccl_book import Book
from overlapscope.ingest.nccl_calls import Calls, times
from overlapscope.ingest.nccl_tables import none_if_untold
from overlapscope.ingest.nccl_world import World
from overlapscope.timeline.columns import (
    DTYPES,
    MISSING,
    NONE,
    Collectives,
    column_kinds,
)
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import UNKNOWN_RANK, RankTimeline


def timelines(book: Book, world: World, source: str, *, truncated: bool) -> tuple[RankTimeline, ...]:
    """Give the calls of each rank as a timeline without times of device work; empties the book's columns.

    A rank that the log tells of without any calls has a timeline too.
    """
    found = []
    for worker in world.ranks:
        book.calls.setdefault(worker, Calls())
    for worker in sorted(book.calls, key=lambda each: (world.ranks.get(each, NONE), each[0].host, each[0].number)):
        names = NameTable()
        code = names.code(source)
        own = _collectives(book, book.calls.pop(worker), names)
        rank = world.ranks.get(worker, UNKNOWN_RANK)
        found.append(calls_alone(own, names, rank=rank, source=code, has_device=True, truncated=truncated))
    return tuple(found)


def _collectives(book: Book, calls: Calls, names: NameTable) -> Collectives:
    """Give one rank's calls as a table; columns with one value for all rows take no memory."""
    rows = len(calls.kind)
    kind, choice = np.frombuffer(calls.kind, np.int32), np.frombuffer(calls.choice, np.int32)
    count = np.frombuffer(calls.count, np.int64)
    kinds, chosen = book.kinds, book.choices.all
    used = np.flatnonzero(np.bincount(kind, minlength=1)).tolist()
    place = np.zeros(len(kinds) + 1, np.int32)
    place[used] = np.arange(len(used), dtype=np.int32)
    kind = place[kind] if used != list(range(len(used))) else kind
    parts = np.array([kinds[each].parts for each in used], np.int64)
    items = np.array([kinds[each].item_bytes for each in used], np.int64)
    columns: dict[str, npt.NDArray[Any]] = {
        "group": _by(kind, [names.code(kinds[each].communicator.name) for each in used], np.int32),
        "op": _by(kind, [names.code(kinds[each].op) for each in used], np.int32),
        "dtype": _by(kind, names.codes(kinds[each].dtype for each in used), np.int32),
        "group_size": _by(kind, [kinds[each].communicator.size for each in used], np.int64),
        "algorithm": _by(choice, [*names.codes(each.algorithm for each in chosen), -1], np.int32),
        "protocol": _by(choice, [*names.codes(each.protocol for each in chosen), -1], np.int32),
        "channels": _by(choice, [none_if_untold(each.channels) for each in chosen] + [NONE], np.int64),
        "seq": np.frombuffer(calls.seq, np.int64),
        "bytes": times(count, (parts * items)[kind]),
    }
    columns["elements"] = count if (parts == 1).all() else times(count, parts[kind])
    if calls.launch_ns:
        columns["launch_ns"] = np.frombuffer(calls.launch_ns, np.int64)
    columns["recording"] = np.broadcast_to(np.int64(0), rows)
    for name, stored in column_kinds(Collectives).items():
        columns.setdefault(name, np.broadcast_to(np.array(MISSING[stored], DTYPES[stored]), rows))
    return Collectives(**columns)


def _by(codes: npt.NDArray[np.int32], values: Sequence[int], dtype: Any) -> npt.NDArray[Any]:
    """Give the value of each code, the last one for -1; where all are equal, one that stands for all."""
    table = np.array(values, dtype)
    if not table.size:
        return np.zeros(0, dtype)
    if (table == table[0]).all():
        return np.broadcast_to(table[0], codes.size)
    return table[codes]
