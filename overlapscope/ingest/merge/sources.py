"""Merge the sources of each rank into one timeline: recordings are joined in time, and logs add what they know.

A trace knows times; logs and dumps know states, sizes, algorithms and sequence numbers of the same calls.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.errors import InputError
from overlapscope.ingest.merge.communicators import (
    MatchedCommunicators,
    Pair,
    known_communicators,
    match_communicators,
)
from overlapscope.ingest.merge.join_dumps import join_execution_trace, join_flight_recorder
from overlapscope.ingest.merge.join_log import TUNING_COLUMNS, VOLUME_COLUMNS, join_calls
from overlapscope.ingest.merge.one_log import Note, concatenate_logs, note_sentences
from overlapscope.timeline.columns import NONE, UNKNOWN, concat, make, size
from overlapscope.timeline.facts import Facts, Members
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import Group, RankTimeline, join_recordings

DUMP, EXECUTION_TRACE, LIBRARY_LOG = "flight recorder", "execution trace", "library log"
KINDS: Final = (DUMP, EXECUTION_TRACE, LIBRARY_LOG)
"""Kinds of log; without a trace, the others are joined to the first of these that a rank has."""


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """All ranks of a job, one timeline each."""

    ranks: Mapping[int, RankTimeline]
    groups: tuple[Group, ...]
    facts: Facts
    """Including the process group of each communicator."""
    notes: tuple[str, ...] = ()
    """Parts that could not be merged, and why."""


def merge_sources(parts: Mapping[int, Sequence[RankTimeline]], groups: tuple[Group, ...], facts: Facts) -> Merged:
    """Join each rank's recordings in time, and its logs to them.

    A timeline's own values are never replaced. A log's values are used where the call is certain, or where all calls
    to which they may belong agree. Raises InputError where two recordings of a rank overlap.
    """
    notes: list[Note] = []
    ranks: dict[int, RankTimeline] = {}
    logs: dict[int, RankTimeline] = {}
    for rank in sorted(parts):
        timed = [part for part in parts[rank] if part.basis != "log"]
        by_kind, unread = _by_kind([part for part in parts[rank] if part.basis == "log"])
        notes += unread
        main = join_recordings(timed) if timed else by_kind.pop(next(kind for kind in KINDS if kind in by_kind))
        if DUMP in by_kind:
            main, more = join_flight_recorder(main, by_kind[DUMP])
            notes += more
        if EXECUTION_TRACE in by_kind:
            main, more = _join_execution_trace(main, by_kind[EXECUTION_TRACE])
            notes += more
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
        by_kind[kind], unread = concatenate_logs(same)
        notes += unread
    return by_kind, notes


def kind_of(log: RankTimeline) -> str:
    """Return the kind of a log, from the columns that only this kind fills."""
    calls = log.collectives
    if (calls.record_function_id != NONE).any():
        return EXECUTION_TRACE
    return DUMP if (calls.state != UNKNOWN).any() or (calls.launch_ns != NONE).any() else LIBRARY_LOG


def _join_execution_trace(timed: RankTimeline, log: RankTimeline) -> tuple[RankTimeline, list[Note]]:
    """Join by `record_function_id`; a note if the two are not of one recording."""
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
        return Merged(ranks=ranks, groups=groups, facts=facts, notes=note_sentences(notes))
    communicators = known_communicators([*logs.values(), *alone], groups, facts)
    pairs: dict[int, Pair] = {rank: (ranks[rank], log) for rank, log in logs.items()}
    matched = match_communicators(pairs, communicators, groups)
    log_only = {timeline.rank for timeline in alone}
    numbered = {name for rank, timeline in ranks.items() if rank not in log_only for name in _numbered_groups(timeline)}
    for rank, located in matched.located.items():
        for name, found in located:
            columns = (*TUNING_COLUMNS, "group_size", *VOLUME_COLUMNS, *(("group",) if name is None else ()))
            # A call whose group is not known may belong to any group.
            with_seq = not numbered if name is None else numbered.isdisjoint((name, None))
            joined = join_calls(ranks[rank], logs[rank], found, columns, with_seq=with_seq)
            ranks[rank] = joined.timeline
            notes += [Note(rank=rank, group=name, kind=kind, text=text) for kind, text in joined.refused]
    notes += matched.notes
    renamed = {name: group for name, group in matched.groups.items() if name != group}
    for rank, timeline in ranks.items():
        ranks[rank], more = _with_group_names(timeline, renamed, numbered, is_log=rank in log_only)
        notes += more
    left = tuple(group for group in groups if group.name not in renamed)
    named = _with_groups(facts, matched, logs, alone)
    return Merged(ranks=ranks, groups=left, facts=named, notes=note_sentences(notes))


def _numbered_groups(timeline: RankTimeline) -> set[str | None]:
    """Return the groups that have calls with a sequence number; None for calls whose group is not known."""
    codes = np.unique(timeline.collectives.group[timeline.collectives.seq != NONE])
    return {timeline.names[code] if code >= 0 else None for code in codes.tolist()}


def _with_group_names(
    timeline: RankTimeline, renamed: Mapping[str, str], numbered: set[str | None], *, is_log: bool
) -> tuple[RankTimeline, list[Note]]:
    """Return the timeline with the names of process groups in place of communicators.

    The library numbers calls differently from torch: where torch's numbers are known on any rank, the library's
    would match wrong calls and are removed.
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
        if is_log and not numbered.isdisjoint((group, None)) and here.any():
            seq = np.where(here, NONE, seq)
            text = (
                "its log numbers calls differently from torch on other ranks: the log's numbers are ignored; "
                "record this rank too to match its calls with those of the others"
            )
            notes.append(Note(rank=timeline.rank, group=group, kind="numbers", text=text))
    calls = replace(timeline.collectives, group=codes[timeline.collectives.group], seq=seq)
    return replace(timeline, names=tuple(names.to_list()), collectives=calls), notes


def _with_groups(
    facts: Facts, matched: MatchedCommunicators, logs: Mapping[int, RankTimeline], alone: Sequence[RankTimeline]
) -> Facts:
    """Return the facts with the process group of each communicator.

    A communicator known only from calls gets a row for each rank with such calls.
    """
    names = NameTable(facts.names)
    codes = np.full(len(facts.names) + 1, -1, np.int32)
    for communicator, group in matched.groups.items():
        if communicator in facts.names:
            codes[facts.names.index(communicator)] = names.code(group)
    members = replace(facts.members, group=codes[facts.members.communicator])
    listed = {facts.name(code) for code in np.unique(facts.members.communicator).tolist()}
    new = [
        (names.code(log.names[code]), names.code(matched.groups[log.names[code]]), log.rank)
        for log in [*logs.values(), *alone]
        for code in np.unique(log.collectives.group).tolist()
        if code >= 0 and log.names[code] in matched.groups.keys() - listed
    ]
    columns = dict(zip(("communicator", "group", "rank"), zip(*new, strict=True), strict=False))
    members = concat([members, make(Members, len(new), **columns)])
    return replace(facts, names=tuple(names.to_list()), members=members)
