"""Rule: waiting for late ranks dominates, which comes before settings of communication."""

from collections.abc import Callable, Container, Mapping, Sequence
from statistics import fmean, median
from typing import Any, Final, Literal, Self

import msgspec
import numpy as np
from msgspec import to_builtins

from overlapscope.advice.rule_input import RuleInput, ms
from overlapscope.advice.slower_in_turn import SlowerInTurn
from overlapscope.analysis.common.cause_table import START_OF_RECORDING, WAITS_FOR_LATE_RANK
from overlapscope.analysis.cross_rank.wait_transfer import Split, StepWaits
from overlapscope.analysis.exposure.collectives import CollectiveRow
from overlapscope.analysis.graph.found_causes import LossKind
from overlapscope.analysis.per_rank.breakdown import Breakdown
from overlapscope.analysis.result import Analysis, Recommendation, lateness, waited_for
from overlapscope.analysis.stragglers.stragglers import REMOVAL_SINCE, REMOVAL_STEP, WEIGHS, WEIGHS_ON_HOST, Straggler
from overlapscope.analysis.unseen_waits import MANY_UNMATCHED, has_unmatched, lacks_members
from overlapscope.display import list_some, percent_text
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.dimensions import PIPELINE
from overlapscope.timeline.intervals import length
from overlapscope.timeline.operations import POINT_TO_POINT
from overlapscope.timeline.run import Run

DOMINATES: Final = 0.5
"""Least share of wait time in the time in collectives, over all ranks."""
OF_IDLE: Final = 1 / 3
"""Waiting for nobody in particular comes first unless ranks idle for three times as long: then that is the loss."""
MOSTLY_MATCHED: Final = 0.5
"""Where calls that were matched are less than this share of the time in communication, their waiting is compared with
the step."""
LONGEST_NAME: Final = 48
"""Characters of a name in a title."""
WORTH_BLAME: Final = 0.1
"""Of the blame, for a rank to be named among several. A choice."""
MOST_NAMED: Final = 4
"""Such ranks in a title."""
LEAST_STEPS: Final = 3
"""With collectives, to leave one of them out that has most of the waiting."""
OF_ONE_CALL: Final = 0.8
"""A rank that has this share of its blame in one call, of so few steps that none can be left out, was late once: that
says nothing of the rank. A choice."""
OF_BLAME: Final = 0.8
"""A rank whose host lost this share of its blame, more than hosts of others did, is late for that. A choice."""
KINDS_OF: Final[Mapping[str, tuple[LossKind, ...]]] = {
    "data_loading": ("data_loading",),
    "garbage_collection": ("garbage_collection",),
    "allocator_churn": ("allocation",),
    "blocking_calls": ("blocking_call", "poll"),
}
"""By id of a recommendation, the losses of hosts that it names."""
PROCESSES: Final = "pidstat -t -p PID 1; ps -eLo psr,pcpu,pid,comm --sort=-pcpu | head  # what runs on its cores"
NO_SETTING: Final = "no setting of communication shortens"
BY_COMPUTE: Final = ("more_work", "slower_compute", "longer_compute")
"""Causes of a late rank, by `held_by`, of which it is certain: fewer or larger calls may relieve a host that is
late."""
NOT_COUNTED: Final = "that nobody waits for it in calls that were not matched: these are not counted"
LONGEST_WAITS: Final = "overlapscope explain RUN  # the longest waits"
OWN_IDLE_NS: Final = "own_idle_ns"
"""In the evidence: what of the loss is not waiting, but what a straggler idles longer than others, as its host started
nothing: they wait for that."""
IN_OTHERS_NS: Final = "in_others_ns"
"""In the evidence: what of the loss is exposed in calls without a match, which last longer on others than on a
straggler, so that they wait for it there, too."""
LONGER_COMPUTE_NS: Final = "longer_compute_ns"
"""In the evidence: what ranks, in turn, compute longer than the mean, where other members of their groups were not
recorded. All wait for that, whoever comes last."""

