"""Collect collectives that an NCCL profiler plugin recorded: calls in order, with their duration on the device."""

from array import array
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np

from overlapscope.ingest.build.call_timeline import timeline_from_calls
from overlapscope.ingest.parsing.fact_tables import fact_table
from overlapscope.timeline.columns import NONE, Collectives, Ints, make, recode, take
from overlapscope.timeline.facts import Facts, Measurements, Members
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.operations import MAX_COUNT, bus_factor, full_elements, possible_count
from overlapscope.timeline.run import MAX_RANKS, UNKNOWN_RANK, Group, RankTimeline

_WHOLE: Final = (
    "comm", "member", "seq", "op", "dtype", "elements", "bytes", "algorithm", "protocol", "channels", "launch_ns",
)  # fmt: skip
_SHARED: Final = frozenset({"all_gather", "reduce_scatter", "gather", "scatter", "all_to_all"})
_REAL: Final = ("time_ns", "algbw_gbs", "busbw_gbs")


class ProfiledCommunicator(msgspec.Struct, kw_only=True):
    """Properties of one communicator, as recorded."""

    name: str
    size: int | None = None
    nodes: int | None = None
    members: dict[int, dict[str, Any]] = {}
    """By rank in the communicator: further columns of the table of members."""


class CallRows(msgspec.Struct):
    """Calls of any number of communicators and ranks, as columns."""

    names: NameTable = msgspec.field(default_factory=NameTable)
    communicators: dict[str, ProfiledCommunicator] = {}
    columns: dict[str, "array[Any]"] = msgspec.field(
        default_factory=lambda: {**{name: array("q") for name in _WHOLE}, **{name: array("d") for name in _REAL}}
    )

    def __len__(self) -> int:
        return len(self.columns["comm"])

    def communicator(self, name: str) -> ProfiledCommunicator:
        """Return the communicator of this name; a new one when it was not seen before."""
        if name not in self.communicators:
            self.communicators[name] = ProfiledCommunicator(name=name)
        return self.communicators[name]

    def add(self, comm: str, member: int, **values: Any) -> int:
        """Add a call and return its row number; names are given as text, and missing values are stored as missing."""
        self.communicator(comm).members.setdefault(member, {})
        values |= {"comm": comm, "member": member}
        for name in _WHOLE:
            value = values.get(name)
            if name in ("comm", "op", "dtype", "algorithm", "protocol"):
                value = -1 if value is None else self.names.code(value)
            self.columns[name].append(NONE if value is None else value)
        for name in _REAL:
            value = values.get(name)
            self.columns[name].append(float("nan") if value is None else value)
        return len(self) - 1

    def world_ranks(self) -> tuple[Ints, str | None]:
        """Return each call's rank in the world (int64), and the communicator that was taken for the world.

        Profilers number ranks within each communicator. The largest communicator is taken for the world if no other is
        as large. A process that has the same, single rank in every communicator has this rank in the world. NONE
        otherwise.
        """
        members = np.frombuffer(self.columns["member"], np.int64).copy()
        comms = np.frombuffer(self.columns["comm"], np.int64)
        ranked = sorted(self.communicators.values(), key=lambda each: -(each.size or 0))
        if not ranked:
            return members, None
        single = all(len(each.members) == 1 for each in ranked)
        own = {next(iter(each.members)) for each in ranked} if single else set()
        if len(own) == 1:
            return members, ranked[0].name
        if len(ranked) > 1 and (ranked[0].size or 0) <= (ranked[1].size or 0):
            return np.full(members.size, NONE, np.int64), None
        world = ranked[0]
        if single:
            return np.full(members.size, next(iter(world.members)), np.int64), world.name
        return np.where(comms == self.names.code(world.name), members, NONE), world.name

    def timelines(self, source: str) -> tuple[RankTimeline, ...]:
        """Return one timeline per rank, with calls but no times: device times are not on the host's clock."""
        ranks, _ = self.world_ranks()
        calls = self._collectives()
        found = []
        for rank in np.unique(ranks).tolist():
            names = NameTable()
            code = names.code(source)
            own = recode(take(calls, ranks == rank), self.names.to_list(), names)
            number = UNKNOWN_RANK if rank == NONE else rank
            found.append(timeline_from_calls(own, names, rank=number, source=code, has_device=True))
        return tuple(found)

    def _collectives(self) -> Collectives:
        column = {name: np.frombuffer(self.columns[name], np.int64) for name in _WHOLE}
        return make(
            Collectives,
            len(self),
            recording=0,
            group=column["comm"],
            group_size=self._sizes(),
            **{name: column[name] for name in _WHOLE if name not in ("comm", "member")},
        )

    def _sizes(self) -> Ints:
        sizes = {
            self.names.code(each.name): NONE if each.size is None else each.size for each in self.communicators.values()
        }
        return np.array([sizes[code] for code in self.columns["comm"]], np.int64)

    def groups(self) -> tuple[Group, ...]:
        """Return the communicators as groups; the world ranks of their members are unknown."""
        return tuple(Group(name=each.name, size=each.size) for each in self.communicators.values())

    def facts(self, source: str) -> Facts:
        """Return the members of the communicators, and one measurement per call that was timed on the device."""
        ranks, world = self.world_ranks()
        timed = np.flatnonzero(~np.isnan(np.frombuffer(self.columns["time_ns"], np.float64)))
        names = NameTable(self.names.to_list())
        taken = {name: np.frombuffer(self.columns[name], np.int64)[timed] for name in _WHOLE}
        measurements = make(
            Measurements,
            timed.size,
            source=names.code(source),
            rank=ranks[timed],
            communicator=taken["comm"],
            ranks=self._sizes()[timed],
            **{name: taken[name] for name in ("seq", "op", "dtype", "bytes", "algorithm", "protocol")},
            **{name: np.frombuffer(self.columns[name], np.float64)[timed] for name in _REAL},
        )
        members = [
            {"communicator": each.name, "member": member, "members": each.size, "nodes": each.nodes, **more}
            | ({"rank": member} if each.name == world else {})
            for each in self.communicators.values()
            for member, more in each.members.items()
        ]
        table = fact_table(Members, members, names)
        return Facts(names=tuple(names.to_list()), members=table, measurements=measurements)


def whole_number(value: object, limit: int = MAX_COUNT) -> int | None:
    """Return a whole number between 0 and `limit`, exclusive; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit else None


def rank_number(value: object) -> int | None:
    """Return a valid rank number; None for anything else."""
    return whole_number(value, MAX_RANKS)


def called_elements(op: str, count: int | None, ranks: int | None) -> int | None:
    """Return the elements of the whole buffer for the `count` argument of an NCCL call.

    `count` is one rank's share in all-gather, reduce-scatter, gather, scatter and all-to-all, otherwise the whole
    buffer (nccl.h).
    """
    if op in _SHARED:
        return possible_count(count * ranks) if count is not None and ranks else None
    return full_elements(op, count, count, ranks)


def bandwidths(op: str | None, size_bytes: int | None, time_ns: float | None, ranks: int | None) -> Mapping[str, float]:
    """Return algbw and busbw in GB/s, as far as size, time and ranks are known."""
    if not size_bytes or not time_ns:
        return {}
    algbw = size_bytes / time_ns
    return {"algbw_gbs": algbw} | ({"busbw_gbs": algbw * bus_factor(op, ranks)} if op and ranks else {})
