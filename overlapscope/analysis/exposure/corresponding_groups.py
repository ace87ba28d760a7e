"""Groups that correspond: of one description and size, and placed alike on nodes, such as those of tensor parallelism
in all replicas.

A call of as many bytes needs as long in each of them, so the calls of one show what those of another need, of which all
may wait.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
import numpy as np

from overlapscope.timeline.columns import NONE, Collectives, Flags, Ints
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import SYMMETRIC
from overlapscope.timeline.rows import MOST, factorize_rows, largest_by, sort_order, split_by
from overlapscope.timeline.run import Group, RankTimeline

UNEVEN: Final = "all_to_all"
"""Members of such a call may send different sizes: a larger one of this rank may have been the smaller one in all."""
DEVICES_OF_NODE: Final = (2, 4, 8, 16, 72)
"""How many devices share a bridge, a node or a switch in usual clusters: groups are placed alike if they lie alike on
nodes of each of these sizes, as traces of a few ranks do not say which one is theirs."""

LARGE_BYTES, FEW_BYTES = 8 << 20, 64 << 10
"""From one size on calls take about as long as their bytes need, up to the other as long as their latency."""
OTHER_SIZE: Final = 2
"""Sizes that differ by this factor show whether time grows with bytes, as on a slower link, and waiting does not."""
SAME_TIMES: Final = 1.1
"""Factors by which calls take longer are the same up to this ratio. A choice: medians of transfers vary by less."""
BEHIND_NS: Final = 20_000
"""A call that begins so soon after one of its group has ended follows directly. A choice, as kernels of NCCL that wait
on a stream begin a few microseconds apart."""
BEHIND_CALLS: Final = 5
"""Fewest such calls of one kind that are compared."""

Key = tuple[Any, ...]
"""What calls have in common that need as long: names, and bytes."""


class SlowerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group whose calls usually take longer than those of one that corresponds to it."""

    group: str
    ranks: tuple[int, ...]
    than: str
    times: float
    """How many times as long, in the median."""
    exposed_ns: int
    """Exposed time beyond what its calls need, summed over the recorded ranks."""
    of_link: bool = False
    """Whether its transfers take longer, not only waiting: calls of several sizes take as many times as long, also
    directly behind others, where only the first of a row can wait for a late rank, and those of few bytes do not."""
    waits_for: str | None = None
    """Such a group, whose calls a common member must end before it comes to those of this one; None if none is seen."""


def corresponding_groups(groups: Iterable[Group]) -> dict[str, str]:
    """Return the first group that each one corresponds to, by name, of those that others correspond to."""
    alike: dict[Key, list[str]] = defaultdict(list)
    for group in groups:
        if group.ranks:
            alike[_placement(group, group.ranks)].append(group.name)
    return {name: names[0] for names in alike.values() if len(names) > 1 for name in names}


