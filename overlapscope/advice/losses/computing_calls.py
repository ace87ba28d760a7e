"""Rule: the threads of a CPU run's collectives compute in them, as gloo's do that add up sparse gradients."""

from typing import Final

from overlapscope.advice.rule_input import RuleInput, ms, recommended
from overlapscope.analysis.result import Recommendation
from overlapscope.display import list_some

SPARSE: Final = "gloo:sparse_all_reduce"
"""What gloo does for an all-reduce of a sparse tensor: it gathers all indices and values, and adds them up."""
MOST_NAMED: Final = 3


def computing_calls(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where sparse gradients are added up in calls; else None."""
    found = next((each for each in given.analysis.findings if each.id == "computing_calls"), None)
    if found is None or found.evidence["calls"][0] != SPARSE:
        return None
    computed_ns = found.evidence["computed_ns"]
    return recommended(
        given,
        id="computing_calls",
        title=f"Avoid sparse gradients over gloo: its threads add them up in {ms(computed_ns)} of a "
        f"{ms(given.step_ns)} {given.per} ({list_some(found.evidence['operations'], MOST_NAMED)}), and nothing "
        "computes beside that",
        at_most_ns=computed_ns,
        apply={
            "torch": "nn.Embedding(..., sparse=False)  # reduced as any other gradient: where most rows are used, or\n"
            "# the table is small; else fewer rows a batch, or one reduction for several batches",
        },
        evidence=dict(found.evidence),
        measured=["the operations on the threads that make the calls"],
        assumed=["that all of it could be avoided: a dense gradient has its own transfer"],
    )
