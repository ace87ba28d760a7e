"""Rule: name the largest loss where no other rule does: exposed communication, or idle time of the device."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, Final

import msgspec
from msgspec import to_builtins

from overlapscope.advice.calls.flatten_gradients import idle_in_bursts
from overlapscope.advice.copies.copies_alone import copies_alone
from overlapscope.advice.late_rank import IN_OTHERS_NS, LONGER_COMPUTE_NS, OWN_IDLE_NS
from overlapscope.advice.losses.blocked_host import AWAITED_NS
from overlapscope.advice.losses.exposed_communication import ExposedLoss, exposed_communication
from overlapscope.advice.losses.exposed_remedies import MOSTLY, instead
from overlapscope.advice.losses.host_time import blocker_words, host_time
from overlapscope.advice.losses.idle_gaps import IdleGaps
from overlapscope.advice.losses.named_cause import BEGUN_APART
from overlapscope.advice.rule_input import WORTH, RuleInput, gain_ns, ms, per_step, recommended, recomputed_ns
from overlapscope.advice.steps.deciding_rank import Deciding, deciding
from overlapscope.advice.steps.long_steps import are_of_named, long_steps, take_longer
from overlapscope.analysis.common.cause_table import NO_CAUSES, WAITS_FOR_LATE_RANK, idle_label
from overlapscope.analysis.cost.repeated_part import RepeatedPart
from overlapscope.analysis.graph.found_causes import LossKind
from overlapscope.analysis.job_step.headline import few_communicate
from overlapscope.analysis.job_step.longer_calls import LONGER_THAN_LIKE, SLOWER_GROUPS, USUAL_LONGER_NS
from overlapscope.analysis.result import (
    Analysis,
    Recommendation,
    WithoutOutliers,
    causes_of_all_steps,
    costly_outliers,
    without_outliers,
)
from overlapscope.analysis.stragglers.shared_cores import lack_cores
from overlapscope.display import list_some

ADDRESSED: Final = 0.5
"""A loss is named by another recommendation if that addresses at least this share of it."""
OF_EXPOSED: Final = frozenset({
    "late_rank", "bucket_cap", "bucket_view", "sixteen_bit_gradients", "fsdp_gathers", "flatten_gradients",
    "embedding_tail", "small_collectives", "busy_lane", "repair_link", "tensor_parallel", "expert_parallel",
    "split_all_reduce", "overlap_without_effect", "blocking_reductions",
    "repeated_reductions", "repeated_broadcasts", "computing_calls", "sharded_optimizer", "backward_prefetch",
    "uneven_stages", "more_micro_batches", "fsdp_units", "serving_rank",
})  # fmt: skip
"""Recommendations that address exposed communication."""
OF_IDLE: Final = frozenset(
    {
        "launch_bound", "blocking_launches", "host_pauses", "host_operation", "data_loading", "garbage_collection",
        "blocking_calls", "allocator_churn", "shared_cores",
    }
)  # fmt: skip
"""Recommendations that address idle time."""
MUCH_LEFT_OUT: Final = 0.1
"""From this share of exposed time on what is due to the start of the recording is left out, and of idle time what lies
before its own. A choice: less is not worth a figure that differs from the headline's."""
MUCH_LONGER: Final = 0.05
"""Least share of the exposed time that calls take longer than their like to be told. A choice."""
MUCH_WAITED: Final = 0.25
"""From this share of exposed time on what calls of a group take longer than those of another like it is a loss of its
own, whatever overlap may address. A choice."""
NOT_LAUNCHED: Final = "host_not_ready"
GAP_CAUSES: Final = ("behind_compute", NOT_LAUNCHED)
"""Causes of exposed time in which the next compute waited for other compute, or for its launch: the device idles."""
FEW_GAPS: Final = 0.1
"""Below this share of idle time and gaps the gaps are not worth words of their own. A choice."""
VERY_LITTLE: Final = 0.05
"""Where less of a step on devices is exposed or idle, none of it is called the largest loss: what kernels take may be.
A choice."""
MOST_OF_STEPS: Final = 0.9
"""Slow transfers are of few steps where these, the slowest ones first, hold this share of them. A choice."""
USUAL: Final = ("Largest loss: ", "Largest loss outside compute: ", "")
"""Words before a loss of usual steps: the largest one, the largest where hosts compute, which may take longer than it
must, or another."""
OF_LAUNCHES: Final = ("launch_bound", "launch_latency")
"""Causes of idle time that launches of the rank's own host decide."""
OF_HOSTS: Final[tuple[LossKind, ...]] = (
    "launch_rate", "pause", "long_pause", "blocking_call", "poll", "data_loading", "garbage_collection", "allocation",
)  # fmt: skip
"""Losses by the host, the longest of which shows idle time ..."""
SHOWS: Final = 0.25
"""... of which they are this share or more. A choice: where a device waits for its own work, no host shows why."""
MEASURED_IDLE: Final = "time in which the device neither computes nor communicates nor copies"
MEASURED_GAPS: Final = "exposed communication in which the next kernel waits for another one, or for its launch"
MEASURED_EXPOSED: Final = "communication beside which nothing is computed, while the optimizer's same kernels repeat"
MARK: Final = "# mark steps, and record some after start-up alone, with what hosts do: causes are then of these steps"
RECORD: Final = "torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])  # with host calls"


