"""Arrows between ranks: from each call of a collective to the one that began last, and between a send and its receive.

Importers drop an arrow whose end comes before its start, and Perfetto draws one from the slice that began first in any
case: so an arrow leads from a call that waited to the call that it waited for.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.cross_rank.wait_transfer import Split, counts_from
from overlapscope.report.perfetto.events import Arrow
from overlapscope.timeline.columns import NONE, Flags, Ints, Small, size
from overlapscope.timeline.run import RankTimeline, Run

WAITS, SAME, MESSAGE = range(3)
_WORDS: Final = (("collective", "waits for"), ("collective", "same call"), ("message", "message"))
"""Category and name. `same call`: nobody was late by more than the clocks are exact, or not every rank was recorded."""
_OF_RANKS: Final = 1 << 31
"""Added to numbers of arrows between ranks; those of launches are below."""


class ArrowEnds(msgspec.Struct, frozen=True, kw_only=True):
    """Both ends of arrows at the spans of one rank, sorted by span."""

    row: Ints
    """Row in `Spans`."""
    number: Ints
    kind: Small
    begins: Flags

    def at_rows(self, rows: Ints) -> Callable[[int], list[Arrow]]:
        """Return a function from positions in `rows`, of spans, to the arrows there."""
        first, last = (np.searchsorted(self.row, rows, side) for side in ("left", "right"))

        def arrows(at: int) -> list[Arrow]:
            places = range(first[at], last[at])
            return [Arrow(int(self.number[each]), bool(self.begins[each]), *_WORDS[self.kind[each]]) for each in places]

        return arrows


class _Arrows(msgspec.Struct, frozen=True, kw_only=True):
    """Arrows between ranks, one element each: places in the sequence of exported ranks, and rows in their `Spans`."""

    origin: Ints
    origin_row: Ints
    target: Ints
    target_row: Ints
    kind: Small


def arrows_between_ranks(
    run: Run, together: CrossRank, shown: Mapping[int, Flags], processes: Mapping[int, int]
) -> dict[int, ArrowEnds]:
    """Return the ends of arrows at each rank's spans.

    `shown` masks the exported spans of each exported rank, in the order in which ranks are written; `processes` numbers
    the ranks' processes.
    """
    ranks = tuple(shown)
    spans = {rank: _first_spans(run.ranks[rank], mask) for rank, mask in shown.items()}
    found = [
        *_of_collectives(run, together, (*together.splits, *together.uneven), spans),
        *_of_messages(run, together, spans),
    ]
    if not found:
        return {}
    every = _Arrows(
        **{name: np.concatenate([getattr(each, name) for each in found]) for name in _Arrows.__struct_fields__}
    )
    process = np.array([processes[rank] for rank in ranks], np.int64)
    number = (process[every.origin] << 32) + _OF_RANKS + every.origin_row
    place, row = np.append(every.origin, every.target), np.append(every.origin_row, every.target_row)
    begins = np.arange(place.size) < number.size
    number, kind = np.tile(number, 2), np.tile(every.kind, 2)
    ends = {}
    for at, rank in enumerate(ranks):
        own = np.flatnonzero(place == at)
        own = own[np.argsort(row[own], kind="stable")]
        ends[rank] = ArrowEnds(row=row[own], number=number[own], kind=kind[own], begins=begins[own])
    return ends


def _first_spans(timeline: RankTimeline, shown: Flags) -> Ints:
    """Return for each row of `Collectives` the row of its first exported span; NONE where it has none."""
    spans = timeline.spans
    rows = np.flatnonzero(shown & (spans.collective != NONE))
    rows = rows[np.argsort(-spans.start_ns[rows], kind="stable")]  # of a call's spans the first one is assigned last
    found = np.full(size(timeline.collectives), NONE, np.int64)
    found[spans.collective[rows]] = rows
    return found


def _of_collectives(
    run: Run, together: CrossRank, splits: Sequence[Split], spans: Mapping[int, Ints]
) -> Iterator[_Arrows]:
    threshold = counts_from(together.clocks)
    for split in splits:
        members = [at for at, rank in enumerate(split.block.ranks) if rank in spans]
        if len(members) < 2:
            continue
        ranks = [split.block.ranks[at] for at in members]
        row = np.stack([spans[rank][calls] for rank, calls in zip(ranks, split.block.rows[members], strict=True)])
        start, end = _times(run, together, ranks, row)
        target, calls = _last_written(start), np.arange(row.shape[1])
        late = (split.last == np.array(members)[target]) & (split.lead_ns > threshold) & split.block.whole
        # What ended before cannot have waited; nor did what took no longer than the transfer, whatever the clocks say.
        waited = late & (end > start[target, calls]) & (split.wait_ns[members] > threshold)
        leads = (row != NONE) & (np.arange(len(ranks))[:, None] != target)
        place = _places(ranks, spans)
        origin, call = np.nonzero(leads)
        yield _Arrows(
            origin=place[origin], origin_row=row[origin, call], target=place[target[call]],
            target_row=row[target[call], call], kind=np.where(waited[origin, call], WAITS, SAME).astype(np.int8),
        )  # fmt: skip


def _of_messages(run: Run, together: CrossRank, spans: Mapping[int, Ints]) -> Iterator[_Arrows]:
    for pair in together.pairs.pairs:
        ranks = [pair.sender, pair.receiver]
        if not all(rank in spans for rank in ranks):
            continue
        row = np.stack(
            [spans[rank][calls] for rank, calls in zip(ranks, (pair.send_rows, pair.recv_rows), strict=True)]
        )
        row = row[:, (row != NONE).all(axis=0)]
        target, calls = _last_written(_times(run, together, ranks, row)[0]), np.arange(row.shape[1])
        place = _places(ranks, spans)
        yield _Arrows(
            origin=place[1 - target], origin_row=row[1 - target, calls], target=place[target],
            target_row=row[target, calls], kind=np.full(calls.size, MESSAGE, np.int8),
        )  # fmt: skip


def _places(ranks: Sequence[int], spans: Mapping[int, Ints]) -> Ints:
    places = {rank: at for at, rank in enumerate(spans)}
    return np.array([places[rank] for rank in ranks], np.int64)


def _times(run: Run, together: CrossRank, ranks: Sequence[int], row: Ints) -> tuple[Ints, Ints]:
    """Return start and end of spans (a row for each rank) on the common clock; the least integer without one."""
    found = []
    for column in ("start_ns", "end_ns"):
        times = np.full(row.shape, np.iinfo(np.int64).min)
        for at, rank in enumerate(ranks):
            known = row[at] != NONE
            own = getattr(run.ranks[rank].spans, column)[row[at, known]]
            times[at, known] = together.clocks.aligned_ns(rank, own)
        found.append(times)
    return found[0], found[1]


def _last_written(start_ns: Ints) -> Ints:
    """Return for each column the row that begins last; of several the last, whose events come last in the file."""
    last: Ints = len(start_ns) - 1 - np.argmax(start_ns[::-1], axis=0)
    return last
