"""What to do about the causes of exposed communication; first, what a recording lacks to tell waiting from transfer."""

from typing import Final

import numpy as np

from overlapscope.advice.calls.known_transfer import Transfer
from overlapscope.advice.losses.after_backward import of_gradients_after_backward
from overlapscope.advice.losses.exposed_calls import take_alike
from overlapscope.advice.losses.own_calls import OF_OWN_CALLS, of_own_calls
from overlapscope.advice.rule_input import RuleInput, ms
from overlapscope.analysis.common.cause_table import MAY_BE_WAITING
from overlapscope.analysis.cross_rank.wait_transfer import mostly_waited_for
from overlapscope.analysis.per_rank.host_operations import has_shapes
from overlapscope.analysis.result import Analysis, waits_for_late_ranks
from overlapscope.display import percent_text
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.operations import POINT_TO_POINT
from overlapscope.timeline.run import RankTimeline

OF_LATE_RANKS: Final = "late_ranks"
MOSTLY: Final = 0.5
"""From this share on exposed time is mostly what calls take longer than their like, or of one kind of calls."""
UNEVEN_STAGES: Final = "# give the stages equal work: a stage waits for its slowest neighbour"
MUCH_FILL: Final = 0.2
"""More micro-batches are advised where by its schedule a pipeline fills and drains for this share of a step. A choice:
of less they save little, as each of them adds its own launches and messages."""
MORE_BATCHES: Final = (
    "# more micro-batches in each step, or stages in turn (interleaved): by its schedule the pipeline fills and drains "
    "for {share} of a step"
)
FILLS: Final = "# by its schedule the pipeline fills and drains for {share} of a step, which more micro-batches shorten"
COUNT_BATCHES: Final = (
    "# count the micro-batches of a step: if they are fewer than four times as many as the stages, more of them, or "
    "interleaved stages, shorten the time in which the pipeline fills and drains"
)
BY_TURNS: Final = (
    "# no rank is late throughout: overlapscope explain RUN lists the longest waits; look at what differs from step to "
    "step (batches, other work on the cores)"
)
"""What to do where ranks wait for one that computes longer, now this one, now that one."""
BY_TURNS_FROM: Final = 0.25
"""They do where each waits for this share of what one of them waits most. A choice."""
INSTEAD: Final = {
    **OF_OWN_CALLS,
    "host_waited": "# no synchronisation of the host between the call and the next compute: a stream that needs the "
    "result waits for an event",
    "slow_transfer": "# some calls take longer than their like: look at the link, and at what else uses it",
    "pipeline": COUNT_BATCHES,
    "peer_compute": "# overlapscope explain RUN lists the longest waits; compare what the late rank gets with its "
    "peers (batch, sequence lengths, layers, tokens of experts), and how fast its device or cores are",
    "peer_core": "# give each rank cores of its own (taskset -cp, srun --cpu-bind=cores), or fewer threads "
    "(OMP_NUM_THREADS), and its control group enough of them (cpu.max)",
    "peer_comm": "# overlapscope explain RUN lists the longest waits: in which other calls the late rank was, and for "
    "whom it waited there; shorten these calls, or begin them earlier",
    "peer_copy": "# overlapscope explain RUN lists the longest waits: what the late rank copies (pageable memory, "
    "clones, offload); copy from pinned memory beside compute, or less",
    "peer_host": "# overlapscope explain RUN lists the longest waits: what the host of the late rank did meanwhile "
    "(loading data, checkpoints, logging, garbage collection)",
    "late_end": "# a rank whose cores are busy sends on, or sees the end of a call, late: give each rank cores of its "
    "own, with one for the threads of its backend",
    OF_LATE_RANKS: "# overlapscope explain RUN lists the longest waits: who was late, and what it did before",
    "unknown": "# whether this is waiting or transfer is not known: record {lacking}",
}
SLOW_ON_CORES: Final = (
    "# some calls take longer than their like: a thread that has no core transfers nothing, so look at the cores first "
    "(top -H), then at the link and what else uses it"
)
RECORD_LATE: Final = (
    "# at least {longer} is what calls take longer than their like: waiting for late ranks, or other traffic on the "
    "link; to tell which, and who is late, record {lacking}"
)
TAKE_ALIKE: Final = (
    "# calls of one kind and size take about as long each: they transfer, or wait as long in each; to tell which, "
    "record {lacking}"
)
AMONG_RECORDED: Final = (
    "# among the {ranks} recorded ranks {waiting}; if these are all ranks of the groups, the rest is transfer"
)
IN_ROWS: Final = (
    "# calls follow directly upon each other, and last alike, or as their bytes: very probably transfer, as only the "
    "first of a row can wait for a rank that is merely late"
)
FAR_BELOW_OTHERS: Final = (
    "# look at the links and NCCL's settings first: overlapscope explain below_other_machines; it is another machine's "
    "figure, so that this one can be as fast is not known"
)
ALL_RANKS, HOST_EVENTS = "all ranks", "the host's events"
SHAPES: Final = "sizes and peers of calls (torch.profiler: record_shapes=True), by which they are matched"
SIZES: Final = "sizes and peers of calls, which the shapes in this recording do not give (overlapscope.profile)"


