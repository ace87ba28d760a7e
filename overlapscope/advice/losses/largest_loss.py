"""Rule: name the largest loss where no other rule does: exposed communication, or idle time of the device."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from overlapscope.advice.losses.exposed_calls import (
    average_parameters,
    backward_waits_ns,
    go_beside_backward,
    link_is_full,
    one_bandwidth_gbs,
)
from overlapscope.advice.losses.host_time import host_time
from overlapscope.advice.losses.idle_gaps import IdleGaps
from overlapscope.advice.rule_input import RuleInput, ms, recommended
from overlapscope.analysis.common.cause_table import (
    LATE_RANKS,
    MAY_BE_WAITING,
    NO_CAUSES,
    TRANSFER,
    TRANSFERS,
    WAITS_FOR_LATE_RANK,
    cause_label,
    idle_label,
)
from overlapscope.analysis.common.wording import rank_list
from overlapscope.analysis.cross_rank.wait_transfer import mostly_waited_for
from overlapscope.analysis.job_step.headline import few_communicate
from overlapscope.analysis.job_step.longer_calls import LONGER_THAN_LIKE
from overlapscope.analysis.result import (
    Analysis,
    Recommendation,
    causes_of_all_steps,
    costly_outliers,
    has_others,
    usual_causes,
    waits_for_late_ranks,
    without_outliers,
)
from overlapscope.analysis.stragglers.shared_cores import lack_cores
from overlapscope.analysis.stragglers.stragglers import Straggler
from overlapscope.display import list_some, percent_text
from overlapscope.errors import InputError
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.operations import ITEM_BYTES, POINT_TO_POINT
from overlapscope.timeline.run import RankTimeline
from overlapscope.whatif.parallelism import shows_ddp

MOST_OPS: Final = 3
ADDRESSED: Final = 0.5
"""A loss is named by another recommendation if that addresses at least this share of it."""
OF_EXPOSED: Final = frozenset({
    "late_rank", "bucket_cap", "bucket_view", "sixteen_bit_gradients", "fsdp_gathers", "flatten_gradients",
    "embedding_tail", "small_collectives", "busy_lane", "repair_link", "tensor_parallel", "expert_parallel",
    "split_all_reduce", "overlap_without_effect", "blocking_reductions",
    "repeated_reductions", "repeated_broadcasts", "computing_calls", "sharded_optimizer",
})  # fmt: skip
"""Recommendations that address exposed communication."""
OF_IDLE: Final = frozenset(
    {
        "launch_bound", "host_pauses", "data_loading", "garbage_collection", "blocking_calls", "allocator_churn",
        "shared_cores",
    }
)  # fmt: skip
"""Recommendations that address idle time."""
OF_LATE_RANKS: Final = "late_ranks"
BEGUN_APART: Final = "start_of_recording"
MUCH_LEFT_OUT: Final = 0.1
"""From this share of exposed time on what lies before the last recording's begin is left out. A choice: less is not
worth a figure that differs from the headline's."""
USUAL: Final = ("Largest loss: ", "Largest loss outside compute: ", "")
"""Words before a loss of usual steps: the largest one, the largest where hosts compute, which may take longer than it
must, or another."""
LITTLE: Final = 0.1
"""Where at most this share of a step is exposed communication, compute decides how long it takes."""
UNEVEN_STAGES: Final = (
    "# give the stages equal work, and each step more micro-batches: a stage waits for its slowest neighbour, and "
    "while the pipeline fills and empties"
)
BY_TURNS: Final = (
    "# no rank is late throughout: overlapscope explain RUN lists the longest waits; look at what differs from step to "
    "step (batches, other work on the cores)"
)
"""What to do where ranks wait for one that computes longer, now this one, now that one."""
ONE_WAITS: Final = 0.1
"""Of two ranks one waits for the other if that waits for this share of it at most. A choice."""
BY_TURNS_FROM: Final = 0.25
"""They do where each waits for this share of what one of them waits most. A choice."""
INSTEAD: Final = {
    "dependency": "# the next compute needs the result: give it other work meanwhile (two micro-batches, a part of the "
    "tensor at a time), or fewer bytes; gradients: begin their calls during backward, in buckets",
    "tail": "# nothing but the optimizer follows: begin to reduce earlier, in buckets, or gather beside the next "
    "forward; a call after the optimizer: is it needed in each step?",
    "queued": "# calls wait for each other on one stream: a communicator of its own, or another order",
    "slow_transfer": "# some calls take longer than their like: look at the link, and at what else uses it",
    "pipeline": "# more micro-batches in each step, or stages in turn (interleaved): a stage waits while the pipeline "
    "fills and empties",
    "peer_compute": "# overlapscope explain RUN lists the longest waits; compare what the late rank gets with its "
    "peers (batch, sequence lengths, layers, tokens of experts), and how fast its device or cores are",
    "peer_core": "# give each rank cores of its own (taskset -cp, srun --cpu-bind=cores), or fewer threads "
    "(OMP_NUM_THREADS), and its control group enough of them (cpu.max)",
    "peer_comm": "# overlapscope explain RUN lists the longest waits: in which other calls the late rank was, and for "
    "whom it waited there; shorten these calls, or begin them earlier",
    "peer_host": "# overlapscope explain RUN lists the longest waits: what the host of the late rank did meanwhile "
    "(loading data, checkpoints, logging, garbage collection)",
    "late_end": "# a rank whose cores are busy sends on, or sees the end of a call, late: give each rank cores of its "
    "own, with one for the threads of its backend",
    OF_LATE_RANKS: "# overlapscope explain RUN lists the longest waits: who was late, and what it did before",
    "unknown": "# whether this is waiting or transfer is not known: record {lacking}",
}
AVERAGES: Final = (
    "# calls follow the optimizer in some steps alone: average parameters more rarely, in 16 bits, or beside the next "
    "steps"
)
"""What to do about local SGD, which sends no gradients."""
BESIDE_BACKWARD: Final = {
    "dependency": "# the next compute needs the result: give it other work meanwhile (two micro-batches, a part of the "
    "tensor at a time), or fewer bytes; gradients go beside backward already",
    "tail": "# nothing but the optimizer follows, and gradients go beside backward already: fewer bytes, a smaller "
    "last bucket, or gather beside the next forward",
}
"""What to do where reductions begin in backward, beside compute."""
LINK_IS_FULL: Final = (
    "# calls of one kind run directly one after the other: the link is full, and no other order helps; fewer bytes "
    "(16 bits; gradients: accumulation), or a faster link"
)
ONE_BANDWIDTH: Final = (
    "# transfer takes longer than compute, at {gbs:.3g} GB/s on the bus whatever the size: fewer bytes a step "
    "(gradient accumulation, a larger local batch, 16 bits), or a faster link"
)
WAITS_FOR_EACH: Final = (
    "# calls begin in backward, but compute waits for each: wait once, before the optimizer (async_op=True, a stream "
    "of their own; DeepSpeed: overlap_comm=true); that saves at most {most}"
)
OF_HOROVOD: Final = (
    "# gradients go beside backward already; what remains is the last group, after it: fewer bytes "
    "(compression=hvd.Compression.fp16), or the gradient that is ready last earlier"
)
SIXTEEN_BITS, WIDEST = 2, 8
"""Bytes of an element; where its type is not known the most."""
OF_OWN_CALLS: Final = ("dependency", "tail", "queued")
SLOW_ON_CORES: Final = (
    "# some calls take longer than their like: a thread that has no core transfers nothing, so look at the cores first "
    "(top -H), then at the link and what else uses it"
)
IN_BUCKETS: Final = "# gradients go in buckets beside backward already: "
REPLAY_CAPS: Final = "overlapscope whatif RUN replays other caps"
LAST_BUCKET: Final = "a smaller last bucket, or fewer bytes (16 bits)"
ON_CORES: Final = "; threads that transfer need cores, too: one more a rank, or fewer, larger calls"
"""What to do about a late rest of gradients that are overlapped."""
SECOND: Final = 0.5
"""From this share of the largest cause on the next one is named, too. A choice: less is another question."""
MOSTLY: Final = 0.5
"""From this share on exposed time is mostly what calls take longer than their like."""
OF_LAUNCHES: Final = ("launch_bound", "launch_latency")
"""Causes of idle time that launches of the rank's own host decide."""
RECORD_LATE: Final = (
    "# record {which}, and look for late ones: at least {longer} is waiting for them, or other traffic on the link"
)
LOOK: Final = "overlapscope explain straggler; overlapscope explain RUN  # what to do; the longest waits, as commands"
LOOK_AT_STEPS: Final = (
    "overlapscope explain odd_step; overlapscope analyze RUN --all  # what these steps do that others don't"
)
ALL_RANKS, HOST_EVENTS = "all ranks", "the host's events"
SHAPES: Final = "sizes and peers of calls (torch.profiler: record_shapes=True), by which they are matched"
RECORD: Final = "torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])  # with host calls"