LOOK: Final[Mapping[str, Mapping[str, str]]] = {
    "host": {"python": "py-spy record --pid PID --duration 30 --output host.svg  # what its host does meanwhile"},
    "copies": {
        "torch": "batch.to(device, non_blocking=True)  # from pinned memory, ahead; .cpu(), .clone() less often",
        "linux": "nvidia-smi topo -m; numactl --show  # is its memory as near, its PCIe link as wide?",
    },
    "data_loading": {"torch": "DataLoader(..., num_workers=8, prefetch_factor=4, persistent_workers=True)"},
    "garbage_collector": {"python": "gc.collect(); gc.freeze(); gc.disable()  # and gc.collect() on all ranks at once"},
    "allocator": {"environment": "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"},
    "busy_core": {
        "linux": PROCESSES,
        "python": "py-spy dump --pid PID  # is a thread of its own busy (logging, metrics, loading)?",
    },
    "paused": {
        "python": "py-spy dump --pid PID  # is another thread of its process busy? it takes the interpreter's lock",
        "linux": "pidstat -t -w -p PID 1; ps -eLo psr,pcpu,pid,comm --sort=-pcpu | head  # does it lose its core?",
    },
    "throttled": {"nvidia": "nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE,POWER"},
    "slower_compute": {
        "nvidia": "nvidia-smi -q -d PERFORMANCE,CLOCK,ECC; nvidia-smi dmon -s pucm -c 10",
        "linux": "mpstat -P ALL 1 5; grep MHz /proc/cpuinfo  # does another machine take its core (%steal)? its clock?",
    },
    "more_work": {"torch": 'print(rank, batch["input_ids"].shape)  # are batches, layers, tokens of experts equal?'},
    "longer_compute": {
        "nvidia": "nvidia-smi -q -d PERFORMANCE,CLOCK,POWER  # on its host: a slower clock, another process?",
        "linux": "pidstat -u -w -p PID 1  # does it lose its core?",
        "torch": 'print(rank, batch["input_ids"].shape)  # are batches, layers, tokens of experts equal?',
    },
}
"""What shows or mends the cause of a late rank, by `held_by`."""
TUNES: Final[Mapping[str, str]] = {
    "environment": "export TRITON_PRINT_AUTOTUNING=1 TORCH_LOGS=recompiles  # does it tune or compile? keep "
    "TRITON_CACHE_DIR and TORCHINDUCTOR_CACHE_DIR from start to start, for all ranks"
}
"""For a rank whose work is kernels that no other rank ran."""


class OneCall(msgspec.Struct, kw_only=True, frozen=True):
    """The call that one rank came last to by most."""

    rank: int
    lead_ns: int
    """How much later than the one before it, ..."""
    of_ns: int
    """... of all leads of the rank."""
    step: int
    after_ns: int
    """Since the step began on that rank."""


class _Waiting(msgspec.Struct, kw_only=True, frozen=True):
    """What is judged, summed over ranks: of the whole recording, or without one step."""

    collective_ns: int
    wait_ns: int
    window_ns: int
    idle_ns: int
    exposed_wait_ns: int | None
    """What of the wait time no compute overlaps; None where that is not known."""
    blame_ns: Mapping[int, int]
    on_device: bool
    left_out: int | None = None
    """The step."""

    @classmethod
    def of(cls, analysis: Analysis) -> Self:
        """Return what is judged, of the whole recording."""
        ranks = analysis.skew.ranks
        communicates = any(each.whole.comm_ns for each in analysis.ranks)
        return cls(
            collective_ns=sum(each.collective_ns for each in ranks),
            wait_ns=sum(each.wait_ns - each.start_of_recording_ns - each.late_end_ns for each in ranks),
            window_ns=sum(each.whole.window_ns or 0 for each in analysis.ranks),
            idle_ns=sum(each.idle_ns or 0 for each in ranks),
            exposed_wait_ns=_waits_ns([each.whole for each in analysis.ranks]) if communicates else None,
            blame_ns={each.rank: each.blame_ns for each in ranks},
            on_device=analysis.run.has_device,
        )

    def dominates(self) -> bool:
        """Return whether wait time is at least half of the time in collectives."""
        return self.wait_ns >= DOMINATES * self.collective_ns > 0

    def weighs(self) -> bool:
        """Return whether wait time matters to the recording, where nobody in particular is waited for."""
        least_ns = WEIGHS * self.window_ns
        exposed_ns = self.wait_ns if self.exposed_wait_ns is None else self.exposed_wait_ns
        least_exposed_ns = (WEIGHS if self.on_device else WEIGHS_ON_HOST) * self.window_ns
        return exposed_ns >= least_exposed_ns and self.wait_ns >= max(least_ns, OF_IDLE * self.idle_ns)


