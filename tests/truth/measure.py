"""Print what is needed to judge a trace by hand, from its raw events: `python -m tests.truth.measure PATH [...]`.

Plain Python on the files as their profilers wrote them; it shares no code with the project, so that the truths of
this folder stand apart from what they judge. Times of the output are milliseconds unless their name says otherwise.
Paths are files or folders of Kineto traces (torch.profiler, any age), Nsight Systems exports (SQLite), rocprofv3 JSON
or Ascend `trace_view.json`, one rank a file (a device each where one file holds several).
"""

import bisect
import json
import re
import sys
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

from tests.truth.raw_events import Rank, Span, ms, read
from tests.truth.replay import replayable, replays

NO_PAYLOAD = re.compile(r"notify|barrier|layout", re.I)
BLOCKING = re.compile(r"Synchronize|Memcpy|Malloc|Free|HostAlloc|HostRegister|Memset\b")
ALLOCATOR = re.compile(r"^(cu|cuda|hip|hipExt)(Mem)?(Malloc|Free|Alloc|HostAlloc)", re.I)
TRAINING = re.compile(r"Backward|autograd::engine|Optimizer\.|optimizer", re.I)
FRAMEWORKS = ("DistributedDataParallel", "FSDP", "fsdp::", "megatron", "deepspeed", "vllm", "execute_context", "sglang",
              "Horovod", "transformer_engine", "torch_package", "CompiledFxGraph")  # fmt: skip
PAUSE_NS, LONG_PAUSE_NS = 200_000, 3_000_000
AT_ONCE_NS = 60_000
"""A span that starts within this after another's end follows it at once."""
LONG_KERNEL_NS = 10_000
BURST_GAP_NS = 1_000_000

Pairs = list[tuple[int, int]]


def union(intervals: Pairs) -> Pairs:
    """Return sorted disjoint intervals."""
    out: list[list[int]] = []
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if out and start <= out[-1][1]:
            out[-1][1] = max(out[-1][1], end)
        else:
            out.append([start, end])
    return [(start, end) for start, end in out]


def less(one: Pairs, other: Pairs) -> Pairs:
    """Return what of sorted disjoint intervals no interval of the other covers."""
    out, at = [], 0
    for start, end in one:
        while at < len(other) and other[at][1] <= start:
            at += 1
        here, cursor = at, start
        while here < len(other) and other[here][0] < end:
            if other[here][0] > cursor:
                out.append((cursor, other[here][0]))
            cursor = max(cursor, other[here][1])
            here += 1
        if cursor < end:
            out.append((cursor, end))
    return out


def length(intervals: Pairs) -> int:
    """Return the summed length."""
    return sum(end - start for start, end in intervals)


def within(intervals: Pairs, start: int, end: int) -> int:
    """Return how much of [start, end] sorted disjoint intervals cover."""
    at = max(bisect.bisect_right(intervals, (start,)) - 1, 0)
    covered = 0
    while at < len(intervals) and intervals[at][0] < end:
        covered += max(0, min(end, intervals[at][1]) - max(start, intervals[at][0]))
        at += 1
    return covered


def breakdown(rank: Rank, start: "int | None" = None, end: "int | None" = None) -> dict[str, float]:
    """Return the six parts of a window, by default from the first device span to the last."""
    start = min(each.start for each in rank.spans) if start is None else start
    end = max(each.end for each in rank.spans) if end is None else end
    of = {
        kind: union([(max(each.start, start), min(each.end, end)) for each in rank.spans if each.kind == kind])
        for kind in ("comm", "compute", "copy")
    }
    both = union(of["comm"] + of["compute"])
    busy = union(both + of["copy"])
    exposed = less(of["comm"], of["compute"])
    return {
        "window": ms(end - start), "comm": ms(length(of["comm"])), "compute": ms(length(of["compute"])),
        "copy": ms(length(of["copy"])), "overlapped": ms(length(of["comm"]) - length(exposed)),
        "exposed": ms(length(exposed)), "copy_only": ms(length(less(of["copy"], both))),
        "idle": ms(end - start - length(busy)),
    }  # fmt: skip


