"""Ranks of a CPU run that compute in operations of given lengths before a call of each step."""

from collections.abc import Sequence
from itertools import pairwise

from overlapscope.timeline.run import RankTimeline
from tests.support.rank_rows import rank_timeline

MS, STEP_NS = 10**6, 100 * 10**6


def in_operations(rank: int, taken_ms: Sequence[Sequence[int]], latest_ms: Sequence[int]) -> RankTimeline:
    """Return a rank without a device: steps of operations that take so long, each before a call that ends 1 ms after
    the latest rank's begins."""
    calls, work, steps, host = [], [], [], []
    for step, (taken, latest) in enumerate(zip(taken_ms, latest_ms, strict=True)):
        begin = step * STEP_NS
        edges = [begin + sum(taken[:at]) * MS for at in range(len(taken) + 1)]
        host += [{"name": "aten::add", "start_ns": begin - MS, "end_ns": begin - MS // 5}]  # short: it certainly ran
        host += [{"name": "aten::mm", "start_ns": a + 1, "end_ns": b} for a, b in pairwise(edges)]
        call = {"start_ns": edges[-1], "launch_ns": edges[-1], "end_ns": begin + (latest + 1) * MS, "step": step}
        calls.append({"op": "all_reduce", "group": "0", "seq": step, "bytes": 1000, "group_size": 2, **call})
        work.append({"start_ns": begin - MS, "end_ns": edges[-1], "name": "host operations", "step": step})
        steps.append({"step": step, "start_ns": begin - MS, "end_ns": begin + STEP_NS - MS})
    whole = {"start_ns": -MS, "end_ns": len(steps) * STEP_NS, "host_events": True}
    return rank_timeline(
        rank, calls=calls, work=work, steps=steps, recordings=[whole], host=[{"lane": 0, **each} for each in host],
        has_device=False,
    )  # fmt: skip
