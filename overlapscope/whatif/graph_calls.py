"""The collectives of one recorded step over all ranks: who took part, from when to when, on which link."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.timeline.columns import NONE, Flags, Floats, Ints
from overlapscope.timeline.intervals import Intervals, clip, length, union
from overlapscope.timeline.run import Run
from overlapscope.whatif.graph import P2P, Call
from overlapscope.whatif.link_fit import own_times

CallKind = tuple[str, str, int]
"""Link, operation and bytes of a call: calls of one kind take about as long."""
Kind = TypeVar("Kind")


class Seen(msgspec.Struct, frozen=True, eq=False):
    """The calls of one rank in one step. Times are on the clock that all ranks share."""

    zero_ns: int
    """What the rank's own clock shows at its nought."""
    window: tuple[int, int]

    rows: Ints
    call: Ints
    launch_ns: Ints
    begin_ns: Ints
    end_ns: Ints
    message: Flags
    """Whether each is one from rank to rank."""


class StepCalls(msgspec.Struct, frozen=True, eq=False):
    """The calls of one step over all ranks, by number."""

    number: Ints
    begun_ns: Ints
    """When the last member began."""
    done_ns: Ints
    """When the transfer had ended for the first; a member may see that later."""
    last_ns: Ints
    """When the last member saw it end, where threads run it; else as for the first."""
    late_ns: Sequence[Mapping[int, float]]
    """By how much later than the first each of the others saw it end, where threads run it."""
    members: Sequence[tuple[int, ...]]
    first: Sequence[tuple[int, int]]
    """A member, and its row."""


def step_calls(seen: Mapping[int, Seen], *, on_host: bool) -> StepCalls:
    """Return the calls that the ranks saw; `on_host` where threads run them, which see their ends when they wake up."""
    number = np.concatenate([each.call for each in seen.values()])
    of_rank = np.concatenate([np.full(each.call.size, rank, np.int64) for rank, each in seen.items()])
    begin, end = (np.concatenate([getattr(each, name) for each in seen.values()]) for name in ("begin_ns", "end_ns"))
    row = np.concatenate([each.rows for each in seen.values()])
    order = np.lexsort((end, number))
    unique, starts, counts = np.unique(number[order], return_index=True, return_counts=True)
    # The last member waits for nobody: the least duration is the transfer, whatever the clocks show.
    least = np.minimum.reduceat((end - begin)[order], starts) if unique.size else number
    seen_early = np.concatenate([each.message for each in seen.values()])[order][starts] | on_host
    latest = np.maximum.reduceat(begin[order], starts) if unique.size else number
    ended = end[order][starts + (counts - 1) // 2]
    # Threads and messages: who began last may still be the first to see the end, as others wake up later.
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
    """Return what each call is; what it took of its link alone is not told yet."""
    found = []
    for members, (rank, row), begun, done in zip(
        calls.members, calls.first, calls.begun_ns.tolist(), calls.done_ns.tolist(), strict=True
    ):
        table, names = run.ranks[rank].collectives, run.ranks[rank].names

        def named(code: int, names: Sequence[str] = names) -> str | None:
            return names[code] if code >= 0 else None

        op = names[int(table.op[row])]
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
    """Return what a call of each kind usually takes with its link for itself, over all steps, where it ever had."""
    found: dict[CallKind, list[float]] = {}
    for told, calls in steps:
        for places in _by_link(told).values():
            kinds = [_kind(told[at]) for at in places]
            for kind, times in alone_times(kinds, calls.begun_ns[places], calls.last_ns[places]).items():
                found.setdefault(kind, []).extend(times)
    return {kind: float(np.median(times)) for kind, times in found.items()}


def sharing(
    told: Sequence[Call], computing: Mapping[int, Intervals], calls: StepCalls, usual: Mapping[CallKind, float]
) -> list[Call]:
    """Return the calls with the time of their link that each took, and the share of it beside compute."""
    found = list(told)
    busy = {
        ranks: union(*((computing[rank].starts, computing[rank].ends) for rank in ranks))
        for ranks in {each.ranks for each in told}
    }
    for places in _by_link(told).values():
        begun, last = calls.begun_ns[places], calls.last_ns[places]
        took = times_of_link([_kind(told[at]) for at in places], begun, last, usual)
        for at, ns, start, end in zip(places, took.tolist(), begun.tolist(), last.tolist(), strict=True):
            beside = length(clip(busy[told[at].ranks], start, end)) / max(end - start, 1)
            pace = ns / max(end - start, 1)
            own = pace * (calls.done_ns[at] - start)
            late = {rank: pace * each for rank, each in calls.late_ns[at].items()}
            found[at] = replace(told[at], own_ns=own, recorded_ns=own, beside=beside, late_ns=late)
    return found


def _by_link(told: Sequence[Call]) -> dict[str, list[int]]:
    links: dict[str, list[int]] = {}
    for at, each in enumerate(told):
        links.setdefault(each.link, []).append(at)
    return links


def _kind(call: Call) -> CallKind:
    return call.link, call.op, call.bytes


def alone_times(kinds: Sequence[Kind], begun_ns: Ints, done_ns: Ints) -> dict[Kind, list[float]]:
    """Return for each kind of call the times of those that had their link for themselves."""
    found: dict[Kind, list[float]] = {}
    period = _periods(begun_ns, done_ns)
    many = np.bincount(period, minlength=1)
    for at in np.flatnonzero(many[period] == 1).tolist():
        if done_ns[at] > begun_ns[at]:
            found.setdefault(kinds[at], []).append(float(done_ns[at] - begun_ns[at]))
    return found


def times_of_link(kinds: Sequence[Kind], begun_ns: Ints, done_ns: Ints, alone_ns: Mapping[Kind, float]) -> Floats:
    """Return the time of their link that calls took for themselves; they sum to the time that it was busy.

    `alone_ns` is what calls of a kind take with their link for themselves, where that was seen.
    """
    own = own_times(begun_ns.astype(np.float64), done_ns.astype(np.float64))
    period = _periods(begun_ns, done_ns)
    order = np.argsort(period, kind="stable")
    for mine in np.split(order, np.flatnonzero(np.diff(period[order])) + 1):
        if mine.size > 1:
            usual = np.array([alone_ns.get(kinds[at], 0.0) for at in mine.tolist()])
            if usual.all():
                own[mine] = own[mine].sum() * usual / usual.sum()
    return own


def _periods(begun_ns: Ints, done_ns: Ints) -> Ints:
    """Number the stretches in which the link was busy without a break; calls of one stretch share its number."""
    order = np.argsort(begun_ns, kind="stable")
    reached = np.maximum.accumulate(done_ns[order])
    new = np.concatenate(([True], begun_ns[order][1:] >= reached[:-1])) if order.size else np.empty(0, np.bool_)
    period = np.empty(order.size, np.int64)
    period[order] = np.cumsum(new) - 1
    return period