# --- what the host did ------------------------------------------------------------------------------------------------


def silences(rank: Rank, longer: int) -> Pairs:
    """Return stretches in which no host event of the process begins or ends."""
    points = sorted({at for start, end, *_ in rank.host for at in (start, end)})
    return [(one, two) for one, two in pairwise(points) if two - one >= longer]


def host(rank: Rank) -> dict[str, object]:
    """Return launches, blocking calls, allocator calls and silences."""
    lags = sorted(each.start - each.launch for each in rank.spans if each.launch is not None)
    held: dict[str, list[int]] = defaultdict(list)
    counted = Counter(name for _, _, name, _ in rank.calls)
    for start, end, name, _ in rank.calls:
        if BLOCKING.search(name) and end - start >= 100_000:
            held[name].append(end - start)
    allocator: dict[str, list[int]] = defaultdict(list)
    for start, end, name, _ in rank.calls:
        if ALLOCATOR.search(name):
            allocator[name].append(end - start)
    long, pauses = silences(rank, LONG_PAUSE_NS), silences(rank, PAUSE_NS)
    return {
        "device_spans": len(rank.spans), "without_launch": sum(each.launch is None for each in rank.spans),
        "launch_lag_us": [round(lags[int(share * (len(lags) - 1))] / 1000, 1) for share in (0.001, 0.1, 0.5, 0.9)]
        if lags else None,
        "synchronisations": {name: count for name, count in counted.items() if "Synchronize" in name},
        "blocking_calls_over_100us": {name: {"calls": len(each), "ms": ms(sum(each))} for name, each in held.items()},
        "allocator": {name: {"calls": len(each), "ms": ms(sum(each))} for name, each in allocator.items()},
        "graph_launches": sum(count for name, count in counted.items() if "GraphLaunch" in name),
        "silences_over_200us": {"count": len(pauses), "ms": ms(length(pauses))},
        "silences_over_3ms": {"count": len(long), "ms": ms(length(long))},
    }  # fmt: skip


def idle(rank: Rank) -> dict[str, float]:
    """Return idle time by what the span that ends each gap had waited for, as far as its own launch tells."""
    spans = sorted(rank.spans, key=lambda each: (each.start, each.end))
    loading = union([each[:2] for each in rank.host if "DataLoader" in each[2]])
    blocked: dict[str, Pairs] = defaultdict(list)
    for start, end, name, _ in rank.calls:
        if BLOCKING.search(name) and end - start >= 20_000:
            blocked[name].append((start, end))
    merged = {name: union(each) for name, each in blocked.items()}
    anywhere = union([pair for each in blocked.values() for pair in each])
    pauses = silences(rank, LONG_PAUSE_NS)
    out: Counter = Counter()
    busy = spans[0].end
    for each in spans[1:]:
        if each.start > busy:
            if each.launch is None:
                out["no launch record"] += each.start - busy
            elif each.launch <= busy:
                out["launched before the gap"] += each.start - busy
            else:
                gap = (busy, each.launch)
                out["launch to start"] += each.start - each.launch
                in_calls = within(anywhere, *gap)
                for name, own in merged.items():
                    out[f"host in {name}"] += within(own, *gap)
                in_loader = within(less(loading, anywhere), *gap)
                out["host in data loader"] += in_loader
                rest = each.launch - busy - in_calls - in_loader
                paused = within(less(less(pauses, anywhere), loading), *gap)
                out["host silent over 3 ms"] += paused
                out["host launching late"] += rest - paused
        busy = max(busy, each.end)
    return {name: ms(spent) for name, spent in out.most_common() if spent}


