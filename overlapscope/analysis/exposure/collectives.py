"""The table of a run's collectives, one row for each kind of call.

Ranks are added one by one (`CallSums`); figures of a kind are computed only at the end.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
import numpy as np

from overlapscope.analysis.cross_rank.across_ranks import Transfers
from overlapscope.analysis.cross_rank.wait_transfer import BASELINE_CALLS, BASELINE_QUANTILE
from overlapscope.analysis.exposure.call_kind import CallFields
from overlapscope.analysis.per_rank.steps import StepWindow
from overlapscope.timeline.columns import NONE, Ints, or_none, size
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.operations import bus_factor, move_as_much
from overlapscope.timeline.rows import Column, factorize_rows, smallest_by
from overlapscope.timeline.run import RankTimeline

NAMES: Final = ("op", "group", "dtype", "dimension", "phase", "module", "algorithm", "protocol")
NUMBERS: Final = ("group_size", "bytes")
UNKNOWN: Final = "unknown"
"""Name of an operation without a name."""
SUMS: Final = ("ranks", "most", "exposed_ns", "timed", "total_ns", "split", "waited_ns")
"""Of one kind: ranks that made such calls, largest number of calls on a rank, exposed time; number of calls with times
and their total duration; number of calls with separate wait and transfer, and their total wait time."""


class CollectiveRow(CallFields, kw_only=True, frozen=True):
    """All calls of one operation, group, type and size.

    With estimate `upper_bound`, the transfer is the whole duration including wait time, of a call that several members
    recorded the shortest one, and the bandwidths are lower bounds.
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
    """Sum over these calls, mean over ranks, without the cause `start_of_recording`; of several calls in flight, time
    belongs to the one that ends last."""
    algbw_gbs: float | None
    busbw_gbs: float | None


def collective_rows(
    ranks: Mapping[int, RankTimeline],
    windows: Mapping[int, list[StepWindow]],
    transfers: Mapping[int, Transfers],
    exposed_ns: Mapping[int, Ints],
    numbers: Mapping[int, Column] | None = None,
) -> list[CollectiveRow]:
    """Return one row for each kind of call, the largest total time first.

    Covers each rank's complete steps where it has any, else everything it recorded. A call of all members of a group
    counts once: the count is the largest of any rank. `transfers` holds the transfer times that could be separated from
    wait time, `exposed_ns` the exposed time of each of a rank's calls, and `numbers` those of calls that some members
    recorded, the same on each, -1 of others.
    """
    sums = CallSums()
    for rank, timeline in ranks.items():
        number = transfers[rank].call if numbers is None else numbers[rank]
        sums.add(timeline, chosen_rows(timeline, windows[rank]), transfers[rank], exposed_ns[rank], number)
    found = sorted(sums.found(), key=lambda kind: (-kind.sums["total_ns"], *_spelled(kind)))
    return [_row(kind) for kind in found]


def chosen_rows(timeline: RankTimeline, windows: list[StepWindow]) -> Ints:
    """Return the rows of the calls that belong to complete steps; all rows where no step is complete.

    A call belongs to the step that launched it; a call without a launch, to the step in whose window it began.
    """
    calls = timeline.collectives
    complete = [each for each in windows if each.complete]
    if not complete:
        return np.arange(size(calls))
    places = {(each.recording, each.step) for each in complete}
    which, first = factorize_rows([calls.recording, calls.step])
    keys = zip(calls.recording[first].tolist(), calls.step[first].tolist(), strict=True)
    inside = np.array([place in places for place in keys], np.bool_)[which]
    windows_of = sorted(each.window for each in complete if each.window)
    starts = np.array([start for start, _ in windows_of], np.int64)
    ends = np.array([end for _, end in windows_of], np.int64)
    row = np.searchsorted(starts, calls.start_ns, side="right") - 1
    begun = (row >= 0) & (calls.start_ns < np.append(ends, NONE)[row])
    return np.flatnonzero(inside | (begun & (calls.launch_ns == NONE)))


