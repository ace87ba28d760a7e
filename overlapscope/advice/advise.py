"""All recommendations for a run: the late rank and nothing else where waiting dominates, else rules and a replay."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from overlapscope.advice.algorithm_trial import algorithm_trial
from overlapscope.advice.buckets import adds_views, bucket_advice
from overlapscope.advice.busy_lane import busy_lane
from overlapscope.advice.communication_copies import communication_copies
from overlapscope.advice.embedding_tail import embedding_tail
from overlapscope.advice.fewer_channels import interference
from overlapscope.advice.gathers import gather_advice
from overlapscope.advice.given import Given
from overlapscope.advice.late_launches import late_launches
from overlapscope.advice.late_rank import late_rank
from overlapscope.advice.max_connections import max_connections
from overlapscope.advice.network import repair_link, use_gpu_direct, use_infiniband
from overlapscope.advice.small_collectives import small_collectives
from overlapscope.analysis.across import Across, across
from overlapscope.analysis.alone import Alone, alone_of
from overlapscope.analysis.analyze import Analysis, Recommendation, analyze
from overlapscope.errors import InputError
from overlapscope.timeline.facts import Facts
from overlapscope.timeline.run import Run
from overlapscope.timeline.volume import ITEM_BYTES
from overlapscope.whatif.answer import answer
from overlapscope.whatif.from_run import RecordedCase, from_run
from overlapscope.whatif.graph_answer import answer_run
from overlapscope.whatif.kinds import kind_of
from overlapscope.whatif.scenario import WhatIf

RULES: Final[tuple[Callable[[Given], Recommendation | None], ...]] = (
    late_launches,
    embedding_tail,
    small_collectives,
    busy_lane,
    interference,
    communication_copies,
    max_connections,
    use_infiniband,
    use_gpu_direct,
    repair_link,
    algorithm_trial,
)


def analyzed(run: Run, bandwidth: Facts | None = None) -> Analysis:
    """Give the analysis with what rules recommend: what `overlapscope analyze --json` prints.

    `bandwidth` holds measurements of what the run's collectives could reach.
    """
    together, alone = across(run), alone_of(run)
    analysis = analyze(run, together, bandwidth, alone)
    return msgspec.structs.replace(analysis, recommendations=by_rules(run, analysis, together, alone))


def by_rules(
    run: Run, analysis: Analysis, together: Across, alone: Mapping[int, Alone] | None = None
) -> list[Recommendation]:
    """Give what rules say of the figures alone, best first; a replay costs ten times what the figures do."""
    late = late_rank(analysis)
    if late is not None:
        return [late]
    given = Given.of(run, analysis, together, alone)
    return ranked([each for rule in RULES if (each := rule(given)) is not None])


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
    together = together or across(run)
    found = by_rules(run, analysis, together)
    if any(each.id == "late_rank" for each in found):
        return found, []
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
    return ranked([*of_buckets, *found]), list(told.reasons)


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
    return ranked([*gather_advice(told), *found]), list(told.reasons)


def ranked(found: Sequence[Recommendation]) -> list[Recommendation]:
    """Sort: predicted gains that are sure first, the largest before others; then what may be none, by what it comes to
    or what bounds it; then what has no figure. What changes numerics, and that all is well as it is, come last.
    """
    return sorted(found, key=_rank)


def _rank(each: Recommendation) -> tuple[bool, bool, bool, int]:
    gain = each.gain_high_ns if each.predicted_gain_ns is None else each.predicted_gain_ns
    is_sure = each.predicted_gain_ns is not None and (each.gain_low_ns or 0) > 0
    return each.verdict == "no_change", each.changes_numerics, not is_sure, -(gain or 0)
