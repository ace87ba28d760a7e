"""Rule: activations are recomputed in backward, which kernels of attention show; with more memory they need not be."""

import re
from statistics import fmean
from typing import Final

import msgspec
import numpy as np

from overlapscope.advice.rule_input import AGAIN_NS, RuleInput, ms, recommended
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import COMPUTE, Flags, Ints, Spans, take
from overlapscope.timeline.intervals import BusyTime, difference
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import sort_order, sum_by
from overlapscope.timeline.run import RankTimeline

FORWARD: Final = re.compile(r"flash_fwd_kernel|FlashAttnFwd|FmhaFwdKernel|fmha_cutlassF|flash_fprop")
BACKWARD: Final = re.compile(
    r"flash_bwd_dq_dk_dv|FlashAttnBwd(?!P)|FmhaBwdDQDKDV|aiter\d*fmha_bwd_hd|fmha_cutlassB|flash_bprop"
)
"""Kernels of which attention launches one a layer in a pass: of FlashAttention, its ports for AMD, PyTorch's
memory-efficient attention, and cuDNN. Backward has others besides."""
FEWEST: Final = 4
"""Least layers. A choice: fewer tell little of how long one takes."""
IN_BACKWARD: Final = 0.5
"""Least share of the backward kernels that directly follow a forward one. Those of a second model, or of a second pass,
come all before backward."""
NEARLY_ALL: Final = 0.8
"""The same in a recording that may be cut within a step, where their numbers show less. A choice."""
APPLY: Final = {
    "megatron": "--recompute-granularity selective  # or none",
    "torch": "# call torch.utils.checkpoint.checkpoint in every second block only, or save more in it:\n"
    "checkpoint(block, x, use_reentrant=False, context_fn=partial(create_selective_checkpoint_contexts, ops_to_save))\n"
    "model.gradient_checkpointing_disable()  # Hugging Face Transformers",
}


