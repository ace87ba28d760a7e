"""Rule: a pipeline fills and drains for much of a step, which more micro-batches shorten."""

from overlapscope.advice.rule_input import RuleInput, ms, recommended
from overlapscope.analysis.result import Recommendation


def more_micro_batches(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where the finding `pipeline_fill` knows how many micro-batches a step has, and twice as
    many, each half as long, are worth it; else None."""
    found = next((each.evidence for each in given.analysis.findings if each.id == "pipeline_fill"), {})
    batches, step_ns, saved_ns = (found.get(name) for name in ("microbatches", "step_ns", "saved_by_twice_ns"))
    # As many activations as micro-batches, or a whole number of chunks: else the schedule is not known.
    if not batches or not step_ns or saved_ns is None or found["activations_at_most"] % batches:
        return None
    at_most_ns = saved_ns * (given.step_ns / step_ns if given.per == "recording" else 1.0)
    if not given.is_worth(at_most_ns):
        return None
    twice = 2 * batches
    caution = "smaller ones may compute less efficiently, and the batch must be divisible"
    return recommended(
        given,
        id="more_micro_batches",
        title=f"Use more, smaller micro-batches: with {twice} instead of {batches} the pipeline fills and drains for "
        f"at most {ms(saved_ns)} less of a {ms(step_ns)} step; {caution}",
        at_most_ns=at_most_ns,
        apply={
            "torch": f"n_microbatches={twice}  # of the schedule in torch.distributed.pipelining, for the same batch",
            "megatron": f"--micro-batch-size N  # half of it, at the same --global-batch-size: {twice} a step",
        },
        evidence={"microbatches": batches, "step_ns": step_ns, "saved_by_twice_ns": saved_ns},
        measured=["what each stage does in a step", "the micro-batches of a step"],
        assumed=["1F1B, interleaved or not, and that half of one takes half as long: the gain is an upper bound"],
    )
