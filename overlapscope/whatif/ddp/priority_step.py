"""Build the job of a step with priority scheduling: gradients that the next forward needs first are sent first.

ByteScheduler (Peng et al., SOSP 2019) sends gradients in pieces, those of the first layers before all others that wait,
and lets the next forward begin with the first layers while the last ones are still sent. DistributedDataParallel does
neither: its optimizer waits for all buckets, in any order. Here a bucket's optimizer and forward run after its own
all-reduce. The order is decided beforehand, as by one scheduler for all ranks, because all ranks must send in the same
order.

A step lasts from backward to the end of the next forward. At that end no transfer is running, so steps do not overlap.
"""

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np

from overlapscope.whatif.ddp.ddp_step import Reduction, Settings, buckets_of, of_ranks, reductions_of
from overlapscope.whatif.replay.replay import Gap, Instruction, Job, Launch, Transfer, Wait, Work
from overlapscope.whatif.workload.workload import Workload

Piece = tuple[int, int]
"""Bucket, and number among its pieces."""


def priority_job(workload: Workload, settings: Settings) -> Job:
    """Return the job of one step; passes that reduce nothing come first. Only one pass may reduce (see `no_sync`)."""
    found = reductions_of(workload, settings)
    transfers = [Transfer(ranks=(), alone_ns=ns) for each in found for ns in each.pieces_ns]
    first = np.cumsum([0, *(len(each.pieces_ns) for each in found)]).tolist()
    earlier = (settings.accumulation - 1) * (workload.forward_ns + workload.backward_ns)
    body: list[Instruction] = [Gap(workload.host_gap_ns)] if workload.host_gap_ns else []
    body += [Work(earlier)] if earlier else []
    body += _backward(workload, found, first)
    body += _next_forward(workload, settings, found, first)
    return of_ranks(workload, settings, body, transfers)


def _backward(workload: Workload, found: Sequence[Reduction], first: Sequence[int]) -> list[Instruction]:
    """Return backward with the launches of all pieces, each when it and the pieces sent before it are ready."""
    marks: list[tuple[float, int, list[Instruction]]] = [
        (each.launch_ns, 0, [Work(each.before_ns)]) for each in found if each.before_ns
    ]
    ready = 0.0
    for bucket, piece in sending_order(found):
        ready = max(ready, found[bucket].launch_ns)
        marks.append((ready, 1, [Launch(first[bucket] + piece)]))
    end = workload.forward_ns + workload.backward_ns
    body: list[Instruction] = []
    at = workload.forward_ns
    for time, _, instructions in [*sorted(marks, key=lambda mark: mark[:2]), (end, 2, [])]:
        if min(time, end) > at:
            body.append(Work(min(time, end) - at))
            at = min(time, end)
        body += instructions
    return body


def sending_order(found: Sequence[Reduction]) -> list[Piece]:
    """Return the pieces in sending order: the link is never idle while one is ready, and sends the most urgent first.

    Most urgent is the bucket that was ready last: it holds the layers with which forward begins.
    """
    order: list[Piece] = []
    waiting: list[tuple[int, int]] = []
    now = 0.0
    place = 0
    while place < len(found) or waiting:
        if not waiting:
            now = max(now, found[place].launch_ns)
        while place < len(found) and found[place].launch_ns <= now:
            for piece in range(len(found[place].pieces_ns)):
                heappush(waiting, (-place, piece))
            place += 1
        negative, piece = heappop(waiting)
        order.append((-negative, piece))
        now += found[-negative].pieces_ns[piece]
    return order


def _next_forward(
    workload: Workload, settings: Settings, found: Sequence[Reduction], first: Sequence[int]
) -> list[Instruction]:
    """Return for each bucket, the last one first: the wait for it, then its optimizer and forward."""
    members = [list(each.parameters) for each in buckets_of(workload, settings)]
    gradients = workload.gradients
    sizes = np.array([gradients.sizes_bytes[each].sum() for each in members], np.float64)
    ready = np.maximum.accumulate([gradients.ready_ns[each].max() for each in members])
    lasted = np.diff(np.concatenate(([workload.forward_ns], ready)))
    shares = lasted / lasted.sum() if lasted.sum() else np.full(lasted.size, 1 / lasted.size)
    body: list[Instruction] = []
    # The map of used parameters is reduced after the buckets, and every optimizer step needs it.
    for bucket in (*range(len(members), len(found)), *reversed(range(len(members)))):
        body += map(Wait, range(first[bucket], first[bucket + 1]))
        work = found[bucket].after_ns
        if bucket < len(members):
            work += workload.optimizer_ns * float(sizes[bucket] / sizes.sum())
            work += workload.forward_ns * float(shares[bucket])
        if work:
            body.append(Work(work))
    return body