def late_rank(
    analysis: Analysis,
    by_step: Callable[[], Mapping[int, StepWaits]] = lambda: {},
    slower: Callable[[], SlowerInTurn | None] = lambda: None,
    longest: Callable[[int], OneCall | None] = lambda _: None,
    longer_on_others: Callable[[int], float] = lambda _: 0.0,
) -> Recommendation | None:
    """Return the rank to look at, where waiting for late ranks is the largest loss; else None.

    That is so where wait time is at least half of the time in collectives and matters to the recording, or where the
    recording would be shorter by much without the excess of the straggler. Without a straggler a step with most of the
    waiting is left out: it was one event. `by_step` returns the waits of each step, `slower` which rank computed longer
    in each, if that explains them, `longest` the call that has most of what a rank came last by: such an event, too,
    where steps are too few to leave one out, `longer_on_others` for how long of a step others wait for a rank in calls
    without a match, which last longer on them than on it.
    """
    found = _Waiting.of(analysis)
    straggler = max(analysis.skew.stragglers, key=lambda each: each.blame_ns, default=None)
    if straggler is None and found.dominates() and found.weighs():
        found = _without_one_event(found, by_step(), analysis)
    if straggler is None and _of_stages(analysis.collectives):
        return None  # stages come to their common calls one after the other, by the schedule
    # A straggler weighs by its delays, which count uneven exchanges, too.
    matters = found.dominates() and (straggler or found.weighs())
    if not found.collective_ns or not (matters or (straggler and straggler.removal_ns is not None)):
        return None
    if found.left_out is None:
        found = msgspec.structs.replace(found, blame_ns=_once(analysis))
    in_turn = slower() if straggler is None else None
    few = straggler is None and in_turn is None and _window(analysis) == "step"
    few = few and analysis.headline.steps < LEAST_STEPS and lateness(found.blame_ns, analysis) == "not_known"
    once = longest(max(found.blame_ns, key=found.blame_ns.__getitem__)) if few else None
    alone = _named_alone(found, straggler, analysis) if in_turn is None and once is None else None
    missing = next((each.unmatched_share or 0.0 for each in analysis.skew.ranks if each.rank == alone), 0.0)
    named = alone if missing <= MANY_UNMATCHED else None
    others_ns = 0.0
    if straggler is not None and has_unmatched(analysis, [straggler.rank]):
        others_ns = longer_on_others(straggler.rank)
    return _recommended(analysis, found, straggler, in_turn, once, named, missing, round(others_ns))


def is_of_host_loss(late: Recommendation, found: Container[str], given: RuleInput) -> bool:
    """Return whether ranks wait most for one, no straggler, as its host keeps its device idle longer than other hosts
    do, by what a recommendation of `found` names: that is the same time."""
    rank, losses = late.evidence["rank"], given.host_losses
    kinds = {kind for name, own in KINDS_OF.items() if name in found for kind in own}
    if late.evidence["held_by"] is not None or rank not in losses or not kinds:
        return False
    lost = {each: sum(length(one.when) for one in losses.get(each, ()) if one.kind in kinds) for each in given.windows}
    others = [ns for each, ns in lost.items() if each != rank]
    longer_ns = lost.get(rank, 0) - (median(others) if others else 0)
    return longer_ns >= OF_BLAME * _once(given.analysis)[rank] > 0


def one_call(run: Run, splits: Sequence[Split], rank: int) -> OneCall | None:
    """Return the call with `OF_ONE_CALL` of all by which a rank came last; None where none has, or it is of no step."""
    leads: list[tuple[int, int]] = []
    for split in splits:
        row = split.block.ranks.index(rank) if rank in split.block.ranks else None
        own = np.flatnonzero(split.last == row) if row is not None else ()
        leads += [(round(float(split.lead_ns[at])), int(split.block.rows[row, at])) for at in own]
    lead_ns, call = max(leads, default=(0, 0))
    of_ns = sum(ns for ns, _ in leads)
    if not leads or lead_ns < max(OF_ONE_CALL * of_ns, 1):
        return None
    calls, steps = run.ranks[rank].collectives, run.ranks[rank].steps
    begun = steps.start_ns[(steps.step == calls.step[call]) & (steps.recording == calls.recording[call])]
    if calls.step[call] == NONE or not begun.size:
        return None
    return OneCall(
        rank=rank, lead_ns=lead_ns, of_ns=of_ns, step=int(calls.step[call]),
        after_ns=max(int(calls.start_ns[call] - begun[0]), 0),
    )  # fmt: skip


