"""Match the communicators of a library's log with process groups: by their ranks, else by the calls made on them."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import msgspec
import numpy as np

from overlapscope.ingest.merge.call_sequences import Located, locate, rows_in_call_order
from overlapscope.ingest.merge.one_log import Note
from overlapscope.timeline.columns import NONE, Flags, Ints
from overlapscope.timeline.facts import Facts
from overlapscope.timeline.operations import SEND_OPS
from overlapscope.timeline.run import Group, RankTimeline

Pair = tuple[RankTimeline, RankTimeline]
"""A rank's recording, and its library's log."""


class Membership(msgspec.Struct, frozen=True, kw_only=True):
    """The known members of a process group or a communicator."""

    name: str
    ranks: frozenset[int] = frozenset()
    """Ranks that are known to be members."""
    size: int | None = None

    @property
    def whole(self) -> bool:
        """Return whether all members are known."""
        return len(self.ranks) == self.size

    def may_be(self, other: "Membership") -> bool:
        """Return whether both may have the same members."""
        together = self.ranks | other.ranks
        sizes = {size for size in (self.size, other.size) if size is not None}
        return len(sizes) < 2 and all(len(together) <= size for size in sizes)


class MatchedCommunicators(msgspec.Struct):
    """The result of the matching."""

    groups: dict[str, str] = {}
    """Process group by communicator."""
    located: dict[int, list[tuple[str | None, Located]]] = {}
    """By rank: each process group (None if not known), with its calls in the log."""
    notes: list[Note] = []


def known_communicators(logs: Iterable[RankTimeline], groups: Sequence[Group], facts: Facts) -> dict[str, Membership]:
    """Return the known members of every communicator that occurs in a log's calls or in its list of members."""
    members: dict[str, set[int]] = {}
    sizes: dict[str, int | None] = {}
    table = facts.members
    for code, rank, size in zip(table.communicator.tolist(), table.rank.tolist(), table.members.tolist(), strict=True):
        name = facts.name(code)
        if name is not None:
            members.setdefault(name, set()).update([rank] if rank != NONE else [])
            sizes[name] = size if size != NONE else sizes.get(name)
    for log in logs:
        calls = log.collectives
        for name, rows in _by_group(log).items():
            if name is not None:
                members.setdefault(name, set()).add(log.rank)
                stated = int(calls.group_size[rows[0]])
                sizes[name] = sizes.get(name) or (stated if stated != NONE else None)
    for group in groups:
        if group.name in members:
            members[group.name] |= set(group.ranks or ())
            sizes[group.name] = sizes.get(group.name) or group.size or (len(group.ranks) if group.ranks else None)
    return {
        name: Membership(name=name, ranks=frozenset(members[name]), size=sizes.get(name)) for name in sorted(members)
    }


def match_communicators(
    pairs: Mapping[int, Pair], communicators: Mapping[str, Membership], groups: Sequence[Group]
) -> MatchedCommunicators:
    """Match each communicator with a process group, and each rank's calls with those in its log.

    Each process group has communicators of its own: torch makes one for a group, and one for each pair of ranks that
    sends outside of a batch.
    """
    matched = MatchedCommunicators()
    process_groups = {group.name: _known(group) for group in groups if group.name not in communicators}
    calls = {rank: _by_group(timeline) for rank, (timeline, _) in pairs.items()}
    for rank, by_group in calls.items():
        for name, rows in by_group.items():
            if name is not None:
                process_groups[name] = _with_calls(
                    process_groups.get(name, Membership(name=name)), pairs[rank][0], rows
                )
    _by_ranks(process_groups, communicators, matched)
    logged = {rank: _by_group(log) for rank, (_, log) in pairs.items()}
    finder = _CallFinder(pairs=pairs, calls=calls, logged=logged, communicators=communicators, matched=matched)
    waiting = {}
    for name in sorted({name for by_group in calls.values() for name in by_group if name is not None}):
        own = [each for each, group in matched.groups.items() if group == name]
        if own:
            _match_group(name, own, finder.places(name, own), matched)
        else:
            waiting[name] = finder.fits(process_groups[name])
    left = _by_calls(waiting, matched)
    between = [finder.between_pairs(process_groups[name]) for name in sorted(process_groups)]
    for name, fits in left.items():
        if not waiting[name]:
            finder.miss(name)
        elif not any(name == sent for sent, _ in chain.from_iterable(between)):
            _note_ambiguity(name, sorted(fits), waiting[name], left, matched)
    finder.without_group()
    return matched