def largest_loss(given: RuleInput, found: Sequence[Recommendation], compute: str = "") -> Recommendation | None:
    """Return what names the largest loss; None where a recommendation of `found` does, or the loss is small.

    Steps that cost more than all that the others lose are named by none of them. `compute` says what compute is
    (`compute_words`): where nearly nothing is lost beside it, that stands first.
    """
    found = [each for each in found if not each.changes_numerics]  # a trial that may fail names no loss
    part = given.analysis.throughput.repeated if given.analysis.throughput else None
    if part is not None:
        return _after_start_up(given, found, part)
    if (long := _long_steps(given, found)) is not None:
        return long
    if (copies := copies_alone(given, found)) is not None:
        return copies
    return _of_each_step(given, found, compute)


def _of_each_step(given: RuleInput, found: Sequence[Recommendation], compute: str) -> Recommendation | None:
    """Return what names the largest loss of a usual step, exposed communication or idle time; None where `found` does,
    or the loss is small."""
    # What is due to the start of the recording is no loss: others only seem to wait, or a device works unseen.
    exposed = (given.figures.exposed_comm_ns or 0) - _left_out_ns(given)
    few = few_communicate(given.analysis.headline)
    if few is not None:  # medians hide it, or lie between the two kinds of steps
        exposed = max(exposed, round(few.exposed_comm_ns))
    late_idle = round(sum(per_step(each, each.evidence.get(OWN_IDLE_NS, 0), given.steps) for each in found))
    late_idle = min(late_idle, _idle_ns(given))
    # A straggler idles longer while others wait for it, and a loop of updates between its kernels: that is one loss.
    between = min(_between_updates_ns(found), _idle_ns(given) - late_idle)
    idle = _idle_ns(given) - late_idle - between
    gaps = gaps_ns(given.analysis)
    of_exposed = exposed - gaps >= idle + gaps or not given.run_has_device  # a host may do what it must between its own
    beside = gaps if gaps >= FEW_GAPS * (idle + gaps) else 0
    lost = [(each.id, _lost_ns(each, given.steps)) for each in found]
    # Where another recommendation names idle time, with these gaps, what is exposed is left to name.
    # What compute could run beside, without waits of the host, is exposed, and not idle.
    awaited = sum(each.evidence.get(AWAITED_NS, 0) for each in found if each.id == "blocking_calls")
    names_idle = OF_IDLE - {each.id for each in found if _is_before_kernels(each)}
    of_idle = sum(ns for name, ns in lost if name in names_idle) - awaited + _of_bursts_ns(given, found)
    is_named = of_idle >= ADDRESSED * (idle + beside) > 0
    of_exposed |= exposed >= idle and is_named
    loss, named = (exposed, OF_EXPOSED) if of_exposed else (idle + beside, names_idle)
    others = max((ns for _, ns in lost), default=0)
    addressed = sum(ns for name, ns in lost if name in named) + awaited if of_exposed else of_idle
    outlying = _costly(given, found, max(exposed, idle, others)) is not None
    # Whoever is late in a group that is known to wait, no overlap of its calls brings back what is waited.
    outlying |= of_exposed and bool(waiting_groups(given.analysis))
    if not given.is_worth(loss) or (not outlying and (loss < others or addressed >= ADDRESSED * loss)):
        return _slow_transfers(given, found, idle)
    is_late = any(each.id == "late_rank" for each in found)
    late = () if is_late else given.analysis.skew.stragglers
    decides = deciding(given) if of_exposed and not is_late and few is None else None
    waited_ns = late_gain_ns(found, given.steps) if decides is None else max(exposed - decides.exposed_ns, 0)
    of_others = waited_ns + max(launches_ns(found, given.analysis), gaps) if of_exposed else 0.0
    is_largest = _is_largest(given, found, [each for each in lost if each[0] in named], loss - of_others)
    if not of_exposed:
        idle_loss = _IdleLoss(ns=idle + late_idle, gaps_ns=beside, late_ns=late_idle, between_ns=between)
        return _idle(given, idle_loss, _named(given, found, idle + late_idle + beside, is_largest=is_largest), compute)
    waits_ns = min(waits_or_longer_compute_ns(given, found), exposed) if is_late and few is None else 0
    is_largest &= waits_ns <= exposed - waits_ns
    words = _named(given, found, exposed, is_largest=is_largest)
    own_loss = _exposed(given, exposed, waits_ns, decides, words, compute)
    # What is left beside waiting that another recommendation names may be too little to be named.
    return exposed_communication(given, own_loss, late) if given.is_worth(own_loss.ns) else None


