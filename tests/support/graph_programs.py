"""Small programs of host threads and streams, run by a plain simulation; what it records is a trace like a profiler's.

A rank's program is a list of operations, each on a thread; threads take turns. Times are nanoseconds.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from overlapscope.timeline.columns import (
    COMPUTE,
    CONTEXT_SYNC,
    COPY,
    EVENT_SYNC,
    HOST,
    NONE,
    RUNTIME,
    STREAM_SYNC,
    STREAM_WAIT_EVENT,
)
from overlapscope.timeline.run import Group, RankTimeline, Run
from tests.support.rank_rows import rank_timeline

START_NS = 1_700_000_000_000_000_000
LATENCY_NS = 4_000
LANE_GAP_NS = 1_000
CALL_NS = 3_000
SYNC_CALL_NS = 5_000
HAND_OVER_NS = 30_000
POLL_NS = 15_000
COPY_RETURNS_NS = 3_000


class Work(msgspec.Struct, frozen=True):
    """The host computes."""

    ns: int


class Launch(msgspec.Struct, frozen=True):
    """A kernel, or with `call` the member of a collective, on a stream."""

    lane: int
    ns: int = 0
    kind: int = COMPUTE
    name: str = "gemm"
    call: str | None = None
    takes_ns: int = CALL_NS


class CopyBack(msgspec.Struct, frozen=True):
    """A copy to pageable memory: its call returns after it."""

    lane: int
    ns: int


class Record(msgspec.Struct, frozen=True):
    """Record an event on a stream."""

    event: str
    lane: int


class Wait(msgspec.Struct, frozen=True):
    """Let a stream wait for an event."""

    event: str
    lane: int


class Sync(msgspec.Struct, frozen=True):
    """Wait for the device, for a stream, or for an event; the thread goes on `wake_ns` late if it had waited."""

    lane: int | None = None
    event: str | None = None
    wake_ns: int = 0


class Poll(msgspec.Struct, frozen=True):
    """Wait for the last kernel launched, without any call."""


class Thread(msgspec.Struct, frozen=True):
    """Go on on this thread."""

    number: int


class Recorder(msgspec.Struct, frozen=True):
    """The recording begins: of what was launched before only its spans are seen that have not ended."""


Operation = Work | Launch | CopyBack | Record | Wait | Sync | Poll | Thread | Recorder
Program = Sequence[Operation]


class _Span(msgspec.Struct):
    lane: int
    ns: int
    kind: int
    name: str
    launch_ns: int
    correlation: int
    call: str | None
    before: "list[_Span]"
    previous: "_Span | None"
    start: int | None = None
    end: int | None = None


class _Rank:
    def __init__(self, program: Program, begin: int, queue: int | None) -> None:
        self.operations = list(program)
        self.queue = queue
        self.at = 0
        self.clock = begin
        self.begin = begin
        self.thread = 0
        self.spans: list[_Span] = []
        self.calls: list[dict[str, Any]] = []
        self.syncs: list[dict[str, Any]] = []
        self.events: dict[str, tuple[_Span | None, int, int]] = {}
        self.waits: dict[int, list[_Span]] = {}
        self.correlation = 0
        self.pending: _Span | None = None

    def called(self, name: str, ns: int) -> int:
        self.correlation += 1
        self.calls.append(
            {"lane": self.thread, "kind": RUNTIME, "name": name, "start_ns": self.clock, "end_ns": self.clock + ns,
             "correlation": self.correlation}
        )  # fmt: skip
        self.clock += ns
        return self.correlation

    def last(self, lane: int | None) -> list[_Span]:
        lanes = {each.lane for each in self.spans} if lane is None else {lane}
        found = [next((span for span in reversed(self.spans) if span.lane == each), None) for each in sorted(lanes)]
        return [span for span in found if span]


class Simulated(msgspec.Struct, frozen=True):
    """The trace of a job, and when its last span ended, counted from the first that started."""

    run: Run
    length_ns: int

    @property
    def rank(self) -> RankTimeline:
        """The only rank."""
        (timeline,) = self.run.ranks.values()
        return timeline


def simulate(
    programs: Mapping[int, Program], transfers_ns: Mapping[str, int] | None = None, *,
    begins_ns: Mapping[int, int] | None = None, record_syncs: bool = True, queue: int | None = None,
) -> Simulated:  # fmt: skip
    """Run the programs of all ranks; `transfers_ns` holds how long each collective takes after its last member, `queue`
    how many launches may be under way: the next one waits until the oldest has ended."""
    ranks = {
        rank: _Rank(program, START_NS + (begins_ns or {}).get(rank, 0), queue) for rank, program in programs.items()
    }
    members: dict[str, list[_Span]] = {}
    for each in ranks.values():
        for operation in each.operations:
            if isinstance(operation, Launch) and operation.call:
                members.setdefault(operation.call, [])
    sizes = {
        call: sum(isinstance(op, Launch) and op.call == call for each in ranks.values() for op in each.operations)
        for call in members
    }
    moved = True
    while moved:
        moved = False
        for each in ranks.values():
            while each.at < len(each.operations) and _step(each, members):
                each.at += 1
                moved = True
        moved = _resolve(ranks, members, sizes, transfers_ns or {}) or moved
    assert all(each.at == len(each.operations) for each in ranks.values()), "the programs block each other"
    spans = [span for each in ranks.values() for span in each.spans]
    first, last = min(span.start or 0 for span in spans), max(span.end or 0 for span in spans)
    timelines = {rank: _timeline(rank, each, record_syncs=record_syncs) for rank, each in ranks.items()}
    group = Group(name="world", size=len(ranks), ranks=tuple(ranks))
    return Simulated(Run(world_size=len(ranks), ranks=timelines, groups=(group,)), last - first)


def _step(rank: _Rank, members: dict[str, list[_Span]]) -> bool:
    """Carry out the next operation; return False where it waits for a span whose end is not known yet."""
    operation = rank.operations[rank.at]
    match operation:
        case Work():
            rank.clock += operation.ns
        case Thread():
            rank.clock += HAND_OVER_NS if rank.thread != operation.number else 0
            rank.thread = operation.number
        case Launch() | CopyBack():
            return _launch(rank, operation, members)
        case Record():
            correlation = rank.called("cudaEventRecord", 0)
            last = rank.last(operation.lane)
            rank.events[operation.event] = (last[0] if last else None, operation.lane, correlation)
        case Wait():
            awaited, lane, event = rank.events[operation.event]
            correlation = rank.called("cudaStreamWaitEvent", 0)
            rank.syncs.append(
                {"kind": STREAM_WAIT_EVENT, "correlation": correlation, "lane": operation.lane, "awaited_lane": lane,
                 "awaited_correlation": event, "start_ns": rank.clock, "end_ns": rank.clock}
            )  # fmt: skip
            rank.waits.setdefault(operation.lane, []).extend([awaited] if awaited else [])
        case Poll():
            awaited = rank.spans[-1]
            if awaited.end is None:
                return False
            rank.clock = max(rank.clock, awaited.end + POLL_NS)
        case Recorder():
            rank.begin = rank.clock
        case Sync():
            return _sync(rank, operation)
    return True


def _launch(rank: _Rank, operation: Launch | CopyBack, members: dict[str, list[_Span]]) -> bool:
    if isinstance(operation, CopyBack):
        if rank.pending is None:
            rank.pending = _launched(rank, Launch(operation.lane, operation.ns, COPY, "copy"), "cudaMemcpyAsync")
        if rank.pending.end is None:
            return False
        rank.clock = max(rank.clock, rank.pending.end + COPY_RETURNS_NS)
        rank.calls[-1]["end_ns"] = rank.clock
        rank.pending = None
        return True
    full = rank.queue is not None and len(rank.spans) >= rank.queue
    room = rank.spans[-rank.queue].end if full and rank.queue else 0
    if room is None:
        return False
    span = _launched(rank, operation, "cudaLaunchKernel")
    rank.clock = max(rank.clock, room)
    rank.calls[-1]["end_ns"] = rank.clock
    if span.call:
        members[span.call].append(span)
    return True


def _launched(rank: _Rank, operation: Launch, name: str) -> _Span:
    begin, previous = rank.clock, rank.last(operation.lane)
    correlation = rank.called(name, operation.takes_ns)
    span = _Span(
        lane=operation.lane, ns=operation.ns, kind=operation.kind, name=operation.name, launch_ns=begin,
        correlation=correlation, call=operation.call, before=rank.waits.pop(operation.lane, []),
        previous=previous[0] if previous else None,
    )  # fmt: skip
    rank.spans.append(span)
    return span


def _sync(rank: _Rank, operation: Sync) -> bool:
    if operation.event is not None:
        awaited, lane, event = rank.events[operation.event]
        spans = [awaited] if awaited else []
        row = {"kind": EVENT_SYNC, "awaited_lane": lane, "awaited_correlation": event}
        name = "cudaEventSynchronize"
    elif operation.lane is not None:
        spans, row = rank.last(operation.lane), {"kind": STREAM_SYNC, "awaited_lane": operation.lane}
        name = "cudaStreamSynchronize"
    else:
        spans, row = rank.last(None), {"kind": CONTEXT_SYNC}
        name = "cudaDeviceSynchronize"
    if any(span.end is None for span in spans):
        return False
    begin, until = rank.clock, max((span.end or 0 for span in spans), default=0)
    correlation = rank.called(name, SYNC_CALL_NS)
    if until > begin:
        rank.clock = max(rank.clock, until + operation.wake_ns)
        rank.calls[-1]["end_ns"] = rank.clock
    rank.syncs.append({**row, "correlation": correlation, "start_ns": begin, "end_ns": rank.clock})
    return True


def _resolve(
    ranks: Mapping[int, _Rank], members: Mapping[str, list[_Span]], sizes: Mapping[str, int],
    transfers_ns: Mapping[str, int],
) -> bool:  # fmt: skip
    """Compute starts and ends that are known now; return whether any was."""
    moved = False
    for each in ranks.values():
        for span in each.spans:
            if span.start is None:
                known = [*span.before, *([span.previous] if span.previous else [])]
                if all(other.end is not None for other in known):
                    ready = [other.end or 0 for other in span.before]
                    free = [(span.previous.end or 0) + LANE_GAP_NS] if span.previous else []
                    span.start = max([span.launch_ns + LATENCY_NS, *ready, *free])
                    moved = True
            if span.end is None and span.start is not None:
                if span.call is None:
                    span.end = span.start + span.ns
                    moved = True
                elif len(members[span.call]) == sizes[span.call] and all(
                    other.start is not None for other in members[span.call]
                ):
                    last = max(other.start or 0 for other in members[span.call])
                    span.end = last + transfers_ns[span.call]
                    moved = True
    return moved


def _timeline(rank: int, its: _Rank, *, record_syncs: bool) -> RankTimeline:
    lanes = max((span.lane for span in its.spans), default=0) + 1
    threads = max((call["lane"] for call in its.calls), default=0) + 1
    rows = [
        {"process": "0", "label": f"stream {lane}"} for lane in range(lanes)
    ] + [{"kind": HOST, "process": "100", "label": f"thread {thread}"} for thread in range(threads)]  # fmt: skip
    calls, spans = [], []
    for span in its.spans:
        if (span.end or 0) <= its.begin:
            continue
        launched = {"launch_ns": span.launch_ns if span.launch_ns >= its.begin else NONE}
        times = {"start_ns": span.start, "end_ns": span.end, **launched}
        row = {**times, "lane": span.lane, "kind": span.kind, "name": span.name, "correlation": span.correlation}
        if span.call:
            row["collective"] = len(calls)
            calls.append({**times, "op": "all_reduce", "group": "world", "seq": len(calls), "bytes": 1 << 20})
        spans.append(row)
    recorded = [call for call in its.calls if call["start_ns"] >= its.begin]
    host = sorted(recorded, key=lambda call: (call["lane"], call["start_ns"], -call["end_ns"]))
    return rank_timeline(
        rank, spans=spans, collectives=calls, lanes=rows,
        host=[{**call, "lane": call["lane"] + lanes} for call in host], syncs=its.syncs if record_syncs else (),
        recordings=[{"start_ns": its.begin, "end_ns": max(its.clock, *(span.end or 0 for span in its.spans)),
                     "host_events": True}],
    )  # fmt: skip
