"""Find the innermost host range at a moment on a thread, and the context of a collective's launch.

The context is the phase of the step, the module, and the parallel dimension, from ranges that torch's autograd engine,
FSDP, DDP, the optimizers, Lightning or the user set. It is only evidence: a launch outside all of them has no phase.
"""

import re
from typing import Final

import msgspec
import numpy as np

from overlapscope.ingest.build.trace_columns import Mask, Ranges, matching
from overlapscope.timeline.columns import NONE, Annotations, Codes, HostSpans, Ints
from overlapscope.timeline.dimensions import BACKWARD, DATA, FORWARD, OPTIMIZER
from overlapscope.timeline.names import NameTable, rows_named
from overlapscope.timeline.rows import sort_order, unique, values_in

NOWHERE = -1
_AUTOGRAD: Final = re.compile(r"^autograd::engine::evaluate_function\b")
_PHASES: Final = {
    FORWARD: re.compile(
        r"^(?:FSDP::(?:root_)?(?:pre_forward|post_forward)|FSDP::forward_prefetch|DistributedDataParallel\.forward$"
        r"|FullyShardedDataParallel\.forward$|nn\.Module: "
        r"|\[pl\].*\.training_step$|(?:overlapscope\.|## ?)?forward(?: ?##)?$)"
    ),
    BACKWARD: re.compile(
        r"^(?:autograd::engine::evaluate_function\b|FSDP::(?:root_)?(?:pre_backward|post_backward)"
        r"|FSDP::backward_prefetch|\[pl\].*\.backward$|(?:overlapscope\.|## ?)?backward(?: ?##)?$)"
    ),
    OPTIMIZER: re.compile(
        r"^(?:Optimizer\.step#|\[pl\].*\.optimizer_step$|(?:overlapscope\.|## ?)?optimizer(?:_step)?(?: ?##)?$)"
    ),
}
"""Ranges of each phase. Recomputing activations is a forward inside a backward: it counts as backward."""
_SHARDING: Final = re.compile(r"^FSDP::")
_MODULE: Final = re.compile(r"^FSDP::\w+ (?:\((?P<of>[^()]+)\)|for (?P<next>.+))$|^nn\.Module: (?P<module>\S.*)$")
"""FSDP writes its module's name in brackets, and no name for the root; a prefetch names the module it is for."""
_ACCUMULATES: Final = re.compile(r"^autograd::engine::evaluate_function: (?:torch::autograd::)?AccumulateGrad\b")
"""Hooks on a gradient run here: DDP's, FSDP's and similar ones."""
_SUMS: Final = ("all_reduce", "reduce_scatter")
_DDP_FORWARD: Final = re.compile(r"^DistributedDataParallel\.forward$")
DDP_BUFFERS: Final = "DDP buffers"
"""Named as the module of broadcasts inside DDP's forward, with which it keeps buffers alike (`broadcast_buffers`)."""


def nested_order(lane: Ints, start_ns: Ints, end_ns: Ints) -> Ints:
    """Return the order by (lane, start, longest first); of the equal ones, their own."""
    order = sort_order(lane, start_ns)  # nearly the order of the file; ends are not
    of_lane, start = lane[order], start_ns[order]
    same = (of_lane[1:] == of_lane[:-1]) & (start[1:] == start[:-1])
    tied = np.zeros(order.size, np.bool_)
    tied[1:] |= same
    tied[:-1] |= same
    rows = order[tied]
    if rows.size:
        order[tied] = rows[sort_order(lane[rows], start_ns[rows], -end_ns[rows])]
    return order


def innermost_range(
    ranges: Ranges | Annotations | HostSpans, at_lanes: Ints, at: Ints, chosen: Mask | None = None
) -> Ints:
    """Return, for each moment `at` on lane `at_lanes`, the row of the innermost range [start, end) around it.

    Innermost is the range that started last; of those that started together, the shortest. Ranges need not be
    properly nested. The mask `chosen` limits the ranges. NOWHERE where there is none, or the moment or lane is NONE.
    """
    lanes, starts, ends = ranges.lane, ranges.start_ns, ranges.end_ns
    found = np.full(at.size, NOWHERE, np.int64)
    rows = np.arange(starts.size) if chosen is None else np.flatnonzero(chosen)
    if rows.size == 0 or at.size == 0:
        return found
    order = rows[nested_order(lanes[rows], starts[rows], ends[rows])]
    sorted_lanes = lanes[order]
    for lane in values_in(at_lanes[at_lanes != NONE]):
        first, last = np.searchsorted(sorted_lanes, [lane, lane + 1])
        if first == last:
            continue
        on_lane = order[first:last]
        moments = np.flatnonzero(at_lanes == lane)
        begun = np.searchsorted(starts[on_lane], at[moments], side="right") - 1
        position = _last_reaching(ends[on_lane], begun, at[moments])
        hit = position >= 0
        found[moments[hit]] = on_lane[position[hit]]
    return found


def _last_reaching(ends: Ints, upto: Ints, beyond: Ints) -> Ints:
    """Return the last position <= upto whose end is after `beyond`; negative where there is none.

    A few steps back find most; the others are searched in a tree of block maxima.
    """
    position = upto.copy()
    for _ in range(4):
        missed = (position >= 0) & (ends[np.maximum(position, 0)] <= beyond)
        if not missed.any():
            return position
        position[missed] -= 1
    rest = np.flatnonzero((position >= 0) & (ends[np.maximum(position, 0)] <= beyond))
    if rest.size:
        position[rest] = _search_tree(ends, position[rest], beyond[rest])
    return position


