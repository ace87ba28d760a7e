"""Predict the step time of a recording under other settings: as DistributedDataParallel, or as recorded step graphs."""

from collections.abc import Sequence

from msgspec.structs import replace

from overlapscope.analysis.cross_rank.across_ranks import CrossRank, match_and_align
from overlapscope.analysis.graph.built_graphs import BuiltGraphs
from overlapscope.errors import InputError
from overlapscope.timeline.run import Run
from overlapscope.whatif.ddp.ddp_predict import predict_ddp
from overlapscope.whatif.ddp.ddp_recording import ddp_case_of_run
from overlapscope.whatif.parallelism import no_ddp_settings, parallelism_of
from overlapscope.whatif.requested import NOTHING, RequestedSettings, with_requested
from overlapscope.whatif.result import Best, WhatIf
from overlapscope.whatif.run_replay.answers import run_replay
from overlapscope.whatif.step_graph.graph_predict import NONE_REPLAYED, NOT_FASTER, ReplayOptions, predict_graph_run


def predict_recording(
    run: Run, caps_mb: Sequence[float], options: ReplayOptions, asked: RequestedSettings = NOTHING, *, search: bool,
    cross_rank: CrossRank | None = None, graphs: BuiltGraphs | None = None,
) -> WhatIf:  # fmt: skip
    """Predict the steps of a recording under other settings.

    `asked` applies to DistributedDataParallel only; `cross_rank` and `graphs` are what is known of the run already.
    Raises InputError, which says what is missing and what to do.
    """
    cross_rank, graphs = cross_rank or match_and_align(run), graphs or BuiltGraphs(run)
    try:
        case = ddp_case_of_run(run, cross_rank, graphs)
    except InputError as error:
        if parallelism_of(run) != "ddp":
            return _predict_other(run, cross_rank, graphs, options, error)
        if caps_mb or asked or isinstance(run_replay(run, cross_rank, graphs), str):
            raise
        return _without_buckets(predict_graph_run(run, cross_rank, options, graphs=graphs), error)
    return with_requested(predict_ddp(case, caps_mb, search=search), case, asked)


def _without_buckets(found: WhatIf, error: InputError) -> WhatIf:
    """Return what the dependency graph of a DDP job answers, whose buckets cannot be replayed for `error`."""
    return replace(
        found, verdict="insufficient_data", best=Best(knobs={}),
        reasons=[
            f"its buckets are not replayed: {error}",
            *(each for each in found.reasons if each not in (NOT_FASTER, NONE_REPLAYED)),
        ],
    )  # fmt: skip


def _predict_other(
    run: Run, cross_rank: CrossRank, graphs: BuiltGraphs, options: ReplayOptions, not_ddp: InputError
) -> WhatIf:
    """Predict a recording that is not DDP; `not_ddp` says why it is not."""
    why = str(not_ddp.__cause__ or not_ddp)  # without what it says of waiting
    try:
        return predict_graph_run(run, cross_rank, options, why, graphs)
    except InputError as error:
        of_other = parallelism_of(run) == "other"
        message = f"{error}; {no_ddp_settings(run)}: {not_ddp}" if of_other else str(error)
        raise InputError(message) from error
