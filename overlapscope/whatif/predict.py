"""Predict the step time of a recording under other settings: as DistributedDataParallel, or as recorded step graphs."""

from collections.abc import Sequence

from overlapscope.analysis.cross_rank.across_ranks import CrossRank, match_and_align
from overlapscope.errors import InputError
from overlapscope.timeline.run import Run
from overlapscope.whatif.ddp.ddp_predict import predict_ddp
from overlapscope.whatif.ddp.ddp_recording import ddp_case_of_run
from overlapscope.whatif.parallelism import parallelism_of
from overlapscope.whatif.requested import NOTHING, RequestedSettings, with_requested
from overlapscope.whatif.result import WhatIf
from overlapscope.whatif.step_graph.graph_predict import ReplayOptions, predict_graph_run


def predict_recording(
    run: Run, caps_mb: Sequence[float], options: ReplayOptions, asked: RequestedSettings = NOTHING, *, search: bool
) -> WhatIf:
    """Predict the steps of a recording under other settings.

    `asked` applies to DistributedDataParallel only. Raises InputError, which says what is missing and what to do.
    """
    cross_rank = match_and_align(run)
    try:
        case = ddp_case_of_run(run, cross_rank)
    except InputError as error:
        if parallelism_of(run) == "ddp":
            raise
        return _predict_other(run, cross_rank, options, error)
    return with_requested(predict_ddp(case, caps_mb, search=search), case, asked)


def _predict_other(run: Run, cross_rank: CrossRank, options: ReplayOptions, not_ddp: InputError) -> WhatIf:
    """Predict a recording that is not DDP; `not_ddp` says why it is not."""
    try:
        return predict_graph_run(run, cross_rank, options, str(not_ddp))
    except InputError as error:
        message = f"{error}; not recognised as DDP: {not_ddp}" if parallelism_of(run) == "other" else str(error)
        raise InputError(message) from error