def _known(group: Group) -> Membership:
    size = group.size or (len(group.ranks) if group.ranks else None)
    return Membership(name=group.name, ranks=frozenset(group.ranks or ()), size=size)


def _with_calls(known: Membership, timeline: RankTimeline, rows: Ints) -> Membership:
    sizes = timeline.collectives.group_size[rows]
    stated = int(sizes.max(initial=NONE))
    size = known.size or (stated if stated != NONE else None)
    return Membership(name=known.name, ranks=known.ranks | {timeline.rank}, size=size)


def _by_group(timeline: RankTimeline) -> dict[str | None, Ints]:
    """Return the rows of each group's calls, in order."""
    rows = rows_in_call_order(timeline, np.ones(timeline.collectives.group.size, np.bool_))
    codes = timeline.collectives.group[rows]
    order = np.argsort(codes, kind="stable")
    codes, starts = np.unique(codes[order], return_index=True)
    parts = np.split(rows[order], starts[1:])
    spelled = [timeline.names[code] if code >= 0 else None for code in codes.tolist()]
    return dict(zip(spelled, parts, strict=True)) if codes.size else {}


def _by_ranks(
    process_groups: Mapping[str, Membership], communicators: Mapping[str, Membership], matched: MatchedCommunicators
) -> None:
    """Match a communicator and a group of the same name, and the only ones with the same, completely known ranks."""
    for name in communicators.keys() & process_groups.keys():
        matched.groups[name] = name
    for communicator in communicators.values():
        if communicator.whole and communicator.name not in matched.groups:
            same = [each for each in process_groups.values() if each.whole and each.ranks == communicator.ranks]
            rivals = [each for each in communicators.values() if each.may_be(communicator)]
            unsure = [each for each in process_groups.values() if not each.whole and each.may_be(communicator)]
            if len(same) == len(rivals) == 1 and not unsure:
                matched.groups[communicator.name] = same[0].name


class _CallFinder(msgspec.Struct, frozen=True, kw_only=True):
    """Finds the calls of process groups in the logs."""

    pairs: Mapping[int, Pair]
    calls: Mapping[int, Mapping[str | None, Ints]]
    """Rows of each rank's calls by group, in order."""
    logged: Mapping[int, Mapping[str | None, Ints]]
    """Rows of each log's calls by communicator, in order."""
    communicators: Mapping[str, Membership]
    matched: MatchedCommunicators

    def rows_of(self, rank: int, names: Iterable[str | None]) -> Ints:
        """Return the rows of the log's calls on these communicators, in order."""
        parts = [self.logged[rank][name] for name in names if name in self.logged[rank]]
        return np.sort(np.concatenate([*parts, np.empty(0, np.int64)]))

    def fits(self, group: Membership) -> dict[str, dict[int, Located]]:
        """Return, for each communicator that may belong to the group, where its calls are in each rank's log."""
        free = [each for each in self.communicators.values() if each.name not in self.matched.groups]
        possible = [each for each in free if group.may_be(each)]
        whole = [each for each in possible if each.whole and each.ranks == group.ranks]
        found = {
            each.name: self.places(group.name, [each.name]) for each in (whole if group.whole and whole else possible)
        }
        return {communicator: places for communicator, places in found.items() if places}

    def places(self, name: str, own: Sequence[str]) -> dict[int, Located]:
        """Return where the group's calls are among those on its own communicators, for every rank that has both.

        If not all are found, its sends and receives may be on other communicators: the others are searched alone.
        """
        places: dict[int, Located] = {}
        size = max((self.communicators[each].size or 0 for each in own), default=0) or None
        for rank, (timeline, log) in self.pairs.items():
            rows = self.calls[rank].get(name)
            logged = self.rows_of(rank, own)
            if rows is None or not logged.size:
                continue
            places[rank] = locate(timeline, rows, log, logged, size)
            sent = _is_sent(timeline, rows)
            if not places[rank].places and sent.any() and not sent.all():
                places[rank] = locate(timeline, rows[~sent], log, logged, size)
        return places

    def without_group(self) -> None:
        """Locate calls whose group is not known among all calls of groups of the same size."""
        for rank, (timeline, log) in self.pairs.items():
            rows = self.calls[rank].get(None)
            if rows is None or not log.collectives.group.size:
                continue
            sizes = set(timeline.collectives.group_size[rows].tolist()) - {NONE}
            size = sizes.pop() if len(sizes) == 1 and (timeline.collectives.group_size[rows] != NONE).all() else None
            may_be = [each.name for each in self.communicators.values() if each.size in (None, size)]
            logged = self.rows_of(rank, self.logged[rank] if size is None else [*may_be, None])
            if logged.size:
                _record_places({rank: locate(timeline, rows, log, logged, size)}, None, self.matched)

    def miss(self, name: str) -> None:
        """Add a note that no communicator fits the group's ranks, for the ranks whose logs hold any calls."""
        text = (
            "no communicator of the log fits its ranks, so its calls are not joined with the log; is the log complete "
            "(NCCL_DEBUG_SUBSYS with INIT and COLL from the start)?"
        )
        for rank, (_, log) in self.pairs.items():
            found = any(group == name for group, _ in self.matched.located.get(rank, []))
            if name in self.calls[rank] and log.collectives.op.size and not found:
                self.matched.notes.append(Note(rank=rank, group=name, kind="no communicator", text=text))

    def between_pairs(self, group: Membership) -> list[tuple[str, int]]:
        """Locate sends and receives of the group on communicators of two ranks, of which a rank may have several.

        Return (group's name, rank) for each rank where they are found.
        """
        free = [each for each in self.communicators.values() if each.name not in self.matched.groups and each.size == 2]
        own = [each.name for each in free if not group.whole or each.ranks <= group.ranks]
        found = []
        for rank, (timeline, log) in self.pairs.items():
            rows = self.calls[rank].get(group.name)
            logged = self.rows_of(rank, own)
            if rows is None or not logged.size:
                continue
            known = [each.short.rows for name, each in self.matched.located.get(rank, []) if name == group.name]
            rows = rows[_is_sent(timeline, rows) & ~np.isin(rows, np.concatenate([*known, rows[:0]]))]
            if rows.size:
                place = locate(timeline, rows, log, logged, 2)
                _record_places({rank: place}, group.name, self.matched)
                if place.places:
                    found.append((group.name, rank))
                    used = np.unique(log.collectives.group[logged]).tolist()
                    self.matched.groups.update({log.names[code]: group.name for code in used})
        return found


