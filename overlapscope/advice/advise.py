"""All recommendations for a run, the largest loss first: those of rules and of a replay.

Where hosts share cores, settings of communication are not recommended; where waiting for late ranks dominates, those
alone whose bound is worth it without that waiting.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from overlapscope.advice.calls.backward_prefetch import backward_prefetch
from overlapscope.advice.calls.embedding_tail import embedding_tail
from overlapscope.advice.calls.flatten_gradients import flatten_gradients
from overlapscope.advice.calls.fsdp_units import fsdp_units
from overlapscope.advice.calls.longer_on_others import longer_on_others_ns
from overlapscope.advice.calls.repeated_broadcasts import repeated_broadcasts
from overlapscope.advice.calls.repeated_reductions import repeated_reductions
from overlapscope.advice.calls.serving_rank import serving_rank
from overlapscope.advice.calls.sixteen_bit_exchange import sixteen_bit_exchange
from overlapscope.advice.calls.sixteen_bit_gradients import sixteen_bit_gradients
from overlapscope.advice.calls.small_collectives import small_collectives
from overlapscope.advice.communication_copies import communication_copies
from overlapscope.advice.compute.device_copies import device_copies
from overlapscope.advice.compute.recomputation import recomputation
from overlapscope.advice.compute.sampling_sort import sampling_sort
from overlapscope.advice.compute.unfused_elementwise import compute_words, loses_elsewhere, unfused_elementwise
from overlapscope.advice.compute.unfused_optimizer import unfused_optimizer
from overlapscope.advice.copies.stream_copies import awaited_copies, copies_on_compute_stream
from overlapscope.advice.fewer_channels import interference
from overlapscope.advice.hosts.blocking_launches import blocking_launches
from overlapscope.advice.hosts.host_paced import host_paced
from overlapscope.advice.hosts.pausing_host import pausing_host
from overlapscope.advice.hosts.slow_host import is_why_late, slow_host
from overlapscope.advice.job_kind import JobKind, fitted, job_kind
from overlapscope.advice.late_rank import is_of_host_loss, late_rank, one_call, with_no_setting
from overlapscope.advice.losses.blocked_host import (
    AWAITED_NS,
    allocator_churn,
    blocking_calls,
    data_loading,
    garbage_collection,
)
from overlapscope.advice.losses.blocking_reductions import blocking_reductions
from overlapscope.advice.losses.computing_calls import computing_calls
from overlapscope.advice.losses.gradient_accumulation import gradient_accumulation
from overlapscope.advice.losses.host_copies import host_copies
from overlapscope.advice.losses.host_operation import host_operation
from overlapscope.advice.losses.host_pauses import host_pauses
from overlapscope.advice.losses.largest_loss import (
    OF_EXPOSED,
    largest_loss,
    late_gain_ns,
    waits_or_longer_compute_ns,
)
from overlapscope.advice.losses.launch_bound import launch_bound
from overlapscope.advice.losses.more_micro_batches import more_micro_batches
from overlapscope.advice.losses.sharded_optimizer import HOST_WAITED_NS, sharded_optimizer
from overlapscope.advice.losses.standing_still import standing_still
from overlapscope.advice.max_connections import max_connections
from overlapscope.advice.model_parallel import exchanges_of_experts, expert_parallel, made_again, tensor_parallel
from overlapscope.advice.nccl_trials import algorithm_trial
from overlapscope.advice.network import asking_for_network, repair_link, use_gpu_direct, use_infiniband
from overlapscope.advice.order import OF_COMMUNICATION, moved_ns, ranked
from overlapscope.advice.published_effects import with_published
from overlapscope.advice.rule_input import DAMAGED, RuleInput
from overlapscope.advice.shared_cores import comes_first, shared_cores
from overlapscope.advice.shared_stream import busy_lane
from overlapscope.advice.slower_in_turn import slower_in_turn, uneven_steps
from overlapscope.advice.step_shape import little_compute, overlap_without_effect, split_all_reduce
from overlapscope.advice.steps.deciding_rank import with_deciding_bound
from overlapscope.advice.uneven_stages import uneven_stages
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.common.cause_table import EVENTS_MISSING, NO_CAUSES
from overlapscope.analysis.common.wording import rank_list
from overlapscope.analysis.cross_rank.across_ranks import CrossRank, match_and_align
from overlapscope.analysis.cross_rank.wait_transfer import waits_by_step
from overlapscope.analysis.graph.built_graphs import BuiltGraphs
from overlapscope.analysis.rank_summaries import summarize_ranks
from overlapscope.analysis.rank_summary import RankSummary, steps_and_compute
from overlapscope.analysis.result import Analysis, Recommendation, late_in_each_step, with_costs
from overlapscope.analysis.stragglers.shared_cores import lack_cores
from overlapscope.display import list_some
from overlapscope.timeline.facts import Facts
from overlapscope.timeline.run import Run

if TYPE_CHECKING:
    from overlapscope.whatif.ddp.ddp_recording import RecordedCase
    from overlapscope.whatif.result import WhatIf

Rule = Callable[[RuleInput], Recommendation | None]
OF_ONE_RANK: Final[tuple[Rule, ...]] = (
    blocking_launches,
    launch_bound,
    data_loading,
    garbage_collection,
    blocking_calls,
    allocator_churn,
    copies_on_compute_stream,
    awaited_copies,
    host_copies,
    unfused_optimizer,
    unfused_elementwise,
    device_copies,
    sampling_sort,
    recomputation,
    gradient_accumulation,
    blocking_reductions,
    standing_still,
    pausing_host,
    host_pauses,
    host_operation,
    slow_host,
    repeated_reductions,
    repeated_broadcasts,
    flatten_gradients,
)
"""What a rank loses on its own, and what all send in vain or one by one: worth its time whoever waits for whom."""
RULES: Final[tuple[Rule, ...]] = (
    *OF_ONE_RANK,
    host_paced,
    computing_calls,
    uneven_steps,
    embedding_tail,
    small_collectives,
    busy_lane,
    serving_rank,
    interference,
    communication_copies,
    sixteen_bit_gradients,
    sixteen_bit_exchange,
    max_connections,
    use_infiniband,
    use_gpu_direct,
    repair_link,
    algorithm_trial,
    tensor_parallel,
    expert_parallel,
    split_all_reduce,
    sharded_optimizer,
    backward_prefetch,
    fsdp_units,
    overlap_without_effect,
    uneven_stages,
    more_micro_batches,
    little_compute,
)
SAME_TIME: Final = {
    "launch_bound": ("host_paced",),
    "slow_host": ("host_paced",),
    "flatten_gradients": ("small_collectives", "embedding_tail"),
    "computing_calls": ("embedding_tail",),
    "repeated_broadcasts": ("small_collectives",),
    "fsdp_units": ("overlap_without_effect",),
    "shared_cores": ("launch_bound", "blocking_calls"),
    "blocking_launches": ("launch_bound", "blocking_calls", "host_paced", "overlap_without_effect"),
}
"""Recommendations that name the same time call by call, or pause by pause."""
CASTS_GBS: Final = 0.5
"""Bytes a second, in 1e9, from which on 16 bits gain nothing without a device. Measured over loopback on two cores: an
all-reduce of 24 MB with casts and a sum in bfloat16 took as long as in float32, or up to 1.7 times, at 0.8 to 1.7; at
0.04 to 0.15 it gained (benchmarks/WHATIF.md). The value lies between, and is not measured."""
OF_WAITING: Final = frozenset({"computing_calls", "uneven_steps", "uneven_stages", "more_micro_batches"})
"""Recommendations on what makes ranks wait: they are no settings whose gain waiting leaves out."""
MOSTLY_WAITED: Final = 0.5
"""Calls of which the host alone waited for this share of the exposed time are overlapped once it does not. A choice."""
OF_LAUNCHES: Final = frozenset({"launch_bound", "flatten_gradients"})
"""Recommendations that lessen launches, and ..."""
MOSTLY_HOST: Final = 0.5
"""... from this share of the critical path in hosts on make the step shorter whoever comes last. A choice."""
SHORTENS: Final = 1 / 3
"""Changes of settings stand for the exposed communication, which is then not listed, if they save this share of it."""


def analyze_with_advice(run: Run, bandwidth: Facts | None = None, *, workers: int | None = None) -> Analysis:
    """Return the analysis with the recommendations of the rules, as `overlapscope analyze --json` prints it.

    `bandwidth` holds measurements of the bandwidth that the run's collectives could reach. `workers` is as in
    `summarize_ranks`.
    """
    graphs = BuiltGraphs(run)
    alone = summarize_ranks(run, graphs, workers=workers)
    cross_rank = match_and_align(run, steps_and_compute(alone))
    analysis = analyze(run, cross_rank, bandwidth, alone, graphs)
    return with_costs(msgspec.structs.replace(analysis, recommendations=by_rules(run, analysis, cross_rank, alone)))


def by_rules(
    run: Run, analysis: Analysis, cross_rank: CrossRank, alone: Mapping[int, RankSummary] | None = None
) -> list[Recommendation]:
    """Return the recommendations of the rules, best first. They need no replay, which takes ten times as long."""
    return _by_rules(run, analysis, cross_rank, alone)[0]


def _by_rules(
    run: Run, analysis: Analysis, cross_rank: CrossRank, alone: Mapping[int, RankSummary] | None
) -> tuple[list[Recommendation], bool]:
    """Return the recommendations of the rules, and whether waiting or cores come before all settings of buckets."""
    lacking = _lacking(analysis)
    if len(lacking) == len(analysis.ranks):
        return [], False
    cores = shared_cores(analysis)
    if lacking:
        every_rank = alone or summarize_ranks(run)
        alone = {rank: own for rank, own in every_rank.items() if rank not in lacking}
    given = RuleInput.of(run, analysis, cross_rank, alone)
    late = late_rank(
        analysis,
        lambda: waits_by_step(run, cross_rank.splits, given.windows if given.per == "step" else {}, given.numbers),
        lambda: slower_in_turn(given),
        lambda rank: one_call(run, cross_rank.splits, rank),
        lambda rank: longer_on_others_ns(given, rank),
    )
    own = {each.id: each for rule in OF_ONE_RANK if (each := rule(given)) is not None}
    if late and (_is_of_pauses(late, own) or is_why_late(own.get("slow_host"), late)):
        late = None
    first = [] if late and _is_of_launches(late, own, given) else _fixed_first(analysis, late, cores)
    found = {each.id: each for each in (*first, cores) if each is not None} | own
    settings = [] if any(map(comes_first, first)) else [rule for rule in RULES if rule not in OF_ONE_RANK]
    of_settings = [each for rule in settings if (each := rule(given)) is not None]
    bounded = (
        without_waiting(of_settings, given, first)
        if first
        else with_deciding_bound(of_settings, given, OF_EXPOSED - OF_WAITING)
    )
    found |= {each.id: each for each in bounded}
    for named, others in SAME_TIME.items():
        for other in others if named in found else ():
            found.pop(other, None)
    if _is_of_waits(found):
        found.pop("sharded_optimizer")
    if given.run_has_device and any(map(comes_first, found.values())):
        found.pop("data_loading", None)  # hosts without a core pause while they fetch a batch, too
    if late:
        found.pop("uneven_steps", None)  # it says so, or that launches are why
    if "late_rank" in found and not OF_COMMUNICATION & found.keys():
        found["late_rank"] = with_no_setting(found["late_rank"])
    if "tensor_parallel" in found and "recomputation" in found:
        found["tensor_parallel"] = made_again(found["tensor_parallel"])
    every = list(found.values())
    # Where cores are short, waiting and idle time have that cause.
    compute = "".join(_what_compute_is(analysis, {} if alone is None else alone, every))
    # Figures of the whole job hold idle and exposed time of ranks that lack events, in which these may have computed.
    most = None if lacking or any(map(comes_first, every)) else largest_loss(given, every, compute)
    if late and is_of_host_loss(late, found, given):
        every = [each for each in every if each is not found.get("late_rank")]
    every = asking_for_network([*every, most] if most else every, given)
    return _finished(every, given.job, analysis), bool(first or late)


def _lacking(analysis: Analysis) -> list[int]:
    """Return the ranks of which events are missing: of what is lost with them nothing can be concluded."""
    return [each.rank for each in analysis.ranks if each.no_causes_reason in EVENTS_MISSING]


def without_waiting(
    settings: Sequence[Recommendation], given: RuleInput, late: Sequence[Recommendation]
) -> list[Recommendation]:
    """Return recommendations whose upper bound is worth it without the waiting for `late` ranks that it may hold."""
    waits_ns = max(waits_or_longer_compute_ns(given, late), late_gain_ns(late, given.steps))
    left = round(max((given.figures.exposed_comm_ns or 0) - waits_ns, 0))
    found = []
    for each in settings:
        bound = None if each.gain_high_ns is None or each.id in OF_WAITING else min(each.gain_high_ns, left)
        if bound is not None and each.per == given.per and given.is_worth(bound):
            loss = None if each.loss_ns is None else min(each.loss_ns, left)
            found.append(msgspec.structs.replace(each, gain_high_ns=bound, loss_ns=loss))
    return found


def _fixed_first(analysis: Analysis, late: Recommendation | None, cores: Recommendation | None) -> list[Recommendation]:
    """Return what must be mended before anything else helps: shared cores, then a straggler they do not explain."""
    if cores is None or not comes_first(cores):
        return [late] if late else []
    return [cores, late] if late and analysis.skew.stragglers else [cores]


def _is_of_waits(found: Mapping[str, Recommendation]) -> bool:
    """Return whether most of what a sharded optimizer exposes is what only the host waits for, which `found` says."""
    sharded, waits = found.get("sharded_optimizer"), found.get("blocking_calls")
    if sharded is None or waits is None or not waits.evidence.get(AWAITED_NS):
        return False
    return bool(sharded.evidence[HOST_WAITED_NS] >= MOSTLY_WAITED * sharded.evidence["exposed_ns"])


def _is_of_pauses(late: Recommendation, found: Mapping[str, Recommendation]) -> bool:
    """Return whether ranks wait for one that is no straggler, but whose host pauses, which `found` says."""
    pauses = found.get("host_pauses")
    return pauses is not None and late.evidence["held_by"] is None and late.evidence["rank"] in pauses.evidence["ranks"]


def _is_of_launches(late: Recommendation, found: Mapping[str, Recommendation], given: RuleInput) -> bool:
    """Return whether ranks wait for nobody who is named while a step takes as long as launches do, on whichever rank,
    which `found` says: waiting, and idle time in launches, are one loss then, seen twice."""
    if not given.run_has_device or late.evidence["held_by"] is not None or not OF_LAUNCHES & found.keys():
        return False
    analysis = given.analysis
    if late_in_each_step(late.evidence["rank"], analysis) is not None:
        return False
    path = next(
        (each for each in analysis.critical_path.steps if each.step == analysis.critical_path.median_step), None
    )
    return path is not None and path.parts.get("host", 0) > MOSTLY_HOST * path.length_ns


def advise(
    run: Run,
    analysis: Analysis,
    cross_rank: CrossRank | None = None,
    caps_mb: Sequence[float] = (),
    keep: "Callable[[RecordedCase, WhatIf], None] | None" = None,
    alone: Mapping[int, RankSummary] | None = None,
    graphs: BuiltGraphs | None = None,
) -> tuple[list[Recommendation], list[str]]:
    """Return recommendations, best first, and the reasons for them or for having none.

    `caps_mb` are the bucket caps to try, in MiB; `keep` is called with the replayed case and its result, if there is
    one; `alone` and `graphs` are what `analyze` was given.
    """
    lacking = _lacking(analysis)
    why = " or ".join(
        NO_CAUSES[each] for each in EVENTS_MISSING if any(info.no_causes_reason == each for info in analysis.ranks)
    )
    if len(lacking) == len(analysis.ranks):
        return [], [f"nothing is recommended: {why}; record whole"] * bool(lacking)
    cross_rank, graphs = cross_rank or match_and_align(run), graphs or BuiltGraphs(run)
    alone = alone or summarize_ranks(run, graphs)
    from overlapscope.advice.losses.replayed_losses import with_replayed_gains  # noqa: PLC0415 - `by_rules` replays nothing

    found, come_first = _by_rules(run, analysis, cross_rank, alone)
    if lacking:
        others = "rules read the other ranks, and no change is replayed; record whole"
        return found, [f"{rank_list(lacking)}: {why}; {others}"]
    found, of_hosts = with_replayed_gains(found, run, cross_rank, graphs, alone), _not_looked_for(analysis)
    computes = _what_compute_is(analysis, alone, found)
    of_hosts += [words for words in computes if not any(words in each.title for each in found)]
    from overlapscope.advice.replayed_settings import (  # noqa: PLC0415 - `by_rules` replays nothing
        by_replay,
        with_replayed_prefetch,
    )

    if come_first:
        return _finished(with_replayed_prefetch(run, cross_rank, found, graphs), job_kind(run), analysis), of_hosts
    found, reasons = by_replay(run, cross_rank, found, caps_mb, keep, graphs)
    if not analysis.run.has_device and (
        lack_cores(analysis.findings) or _transfers_stall(analysis) or _transfers_as_fast_as_casts(analysis)
    ):
        # Threads that transfer wait for cores, or stand still, whatever they send; or cores cast no faster than a link.
        found = [each for each in found if each.id != "sixteen_bit_gradients"]
    changes = [each for each in found if each.verdict == "change" and each.id in OF_EXPOSED]
    lost_ns = sum(each.loss_ns or 0 for each in found if each.id == "exposed_communication")
    if lost_ns and sum(each.predicted_gain_ns or 0 for each in changes) >= SHORTENS * lost_ns:
        found = [each for each in found if each.id != "exposed_communication"]
        which = list_some([each.id for each in changes])
        reasons = [*reasons, f"exposed_communication, which `analyze` lists, is what {which} would shorten"]
    return _finished(found, job_kind(run), analysis), [*reasons, *of_hosts]


def _transfers_stall(analysis: Analysis) -> bool:
    """Return whether hosts stand still, or transfers took at least twice as long as the fastest of their size."""
    causes = analysis.headline.causes
    transfer = sum(causes.get(each, 0) for each in ("ahead", "dependency", "host_waited", "tail"))
    still = any(each.id == "standing_still" for each in analysis.findings)
    slow = causes.get("slow_transfer", 0)
    return still or slow >= max(transfer, 1)


def _transfers_as_fast_as_casts(analysis: Analysis) -> bool:
    """Return whether reductions are so fast that on cores the casts, and sums in 16 bits, take as long as they save."""
    speeds = [row.algbw_gbs for row in analysis.collectives if row.op in ("all_reduce", "reduce_scatter")]
    return max((each for each in speeds if each is not None), default=0.0) >= CASTS_GBS


def _not_looked_for(analysis: Analysis) -> list[str]:
    """Return that losses of hosts whose record is damaged, and stragglers for reasons of hosts, are not known; empty
    where none is damaged."""
    damaged = [each.rank for each in analysis.ranks if each.no_causes_reason == DAMAGED]
    if not damaged:
        return []
    what = f"whether {rank_list(damaged)} lost time on the host (launches, synchronisations, allocations)"
    return [f"{what}, and whether a rank is late because of its host, is not known: {NO_CAUSES[DAMAGED]}"]


def _what_compute_is(
    analysis: Analysis, alone: Mapping[int, RankSummary], found: Iterable[Recommendation]
) -> list[str]:
    """Return which kernels take the time of a job on devices that loses little; empty for others, and where a late rank
    is `found` to decide it."""
    late = any(each.id == "late_rank" for each in found)
    if late or not analysis.run.has_device or loses_elsewhere(analysis):
        return []
    words = compute_words(analysis.headline, [own.kernels for own in alone.values()])
    return [words] if words else []


def _finished(found: Sequence[Recommendation], job: JobKind, analysis: Analysis) -> list[Recommendation]:
    head = analysis.headline
    steps = head.steps if head.window == "step" else 1
    has_experts = bool(exchanges_of_experts(analysis.collectives))
    published = with_published(fitted(found, job), job, has_experts=has_experts)
    return ranked(published, steps, moved_ns(found, analysis))
