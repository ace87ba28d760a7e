"""Divide device calls that name no group: by stream, and by ranks that make the same calls, which end together.

A communicator's members make the same calls in the same order on one of their streams, and a call's kernels end within
microseconds on all of them. So calls of a stream are compared with those of other ranks' streams: ranks whose order
differs, or whose ends do not keep one distance (that of their clocks), are of other groups; so are those that keep it
far less exactly than others do, or than the same two ranks do on another stream (`end_noise`). What two ranks' ends are
apart in one group must be so in every other. A cut recording is placed among the calls of longer ones; ranks that
recorded other steps are compared in the steps that they share.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.aligned_clocks import connected
from overlapscope.analysis.cross_rank.matching.call_numbering import CUT, FEWEST, could_not_place, is_part, place_of
from overlapscope.analysis.cross_rank.matching.early_calls import call_lanes
from overlapscope.analysis.cross_rank.matching.end_noise import (
    FAR_LOOSER,
    LEAST_NS,
    USUALLY,
    as_exact,
    beyond_gap,
    in_its_part,
    noise_beside,
    noises,
    of_one_group_ns,
)
from overlapscope.analysis.cross_rank.matching.group_calls import GroupCalls
from overlapscope.analysis.cross_rank.matching.several_groups import MOST_RANKS, contradicting
from overlapscope.display import list_some
from overlapscope.timeline.columns import NONE, Codes, Flags, Floats, Ints
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import Run

TOGETHER_NS: Final = 200_000.0
"""From call to call, the ends of a call on two ranks usually move apart by no more than this (in recordings of real
jobs, kernels of one call end within 70 us) ..."""
OF_CALL: Final = 0.01
"""... beside this share of the calls: over slow links, members see the end of a long call less exactly together."""
NOISES: Final = 3.0
"""In two groups, the distance of two clocks differs by no more than TOGETHER_NS and so many times the noise."""
EVEN_NS: Final = 50_000.0
"""Noises up to this are alike: then the set is believed whose clocks are closer, as those of most machines are."""
SHOWN: Final = 4
"""Fewer calls than this show no noise: other groups come first ..."""
EXACT_NS: Final = 2_000.0
FEWEST_EXACT: Final = 3
"""... unless so many calls move apart by no more than this on all ranks: others do so by chance in one of thousands."""
MOST_ENDS: Final = 1 << 17
FEWEST_ENDS: Final = 64
MOST_CALLS: Final = 1024
"""Of the tracks that are compared, so many ends in all, and for each track."""
FEWEST_SHARED: Final = 2
"""So many steps are shared by ranks that recorded others, too: in one, calls of several groups look alike."""
CUT_TOO: Final = f", or {CUT}"
MOST_SETS: Final = 64
"""A set is compared with so many others."""


class _Track(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one stream of a rank, in order of time."""

    rank: int
    place: Ints
    """Positions of the calls in the table."""
    kind: Codes
    start_ns: Ints
    end_ns: Ints
    step: Ints
    lasted_ns: float
    """How long half of the calls lasted at most."""


