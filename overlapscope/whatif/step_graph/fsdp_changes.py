"""Changes to a recorded step of FSDP2: when parameters are gathered, whether again in backward, and how many at once.

FSDP2 gathers a module's parameters before its forward and, where they were resharded, before its backward; explicit
prefetch launches the gather of a later module as soon as compute has the parameters of its own
(torch/distributed/fsdp/_fully_shard).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from overlapscope.timeline.dimensions import BACKWARD
from overlapscope.whatif.replay.graph import Busy, Call, Graph, Item, launch_order, without
from overlapscope.whatif.replay.replay import Launch, Wait
from overlapscope.whatif.step_graph.graph_changes import GraphChange, in_16_bits, more_ranks

DEPTHS: Final = (0, 1, 2)
"""Prefetch depths to replay: modules ahead."""
IN_BOTH: Final[Mapping[str, int]] = {"forward_prefetch": 1, "backward_prefetch": 1}
"""The next module in both passes."""
GROUPS: Final = (2,)
"""Numbers of modules to gather together."""
DEFERRED: Final = 0.01
"""Least share of the step that ranks must compute between launching gathers and waiting for them, to count as
deferred."""


NO_GATHERS: Final = "no gathers of its forward were recorded, so no setting of FSDP2 can be replayed"
NO_SIZES: Final = (
    "the sizes of its gathers are not recorded, so no setting of FSDP2 can be replayed; record them with "
    "torch.profiler.profile(record_shapes=True) or `overlapscope.profile`"
)


class Gathers(msgspec.Struct, frozen=True, kw_only=True):
    """The call numbers of a rank's gathers and reduce-scatters of a step, in launch order."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    scatters: tuple[int, ...]


def gathers_of(graph: Graph, rank: int | None = None) -> Gathers:
    """Separate a rank's gathers of forward and backward: by phase, else by whether the module was gathered before.

    Without `rank` they are those of the first rank; ranks of other groups (of HSDP) gather by other calls.
    """
    order = launch_order(graph, min(graph.programmes) if rank is None else rank)
    scatters = tuple(each for each in order if graph.calls[each].op == "reduce_scatter")
    groups = {graph.calls[each].group for each in scatters}
    gathers = [each for each in order if graph.calls[each].op == "all_gather" and graph.calls[each].group in groups]
    seen: set[Any] = set()
    forward: list[int] = []
    backward: list[int] = []
    for each in gathers:
        call = graph.calls[each]
        again = call.module in seen if call.phase is None and call.module is not None else call.phase == BACKWARD
        (backward if again else forward).append(each)
        seen.add(call.module)
    return Gathers(forward=tuple(forward), backward=tuple(backward), scatters=scatters)


def fsdp_graph_changes(graph: Graph) -> tuple[list[GraphChange], list[str]]:
    """Return the changes to replay for a recording with steps like this one, and why others are left out."""
    found, why = [], []
    seen = gathers_of(graph)
    if not any(graph.calls[each].bytes for each in seen.forward):
        return [], [NO_SIZES if seen.forward else NO_GATHERS]
    if seen.backward:
        found.append(
            GraphChange(
                knobs={"reshard_after_forward": False},
                change=lambda one, _: not_resharded(one),
                memory_bytes=sum(graph.calls[each].bytes for each in seen.backward),
            )
        )
    else:
        why.append("backward gathers nothing: parameters stay gathered (reshard_after_forward=False)")
    for changes, left_out in (_prefetches(graph, seen), _groupings(graph, seen)):
        found += changes
        why += left_out
    if any(graph.calls[each].dtype == "float32" for each in seen.scatters):
        found.append(in_16_bits("reduce_dtype", lambda call: call.op == "reduce_scatter"))
    found.append(more_ranks(2))
    return found, why


def _prefetches(graph: Graph, seen: Gathers) -> tuple[list[GraphChange], list[str]]:
    if not deferred(graph, seen):
        return [], ["each gather is waited for right after its launch, as over gloo: prefetching overlaps nothing"]
    largest = _largest(graph, seen)
    found = [
        GraphChange(
            knobs={f"{phase}_prefetch": depth},
            change=lambda one, _, phase=phase, depth=depth: prefetched(one, phase, depth),  # type: ignore[misc]
            memory_bytes=(depth - 1) * largest if phase == "backward" else depth * largest,
        )
        for phase, gathers in (("forward", seen.forward), ("backward", seen.backward))
        for depth in DEPTHS
        if len(gathers) > depth + 1
    ]
    if min(len(seen.forward), len(seen.backward)) > 2:
        found.append(
            GraphChange(
                knobs=dict(IN_BOTH),
                change=lambda one, _: prefetched(prefetched(one, "forward", 1), "backward", 1),
                memory_bytes=largest,
            )
        )
    return found, []


