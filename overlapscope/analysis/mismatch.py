"""Ranks that called different operations, sizes or types under one number of a group."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from overlapscope.analysis.findings import Finding
from overlapscope.analysis.rank_words import first_of, id_part, listed, rank_list
from overlapscope.analysis.standing import Standing, collective_calls
from overlapscope.timeline.columns import NONE, Flags, Ints
from overlapscope.timeline.run import Run

UNEVEN: Final = frozenset({"all_to_all", "send", "recv", "send_recv", "coalesced", "gather", "scatter"})
"""Operations whose recorded sizes may differ between ranks by right."""
_SHIFT: Final = 20
"""Bits of a key that tell the calls of one number (a batch) apart."""


def mismatched(run: Run, group: str, label: str, ranks: Mapping[int, Standing]) -> list[Finding]:
    """Find the first number under which ranks of a group called different things, from dumps, else from logs."""
    return _in_dumps(run, group, label, ranks) or _in_logs(group, label, ranks)


def _in_dumps(run: Run, group: str, label: str, ranks: Mapping[int, Standing]) -> list[Finding]:
    """Find the first number under which ranks called different operations, sizes or types.

    Only numbers that every dump with calls of the group still holds are compared; of the oldest, a batch may be cut.
    """
    every = {rank: collective_calls(run, group, rank, each.dump) for rank, each in ranks.items()}
    shown = {rank: calls for rank, calls in every.items() if calls[0].size}
    if len(shown) < 2:
        return []
    first = max(int(numbers.min()) for _, numbers in shown.values())
    begins_cut = len({int((numbers == first).sum()) for _, numbers in shown.values()}) > 1
    keyed = {rank: _keyed(run, rank, *calls, first + begins_cut) for rank, calls in shown.items()}
    common = np.array(sorted(set.intersection(*(set(keys.tolist()) for keys, _ in keyed.values()))), np.int64)
    if common.size == 0:
        return []
    order = sorted(keyed)
    places = {rank: keyed[rank][1][np.searchsorted(keyed[rank][0], common)] for rank in order}
    differs = _differing(run, places)
    if not differs.any():
        return []
    at = int(np.flatnonzero(differs)[0])
    said = {rank: _spelled(run, rank, int(places[rank][at])) for rank in order}
    return [_finding(group, label, int(common[at]) >> _SHIFT, said, int(differs.sum()))]


def _keyed(run: Run, rank: int, rows: Ints, numbers: Ints, first: int) -> tuple[Ints, Ints]:
    """Give sorted keys (number, place among the calls of that number) and their rows, from the number `first` on."""
    timeline = run.ranks[rank]
    batch = timeline.names.index("coalesced") if "coalesced" in timeline.names else -1
    chosen = (numbers >= first) & (numbers < 1 << 40) & (timeline.collectives.op[rows] != batch)
    rows, numbers = rows[chosen], numbers[chosen]
    order = np.argsort(numbers, kind="stable")
    rows, numbers = rows[order], numbers[order]
    place = np.arange(numbers.size) - np.searchsorted(numbers, numbers)
    keep = place < 1 << _SHIFT
    return (numbers << _SHIFT | place)[keep], rows[keep]


def _differing(run: Run, places: Mapping[int, Ints]) -> Flags:
    """Tell for each common call whether operation, elements or type differ between the ranks that know them."""
    codes: dict[str, int] = {}
    ops, elements, dtypes = [], [], []
    for rank, rows in places.items():
        timeline = run.ranks[rank]
        calls = timeline.collectives
        translated = np.array([codes.setdefault(name, len(codes)) for name in timeline.names] + [NONE], np.int64)
        ops.append(translated[calls.op[rows]])
        dtypes.append(translated[calls.dtype[rows]])
        elements.append(calls.elements[rows])
    uneven = np.isin(ops[0], [codes[name] for name in UNEVEN if name in codes])
    return _unequal(ops) | ((_unequal(elements) | _unequal(dtypes)) & ~uneven)


def _unequal(columns: Sequence[Ints]) -> Flags:
    """Tell where the known values of a column differ between the ranks."""
    stacked = np.stack(columns)
    most = np.where(stacked == NONE, np.iinfo(np.int64).min, stacked).max(axis=0)
    least = np.where(stacked == NONE, np.iinfo(np.int64).max, stacked).min(axis=0)
    unequal: Flags = (least != np.iinfo(np.int64).max) & (most != least)
    return unequal


def _spelled(run: Run, rank: int, row: int) -> str:
    timeline = run.ranks[rank]
    calls = timeline.collectives
    elements, dtype = int(calls.elements[row]), int(calls.dtype[row])
    size = "" if elements == NONE else f" of {elements}"
    return f"{timeline.names[int(calls.op[row])]}{size}{'' if dtype < 0 else f' {timeline.names[dtype]}'}"


def _in_logs(group: str, label: str, ranks: Mapping[int, Standing]) -> list[Finding]:
    """Find ranks that timed out under one number in different operations, as a log tells it."""
    late = {rank: each for rank, each in ranks.items() if each.timed_out and each.dump is None and each.op is not None}
    for seq in sorted({each.pending for each in late.values() if each.pending is not None}):
        here = {rank: each for rank, each in late.items() if each.pending == seq}
        sizes = {each.elements for each in here.values() if each.op not in UNEVEN} - {None}
        if len({each.op for each in here.values()}) > 1 or len(sizes) > 1:
            said = {
                rank: f"{each.op}{'' if each.elements is None else f' of {each.elements}'}"
                for rank, each in here.items()
            }
            return [_finding(group, label, seq, said, 1)]
    return []


def _finding(group: str, label: str, seq: int, said: Mapping[int, str], count: int) -> Finding:
    callers: dict[str, list[int]] = {}
    for rank, what in said.items():
        callers.setdefault(what, []).append(rank)
    order = sorted(callers, key=lambda what: (-len(callers[what]), what))
    told = [f"{rank_list(callers[what])} called {what}" for what in order]
    more = f"; {count - 1} later calls differ too" if count > 1 else ""
    return Finding(
        id=f"desync:mismatch:{id_part(group)}:{seq}",
        severity="warning",
        title=f"collective #{seq} of {label} is not the same on all ranks: {listed(told, 4, '; ')}{more}",
        evidence={"group": group, "seq": seq, "called": first_of({str(rank): said[rank] for rank in sorted(said)})},
        known_from="log",
    )
