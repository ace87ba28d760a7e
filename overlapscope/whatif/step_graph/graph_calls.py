"""The collectives of one recorded step over all ranks: members, times, link, and link time.

Where calls share a link at once, their link times follow the times of calls of the same kind that had the link alone
(`times_of_link`): a link is not shared fairly, because a small transfer that runs goes on at its pace while a large one
that joins it is delayed.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.timeline.columns import NONE, Flags, Floats, Ints
from overlapscope.timeline.intervals import Intervals, clip, length, union
from overlapscope.timeline.run import Run
from overlapscope.whatif.cost.link_fit import own_times
from overlapscope.whatif.replay.graph import P2P, Call

CallKind = tuple[str, str, int]
"""Link, operation and bytes of a call: calls of one kind take about the same time."""
Kind = TypeVar("Kind")


class RankStepCalls(msgspec.Struct, frozen=True, eq=False):
    """The calls of one rank in one step. Times are on the clock that all ranks share; one entry a call."""

    zero_ns: int
    """Time of the rank's own clock at time 0 of the shared clock."""
    window: tuple[int, int]
    rows: Ints
    call: Ints
    launch_ns: Ints
    begin_ns: Ints
    end_ns: Ints
    message: Flags
    """Whether the call is a point-to-point message."""


class StepCalls(msgspec.Struct, frozen=True, eq=False):
    """The calls of one step over all ranks; one entry a call, by call number."""

    number: Ints
    begun_ns: Ints
    """When the last member began."""
    done_ns: Ints
    """When the transfer had ended for the first member; others may see its end later."""
    last_ns: Ints
    """When the last member saw it end, where threads run it; else the same as `done_ns`."""
    late_ns: Sequence[Mapping[int, float]]
    """By rank, how much later than the first member it saw the end, where threads run it."""
    members: Sequence[tuple[int, ...]]
    first: Sequence[tuple[int, int]]
    """One member and its row in that rank's `Collectives`."""


