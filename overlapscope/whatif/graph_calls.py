"""The collectives of one recorded step over all ranks: who took part, from when to when, on which link."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from overlapscope.timeline.columns import NONE, Flags, Ints
from overlapscope.timeline.intervals import Intervals, clip, length, union
from overlapscope.timeline.run import Run
from overlapscope.whatif.graph import P2P, Call
from overlapscope.whatif.recorded_link import own_times


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
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


@dataclass(frozen=True, slots=True, eq=False)
class StepCalls:
    """The calls of one step over all ranks, by number."""

    number: Ints
    begun_ns: Ints
    """When the last member began."""
    done_ns: Ints
    """When the transfer had ended; a member may see that later."""
    members: Sequence[tuple[int, ...]]
    first: Sequence[tuple[int, int]]
    """A member, and its row."""


def step_calls(seen: Mapping[int, Seen], *, on_host: bool) -> StepCalls:
    """Give the calls that the ranks saw; `on_host` where threads run them, which see their ends when they wake up."""
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
    return StepCalls(
        number=unique,
        begun_ns=done - least,
        done_ns=done,
        members=[
            tuple(sorted(ranks[at : at + many].tolist()))
            for at, many in zip(starts.tolist(), counts.tolist(), strict=True)
        ],
        first=[(int(ranks[at]), int(rows[at])) for at in starts.tolist()],
    )


def described(run: Run, calls: StepCalls) -> list[Call]:
    """Give what each call is; what it took of its link alone is not told yet."""
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


def sharing(found: list[Call], computing: Mapping[int, Intervals], calls: StepCalls) -> list[Call]:
    """Give the calls with the time of their link that each took, and the share of it beside compute."""
    busy: dict[tuple[int, ...], Intervals] = {}
    links: dict[str, list[int]] = {}
    for at, each in enumerate(found):
        links.setdefault(each.link, []).append(at)
        if each.ranks not in busy:
            busy[each.ranks] = union(*((computing[rank].starts, computing[rank].ends) for rank in each.ranks))
    for places in links.values():
        begun, done = calls.begun_ns[places], calls.done_ns[places]
        took = own_times(begun.astype(np.float64), done.astype(np.float64))
        for at, ns, start, end in zip(places, took.tolist(), begun.tolist(), done.tolist(), strict=True):
            beside = length(clip(busy[found[at].ranks], start, end)) / max(end - start, 1)
            found[at] = replace(found[at], own_ns=ns, recorded_ns=ns, beside=beside)
    return found