class _Ends(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The ends of calls of tracks that are compared: a track a row."""

    end_ns: Ints
    rank: Ints
    lasted_ns: Floats

    @classmethod
    def of(cls, tracks: Sequence[_Track]) -> "_Ends":
        most = min(MOST_CALLS, max(FEWEST_ENDS, MOST_ENDS // len(tracks)))
        return cls(
            end_ns=np.array([each.end_ns[:most] for each in tracks]),
            rank=np.array([each.rank for each in tracks]),
            lasted_ns=np.array([each.lasted_ns for each in tracks]),
        )


class _Member(msgspec.Struct, frozen=True, kw_only=True):
    track: _Track
    at: int = 0
    """The place of its first call among those of the set's first track; negative where it began earlier."""


class _Set(msgspec.Struct, frozen=True, kw_only=True):
    """Tracks of several ranks (or one) that are the same calls; the first has all of them, but those of steps that it
    did not record."""

    members: tuple[_Member, ...]
    noise_ns: float = 0.0
    """By how much the ends of a call move apart on two ranks."""
    spread_ns: float = 0.0
    """How far apart their clocks are."""

    @property
    def first(self) -> _Track:
        return self.members[0].track

    @property
    def shown(self) -> bool:
        """Whether its calls are so many, or so exact, that they are no others that look alike."""
        exact = self.noise_ns <= EXACT_NS and len(self.members) > 1
        return self.calls >= (FEWEST_EXACT if exact else SHOWN)

    @property
    def calls(self) -> int:
        return self.first.place.size

    @property
    def ranks(self) -> list[int]:
        return [each.track.rank for each in self.members]


_Shared = dict[int, dict[int, _Member]]
"""For each rank, its member of each set, by the position of the set."""


class SameCalls(msgspec.Struct, frozen=True, kw_only=True):
    """Calls that ranks made together."""

    calls: GroupCalls
    number: Ints
    """The same on all ranks."""
    whole: bool
    """Whether these ranks are surely all members of the group."""


class DividedCalls(msgspec.Struct, frozen=True, kw_only=True):
    """The calls that were found to be made together; reasons say which were not."""

    sets: tuple[SameCalls, ...]
    reasons: tuple[str, ...] = ()


def divide(run: Run, calls: GroupCalls) -> DividedCalls | None:
    """Divide calls without a group's name; None where they are not of devices whose streams are known."""
    tracks = _tracks(run, calls)
    if tracks is None:
        return None
    alike: dict[bytes, list[_Track]] = {}
    for track in tracks:
        alike.setdefault(track.kind.tobytes(), []).append(track)
    found = [each for same in alike.values() for each in _ending_together(run, same)]
    found.sort(key=_trust)
    known: list[_Set] = []
    for each in found:
        known += _agreeing(each, known)
    sets = _with_cut(known)
    made = [each for each in sets if len(each.members) > 1]
    if len(made) < len(sets):
        made = _shown(made)
    of_sets = {id(member.track) for each in made for member in each.members}
    alone = [track for track in tracks if id(track) not in of_sets]
    everyone, cut = run.world_size is not None and len(calls.ranks) >= run.world_size, _cut_ranks(made, alone)
    same = tuple(
        _same(calls, each, whole=everyone and cut.issubset(each.ranks))  # else such a rank may be a member, too
        for each in made
    )
    return DividedCalls(sets=same, reasons=_reasons(sets, alone))


def _shown(made: Sequence[_Set]) -> list[_Set]:
    """Return the sets with enough calls, and those of ranks that these connect: few calls may look alike by chance."""
    joined = connected([each.ranks for each in made if each.shown])
    return [each for each in made if each.shown or any(set(each.ranks).issubset(ranks) for ranks in joined)]


def _trust(each: _Set) -> tuple[float, ...]:
    """Return the key by which sets that are believed more come first."""
    noise, spread = max(each.noise_ns, EVEN_NS), max(each.spread_ns, TOGETHER_NS)
    return not each.shown, noise, spread, -len(each.members), -each.calls


def _tracks(run: Run, calls: GroupCalls) -> list[_Track] | None:
    found = []
    kind = calls.loose
    for place, rank in enumerate(calls.ranks):
        timeline, own = run.ranks[rank], calls.of(place)
        lane = call_lanes(timeline)[calls.row[own]]
        if not timeline.has_device or (lane == NONE).any():
            return None
        start_ns = timeline.collectives.start_ns[calls.row[own]]
        lasted = calls.end_ns[own] - start_ns
        for each in unique(lane).tolist():
            chosen = np.flatnonzero(lane == each)
            at = own.start + chosen
            middle = float(np.median(lasted[chosen]))
            step = timeline.collectives.step[calls.row[at]]
            found.append(
                _Track(
                    rank=rank, place=at, kind=kind[at], start_ns=start_ns[chosen], end_ns=calls.end_ns[at], step=step,
                    lasted_ns=middle,
                )
            )  # fmt: skip
    return found


def _ending_together(run: Run, tracks: Sequence[_Track]) -> list[_Set]:
    """Divide tracks of the same kinds of calls into those whose ends keep one distance, at most one of each rank.

    Ranks that do so far less exactly than those of a set before are not a set (`of_one_group_ns`): each may have a peer
    that was not recorded. Where all ranks of the job have such a track, and no more are left than a set has members,
    they have no other peers.
    """
    ends = _Ends.of(tracks)
    between = noises(ends.end_ns, ends.rank)
    exact, most_exact = between.copy(), float(between.min())
    nearest = exact.argmin(axis=1)
    left = np.arange(len(tracks))
    everyone = run.world_size is not None and unique(ends.rank).size >= run.world_size
    alone, largest = len(tracks), 0
    found: list[_Set] = []
    while left.size:
        first = left[exact[left, nearest[left]].argmin()]
        limit_ns = np.inf
        if found and not (everyone and alone <= largest):
            limit_ns = of_one_group_ns(most_exact, float(np.delete(between[first], left).min()))
        near = _ending_with(ends, first, left, limit_ns)
        near = near[_of_its_part(ends, first, near, between[first], nearest, exact)]
        own = near[_possible(run, [tracks[at] for at in near], between[first][near])]
        found.append(_set_of(tracks, ends, first, own))
        if own.size > 1:
            alone, largest = alone - own.size, max(largest, own.size)
        exact[:, own] = np.inf
        left = np.setdiff1d(left, own, assume_unique=True)
        again = left[np.isinf(exact[left, nearest[left]])]
        nearest[again] = exact[again].argmin(axis=1)
    return found


def _ending_with(ends: _Ends, first: int, left: Ints, limit_ns: float) -> Ints:
    """Return the tracks, of those that are left, whose ends keep one distance from those of the first one; of each rank
    the one that does so best."""
    apart = ends.end_ns[left] - ends.end_ns[first]
    noise, distance = _noise(apart), np.median(apart, axis=1)
    order = np.lexsort((np.abs(distance), np.maximum(noise, EVEN_NS), left != first, ends.rank[left]))
    order = order[np.diff(ends.rank[left][order], prepend=-1) != 0]
    least_ns = OF_CALL * np.minimum(ends.lasted_ns[left], ends.lasted_ns[first])
    order = order[noise[order] <= TOGETHER_NS + least_ns[order]]
    near = left[order]
    beside = noise_beside(ends.end_ns[near], int(np.flatnonzero(near == first)[0]), ends.rank[near])
    own: Ints = near[~beyond_gap(beside, least_ns[order], ends.end_ns.shape[1], limit_ns)]
    return own


def _of_its_part(ends: _Ends, first: int, near: Ints, noise_ns: Floats, nearest: Ints, exact: Floats) -> Flags:
    """Return which tracks near the first one are in its part of them (`in_its_part`)."""
    row = np.full(ends.rank.size, -1)
    row[near] = np.arange(near.size)
    best = nearest[near]
    return in_its_part(ends.end_ns[near], int(row[first]), noise_ns[near], row[best], exact[near, best])


def _possible(run: Run, tracks: Sequence[_Track], noise_ns: Floats) -> Flags:
    """Return which tracks may be of one group: of two of which each ended calls before the other began them, the one
    that is more exact beside the first one, by their noise beside it (its own is infinite)."""
    seen = tracks[:MOST_RANKS]
    start, end = (np.array([getattr(each, side)[:MOST_CALLS] for each in seen]) for side in ("start_ns", "end_ns"))
    apart = contradicting(run, [each.rank for each in seen], start, end)
    may = np.ones(len(tracks), np.bool_)
    kept: list[int] = []
    for at in np.argsort(np.where(np.isinf(noise_ns), -1.0, noise_ns)[: len(seen)], kind="stable").tolist():
        may[at] = not apart[at, kept].any()
        if may[at]:
            kept.append(at)
    return may


def _set_of(tracks: Sequence[_Track], ends: _Ends, first: int, own: Ints) -> _Set:
    apart = ends.end_ns[own] - ends.end_ns[first]
    return _Set(
        members=tuple(_Member(track=tracks[at]) for at in own),
        noise_ns=float(_noise(apart).max()),
        spread_ns=float(np.ptp(np.median(apart, axis=1))),
    )


def _noise(apart_ns: Ints) -> Floats:
    """Return for each row how far the distance of two clocks mostly moves from call to call."""
    if apart_ns.shape[1] < 2:
        return np.zeros(apart_ns.shape[0])
    moved: Floats = np.quantile(np.abs(np.diff(apart_ns, axis=1)), USUALLY, axis=1)
    return moved


def _agreeing(candidate: _Set, known: Iterable[_Set]) -> list[_Set]:
    """Divide a set where in others the clocks of its ranks are another distance apart, or keep it far more exactly.

    Each of the ranks that are left alone is a set of its own, and so is each rank where it is not clear which belong
    together.
    """
    members = candidate.members
    count = len(members)
    if count == 1:
        return [candidate]
    apart = np.zeros((count, count), np.bool_)
    for other in [each for each in known if len(each.members) > 1][:MOST_SETS]:
        places, mine, its = _of_both(candidate, other)
        if len(places) > 1:
            behind = _behind(mine, its)
            limit = TOGETHER_NS + NOISES * (candidate.noise_ns + other.noise_ns)
            lasted = max(OF_CALL * candidate.members[at].track.lasted_ns for at in places)
            apart[np.ix_(places, places)] |= np.abs(behind[:, None] - behind) > limit
            kept = as_exact(mine, its, lasted)
            apart[np.ix_(places, places)] |= kept[:, None] != kept
    if not apart.any():
        return [candidate]
    parts = np.unique(~apart, axis=0)
    if (parts.sum(axis=0) != 1).any():
        parts = np.eye(count, dtype=np.bool_)
    return [
        _Set(members=tuple(members[place] for place in np.flatnonzero(part)), noise_ns=candidate.noise_ns)
        for part in parts
    ]


def _of_both(candidate: _Set, other: _Set) -> tuple[list[int], Ints, Ints]:
    """Return the places of the ranks that both sets have, and the ends of their calls in either: a rank a row."""
    theirs = {rank: at for at, rank in enumerate(other.ranks)}
    places = [at for at, rank in enumerate(candidate.ranks) if rank in theirs]
    mine = np.array([candidate.members[at].track.end_ns[:MOST_CALLS] for at in places])
    its = np.array([other.members[theirs[candidate.ranks[at]]].track.end_ns[:MOST_CALLS] for at in places])
    return places, mine, its


def _behind(mine: Ints, its: Ints) -> Floats:
    """Return how much later each rank's ends are than the distance of the clocks in another set says; all relative to
    the first rank, in nanoseconds."""
    expected = np.array([np.interp(mine[0], its[0], own - its[0]) for own in its])
    behind: Floats = np.median(mine - mine[0] - expected, axis=1)
    return behind


def _with_cut(known: Sequence[_Set]) -> list[_Set]:
    """Join sets that hold a part of the calls of a longer one, as cut recordings do."""
    sets = sorted(known, key=lambda each: -each.calls)
    shared: _Shared = {}
    for at, each in enumerate(sets):
        _add(shared, at, each.members)
    kept: list[int] = []
    for at, each in enumerate(sets):
        fits = []
        for longer in kept[:MOST_SETS]:
            place = _place(each, sets[longer], shared)
            place = _place_by_steps(each, sets[longer], shared) if place is None else place
            fits += [(longer, place)] if place is not None else []
        if len(fits) != 1:
            kept.append(at)
            continue
        ((longer, place),) = fits
        joined = tuple(_Member(track=member.track, at=place + member.at) for member in each.members)
        noise_ns = max(sets[longer].noise_ns, each.noise_ns)
        sets[longer] = _Set(members=(*sets[longer].members, *joined), noise_ns=noise_ns)
        _add(shared, longer, joined)
    return [sets[at] for at in kept]


def _add(shared: _Shared, at: int, members: Iterable[_Member]) -> None:
    for member in members:
        shared.setdefault(member.track.rank, {})[at] = member


def _place(cut: _Set, longer: _Set, shared: _Shared) -> int | None:
    """Return where the calls of a cut set begin among those of a longer one; None where they are not a part of it."""
    if cut.calls >= longer.calls or not np.isin(cut.first.kind[:1], longer.first.kind)[0]:
        return None
    if not set(cut.ranks).isdisjoint(longer.ranks):
        return None
    mine, its = cut.first, longer.first
    clock = _clocks_apart_ns(mine, its.rank, shared)
    if clock is None:
        place = place_of(mine.kind, mine.end_ns, its.kind, its.end_ns)
    else:
        place = int(np.searchsorted(its.end_ns, mine.end_ns[0] - clock[0] - TOGETHER_NS))
    if place is None or not np.array_equal(its.kind[place : place + cut.calls], mine.kind):
        return None
    apart = mine.end_ns - its.end_ns[place : place + cut.calls]
    limit = TOGETHER_NS + OF_CALL * min(mine.lasted_ns, its.lasted_ns)
    agree = _noise(apart[None])[0] <= limit and (clock is None or abs(float(np.median(apart - clock))) <= limit)
    return place if agree else None


def _place_by_steps(one: _Set, other: _Set, shared: _Shared) -> int | None:
    """Return where the calls of a set begin among those of another one, by the numbers of the steps that both recorded
    beside others; None where calls of these differ, or do not end as exactly together as those of either set."""
    mine, its = one.first, other.first
    if not set(one.ranks).isdisjoint(other.ranks) or NONE in (mine.step.min(), its.step.min()):
        return None
    steps = np.intersect1d(mine.step, its.step)
    here, there = (np.flatnonzero(np.isin(each.step, steps)) for each in (mine, its))
    if steps.size < FEWEST_SHARED or here.size < FEWEST or here.size in (mine.step.size, its.step.size):
        return None
    if not all(np.array_equal(a[here], b[there]) for a, b in ((mine.step, its.step), (mine.kind, its.kind))):
        return None
    if here[-1] - here[0] != here.size - 1 or there[-1] - there[0] != there.size - 1:
        return None
    apart = mine.end_ns[here] - its.end_ns[there]
    clock = _clocks_apart_ns(mine, its.rank, shared)
    limit = TOGETHER_NS + OF_CALL * min(mine.lasted_ns, its.lasted_ns)
    exact = FAR_LOOSER * max(LEAST_NS, one.noise_ns, other.noise_ns)
    agree = _noise(apart[None])[0] <= min(limit, exact)
    agree = agree and (clock is None or abs(float(np.median(apart - clock[here]))) <= limit)
    return int(there[0] - here[0]) if agree else None


def _clocks_apart_ns(track: _Track, other: int, shared: _Shared) -> Floats | None:
    """Return how far the clock of a track's rank is ahead of another rank's at the ends of its calls, as the set with
    the most calls says that has both."""
    mine, its = (shared.get(each, {}) for each in (track.rank, other))
    for at in sorted(mine.keys() & its.keys()):
        one, two = mine[at], its[at]
        begin, until = max(one.at, two.at), min(one.at + one.track.place.size, two.at + two.track.place.size)
        if begin < until:
            ends, theirs = (each.track.end_ns[begin - each.at : until - each.at] for each in (one, two))
            found: Floats = np.interp(track.end_ns, ends, ends - theirs)
            return found
    return None


def _cut_ranks(made: Iterable[_Set], alone: Iterable[_Track]) -> set[int]:
    """Return the ranks that may lack calls: those with a part of the calls of a set, or with calls of no other rank."""
    parts = (
        member.track
        for each in made
        for member in each.members
        if member.at or member.track.place.size < each.calls or any(other.at for other in each.members)
    )
    return {track.rank for track in [*parts, *alone]}


def _same(calls: GroupCalls, each: _Set, *, whole: bool) -> SameCalls:
    members = sorted(each.members, key=lambda member: member.track.rank)
    first = min(member.at for member in members)
    places = np.concatenate([member.track.place for member in members])
    counts = [member.track.place.size for member in members]
    row, kind, end, size = (column[places] for column in (calls.row, calls.kind, calls.end_ns, calls.size))
    return SameCalls(
        calls=replace(
            calls, ranks=tuple(member.track.rank for member in members), row=row, kind=kind, end_ns=end, size=size,
            place=np.repeat(np.arange(len(members), dtype=np.int32), counts),
        ),
        number=np.concatenate(
            [member.at - first + np.arange(member.track.place.size, dtype=np.int64) for member in members]
        ),
        whole=whole,
    )  # fmt: skip


def _reasons(sets: Sequence[_Set], alone: Sequence[_Track]) -> tuple[str, ...]:
    """Return reasons for calls that no other rank was seen to make: those of cut recordings, and others."""
    found = []
    cut: dict[int, list[_Track]] = {}
    other: list[_Track] = []
    longer: dict[bytes, int] = {}
    having: defaultdict[bytes, set[int]] = defaultdict(set)
    for at, each in reversed(list(enumerate(sets))):
        key = each.first.kind.tobytes()
        longer[key] = at
        having[key].update(each.ranks)
    parts_of: dict[bytes, list[bytes]] = {}
    for track in alone:
        key = track.kind.tobytes()
        if key not in parts_of:
            parts_of[key] = [own for own, at in longer.items() if is_part(track.kind, sets[at].first.kind)]
        fits = next((longer[own] for own in parts_of[key] if _may_lack(track, sets[longer[own]], having[own])), None)
        if fits is None:
            other.append(track)
        else:
            cut.setdefault(fits, []).append(track)
    for at, tracks in cut.items():
        of, few = sets[at], tracks[0]
        ranks = sorted({track.rank for track in tracks})
        found.append(could_not_place((of.calls, of.first.rank), (few.place.size, few.rank), ranks))
    if other:
        count, ranks = sum(track.place.size for track in other), sorted({track.rank for track in other})
        every = [*other, *(each.first for each in sets)]
        lack = "" if len({_steps(track) for track in every}) == 1 and _steps(every[0]) else CUT_TOO
        found.append(
            f"no other rank made the {count} calls of rank {list_some(ranks)} in the same order and at the same times: "
            f"they are of other groups{lack}, and are not paired by order"
        )
    return tuple(found)


def _may_lack(track: _Track, longer: _Set, having: Container[int]) -> bool:
    """Return whether a rank's calls may be those of a longer set, the others of which were not recorded on it: not on a
    rank that made such calls on another stream, nor where both are known to be of the same steps."""
    steps = _steps(track)
    return track.rank not in having and not (steps and steps == _steps(longer.first))


def _steps(track: _Track) -> frozenset[int]:
    """Return the steps of a track's calls, without calls of no known step."""
    return frozenset(unique(track.step).tolist()) - {NONE}