def _of_stages(rows: Sequence[CollectiveRow]) -> bool:
    """Return whether calls are of a pipeline, or messages between ranks make most of the exposed time, as in one."""
    messages_ns = sum(row.exposed_ns or 0 for row in rows if row.op in POINT_TO_POINT)
    exposed_ns = sum(row.exposed_ns or 0 for row in rows)
    return any(row.dimension == PIPELINE for row in rows) or messages_ns > exposed_ns / 2


def _window(analysis: Analysis) -> Literal["step", "recording"]:
    return "recording" if analysis.headline.window == "recording" else "step"


def _recommended(
    analysis: Analysis,
    found: _Waiting,
    straggler: Straggler | None,
    in_turn: SlowerInTurn | None,
    once: OneCall | None,
    alone: int | None,
    unmatched: float,
    others_ns: int,
) -> Recommendation:
    """Return the recommendation; `alone` is the rank without whose delays no more is gained than these, `unmatched` the
    share of the calls of the named one without a match, `others_ns` what of a step is waited for it in such calls."""
    head = analysis.headline
    steps = max(head.steps, 1) if _window(analysis) == "step" else 1
    rank = straggler.rank if straggler else max(found.blame_ns, key=found.blame_ns.__getitem__)
    replayed, per = _removal(straggler, analysis)
    at_most_ns = _delayed_ns(alone, analysis)
    late = [] if straggler is None else [straggler.rank, *straggler.late_with]
    gain_ns, low_ns, high_ns = _gain(replayed, at_most_ns, analysis, late)
    own_idle_ns = _own_idle_ns(straggler, analysis)
    known_ns = _known_wait_ns(analysis) + others_ns
    waits_ns = known_ns if (own_idle_ns or others_ns) and head.exposed_wait_ns is None else head.exposed_wait_ns
    of_window = steps if per == "recording" else 1
    is_whole = len(analysis.run.ranks) == analysis.run.world_size
    return Recommendation(
        id="late_rank",
        title=_title(straggler, rank, found, analysis, in_turn, once, others_ns),
        verdict="look",
        predicted_gain_ns=gain_ns,
        gain_low_ns=low_ns if in_turn is None else 0,
        gain_high_ns=high_ns if in_turn is None else round(in_turn.at_most_ns),
        confidence="mixed" if replayed or in_turn else "measured",
        memory_bytes=None,
        changes_numerics=False,
        apply=_look(straggler, rank, found, analysis, in_turn)
        if once is None
        else {"look": f"{LONGEST_WAITS}; what the host of rank {once.rank} did before that call"},
        verify="overlapscope analyze NEW_RUN: less of the time in collectives is waiting",
        per=per,
        loss_ns=None if waits_ns is None else (waits_ns + own_idle_ns) * of_window,
        evidence=_evidence(found, straggler, rank)
        | ({OWN_IDLE_NS: own_idle_ns * of_window} if own_idle_ns else {})
        | ({IN_OTHERS_NS: others_ns * of_window} if others_ns else {})
        | ({} if once is None else {"one_call": to_builtins(once)})
        | ({} if in_turn is None or is_whole else {LONGER_COMPUTE_NS: round(in_turn.evened_ns)}),
        measured=["wait time, separated from transfer time by the shortest call of each collective"],
        assumed=_assumed(straggler, per)
        if replayed
        else in_turn.assumed(is_whole=is_whole)
        if in_turn
        else [NOT_COUNTED] * (unmatched > 0 and at_most_ns is not None),
    )


def _evidence(found: _Waiting, straggler: Straggler | None, rank: int) -> dict[str, Any]:
    """Return what each recommendation of this kind has as evidence."""
    return {
        "rank": rank,
        "waited_ns": found.wait_ns,
        "collective_ns": found.collective_ns,
        "left_out_step": found.left_out,
        "held_by": straggler.held_by if straggler else None,
        "late_with": straggler.late_with if straggler else [],
        "removal_ns": straggler.removal_ns if straggler else None,
    }


