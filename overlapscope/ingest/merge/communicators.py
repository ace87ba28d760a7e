"""Which communicator of a library's log serves which process group: by their ranks, else by the calls made on them."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import msgspec
import numpy as np

from overlapscope.ingest.merge.call_sequences import Located, in_order, locate
from overlapscope.ingest.merge.one_log import Note
from overlapscope.timeline.columns import NONE, Flags, Ints
from overlapscope.timeline.facts import Facts
from overlapscope.timeline.operations import SENDS
from overlapscope.timeline.run import Group, RankTimeline

Pair = tuple[RankTimeline, RankTimeline]
"""What a rank recorded, and its library's log."""


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a process group or a communicator."""

    name: str
    ranks: frozenset[int] = frozenset()
    """Those that are known to be members."""
    size: int | None = None

    @property
    def whole(self) -> bool:
        """Return whether all members are known."""
        return len(self.ranks) == self.size

    def may_be(self, other: "Known") -> bool:
        """Return whether both may have the same members."""
        together = self.ranks | other.ranks
        sizes = {size for size in (self.size, other.size) if size is not None}
        return len(sizes) < 2 and all(len(together) <= size for size in sizes)


class Served(msgspec.Struct):
    """What was found."""

    groups: dict[str, str] = {}
    """Process group by communicator."""
    located: dict[int, list[tuple[str | None, Located]]] = {}
    """By rank: process group, and its calls in the log."""
    notes: list[Note] = []


def communicators_of(logs: Iterable[RankTimeline], groups: Sequence[Group], facts: Facts) -> dict[str, Known]:
    """Return what is known of every communicator that logs made calls on, or told the members of."""
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
                said = int(calls.group_size[rows[0]])
                sizes[name] = sizes.get(name) or (said if said != NONE else None)
    for group in groups:
        if group.name in members:
            members[group.name] |= set(group.ranks or ())
            sizes[group.name] = sizes.get(group.name) or group.size or (len(group.ranks) if group.ranks else None)
    return {name: Known(name=name, ranks=frozenset(members[name]), size=sizes.get(name)) for name in sorted(members)}


def find_served(pairs: Mapping[int, Pair], communicators: Mapping[str, Known], groups: Sequence[Group]) -> Served:
    """Find the process group of each communicator, and each rank's calls in its log.

    Each process group has communicators of its own: torch makes one for a group, and one for each pair of ranks that
    sends outside of a batch.
    """
    served = Served()
    process_groups = {group.name: _known(group) for group in groups if group.name not in communicators}
    calls = {rank: _by_group(timeline) for rank, (timeline, _) in pairs.items()}
    for rank, by_group in calls.items():
        for name, rows in by_group.items():
            if name is not None:
                process_groups[name] = _with_calls(process_groups.get(name, Known(name=name)), pairs[rank][0], rows)
    _by_ranks(process_groups, communicators, served)
    logged = {rank: _by_group(log) for rank, (_, log) in pairs.items()}
    look = _Look(pairs=pairs, calls=calls, logged=logged, communicators=communicators, served=served)
    waiting = {}
    for name in sorted({name for by_group in calls.values() for name in by_group if name is not None}):
        own = [each for each, group in served.groups.items() if group == name]
        if own:
            _take(name, own, look.places(name, own), served)
        else:
            waiting[name] = look.fits(process_groups[name])
    left = _by_calls(waiting, served)
    between = [look.between_pairs(process_groups[name]) for name in sorted(process_groups)]
    for name, fits in left.items():
        if not waiting[name]:
            look.miss(name)
        elif not any(name == sent for sent, _ in chain.from_iterable(between)):
            _refuse(name, sorted(fits), waiting[name], left, served)
    look.without_group()
    return served


def _known(group: Group) -> Known:
    size = group.size or (len(group.ranks) if group.ranks else None)
    return Known(name=group.name, ranks=frozenset(group.ranks or ()), size=size)


def _with_calls(known: Known, timeline: RankTimeline, rows: Ints) -> Known:
    sizes = timeline.collectives.group_size[rows]
    said = int(sizes.max(initial=NONE))
    size = known.size or (said if said != NONE else None)
    return Known(name=known.name, ranks=known.ranks | {timeline.rank}, size=size)


def _all(timeline: RankTimeline) -> Flags:
    return np.ones(timeline.collectives.group.size, np.bool_)


def _by_group(timeline: RankTimeline) -> dict[str | None, Ints]:
    """Return the rows of each group's calls, in order."""
    rows = in_order(timeline, _all(timeline))
    codes = timeline.collectives.group[rows]
    order = np.argsort(codes, kind="stable")
    codes, starts = np.unique(codes[order], return_index=True)
    parts = np.split(rows[order], starts[1:])
    spelled = [timeline.names[code] if code >= 0 else None for code in codes.tolist()]
    return dict(zip(spelled, parts, strict=True)) if codes.size else {}