def largest_loss(given: RuleInput, found: Sequence[Recommendation]) -> Recommendation | None:
    """Return what names the largest loss; None where a recommendation of `found` does, or the loss is small.

    Steps that cost more than all that the others lose are named by none of them.
    """
    found = [each for each in found if not each.changes_numerics]  # a trial that may fail names no loss
    # Before all had begun to record nothing was lost: the others only seem to wait.
    exposed = (given.figures.exposed_comm_ns or 0) - _left_out_ns(given)
    few = few_communicate(given.analysis.headline)
    if few is not None:  # medians hide it, or lie between the two kinds of steps
        exposed = max(exposed, round(few.exposed_comm_ns))
    idle = given.figures.idle_ns or 0
    of_exposed = exposed >= idle or not given.run_has_device  # between its operations a host may do what it must
    loss, named = (exposed, OF_EXPOSED) if of_exposed else (idle, OF_IDLE)
    steps = {given.per: 1, "recording": max(given.steps, 1)}
    lost = [(each.id, (each.loss_ns or 0) / steps.get(each.per, 1)) for each in found]
    others = max((ns for _, ns in lost), default=0)
    addressed = sum(ns for name, ns in lost if name in named)
    outlying = costly_outliers(given.analysis, max(exposed, idle, others)) is not None
    if not given.is_worth(loss) or (not outlying and (loss < others or addressed >= ADDRESSED * loss)):
        return None
    late = () if any(each.id == "late_rank" for each in found) else given.analysis.skew.stragglers
    return _exposed(given, exposed, late) if of_exposed else _idle(given, idle)