def _search_tree(ends: Ints, upto: Ints, beyond: Ints) -> Ints:
    """Return the result of `_last_reaching` in O(log n) vector steps."""
    lowest = np.iinfo(np.int64).min
    levels = [ends]
    while levels[-1].size > 1:
        below = levels[-1]
        if below.size % 2:
            below = np.append(below, lowest)
        levels.append(np.maximum(below[0::2], below[1::2]))
    # Climb: blocks up to and including `node` are still to be searched. An odd node completes its parent, so the parent
    # is searched instead; an even node is tested itself, and if it fails, the parents before it remain.
    node = upto.copy()
    found_at = np.full(upto.size, -1, np.int64)
    for depth, maxima in enumerate(levels):
        searching = (found_at < 0) & (node >= 0)
        even = searching & (node % 2 == 0)
        hit = even.copy()
        hit[even] = maxima[node[even]] > beyond[even]
        found_at[hit] = depth
        node = np.where(hit | ~searching, node, np.where(even, node // 2 - 1, node // 2))
    node[found_at < 0] = NOWHERE
    # Descend to the rightmost reaching leaf of the found block.
    for depth in range(len(levels) - 1, 0, -1):
        down = found_at == depth
        if not down.any():
            continue
        children = levels[depth - 1]
        right = np.minimum(node[down] * 2 + 1, children.size - 1)
        takes_right = (node[down] * 2 + 1 < children.size) & (children[right] > beyond[down])
        node[down] = np.where(takes_right, node[down] * 2 + 1, node[down] * 2)
        found_at[down] = depth - 1
    return node


class LaunchContext(msgspec.Struct, frozen=True, kw_only=True):
    """Name codes, one row for each launch; -1 where the ranges of its thread do not state it."""

    phase: Codes
    module: Codes
    dimension: Codes
    """`data` for collectives that shard parameters or sum gradients."""


def launch_context(host: Ranges, names: NameTable, ops: Codes, lane: Ints, at_ns: Ints) -> LaunchContext:
    """Return the context of each launch (`lane` and `at_ns`, NONE where unknown) of operations `ops`.

    Names that it uses are added to `names`.
    """
    spelled = names.to_list()

    def around(pattern: re.Pattern[str]) -> Ints:
        return innermost_range(host, lane, at_ns, rows_named(host.name, spelled, pattern.match))

    forward, backward, optimizer = (around(pattern) for pattern in _PHASES.values())
    begun = np.append(host.start_ns, NONE)
    in_backward = (backward != NOWHERE) & (begun[backward] >= begun[optimizer])
    in_backward |= (at_ns != NONE) & (optimizer == NOWHERE) & np.isin(lane, _autograd_lanes(host, spelled))
    in_optimizer = ~in_backward & (optimizer != NOWHERE) & (begun[optimizer] >= begun[forward])
    in_forward = ~in_backward & ~in_optimizer & (forward != NOWHERE)
    phase = np.full(lane.size, -1, np.int32)
    for name, inside in ((FORWARD, in_forward), (BACKWARD, in_backward), (OPTIMIZER, in_optimizer)):
        if inside.any():
            phase[inside] = names.code(name)
    sharding = around(_SHARDING)
    sums = np.isin(ops, [code for code, name in enumerate(spelled) if name in _SUMS])
    buffers = np.isin(ops, [code for code, name in enumerate(spelled) if name == "broadcast"])
    buffers &= around(_DDP_FORWARD) != NOWHERE
    is_data = (sharding != NOWHERE) | (sums & (around(_ACCUMULATES) != NOWHERE)) | buffers
    module = _modules(host, names, spelled, np.where(sharding == NOWHERE, around(_MODULE), sharding))
    if buffers.any():
        module[buffers] = names.code(DDP_BUFFERS)
    return LaunchContext(
        phase=phase,
        module=module,
        dimension=np.where(is_data, names.code(DATA), -1).astype(np.int32)
        if is_data.any()
        else np.full_like(phase, -1),
    )


def _autograd_lanes(host: Ranges, spelled: list[str]) -> Ints:
    """Return the threads that run nothing but the backward pass: autograd's own, one a device."""
    backward = unique(host.lane[matching(_AUTOGRAD, spelled)[host.name]])
    others = matching(_PHASES[FORWARD], spelled) | matching(_PHASES[OPTIMIZER], spelled)
    others |= np.array([name.startswith(("ProfilerStep#", "overlapscope.step#")) for name in spelled], np.bool_)
    return backward[~np.isin(backward, host.lane[others[host.name]])]


def _modules(host: Ranges, names: NameTable, spelled: list[str], rows: Ints) -> Codes:
    found = np.full(rows.size, -1, np.int32)
    of_row = np.append(host.name, np.int32(-1))[rows]
    for code in unique(of_row[of_row >= 0]).tolist():
        match = _MODULE.match(spelled[code])
        if match:
            found[of_row == code] = names.code(next(each for each in match.groups() if each))
    return found
