"""Build the tables of an NCCL log besides calls: members, connections, paths, costs, messages, groups."""

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from overlapscope.ingest.formats.nccl_log.communicators import (
    NO_NUMBER,
    LoggedCommunicator,
    LoggedProcess,
    WorldRanks,
    worker_of,
)
from overlapscope.ingest.formats.nccl_log.init_lines import PATTERNS, RING, LoggedConnection
from overlapscope.ingest.formats.nccl_log.lines import LoggedMessage
from overlapscope.timeline.columns import NONE, Ints, make
from overlapscope.timeline.facts import RECEIVING, Connections, CostModels, Members, Messages, Paths
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import Group


def none_if_missing(number: int) -> int:
    """Return the number as columns store it: NONE for NO_NUMBER."""
    return NONE if number == NO_NUMBER else number


def members(
    communicators: Sequence[LoggedCommunicator],
    world: WorldRanks,
    libraries: Mapping[LoggedProcess, str],
    names: NameTable,
) -> Members:
    """Return a row for each member of each communicator."""
    first = {each.name: each.order for each in reversed(communicators)}
    rows = sorted(communicators, key=lambda each: (first[each.name], each.member))
    details_of_rows = [each.details for each in rows]
    channels = [each.channels or (NO_NUMBER,) * 3 for each in details_of_rows]
    hosts = _hosts(communicators)
    return make(
        Members,
        len(rows),
        communicator=[names.code(each.name) for each in rows],
        member=[none_if_missing(each.member) for each in rows],
        members=[each.size for each in rows],
        rank=[world.ranks.get(worker_of(each), NONE) for each in rows],
        host=[names.code(each.process.host) for each in rows],
        process=[each.process.number for each in rows],
        device=[none_if_missing(each.device) for each in rows],
        bus=names.codes(each.bus for each in rows),
        nodes=[hosts.get(each.name, NONE) if each.nodes == NO_NUMBER else each.nodes for each in rows],
        collective_channels=[none_if_missing(each[0]) for each in channels],
        point_to_point_channels=[none_if_missing(each[1]) for each in channels],
        nvls_channels=[none_if_missing(each[2]) for each in channels],
        library=names.codes(libraries.get(each.process) for each in rows),
        network=names.codes(each.network for each in details_of_rows),
        init_seconds=[np.nan if each.init_seconds is None else each.init_seconds for each in rows],
    )


def _hosts(communicators: Sequence[LoggedCommunicator]) -> dict[str, int]:
    """Return the number of hosts of each communicator of which all members are seen."""
    seen: dict[str, dict[int, str]] = defaultdict(dict)
    for each in communicators:
        if each.member != NO_NUMBER:
            seen[each.name][each.member] = each.process.host
    whole = {each.name for each in communicators if len(seen[each.name]) == each.size}
    return {name: len(set(seen[name].values())) for name in whole}


class _Ends(msgspec.Struct, frozen=True, kw_only=True):
    """Distinct connections of a log as columns."""

    channel: Ints
    sender: Ints
    receiver: Ints
    transport: Ints
    card: Ints
    direct: Ints
    side: Ints


def connections(
    communicators: Sequence[LoggedCommunicator], known: Sequence[LoggedConnection], names: NameTable
) -> tuple[Connections, int]:
    """Return a row for each distinct connection of a communicator, and how many have no certain communicator.

    Connections that were made after initialisation do not state their communicator: they belong to the only
    communicator of their process in which they are possible.
    """
    if not known:
        return make(Connections, 0), 0
    families = [("IB" if "IB" in each.transport else each.transport.removeprefix("NET/")) for each in known]
    ends = _Ends(
        channel=np.array([each.channel for each in known]),
        sender=np.array([each.sender for each in known]),
        receiver=np.array([each.receiver for each in known]),
        transport=np.array([names.code(each.transport) for each in known]),
        card=np.array([each.card for each in known]),
        direct=np.array([each.direct for each in known]),
        side=np.array([each.side for each in known]),
    )
    by_name: dict[int, list[npt.NDArray[np.int64]]] = defaultdict(list)
    late = _late(communicators, ends)
    for communicator, codes in [*((each, each.details.connections) for each in communicators), *late]:
        if len(codes):
            distinct = np.unique(np.asarray(codes))
            cards = [_card(names, communicator, families[code], known[code].card) for code in distinct.tolist()]
            name = -1 if isinstance(communicator, LoggedProcess) else names.code(communicator.name)
            table = [getattr(ends, field)[distinct] for field in ("channel", "sender", "receiver", "transport")]
            table += [np.array(cards), ends.direct[distinct], ends.side[distinct]]
            by_name[name].append(np.stack(table, axis=1))
    tables = {name: np.unique(np.concatenate(parts), axis=0) for name, parts in by_name.items()}
    rows = np.concatenate([*tables.values(), np.zeros((0, 7), np.int64)])
    name_column = np.repeat(np.array([*tables, 0])[:-1], [len(table) for table in tables.values()])
    made = make(
        Connections,
        len(rows),
        communicator=name_column,
        **dict(zip(("channel", "sender", "receiver", "transport", "nic", "gpu_direct", "side"), rows.T, strict=True)),
    )
    return made, len(tables.get(-1, ()))


def _card(names: NameTable, owner: "LoggedCommunicator | LoggedProcess", family: str, card: int) -> int:
    """Return the name of a network card as the process listed it, or its number."""
    if card == NO_NUMBER:
        return -1
    process = owner if isinstance(owner, LoggedProcess) else owner.process
    return names.code(process.cards.get((family, card), str(card)))


