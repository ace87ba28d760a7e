"""Small jobs made by hand: who called what when, and computed when, in milliseconds."""

from collections.abc import Mapping, Sequence

import msgspec

from overlapscope.timeline.columns import COMM, COMPUTE, NONE
from overlapscope.timeline.run import Group, RankTimeline, Run
from tests.support.builders import EPOCH_NS
from tests.support.rank_rows import Row, rank_timeline

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
    """Return a run of `lasts` ms in steps of `step`.

    `lone` are communication spans of no call; `clock` is how far a rank's clock is ahead.
    """

    def timeline(rank: int) -> RankTimeline:
        ahead = EPOCH_NS + round((clock or {}).get(rank, 0.0) * MS)

        def times(start: float, end: float) -> Row:
            start_ns, end_ns = (ahead + round(each * MS) for each in (start, end))
            number = None if step is None else int(start // step)
            return {"start_ns": start_ns, "end_ns": end_ns, "launch_ns": start_ns, "step": number}

        made = [
            {
                **times(each.start, each.end), "group": each.group, "op": each.op, "dtype": "float32",
                "bytes": each.volume, "received_bytes": each.received,
                "group_size": len(groups[each.group]) if each.group in groups else None,
            }
            for each in calls[rank]
        ]  # fmt: skip
        work = [{**times(*each), "kind": COMPUTE, "name": "gemm"} for each in (computes or {}).get(rank, ())]
        work += [{**times(*each), "kind": COMM, "name": "alone", "lane": 2} for each in (lone or {}).get(rank, ())]
        return rank_timeline(
            rank, calls=made, work=work, has_device=has_device, recordings=[times(0, lasts)],
            steps=[times(at * step, (at + 1) * step) for at in range(round(lasts / step))] if step else [],
            recorded={"settings": {"host": hosts[rank]}} if hosts else {},
        )  # fmt: skip

    named = tuple(Group(name=name, size=len(members), ranks=members) for name, members in groups.items())
    return Run(world_size=max(calls) + 1, ranks={rank: timeline(rank) for rank in calls}, groups=named)
