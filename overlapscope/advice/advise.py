"""All recommendations for a run: only shared cores and stragglers where there are any, else those of rules and of a
replay."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from overlapscope.advice.communication_copies import communication_copies
from overlapscope.advice.embedding_tail import embedding_tail
from overlapscope.advice.fewer_channels import interference
from overlapscope.advice.flatten_gradients import flatten_gradients
from overlapscope.advice.job_kind import fitted, job_kind
from overlapscope.advice.late_launches import late_launches
from overlapscope.advice.late_rank import late_rank
from overlapscope.advice.max_connections import max_connections
from overlapscope.advice.nccl_trials import algorithm_trial
from overlapscope.advice.network import repair_link, use_gpu_direct, use_infiniband
from overlapscope.advice.rule_input import RuleInput
from overlapscope.advice.shared_cores import shared_cores
from overlapscope.advice.shared_stream import busy_lane
from overlapscope.advice.small_collectives import small_collectives
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import CrossRank, match_and_align
from overlapscope.analysis.rank_summary import RankSummary, summarize_ranks
from overlapscope.analysis.result import Analysis, Recommendation, with_costs
from overlapscope.timeline.facts import Facts
from overlapscope.timeline.run import Run

if TYPE_CHECKING:
    from overlapscope.whatif.ddp.ddp_recording import RecordedCase
    from overlapscope.whatif.result import WhatIf

RULES: Final[tuple[Callable[[RuleInput], Recommendation | None], ...]] = (
    late_launches,
    flatten_gradients,
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
FIXED_FIRST: Final = ("shared_cores", "late_rank")
"""Recommendations before which no other helps."""


def analyze_with_advice(run: Run, bandwidth: Facts | None = None) -> Analysis:
    """Return the analysis with the recommendations of the rules, as `overlapscope analyze --json` prints it.

    `bandwidth` holds measurements of the bandwidth that the run's collectives could reach.
    """
    cross_rank, alone = match_and_align(run), summarize_ranks(run)
    analysis = analyze(run, cross_rank, bandwidth, alone)
    return with_costs(msgspec.structs.replace(analysis, recommendations=by_rules(run, analysis, cross_rank, alone)))


def by_rules(
    run: Run, analysis: Analysis, cross_rank: CrossRank, alone: Mapping[int, RankSummary] | None = None
) -> list[Recommendation]:
    """Return the recommendations of the rules, best first. They need no replay, which takes ten times as long."""
    first = _fixed_first(analysis)
    if first:
        return first
    given = RuleInput.of(run, analysis, cross_rank, alone)
    found = {each.id: each for rule in RULES if (each := rule(given)) is not None}
    if "flatten_gradients" in found:  # Its burst is what is launched late, and call by call.
        found.pop("late_launches", None)
        found.pop("small_collectives", None)
    return ranked(fitted(list(found.values()), given.job))


def _fixed_first(analysis: Analysis) -> list[Recommendation]:
    """Return what must be mended before anything else helps: shared cores, then a straggler they do not explain."""
    cores, late = shared_cores(analysis), late_rank(analysis)
    if cores is None:
        return [late] if late else []
    return [cores, late] if late and analysis.skew.stragglers else [cores]


def advise(
    run: Run,
    analysis: Analysis,
    cross_rank: CrossRank | None = None,
    caps_mb: Sequence[float] = (),
    keep: "Callable[[RecordedCase, WhatIf], None] | None" = None,
) -> tuple[list[Recommendation], list[str]]:
    """Return recommendations, best first, and the reasons for them or for having none.

    `caps_mb` are the bucket caps to try, in MiB; `keep` is called with the replayed case and its result, if there is
    one.
    """
    cross_rank = cross_rank or match_and_align(run)
    found = by_rules(run, analysis, cross_rank)
    if any(each.id in FIXED_FIRST for each in found):
        return found, []
    from overlapscope.advice.replayed_settings import by_replay  # noqa: PLC0415 - `by_rules` replays nothing

    found, reasons = by_replay(run, cross_rank, found, caps_mb, keep)
    return ranked(fitted(found, job_kind(run))), reasons


def ranked(found: Sequence[Recommendation]) -> list[Recommendation]:
    """Sort recommendations: first predicted gains whose interval is above zero, largest first; then other gains, by
    value or upper bound; then those without a figure. Changes of numerics, and `no_change`, come last.
    """
    return sorted(found, key=_sort_key)


def _sort_key(each: Recommendation) -> tuple[bool, bool, bool, int]:
    gain = each.gain_high_ns if each.predicted_gain_ns is None else each.predicted_gain_ns
    is_sure = each.predicted_gain_ns is not None and (each.gain_low_ns or 0) > 0
    return each.verdict == "no_change", each.changes_numerics, not is_sure, -(gain or 0)
