"""CPU runs made for rules: what a step holds is given in microseconds, and every step is 1,000 us."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from overlapscope.ingest.build.kernel_names import ENTERS_COLLECTIVE
from overlapscope.timeline.columns import ANNOTATION, HOST, NONE, OPERATION
from overlapscope.timeline.run import Group, RankTimeline, Run
from tests.support.builders import EPOCH_NS
from tests.support.rank_rows import rank_timeline

US = 1000
STEP = 1000
STEPS = 6


class Op(msgspec.Struct, frozen=True):
    """An operation of the training thread."""

    name: str
    start: float
    end: float


class Beside(Op, frozen=True):
    """An operation of another thread."""


class Inside(Op, frozen=True):
    """An operation of gloo's thread, which is no compute of the rank's."""


class Mark(Op, frozen=True):
    """An annotation of the training thread."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """An all-reduce, from the operation that calls it, which takes 1 us, to its end on gloo's thread."""

    start: float
    end: float
    op: str = "all_reduce"
    called_by: str = "c10d::allreduce_"
    elements: int = 1
    group_size: int | None = None
    """All ranks where it is None."""
    dimension: str | None = None


Item = Op | Call


def cpu_run(step: Callable[[int, int], Sequence[Item]], *, ranks: int = 2) -> Run:
    """Return a run whose ranks do what `step` gives for the number of a step and a rank; operations compute."""
    group = Group(name="g", size=ranks, ranks=tuple(range(ranks)))
    return Run(
        world_size=ranks,
        ranks={rank: _timeline(rank, ranks, step) for rank in range(ranks)},
        groups=(group,),
        fingerprint={"backend": "gloo"},
    )


def _timeline(rank: int, ranks: int, step: Callable[[int, int], Sequence[Item]]) -> RankTimeline:
    host: list[dict[str, Any]] = []
    work: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    for number in range(STEPS):

        def at(us: float, number: int = number) -> int:
            return EPOCH_NS + round((number * STEP + us) * US)

        for each in step(number, rank):
            times = {"start_ns": at(each.start), "end_ns": at(each.end), "step": number}
            if isinstance(each, Call):
                calls.append({
                    **times, "op": each.op, "group": "g", "group_size": each.group_size or ranks, "seq": len(calls),
                    "dtype": "float32", "elements": each.elements,
                    "bytes": NONE if each.elements == NONE else 4 * each.elements,
                    "launch_ns": at(each.start), "dimension": each.dimension,
                })  # fmt: skip
                times["end_ns"] = at(each.start + 1)
            lane = 0 if isinstance(each, Beside) else 1 if isinstance(each, Inside) else 2
            if not isinstance(each, Mark | Call | Inside) and not ENTERS_COLLECTIVE.match(each.name):
                work.append({**times, "name": "host operations", "lane": lane})
            kind = ANNOTATION if isinstance(each, Mark) else OPERATION
            name = each.called_by if isinstance(each, Call) else each.name
            host.append({"lane": lane, "kind": kind, "name": name, **times})
            if kind == ANNOTATION:
                notes.append({"lane": lane, "name": name, "start_ns": times["start_ns"], "end_ns": times["end_ns"]})
    host.sort(key=lambda row: (row["lane"], row["start_ns"], -row["end_ns"]))
    last = EPOCH_NS + STEPS * STEP * US
    return rank_timeline(
        rank,
        calls=calls,
        work=work,
        host=host,
        annotations=notes,
        has_device=False,
        recordings=[{"start_ns": EPOCH_NS, "end_ns": last, "host_events": True}],
        steps=[
            {"step": number, "start_ns": EPOCH_NS + number * STEP * US, "end_ns": EPOCH_NS + (number + 1) * STEP * US}
            for number in range(STEPS)
        ],
        lanes=[{"kind": HOST, "label": label} for label in ("other", "gloo", "training")],
    )