def _is_largest(
    given: RuleInput, found: Sequence[Recommendation], parts: Sequence[tuple[str, float]], loss_ns: float
) -> bool:
    """Return whether a loss is the largest. `loss_ns` is what others do not explain of it; `parts` are the ids of those
    of `found` that address it, each with what it costs, in ns a step: that is a part of the loss."""
    named = {name for name, _ in parts} - {"late_rank"}
    larger = [_cost_ns(each, given.steps) for each in found if each.id not in named]
    larger += [per_step(each, recomputed_ns(each), given.steps) for each in found]  # if more, that stands first
    own = [ns for name, ns in parts if name in named]
    may_be_why = any(each.id == "slow_host" for each in found)
    return not may_be_why and loss_ns >= max(larger, default=0) and loss_ns - sum(own) >= max(own, default=0)


def _long_steps(given: RuleInput, found: Sequence[Recommendation]) -> Recommendation | None:
    """Return what names few steps that cost more than all that each step loses, by what is more in them; None without,
    where the median step is one of them, and where pauses or a late rank that `found` names are why."""
    lost = (_lost_ns(each, given.steps) for each in found)
    most = max((given.figures.exposed_comm_ns or 0) - _left_out_ns(given), _idle_ns(given), *lost)
    costly = _costly(given, found, most)
    if costly is None or few_communicate(given.analysis.headline) is not None or _outliers_in_median(given, most):
        return None
    long = long_steps(given, costly)
    late = {each.evidence.get("rank") for each in found if each.id == "late_rank"}
    return None if long is None or long.evidence["rank"] in late else long


def _costly(given: RuleInput, found: Sequence[Recommendation], loss_ns: float) -> WithoutOutliers | None:
    """Return the outliers that cost the recording more than a loss of each of its steps; None where `found` names
    what they are longer for, pauses or another loss of hosts that counts these steps: that is one loss."""
    costly = costly_outliers(given.analysis, loss_ns)
    return None if costly is None or are_of_named(found, costly) else costly


def _between_updates_ns(found: Sequence[Recommendation]) -> int:
    """Return for how long a device idles between the kernels of an optimizer that updates one parameter after the
    other, which `unfused_optimizer` counts then; ns a step."""
    loops = [each for each in found if each.id == "unfused_optimizer" and each.loss_ns is not None]
    return sum(each.evidence.get("idle_ns", 0) for each in loops)


def _outliers_in_median(given: RuleInput, loss_ns: float) -> WithoutOutliers | None:
    """Return the medians of the other steps where outliers make the median step longer by more than a loss."""
    usual = without_outliers(given.analysis)
    return usual if usual is not None and given.step_ns - usual.step_ns > loss_ns else None


