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
from overlapscope.timeline.rows import MOST, factorize_rows, largest_by, split_by
from overlapscope.timeline.run import Group, RankTimeline

UNEVEN: Final = "all_to_all"
"""Members of such a call may send different sizes: a larger one of this rank may have been the smaller one in all."""
DEVICES_OF_NODE: Final = (2, 4, 8, 16, 72)
"""How many devices share a bridge, a node or a switch in usual clusters: groups are placed alike if they lie alike on
nodes of each of these sizes, as traces of a few ranks do not say which one is theirs."""

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
    ranks: Mapping[int, RankTimeline], excess_ns: Mapping[int, Ints], groups: Iterable[Group], least_times: float
) -> list[SlowerGroup]:
    """Return the groups whose calls of the kind with most excess take `least_times` as long as those of a corresponding
    group, or longer, in the median; the one with most excess first.

    `excess_ns` is the exposed time of each call of a rank beyond what it needs.
    """
    named = {group.name: group for group in groups}
    lasted = _lasted_by_kind(ranks, excess_ns, corresponding_groups(named.values()))
    most: dict[str, tuple[int, Key]] = {}
    every: dict[str, int] = defaultdict(int)
    for key, of_groups in lasted.items():
        for group, (_, ns) in of_groups.items():
            every[group] += ns
            most[group] = max(most.get(group, (0, key)), (ns, key), key=lambda each: each[0])
    found = []
    for group, (ns, key) in most.items():
        medians = {name: float(np.median(each)) for name, (each, _) in lasted[key].items()}
        than = min(medians, key=lambda name: (medians[name], name))
        times = medians[group] / max(medians[than], 1.0)
        if ns and times >= least_times:
            members = named[group].ranks or ()
            found.append(SlowerGroup(group=group, ranks=members, than=than, times=times, exposed_ns=every[group]))
    return sorted(found, key=lambda each: -each.exposed_ns)


def _lasted_by_kind(
    ranks: Mapping[int, RankTimeline], excess_ns: Mapping[int, Ints], corresponding: Mapping[str, str]
) -> dict[Key, dict[str, tuple[Ints, int]]]:
    """Return by kind and by group how long each call lasted on the recorded ranks, and their excess in sum."""
    found: dict[Key, dict[str, tuple[Ints, int]]] = defaultdict(dict)
    for rank, excess in excess_ns.items():
        timeline, calls = ranks[rank], ranks[rank].collectives
        rows, kind, keys = _like_in_groups(timeline, corresponding)
        for key, alike in zip(keys, split_by(kind), strict=True):
            own = rows[alike]
            group = timeline.names[int(calls.group[own[0]])]
            before, ns = found[key].get(group, (own[:0], 0))
            lasted = np.append(before, (calls.end_ns - calls.start_ns)[own])
            found[key][group] = lasted, ns + int(excess[own].sum())
    return found