def _left_out_ns(given: RuleInput) -> int:
    """Return how much of the exposed time is of recordings that began apart, if that is much."""
    begun_ns = given.cause_ns(BEGUN_APART)
    return begun_ns if begun_ns >= MUCH_LEFT_OUT * (given.figures.exposed_comm_ns or 0) else 0


def _exposed(given: RuleInput, exposed: int, late: Sequence[Straggler]) -> Recommendation:
    """Return what names exposed communication; `late` are stragglers that no other recommendation names."""
    rows = given.analysis.collectives
    by_op = {op: round(given.exposed_ns(row for row in rows if row.op == op)) for op in {row.op for row in rows}}
    ops = [op for op in sorted(by_op, key=lambda op: (-by_op[op], op)) if by_op[op]][:MOST_OPS]
    causes = {cause: ns for cause, ns in given.figures.causes.items() if cause != BEGUN_APART}
    every = Counter({each: ns for each, ns in usual_causes(given.analysis).items() if each != BEGUN_APART})
    if few_communicate(given.analysis.headline) is not None:
        every = causes_of_all_steps(given.analysis)
        causes = {each: round(ns * exposed / every.total()) for each, ns in every.items()}
    cause, ns, label = _largest(given, causes)
    over_all, sums_ns, its_label = _largest(given, every)
    of_it = f"{ms(ns)} of it"
    if every and its_label != label:
        cause, label = over_all, its_label
        outliers = usual_causes(given.analysis) != causes_of_all_steps(given.analysis)
        steps = "all steps but outliers" if outliers else "all steps"
        of_it = f"over {steps} {percent_text(sums_ns / every.total())} of it"
        second = None
    else:
        second = _second(given, causes, cause, ns, label)
    if late and second is not None and second[0] in (*WAITS_FOR_LATE_RANK, OF_LATE_RANKS):
        second = None  # the stragglers, and how long others wait for them, are named
    late_ns = sum(causes.get(each, 0) for each in WAITS_FOR_LATE_RANK)
    beside = _beside(given.analysis, cause)
    left_out_ns = _left_out_ns(given)
    which = [", ".join(ops)] if ops else []
    which += [f"without {ms(left_out_ns)} before all ranks were recorded"] if left_out_ns else []
    of_ops = f" ({'; '.join(which)})" if which else ""
    largest, step = _named(given, exposed)
    # Where outliers cost more, why the other steps wait is the smaller question.
    next_to_it = f"; {ms(second[1])}: {second[2]}" if second else ""
    why = f", {of_it}: {label}{next_to_it}{beside}{_mostly_compute(given, exposed)}" if largest in USUAL else ""
    who = _stragglers(late, late_ns, cause) or _of_two(given, cause)
    longer_ns = longer_ns_of(given.analysis) if largest in USUAL else 0
    longer = f"; calls take at least {ms(longer_ns)} longer than the shortest of their like" if longer_ns else ""
    more = "no more" if longer_ns else "none"
    return recommended(
        given,
        id="exposed_communication",
        title=f"{largest}{ms(exposed)} of {step} are exposed communication{of_ops}{why}{longer}{who}",
        verdict="look",
        loss_ns=exposed,
        apply=({"look": LOOK} if late else {})
        | (_apply_both(given, cause, second, longer_ns) if largest in USUAL else {"look": LOOK_AT_STEPS}),
        evidence={
            "exposed_comm_ns": exposed + left_out_ns,
            "causes": dict(given.figures.causes),
            "by_op": {op: {"exposed_ns": by_op[op]} for op in ops},
        }
        | ({"before_all_recorded_ns": left_out_ns} if left_out_ns else {})
        | ({"longer_than_like_ns": longer_ns} if longer_ns else {})
        | ({"late_ranks": [each.rank for each in late]} if late else {}),
        measured=["communication beside which nothing is computed, and what the next compute waited for"],
        # Of what is unknown it is said that it may be waiting; a pipeline's sends hold waiting by their cause.
        assumed=[]
        if given.is_whole or cause in ("unknown", "pipeline")
        else [f"that {more} of it is waiting for ranks that were not recorded"],
        verify="overlapscope analyze NEW_RUN: the loss is smaller",
    )