def remedies(
    given: RuleInput,
    cause: str,
    second: str | None,
    longer_ns: int,
    transfer: Transfer | None = None,
    waits_ns: int = 0,
    *,
    groups_wait: bool = False,
) -> dict[str, str]:
    """Return what to do about a cause, and then about the next one, by framework or `look`.

    `longer_ns` is what calls take longer than their like, in ns of a step; 0 where that is not known; `transfer` what
    shows that calls transfer that could not be split from waiting; `waits_ns` what of the loss waits for late ranks;
    `groups_wait` whether groups are named whose members wait.
    """
    found = _with_longer(given, cause, longer_ns, groups_wait=groups_wait)
    for key, text in _of_cause(given, second).items() if second else ():
        found[key] = "\n".join(dict.fromkeys([*found.get(key, "").splitlines(), *text.splitlines()]))
    unsplit = given.figures.exposed_wait_ns is None and not MAY_BE_WAITING.isdisjoint({cause, second})
    if not unsplit or "look" in found or given.job.serves:
        return found
    waiting = f"waiting is {ms(waits_ns)} of it" if waits_ns else "none of it is waiting"
    known = {"recorded": AMONG_RECORDED.format(ranks=len(given.run.ranks), waiting=waiting), "in_rows": IN_ROWS}
    return {"look": known[transfer]} | found if transfer in known else found


def _with_longer(given: RuleInput, cause: str, longer_ns: int, *, groups_wait: bool) -> dict[str, str]:
    """Return what to do about a cause; first to record all ranks where calls take much longer than their like."""
    much = groups_wait or cause == "unknown" or longer_ns >= MOSTLY * (given.figures.exposed_comm_ns or 0)
    if not longer_ns or not much or given.is_whole:
        return _of_cause(given, cause)
    look = {"look": RECORD_LATE.format(longer=ms(longer_ns), lacking=", ".join(_lacking(given)))}
    return look | (_of_cause(given, cause) if cause != "unknown" else _of_single_rank(given))


def _of_cause(given: RuleInput, cause: str) -> dict[str, str]:
    """Return what to do about a cause; of time that may be waiting, to record what says so, if anything was not."""
    if given.job.serves or cause not in INSTEAD:
        return {}
    if cause != "unknown":
        return {"torch": instead(given, cause)}
    lacking, gradients = _lacking(given), of_gradients_after_backward(given)
    if not lacking:
        largest = max(OF_OWN_CALLS, key=lambda each: given.figures.causes.get(each, 0))
        most = gradients or (largest in given.figures.causes and instead(given, largest))
        return {"torch": most} if most else {}
    text = TAKE_ALIKE if ALL_RANKS in lacking and take_alike(given) else INSTEAD[cause]
    own = {"torch": gradients} if gradients else _of_single_rank(given)
    record = text.format(lacking=", ".join(lacking))
    return {"look": record} | own if own else {"torch": record}


