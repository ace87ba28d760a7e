"""Dry runs written by hand: a program of operations, calls of collectives and waits, as columns of a run."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from overlapscope.timeline.columns import (
    COLLECTIVE,
    HOST_SYNC,
    IS_PREFETCHED,
    MATMUL,
    MEMORY,
    NONE,
    NOT_PREFETCHED,
    UNKNOWN_PREFETCH,
    WAIT,
    Annotations,
    Collectives,
    Lanes,
    Operations,
    Recordings,
    Schedule,
    Spans,
    Steps,
    make,
)
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.operations import ITEM_BYTES
from overlapscope.timeline.run import DRY_RUN, Group, RankTimeline, Run

WORLD = 16
GROUPS = {"data": tuple(range(0, WORLD, 2)), "tensor": (0, 1), "world": tuple(range(WORLD))}


class Program:
    """The step of one rank, written down row by row."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []

    def compute(self, flops: int = 100, *, phase: str = "forward", name: str = "aten.mm.default", **place: Any) -> int:
        """Add an operation; without FLOPs it moves memory."""
        return self._row(work=MATMUL if flops else MEMORY, name=name, phase=phase, flops=flops, **place)

    def sync(self, *, phase: str = "forward", **place: Any) -> int:
        """Let the host wait."""
        return self._row(work=HOST_SYNC, name="aten._local_scalar_dense.default", phase=phase, **place)

    def call(
        self, op: str = "all_reduce", *, group: str = "data", elements: int = 1000, dtype: str = "float32",
        phase: str = "backward", parameters: int = NONE, stream: str = "compute", ready: int | None = None,
        **place: Any,
    ) -> int:  # fmt: skip
        """Launch a collective, which begins after the row `ready`, else after all compute so far; return its number."""
        last = max((at for at, row in enumerate(self.rows) if row["stream"] == "compute"), default=NONE)
        launched = self._row(
            work=COLLECTIVE, name=f"c10d.{op}", phase=phase, stream=stream, collective=len(self.calls), **place
        )
        self.calls.append({
            "op": op, "group": group, "elements": elements, "dtype": dtype, "phase": phase, "parameters": parameters,
            "launch_order": launched, "ready_order": last if ready is None else ready, "needed_order": NONE,
            "module": place.get("module"), "source": place.get("source"),
        })  # fmt: skip
        return len(self.calls) - 1

    def wait(self, call: int, *, phase: str = "backward") -> None:
        """Let the compute stream wait for a collective."""
        self._row(work=WAIT, name="wait", phase=phase, awaited=self.calls[call]["launch_order"])
        self.calls[call]["needed_order"] = len(self.rows)

    def _row(self, **row: Any) -> int:
        self.rows.append(
            {
                "stream": "compute",
                "module": None,
                "source": None,
                "flops": 0,
                "collective": NONE,
                "awaited": NONE,
                **row,
            }
        )
        return len(self.rows) - 1

    def timeline(self, rank: int, peak_bytes: int, at_peak: dict[str, int]) -> RankTimeline:
        """Return the columns."""
        names = NameTable()
        rows, calls = self.rows, self.calls
        phases = [each["phase"] if each["phase"] in ("forward", "backward", "optimizer") else None for each in calls]
        return RankTimeline(
            rank=rank, basis=DRY_RUN, has_device=True, recordings=make(Recordings, 1), spans=make(Spans, 0),
            lanes=make(Lanes, 0), annotations=make(Annotations, 0),
            steps=make(Steps, 1, recording=0, step=0, cut=False),
            operations=make(
                Operations, len(rows), order=np.arange(len(rows)), work=_of(rows, "work"), flops=_of(rows, "flops"),
                collective=_of(rows, "collective"), awaited=_of(rows, "awaited"),
                live_bytes=0, read_bytes=0, written_bytes=0, fused_bytes=0,
                **{each: names.codes(_of(rows, each)) for each in ("name", "stream", "phase", "module", "source")},
            ),
            collectives=make(
                Collectives, len(calls), recording=0, step=0, elements=_of(calls, "elements"),
                phase=names.codes(phases),
                bytes=[each["elements"] * ITEM_BYTES[each["dtype"]] for each in calls],
                group_size=[len(GROUPS[each["group"]]) for each in calls],
                **{each: names.codes(_of(calls, each)) for each in ("op", "group", "dtype", "module")},
            ),
            schedule=make(
                Schedule, len(calls), prefetched=[_prefetched(each, rows) for each in calls],
                source=names.codes(_of(calls, "source")),
                **{each: _of(calls, each) for each in ("launch_order", "ready_order", "needed_order", "parameters")},
            ),
            names=tuple(names.to_list()),
            recorded={"memory": {"peak_bytes": peak_bytes, "peak_order": len(rows) - 1, "at_peak_bytes": at_peak}},
        )  # fmt: skip


def _of(rows: Sequence[dict[str, Any]], name: str) -> list[Any]:
    return [each[name] for each in rows]


def _prefetched(call: dict[str, Any], rows: Sequence[dict[str, Any]]) -> int:
    if call["needed_order"] == NONE:
        return UNKNOWN_PREFETCH
    between = rows[max(call["ready_order"], -1) + 1 : call["needed_order"]]
    return IS_PREFETCHED if any(row["flops"] for row in between) else NOT_PREFETCHED


def dry_run(*programs: Program, world_size: int = WORLD, peak_bytes: int = 1000, **at_peak: int) -> Run:
    """Return the dry run whose ranks 0, 1, ... run these programs; `at_peak` is memory by kind."""
    groups = tuple(Group(name=name, description=None, size=len(ranks), ranks=ranks) for name, ranks in GROUPS.items())
    ranks = {rank: each.timeline(rank, peak_bytes, at_peak) for rank, each in enumerate(programs)}
    return Run(world_size=world_size, ranks=ranks, groups=groups)


def sharded_step(
    *, layers: int = 3, scale: int = 1, prefix: str = "layers", prefetch: bool = True, gradients: str = "bfloat16"
) -> Program:
    """Return a step as of FSDP: layers gathered, computed, gathered again, their gradients reduced.

    `scale` is how much larger than usual the batch is; `prefetch`: each gather is launched before the layer before it.
    """
    step = Program()
    places = [{"module": f"{prefix}.{at}", "source": f"model.py:{10 + at}"} for at in range(layers)]
    for phase, order in (("forward", places), ("backward", places[::-1])):
        gathers: dict[int, int] = {}
        for at, place in enumerate(order):
            for ahead in range(at, min(at + 1 + prefetch, layers)):
                if ahead not in gathers:
                    gathers[ahead] = step.call(
                        "all_gather", dtype="bfloat16", phase=phase, parameters=4000, elements=4000,
                        stream="all_gather", ready=NONE if phase == "forward" else None, **order[ahead],
                    )  # fmt: skip
            step.wait(gathers[at], phase=phase)
            step.compute(1000 * scale, phase=phase, **place)
            if phase == "backward":
                step.call(
                    "reduce_scatter", dtype=gradients, phase=phase, parameters=4000, elements=4000,
                    stream="reduce_scatter", **place,
                )  # fmt: skip
    for number, call in enumerate(step.calls):
        if call["op"] == "reduce_scatter":
            step.wait(number)
    return step