def longer_ns_of(analysis: Analysis) -> int:
    """Return how much of the exposed time of a step calls take longer than their like; 0 where that is not known."""
    found = next((each.evidence for each in analysis.findings if each.id == LONGER_THAN_LIKE), None)
    return 0 if found is None else round(found["share_of_exposed"] * (analysis.headline.exposed_comm_ns or 0))


def longer_beside_launches_ns(analysis: Analysis, exposed_ns: int) -> int:
    """Return what calls take longer than their like, where that is most of the exposed time, and launches of the ranks'
    own hosts cost more than the rest of it; else 0."""
    longer_ns, idle = longer_ns_of(analysis), analysis.headline.idle_causes
    launches_ns = sum(idle.get(cause, 0) for cause in OF_LAUNCHES)
    return longer_ns if longer_ns >= MOSTLY * exposed_ns and launches_ns > exposed_ns - longer_ns else 0


def _largest(given: RuleInput, causes: Mapping[str, int]) -> tuple[str, int, str]:
    """Return the cause of most of the exposed time, how much that is, and its label.

    What late ranks did longer divides one wait, and for what a transfer was waited divides it: either may be more in
    sum.
    """
    cause, ns = max(causes.items(), key=lambda each: each[1], default=("unknown", given.figures.exposed_comm_ns or 0))
    late_ns = sum(causes.get(each, 0) for each in WAITS_FOR_LATE_RANK)
    split = given.figures.exposed_wait_ns is not None and late_ns > 0
    sent_ns = sum(causes.get(each, 0) for each in TRANSFERS) if split else 0
    # One cause that is more than waiting says more than the sum.
    if sent_ns > late_ns and sent_ns > ns and not (cause in TRANSFERS and ns > late_ns):
        return max(TRANSFERS, key=lambda each: causes.get(each, 0)), sent_ns, TRANSFER
    if late_ns >= sent_ns and late_ns > (2 * ns if cause in WAITS_FOR_LATE_RANK else ns):
        return OF_LATE_RANKS, late_ns, LATE_RANKS
    label = cause_label(cause, on_cpu=not given.run_has_device)
    unsplit = given.figures.exposed_wait_ns is None and has_others(given.analysis)
    if cause in MAY_BE_WAITING and unsplit:
        return "unknown", ns, f"{label}, waiting for other ranks included"
    return cause, ns, label


def _second(
    given: RuleInput, causes: Mapping[str, int], cause: str, ns: int, label: str
) -> tuple[str, int, str] | None:
    """Return the next cause after the largest, as `_largest` does; None where it is far less."""
    parts = {OF_LATE_RANKS: WAITS_FOR_LATE_RANK}.get(cause, TRANSFERS if label == TRANSFER else ())
    largest = {max(causes, key=lambda each: causes[each], default=cause), cause, *parts}
    rest = {each: of_it for each, of_it in causes.items() if each not in largest}
    found = _largest(given, rest) if rest else None
    return found if found is not None and found[1] >= SECOND * ns and given.is_worth(found[1]) else None


