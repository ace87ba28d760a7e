"""Find the dimension of parallelism of each process group: data, tensor, pipeline, expert or context.

It is read from the group's description or name as frameworks write it: torch's device mesh (`mesh_tp`,
`mesh_dp_shard_cp`), Megatron (`TENSOR_MODEL_PARALLEL_GROUP`), DeepSpeed (`mesh_data_parallel`). Else it follows from
the shape of the job's groups, where only one interpretation is possible. Else it is unknown.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.operations import POINT_TO_POINT
from overlapscope.timeline.optimizer_marks import optimizer_marks
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import Group, RankTimeline

DATA, TENSOR, PIPELINE, EXPERT, CONTEXT = "data", "tensor", "pipeline", "expert", "context"
FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
"""Phases of a step."""
DDP_FORWARD: Final = "DistributedDataParallel.forward"
"""torch's annotation around DDP's forward (1.10 and later)."""
_SHORT: Final = {
    "dp": DATA, "ddp": DATA, "fsdp": DATA, "hsdp": DATA, "edp": DATA, "efsdp": DATA, "shard": DATA, "replicate": DATA,
    "tp": TENSOR, "etp": TENSOR, "pp": PIPELINE, "ep": EXPERT, "cp": CONTEXT, "sp": CONTEXT, "ulysses": CONTEXT,
}  # fmt: skip
"""Words that name a dimension on their own; a leading e means experts, whose parameters have their own groups."""
_LONG: Final = {
    "data": DATA, "tensor": TENSOR, "pipeline": PIPELINE, "pipe": PIPELINE, "expert": EXPERT, "context": CONTEXT,
    "sequence": CONTEXT,
}  # fmt: skip
"""Words that name a dimension only in the name of a mesh, together with `parallel`, or where nothing else is said."""
FIRST_STAGE: Final = re.compile(r"ss+(?:rs)*rr+|s+\?+r+")
"""What the first stage of a pipeline sends (s), receives (r) or does both of (?) in a step, in order of time ..."""
STAGE: Final = re.compile(r"r[rs?]*s")
"""... and any later one."""


def dimension_of(text: str | None) -> str | None:
    """Return the dimension that a group's description or name states; None if it states none or several."""
    words = re.findall(r"[a-z]+", (text or "").lower())
    spelled = _SHORT | _LONG if "mesh" in words[:1] or "parallel" in words or len(words) == 1 else _SHORT
    found = {spelled[word] for word in words if word in spelled}
    if len(found) == 1:
        return found.pop()
    if found in ({DATA, CONTEXT}, {DATA, EXPERT}, {DATA, CONTEXT, EXPERT}):
        return DATA  # gradients are summed over both, or those of the experts are
    if found == {EXPERT, TENSOR} and "expert" in words:
        return EXPERT if "and" in words else TENSOR  # EXPERT_TENSOR_AND_MODEL..., EXPERT_TENSOR_PARALLEL_GROUP
    return None


def fill_group_columns(
    ranks: Mapping[int, RankTimeline], groups: tuple[Group, ...], world_size: int | None
) -> dict[int, RankTimeline]:
    """Return the timelines with group sizes and dimensions that the groups state and a rank's own source does not.

    In a job of two ranks every group has two.
    """
    sizes = {group.name: group.size for group in groups if group.size is not None}
    other = 2 if world_size == 2 else NONE
    return with_dimensions({rank: _with_sizes(each, sizes, other) for rank, each in ranks.items()}, groups, world_size)


def _with_sizes(timeline: RankTimeline, sizes: Mapping[str, int], other: int) -> RankTimeline:
    """Fill in the group sizes that a rank's source does not state, so that a group's calls are alike on all ranks."""
    calls = timeline.collectives
    of_name = np.array([sizes.get(name, other) for name in timeline.names] + [other], np.int64)
    filled = np.where(calls.group_size == NONE, of_name[calls.group], calls.group_size)
    return replace(timeline, collectives=replace(calls, group_size=filled))


def with_dimensions(
    ranks: Mapping[int, RankTimeline], groups: tuple[Group, ...], world_size: int | None
) -> dict[int, RankTimeline]:
    """Return the timelines with the dimension of each collective; names of groups take precedence over shapes."""
    named = {group.name: stated for group in groups if (stated := dimension_of(group.description))}
    for timeline in ranks.values():
        codes = unique(timeline.collectives.group)
        for name in [timeline.names[code] for code in codes[codes >= 0].tolist()]:
            stated = dimension_of(name)
            if stated and name not in named:
                named[name] = stated
    if not named:
        named = _by_shape(ranks, groups, world_size)
    stages = _of_described_pipelines(groups)
    named |= {
        group.name: PIPELINE
        for group in groups
        if group.name not in named
        if _is_chain(ranks, group) or (group.ranks in stages and _only_messages(ranks, group.name))
    }
    return {rank: _with_named(timeline, named) for rank, timeline in ranks.items()}


