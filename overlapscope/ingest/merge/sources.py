"""Several sources of one rank to one timeline."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.errors import InputError
from overlapscope.ingest.merge.communicators import Pair, Served, communicators_of, find_served
from overlapscope.ingest.merge.join_dumps import join_execution_trace, join_flight_recorder
from overlapscope.ingest.merge.join_log import CHOSEN, VOLUME, join_calls
from overlapscope.ingest.merge.one_log import Note, one_log, sentences
from overlapscope.timeline.columns import NONE, UNKNOWN, concat, make, size
from overlapscope.timeline.facts import Facts, Members
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import Group, RankTimeline, join_recordings

DUMP, EXECUTION_TRACE, LIBRARY_LOG = "flight recorder", "execution trace", "library log"
KINDS: Final = (DUMP, EXECUTION_TRACE, LIBRARY_LOG)
"""Kinds of log; without a trace, the first of them that a rank has is the one that the others are joined to."""


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """All ranks of a job, one timeline each."""

    ranks: Mapping[int, RankTimeline]
    groups: tuple[Group, ...]
    facts: Facts
    """With the process group of each communicator."""
    notes: tuple[str, ...] = ()
    """What could not be merged, and why."""


def merge_sources(parts: Mapping[int, Sequence[RankTimeline]], groups: tuple[Group, ...], facts: Facts) -> Merged:
    """Join each rank's recordings in time, and its logs to them.

    What a timeline says itself is never replaced; what a log says is taken over where it is certain of which call it
    is, or where all calls that it may be of agree. Raises InputError where two recordings of a rank overlap.
    """
    if not size(facts.members) and all(part.basis != "log" for of_rank in parts.values() for part in of_rank):
        return Merged(ranks={rank: join_recordings(parts[rank]) for rank in sorted(parts)}, groups=groups, facts=facts)
    return merge_with_logs(parts, groups, facts)


def merge_with_logs(parts: Mapping[int, Sequence[RankTimeline]], groups: tuple[Group, ...], facts: Facts) -> Merged:
    """Do the work of `merge_sources` where there are logs."""
    notes: list[Note] = []
    ranks: dict[int, RankTimeline] = {}
    logs: dict[int, RankTimeline] = {}
    for rank in sorted(parts):
        timed = [part for part in parts[rank] if part.basis != "log"]
        by_kind, unread = _by_kind([part for part in parts[rank] if part.basis == "log"])
        notes += unread
        main = join_recordings(timed) if timed else by_kind.pop(next(kind for kind in KINDS if kind in by_kind))
        if DUMP in by_kind:
            main, told = join_flight_recorder(main, by_kind[DUMP])
            notes += told
        if EXECUTION_TRACE in by_kind:
            main, told = _join_execution_trace(main, by_kind[EXECUTION_TRACE])
            notes += told
        ranks[rank] = main
        if LIBRARY_LOG in by_kind:
            logs[rank] = by_kind[LIBRARY_LOG]
    return _with_library_logs(ranks, logs, groups, facts, notes)


def _by_kind(parts: Sequence[RankTimeline]) -> tuple[dict[str, RankTimeline], list[Note]]:
    found: dict[str, list[RankTimeline]] = {}
    for part in parts:
        found.setdefault(kind_of(part), []).append(part)
    by_kind, notes = {}, []
    for kind, same in found.items():
        by_kind[kind], unread = one_log(same)
        notes += unread
    return by_kind, notes


def kind_of(log: RankTimeline) -> str:
    """Return the kind of a log, by what only this kind knows of a call."""
    calls = log.collectives
    if (calls.record_function_id != NONE).any():
        return EXECUTION_TRACE
    return DUMP if (calls.state != UNKNOWN).any() or (calls.launch_ns != NONE).any() else LIBRARY_LOG


def _join_execution_trace(timed: RankTimeline, log: RankTimeline) -> tuple[RankTimeline, list[Note]]:
    """Join by `record_function_id`."""
    try:
        return join_execution_trace(timed, log), []
    except InputError as error:
        text = f"its execution trace is left out: {str(error).removeprefix(f'rank {timed.rank}: ')}"
        return timed, [Note(rank=log.rank, group=None, kind=EXECUTION_TRACE, text=text)]


def _with_library_logs(
    ranks: dict[int, RankTimeline],
    logs: Mapping[int, RankTimeline],
    groups: tuple[Group, ...],
    facts: Facts,
    notes: list[Note],
) -> Merged:
    alone = [timeline for timeline in ranks.values() if timeline.basis == "log" and kind_of(timeline) == LIBRARY_LOG]
    if not logs and not size(facts.members):
        return Merged(ranks=ranks, groups=groups, facts=facts, notes=sentences(notes))
    communicators = communicators_of([*logs.values(), *alone], groups, facts)
    pairs: dict[int, Pair] = {rank: (ranks[rank], log) for rank, log in logs.items()}
    served = find_served(pairs, communicators, groups)
    of_library = {timeline.rank for timeline in alone}
    counted = {name for rank, timeline in ranks.items() if rank not in of_library for name in _numbered(timeline)}
    for rank, located in served.located.items():
        for name, found in located:
            columns = (*CHOSEN, "group_size", *VOLUME, *(("group",) if name is None else ()))
            # A call of an unknown group may be of any group.
            with_seq = not counted if name is None else counted.isdisjoint((name, None))
            joined = join_calls(ranks[rank], logs[rank], found, columns, with_seq=with_seq)
            ranks[rank] = joined.timeline
            notes += [Note(rank=rank, group=name, kind=kind, text=text) for kind, text in joined.refused]
    notes += served.notes
    renamed = {name: group for name, group in served.groups.items() if name != group}
    for rank, timeline in ranks.items():
        ranks[rank], told = _with_group_names(timeline, renamed, counted, is_log=rank in of_library)
        notes += told
    left = tuple(group for group in groups if group.name not in renamed)
    named = _with_groups(facts, served, logs, alone)
    return Merged(ranks=ranks, groups=left, facts=named, notes=sentences(notes))


def _numbered(timeline: RankTimeline) -> set[str | None]:
    """Return the groups some of whose calls have a sequence number; None where the group is not known."""
    codes = np.unique(timeline.collectives.group[timeline.collectives.seq != NONE])
    return {timeline.names[code] if code >= 0 else None for code in codes.tolist()}


def _with_group_names(
    timeline: RankTimeline, renamed: Mapping[str, str], counted: set[str | None], *, is_log: bool
) -> tuple[RankTimeline, list[Note]]:
    """Call groups by their process group's name.

    The library counts calls otherwise than torch does: where torch's numbers are known on any rank, the library's
    would pair wrong calls and are left out.
    """
    names = NameTable(timeline.names)
    codes = np.arange(len(timeline.names) + 1, dtype=np.int32)
    codes[-1] = -1
    notes = []
    seq = timeline.collectives.seq
    for code in np.unique(timeline.collectives.group).tolist():
        group = renamed.get(timeline.names[code], timeline.names[code]) if code >= 0 else None
        if group is not None:
            codes[code] = names.code(group)
        here = (timeline.collectives.group == code) & (seq != NONE)
        if is_log and not counted.isdisjoint((group, None)) and here.any():
            seq = np.where(here, NONE, seq)
            text = (
                "its log numbers calls otherwise than torch does on other ranks: the log's numbers are left out; "
                "record this rank too if its calls are to be paired with the others'"
            )
            notes.append(Note(rank=timeline.rank, group=group, kind="numbers", text=text))
    calls = replace(timeline.collectives, group=codes[timeline.collectives.group], seq=seq)
    return replace(timeline, names=tuple(names.to_list()), collectives=calls), notes


def _with_groups(
    facts: Facts, served: Served, logs: Mapping[int, RankTimeline], alone: Sequence[RankTimeline]
) -> Facts:
    """Name the process group of each communicator; one that calls alone tell of gets a row for each rank with them."""
    names = NameTable(facts.names)
    codes = np.full(len(facts.names) + 1, -1, np.int32)
    for communicator, group in served.groups.items():
        if communicator in facts.names:
            codes[facts.names.index(communicator)] = names.code(group)
    members = replace(facts.members, group=codes[facts.members.communicator])
    told = {facts.name(code) for code in np.unique(facts.members.communicator).tolist()}
    new = [
        (names.code(log.names[code]), names.code(served.groups[log.names[code]]), log.rank)
        for log in [*logs.values(), *alone]
        for code in np.unique(log.collectives.group).tolist()
        if code >= 0 and log.names[code] in served.groups.keys() - told
    ]
    columns = dict(zip(("communicator", "group", "rank"), zip(*new, strict=True), strict=False))
    members = concat([members, make(Members, len(new), **columns)])
    return replace(facts, names=tuple(names.to_list()), members=members)