def _beside(analysis: Analysis, cause: str) -> str:
    """Return who may delay transfers, or that cores may be short, to be said beside a cause."""
    still = next((each.evidence["ranks"] for each in analysis.findings if each.id == "standing_still"), ())
    if cause == "slow_transfer" and 0 < len(still) < len(analysis.ranks):
        return f" (perhaps as {rank_list(still)} stood still in calls, too)"
    pausing = next((each.evidence["ranks"] for each in analysis.findings if each.id == "host_pauses"), ())
    if pausing and cause in ("unknown", "peer_host", OF_LATE_RANKS):
        one = len(pausing) == 1
        return f" (some of it perhaps as the host{'' if one else 's'} of {rank_list(pausing)} pause{'s' * one})"
    if cause == "slow_transfer" and lack_cores(analysis.findings):
        return " (perhaps as threads that transfer lack cores, too)"
    return _for_cores(analysis)


def _mostly_compute(given: RuleInput, exposed: int) -> str:
    """Return that nearly all of the step is compute, where communication takes little of it."""
    compute = (given.figures.compute_only_ns or 0) + (given.figures.overlapped_ns or 0)
    if exposed > LITTLE * given.step_ns or compute < (1 - 2 * LITTLE) * given.step_ns:
        return ""
    return f"; {percent_text(compute / given.step_ns, 0)} of the {given.per} is compute"


def _for_cores(analysis: Analysis) -> str:
    return " (some of it perhaps for lack of cores)" if lack_cores(analysis.findings) else ""


def _stragglers(late: Sequence[Straggler], late_ns: int, cause: str) -> str:
    """Return the end of a title that names stragglers, after the waiting for late ranks where `cause` is another."""
    if not late:
        return ""
    who = sorted(each.rank for each in late)
    first = max(late, key=lambda each: each.blame_ns)
    why = f" ({first.held_by.replace('_', ' ')})" if len(late) == 1 and first.held_by != "unknown" else ""
    are = f"{rank_list(who)} {'is a straggler' if len(who) == 1 else 'are stragglers'}{why}"
    waits = cause == OF_LATE_RANKS or cause in WAITS_FOR_LATE_RANK
    said = f", {ms(late_ns)} waiting for late ranks" if late_ns and not waits else ""
    return f"{said}; {are}"


def _named(given: RuleInput, loss: int) -> tuple[str, str]:
    """Return the words before a loss and for the step that it is of; first outlier steps, where they cost more."""
    usual, idle = without_outliers(given.analysis), given.figures.idle_ns or 0
    if (few := few_communicate(given.analysis.headline)) is not None and loss > idle:
        return USUAL[0], f"a {ms(few.step_ns)} step in the mean ({few.communicate} of {few.steps} steps communicate)"
    if usual is not None and given.step_ns - usual.step_ns > max(loss, idle):
        which = f"step{'s' if len(usual.outliers) > 1 else ''} {list_some(usual.outliers)}"
        median = f"the median step {ms(given.step_ns)} instead of {ms(usual.step_ns)}"
        return f"Largest loss: outliers ({which}) make {median}; ", "it"
    if (costly := costly_outliers(given.analysis, max(loss, idle))) is not None:
        one = len(costly.outliers) == 1
        which = f"step {costly.outliers[0]} takes" if one else f"steps {list_some(costly.outliers)} take together"
        longer = f"{which} {ms(costly.longer_ns)} longer than the others"
        return f"Largest loss: {longer}; in the others, ", f"a {ms(given.step_ns)} {given.per}"
    largest, outside, other = USUAL
    # Where cores are short, how much of each loss is for lack of them is not known.
    slower = next((each.evidence["lost_ns"] for each in given.analysis.findings if each.id == "slowing_steps"), 0)
    known = max(idle, slower) if given.run_has_device else idle
    loss -= longer_beside_launches_ns(given.analysis, loss) if loss >= idle else 0
    if loss >= known and not lack_cores(given.analysis.findings):
        other = largest if given.run_has_device else outside
    return other, f"a {ms(given.step_ns)} {given.per}"


