"""What the calls of each kind come to, gathered rank by rank: no kind of call is looked at by itself before the end."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from overlapscope.analysis.across import Transfers
from overlapscope.analysis.distinct import distinct
from overlapscope.timeline.columns import NONE, Ints, or_none
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.packed import Packed
from overlapscope.timeline.run import RankTimeline

NAMES: Final = ("op", "group", "dtype", "dimension", "phase", "module", "algorithm", "protocol")
NUMBERS: Final = ("group_size", "bytes")
UNKNOWN: Final = "unknown"
"""What an operation without a name is called."""
SUMS: Final = ("ranks", "most", "exposed_ns", "timed", "total_ns", "split", "waited_ns")
"""Of one kind: ranks that made such calls, calls of the rank with most, exposed time; calls with times and how long
these took; calls of which waiting could be split off, and that."""


class KindSums(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of call on all ranks."""

    key: Mapping[str, Any]
    """The fields `NAMES` and `NUMBERS`; None where one is missing, but `op` is always told."""
    sums: Mapping[str, int]
    durations_ns: Ints
    """In order; none where all of them could be split."""
    transfers_ns: Ints
    """Of each call whose duration could be split, once, in order."""

    @property
    def is_split(self) -> bool:
        """Whether there are calls with times, and waiting could be split off all of them."""
        return 0 < self.sums["timed"] == self.sums["split"]


class CallSums(msgspec.Struct):
    """All kinds, while ranks are added."""

    names: NameTable = msgspec.field(default_factory=NameTable)
    kinds: dict[tuple[int, ...], int] = {}
    """The number of each kind; its names as codes."""
    sums: dict[str, Ints] = msgspec.field(default_factory=lambda: {name: np.zeros(0, np.int64) for name in SUMS})
    durations: list[tuple[Packed, Packed]] = []
    """Kind and duration of each rank's calls."""
    kind_of_call: Ints = msgspec.field(default_factory=lambda: np.zeros(0, np.int64))
    """Of each call by its number; -1 for none yet ..."""
    transfer_ns: Ints = msgspec.field(default_factory=lambda: np.zeros(0, np.int64))
    others: list[tuple[Ints, Ints]] = []
    """... and, of calls that are of another kind on another member, number and kind."""

    def add(self, timeline: RankTimeline, rows: Ints, transfers: Transfers, exposed_ns: Ints) -> None:
        """Add these rows of a rank's calls."""
        calls = timeline.collectives
        kind = self._kinds(timeline, rows)
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
        self.durations.append((Packed.of(of_timed, NONE), Packed.of(duration, NONE)))
        self._note_calls(transfers.call[rows[timed[split]]], of_split, transfer[split])

    def found(self) -> Iterator[KindSums]:
        """Give every kind, in the order of their first call."""
        some = self.sums["timed"] != self.sums["split"]
        parts = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
        for packed in self.durations:
            kind, duration = (each.values() for each in packed)
            parts.append((kind[some[kind]], duration[some[kind]]))
        durations = _by_kind(parts, len(self.kinds))
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

    def _kinds(self, timeline: RankTimeline, rows: Ints) -> Ints:
        """Give the number of each row's kind."""
        calls = timeline.collectives
        columns = [getattr(calls, name)[rows] for name in (*NAMES, *NUMBERS)]
        which, first = distinct(columns)
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


def _by_kind(parts: Sequence[tuple[Ints, Ints]], kinds: int) -> list[npt.NDArray[np.int64]]:
    """Give the values of each kind, in order; parts hold kinds and values."""
    kind, values = (np.concatenate(each) for each in zip(*parts, strict=True))
    order = np.lexsort((values, kind))
    return np.split(values[order], np.searchsorted(kind[order], np.arange(1, kinds)))[:kinds]