def _of_single_rank(given: RuleInput) -> dict[str, str]:
    """Return what helps against the calls of a single recorded rank, of which all waits are unknown; nothing where
    something else than these is the largest cause."""
    most = max(given.figures.causes, key=given.cause_ns, default="unknown")
    alone = len(given.analysis.ranks) == 1 and most in MAY_BE_WAITING and not given.job.serves
    return {"torch": instead(given, most)} if alone else {}


def _lacking(given: RuleInput) -> list[str]:
    """Return what was not recorded by which calls are divided into waiting and transfer."""
    hosts_seen = all(each.no_causes_reason != "no_host_events" for each in given.analysis.ranks)
    unsized = given.analysis.skew.unmatched > 0 and any(map(_lacks_sizes, (rank for rank, _ in given.some_ranks())))
    sizes = SIZES if has_shapes(given.run) else SHAPES
    lacks = ((ALL_RANKS, not given.is_whole), (HOST_EVENTS, not hosts_seen), (sizes, unsized))
    return [what for what, is_lacking in lacks if is_lacking]


def _lacks_sizes(timeline: RankTimeline) -> bool:
    """Return whether no call of a rank has a size, or no message one or its peer.

    Of a barrier, or of calls with lists of tensors, no trace has a size: others show that shapes were recorded.
    """
    calls = timeline.collectives
    messages = np.isin(calls.op, [code for code, name in enumerate(timeline.names) if name in POINT_TO_POINT])
    unsized = calls.bytes == NONE
    lacking = bool(messages.any() and (unsized & (calls.peer == NONE))[messages].all())
    return lacking or bool(unsized.size and unsized.all())


def instead(given: RuleInput, cause: str) -> str:
    """Return what to do about a cause, for this kind of job and of recording."""
    if cause == "pipeline":
        return _of_pipeline(given)
    if cause == "peer_compute" and given.is_whole and wait_by_turns(given.analysis):
        return BY_TURNS
    if cause == "slow_transfer" and not given.run_has_device:
        return SLOW_ON_CORES
    return of_own_calls(given, cause) if cause in OF_OWN_CALLS else INSTEAD[cause]


def _of_pipeline(given: RuleInput) -> str:
    """Return what to do about waits between stages: even these out, where they are known to differ; more micro-batches,
    where the schedule is known to take much of a step, and where it takes less, how much. Zero-bubble schedules, which
    more of them do not help, have no such finding."""
    found = {each.id.split(":")[0]: each for each in given.analysis.findings}
    fill = found.get("pipeline_fill")
    uneven = [UNEVEN_STAGES] if "uneven_stages" in found else []
    if fill is None:
        return UNEVEN_STAGES if uneven else COUNT_BATCHES
    share = fill.evidence["fill_share"]
    text = MORE_BATCHES if share >= MUCH_FILL else FILLS
    return "\n".join([*uneven, text.format(share=percent_text(share))])


def times_as_fast_elsewhere(given: RuleInput) -> float | None:
    """Return how many times as fast another machine with as many such devices transfers, by the finding
    `below_other_machines`, at least; None where the calls that it names do not make most of the exposed time."""
    kinds = next((each.evidence["kinds"] for each in given.analysis.findings if each.id == "below_other_machines"), ())
    slow = {(each["op"], each["group"], each["bytes"]) for each in kinds}
    rows = [row for row in given.analysis.collectives if (row.op, row.group, row.bytes) in slow]
    if not rows or given.exposed_ns(rows) < MOSTLY * (given.figures.exposed_comm_ns or 0):
        return None
    return min(float(each["elsewhere_busbw_gbs"] / each["busbw_gbs"]) for each in kinds)


def wait_by_turns(analysis: Analysis) -> bool:
    """Return whether each rank waits for late ones, for a share of what one waits most, and none has most blame."""
    waits = waits_for_late_ranks(analysis.ranks).values()
    mostly = mostly_waited_for({each.rank: each.blame_ns for each in analysis.skew.ranks})
    by_turns = min(waits, default=0) >= BY_TURNS_FROM * max(waits, default=0)
    return by_turns and mostly is None and not analysis.skew.stragglers
