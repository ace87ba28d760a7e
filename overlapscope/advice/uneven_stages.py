"""Rule: a stage of a pipeline has more work than the others, which wait for it in every micro-batch."""

from collections.abc import Mapping
from statistics import median
from typing import Final, Literal

from overlapscope.advice.rule_input import RuleInput, ms, recommended
from overlapscope.analysis.checks.pipelines.uneven_stages import (
    MOST_OF_IT,
    divided_ns,
    what_to_move,
    whole_layers,
)
from overlapscope.analysis.common.wording import rank_list
from overlapscope.analysis.result import Recommendation

AS_MUCH: Final = 1.05
"""Above this factor of what a stage has more at the usual speed of its kernels, its device is slower, too; that is
said."""


def uneven_stages(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where the finding of this name says what a stage has more, and evening it out is worth
    it; else None.

    All work moves through the stage with most of it: as no work is lost, at most what it has more than the mean of all
    stages is gained; by what it computes, or at the usual speed of its kernels, whichever is more. Where whole layers
    are to be moved, it is what these gain.
    """
    found = next((each for each in given.analysis.findings if each.id.startswith("uneven_stages")), None)
    if found is None:
        return None
    evidence = found.evidence
    stage, of_step = str(evidence["stage"]), evidence.get("step_work_ns") if given.per == "step" else None
    work = of_step or evidence["work_ns"]
    computed = evidence.get("step_computed_ns", work) if of_step else work
    layer_ns = evidence.get("layer_step_ns") if of_step else None
    at_most_ns = max(_gain_ns(each, stage, layer_ns) for each in (work, computed))
    if not given.is_worth(at_most_ns if of_step else at_most_ns / max(given.steps, 1)):
        return None
    per: Literal["step", "recording"] = "step" if of_step else "recording"
    more_ns = evidence["more_step_ns" if of_step else "more_ns"]
    others_ns = median(ns for each, ns in computed.items() if each != stage)
    usually = ", at the usual speed of its kernels" if computed[stage] - others_ns > AS_MUCH * more_ns else ""
    return recommended(
        given,
        id="uneven_stages",
        title=f"Even out the stages of the pipeline: stage {stage} ({rank_list(evidence['ranks'])}) computes for "
        f"{ms(computed[stage])} a {per}, {ms(more_ns)} more than the other stages{_a_step(given, per, more_ns)}"
        f"{usually}, which wait for it",
        per=per,
        apply={"torch": f"# {what_to_move(of_step or {}, stage, layer_ns)}"},
        evidence={"stage": evidence["stage"], "ranks": evidence["ranks"], "work_ns": work},
        at_most_ns=at_most_ns,
        measured=["what each stage computes, at the usual speed of its kernels where these are known"],
        assumed=["that work can be divided as finely: the gain is an upper bound"]
        if layer_ns is None or not _of_layers(work, stage, layer_ns)
        else ["that layers are alike, and are moved as a whole: the gain is an upper bound"],
    )


def _a_step(given: RuleInput, per: str, more_ns: float) -> str:
    """Return what a time of a recording without marked steps is of each of its steps, where their length is known."""
    fill = next((each.evidence for each in given.analysis.findings if each.id == "pipeline_fill"), {})
    step_ns = fill.get("step_ns")
    if per == "step" or given.per == "step" or not step_ns:
        return ""
    return f" ({ms(more_ns * step_ns / given.step_ns)} of each {ms(step_ns)} step)"


def _of_layers(work_ns: Mapping[str, float], stage: str, layer_ns: float) -> float:
    """Return what moving whole layers gains; 0 where that is not most of what stages of equal work would gain."""
    gain_ns = whole_layers(work_ns, stage, layer_ns)[1]
    return gain_ns if gain_ns >= MOST_OF_IT * divided_ns(work_ns, stage) else 0.0


def _gain_ns(work_ns: Mapping[str, float], stage: str, layer_ns: float | None) -> float:
    moved_ns = 0.0 if layer_ns is None else _of_layers(work_ns, stage, layer_ns)
    return moved_ns or divided_ns(work_ns, stage)