def _groupings(graph: Graph, seen: Gathers) -> tuple[list[GraphChange], list[str]]:
    named = [graph.calls[each].module for each in (*seen.forward, *seen.backward, *seen.scatters)]
    if sum(each is not None for each in named) <= len(named) / 2:
        return [], ["the modules of its gathers are not recorded, so grouping them cannot be replayed"]
    found = [
        GraphChange(
            knobs={"modules_per_group": many},
            change=lambda one, parts, many=many: grouped(one, many, parts.latency_ns),  # type: ignore[misc]
            memory_bytes=(many - 1) * _largest(graph, seen),
        )
        for many in GROUPS
        if len(seen.scatters) > many
    ]
    return found, []


def _largest(graph: Graph, seen: Gathers) -> int:
    return max((graph.calls[each].bytes for each in seen.forward), default=0)


def deferred(graph: Graph, seen: Gathers) -> bool:
    """Return whether gathers can be waited for later than launched: always on a device, else where it was recorded."""
    if graph.width == 1:
        return True
    rank = min(graph.programmes)
    gathers = {*seen.forward, *seen.backward}
    under_way: set[int] = set()
    between = 0.0
    for each in graph.programmes[rank]:
        if isinstance(each, Launch) and each.collective in gathers:
            under_way.add(each.collective)
        elif isinstance(each, Wait):
            under_way.discard(each.collective)
        elif isinstance(each, Busy) and under_way:
            between += each.ns
    return between > DEFERRED * graph.measured_ns


def not_resharded(graph: Graph) -> Graph:
    """Return the step in which backward gathers nothing and copies nothing out of gathers."""
    backward = {each for rank in graph.programmes for each in gathers_of(graph, rank).backward}
    programmes = {rank: _without_copies(graph, items, backward) for rank, items in graph.programmes.items()}
    return without(replace(graph, programmes=programmes), backward)