def exposed(rank: Rank) -> dict[str, float]:
    """Return exposed time by what the next compute or copy span on the compute stream had waited for."""
    by_stream: Counter = Counter()
    for each in rank.spans:
        if each.kind == "compute":
            by_stream[each.stream] += each.end - each.start
    if not by_stream:
        return {}
    main = by_stream.most_common(1)[0][0]
    comm = [each for each in rank.spans if each.kind == "comm"]
    compute = sorted((each for each in rank.spans if each.kind == "compute"), key=lambda each: each.start)
    starts = [each.start for each in compute]
    copies = union([(each.start, each.end) for each in rank.spans if each.kind == "copy"])
    out: Counter = Counter()
    for start, end in less(
        union([(each.start, each.end) for each in comm]), union([(e.start, e.end) for e in compute])
    ):
        here = [each for each in comm if each.start < end and each.end > start]
        last = max(here, key=lambda each: each.end)
        at = bisect.bisect_left(starts, start)
        if at == len(compute):
            out["nothing follows"] += end - start
            continue
        following = compute[at]
        if last.stream == main:
            out["on the compute stream"] += end - start
        elif last.end > end + 1000:  # compute went on while it ran
            late = following.launch is not None and following.launch > start
            out["compute went on beside it, launched late" if late else "compute went on beside it"] += end - start
        elif following.start - end <= AT_ONCE_NS and (following.launch is None or following.launch <= end):
            out["compute followed at once"] += end - start
        elif following.launch is not None and following.launch > end:
            out["next compute launched after its end"] += end - start
        elif within(copies, end, following.start) > (following.start - end) / 2:
            out["a copy came between"] += end - start
        else:
            out["next compute later, launched before"] += end - start
    return {name: ms(spent) for name, spent in out.most_common()}


def collectives(rank: Rank) -> list[dict[str, object]]:
    """Return communication kernels by name and stream, with elements where recorded."""
    groups: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for each in rank.spans:
        if each.kind == "comm":
            groups[re.split(r"[(<]", each.name)[0][-60:], each.stream].append(each)
    compute = Counter(each.stream for each in rank.spans if each.kind == "compute")
    return [
        {
            "name": name, "stream": stream, "calls": len(own), "ms": ms(sum(each.end - each.start for each in own)),
            "median_us": round(median(each.end - each.start for each in own) / 1000, 1),
            "longest_ms": ms(max(each.end - each.start for each in own)),
            "on_compute_stream": stream == compute.most_common(1)[0][0] if compute else False,
            "without_payload": bool(NO_PAYLOAD.search(name)),
            "elements": Counter(each.size for each in own if each.size is not None).most_common(6),
        }
        for (name, stream), own in sorted(groups.items(), key=lambda each: -sum(s.end - s.start for s in each[1]))
    ]  # fmt: skip


def job(rank: Rank) -> dict[str, object]:
    """Return what the trace says of the job: optimizer, framework, training or not, step annotations."""
    names = Counter(name for _, _, name, _, _ in rank.host)
    steps = sorted((start, end, name) for start, end, name, *_ in rank.host if name.startswith("ProfilerStep"))
    first = steps[0][0] if steps else 0
    return {
        "optimizers": sorted({name for name in names if name.startswith("Optimizer.step")}),
        "training": sum(count for name, count in names.items() if TRAINING.search(name)),
        "frameworks": {hint: sum(n for name, n in names.items() if hint in name) for hint in FRAMEWORKS},
        "steps": [{"name": name, "start_ms": ms(start - first), "ms": ms(end - start)} for start, end, name in steps],
        **rank.facts,
    }  # fmt: skip


def copies(rank: Rank) -> dict[str, dict[str, object]]:
    """Return copies by direction and stream."""
    out: dict[str, list[int]] = defaultdict(list)
    for each in rank.spans:
        if each.kind == "copy":
            out[f"{re.sub(r'[^A-Za-z ]', '', each.name)[:28]} on {each.stream}"].append(each.end - each.start)
    return {
        name: {"copies": len(own), "ms": ms(sum(own))} for name, own in sorted(out.items(), key=lambda e: -sum(e[1]))
    }


