"""Place the calls of cut recordings among those of longer ones, and say why calls are paired with none."""

from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from typing import Final

import numpy as np

from overlapscope.analysis.cross_rank.matching.call_numbering import CUT, FEWEST, could_not_place, is_part, place_of
from overlapscope.analysis.cross_rank.matching.call_tracks import (
    MOST_SETS,
    OF_CALL,
    TOGETHER_NS,
    Member,
    Track,
    TrackSet,
    call_noise,
)
from overlapscope.analysis.cross_rank.matching.end_noise import FAR_LOOSER, LEAST_NS
from overlapscope.display import list_some
from overlapscope.timeline.columns import NONE, Floats
from overlapscope.timeline.rows import unique

FEWEST_SHARED: Final = 2
"""So many steps are shared by ranks that recorded others, too: in one, calls of several groups look alike."""
CUT_TOO: Final = f", or {CUT}"
_Shared = dict[int, dict[int, Member]]
"""For each rank, its member of each set, by the position of the set."""


def with_cut(known: Sequence[TrackSet]) -> list[TrackSet]:
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
        joined = tuple(Member(track=member.track, at=place + member.at) for member in each.members)
        noise_ns = max(sets[longer].noise_ns, each.noise_ns)
        sets[longer] = TrackSet(members=(*sets[longer].members, *joined), noise_ns=noise_ns)
        _add(shared, longer, joined)
    return [sets[at] for at in kept]


def _add(shared: _Shared, at: int, members: Iterable[Member]) -> None:
    for member in members:
        shared.setdefault(member.track.rank, {})[at] = member


def _place(cut: TrackSet, longer: TrackSet, shared: _Shared) -> int | None:
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
    agree = call_noise(apart[None])[0] <= limit and (clock is None or abs(float(np.median(apart - clock))) <= limit)
    return place if agree else None


def _place_by_steps(one: TrackSet, other: TrackSet, shared: _Shared) -> int | None:
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
    agree = call_noise(apart[None])[0] <= min(limit, exact)
    agree = agree and (clock is None or abs(float(np.median(apart - clock[here]))) <= limit)
    return int(there[0] - here[0]) if agree else None


def _clocks_apart_ns(track: Track, other: int, shared: _Shared) -> Floats | None:
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


def cut_ranks(made: Iterable[TrackSet], alone: Iterable[Track]) -> set[int]:
    """Return the ranks that may lack calls: those with a part of the calls of a set, or with calls of no other rank."""
    parts = (
        member.track
        for each in made
        for member in each.members
        if member.at or member.track.place.size < each.calls or any(other.at for other in each.members)
    )
    return {track.rank for track in [*parts, *alone]}


def reasons_alone(sets: Sequence[TrackSet], alone: Sequence[Track]) -> tuple[str, ...]:
    """Return reasons for calls that no other rank was seen to make: those of cut recordings, and others."""
    found = []
    cut: dict[int, list[Track]] = {}
    other: list[Track] = []
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


def _may_lack(track: Track, longer: TrackSet, having: Container[int]) -> bool:
    """Return whether a rank's calls may be those of a longer set, the others of which were not recorded on it: not on a
    rank that made such calls on another stream, nor where both are known to be of the same steps."""
    steps = _steps(track)
    return track.rank not in having and not (steps and steps == _steps(longer.first))


def _steps(track: Track) -> frozenset[int]:
    """Return the steps of a track's calls, without calls of no known step."""
    return frozenset(unique(track.step).tolist()) - {NONE}
