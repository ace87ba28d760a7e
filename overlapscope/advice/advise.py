"""All recommendations for a run: the late rank and nothing else where waiting dominates, else what a replay tells."""

from collections.abc import Callable, Sequence

from overlapscope.advice.buckets import bucket_advice
from overlapscope.advice.late_rank import late_rank
from overlapscope.analysis.across import Across, across
from overlapscope.analysis.analyze import Analysis, Recommendation
from overlapscope.errors import InputError
from overlapscope.timeline.run import Run
from overlapscope.timeline.volume import ITEM_BYTES
from overlapscope.whatif.answer import WhatIf, answer
from overlapscope.whatif.from_run import RecordedCase, from_run


def advise(
    run: Run,
    analysis: Analysis,
    together: Across | None = None,
    caps_mb: Sequence[float] = (),
    keep: Callable[[RecordedCase, WhatIf], None] | None = None,
) -> tuple[list[Recommendation], list[str]]:
    """Give recommendations, best first, and the reasons that stand beside them or for there being none.

    `caps_mb` are the caps to try; `keep` gets what was replayed and what it told, if it was.
    """
    late = late_rank(analysis)
    if late is not None:
        return [late], []
    try:
        case = from_run(run, together or across(run))
    except InputError as error:
        return [], [f"no setting was replayed: {error}"]
    told = answer(case, caps_mb)
    if keep is not None:
        keep(case, told)
    found = bucket_advice(told, ITEM_BYTES[case.recorded.dtypes[0]])
    return sorted(found, key=lambda each: (each.changes_numerics, -(each.predicted_gain_ns or 0))), list(told.reasons)
