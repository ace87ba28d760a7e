"""Compare the collectives of two sides: which appeared, vanished or grew, and the exposed time of each."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from statistics import median
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from overlapscope.analysis.exposure.call_kind import CallFields, CallKind
from overlapscope.analysis.exposure.collectives import CollectiveRow
from overlapscope.analysis.job_step.attribution import REMAINDER, Attribution, Part, attribution
from overlapscope.analysis.job_step.step_table import StepTable

MANY_SIZES: Final = 16
"""Calls that differ only in size and have more sizes than this (uneven all-to-all) are one kind: sizes do not recur."""
SAME: Final = 0.01
"""Calls and bytes a step that differ by less than this share are the same: steps vary a little."""
OUTSIDE: Final = "communication of no known collective"
Change = Literal["appeared", "vanished", "regrouped", "grew", "shrank", "same"]
Naming = Callable[[CallKind], CallKind]


class CollectiveSide(msgspec.Struct, kw_only=True, frozen=True):
    """One kind of collective on one side: counts are means over runs, times and bandwidths medians over runs."""

    calls: float
    """Per step, mean over the ranks that make such calls."""
    bytes: float | None
    """Per step."""
    exposed_ns: int
    """Per step, inside its window, mean over all ranks."""
    estimate: Literal["matched", "upper_bound"] | None = None
    """Null where the runs differ in it, or sizes vary; then the figures below are null too."""
    transfer_ns: float | None = None
    wait_fraction: float | None = None
    busbw_gbs: float | None = None
    algorithms: list[str] = []
    """With their protocols, where a source reports them."""


class CollectiveChange(CallFields, kw_only=True, frozen=True):
    """A kind of collective of either side. `change` is by bytes per step, or by calls where bytes are not known."""

    change: Change
    base: CollectiveSide
    candidate: CollectiveSide
    exposed_difference_ns: int
    busbw_relative: float | None
    """(candidate - base) / base, where both are of the same estimate."""


class FamilyChange(msgspec.Struct, kw_only=True, frozen=True):
    """All sizes of an operation on a group together. `regrouped`: the same bytes per step in more or fewer calls."""

    op: str
    group: str | None
    group_size: int | None
    dtype: str | None
    dimension: str | None
    change: Change
    base_calls: float
    candidate_calls: float
    base_bytes: float | None
    candidate_bytes: float | None
    exposed_difference_ns: int


class _Side(msgspec.Struct):
    """The calls of one kind on one side."""

    calls: float = 0.0
    exposed: Fraction = Fraction(0)
    rows: list[list[CollectiveRow]] = []
    """The rows of each run that has any."""


def collective_changes(
    base: Sequence[tuple[StepTable, Sequence[CollectiveRow]]],
    candidate: Sequence[tuple[StepTable, Sequence[CollectiveRow]]],
    whole: Part,
) -> tuple[list[CollectiveChange], Attribution]:
    """Join the collectives of two sides, and attribute the exposed part of the step time (`whole`) to them.

    Each side holds the steps and the collective rows of its runs. The largest difference comes first.
    """
    naming = _joining_kind(*([_kinds(table) for table, _ in side] for side in (base, candidate)))
    ours, theirs = _gather(base, naming), _gather(candidate, naming)
    kinds = list(dict.fromkeys([*ours, *theirs]))
    had, has = ({str(at): side[k].exposed for at, k in enumerate(kinds) if k in side} for side in (ours, theirs))
    shares = attribution(had, has, Fraction(whole.base_ns), Fraction(whole.candidate_ns))
    of = {part.name: part for part in shares.parts}
    nothing = Part(name="", base_ns=0, candidate_ns=0, difference_ns=0)
    changes = [
        (_change(kind, ours.get(kind, _Side()), theirs.get(kind, _Side()), of.get(str(at), nothing)), str(at))
        for at, kind in enumerate(kinds)
        if kind is not None
    ]
    changes.sort(key=lambda each: (-abs(each[0].exposed_difference_ns), label(each[0])))
    place = {at: (row, label(change)) for row, (change, at) in enumerate(changes)}
    named = []
    for part in shares.parts:
        row, name = place.get(part.name, (None, REMAINDER if part.name == REMAINDER else OUTSIDE))
        named.append(replace(part, name=name, collective=row))
    return [change for change, _ in changes], replace(shares, parts=named)


def family_changes(changes: Iterable[CollectiveChange]) -> list[FamilyChange]:
    """Join the sizes of each operation, type and group; the largest difference in exposed time comes first."""
    families: dict[tuple[object, ...], list[CollectiveChange]] = defaultdict(list)
    for each in changes:
        families[each.op, each.group, each.group_size, each.dtype, each.dimension].append(each)
    found = []
    for rows in families.values():
        first = rows[0]
        calls = [
            sum(side.calls for side in sides) for sides in zip(*((r.base, r.candidate) for r in rows), strict=True)
        ]
        volume = [
            None if any(side.bytes is None for side in sides) else sum(side.bytes or 0.0 for side in sides)
            for sides in zip(*((r.base, r.candidate) for r in rows), strict=True)
        ]
        found.append(
            FamilyChange(
                op=first.op,
                group=first.group,
                group_size=first.group_size,
                dtype=first.dtype,
                dimension=first.dimension,
                change=classify_change((calls[0], volume[0]), (calls[1], volume[1])),
                base_calls=calls[0],
                candidate_calls=calls[1],
                base_bytes=volume[0],
                candidate_bytes=volume[1],
                exposed_difference_ns=sum(row.exposed_difference_ns for row in rows),
            )
        )
    return sorted(found, key=lambda each: (-abs(each.exposed_difference_ns), each.op, each.group or ""))


def classify_change(base: tuple[float, float | None], candidate: tuple[float, float | None]) -> Change:
    """Classify the change from one (calls, bytes) per step to another."""
    if not base[0] or not candidate[0]:
        return "same" if base[0] == candidate[0] else "appeared" if candidate[0] else "vanished"
    known = base[1] is not None and candidate[1] is not None and base[1] + candidate[1] > 0
    before, after = (base[1] or 0.0, candidate[1] or 0.0) if known else (base[0], candidate[0])
    if abs(after - before) <= SAME * max(before, after):
        alike = abs(candidate[0] - base[0]) <= SAME * max(candidate[0], base[0])
        return "same" if alike else "regrouped"
    return "grew" if after > before else "shrank"


def label(kind: CallKind | CollectiveChange) -> str:
    """Return a kind of call as text."""
    size = [] if kind.bytes is None else [f"{kind.bytes} bytes"]
    named = [each for each in (kind.dtype, kind.dimension, kind.phase, kind.module) if each]
    return ", ".join([kind.op, *size, *named, *([] if kind.group is None else [f"group {kind.group}"])])


def _kinds(table: StepTable) -> set[CallKind]:
    each_rank = (*table.exposed_ns, *table.calls)
    return {kind for shares in each_rank for kind in shares.totals() if kind is not None}


def _joining_kind(base: Sequence[set[CallKind]], candidate: Sequence[set[CallKind]]) -> Naming:
    """Return a function that maps each kind of call to the kind by which the two sides are joined.

    It drops the size where sizes vary from call to call, and the group name where the sides have no name in common.
    """
    ours, theirs = ({kind.group for kinds in side for kind in kinds} - {None} for side in (base, candidate))
    named = bool(ours & theirs) or not ours or not theirs
    sizes: dict[CallKind, set[int | None]] = defaultdict(set)
    for kind in set().union(*base, *candidate):
        sizes[replace(kind, bytes=None)].add(kind.bytes)

    def joined(kind: CallKind) -> CallKind:
        alike = replace(kind, bytes=None)
        chosen = kind if len(sizes[alike]) <= MANY_SIZES else alike
        return chosen if named else replace(chosen, group=None)

    return joined


def _gather(
    runs: Sequence[tuple[StepTable, Sequence[CollectiveRow]]], naming: Naming
) -> Mapping[CallKind | None, _Side]:
    found: dict[CallKind | None, _Side] = {}
    for table, rows in runs:
        cells = int(table.recorded.sum())
        calls, steps = defaultdict[CallKind | None, int](int), defaultdict[CallKind | None, int](int)
        for at, shares in enumerate(table.exposed_ns):
            for kind, ns in shares.totals().items():
                key = None if kind is None else naming(kind)
                found.setdefault(key, _Side()).exposed += Fraction(ns, cells * len(runs))
            made = defaultdict[CallKind | None, int](int)
            for kind, count in table.calls[at].totals().items():
                if kind is not None:
                    made[naming(kind)] += count
            for key, count in made.items():
                calls[key] += count
                steps[key] += int(table.recorded[at].sum())
        for key, count in calls.items():
            found.setdefault(key, _Side()).calls += count / max(steps[key], 1) / len(runs)
        by_kind = defaultdict[CallKind | None, list[CollectiveRow]](list)
        for row in rows:
            by_kind[naming(_kind(row))].append(row)
        for key, own in by_kind.items():
            if key in found:
                found[key].rows.append(own)
    return found


def _kind(row: CollectiveRow) -> CallKind:
    return CallKind(**{name: getattr(row, name) for name in CallKind.__struct_fields__})


def _change(kind: CallKind, base: _Side, candidate: _Side, part: Part) -> CollectiveChange:
    ours, theirs = _collective_side(kind, base, part.base_ns), _collective_side(kind, candidate, part.candidate_ns)
    comparable = ours.estimate is not None and ours.estimate == theirs.estimate
    both = ours.busbw_gbs and theirs.busbw_gbs
    return CollectiveChange(
        **{name: getattr(kind, name) for name in CallKind.__struct_fields__},
        change=classify_change((ours.calls, ours.bytes), (theirs.calls, theirs.bytes)),
        base=ours,
        candidate=theirs,
        exposed_difference_ns=part.difference_ns,
        busbw_relative=(theirs.busbw_gbs / ours.busbw_gbs - 1) if comparable and both else None,  # type: ignore[operator]
    )


def _collective_side(kind: CallKind, side: _Side, exposed_ns: int) -> CollectiveSide:
    all_rows = [row for own in side.rows for row in own]
    estimates = {row.estimate for row in all_rows}
    volume = kind.bytes * side.calls if kind.bytes is not None else None if side.calls else 0.0
    algorithms = sorted({" ".join(filter(None, (row.algorithm, row.protocol))) for row in all_rows} - {""})
    plain = CollectiveSide(calls=side.calls, bytes=volume, exposed_ns=exposed_ns, algorithms=algorithms)
    if len(estimates) != 1 or any(len({row.bytes for row in own}) > 1 for own in side.rows):
        return plain
    # Where a run has several algorithms for a kind, the one with the most calls represents it.
    chosen = [max(own, key=lambda row: row.count) for own in side.rows]

    def middle(name: str) -> float | None:
        known = [value for row in chosen if (value := getattr(row, name)) is not None]
        return median(known) if known else None

    return replace(
        plain,
        estimate=estimates.pop(),
        transfer_ns=middle("transfer_ns_median"),
        wait_fraction=middle("wait_fraction"),
        busbw_gbs=middle("busbw_gbs"),
    )
