"""Read the process groups of a flight recorder's dump: their members, and how far this rank had come in each."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from overlapscope.ingest.build.collective_args import MAX_GROUP_SIZE, parse_count, parse_ranks
from overlapscope.ingest.formats.flight_recorder.entries import RecordedCall, described, text
from overlapscope.timeline.columns import COMPLETED, SCHEDULED, STARTED
from overlapscope.timeline.run import MAX_RANKS, Group

DEFAULT: Final = "default_pg"
"""Description of the group of all ranks, since torch 2.3."""


class GroupPosition(msgspec.Struct, frozen=True, kw_only=True):
    """How far the rank had come in one group; None where it is not recorded."""

    group: str | None
    backend: str | None
    enqueued: int | None = None
    started: int | None = None
    completed: int | None = None
    pending: RecordedCall | None = None
    """Oldest collective that had not completed."""


def read_groups(config: Any, calls: Sequence[RecordedCall]) -> tuple[Group, ...]:
    """Return the groups that the configuration or a call names.

    gloo stores all its groups under the name '', so only the last one remains. That entry is used only where it can
    mean a single group, and never where a call's group really has this name.
    """
    configured: dict[str, Group] = {}
    for key, value in config.items() if isinstance(config, dict) else ():
        group = _configured(key, value)
        if group is not None:
            configured[group.name] = group
    named = dict.fromkeys(call.group for call in calls)
    nameless = configured.pop("", None) if "" not in named else None
    for call in calls:
        known = configured.get(call.group)
        if known is None:
            configured[call.group] = Group(name=call.group, description=call.description)
        elif known.description is None and call.description is not None:
            configured[call.group] = replace(known, description=call.description)
    if nameless is not None and not configured:
        return (nameless,)
    if nameless is not None and len(configured) == 1 and len({call.pg_id for call in calls}) == 1:
        (only,) = configured.values()
        if only.ranks is None:
            return (replace(nameless, name=only.name, description=only.description),)
    return tuple(configured.values())


def _configured(key: Any, config: Any) -> Group | None:
    """Read `"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}`, or `0: [0, 1]` as before version 2."""
    fields: Mapping[Any, Any] = config if isinstance(config, dict) else {"ranks": config}
    name = text(fields.get("name"))
    name = text(key) if name is None else name
    if name is None:
        return None
    ranks = _ranks(fields.get("ranks"))
    return Group(
        name=name,
        description=described(fields.get("desc")),
        size=len(ranks) if ranks is not None else None,
        ranks=ranks,
    )


def _ranks(ranks: Any) -> tuple[int, ...] | None:
    listed, cut = parse_ranks(list(ranks) if isinstance(ranks, tuple) else ranks)
    if not listed or cut or len(listed) > MAX_GROUP_SIZE or len(set(listed)) != len(listed):
        return None
    known = [parse_count(rank) for rank in listed]
    return listed if all(rank is not None and rank <= MAX_RANKS for rank in known) else None


def world_size(groups: Sequence[Group], *, numbered: bool) -> int | None:
    """Return the size of the group of all ranks; None where it cannot be identified.

    That group has the default description, or is the first of a dump. `numbered` means that groups are known by their
    number only (before version 2).
    """
    for group in groups:
        whole = group.ranks is not None and sorted(group.ranks) == list(range(len(group.ranks)))
        is_first = group.name == "0" and (numbered or group.description is None)
        if whole and group.ranks is not None and (group.description == DEFAULT or is_first):
            return len(group.ranks)
    return None


def group_positions(
    status: Any, calls: Sequence[RecordedCall], groups: Sequence[Group], *, complete: bool
) -> tuple[GroupPosition, ...]:
    """Return one row for each group of the dump.

    `status` is keyed by the communicator's number in the process; only calls relate this number to a group. `complete`
    means that no call was overwritten or left out, so that a group without calls was never used.
    """
    by_id: dict[str, list[RecordedCall]] = {}
    for call in calls:
        by_id.setdefault(call.pg_id, []).append(call)
    status_by_id: dict[str, Any] = {}
    for key, value in status.items() if isinstance(status, dict) else ():
        number = text(key)
        if number is not None and isinstance(value, dict):
            status_by_id[number] = value
    rows = []
    for number in dict.fromkeys([*status_by_id, *by_id]):
        mine = by_id.get(number, [])
        names = {call.group for call in mine}
        if not names and len(status_by_id) == len(groups) == 1:
            names = {groups[0].name}
        group = names.pop() if len(names) == 1 else None
        rows.append(_group_position(group, _backend(mine or calls), status_by_id.get(number, {}), mine))
    used = {row.group for row in rows}
    if complete and None not in used:
        backend = _backend(calls)
        unused = [group for group in groups if group.name not in used and group.ranks is not None]
        rows += [GroupPosition(group=group.name, backend=backend, enqueued=0) for group in unused]
    return tuple(rows)


def _backend(calls: Sequence[RecordedCall]) -> str | None:
    backends = {call.backend for call in calls}
    return backends.pop() if len(backends) == 1 else None


def _group_position(
    group: str | None, backend: str | None, status: Mapping[Any, Any], calls: Sequence[RecordedCall]
) -> GroupPosition:
    """Combine the status and the calls of one communicator.

    The status counts collectives, but where the group also sends and receives, its last number may belong to one of
    those, and gloo's status counts both. gloo's is translated by the calls' own numbers; in other such groups only the
    calls are used.
    """
    enqueued, started, completed = (
        _number(status.get(f"last_{what}_collective")) for what in ("enqueued", "started", "completed")
    )
    seqs = [call.collective_seq for call in calls if call.collective_seq is not None]
    if any(call.backend == "gloo" for call in calls):
        enqueued, completed = _translated(enqueued, calls), _translated(completed, calls)
        started = None
    elif any(call.point_to_point for call in calls) or not status:
        enqueued = max(seqs, default=None)
        done = [call.collective_seq for call in _collectives(calls) if call.state == COMPLETED]
        completed = max((seq for seq in done if seq is not None), default=None)
        started = None
    elif started == 0:
        started = None  # starts are recorded only with TORCH_NCCL_ENABLE_TIMING
    if enqueued is not None and completed is not None and completed > enqueued:
        completed = None  # not initialised in torch 2.3 and 2.4
    pending = _pending(calls, completed)
    if pending is not None and completed is not None and completed >= (pending.collective_seq or 0):
        completed = None  # torch counts a timed-out call as completed once it is given up
    return GroupPosition(
        group=group, backend=backend, enqueued=enqueued, started=started, completed=completed, pending=pending
    )


def _number(value: Any) -> int | None:
    """Return a status number, a whole number or text; -1 means none yet, and numbers begin at 1."""
    if value in (-1, "-1") and not isinstance(value, bool):
        return 0
    return parse_count(value)


def _translated(number: int | None, calls: Sequence[RecordedCall]) -> int | None:
    """Return the collectives entered when gloo's count of all operations was `number`."""
    if not number:
        return number
    until = [call.collective_seq for call in calls if call.op_id is not None and call.op_id <= number]
    return max((seq for seq in until if seq is not None), default=None)


def _collectives(calls: Sequence[RecordedCall]) -> list[RecordedCall]:
    return [call for call in calls if not call.point_to_point and call.collective_seq is not None]


def _pending(calls: Sequence[RecordedCall], completed: int | None) -> RecordedCall | None:
    """Return the oldest collective that had not completed, with preference for one that timed out.

    The calls of a batch stay `scheduled` for ever and only the entry that closes it has the state. So a number is
    pending when none of its entries has completed. Collectives that the status counts as completed are not pending,
    even without entries.
    """
    by_seq: dict[int, list[RecordedCall]] = {}
    for call in _collectives(calls):
        by_seq.setdefault(call.collective_seq or 0, []).append(call)
    late = {seq: each for seq, each in by_seq.items() if all(call.state in (SCHEDULED, STARTED) for call in each)}
    timed_out = {seq for seq, each in late.items() if any(call.timed_out for call in each)}
    open_ = timed_out or {seq for seq in late if completed is None or seq > completed}
    if not open_:
        return None
    batch = late[min(open_)]
    return next((call for call in batch if call.timed_out), batch[0])
