"""The progress of each rank in each process group when it was dumped, or when its watchdog timed out."""

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.timeline.columns import NONE, Ints, size
from overlapscope.timeline.operations import POINT_TO_POINT
from overlapscope.timeline.run import Run

DUMP = "flight_recorder"
"""Format of the sources that hold the calls that a rank had entered."""
DEFAULT = "default_pg"
"""Description of the group of all ranks."""
_NUMBERS = ("enqueued", "completed", "pending", "stuck_at", "timeout_ns", "elements")


class GroupProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of one rank in one group: sequence numbers of collectives, None where not known."""

    entered: int | None = None
    completed: int | None = None
    pending: int | None = None
    """The oldest collective that the rank had entered and not completed."""
    timeout_ns: int | None = None
    timed_out: bool = False
    op: str | None = None
    """Operation of the pending collective; `elements` and `called_at` belong to it too."""
    elements: int | None = None
    called_at: str | None = None
    dump: str | None = None
    """Path of the dump that it was read from; None where only a log holds it."""


class GroupProgressByRank(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of all known ranks in one group and backend: a group may use two backends, each with its own numbers."""

    group: str | None
    """None where a log does not name it."""
    backend: str | None
    ranks: Mapping[int, GroupProgress]


def group_progress(run: Run) -> list[GroupProgressByRank]:
    """Return the progress for each group and library, in order of their names."""
    table, facts = run.facts.progress, run.facts
    dumps = {source.path for source in run.sources if source.format == DUMP}
    found: dict[tuple[str | None, str | None], dict[int, GroupProgress]] = {}
    for row in range(size(table)):
        rank = int(table.rank[row])
        if rank == NONE:
            continue
        numbers = {name: int(getattr(table, name)[row]) for name in _NUMBERS}
        known = {name: None if value == NONE else value for name, value in numbers.items()}
        source = facts.name(int(table.source[row]))
        here = GroupProgress(
            entered=known["enqueued"],
            completed=known["completed"],
            pending=known["pending"],
            timeout_ns=known["timeout_ns"],
            timed_out=known["stuck_at"] is not None,
            op=facts.name(int(table.op[row])),
            elements=known["elements"],
            called_at=facts.name(int(table.called_at[row])),
            dump=source if source in dumps else None,
        )
        ranks = found.setdefault((facts.name(int(table.group[row])), facts.name(int(table.backend[row]))), {})
        ranks[rank] = _joined(ranks[rank], here) if rank in ranks else here
    for group in {group for group, backend in found if backend is None}:
        others = [key for key in found if key[0] == group and key[1] is not None]
        if len(others) == 1:  # a dump without calls does not name the backend
            for rank, here in found.pop((group, None)).items():
                found[others[0]].setdefault(rank, here)
    order = sorted(found, key=lambda key: tuple((part is not None, part or "") for part in key))
    return [
        GroupProgressByRank(
            group=group,
            backend=backend,
            ranks={rank: _with_calls(run, group, rank, here) for rank, here in sorted(found[group, backend].items())},
        )
        for group, backend in order
    ]


def members(run: Run, group: str, seen: Iterable[int]) -> tuple[int, ...] | None:
    """Return the ranks of a group; None where they are not recorded.

    The group of all ranks contains at least the ranks `seen` in the dumps and logs, even beyond the known world size.
    """
    known = next((each for each in run.groups if each.name == group), None)
    if known is None:
        return None
    if known.ranks is not None:
        return known.ranks
    return (
        tuple(range(max([run.world_size or 0, *(rank + 1 for rank in seen)]))) if known.description == DEFAULT else None
    )


def size_is_known(run: Run, group: str) -> bool:
    """Return whether the size of a group is recorded; a log alone holds only the ranks that logged something."""
    return run.world_size is not None or any(each.name == group and each.ranks is not None for each in run.groups)


def collective_calls(run: Run, group: str | None, rank: int, dump: str | None) -> tuple[Ints, Ints]:
    """Return rows and sequence numbers of a group's collectives in a rank's dump, in order; no sends or receives."""
    timeline = run.ranks.get(rank)
    none = np.empty(0, np.int64), np.empty(0, np.int64)
    if timeline is None or group is None or group not in timeline.names or timeline.basis != "log":
        return none
    calls, names = timeline.collectives, timeline.names
    if {names[code] for code in timeline.recordings.source.tolist() if code >= 0} != {dump}:
        return none
    apart = [names.index(each) for each in POINT_TO_POINT if each in names]
    chosen = (calls.group == names.index(group)) & (calls.seq != NONE)
    chosen &= ~np.isin(calls.op, apart) & ~np.isin(calls.executed_op, apart)
    rows = np.flatnonzero(chosen)
    return rows, calls.seq[rows]


def _joined(before: GroupProgress, now: GroupProgress) -> GroupProgress:
    """Merge a dump and a log of one rank: the later numbers, and the pending call that timed out or is older."""
    numbers = [each for each in (before, now) if each.pending is not None]
    chosen = min(numbers, key=lambda each: (not each.timed_out, each.pending or 0, each.dump is None), default=now)
    return replace(
        chosen,
        entered=_later(before.entered, now.entered),
        completed=_later(before.completed, now.completed),
        called_at=chosen.called_at or (before.called_at if before.pending == now.pending else None),
        dump=before.dump or now.dump,
    )


def _with_calls(run: Run, group: str | None, rank: int, here: GroupProgress) -> GroupProgress:
    """Add the numbers of the recorded calls: a call is recorded before the library counts it as enqueued."""
    numbers = collective_calls(run, group, rank, here.dump)[1]
    shown = int(numbers.max()) if numbers.size else None
    return replace(here, entered=_later(_later(here.entered, here.pending), shown))


def _later(before: int | None, now: int | None) -> int | None:
    return now if before is None else before if now is None else max(before, now)
