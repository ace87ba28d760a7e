"""The collectives of a run, one row for each kind of call."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from overlapscope.analysis.across import Transfers
from overlapscope.analysis.call_kind import CallFields, CallKind
from overlapscope.analysis.distinct import distinct
from overlapscope.analysis.steps import StepWindow
from overlapscope.analysis.waiting import BASELINE_CALLS, BASELINE_QUANTILE
from overlapscope.timeline.columns import NONE, Ints, size
from overlapscope.timeline.run import RankTimeline
from overlapscope.timeline.volume import bus_factor


class CollectiveRow(CallFields, kw_only=True, frozen=True):
    """All calls of one operation, group, type and size.

    With estimate `upper_bound`, transfer is the whole duration, waiting included, and the bandwidths are lower bounds.
    """

    algorithm: str | None
    protocol: str | None
    count: int
    """Calls, not ranks."""
    estimate: Literal["matched", "upper_bound"]
    transfer_ns_median: float | None
    baseline_ns: float | None
    wait_fraction: float | None
    exposed_ns: int | None
    """Of all these calls, mean over ranks; a moment of several calls in flight belongs to the one that ends last."""
    algbw_gbs: float | None
    busbw_gbs: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key(CallKind):
    algorithm: str | None
    protocol: str | None


_NAMES = ("op", "group", "dtype", "dimension", "phase", "module", "algorithm", "protocol")
_NUMBERS = ("group_size", "bytes")


@dataclass(slots=True)
class _Calls:
    """All calls of one kind, while they are gathered."""

    by_rank: dict[int, int] = field(default_factory=dict)
    durations: list[Ints] = field(default_factory=list)
    transfers: list[Ints] = field(default_factory=list)
    """Of the calls whose duration could be split, on each rank ..."""
    numbers: list[Ints] = field(default_factory=list)
    """... and the numbers of those calls, the same on all members."""
    exposed_ns: int = 0
    waited: int = 0


def collective_rows(
    ranks: Mapping[int, RankTimeline],
    windows: Mapping[int, list[StepWindow]],
    transfers: Mapping[int, Transfers],
    exposed_ns: Mapping[int, Ints],
) -> list[CollectiveRow]:
    """Give one row a kind of call, the largest total time first.

    Covers each rank's complete steps where it has any, else everything it recorded. A call that every member of a group
    made counts once: the count is the largest of any rank. `transfers` holds what could be told from waiting,
    `exposed_ns` the exposed time of each of a rank's calls.
    """
    kinds: dict[_Key, _Calls] = {}
    for rank, timeline in ranks.items():
        known, table = transfers[rank], timeline.collectives
        for key, rows in _by_kind(timeline, chosen_rows(timeline, windows[rank])):
            calls = kinds.setdefault(key, _Calls())
            calls.by_rank[rank] = calls.by_rank.get(rank, 0) + rows.size
            calls.exposed_ns += int(exposed_ns[rank][rows].sum())
            timed = rows[(table.start_ns[rows] != NONE) & (table.end_ns[rows] != NONE)]
            duration = table.end_ns[timed] - table.start_ns[timed]
            calls.durations.append(duration)
            split = known.transfer_ns[timed] != NONE
            transfer = known.transfer_ns[timed[split]]
            calls.waited += int((duration[split] - transfer).sum())
            calls.transfers.append(transfer)
            calls.numbers.append(known.call[timed[split]])
    order = sorted(kinds, key=lambda key: (-_total(kinds[key]), key.op, key.group or "", key.bytes or 0))
    return [_row(key, kinds[key]) for key in order]


def chosen_rows(timeline: RankTimeline, windows: list[StepWindow]) -> Ints:
    """Give the rows of the calls that belong to complete steps; all rows where no step is complete.

    A call belongs to the step that launched it; one without a launch, to the step in whose window it began.
    """
    calls = timeline.collectives
    complete = [each for each in windows if each.complete]
    if not complete:
        return np.arange(size(calls))
    places = {(each.recording, each.step) for each in complete}
    which, first = distinct([calls.recording, calls.step])
    told = zip(calls.recording[first].tolist(), calls.step[first].tolist(), strict=True)
    inside = np.array([place in places for place in told], np.bool_)[which]
    windows_of = sorted(each.window for each in complete if each.window)
    starts = np.array([start for start, _ in windows_of], np.int64)
    ends = np.array([end for _, end in windows_of], np.int64)
    row = np.searchsorted(starts, calls.start_ns, side="right") - 1
    begun = (row >= 0) & (calls.start_ns < np.append(ends, NONE)[row])
    return np.flatnonzero(inside | (begun & (calls.launch_ns == NONE)))


def _by_kind(timeline: RankTimeline, rows: Ints) -> Iterator[tuple[_Key, Ints]]:
    calls, names = timeline.collectives, timeline.names
    columns = [getattr(calls, name)[rows] for name in (*_NAMES, *_NUMBERS)]
    which, first = distinct(columns)
    by_kind = np.split(np.argsort(which, kind="stable"), np.cumsum(np.bincount(which, minlength=first.size))[:-1])
    for at, places in zip(first.tolist(), by_kind, strict=False):
        codes = [int(column[at]) for column in columns]
        spelled = {name: names[code] if code >= 0 else None for name, code in zip(_NAMES, codes, strict=False)}
        numbers = zip(_NUMBERS, codes[len(_NAMES) :], strict=True)
        counted = {name: None if number == NONE else number for name, number in numbers}
        key = _Key(**{**spelled, "op": spelled["op"] or "unknown"}, **counted)  # type: ignore[arg-type]
        yield key, rows[places]


def _total(calls: _Calls) -> int:
    return sum(int(each.sum()) for each in calls.durations)


def _row(key: _Key, calls: _Calls) -> CollectiveRow:
    durations, numbers = np.concatenate(calls.durations), np.concatenate(calls.numbers)
    matched = np.concatenate(calls.transfers)[np.unique(numbers, return_index=True)[1]]
    total = int(durations.sum())
    is_matched = durations.size > 0 and numbers.size == durations.size
    transfer = float(np.median(matched if is_matched else durations)) if durations.size else None
    baseline = float(np.quantile(matched, BASELINE_QUANTILE)) if is_matched and matched.size >= BASELINE_CALLS else None
    algbw = key.bytes / transfer if key.bytes and transfer else None
    busbw = algbw * bus_factor(key.op, key.group_size) if algbw is not None and key.group_size else None
    return CollectiveRow(
        op=key.op,
        group=key.group,
        group_size=key.group_size,
        dtype=key.dtype,
        bytes=key.bytes,
        dimension=key.dimension,
        phase=key.phase,
        module=key.module,
        algorithm=key.algorithm,
        protocol=key.protocol,
        count=max(calls.by_rank.values()),
        estimate="matched" if is_matched else "upper_bound",
        transfer_ns_median=transfer,
        baseline_ns=baseline,
        wait_fraction=calls.waited / total if is_matched and total else None,
        exposed_ns=round(calls.exposed_ns / len(calls.by_rank)) if durations.size else None,
        algbw_gbs=algbw,
        busbw_gbs=busbw,
    )
