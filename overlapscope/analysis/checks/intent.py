"""Find settings of a dry run that have no effect: overlap and prefetch that cannot happen, work done twice."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.common.wording import first_and_count, short
from overlapscope.analysis.structure.call_changes import REDUCTIONS
from overlapscope.analysis.structure.rank_structure import Calls, RankStructure, structure_of
from overlapscope.display import size_text
from overlapscope.timeline.columns import NONE, Flags, Ints
from overlapscope.timeline.dimensions import BACKWARD, FORWARD, OPTIMIZER
from overlapscope.timeline.operations import ITEM_BYTES
from overlapscope.timeline.run import DRY_RUN, Run

LEAST_BUCKETS: Final = 4
LEAST_SINGLE: Final = 0.5
"""Least share of the buckets that hold one gradient."""
SMALL_BUCKET_BYTES: Final = 1 << 20
"""A larger gradient alone in its bucket is no loss: its transfer outweighs the call."""
RANKS_OF_NODE: Final = 8
"""Assumed: a dry run does not know how ranks lie on machines."""
SAME_SHARE: Final = 0.9
MAX_LISTED: Final = 16


def intent_findings(run: Run) -> list[Finding]:
    """Return the findings of a dry run's step, of the lowest rank that has each; none for other runs."""
    found: dict[str, Finding] = {}
    for _, structure in sorted(structure_of(run).items()):
        for each in _of_rank(structure, run.world_size):
            found.setdefault(each.id, each)
    return list(found.values())


def _of_rank(rank: RankStructure, world_size: int | None) -> Iterator[Finding]:
    calls = rank.calls
    if not calls.op.size:
        return
    yield from _without_overlap(calls)
    yield from _prefetch_without_effect(calls)
    yield from _buckets_of_one(rank)
    yield from _gathered_twice(calls)
    yield from _reduced_then_split(calls)
    yield from _compute_between(rank)
    yield from _wide_gradients(calls)
    yield from _across_nodes(calls, world_size)


def _at(calls: Calls, rows: Sequence[int]) -> str:
    """Return the lines that launch these calls, as the end of a title."""
    sources = _named(calls.source[list(rows)].tolist())
    return f"; launched at {first_and_count([short(each) for each in sources], 2, ', ')}" if sources else ""


def _evidence(calls: Calls, rows: Sequence[int], **others: int) -> dict[str, Any]:
    at = list(rows)
    places = {"modules": _named(calls.module[at].tolist()), "sources": _named(calls.source[at].tolist())}
    return {"calls": len(at), "bytes": _bytes(calls, at), **others, **places}


def _named(names: Sequence[str | None]) -> list[str]:
    return [name for name in dict.fromkeys(names) if name][:MAX_LISTED]


def _bytes(calls: Calls, rows: Any) -> int:
    sizes = calls.size_bytes[rows]
    return int(sizes[sizes != NONE].sum())


def gradient_reductions(calls: Calls) -> Flags:
    """Return which calls reduce gradients: FSDP's, and those of backward outside all modules, as DDP's and hooks'.

    DDP also reduces a mask of the parameters that were used, in integers.
    """
    floating = np.char.find(calls.dtype.astype(str), "float") >= 0
    reduces = np.isin(calls.op, REDUCTIONS) & (calls.phase == BACKWARD) & floating
    found: Flags = reduces & ((calls.parameters != NONE) | (calls.module.astype(str) == str(None)))
    return found


def _backward_ends(rank: RankStructure) -> int:
    """Return the FLOPs of the step until backward ends."""
    phases = rank.computes.phase
    return int(rank.computes.flops[(phases == FORWARD) | (phases == BACKWARD)].sum())


def _without_overlap(calls: Calls) -> Iterator[Finding]:
    rows = np.flatnonzero(gradient_reductions(calls))
    if rows.size and calls.known[rows].all() and not calls.overlappable[rows].any():
        yield Finding(
            id="overlap_without_effect",
            severity="warning",
            title=f"no matrix product of backward can run beside the gradient reductions ({rows.size} a step, "
            f"{size_text(_bytes(calls, rows))})" + _at(calls, rows.tolist()),
            evidence=_evidence(calls, rows.tolist()),
            known_from=DRY_RUN,
        )


