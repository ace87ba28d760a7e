"""Find ranks that made different calls: other operations, sizes or data types under one sequence number of a group.

A collective library pairs the calls of its ranks by their order alone. Ranks that call something else, or something of
another size, exchange wrong data or hang. `mismatched` checks flight-recorder dumps and watchdog logs, `call_order`
checks NCCL logs. Sends and receives differ from rank to rank by their nature and are not compared.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.common.group_progress import GroupProgress, collective_calls
from overlapscope.analysis.common.wording import first_and_count, first_of, id_part, rank_list
from overlapscope.display import list_some
from overlapscope.timeline.columns import NONE, Codes, Flags, Ints
from overlapscope.timeline.facts import Facts
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import RankTimeline, Run

UNEVEN: Final = frozenset({"all_to_all", "send", "recv", "send_recv", "coalesced", "gather", "scatter"})
"""Operations whose sizes may differ between ranks."""
_SHIFT: Final = 20
"""Bits of a key that number the calls of one sequence number (a batch)."""
ONE_SIDED: Final = ("send", "recv", "put_signal", "signal", "wait_signal")
MAX_LISTED: Final = 8


def mismatched(run: Run, group: str, label: str, ranks: Mapping[int, GroupProgress]) -> list[Finding]:
    """Find the first sequence number under which ranks of a group made different calls; from dumps, else from logs."""
    return _in_dumps(run, group, label, ranks) or _in_logs(group, label, ranks)


def _in_dumps(run: Run, group: str, label: str, ranks: Mapping[int, GroupProgress]) -> list[Finding]:
    """Find the first sequence number under which ranks called different operations, sizes or types.

    Only numbers that every dump with calls of the group still holds are compared; the batch of the oldest may be cut.
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
    calls_made = {rank: _spelled(run, rank, int(places[rank][at])) for rank in order}
    return [_finding(group, label, int(common[at]) >> _SHIFT, calls_made, int(differs.sum()))]


def _keyed(run: Run, rank: int, rows: Ints, numbers: Ints, first: int) -> tuple[Ints, Ints]:
    """Return sorted keys (sequence number, position in its batch) and their rows, from number `first` on."""
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
    """Return for each common call whether operation, elements or type differ between the ranks that know them."""
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
    """Return where the known values of a column differ between the ranks."""
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


def _in_logs(group: str, label: str, ranks: Mapping[int, GroupProgress]) -> list[Finding]:
    """Find ranks that timed out in different operations under one sequence number, according to a watchdog log."""
    late = {rank: each for rank, each in ranks.items() if each.timed_out and each.dump is None and each.op is not None}
    for seq in sorted({each.pending for each in late.values() if each.pending is not None}):
        here = {rank: each for rank, each in late.items() if each.pending == seq}
        sizes = {each.elements for each in here.values() if each.op not in UNEVEN} - {None}
        if len({each.op for each in here.values()}) > 1 or len(sizes) > 1:
            calls_made = {
                rank: f"{each.op}{'' if each.elements is None else f' of {each.elements}'}"
                for rank, each in here.items()
            }
            return [_finding(group, label, seq, calls_made, 1)]
    return []


def _finding(group: str, label: str, seq: int, called: Mapping[int, str], count: int) -> Finding:
    callers: dict[str, list[int]] = {}
    for rank, what in called.items():
        callers.setdefault(what, []).append(rank)
    order = sorted(callers, key=lambda what: (-len(callers[what]), what))
    calls = [f"{rank_list(callers[what])} called {what}" for what in order]
    more = f"; {count - 1} later calls differ too" if count > 1 else ""
    return Finding(
        id=f"desync:mismatch:{id_part(group)}:{seq}",
        severity="warning",
        title=f"collective #{seq} of {label} differs between ranks: {first_and_count(calls, 4, '; ')}{more}",
        evidence={
            "group": group,
            "seq": seq,
            "called": first_of({str(rank): called[rank] for rank in sorted(called)}),
        },
        known_from="log",
    )