def _gain(
    replayed: tuple[int, int, int] | None, at_most_ns: int | None, analysis: Analysis, late: Sequence[int]
) -> tuple[int | None, int | None, int | None]:
    """Return what a recommendation gains, in ns, with its range, of what a replay gains without the excess of `late`
    ranks; without a replay at most `at_most_ns`."""
    if replayed is None:
        return None, None if at_most_ns is None else 0, at_most_ns
    if has_unmatched(analysis, late):
        return None, None, None  # what is waited in calls without a match comes on top
    if lacks_members(analysis):
        return None, 0, replayed[2]  # of members that were not recorded one may be as late
    return replayed


def _known_wait_ns(analysis: Analysis) -> int:
    """Return the exposed waiting for late ranks as far as it is known: of calls that were matched."""
    return sum(analysis.headline.causes.get(cause, 0) for cause in WAITS_FOR_LATE_RANK)


def _own_idle_ns(straggler: Straggler | None, analysis: Analysis) -> int:
    """Return what ranks that their hosts make late idle longer than others do in the median, of a step or recording of
    the headline, mean over its ranks."""
    if straggler is None or straggler.held_by != "host":
        return 0
    head = analysis.headline
    late, idle = {straggler.rank, *straggler.late_with}, dict[int, float]()
    for each in analysis.ranks:
        steps = [step for step in each.steps if step.complete] if head.window == "step" else [each.whole]
        if each.rank in head.ranks and steps:
            idle[each.rank] = median(
                (step.idle_ns or 0) - step.idle_causes.get(START_OF_RECORDING, 0) for step in steps
            )
    if not late <= idle.keys() or late == idle.keys():
        return 0
    usual = median(ns for rank, ns in idle.items() if rank not in late)
    return round(fmean(max(ns - usual, 0) if rank in late else 0 for rank, ns in idle.items()))


def _named_alone(found: _Waiting, straggler: Straggler | None, analysis: Analysis) -> int | None:
    """Return the rank that is named alone, by chance or not, where no replay says what it is worth; None for none, and
    where a step is left out."""
    if straggler is not None:
        return straggler.rank if straggler.removal_ns is None and not straggler.late_with else None
    if found.left_out is not None or lateness(found.blame_ns, analysis) not in ("each_step", "not_known"):
        return None
    return max(found.blame_ns, key=found.blame_ns.__getitem__)


def _delayed_ns(rank: int | None, analysis: Analysis) -> int | None:
    """Return what a rank alone delayed others by, of a step or of the recording: without its excess no more is gained;
    None where that is not known."""
    ns = next((each.delayed_ns for each in analysis.skew.ranks if each.rank == rank), None)
    return round(ns / (max(analysis.headline.steps, 1) if _window(analysis) == "step" else 1)) if ns else None


def _assumed(straggler: Straggler | None, per: str) -> list[str]:
    """Return what a gain by replay assumes."""
    own = "that a straggler's own work may take what its peers' takes: a replay, with each of several peers"
    since = per == "step" and straggler is not None and REMOVAL_SINCE in straggler.evidence
    further = f"that steps go on as they are{straggler.since}" if straggler is not None else ""
    return [own, further] if since else [own]


def _removal(
    straggler: Straggler | None, analysis: Analysis
) -> tuple[tuple[int, int, int] | None, Literal["step", "recording"]]:
    """Return what removing a straggler's excess gains, with its range over peers, in ns, and per what: a step where
    steps are known; None where no replay says it.

    Where its device became slower in the recording, that is of the steps since. A step that is cut short lacks what its
    host does before the next one, so that one that is late for its host is worth its excess over the other steps, or at
    least over all.
    """
    window = _window(analysis)
    if straggler is None or straggler.removal_ns is None:
        return None, window
    of_step = straggler.evidence.get(REMOVAL_STEP)
    if window == "step" and of_step:
        cut, steps = (len(each) for each in (_cut_short(analysis), analysis.headline.job_steps))
        of_steps = steps / (steps - cut) if straggler.held_by == "host" and cut < steps else 1.0
        middle, low, high = straggler.evidence.get(REMOVAL_SINCE, of_step)
        return (round(of_steps * middle), low, round(of_steps * high)), "step"
    low, high = straggler.removal_low_ns or 0, straggler.removal_high_ns or 0
    return (straggler.removal_ns, low, high), "recording"


def _cut_short(analysis: Analysis) -> set[int | None]:
    """Return the steps of the headline that are cut short."""
    cut = analysis.throughput.cut_short if analysis.throughput else []
    return {each.step for each in analysis.headline.job_steps}.intersection(cut)


