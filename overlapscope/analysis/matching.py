"""The same collective on every rank that took part: by its number in the group, else by order, checked by its ends.

A pairing by order alone is a guess: a recording that was cut or sampled shifts it. So it needs equal numbers of calls
on all ranks, and `agreeing` drops what does not end together once clocks are aligned.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from overlapscope.timeline.columns import NONE, Collectives, Ints, size
from overlapscope.timeline.run import RankTimeline, Run

SYMMETRIC = frozenset({"all_reduce", "all_gather", "reduce_scatter", "barrier", "all_to_all"})
"""Operations that no member leaves before all have come: only these tell waiting from transferring."""
ENDS_TOGETHER = 0.1
"""Ends of one call differ by less than this share of the usual time between calls of its kind ..."""
ENDS_TOGETHER_ON_ONE_CLOCK = 0.5
"""... or than this share where the members have one clock: no estimate of it can hide that calls are shifted ..."""
ENDS_WITHIN_NS = 50_000_000
"""... and by less than this; CPU ranks that share cores end milliseconds apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """All matched calls of one kind: row i of each array is `ranks[i]`, column k the k-th call."""

    group: str | None
    op: str
    dtype: str | None
    bytes: int | None
    ranks: tuple[int, ...]
    rows: npt.NDArray[np.int64]
    """Row of the call in the rank's `Collectives`."""
    start_ns: npt.NDArray[np.int64]
    """On the rank's own clock, as the ends."""
    end_ns: npt.NDArray[np.int64]
    by_order: bool
    """Paired by order within its kind, for want of sequence numbers."""
    whole: bool
    """Every member of the group was recorded."""
    even: bool = True
    """All ranks move as much. Of uneven ones waiting cannot be split off, nor do they end together; `bytes` is None."""

    @property
    def calls(self) -> int:
        """How many calls."""
        return int(self.rows.shape[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """What could be paired; `unmatched` counts the recorded calls that were not, one for each rank."""

    blocks: tuple[Matched, ...] = ()
    uneven: tuple[Matched, ...] = ()
    """Matched calls of uneven all-to-all, which tell no transfer."""
    unmatched: int = 0
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    op: str
    dtype: str | None
    bytes: int | None
    even: bool = True


def match(run: Run) -> Matching:
    """Pair the symmetric collectives of all recorded ranks, group by group; reasons say what was not paired.

    All-to-all counts as symmetric where every rank gives and gets as much; uneven ones are paired all the same.
    """
    blocks: list[Matched] = []
    uneven: list[Matched] = []
    reasons: list[str] = []
    unmatched = 0
    members = _members(run)
    calls: dict[tuple[str | None, tuple[int, ...] | None], dict[int, Ints]] = defaultdict(dict)
    for rank, timeline in run.ranks.items():
        for group, rows in _symmetric_by_group(timeline):
            calls[group, members(rank, group, timeline.collectives, rows)][rank] = rows
    for (group, ranks), rows_of in calls.items():
        found = _match_group(run, group, ranks, rows_of)
        blocks += found.blocks
        uneven += found.uneven
        unmatched += found.unmatched
        reasons += found.reasons
    return Matching(
        blocks=tuple(blocks), uneven=tuple(uneven), unmatched=unmatched, reasons=tuple(dict.fromkeys(reasons))
    )


def agreeing(
    matching: Matching, spread_ns: Callable[[Matched], Ints], one_clock: Callable[[Matched], bool] = lambda _: False
) -> Matching:
    """Drop the blocks paired by order whose calls do not end together.

    `spread_ns` gives, for each call of a block, how far apart its ends lie on aligned clocks; `one_clock` whether the
    members are known to have the same clock.
    """
    kept: list[Matched] = []
    reasons = list(matching.reasons)
    unmatched = matching.unmatched
    for block in (*matching.blocks, *matching.uneven):
        limit = float(ENDS_WITHIN_NS)
        if block.calls > 1:
            share = ENDS_TOGETHER_ON_ONE_CLOCK if one_clock(block) else ENDS_TOGETHER
            limit = min(limit, share * float(np.median(np.diff(np.sort(block.end_ns[0])))))
        apart = float(np.median(spread_ns(block)))
        if not block.by_order or apart <= limit:
            kept.append(block)
            continue
        unmatched += block.rows.size
        reasons.append(
            f"{_named(block.group)}: {block.calls} {block.op} of {_size(block.bytes)} on ranks {_listed(block.ranks)} "
            f"are not paired by order: their ends lie {apart / 1e6:.1f} ms apart, so they are not the same calls"
        )
    even, uneven = (tuple(block for block in kept if block.even == kind) for kind in (True, False))
    return replace(matching, blocks=even, uneven=uneven, unmatched=unmatched, reasons=tuple(reasons))


def _members(run: Run) -> Callable[[int, str | None, Collectives, Ints], tuple[int, ...] | None]:
    known = {group.name: group.ranks for group in run.groups if group.ranks is not None}

    def of(rank: int, group: str | None, calls: Collectives, rows: Ints) -> tuple[int, ...] | None:
        if group in known:
            # Groups of one name may stand beside each other, each on ranks of its own; the run holds only one of them.
            return known[group] if rank in known[group] else None
        sizes = set(calls.group_size[rows].tolist())
        return tuple(range(run.world_size)) if run.world_size and sizes == {run.world_size} else None

    return of


def _symmetric_by_group(timeline: RankTimeline) -> Iterable[tuple[str | None, Ints]]:
    calls = timeline.collectives
    if not size(calls):
        return
    wanted = [code for code, name in enumerate(timeline.names) if name in SYMMETRIC]
    timed = (calls.start_ns != NONE) & (calls.end_ns != NONE)
    rows = np.flatnonzero(np.isin(calls.op, wanted) & timed)
    rows = rows[np.argsort(calls.start_ns[rows], kind="stable")]  # tables are in the order of their source
    for code in np.unique(calls.group[rows]).tolist():
        yield (timeline.names[code] if code >= 0 else None), rows[calls.group[rows] == code]


def _match_group(run: Run, group: str | None, members: tuple[int, ...] | None, rows_of: Mapping[int, Ints]) -> Matching:
    """Pair the calls of one group. `rows_of` holds the rows of its symmetric calls by rank."""
    total = sum(rows.size for rows in rows_of.values())
    expected = [rank for rank in members if rank in run.ranks] if members is not None else sorted(rows_of)
    if len(expected) < 2:
        return Matching(unmatched=total)
    if members is None:
        sizes = {
            int(each) for rank in expected for each in np.unique(run.ranks[rank].collectives.group_size[rows_of[rank]])
        }
        if sizes - {NONE} and len(expected) > max(sizes):
            why = (
                f"{_named(group)}: {len(expected)} ranks made calls of it, but it has {max(sizes)} members, and which "
                "they are was not recorded: its calls are not paired"
            )
            return Matching(unmatched=total, reasons=(why,))
    silent = [rank for rank in expected if rank not in rows_of]
    if silent:
        why = (
            f"{_named(group)}: nothing of it was recorded on rank {_listed(silent)}, a member; its calls are not paired"
        )
        return Matching(unmatched=total, reasons=(why,))
    whole = members is not None and len(expected) == len(members)
    by_number = all(_numbered(run.ranks[rank].collectives, rows_of[rank]) for rank in expected)
    pair = _by_number if by_number else _by_order
    return pair(run, group, expected, rows_of, whole=whole)


def _numbered(calls: Collectives, rows: Ints) -> bool:
    numbers = calls.seq[rows]
    return bool((numbers != NONE).all()) and np.unique(numbers).size == numbers.size


def _by_number(
    run: Run, group: str | None, ranks: Sequence[int], rows_of: Mapping[int, Ints], *, whole: bool
) -> Matching:
    common = None
    for rank in ranks:
        numbers = run.ranks[rank].collectives.seq[rows_of[rank]]
        common = numbers if common is None else np.intersect1d(common, numbers)
    assert common is not None
    rows = np.empty((len(ranks), common.size), np.int64)
    for at, rank in enumerate(ranks):
        numbers = run.ranks[rank].collectives.seq[rows_of[rank]]
        order = np.argsort(numbers)
        rows[at] = rows_of[rank][order[np.searchsorted(numbers[order], np.sort(common))]]
    kinds = [_kinds(run.ranks[rank], rows[at]) for at, rank in enumerate(ranks)]
    columns: dict[_Kind, list[int]] = defaultdict(list)
    reasons: list[str] = []
    for column, seen in enumerate(zip(*kinds, strict=True)):
        if all(each == seen[0] for each in seen):
            columns[seen[0]].append(column)
            continue
        if all(each.op == "all_to_all" and each.dtype == seen[0].dtype for each in seen):
            columns[_as_uneven(seen[0])].append(column)
            continue
        other = next(at for at, each in enumerate(seen) if each != seen[0])
        if not reasons:
            reasons.append(
                f"{_named(group)}: call {int(np.sort(common)[column])} is {_spelled(seen[0])} on rank {ranks[0]} and "
                f"{_spelled(seen[other])} on rank {ranks[other]}; calls that differ so are not paired"
            )
    blocks = [
        _block(run, group, kind, ranks, rows[:, chosen], by_order=False, whole=whole)
        for kind, chosen in columns.items()
    ]
    matched = sum(block.rows.size for block in blocks)
    total = sum(rows_of[rank].size for rank in ranks)
    return _sorted_out(blocks, total - matched, reasons)


def _sorted_out(blocks: Sequence[Matched], unmatched: int = 0, reasons: Sequence[str] = ()) -> Matching:
    even, uneven = (tuple(block for block in blocks if block.even == kind) for kind in (True, False))
    return Matching(blocks=even, uneven=uneven, unmatched=unmatched, reasons=tuple(reasons))


def _as_uneven(kind: _Kind) -> _Kind:
    return replace(kind, bytes=None, even=False)


def _by_order(
    run: Run, group: str | None, ranks: Sequence[int], rows_of: Mapping[int, Ints], *, whole: bool
) -> Matching:
    kinds = {rank: _kinds(run.ranks[rank], rows_of[rank]) for rank in ranks}
    exchanged = [sorted(str(kind) for kind in kinds[rank] if kind.op == "all_to_all") for rank in ranks]
    uneven = any(each != exchanged[0] for each in exchanged)
    by_kind: dict[_Kind, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank in ranks:
        for row, kind in zip(rows_of[rank].tolist(), kinds[rank], strict=True):
            by_kind[_as_uneven(kind) if uneven and kind.op == "all_to_all" else kind][rank].append(row)
    blocks = []
    for kind, rows in by_kind.items():
        counts = {rank: len(rows.get(rank, ())) for rank in ranks}
        if len(set(counts.values())) > 1:
            # One kind that does not add up shows that the recordings hold different calls: no order can be trusted.
            few, many = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
            why = (
                f"{_named(group)}: {_spelled(kind)} was recorded {counts[many]} times on rank {many} and {counts[few]} "
                f"times on rank {few}: the recordings are sampled or cut, and calls are not paired by order"
            )
            return Matching(unmatched=sum(rows_of[rank].size for rank in ranks), reasons=(why,))
        table = np.array([rows[rank] for rank in ranks], np.int64)
        blocks.append(_block(run, group, kind, ranks, table, by_order=True, whole=whole))
    return _sorted_out(blocks)


def _block(
    run: Run,
    group: str | None,
    kind: _Kind,
    ranks: Sequence[int],
    rows: npt.NDArray[np.int64],
    *,
    by_order: bool,
    whole: bool,
) -> Matched:
    calls = [run.ranks[rank].collectives for rank in ranks]
    return Matched(
        group=group,
        op=kind.op,
        dtype=kind.dtype,
        bytes=kind.bytes,
        ranks=tuple(ranks),
        rows=rows,
        start_ns=np.array([each.start_ns[row] for each, row in zip(calls, rows, strict=True)]),
        end_ns=np.array([each.end_ns[row] for each, row in zip(calls, rows, strict=True)]),
        by_order=by_order,
        whole=whole,
        even=kind.even,
    )


def _kinds(timeline: RankTimeline, rows: Ints) -> list[_Kind]:
    calls, names = timeline.collectives, timeline.names
    columns = (calls.op, calls.dtype, calls.bytes, calls.received_bytes)
    found = []
    for op, dtype, volume, received in zip(*(column[rows].tolist() for column in columns), strict=True):
        kind = _Kind(op=names[op], dtype=names[dtype] if dtype >= 0 else None, bytes=None if volume == NONE else volume)
        found.append(_as_uneven(kind) if received not in (NONE, volume) else kind)
    return found


def _spelled(kind: _Kind) -> str:
    return f"{kind.op} of {_size(kind.bytes)}"


def _size(volume: int | None) -> str:
    return "unknown size" if volume is None else f"{volume} bytes"


def _named(group: str | None) -> str:
    return f"group {group}" if group is not None else "calls of no named group"


def _listed(ranks: Iterable[int]) -> str:
    shown = list(ranks)
    return ", ".join(map(str, shown[:8])) + (", ..." if len(shown) > 8 else "")
