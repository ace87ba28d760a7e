"""Compare the structure of two dry runs: what the candidate's step communicates, waits for and computes otherwise."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

import msgspec
import numpy as np

from overlapscope.analysis.structure.alignment import Sequence as Aligned
from overlapscope.analysis.structure.alignment import align
from overlapscope.analysis.structure.call_changes import (
    GATHERS,
    CallDifference,
    CallPairs,
    call_differences,
    pair_calls,
)
from overlapscope.analysis.structure.kinds import KINDS, ChangeKind, StructureChange
from overlapscope.analysis.structure.rank_structure import Calls, RankStructure, Work
from overlapscope.analysis.structure.workload import SAME, workload_ratio
from overlapscope.timeline.columns import NONE, Ints

MAX_LISTED: Final = 16
"""Modules, and lines, that a difference lists."""
PERSISTENT: Final = ("parameters", "gradients", "optimizer_state")
"""Kinds of memory that do not depend on the batch."""


class CallTotal(msgspec.Struct, kw_only=True, frozen=True):
    """All calls of one operation on groups of one dimension and size, of one rank's step, summed over ranks."""

    op: str
    dimension: str | None
    group_size: int | None
    base_count: int
    candidate_count: int
    base_bytes: int
    candidate_bytes: int


class StructureComparison(msgspec.Struct, kw_only=True, frozen=True):
    """How two dry runs differ in what their steps do; exact, as nothing in it is a time."""

    ranks: list[int]
    """Ranks that both sides ran as."""
    workload: float | None
    """How many times the base's batch or sequence the candidate computes; 1 unless that explains all its FLOPs. Null
    where the compared ranks differ in it."""
    changes: list[StructureChange]
    totals: list[CallTotal]
    base_flops: int | None
    candidate_flops: int | None
    base_peak_bytes: int | None
    """Memory at the peak of the fullest rank."""
    candidate_peak_bytes: int | None
    not_comparable: list[str] = []
    """Why bytes cannot be compared: batch or sequence differ, and they do not follow them by one factor."""
    of_recording: bool = False
    """Whether the candidate is a recorded job, held against its dry run."""
    notes: list[str] = []
    """What of a recorded job could not be compared."""


def compare_structures(
    base: Mapping[int, RankStructure], candidate: Mapping[int, RankStructure]
) -> StructureComparison | None:
    """Return the differences of two dry runs over the ranks that both have; None without such ranks."""
    ranks = sorted(base.keys() & candidate.keys())
    if not ranks:
        return None
    ratios = {rank: workload_ratio(base[rank], candidate[rank]) for rank in ranks}
    found: dict[StructureChange, list[int]] = {}
    pairs_of: dict[int, CallPairs] = {}
    unclear = list[str]()
    for rank in ranks:
        ours, theirs = base[rank], candidate[rank]
        pairs_of[rank] = pair_calls(ours.calls, theirs.calls, ratios[rank])
        differences = call_differences(ours.calls, theirs.calls, pairs_of[rank])
        if ratios[rank] != SAME:
            differences, words = _without_unclear(ours.calls, differences, ratios[rank])
            unclear += words
        changes = [
            *grouped(ours, theirs, differences),
            *_waits(ours, theirs),
            *_flops(ours, theirs, ratios[rank]),
            *_memory(ours, theirs, ratios[rank], _kept_gathered(ours.calls, differences)),
        ]
        for each in changes:
            found.setdefault(each, []).append(rank)
    shared = set(ratios.values())
    return StructureComparison(
        ranks=ranks,
        workload=float(next(iter(shared))) if len(shared) == 1 else None,
        changes=merged(found),
        totals=call_totals([(base[rank].calls, candidate[rank].calls) for rank in ranks]),
        base_flops=sum(int(base[rank].computes.flops.sum()) for rank in ranks),
        candidate_flops=sum(int(candidate[rank].computes.flops.sum()) for rank in ranks),
        base_peak_bytes=_fullest(base[rank] for rank in ranks),
        candidate_peak_bytes=_fullest(candidate[rank] for rank in ranks),
        not_comparable=list(dict.fromkeys(unclear)),
    )


def merged(found: Mapping[StructureChange, list[int]]) -> list[StructureChange]:
    """Return differences with the ranks that have them, in the order of KINDS, the most calls first."""
    order = {kind: at for at, kind in enumerate(KINDS)}
    changes = [
        msgspec.structs.replace(
            each,
            ranks=tuple(ranks),
            **{name: getattr(each, name)[:MAX_LISTED] for name in ("modules", "sources", "set_up")},
        )
        for each, ranks in found.items()
    ]
    return sorted(changes, key=lambda each: (order[each.kind], -each.count))


def grouped(
    base: RankStructure, candidate: RankStructure, differences: Sequence[CallDifference]
) -> list[StructureChange]:
    """Return the differences of calls with all calls that differ alike in one, with their modules and lines."""
    found: dict[tuple[Any, ...], list[CallDifference]] = defaultdict(list)
    for each in differences:
        found[_alike(base.calls, candidate.calls, each)].append(each)
    return [_change(base, candidate, alike) for alike in found.values()]