class _Recomputed(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank does in a step, or in its recording."""

    forward: float
    """Kernels of attention's forward."""
    backward: float
    forward_ns: float
    """How long as many layers as run backward take forward: the mean distance of the kernels of attention of a forward
    pass, times their number; in the median over steps."""
    exposed_ns: float
    """Of it, exposed communication."""
    again_ns: float
    """For how long kernels of a forward pass run once more in its backward, by their names, in as many layers; in the
    median over steps. A backward pass may have some of these names itself, but a recomputed one has nearly all."""


def recomputation(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where each rank looked at runs the forward of attention twice as often as its backward
    in each step, or in each backward pass of a recording without whole steps, between the kernels of backward, and
    a forward pass takes long enough. What it gains is no figure: how much memory is free is not known."""
    if given.job.serves or not given.run_has_device:
        return None
    found = [_recomputed(given, timeline) for timeline, _ in given.some_at_hand()]
    every = [each for each in found if each is not None]
    if not every or len(every) < len(found):
        return None
    most = max(every, key=lambda each: each.forward_ns)
    if not given.is_worth(most.forward_ns):
        return None
    calls = f", with up to {ms(most.exposed_ns)} of exposed communication" if given.is_worth(most.exposed_ns) else ""
    return recommended(
        given,
        id="recomputation",
        title=f"Recompute less, if memory allows: attention runs forward {most.forward:.0f} times a {given.per} and "
        f"backward {most.backward:.0f} times, as activations are computed again in backward; a forward pass of these "
        f"layers takes about {ms(most.forward_ns)} of a {ms(given.step_ns)} {given.per}, and what is recomputed up to "
        f"about as long{calls}",
        apply=APPLY,
        evidence={
            "forward_kernels": most.forward,
            "forward_ns": round(most.forward_ns),
            "exposed_ns": round(most.exposed_ns),
            AGAIN_NS: round(fmean(each.again_ns for each in every)),
        },
        measured=["the kernels of attention and their order, and how far those of a forward pass are apart"],
        assumed=["that memory holds more activations, and that all of a layer is recomputed"],
    )


def _recomputed(given: RuleInput, timeline: RankTimeline) -> _Recomputed | None:
    """Return how often and for how long a rank recomputes; None where it does not in each step, or pass."""
    spans, names = timeline.spans, timeline.names
    of_backward = rows_named(spans.name, names, BACKWARD.search)
    attention = of_backward | rows_named(spans.name, names, FORWARD.search)
    rows = np.flatnonzero((spans.kind == COMPUTE) & attention)
    rows = rows[sort_order(spans.start_ns[rows])]
    parts, first_pass = [rows], _pass_of_recording
    if given.per == "step":
        parts, first_pass = [rows[spans.step[rows] == step] for step in given.numbers[timeline.rank]], _pass_of_step
    found = [(own, at) for own in parts if (at := first_pass(of_backward[own])) is not None]
    if not parts or len(found) < len(parts):
        return None
    begin, end = (np.array([spans.start_ns[own[place[edge]]] for own, place in found]) for edge in (0, 1))
    coverage = given.coverage[timeline.rank]
    exposed = BusyTime(difference(coverage.comm, coverage.compute)).within(begin, end)
    computes = np.flatnonzero((spans.kind == COMPUTE) & (spans.name >= 0))
    work = take(spans, computes[sort_order(spans.start_ns[computes])])
    again_ns = [_again_ns(work, spans.start_ns[own], of_backward[own], place) for own, place in found]
    layers = np.array([of_backward[own].sum() for own, _ in found])
    share = layers / np.array([last - first for _, (first, last) in found])
    return _Recomputed(
        forward=float(np.mean([own.size for own in parts]) - layers.mean()),
        backward=float(layers.mean()),
        forward_ns=float(np.median((end - begin) * share)),
        exposed_ns=float(np.median(exposed * share)),
        again_ns=float(np.median(again_ns * share)),
    )


def _again_ns(work: Spans, attention_ns: Ints, backward: Flags, place: tuple[int, int]) -> float:
    """Return for how long kernels (of `work`, by start) between the first and the last of attention in a forward pass
    (`place`) run again between the first and the last of its backward: of each name, as many as there are in both.
    Where the recording ends before, in proportion; 0 where nothing of backward follows."""
    first, last = place
    back = np.flatnonzero(backward)
    back = back[back > last][: last - first + 1]
    if back.size < 2:  # no whole layer
        return 0.0
    edges = attention_ns[[first, last, back[0], back[-1]]]
    own = slice(*np.searchsorted(work.start_ns, edges[[0, 3]]).tolist())
    start, took = work.start_ns[own], work.end_ns[own] - work.start_ns[own]
    forward, again = start < edges[1], start >= edges[2]
    of, names = work.name[own], int(work.name[own].max()) + 1
    in_both = np.minimum(*(np.bincount(of[part], minlength=names) for part in (forward, again)))
    mean_ns = sum_by(of[forward], took[forward], names) / np.maximum(np.bincount(of[forward], minlength=names), 1)
    return float(in_both @ mean_ns) * (last - first) / (back.size - 1)


def _pass_of_step(backward: Flags) -> tuple[int, int] | None:
    """Return the first and the last kernel of a step's first forward pass; None where nothing is recomputed. `backward`
    says of each kernel of attention, in order of time, whether it is one of backward.

    Those before the first backward kernel are a forward pass and, at its end, the first that is recomputed: as many as
    follow that kernel.
    """
    layers = int(backward.sum())
    if layers < FEWEST or backward.size != 3 * layers or _following(backward) < IN_BACKWARD * layers:
        return None
    first = int(backward.argmax())
    after = np.flatnonzero(backward[first:][:-1] & ~backward[first:][1:])
    again = int(backward[first + int(after[0]) + 1 :].argmax()) if after.size else 0
    return None if first - again < 2 else (0, first - again - 1)


def _pass_of_recording(backward: Flags) -> tuple[int, int] | None:
    """Return the same of the longest forward pass of a recording that may begin and end within a step.

    Each forward pass is followed by one kernel more, which is recomputed, and then by as many backward kernels as it
    has layers, nearly each directly after a forward one; those at the ends of the recording may be cut. So many that
    each follow a forward one are of no pipeline, whose last ones follow each other.
    """
    edges = np.flatnonzero(np.diff(backward, prepend=True, append=True))
    begins, ends = edges[::2], edges[1::2]  # of forward kernels that directly follow each other
    several = ends - begins > 1
    begins, ends = begins[several], ends[several]
    whole = (begins > 0) & (ends < backward.size)
    of_passes = np.diff(np.concatenate([[0], np.cumsum(backward)[begins], [backward.sum()]]))
    layers = int((ends - begins).max(initial=1)) - 1
    if layers < FEWEST or not (
        (ends - begins == layers + 1)[whole].all()
        and (of_passes[1:-1] == layers).all()
        and of_passes.max() <= layers <= of_passes.sum()
        and _following(backward) >= NEARLY_ALL * of_passes.sum()
    ):
        return None
    longest = int((ends - begins).argmax())
    return int(begins[longest]), int(ends[longest]) - 2


def _following(backward: Flags) -> int:
    """Return how many backward kernels directly follow a forward one."""
    return int((backward[1:] & ~backward[:-1]).sum())