def _late(
    communicators: Sequence[LoggedCommunicator], ends: _Ends
) -> "list[tuple[LoggedCommunicator | LoggedProcess, array[int]]]":
    """Assign late connections to the communicator that they fit; to the process where several fit or none."""
    places: dict[tuple[LoggedProcess, int, int], dict[str, LoggedCommunicator]] = defaultdict(dict)
    for each in communicators:
        places[each.process, each.device, each.member][each.name] = each
    found: dict[LoggedCommunicator | LoggedProcess, array[int]] = defaultdict(lambda: array("i"))
    for process in dict.fromkeys(each.process for each in communicators):
        for device, codes in process.late:
            for code in sorted(set(codes)):
                sender, receiver = int(ends.sender[code]), int(ends.receiver[code])
                own = receiver if ends.side[code] == RECEIVING else sender
                fitting = _of_size(places.get((process, device, own), {}).values(), max(sender, receiver))
                found[fitting[0] if len(fitting) == 1 else process].append(code)
    return list(found.items())


def _of_size(communicators: Iterable[LoggedCommunicator], member: int) -> list[LoggedCommunicator]:
    """Return at most two communicators that have such a member; more make no difference."""
    return list(islice((each for each in communicators if member < each.size), 2))


def paths(communicators: Sequence[LoggedCommunicator], names: NameTable) -> tuple[Paths, int]:
    """Return a row for each place in a ring or tree, and how many rows name no member of their communicator."""
    tables, owners, dropped = [], [], 0
    by_name: dict[str, list[LoggedCommunicator]] = defaultdict(list)
    for each in communicators:
        if each.details.paths or each.details.rings:
            by_name[each.name].append(each)
    for name, those in by_name.items():
        size = those[0].size
        parts = [np.frombuffer(each.details.paths, np.int32).reshape(-1, 4) for each in those if each.details.paths]
        for channel, members_ in (ring for each in those for ring in each.details.rings):
            if sorted(members_) == list(range(size)):
                ring = np.asarray(members_)
                parts.append(np.stack((ring * 0 + RING, ring * 0 + channel, ring, np.roll(ring, -1)), axis=1))
            else:  # cut by NCCL, which writes 1,023 bytes a line
                dropped += 1
        rows = np.unique(np.concatenate([*parts, np.zeros((0, 4), np.int32)]), axis=0)
        good = (rows[:, 2:] < size).all(axis=1)
        dropped += int((~good).sum())
        tables.append(rows[good])
        owners.append(np.full(int(good.sum()), names.code(name)))
    if not tables:
        return make(Paths, 0), dropped
    pattern, channel, member, following = np.concatenate(tables).astype(np.int64).T
    return make(
        Paths,
        pattern.size,
        communicator=np.concatenate(owners),
        pattern=np.array([names.code(each) for each in PATTERNS])[pattern],
        channel=channel,
        member=member,
        next=np.where(following == NO_NUMBER, NONE, following),
    ), dropped


def costs(communicators: Sequence[LoggedCommunicator], names: NameTable) -> CostModels:
    """Return a row for each operation, algorithm and protocol of each communicator's cost table."""
    rows = list(dict.fromkeys((each.name, *cost) for each in communicators for cost in each.details.costs))
    columns: Iterable[tuple[Any, ...]] = zip(*rows, strict=True) if rows else ((),) * 6
    name, op, algorithm, protocol, latency, bandwidth = columns
    return make(
        CostModels,
        len(rows),
        communicator=[names.code(each) for each in name],
        op=[names.code(each) for each in op],
        algorithm=[names.code(each) for each in algorithm],
        protocol=[names.code(each) for each in protocol],
        latency_us=latency,
        bandwidth_gbs=bandwidth,
    )


def messages(logged: Sequence[LoggedMessage], world: WorldRanks, source: str, names: NameTable) -> Messages:
    """Return a row for each message."""
    ranks = {}
    for (process, device), rank in world.ranks.items():
        ranks[process, device] = rank
    of_process: dict[LoggedProcess, set[int]] = defaultdict(set)
    for (process, _), rank in world.ranks.items():
        of_process[process].add(rank)

    def rank_of(message: LoggedMessage) -> int:
        own = of_process[message.process]
        return next(iter(own)) if len(own) == 1 else ranks.get((message.process, message.device), NONE)

    return make(
        Messages,
        len(logged),
        source=names.code(source) if logged else -1,
        rank=[rank_of(each) for each in logged],
        host=[names.code(each.process.host) for each in logged],
        kind=[each.kind for each in logged],
        text=[names.code(each.text) for each in logged],
        line=[each.line for each in logged],
        time_ns=[each.time_ns for each in logged],
    )


def groups(communicators: Sequence[LoggedCommunicator], world: WorldRanks) -> tuple[Group, ...]:
    """Return the communicators as groups, with the world ranks of all members where they are known."""
    by_name: dict[str, list[LoggedCommunicator]] = defaultdict(list)
    for each in communicators:
        by_name[each.name].append(each)
    found = []
    everyone = tuple(range(world.size or 0))
    for name, those in by_name.items():
        size = those[0].size
        at = {each.member: world.ranks.get(worker_of(each)) for each in those if each.member != NO_NUMBER}
        known = [rank for rank in at.values() if rank is not None]
        ranks: tuple[int, ...] | None = None
        if world.size == size and len(known) == len(at) > 0 and all(rank == place for place, rank in at.items()):
            ranks = everyone
        elif len(known) == size == len(set(known)):
            ranks = tuple(at[place] or 0 for place in range(size))
        found.append(Group(name=name, size=size, ranks=ranks))
    return tuple(found)
