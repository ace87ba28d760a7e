"""Predict the step time of a recording under other settings: as DistributedDataParallel, or as recorded step graphs."""

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
    run: Run, caps_mb: Sequence[float], options: Wanted, asked: Asked = NOTHING, *, search: bool
) -> WhatIf:
    """Predict the steps of a recording under other settings.

    `asked` applies to DistributedDataParallel only. Raises InputError, which says what is missing and what to do.
    """
    cross_rank = across(run)
    try:
        case = from_run(run, cross_rank)
    except InputError as error:
        if kind_of(run) == "ddp":
            raise
        return _predict_other(run, cross_rank, options, error)
    return with_asked(answer(case, caps_mb, search=search), case, asked)


def _predict_other(run: Run, cross_rank: Across, options: Wanted, not_ddp: InputError) -> WhatIf:
    """Predict a recording that is not DDP; `not_ddp` says why it is not."""
    try:
        return answer_run(run, cross_rank, options, str(not_ddp))
    except InputError as error:
        message = f"{error}; not recognised as DDP: {not_ddp}" if kind_of(run) == "other" else str(error)
        raise InputError(message) from error