def _of_two(given: RuleInput, cause: str) -> str:
    """Return which of the two ranks of a job waits for the other, to follow a cause of waiting; empty where both do."""
    waits = waits_for_late_ranks(given.analysis.ranks)
    known = given.is_whole and all(each.whole.causes for each in given.analysis.ranks)
    if cause not in (*WAITS_FOR_LATE_RANK, OF_LATE_RANKS) or len(waits) != 2 or not known:
        return ""
    (late, least), (waiting, most) = sorted(waits.items(), key=lambda each: each[1])
    return f" (rank {waiting} waits for rank {late})" if least < ONE_WAITS * most else ""


def _wait_by_turns(analysis: Analysis) -> bool:
    """Return whether each rank waits for late ones, for a share of what one waits most, and none has most blame."""
    waits = waits_for_late_ranks(analysis.ranks).values()
    mostly = mostly_waited_for({each.rank: each.blame_ns for each in analysis.skew.ranks})
    by_turns = min(waits, default=0) >= BY_TURNS_FROM * max(waits, default=0)
    return by_turns and mostly is None and not analysis.skew.stragglers


def _apply(given: RuleInput, cause: str) -> dict[str, str]:
    """Return what to do about a cause; of time that may be waiting, to record what says so, if anything was not."""
    if given.job.serves or cause not in INSTEAD:
        return {}
    if cause != "unknown":
        return {"torch": _instead(given, cause)}
    hosts_seen = all(each.no_causes_reason != "no_host_events" for each in given.analysis.ranks)
    unsized = given.analysis.skew.unmatched > 0 and any(map(_lacks_shapes, (rank for rank, _ in given.some_ranks())))
    lacks = ((ALL_RANKS, not given.is_whole), (HOST_EVENTS, not hosts_seen), (SHAPES, unsized))
    lacking = [what for what, is_lacking in lacks if is_lacking]
    if not lacking:
        return {"torch": _instead(given, "dependency")} if "dependency" in given.figures.causes else {}
    record = INSTEAD[cause].format(lacking=", ".join(lacking))
    most = max(given.figures.causes, key=given.cause_ns, default=cause)
    if len(given.analysis.ranks) > 1 or most not in MAY_BE_WAITING:
        return {"torch": record}
    # Of one rank all waits are unknown: what helps against its own calls stands beside.
    return {"look": record, "torch": _instead(given, most)}


def _apply_longer(given: RuleInput, cause: str, longer_ns: int) -> dict[str, str]:
    """Return what to do about a cause; first to record all ranks where calls take much longer than their like."""
    much = cause == "unknown" or longer_ns >= MOSTLY * (given.figures.exposed_comm_ns or 0)
    if not longer_ns or not much or given.is_whole:
        return _apply(given, cause)
    look = {"look": RECORD_LATE.format(which=ALL_RANKS, longer=ms(longer_ns))}
    alone = cause == "unknown" and len(given.analysis.ranks) > 1
    return look if alone else _apply(given, cause) | look


def _apply_both(given: RuleInput, cause: str, second: tuple[str, int, str] | None, longer_ns: int) -> dict[str, str]:
    """Return what to do about a cause, and then about the next one."""
    found = _apply_longer(given, cause, longer_ns)
    for key, text in _apply(given, second[0]).items() if second else ():
        found[key] = "\n".join(dict.fromkeys([*found.get(key, "").splitlines(), *text.splitlines()]))
    return found


def _instead(given: RuleInput, cause: str) -> str:
    """Return what to do about a cause, for this kind of job and of recording."""
    if cause == "pipeline" and any(each.id.startswith("uneven_stages") for each in given.analysis.findings):
        return UNEVEN_STAGES
    if cause == "peer_compute" and given.is_whole and _wait_by_turns(given.analysis):
        return BY_TURNS
    if cause == "slow_transfer" and not given.run_has_device:
        return SLOW_ON_CORES
    return _of_own_calls(given, cause) if cause in OF_OWN_CALLS else INSTEAD[cause]


