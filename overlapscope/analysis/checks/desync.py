"""Find desynchronized ranks: which ranks wait in a collective, which are missing in it, which called something else.

Flight-recorder dumps and the log of c10d's watchdog are checked in the same way. Dumps are taken at slightly different
moments and hold only the newest calls, so a rank that is behind is only a snapshot: it is a warning only where a call
had been pending too long. Sends and receives are numbered separately on each rank and are not compared.
"""

from collections.abc import Mapping, Sequence, Set
from typing import Final, Literal

import msgspec

from overlapscope.analysis.checks.call_mismatch import mismatched
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.common.group_progress import (
    DUMP,
    GroupProgress,
    GroupProgressByRank,
    collective_calls,
    group_progress,
    members,
    size_is_known,
)
from overlapscope.analysis.common.wording import (
    MAX_LISTED,
    call_label,
    first_and_count,
    first_of,
    group_label,
    id_part,
    rank_list,
)
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import Run

LONG_PENDING_NS: Final = 30_000_000_000
"""A collective that is still pending while its rank entered others for this long is stuck, not just running."""
SECOND_NS: Final = 1_000_000_000


def desync(run: Run) -> list[Finding]:
    """Find groups whose ranks wait in different collectives or called different ones, and ranks without a dump."""
    findings: list[Finding] = []
    found = group_progress(run)
    known = [rank for each in found for rank in each.ranks]
    for each in found:
        if each.group is None:
            findings += _apart(None, "a group that the log does not name", each.ranks, certain=False)
            continue
        inside = members(run, each.group, known)
        if inside is not None:
            expected = set(inside)
            ranks = {rank: standing for rank, standing in each.ranks.items() if rank in expected}
            findings += _in_group(run, each.group, ranks, expected)
    return findings + _without_dump(run, found, worrying=any(each.severity == "warning" for each in findings))


def _in_group(run: Run, group: str, ranks: Mapping[int, GroupProgress], expected: Set[int]) -> list[Finding]:
    label = group_label(run, group)
    mismatch = mismatched(run, group, label, ranks)
    behind = _apart(group, label, ranks, certain=True) or _behind(run, group, label, ranks)
    return mismatch + (behind or ([] if mismatch else _stuck(run, group, label, ranks, expected)))


def _apart(group: str | None, label: str, ranks: Mapping[int, GroupProgress], *, certain: bool) -> list[Finding]:
    """Find ranks of one group that timed out in different collectives."""
    late = {rank: each for rank, each in ranks.items() if each.timed_out and each.pending is not None}
    by_number: dict[int, list[int]] = {}
    for rank, each in late.items():
        by_number.setdefault(each.pending or 0, []).append(rank)
    if len(by_number) < 2:
        return []
    places = [f"{rank_list(by_number[seq])} in {call_label(late[by_number[seq][0]])}" for seq in sorted(by_number)]
    doubt = "" if certain else ", if they are of one group"
    return [
        Finding(
            id=f"desync:apart:{id_part(group)}",
            severity="warning" if certain else "info",
            title=f"ranks of {label} timed out in different collectives{doubt}: {first_and_count(places, 4, '; ')}",
            evidence={"group": group, "waiting_in": first_of({str(rank): late[rank].pending for rank in sorted(late)})},
            known_from="log",
        )
    ]


class _BlockedCollective(msgspec.Struct, frozen=True, kw_only=True):
    """The first collective of a group in which ranks wait."""

    seq: int
    waiting: Mapping[int, GroupProgress]
    """All waiting ranks, in this collective or a later one."""
    call: str
    called_at: str
    """Where in the code the first of its ranks called it, as a remark for a title; empty where not known."""
    certain: str | None
    """Why it is known to be stuck, and not just running; None where it is not known."""


def _awaited(run: Run, group: str, ranks: Mapping[int, GroupProgress]) -> _BlockedCollective | None:
    """Return the first collective of a group in which ranks wait; None where no rank waits."""
    waiting = {rank: each for rank, each in ranks.items() if each.pending is not None}
    if not waiting:
        return None
    seq = min(each.pending or 0 for each in waiting.values())
    first = waiting[min(rank for rank, each in waiting.items() if each.pending == seq)]
    return _BlockedCollective(
        seq=seq,
        waiting=waiting,
        call=call_label(first),
        called_at=f" (called at {first.called_at})" if first.called_at else "",
        certain=_why_stuck(run, group, waiting, seq),
    )


