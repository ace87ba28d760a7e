"""The collectives of a run, one row for each kind of call."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

import numpy as np

from overlapscope.analysis.across import Transfers
from overlapscope.analysis.call_kind import CallFields, CallKind
from overlapscope.analysis.causes import Causes
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
    durations: list[int] = field(default_factory=list)
    transfers: dict[int, int] = field(default_factory=dict)
    """Transfer of each matched call, by its number."""
    exposed_ns: int = 0
    waited: int = 0
    split: int = 0
    """Calls of a rank whose duration could be split."""


def collective_rows(
    ranks: Mapping[int, RankTimeline],
    windows: Mapping[int, list[StepWindow]],
    transfers: Mapping[int, Transfers],
    causes: Mapping[int, Causes],
) -> list[CollectiveRow]:
    """Give one row a kind of call, the largest total time first.

    Covers each rank's complete steps where it has any, else everything it recorded. A call that every member of a group
    made counts once: the count is the largest of any rank. `transfers` holds what could be told from waiting.
    """
    kinds: dict[_Key, _Calls] = {}
    for rank, timeline in ranks.items():
        known = transfers[rank]
        for key, row in _keyed(timeline, chosen_rows(timeline, windows[rank])):
            calls = kinds.setdefault(key, _Calls())
            calls.by_rank[rank] = calls.by_rank.get(rank, 0) + 1
            calls.exposed_ns += int(causes[rank].exposed_ns[row])
            start, end = int(timeline.collectives.start_ns[row]), int(timeline.collectives.end_ns[row])
            if NONE in (start, end):
                continue
            calls.durations.append(end - start)
            transfer = int(known.transfer_ns[row])
            if transfer != NONE:
                calls.split += 1
                calls.waited += end - start - transfer
                calls.transfers[int(known.call[row])] = transfer
    order = sorted(kinds, key=lambda key: (-sum(kinds[key].durations), key.op, key.group or "", key.bytes or 0))
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
    keys = zip(calls.recording.tolist(), calls.step.tolist(), strict=True)
    inside = np.fromiter((key in places for key in keys), np.bool_, size(calls))
    windows_of = sorted(each.window for each in complete if each.window)
    starts = np.array([start for start, _ in windows_of], np.int64)
    ends = np.array([end for _, end in windows_of], np.int64)
    row = np.searchsorted(starts, calls.start_ns, side="right") - 1
    begun = (row >= 0) & (calls.start_ns < np.append(ends, NONE)[row])
    return np.flatnonzero(inside | (begun & (calls.launch_ns == NONE)))


def _keyed(timeline: RankTimeline, rows: Ints) -> list[tuple[_Key, int]]:
    calls, names = timeline.collectives, timeline.names
    keyed = []
    known: dict[tuple[int, ...], _Key] = {}
    columns = [getattr(calls, name)[rows].tolist() for name in (*_NAMES, *_NUMBERS)]
    for row, values in zip(rows.tolist(), zip(*columns, strict=True), strict=True):
        key = known.get(values)
        if key is None:
            spelled = {n: names[code] if code >= 0 else None for n, code in zip(_NAMES, values, strict=False)}
            numbers = values[len(_NAMES) :]
            counted = {n: None if number == NONE else number for n, number in zip(_NUMBERS, numbers, strict=True)}
            key = known[values] = _Key(**{**spelled, "op": spelled["op"] or "unknown"}, **counted)  # type: ignore[arg-type]
        keyed.append((key, row))
    return keyed


def _row(key: _Key, calls: _Calls) -> CollectiveRow:
    durations, matched = calls.durations, list(calls.transfers.values())
    total = sum(durations)
    is_matched = bool(durations) and calls.split == len(durations)
    transfer = float(median(matched if is_matched else durations)) if durations else None
    baseline = float(np.quantile(matched, BASELINE_QUANTILE)) if is_matched and len(matched) >= BASELINE_CALLS else None
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
        exposed_ns=round(calls.exposed_ns / len(calls.by_rank)) if durations else None,
        algbw_gbs=algbw,
        busbw_gbs=busbw,
    )
