"""Whether all ranks of a communicator made the same calls in the same order, by the logs of the calls.

A collective library pairs the calls of its ranks by their order alone: ranks that call something else, or something of
another size, exchange wrong data or wait for ever. Sends and receives differ from rank to rank by their nature.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from overlapscope.analysis.findings import Finding
from overlapscope.timeline.columns import NONE, Codes, Flags, Ints
from overlapscope.timeline.facts import Facts
from overlapscope.timeline.listed import listed
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import RankTimeline, Run

ONE_SIDED: Final = ("send", "recv", "put_signal", "signal", "wait_signal")
MAX_LISTED: Final = 8


class _Calls(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one rank in one communicator, in order; operation and type as codes that all ranks share."""

    rank: int
    seq: Ints
    op: Codes
    dtype: Codes
    elements: Ints


def call_order(run: Run) -> list[Finding]:
    """Find communicators whose ranks made different calls, and ranks that stopped before the others."""
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
    """Split a rank's calls by communicator; None for one with sends and receives, whose numbers run apart by rank."""
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
    """Compare each rank's calls with those of the first rank, number by number."""
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
    said: dict[str, list[int]] = defaultdict(list)
    for each in ranks:
        row = int(np.searchsorted(each.seq, seq)) + nth
        if row < each.seq.size and each.seq[row] == seq:
            said[_call(each, row, names)].append(each.rank)
    title = "; ".join(f"{text} on {_ranks(who)}" for text, who in list(said.items())[:MAX_LISTED])
    return [
        Finding(
            id=f"nccl_desync:{group}",
            severity="warning",
            title=f"the ranks of {group} made different calls under opCount {seq:x}: {title}",
            evidence={
                "communicator": group,
                "seq": seq,
                "calls": {text: who[:MAX_LISTED] for text, who in said.items()},
                "differing_calls": differing,
            },
            known_from="log",
        )
    ]


def _paired(one: Ints, other: Ints) -> tuple[Ints, Ints]:
    """Give the rows of both that have the same number; several calls of one number pair in their order."""
    place = np.searchsorted(other, one) + np.arange(one.size) - np.searchsorted(one, one)
    there: Flags = place < np.searchsorted(other, one, side="right")
    mine = np.flatnonzero(there)
    return mine, place[mine]


def _behind(group: str, ranks: Sequence[_Calls], members: set[int]) -> list[Finding]:
    """Find the ranks whose last call has a lower number than that of the others."""
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
            title=f"in {group} {where} made no more calls, while others reached opCount {most:x}: they wait there, or "
            "these logs end earlier",
            evidence=evidence,
            known_from="log",
        )
    ]


def _unclear(facts: Facts) -> set[str]:
    """Give the communicators whose name stands for several: two processes claim one place in them."""
    table = facts.members
    owners: dict[tuple[int, int], set[tuple[int, int, int]]] = defaultdict(set)
    columns = (table.communicator, table.member, table.host, table.process, table.device)
    for name, member, *owner in zip(*(column.tolist() for column in columns), strict=True):
        if member != NONE:
            owners[name, member].add(tuple(owner))
    return {facts.names[name] for (name, _), those in owners.items() if len(those) > 1 and name >= 0}


def _expected(facts: Facts, run: Run) -> dict[str, set[int]]:
    """Give the ranks of each communicator whose calls stand in a log of theirs."""
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
    return f"rank{'s' if len(ranks) > 1 else ''} {listed(ranks, MAX_LISTED)}"