def bursts(rank: Rank) -> dict[str, object]:
    """Return the longest run of collectives launched within a millisecond of each other."""
    launched = sorted(
        (each for each in rank.spans if each.kind == "comm" and each.launch is not None), key=lambda e: e.launch
    )
    runs: list[list[Span]] = []
    for each in launched:
        if runs and each.launch - runs[-1][-1].launch < BURST_GAP_NS:
            runs[-1].append(each)
        else:
            runs.append([each])
    if not runs:
        return {}
    best = max(runs, key=len)
    busy = union([(each.start, each.end) for each in best])
    return {"collectives": len(best), "ms": ms(best[-1].end - best[0].launch), "communicating": ms(length(busy))}


def interference(rank: Rank) -> dict[str, object]:
    """Return how much longer the same launch of at least 10 us takes beside a collective than in a step without one."""
    marks = sorted((start, end) for start, end, name, *_ in rank.host if name.startswith("ProfilerStep"))
    if len(marks) < 2:
        return {}
    starts = [start for start, _ in marks]
    comm = union([(each.start, each.end) for each in rank.spans if each.kind == "comm"])
    compute = sorted((each for each in rank.spans if each.kind == "compute"), key=lambda each: each.launch or 0)
    spans = sorted((each.start, each.end) for each in rank.spans if each.kind == "compute")
    at_start = [start for start, _ in spans]
    longest = max((end - start for start, end in spans), default=0)
    count: Counter = Counter()
    launches: dict[object, list[tuple[int, float]]] = defaultdict(list)
    for each in compute:
        if each.launch is None:
            continue
        step = bisect.bisect_right(starts, each.launch) - 1
        key = (each.name, each.grid, each.stream)
        place = count[step, key]
        count[step, key] += 1
        near = range(bisect.bisect_left(at_start, each.start - longest), bisect.bisect_left(at_start, each.end))
        if sum(spans[other][1] > each.start for other in near) > 1:
            continue
        duration = max(each.end - each.start, 1)
        launches[key, place].append((duration, within(comm, each.start, each.end) / duration))
    beside, free = [], []
    for seen in launches.values():
        one = [duration for duration, share in seen if share > 0.95]
        two = [duration for duration, share in seen if share < 0.05]
        if one and two and fmean(two) >= LONG_KERNEL_NS:
            beside.append(fmean(one))
            free.append(fmean(two))
    return {"launches": len(free), "times": round(sum(beside) / sum(free), 3)} if free else {}


def cpu(rank: Rank) -> dict[str, object]:
    """Return communication and its exposure in a run on CPUs over gloo, between two readings of what computes.

    Operations nest, and those that hold a wait have no name of their own: the smaller exposure counts whatever lies
    in any operation but those of `c10d` as compute, the larger one tensor operations only.
    """
    threads = {thread for _, _, name, _, thread in rank.host if name.startswith("gloo:")}
    comm = union([each[:2] for each in rank.host if each[2].startswith("gloo:")])
    steps = sorted((start, end) for start, end, name, *_ in rank.host if name.startswith("ProfilerStep"))
    ops = [each for each in rank.host if each[3] == "cpu_op" and each[4] not in threads]
    waits = union([each[:2] for each in ops if each[2].startswith(("c10d::", "_c10d"))])
    tensors = [each for each in ops if each[2].startswith(("aten::", "torch::", "fsdp::"))]
    computes = [less(union([each[:2] for each in chosen]), waits) for chosen in (ops, tensors)]
    bounds = sorted(length(less(comm, compute)) for compute in computes)
    calls = Counter(name for _, _, name, _, _ in rank.host if name.startswith(("gloo:", "c10d::")))
    return {
        "window": ms(steps[-1][1] - steps[0][0]), "steps": len(steps),
        "median_step": ms(median(end - start for start, end in steps)),
        "comm": ms(length(comm)), "exposed_least": ms(bounds[0]), "exposed_most": ms(bounds[1]), "calls": dict(calls),
    }  # fmt: skip


