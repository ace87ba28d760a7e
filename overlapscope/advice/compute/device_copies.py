"""Rule: a device copies its own tensors for long, into other layouts or into memory of their own."""

from typing import Final

import msgspec
import numpy as np

from overlapscope.advice.compute.copy_kernels import AS_IT_IS, copies_as_they_are, layout_copies_by_name
from overlapscope.advice.rule_input import RuleInput, Windows, ms, recommended, time_of, window_of
from overlapscope.analysis.result import Recommendation, ShownBy
from overlapscope.display import list_some, percent_text
from overlapscope.timeline.columns import COMPUTE, NONE, Ints
from overlapscope.timeline.intervals import difference, intersection, length, union
from overlapscope.timeline.operations import SEND_OPS
from overlapscope.timeline.rows import sum_by
from overlapscope.timeline.run import RankTimeline

LEAST: Final = 0.05
"""Share of a step from which copies are worth a look. A choice: a model needs some of them."""
NAMED: Final = 0.1
"""Least share of the copying time for an operation to be named. A choice."""
BY_NAME: Final = len(AS_IT_IS)
"""Stands for an operation where none was recorded."""
TO_LAYOUTS: Final = "to another layout, as the names of their kernels say"
FOR_THE_MODEL: Final = (
    "that none of them is for the optimizer, gradients or communication: what asked for them was not recorded"
)
BOUND: Final = "the gain is an upper bound, of the rank that copies most"
IN_STAGES: Final = "this is the time of the rank that copies most; a step may gain more, as stages wait for each other"
GAP_NS: Final = 5_000
"""A copy also takes the gap before it, of so much at most: what is longer has other reasons. A choice: some times what
lies between two kernels that were launched long before."""
APPLY: Final = {
    "torch": "# one layout throughout: x.to(memory_format=torch.channels_last) once, kernels that take strides\n"
    "# no .contiguous(), .clone() or .reshape() of a transposed tensor where the next kernel takes a view\n"
    "model = torch.compile(model)  # writes some of them with the kernel before"
}


class _Copied(msgspec.Struct, frozen=True, kw_only=True):
    """Such copies of one rank, in its windows."""

    alone_ns: float
    """While nothing else was computed, a window."""
    gaps_ns: float
    """Before them, a window."""
    copies: float
    """A window."""
    by_name: int
    """Of those that operations asked for, the ones whose launch was not recorded."""
    by_op: Ints
    """Their time, in all, by operation (`AS_IT_IS`), and last of those of which only the name is known (`BY_NAME`)."""
    longest: ShownBy


def device_copies(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where copies that operations of PyTorch made on the device take `LEAST` of a step, or,
    where no operations were recorded, copies to another layout by their names; None without a device."""
    if not given.run_has_device or not given.step_ns:
        return None
    ranks = [(timeline, windows) for timeline, windows in given.some_at_hand() if timeline.has_device]
    found = [each for timeline, windows in ranks if (each := _copied(timeline, windows)) is not None]
    mean = sum(each.alone_ns for each in found) / max(len(ranks), 1)
    if not found or mean < LEAST * given.step_ns:
        return None
    most = max(found, key=lambda each: each.alone_ns)
    copies = round(sum(each.copies for each in found) / len(ranks))
    by_op = np.sum([each.by_op for each in found], axis=0)
    named = [at for at in np.argsort(-by_op, kind="stable").tolist() if by_op[at] >= NAMED * by_op.sum()]
    ops = [AS_IT_IS[at] for at in named if at != BY_NAME]
    what = [f"launched in {list_some(ops)}"] * bool(ops) + [TO_LAYOUTS] * (BY_NAME in named)
    in_stages = any(row.op in SEND_OPS for row in given.analysis.collectives)
    unseen = sum(each.by_name for each in found)
    by_name = " (some by their names: they were launched before the recording began)" if unseen else ""
    advised = recommended(
        given,
        id="device_copies",
        title=f"Copy less on the device: {copies} copies a {given.per} take {ms(mean)} of a {ms(given.step_ns)} "
        f"{given.per} ({percent_text(mean / given.step_ns)}), {' or '.join(what)}",
        verdict="look",
        at_most_ns=most.alone_ns + most.gaps_ns,
        bound_from="loss" if in_stages else None,
        apply=APPLY,
        evidence={"copies_ns": round(mean), "copies": copies, "most_ns": round(most.alone_ns), "operations": ops},
        shown_by=most.longest,
        measured=[
            f"the time of {'copies launched in these operations' if ops else 'these'}, and gaps before them{by_name}"
        ],
        assumed=[
            f"that none of them is needed: {IN_STAGES if in_stages else BOUND}",
            *[FOR_THE_MODEL] * bool(by_op[BY_NAME]),
        ],
    )
    # Its bound orders it, but hides no loss that is smaller: `largest_loss` names that beside it.
    return msgspec.structs.replace(advised, loss_ns=None)


def _copied(timeline: RankTimeline, windows: Windows) -> _Copied | None:
    """Return the copies of a rank; None where there are none in its windows."""
    spans, names = timeline.spans, timeline.names
    rows, of = copies_as_they_are(timeline)
    layouts = layout_copies_by_name(timeline)
    rows, of = np.append(rows, layouts), np.append(of, np.full(layouts.size, BY_NAME))
    inside = window_of(windows, spans.start_ns[rows]) != NONE
    rows, of = rows[inside], of[inside]
    if not rows.size:
        return None
    others = spans.kind == COMPUTE
    others[rows] = False
    copied = intersection(union((spans.start_ns[rows], spans.end_ns[rows])), time_of(windows))
    alone = difference(copied, union((spans.start_ns[others], spans.end_ns[others])))
    took = (spans.end_ns - spans.start_ns)[rows]
    longest = int(rows[took.argmax()])
    return _Copied(
        alone_ns=length(alone) / len(windows),
        gaps_ns=_gaps_ns(timeline, rows) / len(windows),
        copies=rows.size / len(windows),
        by_name=int(np.count_nonzero((spans.launch_ns[rows] == NONE) & (of != BY_NAME))),
        by_op=sum_by(of, took, BY_NAME + 1),
        longest=ShownBy(
            rank=timeline.rank, start_ns=int(spans.start_ns[longest]), end_ns=int(spans.end_ns[longest]),
            op=names[spans.name[longest]],
        ),
    )  # fmt: skip


def _gaps_ns(timeline: RankTimeline, rows: Ints) -> int:
    """Return for how long nothing was computed right before these copies, `GAP_NS` each at most."""
    spans = timeline.spans
    computes = np.union1d(np.flatnonzero(spans.kind == COMPUTE), rows)
    order = computes[np.argsort(spans.start_ns[computes], kind="stable")]
    busy_until = np.maximum.accumulate(spans.end_ns[order])
    gaps = (spans.start_ns[order][1:] - busy_until[:-1])[np.isin(order[1:], rows)]
    return int(np.clip(gaps, 0, GAP_NS).sum())