class _Calls(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one rank in one communicator, in order; operation and type are codes that all ranks share."""

    rank: int
    seq: Ints
    op: Codes
    dtype: Codes
    elements: Ints


def call_order(run: Run) -> list[Finding]:
    """Find communicators whose ranks made different calls, and ranks that stopped before the others; from NCCL logs."""
    names = NameTable()
    known: dict[str, list[_Calls]] = defaultdict(list)
    unclear = _unclear(run.facts)
    for rank, timeline in sorted(run.ranks.items()):
        if timeline.basis == "log":
            for group, calls in _by_group(rank, timeline, names):
                if calls is None:
                    unclear.add(group)
                else:
                    known[group].append(calls)
    expected = _expected(run.facts, run)
    found = []
    spelled = names.to_list()
    for group, ranks in sorted(known.items()):
        if group not in unclear:
            found += _different(group, ranks, spelled)
            found += _behind(group, ranks, expected.get(group, set()))
    return found


def _by_group(rank: int, timeline: RankTimeline, names: NameTable) -> list[tuple[str, _Calls | None]]:
    """Split a rank's calls by communicator; None for one with sends and receives, which each rank numbers by itself."""
    calls = timeline.collectives
    codes = np.append(names.encode(timeline.names), np.int32(-1))
    alone = np.array([name in ONE_SIDED for name in timeline.names] + [False], np.bool_)[calls.op]
    found: list[tuple[str, _Calls | None]] = []
    for code in np.unique(calls.group[calls.seq != NONE]).tolist():
        rows = np.flatnonzero(calls.group == code)
        seq = calls.seq[rows]
        if code < 0:
            continue
        if alone[rows].any() or (seq[1:] < seq[:-1]).any():
            found.append((timeline.names[code], None))
            continue
        found.append(
            (
                timeline.names[code],
                _Calls(
                    rank=rank,
                    seq=seq,
                    op=codes[calls.op[rows]],
                    dtype=codes[calls.dtype[rows]],
                    elements=calls.elements[rows],
                ),
            )
        )
    return found


def _different(group: str, ranks: Sequence[_Calls], names: Sequence[str]) -> list[Finding]:
    """Compare each rank's calls with those of the first rank, sequence number by sequence number."""
    first, *others = ranks
    differing, earliest = 0, None
    for other in others:
        mine, place = _paired(first.seq, other.seq)
        odd = np.zeros(mine.size, np.bool_)
        for column in ("op", "dtype", "elements"):
            odd |= getattr(first, column)[mine] != getattr(other, column)[place]
        rows = mine[odd]
        differing += int(rows.size)
        if rows.size and (earliest is None or first.seq[rows[0]] < first.seq[earliest]):
            earliest = int(rows[0])
    if earliest is None:
        return []
    seq = int(first.seq[earliest])
    nth = earliest - int(np.searchsorted(first.seq, seq))
    calls_made: dict[str, list[int]] = defaultdict(list)
    for each in ranks:
        row = int(np.searchsorted(each.seq, seq)) + nth
        if row < each.seq.size and each.seq[row] == seq:
            calls_made[_call(each, row, names)].append(each.rank)
    title = "; ".join(f"{text} on {_ranks(who)}" for text, who in list(calls_made.items())[:MAX_LISTED])
    return [
        Finding(
            id=f"nccl_desync:{group}",
            severity="warning",
            title=f"the ranks of {group} made different calls under opCount {seq:x}: {title}",
            evidence={
                "communicator": group,
                "seq": seq,
                "calls": {text: who[:MAX_LISTED] for text, who in calls_made.items()},
                "differing_calls": differing,
            },
            known_from="log",
        )
    ]


def _paired(one: Ints, other: Ints) -> tuple[Ints, Ints]:
    """Return the rows of both that have the same number; several calls of one number are paired in order."""
    place = np.searchsorted(other, one) + np.arange(one.size) - np.searchsorted(one, one)
    there: Flags = place < np.searchsorted(other, one, side="right")
    mine = np.flatnonzero(there)
    return mine, place[mine]


def _behind(group: str, ranks: Sequence[_Calls], members: set[int]) -> list[Finding]:
    """Find the ranks whose last call has a lower number than the last call of the others."""
    last: dict[int, int] = {each.rank: int(each.seq[-1]) for each in ranks}
    for rank in members - last.keys():
        last[rank] = -1
    most = max(last.values())
    late = {rank: seq for rank, seq in last.items() if seq < most}
    if not late or len(last) < 2:
        return []
    reached = Counter(last.values())
    waiting = len(reached) == 2 and reached[most] >= len(late)
    where = ", ".join(
        f"rank {rank} after {seq:x}" if seq >= 0 else f"rank {rank} before the first"
        for rank, seq in list(late.items())[:MAX_LISTED]
    )
    evidence: dict[str, Any] = {
        "communicator": group,
        "last": most,
        "last_of": {str(rank): (seq if seq >= 0 else None) for rank, seq in list(late.items())[:MAX_LISTED]},
        "ranks_behind": len(late),
        "others_stand_still": waiting,
    }
    return [
        Finding(
            id=f"nccl_behind:{group}",
            severity="warning" if waiting else "info",
            title=f"in {group} {where} made no more calls, while others reached opCount {most:x}: either those wait "
            "there, or these logs end earlier",
            evidence=evidence,
            known_from="log",
        )
    ]


def _unclear(facts: Facts) -> set[str]:
    """Return the names that several communicators share: two processes have the same rank in them."""
    table = facts.members
    owners: dict[tuple[int, int], set[tuple[int, int, int]]] = defaultdict(set)
    columns = (table.communicator, table.member, table.host, table.process, table.device)
    for name, member, *owner in zip(*(column.tolist() for column in columns), strict=True):
        if member != NONE:
            owners[name, member].add(tuple(owner))
    return {facts.names[name] for (name, _), those in owners.items() if len(those) > 1 and name >= 0}


def _expected(facts: Facts, run: Run) -> dict[str, set[int]]:
    """Return the members of each communicator whose calls were logged."""
    logged = {rank for rank, timeline in run.ranks.items() if timeline.basis == "log" and timeline.collectives.seq.size}
    expected: dict[str, set[int]] = defaultdict(set)
    for name, rank in zip(facts.members.communicator.tolist(), facts.members.rank.tolist(), strict=True):
        if name >= 0 and rank in logged:
            expected[facts.names[name]].add(rank)
    return expected


def _call(calls: _Calls, row: int, names: Sequence[str]) -> str:
    dtype, elements = int(calls.dtype[row]), int(calls.elements[row])
    return (
        f"{names[calls.op[row]] if calls.op[row] >= 0 else 'unknown'} of "
        f"{elements if elements != NONE else '?'} {names[dtype] if dtype >= 0 else 'elements of unknown type'}"
    )


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {list_some(ranks, MAX_LISTED)}"
