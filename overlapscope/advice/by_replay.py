"""What a replay of the recording recommends under other settings, beside what rules found."""

from collections.abc import Callable, Sequence

from overlapscope.advice.buckets import adds_views, bucket_advice
from overlapscope.advice.gathers import gather_advice
from overlapscope.analysis.across import Across
from overlapscope.analysis.analyze import Recommendation
from overlapscope.errors import InputError
from overlapscope.timeline.run import Run
from overlapscope.timeline.volume import ITEM_BYTES
from overlapscope.whatif.answer import answer
from overlapscope.whatif.from_run import RecordedCase, from_run
from overlapscope.whatif.graph_answer import answer_run
from overlapscope.whatif.kinds import kind_of
from overlapscope.whatif.scenario import WhatIf


def by_replay(
    run: Run,
    together: Across,
    found: list[Recommendation],
    caps_mb: Sequence[float],
    keep: Callable[[RecordedCase, WhatIf], None] | None,
) -> tuple[list[Recommendation], list[str]]:
    """Give what rules `found` with what a replay recommends, and the reasons beside it or for its not being one.

    `caps_mb` are the caps to try; `keep` gets what was replayed and what it told, if it was.
    """
    try:
        case = from_run(run, together)
    except InputError as error:
        return _of_another_kind(run, together, found, error)
    told = answer(case, caps_mb)
    if keep is not None:
        keep(case, told)
    of_buckets = bucket_advice(told, ITEM_BYTES[case.recorded.dtypes[0]])
    # A predicted gain of views stands for what the copies' time only bounds.
    if adds_views(told) or any(each.id == "bucket_view" for each in of_buckets):
        found = [each for each in found if each.id != "communication_copies" or set(each.apply) != {"ddp"}]
    return [*of_buckets, *found], list(told.reasons)


def _of_another_kind(
    run: Run, together: Across, found: list[Recommendation], why: InputError
) -> tuple[list[Recommendation], list[str]]:
    """Add what a replay of FSDP2 recommends; `why` says why it is no recording of DistributedDataParallel."""
    if kind_of(run) != "fsdp":
        return found, [f"no setting was replayed: {why}"]
    try:
        told = answer_run(run, together, why=str(why))
    except InputError as error:
        return found, [f"no setting was replayed: {error}"]
    return [*gather_advice(told), *found], list(told.reasons)