class KindSums(msgspec.Struct, frozen=True, kw_only=True):
    """The sums of one kind of call over all ranks."""

    key: Mapping[str, Any]
    """The fields `NAMES` and `NUMBERS`; None where one is missing, except `op`, which always has a value."""
    sums: Mapping[str, int]
    durations_ns: Ints
    """Ascending; empty where all of them could be split."""
    transfers_ns: Ints
    """Transfer time of each call that could be split, counted once for all its members, ascending."""

    @property
    def is_split(self) -> bool:
        """Return whether there are calls with times, and all of them could be split into wait and transfer."""
        return 0 < self.sums["timed"] == self.sums["split"]


def _spelled(kind: KindSums) -> tuple[str, str, int]:
    return kind.key["op"], kind.key["group"] or "", kind.key["bytes"] or 0


def _row(kind: KindSums) -> CollectiveRow:
    sums, matched = kind.sums, kind.transfers_ns
    volume, group_size = kind.key["bytes"], kind.key["group_size"]
    is_matched = kind.is_split
    transfer = _middle(matched if is_matched else kind.durations_ns) if sums["timed"] else None
    alike = is_matched and move_as_much(kind.key["op"], volume)
    baseline = float(np.quantile(matched, BASELINE_QUANTILE)) if alike and matched.size >= BASELINE_CALLS else None
    algbw = volume / transfer if volume and transfer else None
    busbw = algbw * bus_factor(kind.key["op"], group_size) if algbw is not None and group_size else None
    return CollectiveRow(
        **kind.key,
        count=sums["most"],
        estimate="matched" if is_matched else "upper_bound",
        transfer_ns_median=transfer,
        baseline_ns=baseline,
        wait_fraction=sums["waited_ns"] / sums["total_ns"] if is_matched and sums["total_ns"] else None,
        exposed_ns=round(sums["exposed_ns"] / sums["ranks"]) if sums["timed"] else None,
        algbw_gbs=algbw,
        busbw_gbs=busbw,
    )