def _after_start_up(given: RuleInput, found: Sequence[Recommendation], part: RepeatedPart) -> Recommendation | None:
    """Return what names the largest loss of the steps after a start-up, which figures of the recording mostly are of;
    no causes of these steps are known. None where what others name, less all that the start-up may lose of it, is
    `ADDRESSED` of it."""
    is_idle = part.idle_ns > part.exposed_comm_ns
    ns = part.idle_ns if is_idle else part.exposed_comm_ns
    named, whole_ns = (OF_IDLE, given.figures.idle_ns) if is_idle else (OF_EXPOSED, given.figures.exposed_comm_ns)
    addressed = sum(each.loss_ns or 0 for each in found if each.id in named) - max((whole_ns or 0) - ns, 0)
    if ns < WORTH * part.window_ns or addressed >= ADDRESSED * ns:
        return None
    cycle, what = ms(part.window_ns / part.cycles), "idle time" if is_idle else "exposed communication"
    return recommended(
        given,
        id="idle_device" if is_idle else "exposed_communication",
        title=f"Largest loss after start-up: {ms(ns)} of {ms(part.window_ns)}, in which the same step of {cycle} "
        f"repeats {part.cycles} times, are {what}",
        verdict="look",
        loss_ns=ns,
        apply={"look": MARK},
        evidence={"after_start_up": to_builtins(part)},
        measured=[MEASURED_IDLE if is_idle else MEASURED_EXPOSED],
        assumed=[] if given.is_whole or is_idle else ["that none of it is waiting for ranks that were not recorded"],
        verify="overlapscope analyze NEW_RUN: the loss is smaller",
    )


def _is_before_kernels(each: Recommendation) -> bool:
    """Return whether it is of pauses of hosts before the first kernel, which no step's idle time holds."""
    found = each.evidence
    return each.id == "host_pauses" and bool(found.get("steps")) and found.get("device_step") is None


def _of_bursts_ns(given: RuleInput, found: Sequence[Recommendation]) -> int:
    """Return the idle time in bursts of reductions, which what names these addresses, and other rules leave to it."""
    return idle_in_bursts(given) if any(each.id == "flatten_gradients" for each in found) else 0


def gaps_ns(analysis: Analysis) -> int:
    """Return for how much of the exposed time of a step on devices the next compute waited for other compute, or for
    its launch: no loss of communication, though some runs beside it; 0 where few steps communicate, as a median of
    causes then says nothing."""
    known = analysis.run.has_device and few_communicate(analysis.headline) is None
    return sum(analysis.headline.causes.get(cause, 0) for cause in GAP_CAUSES) if known else 0


def slow_transfers_ns(analysis: Analysis) -> float:
    """Return what transfers on devices take longer than their baseline, in ns a step, mean over all complete steps and
    ranks: a median holds none of few slow steps. 0 of a single step, and without steps."""
    head = analysis.headline
    of = len(head.ranks) * len(head.job_steps)
    return causes_of_all_steps(analysis)["slow_transfer"] / of if of and analysis.run.has_device else 0.0


def _slow_transfers(given: RuleInput, found: Sequence[Recommendation], idle: int) -> Recommendation | None:
    """Return what names slow transfers of some steps, where in the mean these cost more than all that others name; None
    elsewhere, and where the link is named."""
    ns, head = slow_transfers_ns(given.analysis), given.analysis.headline
    most = max((_cost_ns(each, given.steps) for each in found), default=0)
    if any(each.id == "repair_link" for each in found) or not given.is_worth(ns) or ns <= max(most, idle):
        return None
    numbers = [each.step for each in head.job_steps if each.step is not None]
    by_step = {number: _slow_in_step_ns(given.analysis, number) for number in numbers}
    slowest = sorted(by_step, key=lambda step: -by_step[step])
    few: list[int] = []
    while sum(by_step[step] for step in few) < MOST_OF_STEPS * sum(by_step.values()):
        few.append(slowest[len(few)])
    which = f", nearly all in step{'s' * (len(few) > 1)} {list_some(sorted(few))}"
    where = which if 2 * len(few) < len(by_step) else ""
    step_ns = fmean(each.step_ns for each in head.job_steps)
    return recommended(
        given,
        id="exposed_communication",
        title=f"{USUAL[0]}transfers slower than their baseline take {ms(ns)} of a {ms(step_ns)} step, in the mean of "
        f"{len(by_step)} steps{where}",
        verdict="look",
        loss_ns=round(ns),
        apply={"torch": instead(given, "slow_transfer")},
        evidence={"slow_transfer_ns": round(ns), "steps": sorted(few)},
        measured=["what transfers that nothing overlaps take longer than the shortest ones of their like"],
        assumed=[] if given.is_whole else ["that none of it is waiting for ranks that were not recorded"],
        verify="overlapscope analyze NEW_RUN: the loss is smaller",
    )


def _slow_in_step_ns(analysis: Analysis, number: int) -> int:
    """Return what transfers of one step take longer than their baseline, in ns, summed over ranks."""
    steps = [step for info in analysis.ranks if info.rank in analysis.headline.ranks for step in info.steps]
    return sum(step.causes.get("slow_transfer", 0) for step in steps if step.step == number and step.complete)


