"""Ranks whose hosts pause, as tests of pauses need them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from overlapscope.advice.advise import analyze_with_advice
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.pauses.costly_pauses import CostlyPause
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import ANNOTATION, HOST, OPERATION, RUNTIME
from overlapscope.timeline.run import Group, RankTimeline, Run
from tests.support.builders import EPOCH_NS
from tests.support.rank_rows import rank_timeline

US, MS = 1_000, 1_000_000
STEP, STEPS, LAUNCHES = 51 * MS, 3, 30
Pauses = Callable[[int, int], dict[int, float]]
"""By (step, rank): how many ms the host pauses before which launches, by number."""


def run(pauses: Pauses, *, during: str | None = None, lead: int = 0, ranks: int = 2) -> Run:
    """Return ranks that launch a kernel every ms and then an all-reduce, which all wait for.

    `during` is what the host is in while it pauses: an operation, a call (`cuda...`), or a range ("## ... ##"). `lead`
    kernels take no time on the host: the device is so many ms behind.
    """
    calls_ns = [
        max(_launches(step, pauses(step, rank), lead)[-1] for rank in range(ranks)) + (lead + 1) * MS
        for step in range(STEPS)
    ]
    return Run(
        world_size=ranks,
        ranks={rank: _timeline(rank, pauses, during, lead, calls_ns, ranks) for rank in range(ranks)},
        groups=(Group(name="g", size=ranks, ranks=tuple(range(ranks))),),
        fingerprint={"backend": "nccl"},
    )


def _launches(step: int, pauses: dict[int, float], lead: int) -> list[int]:
    at, found = EPOCH_NS + step * STEP + MS, []
    for number in range(LAUNCHES):
        at += round(pauses.get(number, 0) * MS)
        found.append(at)
        at += 50 * US if number < lead else MS
    return found


def _timeline(
    rank: int, pauses: Pauses, during: str | None, lead: int, calls_ns: Sequence[int], ranks: int
) -> RankTimeline:
    host: list[dict[str, Any]] = []
    begun = EPOCH_NS + 100 * US  # before any operation
    first = {"step": 7, "name": "fill", "start_ns": begun + 50 * US, "end_ns": begun + 100 * US}
    work: list[dict[str, Any]] = [{**_launched(host, begun), **first}]
    sent: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    for step in range(STEPS):
        own, free_ns = pauses(step, rank), 0
        launches = _launches(step, own, lead)
        for number, at in enumerate(launches):
            if number in own and during is not None:
                times = {"name": during, "start_ns": at - round(own[number] * MS) - 10 * US, "end_ns": at - 10 * US}
                kind = ANNOTATION if during[0] == "#" else RUNTIME if during.startswith("cuda") else OPERATION
                (notes if kind == ANNOTATION else host).append({"lane": 2, "kind": kind, **times})
            name = "aten::relu" if number % 2 else "aten::linear"
            host.append({"lane": 2, "kind": OPERATION, "name": name, "start_ns": at, "end_ns": at + 40 * US})
            free_ns = max(free_ns, at + 20 * US) + 980 * US
            work.append(
                {
                    **_launched(host, at),
                    "step": 7 + step,
                    "name": "gemm",
                    "start_ns": free_ns - 980 * US,
                    "end_ns": free_ns,
                }
            )
        host.append({"lane": 2, "kind": OPERATION, "name": "c10d::allreduce_", "start_ns": launches[-1] + 50 * US,
                     "end_ns": launches[-1] + 90 * US})  # fmt: skip
        sent.append({**_launched(host, launches[-1] + 50 * US), "op": "all_reduce", "group": "g", "seq": step,
                     "group_size": ranks, "bytes": 1 << 20, "step": 7 + step, "start_ns": free_ns,
                     "end_ns": calls_ns[step] + 2 * MS})  # fmt: skip
    begin, end = EPOCH_NS, EPOCH_NS + STEPS * STEP
    return rank_timeline(
        rank, calls=sent, work=work, host=sorted(host, key=lambda each: (each["start_ns"], -each["end_ns"])),
        recordings=[{"start_ns": begin, "end_ns": end, "host_events": True, "last_launch_ns": host[-1]["start_ns"]}],
        steps=[
            {"step": 7 + n, "start_ns": begin + n * STEP, "end_ns": begin + (n + 1) * STEP} for n in range(STEPS)
        ],
        lanes=[{"label": "7"}, {"label": "20"}, {"kind": HOST, "label": "training"}],
        annotations=[{name: each[name] for name in ("lane", "name", "start_ns", "end_ns")} for each in notes],
    )  # fmt: skip


def _launched(host: list[dict[str, Any]], at: int) -> dict[str, Any]:
    """Add a launch inside of an operation, and return what its span knows of it."""
    times = {"start_ns": at + 10 * US, "end_ns": at + 15 * US, "correlation": len(host)}
    host.append({"lane": 2, "kind": RUNTIME, "name": "cudaLaunchKernel", **times})
    return {"launch_ns": times["start_ns"], "correlation": times["correlation"]}


def in_turn(step: int, rank: int) -> dict[int, float]:
    """Return a pause of 10 ms and more of one rank in each step: of rank 0 in step 8, of rank 1 in the others."""
    return {3: 10.0 + step} if rank == (step != 1) else {}


def in_range(
    during: str, around: str | None = None, *, launches: bool = False, only: int | None = None, before: int = 3
) -> Run:
    """Return two ranks that pause for 10 ms in a range in each step, or only in one, before this launch; `launches`:
    the range goes on over the next launch, which is then no part of a pause. `around` is the name of a range around
    it."""
    job = run(lambda step, _: {before: 10.0} if only in (None, step) else {}, during=during)
    for timeline in job.ranks.values():
        notes = timeline.annotations
        if launches:
            notes.end_ns[:] += 500 * US
        if around is not None:
            names = (*timeline.names, around)
            outer = replace(
                notes, name=np.full(notes.name.size, len(names) - 1, np.int64), start_ns=notes.start_ns - US
            )
            tables = {
                each: np.concatenate([getattr(outer, each), getattr(notes, each)]) for each in notes.__struct_fields__
            }
            job.ranks[timeline.rank] = replace(timeline, names=names, annotations=replace(notes, **tables))  # type: ignore[index]
    return job


def named(job: Run) -> list[Finding]:
    return [each for each in analyze(job).findings if each.id == "host_pauses"]


def advice(job: Run) -> dict[str, Recommendation]:
    return {each.id: each for each in analyze_with_advice(job).recommendations}


def pause(before: str, after: str = "aten::mm") -> CostlyPause:
    return CostlyPause(
        rank=0, step=7, start_ns=0, paused_ns=10 * MS, idle_ns=10 * MS, waited_ns=0, into_step_ns=0, before=before,
        after=after, inside=None,
    )  # fmt: skip
