"""Rules: the device is idle while its host loads data, collects garbage, waits in calls, or allocates and frees device
memory."""

import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Final

import numpy as np

from overlapscope.advice.copies.copy_rows import PINNED
from overlapscope.advice.job_kind import JobKind
from overlapscope.advice.losses.emptied_cache import empties_cache
from overlapscope.advice.losses.host_time import (
    APART,
    LEAST_IDLE,
    MOSTLY,
    UNEVEN,
    HostTime,
    RankLoss,
    awaited_name,
    host_time,
    in_the_mean,
    launching_share,
    lost_in_steps,
    most_by_number,
    range_of_waits,
    uneven_rank,
    worth_naming,
)
from overlapscope.advice.rule_input import RuleInput, ms, recommended
from overlapscope.advice.training_thread import training_lane
from overlapscope.analysis.checks.hosts.host_pauses import WAIT_OR_NOT, rows_of
from overlapscope.analysis.common.loading import loads_data
from overlapscope.analysis.graph.building.host_calls import LAUNCHES_GRAPH
from overlapscope.analysis.graph.building.host_waits import TO_HOST
from overlapscope.analysis.graph.host_losses import SCALAR, SIZED
from overlapscope.analysis.result import Recommendation, ShownBy
from overlapscope.timeline.columns import OPERATION, Ints
from overlapscope.timeline.intervals import BusyTime, Intervals, intersection, length, union
from overlapscope.timeline.lazy_host_spans import select_host_spans
from overlapscope.timeline.readings import COLLECTOR, recorded_pauses
from overlapscope.timeline.run import RankTimeline

MOST_NAMED: Final = 3
VERSIONED: Final = re.compile(r"_v\d+$")
"""What CUPTI appends to the names of calls."""
COPIES: Final = ("aten::copy_", "aten::_to_copy", "aten::to")
"""Operations that copy between host and device: to or from pageable memory they wait."""
SAYS_WHERE: Final = 'torch.cuda.set_sync_debug_mode("warn")  # prints the line of each call that waits'
STREAM_WAITS: Final = "work.wait()  # the stream waits then, not the host, unless TORCH_NCCL_BLOCKING_WAIT=1 is set"
SERVING: Final = {
    "serving": "vllm serve ... --async-scheduling  # the next step is scheduled while the device works on this one\n"
    "python -m sglang.launch_server ...  # without --disable-overlap-schedule"
}
"""For servers, which need the sampled tokens: not to wait is no choice, but to schedule ahead of them."""
CAPTURED: Final = {
    "serving": "vllm serve ...  # without --enforce-eager\n"
    "python -m sglang.launch_server ...  # without --disable-cuda-graph"
}
"""For servers whose launches cannot keep up: not to be kept from capturing graphs."""
AWAITED_NS: Final = "awaited_communication_ns"
"""In the evidence of `blocking_calls`: exposed time of calls that only the host waited for."""
LOST_NS: Final = "lost_ns"
"""In the evidence of `blocking_calls`, where calls are awaited: what a step idles, and exposes before the calls that
only the optimizer follows: no host that runs ahead saves more, as the optimizer needs what these deliver."""
NOT_NEEDED: Final = (
    "that the compute launched after these waits does not need that communication: where it does, as the layer needs "
    "parameters that were not gathered ahead, less is gained"
)
MOSTLY_IN_PAUSES: Final = 0.8
"""Share of the idle time after waits that lies in pauses from which on it is theirs. A choice."""
AVOIDED: Final = "that all of it can be avoided"
LEAST_LOADING: Final = 0.1
"""Least share of a step. A choice: to hand over a batch that is ready takes some of each step in sound jobs, too."""
ALONE, WORKERS = "_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"
"""In names of ranges that fetch a batch: without, and with, workers of the loader."""
BESIDE: Final = (
    "DataLoader(..., num_workers=8, prefetch_factor=4, pin_memory=True, persistent_workers=True)\n"
    "batch = batch.to(device, non_blocking=True)  # from pinned memory"
)
FASTER: Final = (
    "DataLoader(..., num_workers=MORE, prefetch_factor=MORE, persistent_workers=True)  # if cores are free\n"
    "# else less work for each batch: decode and augment before training, or on the device; larger files, nearer"
)
"""What to do where workers load batches already."""
IN_WORKERS: Final = (
    "DataLoader(..., collate_fn=collate, pin_memory=True)  # its workers collate, not the loop that trains\n"
    "batch = batch.to(device, non_blocking=True)  # from pinned memory"
)
"""What to do where the loop that trains works on batches which workers loaded."""