def waits_or_longer_compute_ns(given: RuleInput, found: Iterable[Recommendation]) -> int:
    """Return the waiting for late ranks in a step: what is known to be, with that for a straggler in calls without a
    match, or what ranks compute longer in turn, without the time in which they idle, where that is more: ranks wait for
    that if one that was not recorded comes last, too.
    """
    found = list(found)
    longer_ns = max((each.evidence.get(LONGER_COMPUTE_NS, 0) for each in found), default=0)
    others_ns = sum(round(per_step(each, each.evidence.get(IN_OTHERS_NS, 0), given.steps)) for each in found)
    return max(sum(map(given.cause_ns, WAITS_FOR_LATE_RANK)) + others_ns, longer_ns - _idle_ns(given))


def late_gain_ns(found: Sequence[Recommendation], steps: int) -> float:
    """Return what removing the excess of a straggler would gain in a step, which is exposed time of others, or at most
    evening out what ranks compute longer in turn; else 0."""
    late, uneven = straggler_of(found), next((each for each in found if each.id == "uneven_steps"), None)
    if late is None:
        return 0.0 if uneven is None else per_step(uneven, uneven.gain_high_ns, steps)
    return per_step(late, late.predicted_gain_ns, steps)


def straggler_of(found: Iterable[Recommendation]) -> Recommendation | None:
    """Return the recommendation that names a straggler and why it is late, if there is one."""
    return next((each for each in found if each.id == "late_rank" and each.evidence.get("held_by") is not None), None)


def launches_ns(found: Sequence[Recommendation], analysis: Analysis) -> int:
    """Return for how much of the exposed time of a step the next compute was not launched yet, where launches are
    recommended to be fewer; else 0."""
    launched_late = any(each.id == "launch_bound" for each in found)
    return analysis.headline.causes.get(NOT_LAUNCHED, 0) if launched_late else 0


def _lost_ns(each: Recommendation, steps: int) -> float:
    """Return the loss that a recommendation names, in ns a step, without what a straggler idles longer than others."""
    return per_step(each, (each.loss_ns or 0) - each.evidence.get(OWN_IDLE_NS, 0), steps)


def _cost_ns(each: Recommendation, steps: int) -> float:
    """Return the known cost of a cause in a step: its time, or what a change of it gains, at most."""
    return per_step(each, max(each.loss_ns or 0, gain_ns(each) or 0), steps)


def _left_out_ns(given: RuleInput) -> int:
    """Return how much of the exposed time is due to the start of the recording, if that is much."""
    begun_ns = given.cause_ns(BEGUN_APART)
    return begun_ns if begun_ns >= MUCH_LEFT_OUT * (given.figures.exposed_comm_ns or 0) else 0


def _unrecorded_ns(given: RuleInput) -> int:
    """Return for how much of the idle time the device worked off what was launched before the recording, if that is
    much."""
    ns = given.figures.idle_causes.get(BEGUN_APART, 0)
    return ns if ns >= MUCH_LEFT_OUT * (given.figures.idle_ns or 0) else 0


def _idle_ns(given: RuleInput) -> int:
    """Return the idle time of a step without what lies before the recording."""
    return (given.figures.idle_ns or 0) - _unrecorded_ns(given)


def _exposed(
    given: RuleInput, exposed: int, waits_ns: int, decides: Deciding | None, words: tuple[str, str], compute: str
) -> ExposedLoss:
    """Return the exposed communication to name. `waits_ns` is waiting for late ranks, which another recommendation
    names: left out of what steps usually lose; `decides` is the rank that decides, where it is exposed for far less;
    `words` are those of `_named`."""
    before, step = words
    usual = before in USUAL
    waits_ns, longer_ns = waits_ns if usual else 0, longer_ns_of(given.analysis)
    before = _of_little(given, before, compute)
    return ExposedLoss(
        ns=exposed - waits_ns,
        left_out_ns=_left_out_ns(given),
        late_ns=waits_ns,
        before=before,
        step=step,
        usual=usual,
        decides=decides if usual else None,
        longer_ns=longer_ns if usual and longer_ns >= MUCH_LONGER * exposed else 0,
        waiting_groups=[each["group"] for each in waiting_groups(given.analysis)] if usual else [],
        compute_said=bool(compute) and before.startswith(compute),
    )