def _without_copies(graph: Graph, items: Sequence[Item], gathers: set[int]) -> tuple[Item, ...]:
    """Remove the copies of gathered parameters.

    Their time is measured where the next gather was launched right after.
    """
    shares = [
        items[at + 1].ns / graph.calls[each.collective].bytes  # type: ignore[union-attr]
        for at, each in enumerate(items[:-2])
        if isinstance(each, Wait)
        and each.collective in gathers
        and isinstance(items[at + 1], Busy)
        and isinstance(after := items[at + 2], Launch)
        and after.collective in gathers
        and graph.calls[each.collective].bytes
    ]
    per_byte = sorted(shares)[len(shares) // 2] if shares else 0.0
    found: list[Item] = []
    copying = 0.0
    for each in items:
        if isinstance(each, Wait) and each.collective in gathers:
            copying = per_byte * graph.calls[each.collective].bytes
        if isinstance(each, Busy) and copying:
            less = min(copying, each.ns)
            copying = 0.0
            found.append(Busy(ns=each.ns - less, beside_ns=min(each.beside_ns, each.ns - less)))
        else:
            found.append(each)
    return tuple(found)


def prefetched(graph: Graph, phase: str, depth: int) -> Graph:
    """Return the step with the gathers of a phase launched `depth` modules ahead; 0 is where they are needed.

    One that no rank waits for in the step stays where it was launched.
    """
    waited = {each.collective for items in graph.programmes.values() for each in items if isinstance(each, Wait)}
    programmes = {}
    for rank, items in graph.programmes.items():
        seen = gathers_of(graph, rank)
        order = seen.forward if phase == "forward" else seen.backward
        moved = [each for each in order if each in waited]
        programmes[rank] = _ahead(_in_turn(items, {*seen.forward, *seen.backward}), moved, depth)
    return replace(graph, programmes=programmes)


def _in_turn(items: Sequence[Item], gathers: set[int]) -> list[Item]:
    """Sort launches and waits at one instant in the order in which FSDP2 makes them, the same on all ranks.

    A reduce-scatter after the wait for the one before, then the wait for the next gather, then the gathers ahead.
    """
    found: list[Item] = []
    instant: list[Item] = []

    def turn(each: Item) -> int:
        assert isinstance(each, Launch | Wait)
        if each.collective in gathers:
            return 4 if isinstance(each, Wait) else 3 if Wait(each.collective) in instant else 5
        return 1 if isinstance(each, Launch) else 2 if Launch(each.collective) in instant else 0

    for each in (*items, None):
        if isinstance(each, Launch | Wait):
            instant.append(each)
            continue
        found += sorted(instant, key=turn)
        instant = []
        if each is not None:
            found.append(each)
    return found


def _ahead(items: Sequence[Item], order: Sequence[int], depth: int) -> tuple[Item, ...]:
    """Launch the gathers in `order`, the recorded one, which all members share; waits may be seen in another order.

    One that this rank does not wait for, but another does, is launched where it was, or before with those after it.
    """
    place = {number: at for at, number in enumerate(order)}
    waited = {each.collective for each in items if isinstance(each, Wait)}
    found: list[Item] = []
    launched: set[int] = set()

    def launch(until: int) -> None:
        for number in order[: until + 1]:
            if number not in launched:
                launched.add(number)
                found.append(Launch(number))

    for each in items:
        if isinstance(each, Launch) and each.collective in place:
            if place[each.collective] == 0 or each.collective not in waited:
                launch(place[each.collective])
            continue
        if isinstance(each, Wait) and each.collective in place:
            launch(place[each.collective])
            found.append(each)
            if depth:
                launch(place[each.collective] + depth)
        else:
            found.append(each)
    return tuple(found)


def grouped(graph: Graph, many: int, latency_ns: float) -> Graph:
    """Return the step in which groups of `many` neighbouring modules are gathered, and reduced, as one call.

    Each call that is saved also saves its latency.
    """
    own = [gathers_of(graph, rank) for rank in sorted(graph.programmes)]
    first_of: dict[int, int] = {}
    last_of: dict[int, int] = {}
    for seen in own:
        modules = list(dict.fromkeys(graph.calls[each].module for each in seen.forward if graph.calls[each].module))
        number = {module: at // many for at, module in enumerate(modules)}
        families = (seen.forward, first_of, 0), (seen.backward, first_of, 0), (seen.scatters, last_of, -1)
        for family, table, kept in families:
            members: dict[int, list[int]] = {}
            for each in family:
                if graph.calls[each].module in number and each not in table:  # the ranks of a group share its calls
                    members.setdefault(number[graph.calls[each].module], []).append(each)
            for group in members.values():
                table.update(dict.fromkeys(group, group[kept]))
    calls = _joined(graph.calls, {**first_of, **last_of}, latency_ns)
    dropped = [each for each, kept in {**first_of, **last_of}.items() if each != kept]
    gathers = {each for seen in own for each in (*seen.forward, *seen.backward)}
    programmes = {
        rank: _with_their_group(_in_turn(items, gathers), first_of) for rank, items in graph.programmes.items()
    }
    return without(replace(graph, calls=calls, programmes=programmes), dropped)


def _joined(calls: Sequence[Call], kept: Mapping[int, int], latency_ns: float) -> tuple[Call, ...]:
    """Return the calls, where each kept one moves the data of all that it is kept for."""
    members: dict[int, list[int]] = {}
    for each, one in kept.items():
        members.setdefault(one, []).append(each)
    found = list(calls)
    for one, group in members.items():
        saved = sum(min(latency_ns, calls[each].own_ns / 2) for each in group if each != one)
        found[one] = replace(
            calls[one],
            bytes=sum(calls[each].bytes for each in group),
            own_ns=sum(calls[each].own_ns for each in group) - saved,
        )
    return tuple(found)


def _with_their_group(items: Sequence[Item], kept: Mapping[int, int]) -> tuple[Item, ...]:
    """Move gathers launched ahead from after the wait for a module's parameters to after the wait for its group's."""
    moved: dict[int, list[int]] = {}
    gone = set()
    for at, each in enumerate(items):
        if isinstance(each, Wait) and kept.get(each.collective, each.collective) != each.collective:
            launch = _gathered_ahead(items, at, kept)
            if launch is not None:
                gone.add(launch)
                moved.setdefault(kept[each.collective], []).append(launch)
    found: list[Item] = []
    for at, each in enumerate(items):
        if at not in gone:
            found.append(each)
        if isinstance(each, Wait):
            found += [items[launch] for launch in moved.get(each.collective, ())]
    return tuple(found)


def _gathered_ahead(items: Sequence[Item], wait: int, gathers: Mapping[int, int]) -> int | None:
    """Return the index of the gather launched right after a wait and used later; None where there is none."""
    before = after = 0.0
    launch = None
    for at in range(wait + 1, len(items)):
        each = items[at]
        if isinstance(each, Busy):
            before, after = (before + each.ns, after) if launch is None else (before, after + each.ns)
        elif isinstance(each, Launch) and each.collective in gathers and launch is None:
            launch = at
        elif isinstance(each, Wait) or (isinstance(each, Launch) and (launch is not None or before)):
            break
    return launch if launch is not None and after > before else None