def _behind(run: Run, group: str, label: str, ranks: Mapping[int, GroupProgress]) -> list[Finding]:
    """Find ranks that had not entered a collective in which other ranks waited."""
    awaited = _awaited(run, group, ranks)
    if awaited is None:
        return []
    seq, certain = awaited.seq, awaited.certain
    missing = {rank: each for rank, each in ranks.items() if each.entered is not None and each.entered < seq}
    if certain is None:
        # A rank that has not entered a collective that others completed was only dumped earlier than they were.
        done = max((each.completed or 0 for each in ranks.values()), default=0)
        missing = {rank: each for rank, each in missing.items() if (each.entered or 0) >= done}
    if not missing:
        return []
    inside = [rank for rank, each in ranks.items() if each.entered is not None and each.entered >= seq]
    # A log counts a call as enqueued once the library accepted it; a call that hangs inside the library is not counted.
    verb = "entered" if all(each.dump is not None for each in missing.values()) else "enqueued"
    when = "" if certain else "; dumps taken at different moments can also look like this"
    return [
        Finding(
            id=f"desync:missing:{id_part(group)}:{seq}",
            severity="warning" if certain else "info",
            title=f"{rank_list(missing)} had not {verb} {awaited.call} of {label}, "
            f"in which {rank_list(inside)} waited{awaited.called_at}{when}",
            evidence={
                "group": group,
                "seq": seq,
                "missing_ranks": sorted(missing)[:MAX_LISTED],
                "missing": len(missing),
                "waiting_ranks": sorted(inside)[:MAX_LISTED],
                "last_entered": first_of(
                    {str(rank): _last(run, group, rank, ranks[rank]) for rank in [*sorted(missing), *sorted(inside)]}
                ),
                "stuck_because": certain,
            },
            known_from="log",
        )
    ]


def _last(run: Run, group: str, rank: int, standing: GroupProgress) -> str:
    """Return the collective that a rank entered last, with its operation where its dump still holds it."""
    rows, numbers = collective_calls(run, group, rank, standing.dump)
    rows = rows[numbers == standing.entered]
    timeline = run.ranks.get(rank)
    op = timeline.names[int(timeline.collectives.op[rows[0]])] if timeline is not None and rows.size else ""
    return f"{op} #{standing.entered}".strip()


def _stuck(run: Run, group: str, label: str, ranks: Mapping[int, GroupProgress], expected: Set[int]) -> list[Finding]:
    """Find a collective that every known rank had entered and that did not end."""
    awaited = _awaited(run, group, ranks)
    if awaited is None:
        return []
    seq, waiting, certain = awaited.seq, awaited.waiting, awaited.certain
    known = [rank for rank, each in ranks.items() if each.entered is not None]
    if certain is None or not all((ranks[rank].entered or 0) >= seq for rank in known):
        return []
    call, called = awaited.call, awaited.called_at
    unknown = sorted(expected - set(known))
    if not unknown and not size_is_known(run, group):
        title = f"{call} of {label} did not end on {rank_list(waiting)}{called}; other ranks may be missing in it"
    elif unknown:
        title = (
            f"{call} of {label} did not end on {rank_list(waiting)}{called}; nothing is known of {rank_list(unknown)}"
        )
    else:
        title = (
            f"{call} of {label} did not end, though all {len(known)} ranks had entered it{called}: "
            "look for a hung device or link"
        )
    return [
        Finding(
            id=f"desync:stuck:{id_part(group)}:{seq}",
            severity="warning",
            title=title,
            evidence={
                "group": group,
                "seq": seq,
                "waiting_ranks": sorted(waiting)[:MAX_LISTED],
                "unknown_ranks": unknown[:MAX_LISTED],
                "stuck_because": certain,
            },
            known_from="log",
        )
    ]


def _why_stuck(run: Run, group: str, waiting: Mapping[int, GroupProgress], seq: int) -> str | None:
    """Return why a collective was stuck, and not just running, when the ranks were dumped; None where not known."""
    late = [each.timeout_ns for each in waiting.values() if each.timed_out and each.pending == seq]
    if late:
        limits = [limit for limit in late if limit is not None]
        return f"timed out after {max(limits) / SECOND_NS:g} s" if limits else "timed out"
    held = max((_pending_for(run, group, rank, each, seq) for rank, each in waiting.items()), default=0)
    return f"pending while other calls went on for {held / SECOND_NS:.0f} s" if held >= LONG_PENDING_NS else None


def _pending_for(run: Run, group: str, rank: int, standing: GroupProgress, seq: int) -> int:
    """Return for how many nanoseconds after a call its rank still entered others; 0 where it is not known."""
    rows, numbers = collective_calls(run, group, rank, standing.dump)
    if rows.size == 0:
        return 0
    times = run.ranks[rank].collectives.launch_ns
    begun = times[rows[numbers == seq]]
    begun = begun[begun != NONE]
    return int(times.max() - begun.min()) if begun.size else 0


def _without_dump(run: Run, found: Sequence[GroupProgressByRank], *, worrying: bool) -> list[Finding]:
    """Return a finding for the ranks without a dump, where other ranks have one."""
    dumped = {rank for source in run.sources if source.format == DUMP for rank in source.ranks}
    if not dumped:
        return []
    expected = set(range(run.world_size or 0))
    used = {each.group for each in found}
    for group in run.groups:
        if group.ranks is not None and group.name in used and dumped & set(group.ranks):
            expected |= set(group.ranks)
    lacking = sorted(expected - dumped)
    if not lacking:
        return []
    severity: Literal["info", "warning"] = "warning" if worrying else "info"
    return [
        Finding(
            id="no_dump",
            severity=severity,
            title=f"no dump of {rank_list(lacking)}: their progress is not known",
            evidence={"ranks": lacking[:MAX_LISTED], "missing": len(lacking), "dumped": len(dumped)},
            known_from="log",
        )
    ]