def _alike(base: Calls, candidate: Calls, each: CallDifference) -> tuple[Any, ...]:
    side, row = (candidate, each.candidate) if each.candidate != NONE else (base, each.base)
    both = NONE not in (each.base, each.candidate)
    before = (base.group[each.base], base.dtype[each.base], base.phase[each.base]) if both else None
    return each.kind, side.op[row], side.group[row], side.dtype[row], side.phase[row], before


def _change(base: RankStructure, candidate: RankStructure, alike: Sequence[CallDifference]) -> StructureChange:
    first = alike[0]
    owner, rows = candidate, [each.candidate for each in alike]
    if first.candidate == NONE:
        owner, rows = base, [each.base for each in alike]
    side, row = owner.calls, rows[0]
    was, became = _values(base.calls, candidate.calls, first)
    modules = _distinct(side.module[rows].tolist())
    return StructureChange(
        kind=first.kind,
        count=len(alike),
        op=side.op[row],
        dimension=side.dimension[row],
        group_size=_number(side.group_size[row]),
        dtype=side.dtype[row],
        phase=side.phase[row],
        unit="bytes",
        base=_bytes(base.calls, [each.base for each in alike]),
        candidate=_bytes(candidate.calls, [each.candidate for each in alike]),
        base_is=was,
        candidate_is=became,
        modules=modules,
        sources=_most_first(side.source[rows].tolist()),
        set_up=_most_first(
            owner.set_up.get(name or "") if of_parameters else None
            for name, of_parameters in zip(side.module[rows].tolist(), side.parameters[rows] != NONE, strict=True)
        ),
    )


def _values(base: Calls, candidate: Calls, each: CallDifference) -> tuple[str | None, str | None]:
    """Return what was, and what is now, for kinds where that is a word."""
    if NONE in (each.base, each.candidate):
        return None, None
    if each.kind in ("dtype_widened", "dtype_narrowed"):
        return base.dtype[each.base], candidate.dtype[each.candidate]
    if each.kind in ("phase_changed", "moved_behind_backward"):
        return base.phase[each.base], candidate.phase[each.candidate]
    if each.kind == "group_changed":
        return group_words(base, each.base), group_words(candidate, each.candidate)
    return None, None


def group_words(calls: Calls, row: int) -> str:
    """Return a group as `data, 8 ranks`."""
    size = _number(calls.group_size[row])
    ranks = "? ranks" if size is None else f"{size} ranks"
    dimension = calls.dimension[row]
    return f"{dimension}, {ranks}" if dimension else ranks


def _waits(base: RankStructure, candidate: RankStructure) -> list[StructureChange]:
    """Return host synchronisations that were added or removed."""
    removed, added = _unpaired(base.host_syncs, candidate.host_syncs)
    return [
        *_of_work("host_sync_added", candidate.host_syncs, added),
        *_of_work("host_sync_removed", base.host_syncs, removed),
    ]


def _of_work(kind: ChangeKind, work: Work, rows: Ints) -> list[StructureChange]:
    if not rows.size:
        return []
    return [
        StructureChange(
            kind=kind,
            count=int(rows.size),
            modules=_distinct(work.module[rows].tolist()),
            sources=_distinct(work.source[rows].tolist()),
        )
    ]


def _flops(base: RankStructure, candidate: RankStructure, ratio: Fraction) -> list[StructureChange]:
    """Return by how much the FLOPs changed, with the lines that compute more; those of another batch are no change."""
    ours, theirs = int(base.computes.flops.sum()), int(candidate.computes.flops.sum())
    if ratio != SAME or ours == theirs:
        return []
    more = theirs > ours
    side = candidate.computes if more else base.computes
    removed, added = _unpaired(base.computes, candidate.computes)
    rows = added if more else removed
    weights: dict[str, int] = defaultdict(int)
    for source, flops in zip(side.source[rows].tolist(), side.flops[rows].tolist(), strict=True):
        weights[source or ""] += flops
    heaviest = sorted(filter(None, weights), key=lambda source: -weights[source])
    return [
        StructureChange(
            kind="flops_grew" if more else "flops_shrank",
            count=int(rows.size),
            unit="flops",
            base=ours,
            candidate=theirs,
            modules=_distinct(side.module[rows].tolist()),
            sources=tuple(heaviest),
        )
    ]


def _unpaired(base: Work, candidate: Work) -> tuple[Ints, Ints]:
    """Return the rows of both without an equal row in the other, by operation, phase and FLOPs."""
    columns = [
        _shared(np.concatenate([getattr(base, name), getattr(candidate, name)]))
        for name in ("name", "phase", "flops", "module")
    ]
    contexts = [_shared(each) for each in np.concatenate([base.context, candidate.context]).T]
    key = _shared_rows(columns[:3])
    cut = base.flops.size
    hints = np.stack([columns[3], *contexts], axis=1)
    own, other = (
        Aligned(key[part], key[part], np.zeros((key[part].size, 0), np.int64), hints[part], side.position)
        for part, side in ((slice(None, cut), base), (slice(cut, None), candidate))
    )
    pairs = align(own, other)
    return pairs.removed, pairs.added


