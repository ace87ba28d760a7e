"""Recordings of jobs whose truth is known: programmes timed by longest paths, which knows no events and no rates."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.timeline.columns import COMM, COMPUTE, DEVICE, NONE
from overlapscope.timeline.run import Group, RankTimeline, Run
from overlapscope.whatif.replay.replay import Gap, Instruction, Launch, Wait, Work
from tests.support.builders import EPOCH_NS
from tests.support.rank_rows import Row, rank_timeline

UNIT_NS = 50_000
STEPS = 4


class MadeCall(msgspec.Struct, frozen=True, kw_only=True):
    """A collective, or a message from the first of its ranks to the second; one at a time on each rank of a group."""

    units: float
    op: str = "all_reduce"
    ranks: tuple[int, ...] = (0, 1)
    bytes: int = 1 << 20
    module: str | None = None
    phase: str | None = None
    group: str = "0"


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """One step; times in units."""

    programmes: Mapping[int, Sequence[Instruction]]
    calls: Sequence[MadeCall]


class _Times(msgspec.Struct):
    launched: dict[tuple[int, int], float]
    begun: dict[tuple[int, int], float]
    ended: dict[int, float]
    computed: dict[int, list[tuple[float, float]]]
    end: dict[int, float]


def timed(made: Made) -> _Times:
    """Find all times by raising them until nothing changes: no time falls, as all are longest paths."""
    ended = dict.fromkeys(range(len(made.calls)), 0.0)
    while True:
        launched: dict[tuple[int, int], float] = {}
        computed: dict[int, list[tuple[float, float]]] = {rank: [] for rank in made.programmes}
        order: dict[tuple[int, str], list[int]] = {}
        end = {}
        for rank, programme in made.programmes.items():
            now = 0.0
            for each in programme:
                if isinstance(each, Work):
                    computed[rank].append((now, now + each.ns))
                if isinstance(each, Work | Gap):
                    now += each.ns
                elif isinstance(each, Launch):
                    launched[rank, each.collective] = now
                    order.setdefault((rank, _lane(made.calls[each.collective])), []).append(each.collective)
                else:
                    now = max(now, ended[each.collective])
            end[rank] = now
        begun = {
            (rank, number): max(launched[rank, number], ended[queue[at - 1]] if at else 0.0)
            for (rank, _), queue in order.items()
            for at, number in enumerate(queue)
        }
        later = {
            number: max((begun[rank, number] for rank in call.ranks if (rank, number) in begun), default=0.0)
            + call.units
            for number, call in enumerate(made.calls)
        }
        if later == ended:
            return _Times(launched, begun, ended, computed, end)
        ended = later


def _lane(call: MadeCall) -> str:
    return f"{call.group}{call.ranks}" if call.op == "message" else call.group


def step_ns(made: Made) -> float:
    """Return the true step."""
    return max(timed(made).end.values()) * UNIT_NS


def faster(made: Made, speed: float) -> Made:
    """Return the job over faster links."""
    return replace(made, calls=[replace(each, units=each.units / speed) for each in made.calls])


def recorded(made: Made, *, shift_ns: Sequence[int] = (), on_host: bool = False) -> Run:
    """Return the recording of some like steps on devices, by a profiler, or of threads, by our own capture."""
    times = timed(made)
    ranks = {
        rank: _timeline(made, times, rank, shift_ns[rank] if rank < len(shift_ns) else 0) for rank in made.programmes
    }
    if on_host:
        ranks = {rank: _on_host(made, times, each) for rank, each in ranks.items()}
    members = {call.group: tuple(sorted(made.programmes)) for call in made.calls}
    groups = tuple(Group(name=name, size=len(each), ranks=each) for name, each in members.items())
    return Run(world_size=len(ranks), ranks=ranks, groups=groups)


def _timeline(made: Made, times: _Times, rank: int, shift: int) -> RankTimeline:
    period = round(max(times.end.values()) * UNIT_NS) + 50 * UNIT_NS
    first = EPOCH_NS + shift
    rows: dict[str, list[dict[str, Any]]] = {"spans": [], "collectives": [], "steps": []}
    for at in range(STEPS):
        start_ns = first + at * period

        def moments(start: float, end: float, launch: float = 0.0, start_ns: int = start_ns) -> Row:
            units = {"start_ns": start, "end_ns": end, "launch_ns": launch}
            return {name: start_ns + round(each * UNIT_NS) for name, each in units.items()}

        rows["steps"].append({**moments(-11.0, times.end[rank]), "step": 2 * at})
        host, work = -10.0, iter(times.computed[rank])
        for each in made.programmes[rank]:
            host += 0.001
            if isinstance(each, Work):
                start, end = next(work)
                span: Row = {**moments(start, end, min(host, start)), "lane": 0}
            elif isinstance(each, Launch):
                number = each.collective
                begun, launched = times.begun[rank, number], times.launched[rank, number]
                when = moments(begun, times.ended[number], min(host, launched))
                span = {**when, "lane": 1, "kind": COMM, "collective": len(rows["collectives"])}
                seq = number + at * len(made.calls)
                rows["collectives"].append({**_call(made.calls[number], rank, seq), **when, "step": 2 * at})
            else:
                continue
            rows["spans"].append({**span, "name": "kernel", "step": 2 * at})
    return rank_timeline(
        rank,
        **rows,
        recordings=[{"start_ns": first - 20 * UNIT_NS, "end_ns": first + STEPS * period}],
        lanes=[{"kind": DEVICE, "label": "stream 7"}, {"kind": DEVICE, "label": "stream 20"}],
        recorded={"settings": {"host": f"host{rank}" if shift else "host"}},
    )


def _call(call: MadeCall, rank: int, seq: int) -> Row:
    message = {"op": "send" if call.ranks[0] == rank else "recv", "peer": call.ranks[call.ranks[0] == rank]}
    return {
        "group": call.group, "dtype": "float32", "elements": call.bytes // 4, "bytes": call.bytes,
        "group_size": len(call.ranks), "phase": call.phase, "module": call.module,
        **(message if call.op == "message" else {"op": call.op, "seq": seq}),
    }  # fmt: skip


def _on_host(made: Made, times: _Times, seen: RankTimeline) -> RankTimeline:
    """Return the same of a thread that computes, and launches where it has come to."""
    order = [each.collective for each in made.programmes[seen.rank] if isinstance(each, Launch)]
    launched = np.array([times.launched[seen.rank, number] for number in order] * STEPS) * UNIT_NS
    period = round(max(times.end.values()) * UNIT_NS) + 50 * UNIT_NS
    begin = EPOCH_NS + np.repeat(np.arange(STEPS), len(order)) * period
    called = (begin + np.rint(launched)).astype(np.int64)
    spans = replace(seen.spans, launch_ns=np.where(seen.spans.kind == COMPUTE, NONE, seen.spans.launch_ns))
    steps = replace(seen.steps, start_ns=EPOCH_NS + np.arange(STEPS) * period)
    calls = replace(seen.collectives, launch_ns=called, start_ns=called)
    return replace(seen, basis="events", has_device=False, spans=spans, steps=steps, collectives=calls)


def fsdp(
    *,
    modules: int = 6,
    forward: float = 20.0,
    backward: float = 40.0,
    gather: float = 15.0,
    scatter: float = 15.0,
    reshard: bool = True,
    ahead: int = 0,
    backward_ahead: int = 1,
    many: int = 1,
    slow: float = 1.0,
    at_once: bool = False,
) -> Made:
    """Return a step of FSDP2 on two ranks; rank 1 computes `slow` times as long; `many` modules share a gather.

    With `at_once` whatever is launched is waited for there, as FSDP2 does over gloo by default.
    """
    calls: list[MadeCall] = []
    units = [list(range(at, min(at + many, modules))) for at in range(0, modules, many)]

    def call(op: str, unit: list[int], phase: str, took: float) -> int:
        calls.append(MadeCall(op=op, units=took * len(unit), bytes=len(unit) << 20, module=f"m.{unit[0]}", phase=phase))
        return len(calls) - 1

    gathers = [call("all_gather", unit, "forward", gather) for unit in units]
    again = [call("all_gather", unit, "backward", gather) for unit in units[::-1]] if reshard else []
    scatters = [call("reduce_scatter", unit, "backward", scatter) for unit in units[::-1]]
    programmes = {}
    for rank, factor in ((0, 1.0), (1, slow)):
        mine: list[Instruction] = []
        for turn, depth in ((gathers, ahead), (again, backward_ahead)):
            forwards = turn is gathers
            launched: set[int] = set()
            for at, unit in enumerate(units if forwards else units[::-1]):
                for number in turn[at : at + 1]:
                    if number not in launched:
                        mine.append(Launch(number))
                        launched.add(number)
                    mine.append(Wait(number))
                    for later in turn[at + 1 : at + 1 + depth]:
                        if later not in launched:
                            mine.append(Launch(later))
                            launched.add(later)
                mine += [Work((forward if forwards else backward) * factor)] * len(unit)
                if not forwards:
                    mine += [Wait(scatters[at - 1])] if at else []
                    mine.append(Launch(scatters[at]))
        mine += [Wait(scatters[-1]), Work(10.0)]
        if at_once:
            mine = [
                one for each in mine if not isinstance(each, Wait)
                for one in ([each, Wait(each.collective)] if isinstance(each, Launch) else [each])
            ]  # fmt: skip
        programmes[rank] = mine
    return Made(programmes=programmes, calls=calls)