def with_no_setting(each: Recommendation) -> Recommendation:
    """Return it with the words that no setting shortens the waiting, where its rank computes longer: for where no
    setting stands beside it."""
    words = f", which {NO_SETTING}" if each.evidence["held_by"] in BY_COMPUTE else ""
    return msgspec.structs.replace(each, title=f"{each.title}{words}")


def _without_one_event(found: _Waiting, by_step: Mapping[int, StepWaits], analysis: Analysis) -> _Waiting:
    """Return the waits without the step that has most of them, of three or more with collectives; else all of them."""
    most = max(by_step, key=lambda step: by_step[step].wait_ns, default=None)
    if most is None or len(by_step) < LEAST_STEPS or by_step[most].wait_ns <= found.wait_ns / 2:
        return found
    own, theirs = by_step[most], [each for info in analysis.ranks for each in info.steps if each.step == most]
    theirs_ns = _waits_ns(theirs)
    return msgspec.structs.replace(
        found,
        collective_ns=found.collective_ns - own.collective_ns,
        wait_ns=found.wait_ns - own.wait_ns,
        window_ns=found.window_ns - sum(each.window_ns or 0 for each in theirs),
        idle_ns=found.idle_ns - sum(each.idle_ns or 0 for each in theirs),
        exposed_wait_ns=None
        if found.exposed_wait_ns is None or theirs_ns is None
        else found.exposed_wait_ns - theirs_ns,
        blame_ns={rank: ns - own.blame_ns.get(rank, 0) for rank, ns in found.blame_ns.items()},
        left_out=most,
    )


def _waits_ns(every: Sequence[Breakdown]) -> int | None:
    """Return the exposed waiting for late ranks, without late ends of calls; None where waiting is not known of one."""
    if any(each.comm_ns and each.exposed_wait_ns is None for each in every):
        return None
    return sum(each.causes.get(cause, 0) for each in every for cause in WAITS_FOR_LATE_RANK)


def _look(
    straggler: Straggler | None, rank: int, found: _Waiting, analysis: Analysis, in_turn: SlowerInTurn | None
) -> dict[str, str]:
    """Return what to type to see why the rank is late, or ranks in turn."""
    where = {"host": f"hostname; lscpu; nvidia-smi -L  # where rank {rank} runs: is another rank late there, too?"}
    if straggler is not None:
        tunes = TUNES if "kernels_alone" in straggler.evidence else {}
        return {"look": f"{LONGEST_WAITS}, as commands", **LOOK.get(straggler.held_by, {}), **tunes, **where}
    whose = lateness(found.blame_ns, analysis)
    if whose == "each_step":
        return {"look": f"{LONGEST_WAITS}, as commands", **where}
    if in_turn is None and whose not in ("in_turn", "waits_longest"):
        return {"look": f"{LONGEST_WAITS}; more steps show whether it is always one rank"}
    if in_turn is not None and in_turn.same_work is False:
        return {"look": f"{LONGEST_WAITS}; then what batches hold, from step to step", **in_turn.code}
    differs = "clocks, power" if in_turn and in_turn.same_work else "batches, clocks, power"
    if not found.on_device:
        return {"look": f"{LONGEST_WAITS}; then what differs from step to step (batches, other work on the cores)"}
    return {
        "look": f"{LONGEST_WAITS}; then what differs from step to step ({differs}, other processes)",
        "nvidia": "nvidia-smi -q -d PERFORMANCE,CLOCK,POWER; nvidia-smi  # and what else runs on the devices",
        "linux": PROCESSES,
    }