def _by_ranks(process_groups: Mapping[str, Known], communicators: Mapping[str, Known], served: Served) -> None:
    """Take what has the same name, and what alone on its side has all its ranks known and equal to one of the other."""
    for name in communicators.keys() & process_groups.keys():
        served.groups[name] = name
    for communicator in communicators.values():
        if communicator.whole and communicator.name not in served.groups:
            same = [each for each in process_groups.values() if each.whole and each.ranks == communicator.ranks]
            rivals = [each for each in communicators.values() if each.may_be(communicator)]
            unsure = [each for each in process_groups.values() if not each.whole and each.may_be(communicator)]
            if len(same) == len(rivals) == 1 and not unsure:
                served.groups[communicator.name] = same[0].name


class _Look(msgspec.Struct, frozen=True, kw_only=True):
    """Looks for calls of process groups in the logs."""

    pairs: Mapping[int, Pair]
    calls: Mapping[int, Mapping[str | None, Ints]]
    """Rows of each rank's calls by group, in order; likewise of its log's by communicator."""
    logged: Mapping[int, Mapping[str | None, Ints]]
    communicators: Mapping[str, Known]
    served: Served

    def rows_of(self, rank: int, names: Iterable[str | None]) -> Ints:
        """Return the rows of the log's calls on these communicators, in order."""
        parts = [self.logged[rank][name] for name in names if name in self.logged[rank]]
        return np.sort(np.concatenate([*parts, np.empty(0, np.int64)]))

    def fits(self, group: Known) -> dict[str, dict[int, Located]]:
        """Return for each communicator that may serve the group what looking for its calls there gave, by rank."""
        free = [each for each in self.communicators.values() if each.name not in self.served.groups]
        possible = [each for each in free if group.may_be(each)]
        whole = [each for each in possible if each.whole and each.ranks == group.ranks]
        found = {
            each.name: self.places(group.name, [each.name]) for each in (whole if group.whole and whole else possible)
        }
        return {communicator: places for communicator, places in found.items() if places}

    def places(self, name: str, own: Sequence[str]) -> dict[int, Located]:
        """Look for the group's calls among those on its own communicators, on every rank that has both.

        Where they are not there as a whole, its sends and receives may be on other communicators.
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
        """Look for calls whose group is not known among all those of groups as large as theirs."""
        for rank, (timeline, log) in self.pairs.items():
            rows = self.calls[rank].get(None)
            if rows is None or not log.collectives.group.size:
                continue
            sizes = set(timeline.collectives.group_size[rows].tolist()) - {NONE}
            size = sizes.pop() if len(sizes) == 1 and (timeline.collectives.group_size[rows] != NONE).all() else None
            may_be = [each.name for each in self.communicators.values() if each.size in (None, size)]
            logged = self.rows_of(rank, self.logged[rank] if size is None else [*may_be, None])
            if logged.size:
                _tell({rank: locate(timeline, rows, log, logged, size)}, None, self.served)

    def miss(self, name: str) -> None:
        """Note that no communicator may have the group's ranks, on the ranks whose logs hold calls at all."""
        text = (
            "no communicator of the log may have its ranks, so its calls are not joined with the log; is the log whole "
            "(NCCL_DEBUG_SUBSYS with INIT and COLL from the start)?"
        )
        for rank, (_, log) in self.pairs.items():
            found = any(group == name for group, _ in self.served.located.get(rank, []))
            if name in self.calls[rank] and log.collectives.op.size and not found:
                self.served.notes.append(Note(rank=rank, group=name, kind="no communicator", text=text))

    def between_pairs(self, group: Known) -> list[tuple[str, int]]:
        """Look for sends and receives of the group on communicators of two ranks, of which a rank may have several;
        give the group's name and rank where they are found.
        """
        free = [each for each in self.communicators.values() if each.name not in self.served.groups and each.size == 2]
        own = [each.name for each in free if not group.whole or each.ranks <= group.ranks]
        found = []
        for rank, (timeline, log) in self.pairs.items():
            rows = self.calls[rank].get(group.name)
            logged = self.rows_of(rank, own)
            if rows is None or not logged.size:
                continue
            known = [each.short.rows for name, each in self.served.located.get(rank, []) if name == group.name]
            rows = rows[_is_sent(timeline, rows) & ~np.isin(rows, np.concatenate([*known, rows[:0]]))]
            if rows.size:
                place = locate(timeline, rows, log, logged, 2)
                _tell({rank: place}, group.name, self.served)
                if place.places:
                    found.append((group.name, rank))
                    used = np.unique(log.collectives.group[logged]).tolist()
                    self.served.groups.update({log.names[code]: group.name for code in used})
        return found