def _placement(group: Group, ranks: tuple[int, ...]) -> Key:
    """Return how a group lies on ranks, relative to its first one, and on nodes."""
    members = np.array(ranks, np.int64)
    nodes = [members // devices for devices in DEVICES_OF_NODE]
    return group.description, tuple((each - each[0]).tobytes() for each in (members, *nodes))


def even_calls(timeline: RankTimeline) -> Flags:
    """Return which calls of a rank are of the same size on each member, with known size and times."""
    calls = timeline.collectives
    found: Flags = (calls.start_ns != NONE) & (calls.end_ns != NONE) & (calls.bytes != NONE)
    found &= rows_named(calls.op, timeline.names, lambda name: name in SYMMETRIC and name != UNEVEN)
    return found


def _like_in_groups(timeline: RankTimeline, corresponding: Mapping[str, str]) -> tuple[Ints, Ints, list[Key]]:
    """Return the calls of a rank that those of a corresponding group may be like, the number of the kind of each one,
    and what calls of each kind have in common. They are even calls of `corresponding` groups, with sizes and times."""
    calls = timeline.collectives
    of_groups = rows_named(calls.group, timeline.names, corresponding.__contains__)
    own = np.flatnonzero(even_calls(timeline) & of_groups)
    kind, first = factorize_rows([each[own] for each in _columns(calls)])
    return own, kind, [_key(timeline, int(row), corresponding) for row in own[first]]


def _columns(calls: Collectives) -> tuple[Any, ...]:
    return calls.op, calls.executed_op, calls.group, calls.dtype, calls.received_bytes, calls.bytes


def _key(timeline: RankTimeline, row: int, corresponding: Mapping[str, str]) -> Key:
    op, executed, group, dtype, received, sent = (int(each[row]) for each in _columns(timeline.collectives))
    name = timeline.name
    return name(op), name(executed), corresponding[timeline.names[group]], name(dtype), received, sent


def least_of_corresponding(
    ranks: Mapping[int, RankTimeline], needs_ns: Mapping[int, Ints], groups: Iterable[Group]
) -> Mapping[int, Ints]:
    """Return how long each call of these ranks needs at most: no longer than those of its operation, type and bytes in
    a corresponding group on any of them. `needs_ns` is what each rank's own calls say, NONE where these say nothing.

    Of calls of a kind that a rank says different times of, as by their place in a step, the longest holds elsewhere:
    one that is too short may be damage.
    """
    corresponding = corresponding_groups(groups)
    if not corresponding or len(needs_ns) < 2:
        return needs_ns
    least: dict[Key, int] = {}
    kinds = {}
    for rank, own_ns in needs_ns.items():
        rows, kind, keys = kinds[rank] = _like_in_groups(ranks[rank], corresponding)
        for key, ns in zip(keys, largest_by(kind, own_ns[rows], len(keys)).tolist(), strict=True):
            least[key] = min(least.get(key, MOST), MOST if ns == NONE else ns)
    found = {}
    for rank, (rows, kind, keys) in kinds.items():
        found[rank] = needs_ns[rank].copy()
        own_ns = np.where(found[rank][rows] == NONE, MOST, found[rank][rows])
        known_ns = np.minimum(own_ns, np.array([least[key] for key in keys], np.int64)[kind])
        found[rank][rows] = np.where(known_ns == MOST, NONE, known_ns)
    return found


def slower_groups(
    ranks: Mapping[int, RankTimeline],
    excess_ns: Mapping[int, Ints],
    groups: Iterable[Group],
    least_times: float,
    least_ns: float,
) -> list[SlowerGroup]:
    """Return the groups whose calls of the kind with most excess take `least_times` as long as those of a corresponding
    group, or longer, in the median, and whose excess is `least_ns` or more; the one with most excess first.

    `excess_ns` is the exposed time of each call of a rank beyond what it needs.
    """
    named = {group.name: group for group in groups}
    corresponding = corresponding_groups(named.values())
    lasted = _lasted_by_kind(ranks, excess_ns, corresponding)
    most: dict[str, tuple[int, Key]] = {}
    every: dict[str, int] = defaultdict(int)
    for key, of_groups in lasted.items():
        for group, (_, ns) in of_groups.items():
            every[group] += ns
            most[group] = max(most.get(group, (0, key)), (ns, key), key=lambda each: each[0])
    found: list[SlowerGroup] = []
    behind: _Lasted | None = None
    for group, (ns, key) in most.items():
        if not ns or every[group] < least_ns:
            continue
        medians = {name: float(np.median(each)) for name, (each, _) in lasted[key].items()}
        than = min(medians, key=lambda name: (medians[name], name))
        times = medians[group] / max(medians[than], 1.0)
        if times >= least_times:
            members = named[group].ranks or ()
            if behind is None:  # few jobs have such a group
                behind = _lasted_by_kind(ranks, excess_ns, corresponding, behind=True)
            of_link = _is_of_link(lasted, behind, group, than, least_times)
            found.append(
                SlowerGroup(
                    group=group, ranks=members, than=than, times=times, exposed_ns=every[group], of_link=of_link
                )
            )
    return sorted(found, key=lambda each: -each.exposed_ns)


_Lasted = Mapping[Key, Mapping[str, tuple[Ints, int]]]


def _is_of_link(lasted: _Lasted, behind: _Lasted, group: str, than: str, least_times: float) -> bool:
    """Return whether calls of a group take longer than those of another by their transfer, as `SlowerGroup.of_link`."""
    every, rows = _times_by_kind(lasted, group, than, 1), _times_by_kind(behind, group, than, BEHIND_CALLS)
    large = {key: times for key, times in every.items() if key[-1] >= LARGE_BYTES}
    sizes = [key[-1] for key in large]
    if not large or max(sizes) < OTHER_SIZE * min(sizes):
        return False
    in_rows = [times for key, times in rows.items() if key in large]
    same = [*large.values(), *in_rows]
    few = [times for key, times in every.items() if key[-1] <= FEW_BYTES]
    is_longer = min(same) >= least_times and max(same) <= SAME_TIMES * min(same)
    return bool(in_rows) and is_longer and max(few, default=0.0) < least_times


def _times_by_kind(lasted: _Lasted, group: str, than: str, fewest: int) -> dict[Key, float]:
    """Return how many times as long calls of one group take as those of another, in the median, of kinds of which each
    has the fewest calls."""
    found = {}
    for key, of_groups in lasted.items():
        (own, _), (other, _) = (of_groups.get(name, (np.empty(0, np.int64), 0)) for name in (group, than))
        if min(own.size, other.size) >= fewest:
            found[key] = float(np.median(own)) / max(float(np.median(other)), 1.0)
    return found


def _lasted_by_kind(
    ranks: Mapping[int, RankTimeline],
    excess_ns: Mapping[int, Ints],
    corresponding: Mapping[str, str],
    *,
    behind: bool = False,
) -> dict[Key, dict[str, tuple[Ints, int]]]:
    """Return by kind and by group how long each call lasted on the recorded ranks, and their excess in sum; `behind`:
    of calls that directly follow one of their group."""
    found: dict[Key, dict[str, tuple[Ints, int]]] = defaultdict(dict)
    for rank, excess in excess_ns.items():
        timeline, calls = ranks[rank], ranks[rank].collectives
        rows, kind, keys = _like_in_groups(timeline, corresponding)
        follows = _follow_directly(calls) if behind else np.ones(calls.op.size, np.bool_)
        for key, alike in zip(keys, split_by(kind), strict=True):
            own = rows[alike]
            own = own[follows[own]]
            if not own.size:
                continue
            group = timeline.names[int(calls.group[own[0]])]
            before, ns = found[key].get(group, (own[:0], 0))
            lasted = np.append(before, (calls.end_ns - calls.start_ns)[own])
            found[key][group] = lasted, ns + int(excess[own].sum())
    return found


def _follow_directly(calls: Collectives) -> Flags:
    """Return which calls begin right after the one before it in their group has ended."""
    follows = np.zeros(calls.op.size, np.bool_)
    timed = np.flatnonzero((calls.start_ns != NONE) & (calls.end_ns != NONE))
    order = timed[sort_order(calls.group[timed], calls.start_ns[timed])]
    gap = calls.start_ns[order[1:]] - calls.end_ns[order[:-1]]
    same = calls.group[order[1:]] == calls.group[order[:-1]]
    follows[order[1:]] = same & (gap >= 0) & (gap <= BEHIND_NS)
    return follows