# --- several ranks ----------------------------------------------------------------------------------------------------


def together(ranks: list[Rank]) -> dict[str, object]:
    """Return starts of recordings and steps, hosts that run at once, and what calls paired by order show."""
    firsts = [min(each[0] for each in rank.host) for rank in ranks]
    steps = [[start for start, _, name, *_ in rank.host if name.startswith("ProfilerStep")] for rank in ranks]
    out: dict[str, object] = {
        "first_host_event_ms": [ms(each - min(firsts)) for each in firsts],
        "host_events_span_ms": [
            ms(max(e[1] for e in rank.host) - first) for rank, first in zip(ranks, firsts, strict=True)
        ],
    }
    if all(steps):
        out["first_step_start_ms"] = [ms(min(each) - min(min(own) for own in steps)) for each in steps]
    paused = [silences(rank, 1_000_000) for rank in ranks]
    out["paused_over_1ms"] = [ms(length(each)) for each in paused]
    start, end = max(firsts), min(max(e[1] for e in rank.host) for rank in ranks)
    edges = sorted((at, change) for own in paused for one, two in own for at, change in ((one, 1), (two, -1)))
    spent: Counter = Counter()
    before, number = start, 0
    for at, change in edges:
        here = min(max(at, start), end)
        spent[number] += here - before
        before, number = here, number + change
    spent[number] += end - before
    total = max(end - start, 1)
    out["share_of_time_by_paused_hosts"] = {
        str(number): round(each / total, 3) for number, each in sorted(spent.items())
    }
    out["running_hosts_mean"] = round(sum((len(ranks) - n) * each for n, each in spent.items()) / total, 2)
    named = [sorted((e for e in rank.spans if e.kind == "comm"), key=lambda e: e.start) for rank in ranks]
    counts = [len(each) for each in named]
    out["collectives"] = counts
    if counts and len(set(counts)) == 1 and counts[0]:
        offsets = [median(mine.end - first.end for mine, first in zip(own, named[0], strict=True)) for own in named]
        rows = list(zip(*named, strict=True))
        aligned = [[e.end - offset for e, offset in zip(row, offsets, strict=True)] for row in rows]
        ends = [max(row) - min(row) for row in aligned]
        transfer = [min(e.end - e.start for e in row) for row in rows]
        out |= {
            "clock_offsets_ms": [ms(each) for each in offsets], "ends_apart_us_median": round(median(ends) / 1000, 1),
            "transfer_ms": ms(sum(transfer)),
            "wait_ms": [ms(sum(e.end - e.start for e in own) - sum(transfer)) for own in named],
        }  # fmt: skip
    if replayable(ranks):
        out["replay"] = replays(ranks)
    return out


def measure(path: Path) -> dict[str, object]:
    """Return everything about the trace, or traces, of a path."""
    ranks = read(path)
    out: dict[str, object] = {}
    for rank in ranks:
        if rank.spans:
            own: dict[str, object] = {
                "whole": breakdown(rank), "idle_by": idle(rank), "exposed_by": exposed(rank), "host": host(rank),
                "collectives": collectives(rank), "copies": copies(rank), "longest_burst": bursts(rank),
                "interference": interference(rank),
            }  # fmt: skip
        else:
            own = {"cpu": cpu(rank)}
        out[rank.label] = {**own, "job": job(rank)}
    if len(ranks) > 1:
        out["together"] = together(ranks)
    return out


if __name__ == "__main__":
    for given in sys.argv[1:]:
        sys.stdout.write(json.dumps({given: measure(Path(given))}, indent=1) + "\n")
