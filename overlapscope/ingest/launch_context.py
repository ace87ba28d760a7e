"""What stood around a collective's launch on its thread: the phase of the step, the module, whose gradient it was.

Evidence, and no more than that: ranges that torch's autograd engine, FSDP, DDP, the optimizers, Lightning or the user
set. What is launched outside all of them has no phase.
"""

import re
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from overlapscope.ingest.innermost import NOWHERE, innermost
from overlapscope.ingest.ranges import Ranges
from overlapscope.timeline.columns import NONE, Codes, Ints
from overlapscope.timeline.dimensions import BACKWARD, DATA, FORWARD, OPTIMIZER
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.order import unique

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
"""FSDP writes its module's name in brackets, the root without any; a prefetch says whom it is for."""
_ACCUMULATES: Final = re.compile(r"^autograd::engine::evaluate_function: (?:torch::autograd::)?AccumulateGrad\b")
"""Hooks on a gradient run here: DDP's and FSDP's, and those written after their example."""
_SUMS: Final = ("all_reduce", "reduce_scatter")
Mask = npt.NDArray[np.bool_]


class LaunchContext(msgspec.Struct, frozen=True, kw_only=True):
    """One row a launch; -1 where its thread's ranges do not tell."""

    phase: Codes
    module: Codes
    dimension: Codes
    """`data` for what shards parameters or sums gradients."""


def launch_context(host: Ranges, names: NameTable, ops: Codes, lane: Ints, at_ns: Ints) -> LaunchContext:
    """Look around each launch (thread and time, NONE where unknown) of an operation; adds the names it gives."""
    spelled = names.to_list()
    known = (lane != NONE) & (at_ns != NONE)

    def around(pattern: re.Pattern[str]) -> Ints:
        found = np.full(lane.size, NOWHERE, np.int64)
        chosen = _named(pattern, spelled)[host.name]
        found[known] = innermost(host.lane, host.start_ns, host.end_ns, lane[known], at_ns[known], chosen)
        return found

    forward, backward, optimizer = (around(pattern) for pattern in _PHASES.values())
    begun = np.append(host.start_ns, NONE)
    in_backward = (backward != NOWHERE) & (begun[backward] >= begun[optimizer])
    in_backward |= known & (optimizer == NOWHERE) & np.isin(lane, _autograd_lanes(host, spelled))
    in_optimizer = ~in_backward & (optimizer != NOWHERE) & (begun[optimizer] >= begun[forward])
    in_forward = ~in_backward & ~in_optimizer & (forward != NOWHERE)
    phase = np.full(lane.size, -1, np.int32)
    for name, inside in ((FORWARD, in_forward), (BACKWARD, in_backward), (OPTIMIZER, in_optimizer)):
        if inside.any():
            phase[inside] = names.code(name)
    sharding = around(_SHARDING)
    sums = np.isin(ops, [code for code, name in enumerate(spelled) if name in _SUMS])
    is_data = (sharding != NOWHERE) | (sums & (around(_ACCUMULATES) != NOWHERE))
    return LaunchContext(
        phase=phase,
        module=_modules(host, names, spelled, np.where(sharding == NOWHERE, around(_MODULE), sharding)),
        dimension=np.where(is_data, names.code(DATA), -1).astype(np.int32)
        if is_data.any()
        else np.full_like(phase, -1),
    )


def _named(pattern: re.Pattern[str], spelled: list[str]) -> Mask:
    return np.array([pattern.match(name) is not None for name in spelled], np.bool_)


def _autograd_lanes(host: Ranges, spelled: list[str]) -> Ints:
    """Give the threads that run nothing but the backward pass: autograd's own, one a device."""
    backward = unique(host.lane[_named(_AUTOGRAD, spelled)[host.name]])
    others = _named(_PHASES[FORWARD], spelled) | _named(_PHASES[OPTIMIZER], spelled)
    steps = np.array([name.startswith(("ProfilerStep#", "overlapscope.step#")) for name in spelled], np.bool_)
    return backward[~np.isin(backward, host.lane[(others | steps)[host.name]])]


def _modules(host: Ranges, names: NameTable, spelled: list[str], rows: Ints) -> Codes:
    found = np.full(rows.size, -1, np.int32)
    of_row = np.append(host.name, np.int32(-1))[rows]
    for code in unique(of_row[of_row >= 0]).tolist():
        told = _MODULE.match(spelled[code])
        if told:
            found[of_row == code] = names.code(next(each for each in told.groups() if each))
    return found