def _of_little(given: RuleInput, before: str, compute: str) -> str:
    """Return the words before a loss, which is not called the largest where compute is nearly all of a step on devices:
    what compute is, then."""
    lost_ns = (given.figures.exposed_comm_ns or 0) + _idle_ns(given)
    little = lost_ns < VERY_LITTLE * given.step_ns and few_communicate(given.analysis.headline) is None
    if before != USUAL[0] or not given.run_has_device or not little:
        return before
    return f"{compute}; " if compute else ""


def longer_ns_of(analysis: Analysis) -> int:
    """Return how much of the exposed time of the median step calls take longer than their like; 0 where that is not
    known."""
    found = next((each.evidence for each in analysis.findings if each.id == LONGER_THAN_LIKE), None)
    return 0 if found is None else min(found[USUAL_LONGER_NS], analysis.headline.exposed_comm_ns or 0)


def waiting_groups(analysis: Analysis) -> Sequence[Mapping[str, Any]]:
    """Return the groups whose calls take longer than like ones of another group, where that is much (`MUCH_WAITED`) of
    exposed communication: fields of `SlowerGroup`."""
    found = next((each.evidence for each in analysis.findings if each.id == LONGER_THAN_LIKE), None)
    much = longer_ns_of(analysis) >= MUCH_WAITED * (analysis.headline.exposed_comm_ns or 0)
    return () if found is None or not much else found.get(SLOWER_GROUPS, ())


def longer_beside_launches_ns(analysis: Analysis, exposed_ns: int) -> int:
    """Return what calls take longer than their like, where that is most of the exposed time, and launches of the ranks'
    own hosts cost more than the rest of it; else 0."""
    longer_ns, idle = longer_ns_of(analysis), analysis.headline.idle_causes
    launches_ns = sum(idle.get(cause, 0) for cause in OF_LAUNCHES)
    return longer_ns if longer_ns >= MOSTLY * exposed_ns and launches_ns > exposed_ns - longer_ns else 0


def _named(given: RuleInput, found: Sequence[Recommendation], loss: int, *, is_largest: bool) -> tuple[str, str]:
    """Return the words before a loss and for the step that it is of; first outlier steps, where they cost more, and
    `found` does not name why.

    `is_largest` tells whether what other recommendations name costs no more.
    """
    idle = _idle_ns(given)
    if (few := few_communicate(given.analysis.headline)) is not None and loss > idle:
        return USUAL[0], f"a {ms(few.step_ns)} step in the mean ({few.communicate} of {few.steps} steps communicate)"
    if (usual := _outliers_in_median(given, max(loss, idle))) is not None:
        which = f"step{'s' if len(usual.outliers) > 1 else ''} {list_some(usual.outliers)}"
        median = f"the median step {ms(given.step_ns)} instead of {ms(usual.step_ns)}"
        return f"Largest loss: outliers ({which}) make {median}; ", "it"
    if (costly := _costly(given, found, max(loss, idle))) is not None:
        return f"Largest loss: {take_longer(costly)}; in the others, ", given.of_step
    largest, outside, other = USUAL
    # Where cores are short, how much of each loss is for lack of them is not known.
    slower = next((each.evidence["lost_ns"] for each in given.analysis.findings if each.id == "slowing_steps"), 0)
    known = max(idle, slower, given.figures.copy_only_ns or 0) if given.run_has_device else idle
    loss -= longer_beside_launches_ns(given.analysis, loss) if loss >= idle else 0
    if is_largest and loss >= known and not lack_cores(given.analysis.findings):
        other = largest if given.run_has_device else outside
    return other, given.of_step


class _IdleLoss(msgspec.Struct, frozen=True, kw_only=True):
    """How long a device is idle in a step."""

    ns: int
    gaps_ns: int
    """Gaps between kernels beside which some communication runs, which `ns` does not hold."""
    late_ns: int
    """Of `ns`, what a straggler idles longer than others, which another recommendation counts."""
    between_ns: int
    """Idle time between the kernels of an optimizer, which another recommendation counts, and `ns` does not hold."""