def _with_named(timeline: RankTimeline, named: Mapping[str, str]) -> RankTimeline:
    calls, names = timeline.collectives, timeline.names
    used = unique(calls.group)
    of_code = {code: named[names[code]] for code in used[used >= 0].tolist() if names[code] in named}
    if not of_code:
        return timeline
    new = tuple(sorted(set(of_code.values()) - set(names)))
    names = (*names, *new)
    dimension = calls.dimension.copy()
    for code, name in of_code.items():
        dimension[calls.group == code] = names.index(name)
    return timeline.with_calls(names, replace(calls, dimension=dimension))


def _by_shape(ranks: Mapping[int, RankTimeline], groups: tuple[Group, ...], world_size: int | None) -> dict[str, str]:
    """Return the dimension by group (TP or DP) where the groups in use are the rows and columns of one grid of ranks.

    Rows of neighbouring ranks that all-reduce in forward exchange activations (parameters are not summed there),
    so they are TP. The columns must not communicate in forward at all. With any other group in use: nothing.
    """
    used, forward = _in_use(ranks)
    families: dict[tuple[int, int], list[Group]] = {}
    for group in groups:
        if group.name in used and group.ranks is not None and len(group.ranks) not in (1, world_size):
            strides = set(np.diff(group.ranks).tolist())
            families.setdefault((len(group.ranks), strides.pop() if len(strides) == 1 else 0), []).append(group)
    if len(families) != 2 or world_size is None or not used <= {group.name for group in groups if group.ranks}:
        return {}
    (rows, next_to), (columns, apart) = sorted(families, key=lambda each: each[1])
    if next_to != 1 or apart != rows or rows * columns != world_size:
        return {}
    tensor, data = families[rows, next_to], families[columns, apart]
    if not any("all_reduce" in forward.get(group.name, ()) for group in tensor):
        return {}
    if any(forward.get(group.name) for group in data):
        return {}
    return {group.name: TENSOR for group in tensor} | {group.name: DATA for group in data}


def _of_described_pipelines(groups: Sequence[Group]) -> set[tuple[int, ...]]:
    """Return the members of groups that are described as pipelines, where no group of another description has the same:
    torch makes more than one group of the same ranks, and calls may name one that is not described."""
    said: dict[tuple[int, ...], set[str | None]] = {}
    for group in groups:
        if group.ranks is not None and (dimension := dimension_of(group.description)):
            said.setdefault(group.ranks, set()).add(dimension)
    return {ranks for ranks, dimensions in said.items() if dimensions == {PIPELINE}}


def _only_messages(ranks: Mapping[int, RankTimeline], group: str) -> bool:
    """Return whether all calls of a group are sends and receives."""
    for timeline in ranks.values():
        calls, names = timeline.collectives, timeline.names
        if group in names:
            used = unique(calls.op[calls.group == names.index(group)])
            if not all(names[code] in POINT_TO_POINT for code in used[used >= 0].tolist()):
                return False
    return True


def _is_chain(ranks: Mapping[int, RankTimeline], group: Group) -> bool:
    """Return whether the recorded members of a group only send to and receive from their neighbours in it, but not
    around: a ring, as of context parallelism, closes; nor in pairs, as ranks that average do. Of two ranks, or without
    peers, the order of messages says it."""
    members = np.array(group.ranks or (), np.int64)
    if members.size == 2:
        return all(
            each in ranks and _is_stage_of_two(ranks[each], group, at) for at, each in enumerate(members.tolist())
        )
    if members.size < 3:
        return False
    if all(each in ranks and _names_no_peer(ranks[each], group) for each in members.tolist()):
        return _is_chain_by_order([ranks[each] for each in members.tolist()], group)
    found = False
    for rank in members[np.isin(members, list(ranks))].tolist():
        calls, names = ranks[rank].collectives, ranks[rank].names
        if group.name not in names:
            continue
        rows = calls.group == names.index(group.name)
        place = int(np.flatnonzero(members == rank)[0])
        neighbours = members[[at for at in (place - 1, place + 1) if 0 <= at < members.size]]
        if any(names[code] not in POINT_TO_POINT for code in unique(calls.op[rows]).tolist() if code >= 0):
            return False
        peers = calls.peer[rows]
        if (peers != NONE).any() and "send_recv" in names:
            peers = peers[(peers != NONE) | (calls.op[rows] != names.index("send_recv"))]  # batches name no peer
        every = peers.size == int(rows.sum()) > 0  # then a stage between others has messages with both
        if not np.isin(peers, neighbours).all() or (every and not np.isin(neighbours, peers).all()):
            return False
        found |= bool(rows.any())
    return found


