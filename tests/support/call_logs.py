"""Make timelines from lists of calls: a profiler's, an NCCL log's, a flight recorder's dump."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import structs

from overlapscope.ingest.reader import Reading
from overlapscope.timeline.columns import make
from overlapscope.timeline.facts import Facts, Members
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.operations import ITEM_BYTES
from overlapscope.timeline.run import Group, RankTimeline, Source
from tests.support.builders import EPOCH_NS, spelled
from tests.support.rank_rows import rank_timeline


class Call(msgspec.Struct, frozen=True):
    """One call; None is missing."""

    op: str | None
    elements: int | None = None
    dtype: str | None = "float32"
    group: str | None = "0"
    size: int | None = None
    seq: int | None = None
    algorithm: str | None = None
    protocol: str | None = None
    channels: int | None = None
    state: int = 0
    record: int | None = None
    launch: int | None = None
    """Place in the order of launches, where it is not that of the list."""

    @property
    def bytes(self) -> int | None:
        """Bytes, where the type and the number of elements are known."""
        return self.elements * ITEM_BYTES[self.dtype] if self.elements is not None and self.dtype else None


def _row(call: Call) -> dict[str, Any]:
    own = {"bytes": call.bytes, "group_size": call.size, "record_function_id": call.record}
    return {**structs.asdict(call), **own}


def log(calls: Sequence[Call], rank: int = 0, source: str = "nccl.log") -> RankTimeline:
    """Return a timeline of calls in order, without times; `launch` is a time where it is given."""
    rows = [{**_row(call), "launch_ns": None if call.launch is None else EPOCH_NS + call.launch} for call in calls]
    return rank_timeline(
        rank, basis="log", has_device=False, collectives=rows, spans=(), recordings=[{"source": source}], lanes=()
    )


def trace(calls: Sequence[Call], rank: int = 0, source: str = "trace.json", start_ns: int = EPOCH_NS) -> RankTimeline:
    """Return a timeline with a kernel for each call, 100 ns apart, launched in the order of the list or of `launch`."""
    rows = []
    for at, call in enumerate(calls):
        begun, launch = start_ns + 50 + 100 * at, start_ns + (at if call.launch is None else call.launch)
        times = {"start_ns": begun, "end_ns": begun + 60, "launch_ns": launch}
        rows.append({**_row(call), **times, "lane": 0, "name": "ncclDevKernel_Generic"})
    whole = {"source": source, "start_ns": start_ns, "end_ns": start_ns + 100 * len(calls) + 99}
    return rank_timeline(rank, calls=rows, recordings=[whole], lanes=[{}])


def calls_in(timeline: RankTimeline) -> list[Call]:
    """Return a timeline's calls in the order of its table."""
    table = spelled(timeline.collectives, timeline.names)
    names = ("op", "elements", "dtype", "group", "group_size", "seq", "algorithm", "protocol", "channels", "state",
             "record_function_id")  # fmt: skip
    return [Call(*row) for row in zip(*(table[name] for name in names), strict=True)]


def members_facts(communicators: dict[str, Sequence[int]], only: Iterable[int] | None = None) -> Facts:
    """Return the members of communicators by their world ranks; only of the ranks `only`, which have logs."""
    names = NameTable()
    rows = [
        (names.code(name), member, len(ranks), rank)
        for name, ranks in communicators.items()
        for member, rank in enumerate(ranks)
        if only is None or rank in only
    ]
    columns = dict(zip(("communicator", "member", "members", "rank"), zip(*rows, strict=True), strict=False))
    return Facts(names=tuple(names.to_list()), members=make(Members, len(rows), **columns))


def communicator_groups(communicators: dict[str, Sequence[int]]) -> tuple[Group, ...]:
    """Return communicators as groups, as a log of all ranks reports them."""
    return tuple(Group(name=name, size=len(r), ranks=tuple(sorted(r))) for name, r in communicators.items())


def reading(path: str, *timelines: RankTimeline, facts: Facts | None = None, groups: tuple[Group, ...] = ()) -> Reading:
    """Return the content of a file as a Reading."""
    return Reading(
        source=Source(path=path, format="made up"), timelines=timelines, facts=facts or Facts(), groups=groups
    )