def _idle(given: RuleInput, loss: _IdleLoss, before: tuple[str, str], compute: str) -> Recommendation:
    """Return what names idle time; `before` are the words of `_named`."""
    reasons = {each.no_causes_reason for each in given.analysis.ranks if each.no_causes_reason is not None}
    idle, gaps_ns, late_idle = loss.ns, loss.gaps_ns, loss.late_ns
    largest, step = _of_little(given, before[0], compute), before[1]
    only_gaps = given.is_worth(gaps_ns) and not given.is_worth(idle)
    evidence = {"idle_ns": idle, "idle_causes": dict(given.figures.idle_causes)}
    if only_gaps:
        late = _not_launched(given, gaps_ns)
        words, shown = f"gaps between kernels beside communication take {ms(gaps_ns)} of {step}{late}", None
    else:
        of_it, gaps = _of_idle(given, idle, late_idle)
        longer = f", {ms(late_idle)} of it as a late rank idles longer" if late_idle else ""
        longer += f", without {ms(loss.between_ns)} between updates of parameters" if loss.between_ns else ""
        words = f"{_beside(given, gaps_ns)}the device is idle for {ms(idle)} of {step}{longer}{of_it}"
        hosts = host_time(given, *OF_HOSTS)
        shown = hosts.shown_by if hosts.ns >= SHOWS * idle else None
        evidence |= {} if gaps is None else {"gaps": gaps.gaps, "long_gaps_ns": gaps.long.tolist()}
    return recommended(
        given,
        id="idle_device",
        title=f"{largest}{words}",
        verdict="look",
        loss_ns=gaps_ns if only_gaps else idle + gaps_ns - late_idle,
        apply={"torch": RECORD} if "no_host_events" in reasons else {},
        evidence=evidence | {"gaps_beside_communication_ns": gaps_ns},
        shown_by=shown,
        measured=[*[MEASURED_GAPS] * (gaps_ns > 0), *[MEASURED_IDLE] * (not only_gaps)],
        assumed=[],
        verify="overlapscope analyze NEW_RUN: the loss is smaller",
    )


def _of_idle(given: RuleInput, idle: int, late_idle: int) -> tuple[str, IdleGaps | None]:
    """Return words for the largest cause of idle time, and the gaps, where nothing of the host is known; of `late_idle`
    it is known that a late rank idles longer."""
    reasons = [each.no_causes_reason for each in given.analysis.ranks if each.no_causes_reason is not None]
    causes = [each for each in given.figures.idle_causes.items() if each[0] != BEGUN_APART or not _unrecorded_ns(given)]
    cause, ns = max(causes, key=lambda each: each[1], default=("unknown", idle))
    same = " (these overlap)" if cause != "unknown" and late_idle > idle - ns else ""
    ns = min(ns, idle - late_idle) if cause == "unknown" else min(ns, idle)
    gaps = IdleGaps.of(given) if "no_host_events" in reasons and cause == "unknown" else None
    if gaps is not None:
        # What the host did is not known; how its pauses are distributed is.
        unknown = "" if ns >= idle else f"{ms(ns)} of it unknown, as "
        return f" ({unknown}{NO_CAUSES['no_host_events']}): {gaps.words()}", gaps
    turn_ns = min(_in_turn_ns(given), idle)
    if cause == "unknown" and turn_ns >= ns / 2:
        return f", {ms(turn_ns)} of it while another device of the same process works", None
    why = f": {NO_CAUSES[reasons[0]]}" if reasons and cause == "unknown" else ""
    return f", {ms(ns)} of it{same}: {idle_label(cause)}{why or blocker_words(given, idle)}", None


def _in_turn_ns(given: RuleInput) -> int:
    """Return how long devices of one process idle in a step, or in the recording, while another of them works, in the
    mean of all ranks; 0 where that is little."""
    found = next((each.evidence for each in given.analysis.findings if each.id == "devices_in_turn"), None)
    if found is None or bool(found["steps"]) != (given.per == "step"):
        return 0
    of_all_ns: int = sum(found["in_turn_ns"].values())
    steps: int = max(found["steps"], 1)
    return of_all_ns // (len(given.analysis.ranks) * steps)


def _beside(given: RuleInput, gaps_ns: int) -> str:
    late = _not_launched(given, gaps_ns)
    return f"gaps between kernels take {ms(gaps_ns)} beside communication{late}, and " if gaps_ns else ""


def _not_launched(given: RuleInput, gaps_ns: int) -> str:
    """Return for how much of the gaps the next kernel was not launched yet, which the table of causes holds apart."""
    late_ns = given.cause_ns(NOT_LAUNCHED)
    return f" ({ms(late_ns)} of it as the next one was not launched yet)" if 0 < late_ns < gaps_ns else ""
