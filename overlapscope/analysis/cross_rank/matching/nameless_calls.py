"""Divide device calls that name no group: by stream, and by ranks that make the same calls, which end together.

A communicator's members make the same calls in the same order on one of their streams, and a call's kernels end within
microseconds on all of them. So calls of a stream are compared with those of other ranks' streams: ranks whose order
differs, or whose ends do not keep one distance (that of their clocks), are of other groups; so are those that keep it
far less exactly than others do, or than the same two ranks do on another stream (`end_noise`). What two ranks' ends are
apart in one group must be so in every other. A cut recording is placed among the calls of longer ones; ranks that
recorded other steps are compared in the steps that they share.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.aligned_clocks import connected
from overlapscope.analysis.cross_rank.matching.call_tracks import (
    MOST_SETS,
    OF_CALL,
    TOGETHER_NS,
    Member,
    Track,
    TrackSet,
    call_noise,
)
from overlapscope.analysis.cross_rank.matching.cut_tracks import cut_ranks, reasons_alone, with_cut
from overlapscope.analysis.cross_rank.matching.early_calls import call_lanes
from overlapscope.analysis.cross_rank.matching.end_noise import (
    as_exact,
    beyond_gap,
    in_its_part,
    noise_beside,
    noises,
    of_one_group_ns,
)
from overlapscope.analysis.cross_rank.matching.group_calls import GroupCalls
from overlapscope.analysis.cross_rank.matching.several_groups import MOST_RANKS, contradicting
from overlapscope.timeline.columns import NONE, Flags, Floats, Ints
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import Run

NOISES: Final = 3.0
"""In two groups, the distance of two clocks differs by no more than TOGETHER_NS and so many times the noise."""
EVEN_NS: Final = 50_000.0
"""Noises up to this are alike: then the set is believed whose clocks are closer, as those of most machines are."""
MOST_ENDS: Final = 1 << 17
FEWEST_ENDS: Final = 64
MOST_CALLS: Final = 1024
"""Of the tracks that are compared, so many ends in all, and for each track."""


class _Ends(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The ends of calls of tracks that are compared: a track a row."""

    end_ns: Ints
    rank: Ints
    lasted_ns: Floats

    @classmethod
    def of(cls, tracks: Sequence[Track]) -> "_Ends":
        most = min(MOST_CALLS, max(FEWEST_ENDS, MOST_ENDS // len(tracks)))
        return cls(
            end_ns=np.array([each.end_ns[:most] for each in tracks]),
            rank=np.array([each.rank for each in tracks]),
            lasted_ns=np.array([each.lasted_ns for each in tracks]),
        )


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
    alike: dict[bytes, list[Track]] = {}
    for track in tracks:
        alike.setdefault(track.kind.tobytes(), []).append(track)
    found = [each for same in alike.values() for each in _ending_together(run, same)]
    found.sort(key=_trust)
    known: list[TrackSet] = []
    for each in found:
        known += _agreeing(each, known)
    sets = with_cut(known)
    made = [each for each in sets if len(each.members) > 1]
    if len(made) < len(sets):
        made = _shown(made)
    of_sets = {id(member.track) for each in made for member in each.members}
    alone = [track for track in tracks if id(track) not in of_sets]
    everyone, cut = run.world_size is not None and len(calls.ranks) >= run.world_size, cut_ranks(made, alone)
    same = tuple(
        _same(calls, each, whole=everyone and cut.issubset(each.ranks))  # else such a rank may be a member, too
        for each in made
    )
    return DividedCalls(sets=same, reasons=reasons_alone(sets, alone))


def _shown(made: Sequence[TrackSet]) -> list[TrackSet]:
    """Return the sets with enough calls, and those of ranks that these connect: few calls may look alike by chance."""
    joined = connected([each.ranks for each in made if each.shown])
    return [each for each in made if each.shown or any(set(each.ranks).issubset(ranks) for ranks in joined)]


def _trust(each: TrackSet) -> tuple[float, ...]:
    """Return the key by which sets that are believed more come first."""
    noise, spread = max(each.noise_ns, EVEN_NS), max(each.spread_ns, TOGETHER_NS)
    return not each.shown, noise, spread, -len(each.members), -each.calls


def _tracks(run: Run, calls: GroupCalls) -> list[Track] | None:
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
                Track(
                    rank=rank, place=at, kind=kind[at], start_ns=start_ns[chosen], end_ns=calls.end_ns[at], step=step,
                    lasted_ns=middle,
                )
            )  # fmt: skip
    return found


def _ending_together(run: Run, tracks: Sequence[Track]) -> list[TrackSet]:
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
    found: list[TrackSet] = []
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
    noise, distance = call_noise(apart), np.median(apart, axis=1)
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


def _possible(run: Run, tracks: Sequence[Track], noise_ns: Floats) -> Flags:
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


def _set_of(tracks: Sequence[Track], ends: _Ends, first: int, own: Ints) -> TrackSet:
    apart = ends.end_ns[own] - ends.end_ns[first]
    return TrackSet(
        members=tuple(Member(track=tracks[at]) for at in own),
        noise_ns=float(call_noise(apart).max()),
        spread_ns=float(np.ptp(np.median(apart, axis=1))),
    )


def _agreeing(candidate: TrackSet, known: Iterable[TrackSet]) -> list[TrackSet]:
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
        TrackSet(members=tuple(members[place] for place in np.flatnonzero(part)), noise_ns=candidate.noise_ns)
        for part in parts
    ]


def _of_both(candidate: TrackSet, other: TrackSet) -> tuple[list[int], Ints, Ints]:
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


def _same(calls: GroupCalls, each: TrackSet, *, whole: bool) -> SameCalls:
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
