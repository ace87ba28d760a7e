"""The collectives of one step in two runs, paired: which are the same, and which of them changed most."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import accumulate, pairwise

import msgspec


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One collective of a step on one rank; None is not known. Times count from the step's start."""

    op: str
    dtype: str | None
    size_bytes: int | None
    group_size: int | None
    start_ns: int
    end_ns: int
    exposed_ns: int | None = None
    wait_ns: int | None = None
    cause: str | None = None
    """Why most of what is exposed is exposed."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """The same communication in both runs: a call and its partner, or several that carry the same bytes together."""

    base: tuple[Call, ...]
    candidate: tuple[Call, ...]

    @property
    def size_bytes(self) -> int | None:
        """Bytes of either side."""
        return total(self.base, lambda each: each.size_bytes)

    @property
    def change_ns(self) -> int:
        """How much more of it is exposed in the candidate; where that is not known, how much longer it takes."""
        sides = [total(side, lambda each: each.exposed_ns) for side in (self.base, self.candidate)]
        before, after = sides if None not in sides else (lasted(self.base), lasted(self.candidate))
        assert before is not None
        assert after is not None
        return after - before

    def pieces(self) -> list[tuple[tuple[float, float], tuple[float, float]]]:
        """Give which stretch of the base's time belongs to which of the candidate's, by the bytes that calls carry."""
        if len(self.base) + len(self.candidate) == 2:
            (ours,), (theirs,) = self.base, self.candidate
            return [((ours.start_ns, ours.end_ns), (theirs.start_ns, theirs.end_ns))]
        sides = [_stretches(each) for each in (self.base, self.candidate)]
        found = []
        for before, start, end in sides[0]:
            for after, other_start, other_end in sides[1]:
                low, high = max(before[0], after[0]), min(before[1], after[1])
                if low < high:
                    found.append((_part(before, (start, end), (low, high)),
                                  _part(after, (other_start, other_end), (low, high))))  # fmt: skip
        return found


class Linked(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of both sides; what has no partner stands apart."""

    links: tuple[Link, ...]
    """What changed most comes first."""
    only_base: tuple[Call, ...]
    only_candidate: tuple[Call, ...]


def linked(base: Sequence[Call], candidate: Sequence[Call]) -> Linked:
    """Pair the calls of two sides, each in order of time.

    A call is the same as that of the same operation, type, bytes and group size which comes as the same one of its
    kind. What is left of an operation is one piece where its bytes on both sides are the same: the buckets were cut
    in another way.
    """
    links: list[Link] = []
    left: tuple[list[Call], list[Call]] = [], []
    for ours, theirs in _together(_kind, base, candidate):
        pairs = min(len(ours), len(theirs))
        links += [Link(base=(a,), candidate=(b,)) for a, b in zip(ours, theirs, strict=False)]
        left[0].extend(ours[pairs:])
        left[1].extend(theirs[pairs:])
    alone: tuple[list[Call], list[Call]] = [], []
    for ours, theirs in _together(lambda each: (each.op, each.dtype, each.group_size), *left):
        sums = {total(side, lambda each: each.size_bytes) for side in (ours, theirs)}
        if ours and theirs and len(sums) == 1 and None not in sums:
            links.append(Link(base=tuple(ours), candidate=tuple(theirs)))
        else:
            alone[0].extend(ours)
            alone[1].extend(theirs)
    links.sort(key=lambda each: (-abs(each.change_ns), each.base[0].start_ns))
    only_base, only_candidate = (tuple(sorted(side, key=lambda each: each.start_ns)) for side in alone)
    return Linked(links=tuple(links), only_base=only_base, only_candidate=only_candidate)


def total(calls: Iterable[Call], of: Callable[[Call], int | None]) -> int | None:
    """Add a figure up; None where it is not known of every call."""
    values = [of(each) for each in calls]
    known = [each for each in values if each is not None]
    return sum(known) if len(known) == len(values) else None


def lasted(calls: Iterable[Call]) -> int:
    """Add up how long calls took."""
    return sum(each.end_ns - each.start_ns for each in calls)


def _stretches(calls: Sequence[Call]) -> list[tuple[tuple[int, int], int, int]]:
    """Return (bytes carried before it and with it, start, end) of each call."""
    edges = list(accumulate((each.size_bytes or 0 for each in calls), initial=0))
    return [(edge, each.start_ns, each.end_ns) for edge, each in zip(pairwise(edges), calls, strict=True)]


def _part(whole: tuple[int, int], times: tuple[int, int], part: tuple[int, int]) -> tuple[float, float]:
    """Return when a part of a call's bytes would be carried, if all took equally long."""
    of, lasted_ns = whole[1] - whole[0], times[1] - times[0]
    start, end = (times[0] + lasted_ns * (each - whole[0]) / of for each in part)
    return start, end


def _kind(call: Call) -> Hashable:
    return call.op, call.dtype, call.group_size, call.size_bytes


def _together(
    key: Callable[[Call], Hashable], base: Sequence[Call], candidate: Sequence[Call]
) -> Iterable[tuple[list[Call], list[Call]]]:
    """Return the calls of each kind on both sides, in order of time."""
    found: dict[Hashable, tuple[list[Call], list[Call]]] = defaultdict(lambda: ([], []))
    for at, side in enumerate((base, candidate)):
        for each in sorted(side, key=lambda call: call.start_ns):
            found[key(each)][at].append(each)
    return found.values()