BY_WORKERS: Final = "by_workers"
"""In the evidence: whether workers load the batches, and the training process only takes them."""

KEEP_CACHE: Final = "# no torch.cuda.empty_cache() in a step: torch uses again what it keeps"
OTHERS_ALLOCATE: Final = {
    "environment": "unset PYTORCH_NO_CUDA_MEMORY_CACHING PYTORCH_NO_HIP_MEMORY_CACHING\n"
    "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True  # PYTORCH_HIP_ALLOC_CONF on AMD",
    "torch": "# no torch.cuda.empty_cache() in a step; pad batches to a few sizes; leave some memory free",
}
"""What to do where device memory is allocated and freed, and who asks for it is not known."""


def bound(given: RuleInput) -> str:
    """Return the assumption that all of a loss can be avoided, and whether that bounds the gain: not where ranks that
    may lose as much were not recorded."""
    of_all = given.is_whole or not given.figures.comm_ns
    return f"{AVOIDED}: {'the gain is an upper bound' if of_all else 'ranks that were not recorded may lose as much'}"


def data_loading(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where the device is idle while a batch is fetched; without a device also where the host
    computes meanwhile, for the batch."""
    found = host_time(given, "data_loading")
    own = found.by_window if given.run_has_device else _longer(found.by_window, _fetched_ns(given))
    by_rank = {rank: each for rank, each in own.items() if each.size}
    most = uneven_rank({rank: float(np.median(each)) for rank, each in by_rank.items()})
    lost = round(float(np.median(lost_in_steps(given, by_rank, most)))) if by_rank else 0
    few = in_the_mean(given, own, LEAST_LOADING)
    if few is not None and few.ns < APART * lost and lost >= LEAST_LOADING * given.step_ns:
        few = None  # the median step says as much
    lost = lost if few is None else few.ns
    if lost < LEAST_LOADING * given.step_ns or not lost:
        return None
    names = [name for each in given.run.ranks.values() for name in each.names]
    alone = any(ALONE in name for name in names)
    workers = not alone and any(WORKERS in name for name in names)
    by_loop = workers and _is_outside_iterator(given)
    by_workers = workers and not by_loop
    of = "" if most is None else f" of rank {most}"
    of, how_long = (of, f"{ms(lost)} of a {ms(given.step_ns)} {given.per}") if few is None else (few.of, few.words)
    how_long += "," * (few is not None)
    how = f"the device{of} waits {how_long}" if given.run_has_device else how_long
    until = "while a batch is fetched"
    if not given.run_has_device:
        until = f"pass on the training thread{of} while it fetches a batch"
    return recommended(
        given,
        id="data_loading",
        title=f"{'Load batches faster' if by_workers else 'Load data beside the step'}: {how} {until}"
        f"{_by_whom(given, alone=alone, by_loop=by_loop, by_workers=by_workers)}",
        at_most_ns=lost,
        bound_from="loss",
        apply={"torch": FASTER if by_workers else IN_WORKERS if by_loop else BESIDE},
        evidence={
            "data_loading_ns": lost,
            "idle_ns": given.figures.idle_ns,
            "without_workers": alone,
            BY_WORKERS: by_workers,
            **(few.evidence() if few is not None else {}),
        },
        shown_by=found.shown_by,
        measured=["idle time in which the host was in the loader"]
        if given.run_has_device
        else ["time in which the host was in the loader"],
        assumed=[f"that storage and cores can deliver batches as fast as they are taken; {bound(given)}"],
    )


def _by_whom(given: RuleInput, *, alone: bool, by_loop: bool, by_workers: bool) -> str:
    """Return words for who fetches the batch, for the end of a title; empty where that is not known."""
    if by_loop:
        inside = range_of_waits(given, "data_loading")
        return f"{inside}, by the training process itself, though its loader has workers"
    return ", by the training process itself" if alone else ", though workers load them" if by_workers else ""


def _is_outside_iterator(given: RuleInput) -> bool:
    """Return whether most idle time in which hosts fetch a batch is outside of the iterator that takes it from workers:
    what the loop itself does for the batch."""
    inside = of_all = 0
    for rank, losses in given.host_losses.items():
        when = union(*(each.when for each in losses if each.kind == "data_loading"))
        inside += length(intersection(when, _iterating(given.run.ranks[rank])))
        of_all += length(when)
    return inside < MOSTLY * of_all


def _iterating(timeline: RankTimeline) -> Intervals:
    """Return when a rank was in the iterator of a loader with workers, by its ranges and operations."""
    notes, iterates = timeline.annotations, np.array([WORKERS in each for each in timeline.names], np.bool_)
    marks, host = np.append(iterates, np.False_)[notes.name], select_host_spans(timeline.host, (OPERATION,), iterates)
    return union((notes.start_ns[marks], notes.end_ns[marks]), (host.start_ns, host.end_ns))


def _longer(one: Mapping[int, Ints], other: Mapping[int, Ints]) -> dict[int, Ints]:
    return {rank: np.maximum(own, other[rank]) for rank, own in one.items()}


def _fetched_ns(given: RuleInput) -> dict[int, Ints]:
    """Return for how long the training thread of each rank fetched a batch in each step, in ranges that say so."""
    found = {}
    for rank, windows in given.windows.items():
        timeline = given.run.ranks[rank]
        notes = timeline.annotations
        loads = loads_data(timeline, notes.name, notes.start_ns, notes.end_ns)
        loads &= notes.lane == training_lane(timeline)
        fetches = BusyTime(union((notes.start_ns[loads], notes.end_ns[loads])))
        starts, ends = np.array(windows, np.int64).reshape(-1, 2).T
        found[rank] = fetches.within(starts, ends)
    return found


def _lost(given: RuleInput, found: HostTime) -> RankLoss | None:
    """Return idle time of a kind, and words for it, where it is worth it: in the mean of all ranks, else what the rank
    that loses most loses, or of all steps, where few long ones have much of it; None for less."""
    few = in_the_mean(given, found.by_window, LEAST_IDLE)
    if not found.ns or found.ns < LEAST_IDLE * given.step_ns:
        return few
    # Few long steps are in no usual one: where they have much of it, it is one loss with theirs.
    means = [float(own.mean()) for own in found.by_window.values() if own.size]
    if few is not None and fmean(means) >= APART * found.ns:
        return few
    return RankLoss(ns=found.ns, words=_of_step(given, found.ns), of="")


def _of_step(given: RuleInput, ns: int) -> str:
    return f"{ms(ns)} of {given.of_step}"


def garbage_collection(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where nothing is computed while the interpreter collects garbage."""
    found = host_time(given, "garbage_collection")
    collected = {} if given.run_has_device else _collected_ns(given)
    own = {rank: float(each.mean()) for rank, each in collected.items()}
    lost = max(found.ns, round(fmean(own.values()))) if own else found.ns
    if lost < LEAST_IDLE * given.step_ns or not lost:
        return None
    one = given.in_one_step(collected)
    times = given.steps if one else 1
    how_long = f"{ms(one[1])} in step {one[0]} alone" if one else f"{ms(lost)} of a {ms(given.step_ns)} {given.per}"
    mostly = "" if one else _mostly(own, lost)
    return recommended(
        given,
        id="garbage_collection",
        title=f"Collect garbage beside the step: {how_long} pass while the interpreter collects it and nothing is "
        f"computed, in the mean of all ranks{mostly}",
        loss_ns=round(max(own.values(), default=lost) * times),  # no bound: who waits for the rank loses as much
        per="recording" if one else None,
        apply={
            "python": "gc.collect(); gc.freeze(); gc.disable()  # before training, on all ranks\n"
            "gc.collect()  # now and then, in the same step on all ranks; and none by hand in each step"
        },
        evidence={"garbage_collection_ns": lost * times, "idle_ns": given.figures.idle_ns},
        shown_by=found.shown_by,
        measured=["when garbage was collected, as capture noted it or ranges say"],
        assumed=[],
    )


def _collected_ns(given: RuleInput) -> dict[int, Ints]:
    """Return for how long each rank collected garbage in each of its windows: without a device also where it interrupts
    what the host computes."""
    found = {}
    for rank, windows in given.windows.items():
        starts, ends = np.array(windows, np.int64).reshape(-1, 2).T
        found[rank] = BusyTime(recorded_pauses(given.run.ranks[rank], COLLECTOR)).within(starts, ends)
    return found


def _mostly(own: Mapping[int, float], mean_ns: float) -> str:
    """Return the end of a title that names the rank of several that loses the most, where it is far from the mean."""
    most = max(own, key=own.__getitem__, default=None)
    if most is None or len(own) == 1 or own[most] < UNEVEN * mean_ns:
        return ""
    return f", {ms(own[most])} on rank {most}"


def blocking_calls(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where calls that wait for the device leave it without work, or without the compute that
    communication could run beside; None where most of that time lies in pauses that come without these waits, too."""
    found, awaited = host_time(given, "blocking_call", "poll"), host_time(given, "awaited_communication")
    awaited_ns = _can_be_overlapped_ns(given)
    lost = _lost(given, found)
    if lost is None and awaited_ns:
        lost = RankLoss(ns=found.ns, words=_of_step(given, found.ns), of="")
    if lost is None or (not awaited_ns and _pauses_explain_it(given)):
        return None
    waits = dict.fromkeys([*(awaited.waits if awaited_ns > found.ns else ()), *found.waits])
    calls = [VERSIONED.sub("", call) for call, _ in waits]
    means = {rank: float(own.mean()) for rank, own in found.by_window.items() if own.size}
    on_rank = "" if lost.of else _mostly(means, lost.ns).lstrip(", ")
    in_steps = most_by_number(given, found.by_window)
    keeps_up = not given.job.serves or replays_graphs(given)
    slowly_ns = 0 if keeps_up else round(lost.ns * launching_share(given))
    slowly = f", {ms(slowly_ns)} of it between launches that follow each other" if given.is_worth(slowly_ns) else ""
    code = instead_of(
        given.job,
        waits,
        found.shown_by or awaited.shown_by,
        of_communication=awaited_ns > 0,
        awaited=awaited.awaited | found.awaited,
    )
    return recommended(
        given,
        id="blocking_calls",
        title=f"Let the host run ahead: {_costs(given, lost, on_rank, awaited_ns)} because the host waits for it "
        f"({named_waits(calls, waits)}){range_of_waits(given, 'blocking_call', 'poll')}{slowly}",
        at_most_ns=lost.ns + awaited_ns,
        bound_from="loss",
        apply={name: f"{lines}\n{CAPTURED[name]}" for name, lines in code.items()} if slowly else code,
        evidence={
            "blocking_ns": lost.ns,
            AWAITED_NS: awaited_ns,
            "of_rank_with_most_ns": max(round(float(in_steps.mean())), lost.ns) if in_steps.size else lost.ns,
            "polls_ns": found.by_kind.get("poll", 0),
            **({"launching_ns": slowly_ns} if slowly else {}),
            "calls": found.by_call,
        }
        | lost.evidence()
        | ({LOST_NS: _before_optimizer_ns(given)} if awaited_ns else {}),
        shown_by=awaited.shown_by if awaited_ns > found.ns else found.shown_by,
        measured=[
            _idle_in_and_after(found, lost),
            *["exposed communication that these calls waited for before another stream had to"] * (awaited_ns > 0),
        ],
        assumed=[not_at_once(given.job), *[NOT_NEEDED] * (awaited_ns > 0), bound(given)],
    )


def _idle_in_and_after(found: HostTime, lost: RankLoss) -> str:
    """Return what idle time because of calls consists of, with how much each is where the loss is that of all ranks."""
    known = lost.ns == found.ns > 0
    inside, after = (f"{ms(each)} " if known else "" for each in (found.ns - found.after_ns, found.after_ns))
    return (
        f"idle time: {inside}while the host was in these calls, {after}while it launched again after they had emptied "
        "the device"
    )


def _pauses_explain_it(given: RuleInput) -> bool:
    """Return whether most of the idle time that waits took is in long pauses that come, wait or not: a batch may be
    fetched, and a loader may be slower than the step; or the host works on what was copied to it."""
    found = next((each.evidence for each in given.analysis.findings if each.id == "host_pauses"), {})
    if not found.get(WAIT_OR_NOT):
        return False
    lost_ns = paused_ns = 0
    for rank, losses in given.host_losses.items():
        when = union(*(each.when for each in losses if each.kind in ("blocking_call", "poll")))
        lost_ns += length(when)
        if rank in given.long_pauses:
            pauses = given.long_pauses[rank]
            rows = rows_of(found, rank, pauses)
            paused_ns += length(intersection(when, union((pauses.start_ns[rows], pauses.end_ns[rows]))))
    return paused_ns > MOSTLY_IN_PAUSES * lost_ns


def _can_be_overlapped_ns(given: RuleInput) -> int:
    """Return how much of a step's exposed communication that only hosts waited for compute could overlap: at most as
    long as a step computes; 0 where that is not worth it."""
    at_most_ns = min(given.cause_ns("host_waited"), given.figures.compute_ns or 0)
    return at_most_ns if given.is_worth(at_most_ns) else 0


def _before_optimizer_ns(given: RuleInput) -> int:
    """Return what a step is idle, and exposes but for what only the optimizer follows."""
    exposed_ns = (given.figures.exposed_comm_ns or 0) - given.cause_ns("tail")
    return (given.figures.idle_ns or 0) + max(exposed_ns, 0)


def _costs(given: RuleInput, lost: RankLoss, on_rank: str, awaited_ns: int) -> str:
    """Return words for what waits of the host cost: idle time, where it is worth it, and communication that no compute
    overlaps."""
    idles = f"the device{lost.of} waits {lost.words}{on_rank and f' ({on_rank})'}"
    if not awaited_ns:
        return idles
    late = f"compute that may overlap up to {ms(awaited_ns)} of communication is launched after it,"
    return f"{idles}, and {late}" if given.is_worth(lost.ns) else f"in a {ms(given.step_ns)} {given.per} {late}"


def replays_graphs(given: RuleInput) -> bool:
    """Return whether the job launches whole graphs already."""
    return any(map(LAUNCHES_GRAPH.search, {name for each in given.run.ranks.values() for name in each.names}))


def not_at_once(job: JobKind) -> str:
    """Return what is assumed where a host is not to wait for its device."""
    return f"that {'steps can be scheduled before tokens are read' if job.serves else 'results are not needed at once'}"


def named_waits(calls: Iterable[str], waits: Iterable[tuple[str, str | None]]) -> str:
    """Return the names of the first calls that wait, and what is read, where that is known: a number, or a size."""
    ops = {op for _, op in waits}
    reads = ((".item() or the like", SCALAR), ("nonzero() or the like", SIZED))
    what = [words for words, those in reads if ops & {*those}]
    named = ", ".join(list(dict.fromkeys(calls))[:MOST_NAMED]) or "a loop that polls"
    return named + (f", for {' and '.join(what)}" if what else "")


def instead_of(
    job: JobKind, waits: Iterable[tuple[str, str | None]], shown: ShownBy | None = None, *,
    of_communication: bool = False, awaited: Mapping[tuple[str, str | None], str] | None = None,
) -> dict[str, str]:  # fmt: skip
    """Return code in place of calls that wait for the device, each with the operation that makes it, if any does.

    `shown` is the longest wait, where that is known: it says whether the host reads the result of one graph before it
    launches the next, and whether a copy was from or to pinned memory already, where `awaited`, what each of these
    waits was for, does not. `of_communication`: some wait for that.
    """
    if job.serves:
        return SERVING
    lines = _lines(list(waits), shown, awaited or {})
    return {"torch": "\n".join([*lines, *[STREAM_WAITS] * of_communication, SAYS_WHERE])}


def _lines(
    waits: Sequence[tuple[str, str | None]], shown: ShownBy | None, awaited_by: Mapping[tuple[str, str | None], str]
) -> list[str]:
    awaited, launched = _awaited_and_launched(shown)
    ops = {op for _, op in waits}
    others = [(call, op) for call, op in waits if op not in (*SCALAR, *SIZED)]
    lines = []
    if ops & {*SCALAR}:
        lines.append("total += loss.detach()  # on the device; total.item() once in many steps")
    if ops & {*SIZED}:
        lines.append("torch.where(mask, x, 0)  # a result of fixed size, instead of x[mask] or nonzero")
    copies = [each for each in others if "Memcpy" in each[0] or each[1] in COPIES]
    if any(not PINNED.search(awaited_by.get(each, awaited)) for each in copies):
        lines.append("x = x.pin_memory().to(device, non_blocking=True)  # and back: .to('cpu', non_blocking=True)")
    if TO_HOST.search(awaited) and LAUNCHES_GRAPH.search(launched):
        lines.append("# launch the next graph before the result of this one is read, or read those of several at once")
    elif any("Synchronize" in call and op not in COPIES for call, op in others):
        lines.append("# no torch.cuda.synchronize() or event.synchronize() in a step: it empties the device")
    return lines


def _awaited_and_launched(shown: ShownBy | None) -> tuple[str, str]:
    """Return the names of what the longest wait waited for, and of the launch after it; empty where not known."""
    chain = shown.chain if shown is not None else []
    launched = next((each.what for each in chain[:1] if each.kind == "launch"), None)
    return awaited_name(chain), launched or ""


def allocator_churn(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where device memory is allocated and freed inside steps."""
    found = host_time(given, "allocation")
    lost = _lost(given, found)
    if lost is None:
        return None
    named = ", ".join(dict.fromkeys(VERSIONED.sub("", each) for each in worth_naming(found.by_call)[:MOST_NAMED]))
    emptied = empties_cache(given)
    what = f"calls of {named}{' in a row, as torch.cuda.empty_cache() makes them,' if emptied else ''}"
    return recommended(
        given,
        id="allocator_churn",
        title=f"Keep device memory allocated: {what} leave the device{lost.of} idle for {lost.words}",
        at_most_ns=lost.ns,
        bound_from="loss",
        apply={"torch": KEEP_CACHE} if emptied else OTHERS_ALLOCATE,
        evidence={"allocation_ns": lost.ns, "calls": found.by_call, "empties_cache": emptied} | lost.evidence(),
        shown_by=found.shown_by,
        measured=[_idle_in_and_after(found, lost)],
        assumed=[f"that the memory suffices when freed memory is kept; {bound(given)}"],
    )
