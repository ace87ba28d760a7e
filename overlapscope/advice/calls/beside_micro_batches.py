"""How much of compute may be beside calls of gradients and parameters in a pipeline: gradients are complete only in the
last micro-batch's backward, and parameters are needed in the first one's forward."""

from collections.abc import Sequence

from overlapscope.advice.rule_input import RuleInput
from overlapscope.analysis.checks.pipelines.stages import PipelineStage, alike_stages, counted_stages, microbatches


def shares_beside(given: RuleInput) -> tuple[float, float]:
    """Return the least and the largest share of a step's compute that may be beside calls of gradients and parameters;
    all of it without a pipeline, or where nothing is known of its micro-batches."""
    stages = alike_stages(given.run, counted_stages(given.run, given.stages))
    shares = [_share_of(own, len(group.ranks or ())) for group, own in stages]
    return (min(low for low, _ in shares), max(high for _, high in shares)) if shares else (1.0, 1.0)


def _share_of(stages: Sequence[PipelineStage], count: int) -> tuple[float, float]:
    """Return the least and the largest share of a stage's passes that may be beside these calls: those of backward from
    a first chunk's last one on, and as many of forward, to the last chunk's first one.

    Of m micro-batches in v chunks on p stages these are (v - 1) p + 1 of v m, as chunks take turns that are p passes
    long (1F1B, interleaved: https://arxiv.org/abs/2104.04473, figure 4).
    """
    passes, batches = max(each.at_most for each in stages), microbatches(stages)
    if not batches or passes % batches:
        return 1 / passes, 1.0
    share = min(((passes // batches - 1) * count + 1) / passes, 1.0)
    return share, share
