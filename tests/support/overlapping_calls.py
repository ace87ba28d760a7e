"""Small jobs made by hand: who called what when, and computed when, in milliseconds."""

from collections.abc import Mapping, Sequence

import msgspec

from overlapscope.timeline.columns import (
    COMM,
    COMPUTE,
    NONE,
    Annotations,
    Collectives,
    Lanes,
    Recordings,
    Spans,
    Steps,
    make,
)
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import Group, RankTimeline, Run
from tests.support.builders import EPOCH_NS

MS = 1_000_000


class Met(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a rank; received bytes other than `volume` make an all-to-all uneven."""

    start: float
    end: float
    group: str = "all"
    op: str = "all_reduce"
    volume: int = 1 << 20
    received: int = NONE


def job(
    calls: Mapping[int, Sequence[Met]],
    groups: Mapping[str, tuple[int, ...]],
    *,
    lasts: float,
    computes: Mapping[int, Sequence[tuple[float, float]]] | None = None,
    lone: Mapping[int, Sequence[tuple[float, float]]] | None = None,
    step: float | None = None,
    has_device: bool = True,
    clock: Mapping[int, float] | None = None,
    hosts: Mapping[int, str] | None = None,
) -> Run:
    """Return a run of `lasts` ms in steps of `step`; `lone` are communication spans of no call, `clock` is ahead."""
    ranks = {}
    for rank, own in calls.items():
        ahead = EPOCH_NS + round((clock or {}).get(rank, 0.0) * MS)
        ranks[rank] = _rank(
            rank, own, groups, (computes or {}).get(rank, ()), (lone or {}).get(rank, ()), lasts, step, ahead,
            has_device=has_device, host=(hosts or {}).get(rank),
        )  # fmt: skip
    named = tuple(Group(name=name, size=len(members), ranks=members) for name, members in groups.items())
    return Run(world_size=max(calls) + 1, ranks=ranks, groups=named)


def _rank(
    rank: int,
    calls: Sequence[Met],
    groups: Mapping[str, tuple[int, ...]],
    computes: Sequence[tuple[float, float]],
    lone: Sequence[tuple[float, float]],
    lasts: float,
    step: float | None,
    ahead: int,
    *,
    has_device: bool,
    host: str | None,
) -> RankTimeline:
    names = NameTable()

    def at(times: Sequence[float]) -> list[int]:
        return [ahead + round(each * MS) for each in times]

    def steps(times: Sequence[float]) -> list[int]:
        return [NONE if step is None else int(each // step) for each in times]

    starts = [each.start for each in calls] + [start for start, _ in (*computes, *lone)]
    ends = [each.end for each in calls] + [end for _, end in (*computes, *lone)]
    others, count = len(computes) + len(lone), 0 if step is None else round(lasts / step)
    return RankTimeline(
        rank=rank, basis="trace", has_device=has_device,
        recordings=make(Recordings, 1, start_ns=at([0.0]), end_ns=at([lasts])),
        spans=make(
            Spans, len(starts), recording=0,
            lane=[1] * len(calls) + [0] * len(computes) + [2] * len(lone),
            kind=[COMM] * len(calls) + [COMPUTE] * len(computes) + [COMM] * len(lone),
            name=[names.code(each.op) for each in calls] + [names.code("gemm")] * len(computes)
            + [names.code("alone")] * len(lone),
            start_ns=at(starts), end_ns=at(ends), launch_ns=at(starts), step=steps(starts),
            collective=[*range(len(calls)), *[NONE] * others],
        ),
        collectives=make(
            Collectives, len(calls), recording=0, step=steps(starts[: len(calls)]),
            group=[names.code(each.group) for each in calls], op=[names.code(each.op) for each in calls],
            dtype=names.code("float32"), bytes=[each.volume for each in calls],
            received_bytes=[each.received for each in calls],
            group_size=[len(groups[each.group]) if each.group in groups else NONE for each in calls],
            start_ns=at([each.start for each in calls]), end_ns=at([each.end for each in calls]),
            launch_ns=at([each.start for each in calls]),
        ),
        steps=make(
            Steps, count, recording=0, step=range(count), start_ns=at([each * (step or 0) for each in range(count)]),
            end_ns=at([(each + 1) * (step or 0) for each in range(count)]),
        ),
        lanes=make(Lanes, 3), annotations=make(Annotations, 0), names=tuple(names.to_list()),
        recorded={} if host is None else {"settings": {"host": host}},
    )  # fmt: skip
