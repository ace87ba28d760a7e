"""Predictions for a recording: as DistributedDataParallel where it is that, else as what else it turns out to be."""

from collections.abc import Sequence

from overlapscope.analysis.across_ranks import Across, across
from overlapscope.errors import InputError
from overlapscope.timeline.run import Run
from overlapscope.whatif.ddp_predict import answer
from overlapscope.whatif.ddp_recording import from_run
from overlapscope.whatif.graph_predict import Wanted, answer_run
from overlapscope.whatif.parallelism import kind_of
from overlapscope.whatif.requested import NOTHING, Asked, with_asked
from overlapscope.whatif.result import WhatIf


def answer_recording(
    run: Run, caps_mb: Sequence[float], wanted: Wanted, asked: Asked = NOTHING, *, search: bool
) -> WhatIf:
    """Predict a recording; `asked` only where it is DDP's. Raises InputError, saying what is missing and what to do."""
    together = across(run)
    try:
        case = from_run(run, together)
    except InputError as error:
        if kind_of(run) == "ddp":
            raise
        return _of_another_kind(run, together, wanted, error)
    return with_asked(answer(case, caps_mb, search=search), case, asked)


def _of_another_kind(run: Run, together: Across, wanted: Wanted, why: InputError) -> WhatIf:
    try:
        return answer_run(run, together, wanted, str(why))
    except InputError as error:
        said = f"{error}; as for DistributedDataParallel, {why}" if kind_of(run) == "other" else str(error)
        raise InputError(said) from error
