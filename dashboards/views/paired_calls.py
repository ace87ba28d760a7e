"""Pair the collectives of one step in two runs, and order the pairs by change."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import accumulate, pairwise

import msgspec


class StepCall(msgspec.Struct, frozen=True, kw_only=True):
    """One collective of a step on one rank; None means not known. Times are relative to the step's start."""

    op: str
    dtype: str | None
    size_bytes: int | None
    group_size: int | None
    start_ns: int
    end_ns: int
    exposed_ns: int | None = None
    wait_ns: int | None = None
    cause: str | None = None
    """The cause of most of the exposed time."""


class CallPairing(msgspec.Struct, frozen=True, kw_only=True):
    """The same communication in both runs: one call each, or several calls with the same total bytes."""

    base: tuple[StepCall, ...]
    candidate: tuple[StepCall, ...]

    @property
    def size_bytes(self) -> int | None:
        """Bytes of each side."""
        return sum_if_known(self.base, lambda each: each.size_bytes)

    @property
    def change_ns(self) -> int:
        """Increase of exposed time in the candidate; of duration where exposed time is not known."""
        sides = [sum_if_known(side, lambda each: each.exposed_ns) for side in (self.base, self.candidate)]
        before, after = sides if None not in sides else (sum_durations(self.base), sum_durations(self.candidate))
        assert before is not None
        assert after is not None
        return after - before

    def pieces(self) -> list[tuple[tuple[float, float], tuple[float, float]]]:
        """Return pairs of (start, end) ranges in base and candidate that transfer the same bytes."""
        if len(self.base) + len(self.candidate) == 2:
            (ours,), (theirs,) = self.base, self.candidate
            return [((ours.start_ns, ours.end_ns), (theirs.start_ns, theirs.end_ns))]
        sides = [_byte_ranges(each) for each in (self.base, self.candidate)]
        found = []
        for before, start, end in sides[0]:
            for after, other_start, other_end in sides[1]:
                low, high = max(before[0], after[0]), min(before[1], after[1])
                if low < high:
                    found.append((_part(before, (start, end), (low, high)),
                                  _part(after, (other_start, other_end), (low, high))))  # fmt: skip
        return found


class PairedCalls(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of both sides, paired and unpaired."""

    links: tuple[CallPairing, ...]
    """Largest change first."""
    only_base: tuple[StepCall, ...]
    only_candidate: tuple[StepCall, ...]


def pair_calls(base: Sequence[StepCall], candidate: Sequence[StepCall]) -> PairedCalls:
    """Pair the calls of two sides.

    The n-th call of an operation, type, size and group size is paired with the n-th such call of the other side. The
    remaining calls of an operation form one pairing if their total bytes agree: the buckets were split differently.
    """
    links: list[CallPairing] = []
    left: tuple[list[StepCall], list[StepCall]] = [], []
    for ours, theirs in _group_calls(_kind, base, candidate):
        pairs = min(len(ours), len(theirs))
        links += [CallPairing(base=(a,), candidate=(b,)) for a, b in zip(ours, theirs, strict=False)]
        left[0].extend(ours[pairs:])
        left[1].extend(theirs[pairs:])
    alone: tuple[list[StepCall], list[StepCall]] = [], []
    for ours, theirs in _group_calls(lambda each: (each.op, each.dtype, each.group_size), *left):
        sums = {sum_if_known(side, lambda each: each.size_bytes) for side in (ours, theirs)}
        if ours and theirs and len(sums) == 1 and None not in sums:
            links.append(CallPairing(base=tuple(ours), candidate=tuple(theirs)))
        else:
            alone[0].extend(ours)
            alone[1].extend(theirs)
    links.sort(key=lambda each: (-abs(each.change_ns), each.base[0].start_ns))
    only_base, only_candidate = (tuple(sorted(side, key=lambda each: each.start_ns)) for side in alone)
    return PairedCalls(links=tuple(links), only_base=only_base, only_candidate=only_candidate)


def sum_if_known(calls: Iterable[StepCall], of: Callable[[StepCall], int | None]) -> int | None:
    """Return the sum of a figure over calls; None unless it is known for every call."""
    values = [of(each) for each in calls]
    known = [each for each in values if each is not None]
    return sum(known) if len(known) == len(values) else None


def sum_durations(calls: Iterable[StepCall]) -> int:
    """Return the total duration of calls in nanoseconds."""
    return sum(each.end_ns - each.start_ns for each in calls)


def _byte_ranges(calls: Sequence[StepCall]) -> list[tuple[tuple[int, int], int, int]]:
    """Return ((bytes before the call, bytes including it), start, end) of each call."""
    edges = list(accumulate((each.size_bytes or 0 for each in calls), initial=0))
    return [(edge, each.start_ns, each.end_ns) for edge, each in zip(pairwise(edges), calls, strict=True)]


def _part(whole: tuple[int, int], times: tuple[int, int], part: tuple[int, int]) -> tuple[float, float]:
    """Return the (start, end) in which a part of a call's bytes is transferred, at constant speed."""
    of, lasted_ns = whole[1] - whole[0], times[1] - times[0]
    start, end = (times[0] + lasted_ns * (each - whole[0]) / of for each in part)
    return start, end


def _kind(call: StepCall) -> Hashable:
    return call.op, call.dtype, call.group_size, call.size_bytes


def _group_calls(
    key: Callable[[StepCall], Hashable], base: Sequence[StepCall], candidate: Sequence[StepCall]
) -> Iterable[tuple[list[StepCall], list[StepCall]]]:
    """Return the calls of both sides grouped by key, in order of time."""
    found: dict[Hashable, tuple[list[StepCall], list[StepCall]]] = defaultdict(lambda: ([], []))
    for at, side in enumerate((base, candidate)):
        for each in sorted(side, key=lambda call: call.start_ns):
            found[key(each)][at].append(each)
    return found.values()
