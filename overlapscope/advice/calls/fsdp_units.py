"""Rule: FSDP shards the whole model as one unit, so that gathers and the reduction of a step overlap none of it."""

from typing import Final

import msgspec
import numpy as np

from overlapscope.advice.calls.backward_prefetch import OF_FSDP
from overlapscope.advice.calls.savings import kept_by_hosts, saved_by_overlap_ns
from overlapscope.advice.job_kind import uses_fsdp1
from overlapscope.advice.rule_input import RuleInput, ms, recommended
from overlapscope.analysis.result import Recommendation
from overlapscope.display import size_text
from overlapscope.timeline.columns import COMPUTE, NONE, Ints
from overlapscope.timeline.dimensions import DATA
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import sort_order
from overlapscope.timeline.run import RankTimeline
from overlapscope.whatif.parallelism import shows_fsdp

UNIT_BYTES: Final = 64 << 20
"""A choice: smaller models gain little from calls that are smaller still."""
NEARLY_ALL: Final = 0.9
"""Least share of the bytes that a step gathers, and of those that it reduces, in the calls of one unit. A choice."""
MOST_GATHERS: Final = 2
"""Of a unit in a step: in forward, and again in backward where it was resharded."""
ALIKE: Final = 0.02
"""Gathers and reductions of one unit may differ by this share, as for padding ..."""
TYPES: Final = (0.5, 1.0, 2.0)
"""... and in type: reduced bytes to gathered ones, in 16 and 32 bits."""
KERNELS: Final = 50
"""Least kernels of compute in a step of a model that has blocks. A choice: a block in forward and backward has more
than ten."""
OTHERS: Final = frozenset({"megatron", "deepspeed"})
"""Frameworks that divide a model in other ways."""
FOR_FSDP1: Final = (
    "FullyShardedDataParallel(model, auto_wrap_policy=functools.partial(\n"
    "    transformer_auto_wrap_policy, transformer_layer_cls={Block}))"
)
FOR_FSDP2: Final = "for block in model.blocks:\n    fully_shard(block)\nfully_shard(model)  # what is left, at the end"


class _Unit(msgspec.Struct, frozen=True, kw_only=True):
    """The one unit of a rank, alike in each of its steps."""

    gathers: int
    """In a step."""
    gathered_bytes: int
    sizes: frozenset[int]
    """Bytes of its calls: a reduction may be of another type."""


def fsdp_units(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where, on devices, each step gathers one unit once or twice and then reduces it once
    (once only where FSDP is seen by name), these calls are nearly all that is gathered and reduced, and enough of them
    is exposed."""
    if given.job.serves or not given.run_has_device or given.per != "step" or OTHERS & {*given.job.frameworks}:
        return None
    found = [_unit(given, timeline) for timeline, _ in given.some_at_hand()]
    units = [each for each in found if each is not None]
    if not units or len(units) < len(found):
        return None
    sizes = frozenset().union(*(each.sizes for each in units))
    rows = [
        row
        for row in given.analysis.collectives
        if row.op in OF_FSDP and row.dimension in (None, DATA) and row.bytes in sizes
    ]
    exposed = min(given.exposed_ns(rows), given.figures.exposed_comm_ns or 0)
    at_most = given.besides_ns(min(exposed, saved_by_overlap_ns(given, rows)))
    if not given.is_worth(at_most):
        return None
    unit_bytes = max(each.gathered_bytes for each in units)
    times = {1: "once", 2: "twice"}[max(each.gathers for each in units)]
    return recommended(
        given,
        id="fsdp_units",
        title=f"Shard each block on its own: the whole model is one unit of {size_text(unit_bytes)}, gathered {times} "
        f"and reduced once a step, beside which none of it can compute; of these calls {ms(exposed)} of a "
        f"{ms(given.step_ns)} step are exposed",
        at_most_ns=at_most,
        apply={"torch": FOR_FSDP1} if uses_fsdp1(given.run) else {"fsdp2": FOR_FSDP2, "torch": FOR_FSDP1},
        evidence={"exposed_ns": round(exposed), "unit_bytes": unit_bytes},
        measured=["sizes, and the time of these calls beside which nothing is computed"],
        assumed=[
            *([] if given.is_whole else ["that none of it is waiting for ranks that were not recorded"]),
            "that all of it can be overlapped, as far as a step has time without communication: the gain is an upper "
            "bound, as the first block is still waited for",
            *kept_by_hosts(given, at_most),
        ],
    )


def _unit(given: RuleInput, timeline: RankTimeline) -> _Unit | None:
    """Return the one unit of a rank; None where it has none, or its steps differ."""
    calls, names, steps = timeline.collectives, timeline.names, given.numbers[timeline.rank]
    of_data = (calls.dimension < 0) | rows_named(calls.dimension, names, DATA.__eq__)
    known = (calls.bytes != NONE) & (calls.start_ns != NONE) & np.isin(calls.step, steps)
    rows = np.flatnonzero(of_data & known & rows_named(calls.op, names, OF_FSDP.__contains__))
    rows = rows[sort_order(calls.start_ns[rows])]
    kernels = np.count_nonzero((timeline.spans.kind == COMPUTE) & np.isin(timeline.spans.step, steps))
    if kernels < KERNELS * len(steps):
        return None
    each = [_of_step(timeline, rows[calls.step[rows] == step]) for step in steps]
    gathers, sizes = (
        {0 if one is None else one.gathers for one in each},
        {None if one is None else one.sizes for one in each},
    )
    return each[0] if len(gathers) == len(sizes) == 1 else None


def _of_step(timeline: RankTimeline, rows: Ints) -> _Unit | None:
    """Return the unit whose calls are nearly all gathers and reductions of a step, which are these rows, by start: it
    is gathered before it is reduced. Gathered once, it may be what a sharded optimizer gathers, where FSDP is not seen
    by name."""
    calls = timeline.collectives
    is_gather = rows_named(calls.op[rows], timeline.names, "all_gather".__eq__)
    size_bytes, large = calls.bytes[rows], calls.bytes[rows] >= UNIT_BYTES
    gathers, reductions = size_bytes[is_gather & large], size_bytes[~is_gather & large]
    by_name = shows_fsdp(timeline)
    if reductions.size != 1 or not (1 if by_name else MOST_GATHERS) <= gathers.size <= MOST_GATHERS:
        return None
    held = gathers.sum() >= NEARLY_ALL * size_bytes[is_gather].sum()
    held &= reductions[0] >= NEARLY_ALL * size_bytes[~is_gather].sum()
    alike = np.ptp(gathers) <= ALIKE * gathers.max()
    alike &= any(abs(reductions[0] / gathers.max() - times) <= ALIKE * times for times in TYPES)
    one_group = np.unique(calls.group[rows[large]]).size == 1
    if not held or not alike or not one_group or is_gather[large][-1]:
        return None
    return _Unit(
        gathers=int(gathers.size), gathered_bytes=int(gathers.max()),
        sizes=frozenset((*gathers.tolist(), *reductions.tolist())),
    )  # fmt: skip