def _is_sent(timeline: RankTimeline, rows: Ints) -> Flags:
    codes = [code for code, name in enumerate(timeline.names) if name in SEND_OPS]
    flags: Flags = np.isin(timeline.collectives.op[rows], codes)
    return flags


def _by_calls(
    waiting: Mapping[str, Mapping[str, Mapping[int, Located]]], matched: MatchedCommunicators
) -> dict[str, set[str]]:
    """Match each group with the only communicator that holds its calls; repeat with the remaining communicators.

    Return the groups that are left, each with the communicators that fit.
    """
    left = {
        name: {each for each, places in found.items() if any(place.places for place in places.values())}
        for name, found in waiting.items()
    }
    while True:
        single = {name: next(iter(fits)) for name, fits in left.items() if len(fits) == 1}
        sure = {name: each for name, each in single.items() if list(single.values()).count(each) == 1}
        if not sure:
            return left
        for name, communicator in sure.items():
            del left[name]
            _match_group(name, [communicator], waiting[name][communicator], matched)
            for fits in left.values():
                fits.discard(communicator)


def _match_group(name: str, own: Iterable[str], places: Mapping[int, Located], matched: MatchedCommunicators) -> None:
    matched.groups.update(dict.fromkeys(own, name))
    _record_places(places, name, matched)


def _record_places(places: Mapping[int, Located], name: str | None, matched: MatchedCommunicators) -> None:
    for rank, found in places.items():
        if not found.reason:
            matched.located.setdefault(rank, []).append((name, found))
        else:
            text = f"not joined with its log: {found.reason}"
            matched.notes.append(Note(rank=rank, group=name, kind="nowhere", text=text))


def _note_ambiguity(
    name: str,
    fits: Sequence[str],
    found: Mapping[str, Mapping[int, Located]],
    left: Mapping[str, set[str]],
    matched: MatchedCommunicators,
) -> None:
    ranks = sorted(set(chain.from_iterable(found.values())))
    also = sorted(other for other, theirs in left.items() if other != name and theirs & set(fits))
    if len(fits) > 1:
        text = (
            f"its calls fit the communicators {', '.join(fits)} equally: not joined with the log; record calls that "
            "only this group makes, or let NCCL name its communicators (torch 2.7 or later, "
            "NCCL_DEBUG_SUBSYS with INIT)"
        )
    elif fits:
        also_text = ", ".join(map(repr, also))
        text = f"its calls and those of group {also_text} fit communicator {fits[0]} equally: not joined"
        text += "; is the log complete?"
    else:
        for each in found.values():
            _record_places(each, name, matched)
        return
    matched.notes += [Note(rank=rank, group=name, kind="communicator", text=text) for rank in ranks]