def _is_chain_by_order(members: Sequence[RankTimeline], group: Group) -> bool:
    """Return whether ranks that only send and receive, where no peer was recorded, do so as the stages of a pipeline in
    their order: the first and the last like two stages, those between like the last, and twice as often, as both have
    one neighbour. In a ring all do as much, and where neighbours exchange at once all begin alike.
    """
    last = len(members) - 1
    if not all(_is_like_a_stage(each, group, STAGE if at else FIRST_STAGE) for at, each in enumerate(members)):
        return False
    said = [[len(each) for each in _messages(member, group).values()] for member in members]
    ends, between = said[0], said[1:last]
    return said[last] == ends and all(each == [2 * count for count in ends] for each in between)


def _is_stage_of_two(timeline: RankTimeline, group: Group, place: int) -> bool:
    """Return whether a rank only sends and receives in a group of two, as a stage of a pipeline: in each step the first
    one sends two activations or more before it receives a gradient, and receives the last two or more at the end; the
    second one begins with a receive and ends with a send. Neighbours in a ring do as much of both all the time.
    """
    return _is_like_a_stage(timeline, group, STAGE if place else FIRST_STAGE)


def _is_like_a_stage(timeline: RankTimeline, group: Group, shape: re.Pattern[str]) -> bool:
    found = _messages(timeline, group).values()
    return bool(found) and all(shape.fullmatch(each) for each in found)


def _names_no_peer(timeline: RankTimeline, group: Group) -> bool:
    """Return whether a rank called in a group, and none of its calls says who the peer is."""
    calls, names = timeline.collectives, timeline.names
    rows = calls.group == names.index(group.name) if group.name in names else np.zeros(calls.group.size, np.bool_)
    return bool(rows.any() and (calls.peer[rows] == NONE).all())


def _messages(timeline: RankTimeline, group: Group) -> dict[int, str]:
    """Return by step what a rank did in a group, in order of time: s for a send, r for a receive, ? for all else. Where
    no call has a step, it is what was launched from one optimizer to the next."""
    calls, names = timeline.collectives, timeline.names
    if group.name not in names:
        return {}
    step = calls.step if (calls.step != NONE).any() else _optimizers_before(timeline)
    rows = np.flatnonzero((calls.group == names.index(group.name)) & (step != NONE))
    rows = rows[np.argsort(calls.start_ns[rows], kind="stable")]
    said = ["s" if names[code] == "send" else "r" if names[code] == "recv" else "?" for code in calls.op[rows].tolist()]
    order: dict[int, list[str]] = {}
    for number, each in zip(step[rows].tolist(), said, strict=True):
        order.setdefault(number, []).append(each)
    return {number: "".join(each) for number, each in order.items()}


def _optimizers_before(timeline: RankTimeline) -> Ints:
    """Return how many optimizers began before each call was launched; NONE before the first and after the last one."""
    calls, notes = timeline.collectives, timeline.annotations
    begun = notes.start_ns[optimizer_marks(timeline)]
    before = np.searchsorted(begun, np.where(calls.launch_ns == NONE, calls.start_ns, calls.launch_ns))
    return np.where((before > 0) & (before < begun.size), before, NONE)


def _in_use(ranks: Mapping[int, RankTimeline]) -> tuple[set[str], dict[str, set[str]]]:
    """Return the groups that calls name, and the operations of each in the forward pass."""
    used: set[str] = set()
    forward: dict[str, set[str]] = {}
    for timeline in ranks.values():
        calls, names = timeline.collectives, timeline.names
        used |= {names[code] for code in unique(calls.group).tolist() if code >= 0}
        if FORWARD in names:
            rows = np.flatnonzero((calls.phase == names.index(FORWARD)) & (calls.group >= 0))
            for group, op in set(zip(calls.group[rows].tolist(), calls.op[rows].tolist(), strict=True)):
                forward.setdefault(names[group], set()).add(names[op])
    return used, forward