def _prefetch_without_effect(calls: Calls) -> Iterator[Finding]:
    gathers = (calls.op == "all_gather") & (calls.parameters != NONE) & calls.known
    needed = np.sort(calls.needed_order[gathers])
    ahead = np.searchsorted(needed, calls.launch_order, side="right") < np.searchsorted(needed, calls.needed_order)
    first = calls.ready_order == NONE
    rows = np.flatnonzero(gathers & ahead & ~calls.overlappable & ~first)
    if rows.size:
        yield Finding(
            id="prefetch_without_effect",
            severity="info",
            title=f"{rows.size} of {int(gathers.sum())} gathers are prefetched, and no compute runs until they are "
            "needed" + _at(calls, rows.tolist()),
            evidence=_evidence(calls, rows.tolist()),
            known_from=DRY_RUN,
        )


def _buckets_of_one(rank: RankStructure) -> Iterator[Finding]:
    calls = rank.calls
    rows = np.flatnonzero(gradient_reductions(calls) & (calls.parameters == NONE) & (calls.op == "all_reduce"))
    if rows.size < LEAST_BUCKETS:
        return
    launches = calls.launch_order[rows]
    copies = np.diff(np.searchsorted(rank.bucket_copies, np.concatenate([[0], launches])))
    single = copies == 1
    small = _bytes(calls, rows[single]) < SMALL_BUCKET_BYTES * single.sum()
    if single.sum() >= LEAST_SINGLE * rows.size and small:
        yield Finding(
            id="buckets_of_one",
            severity="warning",
            title=f"{int(single.sum())} of {rows.size} buckets hold one gradient each "
            f"({size_text(_bytes(calls, rows) // rows.size)} on average)" + _at(calls, rows.tolist()),
            evidence=_evidence(calls, rows.tolist()),
            known_from=DRY_RUN,
        )


def _gathered_twice(calls: Calls) -> Iterator[Finding]:
    gathers = np.flatnonzero((calls.op == "all_gather") & (calls.parameters != NONE))
    again = [
        row
        for group in dict.fromkeys(calls.group[gathers].tolist())
        for before, row in pairwise(gathers[calls.group[gathers] == group].tolist())
        if calls.module[before] == calls.module[row] and calls.parameters[before] == calls.parameters[row]
    ]
    if again:
        yield Finding(
            id="gathered_twice",
            severity="info",
            title=f"parameters are gathered twice in a row ({len(again)} a step, {size_text(_bytes(calls, again))}): "
            "they could stay gathered" + _at(calls, again),
            evidence=_evidence(calls, again),
            known_from=DRY_RUN,
        )


def _reduced_then_split(calls: Calls) -> Iterator[Finding]:
    """Find all-reduces whose result is split and gathered again, so that a reduce-scatter would do."""
    rows: list[int] = []
    for group in dict.fromkeys(calls.group.tolist()):
        own = np.flatnonzero(calls.group == group)
        for before, after in pairwise(own.tolist()):
            same = calls.elements[before] == calls.elements[after] and calls.dtype[before] == calls.dtype[after]
            pair = calls.op[before] == "all_reduce" and calls.op[after] == "all_gather"
            if same and pair and calls.phase[before] == calls.phase[after]:
                rows.append(before)
        reduced = own[(calls.op[own] == "all_reduce") & (calls.phase[own] == BACKWARD)]
        spread = own[np.isin(calls.op[own], ("all_gather", "broadcast")) & (calls.phase[own] == OPTIMIZER)]
        ours, theirs = int(calls.elements[reduced].sum()), int(calls.elements[spread].sum())
        if theirs and SAME_SHARE * ours <= theirs <= ours:  # sharded optimizer state, updated by one rank each
            rows += reduced.tolist()
    if rows:
        yield Finding(
            id="all_reduce_then_split",
            severity="info",
            title=f"{len(rows)} all-reduces ({size_text(_bytes(calls, rows))}) are followed by a gather of their size: "
            "a reduce-scatter moves half as much" + _at(calls, rows),
            evidence=_evidence(calls, rows),
            known_from=DRY_RUN,
        )