def _is_sent(timeline: RankTimeline, rows: Ints) -> Flags:
    codes = [code for code, name in enumerate(timeline.names) if name in SENDS]
    flags: Flags = np.isin(timeline.collectives.op[rows], codes)
    return flags


def _by_calls(waiting: Mapping[str, Mapping[str, Mapping[int, Located]]], served: Served) -> dict[str, set[str]]:
    """Take a communicator whose log alone holds the group's calls; then those that this leaves alone, and so on.

    Gives the groups that are left, each with the communicators that fit.
    """
    left = {name: {each for each, places in found.items() if _some(places)} for name, found in waiting.items()}
    while True:
        single = {name: next(iter(fits)) for name, fits in left.items() if len(fits) == 1}
        sure = {name: each for name, each in single.items() if list(single.values()).count(each) == 1}
        if not sure:
            return left
        for name, communicator in sure.items():
            del left[name]
            _take(name, [communicator], waiting[name][communicator], served)
            for fits in left.values():
                fits.discard(communicator)


def _some(places: Mapping[int, Located]) -> bool:
    return any(each.places for each in places.values())


def _take(name: str, own: Iterable[str], places: Mapping[int, Located], served: Served) -> None:
    served.groups.update(dict.fromkeys(own, name))
    _tell(places, name, served)


def _tell(places: Mapping[int, Located], name: str | None, served: Served) -> None:
    for rank, found in places.items():
        if not found.reason:
            served.located.setdefault(rank, []).append((name, found))
        else:
            text = f"not joined with its log: {found.reason}"
            served.notes.append(Note(rank=rank, group=name, kind="nowhere", text=text))


def _refuse(
    name: str,
    fits: Sequence[str],
    found: Mapping[str, Mapping[int, Located]],
    left: Mapping[str, set[str]],
    served: Served,
) -> None:
    ranks = sorted(set(chain.from_iterable(found.values())))
    also = sorted(other for other, theirs in left.items() if other != name and theirs & set(fits))
    if len(fits) > 1:
        text = (
            f"its calls fit the communicators {', '.join(fits)} alike: not joined with the log; record calls that only "
            "this group makes, or let NCCL name its communicators (torch 2.7 or later, NCCL_DEBUG_SUBSYS with INIT)"
        )
    elif fits:
        text = f"its calls and those of group {', '.join(map(repr, also))} fit communicator {fits[0]} alike: not joined"
        text += "; is the log whole?"
    else:
        for each in found.values():
            _tell(each, name, served)
        return
    served.notes += [Note(rank=rank, group=name, kind="communicator", text=text) for rank in ranks]