def _title(
    straggler: Straggler | None,
    rank: int,
    found: _Waiting,
    analysis: Analysis,
    in_turn: SlowerInTurn | None,
    once: OneCall | None,
    others_ns: int,
) -> str:
    waiting, exposed = _waiting_words(found, analysis)
    if once is not None:
        leads = f"{ms(once.lead_ns)} of the {ms(once.of_ns)} by which rank {once.rank} came last are in one call"
        return f"W{waiting}; {leads}, {ms(once.after_ns)} after step {once.step} began: it was late once"
    if straggler is None:
        without = "" if found.left_out is None else f" even without step {found.left_out}, which has most of it"
        whom = _whom(found.blame_ns, analysis) if in_turn is None else _slower_words(in_turn)
        return f"W{waiting}{exposed}{without}, {whom}"
    cause = (
        f" ({straggler.held_by.replace('_', ' ')}{_where(straggler)}{_beside_compute(straggler)})"
        if straggler.held_by != "unknown"
        else ""
    )
    ranks = sorted([rank, *straggler.late_with])
    who = f"rank {rank}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
    when = straggler.since or straggler.alone_in or straggler.slow_in or straggler.late_in
    when = when if len(ranks) == 1 else ""
    head = analysis.headline
    others = f", and {ms(others_ns)} of a {ms(head.step_ns or 0)} {head.window} in calls without a match"
    return f"Look at {who}{cause}{when}: w{waiting}{others * bool(others_ns)}"


def _waiting_words(found: _Waiting, analysis: Analysis) -> tuple[str, str]:
    """Return how much waiting there is, and what of a step that is; the latter empty where it is not known, or the
    former says it."""
    head, comm_ns = analysis.headline, sum(each.whole.comm_ns or 0 for each in analysis.ranks)
    late_ns = sum(head.causes.get(each, 0) for each in WAITS_FOR_LATE_RANK)
    share = f"aiting is {percent_text(found.wait_ns / found.collective_ns)} of the time in matched collectives"
    if found.left_out is not None or not head.step_ns or not late_ns:
        return share, ""
    of_step = f"{ms(late_ns)} of a {ms(head.step_ns)} {head.window}"
    if found.collective_ns < MOSTLY_MATCHED * comm_ns:
        return f"aiting is {of_step}, or more", ""
    return share, f", {of_step} exposed"


def _whom(blame_ns: Mapping[int, int], analysis: Analysis) -> str:
    """Return for whom ranks waited: of several in turn, the few that have most of the blame, the largest first."""
    if lateness(blame_ns, analysis) != "in_turn":
        return waited_for(blame_ns, analysis)
    of_ns = sum(blame_ns.values())
    ordered = sorted(blame_ns, key=lambda rank: -blame_ns[rank])
    late = [rank for rank in ordered if blame_ns[rank] >= WORTH_BLAME * of_ns]
    if not 1 < len(late) < min(len(blame_ns), MOST_NAMED + 1):
        return waited_for(blame_ns, analysis)
    return f"most for rank {late[0]}, then {list_some(late[1:])}"


def _slower_words(found: SlowerInTurn) -> str:
    """Return for whom ranks waited: for one that computed longer than its peers in its step, now this one, now that."""
    what = "does the same work slower" if found.same_work else "computes longer than its peers then"
    even = "; even out batches" if found.same_work is False else ""
    return f"for several ranks in turn, each of which {what} ({found.where}){found.which_work}{even}"


def _once(analysis: Analysis) -> dict[int, int]:
    """Return the blame of each rank, of leads that last over several calls once, where that is known and any is.

    Where no rank has half of the blame in all calls, all of it is returned: then no measure alone accuses one.
    """
    ranks = analysis.skew.ranks
    every = {each.rank: each.blame_ns for each in ranks}
    known = any(each.delayed_ns for each in ranks) and max(every.values()) > sum(every.values()) / 2
    return {each.rank: each.delayed_ns if known and each.delayed_ns is not None else every[each.rank] for each in ranks}


def _where(straggler: Straggler) -> str:
    """Return words to follow its cause: the operation or the range that holds most of it, where one is known to."""
    named = (straggler.evidence.get(each) for each in ("range", "longer_op", "host_op"))
    name = next((each for each in named if isinstance(each, str)), None)
    if straggler.paused:
        return f", which alone pauses {straggler.paused}: logging, a tracker?"
    return "" if name is None else f", in {name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 3] + '...'}"


def _beside_compute(straggler: Straggler) -> str:
    """Return words to follow the cause of a rank that computed longer: how many kernels no other rank ran, and that its
    device idled longer by as much as it computed longer, or more."""
    alone = straggler.evidence.get("kernels_alone")
    which = f", {alone} kernel{'s' * (alone > 1)} that no other rank ran" if alone else ""
    computed, idle = (straggler.evidence.get(key) or 0 for key in ("computed_more_ns", "idle_more_ns"))
    return f"{which}; its host stalls as long" if straggler.held_by in BY_COMPUTE and idle >= computed > 0 else which
