"""Bytes that a step would move if each run of memory-bound operations were one kernel, as a compiler would make it."""

from collections.abc import Sequence
from typing import NamedTuple

from overlapscope.timeline.columns import MEMORY, OPTIMIZER_UPDATE

FUSIBLE = frozenset({MEMORY, OPTIMIZER_UPDATE})


class Traffic(NamedTuple):
    """What one row reads and writes: pairs of a storage's number and bytes."""

    kind: int
    stream: int
    read: Sequence[tuple[int, int]]
    written: Sequence[tuple[int, int]]


def fused_bytes(rows: Sequence[Traffic], lasting: frozenset[int]) -> list[int]:
    """Return the bytes of each row where its run of `memory` rows, uninterrupted on its stream, were one kernel.

    A run reads each storage of outside once, and writes each storage once that a later row reads, or that outlasts the
    step (`lasting`). A read counts at the row that reads first, a write at the row that writes last. Other rows count
    all they read and write.
    """
    last_read: dict[int, int] = {}
    for at, row in enumerate(rows):
        for storage, _ in row.read:
            last_read[storage] = at
    found = [0] * len(rows)
    for run in _runs(rows):
        if rows[run[0]].kind not in FUSIBLE:
            found[run[0]] = sum(size for _, size in (*rows[run[0]].read, *rows[run[0]].written))
            continue
        made: dict[int, tuple[int, int]] = {}
        seen: set[int] = set()
        for at in run:
            for storage, size in rows[at].read:
                if storage not in made and storage not in seen:
                    seen.add(storage)
                    found[at] += size
            for storage, size in rows[at].written:
                made[storage] = (at, max(size, made.get(storage, (0, 0))[1]))
        for storage, (at, size) in made.items():
            if storage in lasting or last_read.get(storage, -1) > run[-1]:
                found[at] += size
    return found


def _runs(rows: Sequence[Traffic]) -> list[list[int]]:
    """Return the rows of each run of fusible rows on one stream; each other row alone."""
    runs: list[list[int]] = []
    open_run: dict[int, list[int]] = {}
    for at, row in enumerate(rows):
        if row.kind in FUSIBLE and row.stream in open_run:
            open_run[row.stream].append(at)
            continue
        runs.append([at])
        if row.kind in FUSIBLE:
            open_run[row.stream] = runs[-1]
        else:
            open_run.pop(row.stream, None)
    return runs
