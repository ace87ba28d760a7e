"""Rule: activations are recomputed in backward, which kernels of attention show; with more memory they need not be."""

import re
from statistics import median
from typing import Final

import msgspec
import numpy as np

from overlapscope.advice.rule_input import RuleInput, ms, recommended
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import COMPUTE, Flags, Ints
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import sort_order
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
APPLY: Final = {
    "megatron": "--recompute-granularity selective  # or none",
    "torch": "# call torch.utils.checkpoint.checkpoint in every second block only, or save more in it:\n"
    "checkpoint(block, x, use_reentrant=False, context_fn=partial(create_selective_checkpoint_contexts, ops_to_save))\n"
    "model.gradient_checkpointing_disable()  # Hugging Face Transformers",
}


class _Recomputed(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank does in a step, in the median."""

    forward: float
    """Kernels of attention's forward, and half as many of its backward."""
    forward_ns: float
    """How long the layers that they are of take in one forward pass."""


def recomputation(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where each rank looked at runs the forward of attention twice as often as its backward
    in each step, between the kernels of backward, and a forward pass takes long enough. What it gains is no figure: how
    much memory is free is not known."""
    if given.job.serves or not given.run_has_device or given.per != "step":
        return None
    found = [_recomputed(timeline, given.numbers[timeline.rank]) for timeline, _ in given.some_at_hand()]
    every = [each for each in found if each is not None]
    if not every or len(every) < len(found):
        return None
    most = max(every, key=lambda each: each.forward_ns)
    if not given.is_worth(most.forward_ns):
        return None
    return recommended(
        given,
        id="recomputation",
        title=f"Recompute less, if memory allows: attention runs forward {most.forward:.0f} times a step and backward "
        f"{most.forward / 2:.0f} times, as activations are computed again in backward; a forward pass of these layers "
        f"takes about {ms(most.forward_ns)} of a {ms(given.step_ns)} step, and what is recomputed up to about as long",
        apply=APPLY,
        evidence={"forward_kernels": most.forward, "forward_ns": round(most.forward_ns)},
        measured=["the kernels of attention and their order, and how far those of a forward pass are apart"],
        assumed=["that memory holds more activations, and that all of a layer is recomputed"],
    )


def _recomputed(timeline: RankTimeline, steps: tuple[int, ...]) -> _Recomputed | None:
    """Return how often and for how long a rank recomputes; None where it does not in each step."""
    spans, names = timeline.spans, timeline.names
    of_backward = rows_named(spans.name, names, BACKWARD.search)
    attention = of_backward | rows_named(spans.name, names, FORWARD.search)
    rows = np.flatnonzero((spans.kind == COMPUTE) & attention & np.isin(spans.step, steps))
    rows = rows[sort_order(spans.start_ns[rows])]
    each = [
        _forward_ns(spans.start_ns[own], of_backward[own])
        for step in steps
        if (own := rows[spans.step[rows] == step]).size
    ]
    known = [ns for ns in each if ns is not None]
    if not known or len(known) < len(steps):
        return None
    return _Recomputed(forward=int((~of_backward[rows]).sum()) / len(steps), forward_ns=median(known))


def _forward_ns(start_ns: Ints, backward: Flags) -> float | None:
    """Return how long one forward pass of the layers of a step takes, in ns: the mean distance of its kernels of
    attention, times their number; None where nothing is recomputed. `start_ns` and `backward` say when each kernel of
    attention began, in order of time, and whether it is one of backward.

    Those before the first backward kernel are a forward pass and, at its end, the first that is recomputed: as many as
    follow that kernel.
    """
    layers = int(backward.sum())
    follows = int((backward[1:] & ~backward[:-1]).sum())
    if layers < FEWEST or backward.size != 3 * layers or follows < IN_BACKWARD * layers:
        return None
    first = int(backward.argmax())
    after = np.flatnonzero(backward[first:][:-1] & ~backward[first:][1:])
    again = int(backward[first + int(after[0]) + 1 :].argmax()) if after.size else 0
    before = first - again
    return None if before < 2 else float(start_ns[before - 1] - start_ns[0]) / (before - 1) * layers