def _of_own_calls(given: RuleInput, cause: str) -> str:
    """Return what to do where the rank's own calls take long, but for what is in effect."""
    if average_parameters(given):
        return AVERAGES
    if cause == "queued" and link_is_full(given):
        return LINK_IS_FULL.replace("16 bits; ", "") if _in_sixteen_bits(given) else LINK_IS_FULL
    gbs, waits_ns = one_bandwidth_gbs(given), backward_waits_ns(given) if cause == "dependency" else 0.0
    bandwidth = ONE_BANDWIDTH.replace(", 16 bits)", ")") if _in_sixteen_bits(given) else ONE_BANDWIDTH
    lines = [] if gbs is None else [bandwidth.format(gbs=gbs)]
    if given.is_worth(waits_ns):
        return "\n".join([*lines, WAITS_FOR_EACH.format(most=ms(waits_ns))])
    return "\n".join([*lines, _of_gradients(given, cause)])


def _in_sixteen_bits(given: RuleInput) -> bool:
    """Return whether most of the exposed time is of calls of 16 bits, or fewer."""
    rows = given.analysis.collectives
    narrow = [row for row in rows if ITEM_BYTES.get(row.dtype or "", WIDEST) <= SIXTEEN_BITS]
    return given.exposed_ns(narrow) > given.exposed_ns(rows) / 2


def _of_gradients(given: RuleInput, cause: str) -> str:
    """Return what to do about calls of gradients, as far as these go beside backward already, or else of any calls."""
    if cause == "dependency" and shows_ddp(given.run) and given.figures.overlapped_ns:
        caps = REPLAY_CAPS if _replays_buckets(given) else LAST_BUCKET
        return f"{IN_BUCKETS}{caps}{'' if given.run_has_device else ON_CORES}"
    if cause not in BESIDE_BACKWARD or not go_beside_backward(given):
        return INSTEAD[cause]
    return OF_HOROVOD if "horovod" in given.job.frameworks else BESIDE_BACKWARD[cause]


def _replays_buckets(given: RuleInput) -> bool:
    """Return whether a replay can say what other caps would gain: buckets were recorded, and waiting is known."""
    if given.figures.exposed_wait_ns is None:
        return False
    from overlapscope.whatif.ddp.recorded_steps import recorded_steps  # noqa: PLC0415 - few runs need it

    try:
        recorded_steps(given.run, given.cross_rank)
    except InputError:
        return False
    return True


def _lacks_shapes(timeline: RankTimeline) -> bool:
    """Return whether no call of a rank has a size, or no message one or its peer.

    Of a barrier, or of calls with lists of tensors, no trace has a size: others show that shapes were recorded.
    """
    calls = timeline.collectives
    messages = np.isin(calls.op, [code for code, name in enumerate(timeline.names) if name in POINT_TO_POINT])
    unsized = calls.bytes == NONE
    lacking = bool(messages.any() and (unsized & (calls.peer == NONE))[messages].all())
    return lacking or bool(unsized.size and unsized.all())


def _idle(given: RuleInput, idle: int) -> Recommendation:
    causes = given.figures.idle_causes
    cause, ns = max(causes.items(), key=lambda each: each[1], default=("unknown", idle))
    reasons = [each.no_causes_reason for each in given.analysis.ranks if each.no_causes_reason is not None]
    why = f": {NO_CAUSES[reasons[0]]}" if reasons and cause == "unknown" else ""
    of_it = f", {ms(ns)} of it: {idle_label(cause)}{why}"
    gaps = IdleGaps.of(given) if "no_host_events" in reasons and cause == "unknown" else None
    if gaps is not None:
        # What the host did is not known; how its pauses are distributed is.
        unknown = "" if ns >= idle else f"{ms(ns)} of it unknown, as "
        of_it = f" ({unknown}{NO_CAUSES['no_host_events']}): {gaps.words()}"
    largest, step = _named(given, idle)
    host = host_time(
        given,
        "launch_rate",
        "pause",
        "long_pause",
        "blocking_call",
        "poll",
        "data_loading",
        "garbage_collection",
        "allocation",
    )
    return recommended(
        given,
        id="idle_device",
        title=f"{largest}the device is idle for {ms(idle)} of {step}{of_it}",
        verdict="look",
        loss_ns=idle,
        apply={"torch": RECORD} if "no_host_events" in reasons else {},
        evidence={"idle_ns": idle, "idle_causes": dict(causes)}
        | ({} if gaps is None else {"gaps": gaps.gaps, "long_gaps_ns": gaps.long.tolist()}),
        shown_by=host.shown_by,
        measured=["time in which the device neither computes nor communicates nor copies"],
        assumed=[],
        verify="overlapscope analyze NEW_RUN: the loss is smaller",
    )