def _compute_between(rank: RankStructure) -> Iterator[Finding]:
    """Find matrix products between two collectives that both wait, where neither forward nor backward runs."""
    calls, until = rank.calls, rank.flops_until
    ends = _backward_ends(rank)
    serial = np.flatnonzero(calls.known & ~calls.overlappable)
    rows, flops = [], 0
    for before, after in pairwise(serial.tolist()):
        needed, ready = int(calls.needed_order[before]), int(calls.ready_order[after])
        if ready == NONE or ready < needed or until[needed] < ends:
            continue
        between = int(until[ready + 1] - until[needed])
        if between:
            rows.append(after)
            flops += between
    if rows:
        yield Finding(
            id="compute_between_collectives",
            severity="info",
            title=f"{len(rows)} times after backward, compute runs between two dependent collectives and overlaps with "
            "neither" + _at(calls, rows),
            evidence=_evidence(calls, rows, flops=flops),
            known_from=DRY_RUN,
        )


def _wide_gradients(calls: Calls) -> Iterator[Finding]:
    gathers = (calls.op == "all_gather") & (calls.parameters != NONE)
    width = {calls.module[row]: ITEM_BYTES.get(calls.dtype[row], 0) for row in np.flatnonzero(gathers).tolist()}
    reductions = np.flatnonzero((calls.op == "reduce_scatter") & (calls.parameters != NONE))
    rows = [
        row
        for row in reductions.tolist()
        if ITEM_BYTES.get(calls.dtype[row], 0) > (own := width.get(calls.module[row], 0)) and own in (1, 2)
    ]
    if rows:
        yield Finding(
            id="wide_gradients",
            severity="info",
            title=f"{len(rows)} reductions of gradients are {calls.dtype[rows[0]]}, where parameters are gathered in "
            f"fewer bits: {size_text(_bytes(calls, rows))} a step" + _at(calls, rows),
            evidence=_evidence(calls, rows),
            known_from=DRY_RUN,
        )


def _across_nodes(calls: Calls, world_size: int | None) -> Iterator[Finding]:
    """Find a group across nodes whose calls wait, beside a group inside a node whose calls wait for fewer bytes."""
    if world_size is None or world_size <= RANKS_OF_NODE:
        return
    of_activations = (calls.parameters == NONE) & (calls.module.astype(str) != str(None))
    waits = calls.known & ~calls.overlappable & of_activations
    exposed: dict[bool, list[tuple[int, Ints]]] = {True: [], False: []}
    for group in dict.fromkeys(calls.group.tolist()):
        members = [int(each) for each in str(group).split() if each.isdecimal()]
        if not 1 < len(members) <= RANKS_OF_NODE:
            continue
        rows = np.flatnonzero((calls.group == group) & waits)
        inside = len({member // RANKS_OF_NODE for member in members}) == 1
        exposed[inside].append((_bytes(calls, rows), rows))
    least = min(exposed[True], key=lambda each: each[0], default=None)
    most = max(exposed[False], key=lambda each: each[0], default=None)
    if least is not None and most is not None and most[0] > least[0]:
        rows = most[1]
        yield Finding(
            id="group_across_nodes",
            severity="warning",
            title=f"a group of {int(calls.group_size[rows[0]])} ranks across nodes (of {RANKS_OF_NODE} ranks, assumed) "
            f"waits for {size_text(most[0])} a step, a group inside a node for {size_text(least[0])}: exchange the "
            "dimensions of the mesh" + _at(calls, rows.tolist()),
            evidence=_evidence(calls, rows.tolist(), bytes_inside=least[0]),
            known_from=DRY_RUN,
        )