def _shared(values: Any) -> Ints:
    codes: Ints = np.unique(values.astype(str), return_inverse=True)[1].reshape(-1).astype(np.int64)
    return codes


def _shared_rows(columns: Sequence[Ints]) -> Ints:
    codes: Ints = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return codes


def _kept_gathered(base: Calls, differences: Sequence[CallDifference]) -> list[str | None]:
    """Return the modules whose parameters are gathered less often, so that they stay gathered."""
    return [
        base.module[each.base]
        for each in differences
        if each.kind == "collective_removed" and base.op[each.base] in GATHERS and base.parameters[each.base] != NONE
    ]


def _memory(
    base: RankStructure, candidate: RankStructure, ratio: Fraction, kept_gathered: Sequence[str | None]
) -> list[StructureChange]:
    """Return by how much the peak of memory changed; with another batch only of what does not depend on it."""
    ours, theirs = base.peak_bytes, candidate.peak_bytes
    if ratio != SAME:
        ours, theirs = (
            sum(side.at_peak_bytes.get(kind, 0) for kind in PERSISTENT) if side.at_peak_bytes else None
            for side in (base, candidate)
        )
    if ours is None or theirs is None or ours == theirs:
        return []
    by_kind = {
        kind: candidate.at_peak_bytes.get(kind, 0) - base.at_peak_bytes.get(kind, 0)
        for kind in {*base.at_peak_bytes, *candidate.at_peak_bytes}
        if ratio == SAME or kind in PERSISTENT
    }
    grew = theirs > ours
    most = max(sorted(by_kind), key=lambda kind: by_kind[kind] if grew else -by_kind[kind], default=None)
    side = candidate if grew else base
    return [
        StructureChange(
            kind="memory_grew" if grew else "memory_shrank",
            count=1,
            unit="bytes",
            base=ours,
            candidate=theirs,
            candidate_is=most,
            modules=_distinct([side.peak_module]),
            sources=_distinct([side.peak_source]),
            set_up=_distinct(candidate.set_up.get(name or "") for name in kept_gathered) if grew else (),
        )
    ]


def _without_unclear(
    base: Calls, differences: Sequence[CallDifference], ratio: Fraction
) -> tuple[list[CallDifference], list[str]]:
    """Return the differences but for sizes that may follow another batch or sequence in a way of their own."""
    kept, words = [], []
    for each in differences:
        if each.kind in ("bytes_grew", "bytes_shrank") and base.parameters[each.base] == NONE:
            words.append(
                f"{base.op[each.base]} ({group_words(base, each.base)}): its bytes follow batch or sequence, which "
                f"differ by {float(ratio):g}, but not by that factor"
            )
        else:
            kept.append(each)
    return kept, words


def call_totals(ranks: Sequence[tuple[Calls, Calls]]) -> list[CallTotal]:
    """Return the sums of both sides' calls over ranks, the most bytes first; `ranks` holds base and candidate."""
    sums: dict[tuple[str, str | None, int | None], list[int]] = {}
    stated = {
        group: dimension
        for sides in ranks
        for calls in sides
        for group, dimension in zip(calls.group.tolist(), calls.dimension.tolist(), strict=True)
        if dimension is not None
    }
    for sides in ranks:
        for side, calls in enumerate(sides):
            sizes = np.where(calls.size_bytes == NONE, 0, calls.size_bytes)
            for op, group, members, size in zip(
                calls.op.tolist(), calls.group.tolist(), calls.group_size.tolist(), sizes.tolist(), strict=True
            ):
                own = sums.setdefault((op, stated.get(group), _number(members)), [0, 0, 0, 0])
                own[side] += 1
                own[side + 2] += size
    return [
        CallTotal(
            op=op, dimension=dimension, group_size=members, base_count=own[0], candidate_count=own[1],
            base_bytes=own[2], candidate_bytes=own[3],
        )
        for (op, dimension, members), own in sorted(sums.items(), key=lambda each: -max(each[1][2:]))
    ]  # fmt: skip


def _fullest(structures: Iterable[RankStructure]) -> int | None:
    return max((each.peak_bytes for each in structures if each.peak_bytes is not None), default=None)


def _bytes(calls: Calls, rows: Sequence[int]) -> int | None:
    known = [int(calls.size_bytes[row]) for row in rows if row != NONE and calls.size_bytes[row] != NONE]
    return sum(known) if known else None


def _number(value: Any) -> int | None:
    return None if value == NONE else int(value)


def _distinct(names: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names if name))


def _most_first(names: Iterable[str | None]) -> tuple[str, ...]:
    """Return distinct names, those that occur most often first."""
    return tuple(name for name, _ in Counter(name for name in names if name).most_common())