def step_calls(seen: Mapping[int, RankStepCalls], *, on_host: bool) -> StepCalls:
    """Combine the calls of all ranks; `on_host` where threads run them, which see the end only when they wake up."""
    number = np.concatenate([each.call for each in seen.values()])
    of_rank = np.concatenate([np.full(each.call.size, rank, np.int64) for rank, each in seen.items()])
    begin, end = (np.concatenate([getattr(each, name) for each in seen.values()]) for name in ("begin_ns", "end_ns"))
    row = np.concatenate([each.rows for each in seen.values()])
    order = np.lexsort((end, number))
    unique, starts, counts = np.unique(number[order], return_index=True, return_counts=True)
    # The last member waits for no other rank: the least duration is the transfer, even if clocks are off.
    least = np.minimum.reduceat((end - begin)[order], starts) if unique.size else number
    seen_early = np.concatenate([each.message for each in seen.values()])[order][starts] | on_host
    latest = np.maximum.reduceat(begin[order], starts) if unique.size else number
    ended = end[order][starts + (counts - 1) // 2]
    # Threads and messages: the member that began last may be the first to see the end, as others wake up later.
    apart = ended - latest
    least = np.where(seen_early & (apart > 0), np.minimum(apart, least), least)
    done = np.minimum(latest + least, ended)
    ranks, rows = of_rank[order], row[order]
    later = np.where(on_host, np.maximum(end[order] - np.repeat(done, counts), 0), 0)
    return StepCalls(
        number=unique,
        begun_ns=done - least,
        done_ns=done,
        last_ns=done + (np.maximum.reduceat(later, starts) if unique.size else number),
        late_ns=[
            {rank: float(ns) for rank, ns in zip(*pair, strict=True) if ns}
            for pair in zip(_parted(ranks, starts, counts), _parted(later, starts, counts), strict=True)
        ],
        members=[tuple(sorted(each)) for each in _parted(ranks, starts, counts)],
        first=[(int(ranks[at]), int(rows[at])) for at in starts.tolist()],
    )


def _parted(values: Ints, starts: Ints, counts: Ints) -> list[list[int]]:
    return [values[at : at + many].tolist() for at, many in zip(starts.tolist(), counts.tolist(), strict=True)]


def described(run: Run, calls: StepCalls) -> list[Call]:
    """Return a `Call` for each call; its link time is not separated from calls that ran at once yet (see `sharing`)."""
    found = []
    for members, (rank, row), begun, done in zip(
        calls.members, calls.first, calls.begun_ns.tolist(), calls.done_ns.tolist(), strict=True
    ):
        table, named = run.ranks[rank].collectives, run.ranks[rank].name
        op = run.ranks[rank].names[int(table.op[row])]
        group = named(int(table.group[row])) or ""
        where = f"{group} {members[0]}" if len(members) > 1 else f"{group} {rank}"
        if op in P2P:
            peer = int(table.peer[row])
            sender = rank if op == "send" else next((each for each in members if each != rank), peer)
            where = f"{where} from {sender}" if op in ("send", "recv") else f"{where} {peer}"
        found.append(
            Call(
                op="message" if op in P2P else op,
                bytes=max(int(table.bytes[row]), 0) if table.bytes[row] != NONE else 0,
                dtype=named(int(table.dtype[row])),
                group=group,
                ranks=members,
                group_size=max(int(table.group_size[row]), len(members)),
                own_ns=float(done - begun),
                recorded_ns=float(done - begun),
                beside=0.0,
                stream=where if op in P2P or not run.ranks[rank].has_device else group,
                link=where,
                dimension=named(int(table.dimension[row])),
                phase=named(int(table.phase[row])),
                module=named(int(table.module[row])),
            )
        )
    return found


def usual_alone(steps: Sequence[tuple[Sequence[Call], StepCalls]]) -> dict[CallKind, float]:
    """Return the median time in ns of each kind of call that had its link alone, over all steps."""
    found: dict[CallKind, list[float]] = {}
    for made, calls in steps:
        for places in _by_link(made).values():
            kinds = [_kind(made[at]) for at in places]
            for kind, times in alone_times(kinds, calls.begun_ns[places], calls.last_ns[places]).items():
                found.setdefault(kind, []).extend(times)
    return {kind: float(np.median(times)) for kind, times in found.items()}


def sharing(
    made: Sequence[Call], computing: Mapping[int, Intervals], calls: StepCalls, usual: Mapping[CallKind, float]
) -> list[Call]:
    """Return the calls with their link times, and the share of it beside compute.

    `computing` is by rank when it computed; `usual` is the result of `usual_alone`.
    """
    found = list(made)
    busy = {
        ranks: union(*((computing[rank].starts, computing[rank].ends) for rank in ranks))
        for ranks in {each.ranks for each in made}
    }
    for places in _by_link(made).values():
        begun, last = calls.begun_ns[places], calls.last_ns[places]
        took = times_of_link([_kind(made[at]) for at in places], begun, last, usual)
        for at, ns, start, end in zip(places, took.tolist(), begun.tolist(), last.tolist(), strict=True):
            beside = length(clip(busy[made[at].ranks], start, end)) / max(end - start, 1)
            pace = ns / max(end - start, 1)
            own = pace * (calls.done_ns[at] - start)
            late = {rank: pace * each for rank, each in calls.late_ns[at].items()}
            found[at] = replace(made[at], own_ns=own, recorded_ns=own, beside=beside, late_ns=late)
    return found


def _by_link(made: Sequence[Call]) -> dict[str, list[int]]:
    links: dict[str, list[int]] = {}
    for at, each in enumerate(made):
        links.setdefault(each.link, []).append(at)
    return links


def _kind(call: Call) -> CallKind:
    return call.link, call.op, call.bytes


def alone_times(kinds: Sequence[Kind], begun_ns: Ints, done_ns: Ints) -> dict[Kind, list[float]]:
    """Return for each kind of call the times in ns of the calls that had their link alone."""
    found: dict[Kind, list[float]] = {}
    period = _periods(begun_ns, done_ns)
    many = np.bincount(period, minlength=1)
    for at in np.flatnonzero(many[period] == 1).tolist():
        if done_ns[at] > begun_ns[at]:
            found.setdefault(kinds[at], []).append(float(done_ns[at] - begun_ns[at]))
    return found


def times_of_link(kinds: Sequence[Kind], begun_ns: Ints, done_ns: Ints, alone_ns: Mapping[Kind, float]) -> Floats:
    """Return the link time of each call; they add up to the time that the link was busy.

    Calls that ran at once share the busy period in proportion to `alone_ns`, the time of a call of each kind that had
    the link alone; equally where that was not recorded for all of them.
    """
    own = own_times(begun_ns.astype(np.float64), done_ns.astype(np.float64))
    period = _periods(begun_ns, done_ns)
    order = np.argsort(period, kind="stable")
    for places in np.split(order, np.flatnonzero(np.diff(period[order])) + 1):
        if places.size > 1:
            usual = np.array([alone_ns.get(kinds[at], 0.0) for at in places.tolist()])
            if usual.all():
                own[places] = own[places].sum() * usual / usual.sum()
    return own


def _periods(begun_ns: Ints, done_ns: Ints) -> Ints:
    """Return for each call the number of the uninterrupted busy period of the link that it lies in."""
    order = np.argsort(begun_ns, kind="stable")
    reached = np.maximum.accumulate(done_ns[order])
    new = np.concatenate(([True], begun_ns[order][1:] >= reached[:-1])) if order.size else np.empty(0, np.bool_)
    period = np.empty(order.size, np.int64)
    period[order] = np.cumsum(new) - 1
    return period