def _middle(ordered: Ints) -> float:
    """Return the median of ascending values."""
    return float(ordered[(ordered.size - 1) // 2] + ordered[ordered.size // 2]) / 2


class CallSums(msgspec.Struct):
    """Sums by kind of call, to which ranks are added one by one."""

    names: NameTable = msgspec.field(default_factory=NameTable)
    kinds: dict[tuple[int, ...], int] = {}
    """Number of each kind by its key (names as codes)."""
    sums: dict[str, Ints] = msgspec.field(default_factory=lambda: {name: np.zeros(0, np.int64) for name in SUMS})
    durations: list[tuple[Ints, Ints, Column]] = []
    """Kind, duration and number of each rank's calls."""
    kind_of_call: Ints = msgspec.field(default_factory=lambda: np.zeros(0, np.int64))
    """Kind of each matched call by its number; -1 for a number not seen yet ..."""
    transfer_ns: Ints = msgspec.field(default_factory=lambda: np.zeros(0, np.int64))
    others: list[tuple[Ints, Ints]] = []
    """... and (number, kind) of calls that have another kind on another member."""

    def add(self, timeline: RankTimeline, rows: Ints, transfers: Transfers, exposed_ns: Ints, number: Column) -> None:
        """Add these rows of a rank's calls; `number` is the same on all members that recorded a call."""
        calls = timeline.collectives
        kind = self._kinds(timeline, rows, transfers.group_size[rows])
        start, end = calls.start_ns[rows], calls.end_ns[rows]
        timed = np.flatnonzero((start != NONE) & (end != NONE))
        duration, transfer = (end - start)[timed], transfers.transfer_ns[rows[timed]]
        split = np.flatnonzero(transfer != NONE)
        every, of_timed, of_split = kind, kind[timed], kind[timed[split]]
        count = self._summed(every)
        self.sums["ranks"] += count > 0
        self.sums["most"] = np.maximum(self.sums["most"], count)
        self.sums["exposed_ns"] += self._summed(every, exposed_ns[rows])
        self.sums["timed"] += self._summed(of_timed)
        self.sums["total_ns"] += self._summed(of_timed, duration)
        self.sums["split"] += self._summed(of_split)
        self.sums["waited_ns"] += self._summed(of_split, duration[split] - transfer[split])
        self.durations.append((of_timed, duration, number[rows[timed]]))
        self._note_calls(transfers.call[rows[timed[split]]], of_split, transfer[split])

    def found(self) -> Iterator[KindSums]:
        """Yield every kind, in the order of the first calls."""
        some = self.sums["timed"] != self.sums["split"]
        chosen = [tuple(column[some[each[0]]] for column in each) for each in self.durations]
        durations = _by_kind([_shortest(chosen)], len(self.kinds))
        known = np.flatnonzero(self.kind_of_call >= 0)
        calls = [(self.kind_of_call[known], self.transfer_ns[known])]
        if self.others:
            number, kind = np.unique(np.concatenate([np.stack(each) for each in self.others], axis=1), axis=1)
            calls.append((kind, self.transfer_ns[number]))
        transfers = _by_kind(calls, len(self.kinds))
        names = self.names.to_list()
        for (key, at), its, moved in zip(self.kinds.items(), durations, transfers, strict=True):
            spelled = {name: names[code] if code >= 0 else None for name, code in zip(NAMES, key, strict=False)}
            counted = zip(NUMBERS, key[len(NAMES) :], strict=True)
            yield KindSums(
                key=spelled | {name: or_none(number) for name, number in counted},
                sums={name: int(values[at]) for name, values in self.sums.items()},
                durations_ns=its,
                transfers_ns=moved,
            )

    def _kinds(self, timeline: RankTimeline, rows: Ints, group_size: Ints) -> Ints:
        """Return the number of each row's kind; the sizes of groups are given."""
        calls = timeline.collectives
        columns = [getattr(calls, name)[rows] for name in (*NAMES, *NUMBERS)]
        columns[len(NAMES)] = group_size
        which, first = factorize_rows(columns)
        codes = np.append(self.names.encode(timeline.names), np.int32(-1))
        keys = [codes[column[first]] for column in columns[: len(NAMES)]]
        keys[0] = np.where(keys[0] < 0, np.int32(self.names.code(UNKNOWN)), keys[0])
        keys += [column[first] for column in columns[len(NAMES) :]]
        kinds = self.kinds
        numbers = [kinds.setdefault(key, len(kinds)) for key in zip(*(each.tolist() for each in keys), strict=True)]
        for name, values in self.sums.items():
            self.sums[name] = np.append(values, np.zeros(len(kinds) - values.size, np.int64))
        return np.array(numbers, np.int64)[which]

    def _summed(self, kind: Ints, values: Ints | None = None) -> Ints:
        if values is None:
            return np.bincount(kind, minlength=len(self.kinds))
        sums = np.zeros(len(self.kinds), np.int64)
        np.add.at(sums, kind, values)
        return sums

    def _note_calls(self, number: Ints, kind: Ints, transfer_ns: Ints) -> None:
        more = int(number.max(initial=-1)) + 1 - self.kind_of_call.size
        if more > 0:
            self.kind_of_call = np.append(self.kind_of_call, np.full(more, -1, np.int64))
            self.transfer_ns = np.append(self.transfer_ns, np.zeros(more, np.int64))
        before = self.kind_of_call[number]
        new, other = before < 0, (before >= 0) & (before != kind)
        self.kind_of_call[number[new]] = kind[new]
        self.transfer_ns[number[new]] = transfer_ns[new]
        if other.any():
            self.others.append((number[other], kind[other]))


def _shortest(parts: Sequence[tuple[Column, ...]]) -> tuple[Ints, Ints]:
    """Return the kind and the shortest duration of each call: its members wait, and then transfer together."""
    none = np.zeros(0, np.int64)
    kind, duration, number = (np.concatenate(each) for each in zip((none, none, none), *parts, strict=True))
    number = np.where(number >= 0, number, -1 - np.arange(number.size))
    which, first = factorize_rows([kind, number])
    return kind[first], smallest_by(which, duration, first.size)


def _by_kind(parts: Sequence[tuple[Ints, Ints]], kinds: int) -> list[Ints]:
    """Return the values of each kind, ascending; `parts` hold kinds and values."""
    kind, values = (np.concatenate(each) for each in zip(*parts, strict=True))
    order = np.lexsort((values, kind))
    return np.split(values[order], np.searchsorted(kind[order], np.arange(1, kinds)))[:kinds]
