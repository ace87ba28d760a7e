"""What the recording would have gained without a loss: the dependency graph of all ranks, replayed without it."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.advice.copies.copy_rows import CopyRows, copy_rows, to_host_rows
from overlapscope.advice.copies.stream_copies import AWAITED, HOLDS_HOST, ROWS, TO_HOST_ALONE
from overlapscope.advice.job_kind import JobKind, job_kind
from overlapscope.advice.losses.blocked_host import (
    AVOIDED,
    BY_WORKERS,
    LOST_NS,
    VERSIONED,
    instead_of,
    named_waits,
    not_at_once,
)
from overlapscope.advice.losses.host_time import LEAST_IDLE, worth_naming
from overlapscope.advice.losses.largest_loss import USUAL
from overlapscope.advice.losses.needed_copies import needed_waits
from overlapscope.advice.replayed_pauses import (
    HOST_TIME,
    host_ns,
    naming_each_other,
    paused,
    shortened_ns,
    steps_after_waits,
)
from overlapscope.advice.rule_input import MOST_RANKS, VERIFY, counted_loss_ns, ms
from overlapscope.analysis.checks.hosts.host_pauses import WAIT_OR_NOT
from overlapscope.analysis.common.job_identity import fewest_ranks
from overlapscope.analysis.common.loading import loads_data
from overlapscope.analysis.common.wording import rank_list
from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.cross_rank.unseen_members import may_not_be_replayed
from overlapscope.analysis.graph.bounds import Bounds, whole_bounds
from overlapscope.analysis.graph.building.host_calls import ALLOCATES, CALL_TAKES_NS
from overlapscope.analysis.graph.built_graphs import BuiltGraphs
from overlapscope.analysis.graph.chains import shift_ns
from overlapscope.analysis.graph.host_losses import calling_operation
from overlapscope.analysis.graph.idle import READ_WITHIN_NS
from overlapscope.analysis.graph.model import (
    ALLOCATE,
    CALL,
    HOST_STRETCH,
    POLL,
    RUN_COPY,
    SYNC,
    Graph,
    RankPart,
)
from overlapscope.analysis.graph.read_backs import read_backs
from overlapscope.analysis.graph.scenarios import NEVER, Change
from overlapscope.analysis.graph.self_test import self_test
from overlapscope.analysis.rank_summary import RankSummary
from overlapscope.analysis.result import GAIN_AT_MOST, GAIN_COUNTS, Recommendation
from overlapscope.timeline.columns import OPERATION, Flags, Ints, size
from overlapscope.timeline.intervals import BusyTime, Intervals, union
from overlapscope.timeline.lazy_host_spans import select_host_spans, without_functions
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import is_one_of
from overlapscope.timeline.run import RankTimeline, Run

Ranks = Mapping[int, RankTimeline]
MOSTLY: Final = 0.5
"""A fetch before the first call is one as others are if it takes this share of the longest. A choice."""
REPLAYED: Final = "a replay of the dependency graph without it"
OPTIMISTIC: Final = "that nothing takes its place which never bound in this recording: the gain is an upper bound"
ALONE: Final = "that {ranks} alone change{s}: if ranks that were not recorded lose as much, the gain may be larger"
MORE: Final = (
    "that other host time passes beside the device, too, once the host runs ahead: a replay without these waits gains "
    "more than what was idle because of them"
)
ONE_AHEAD: Final = (
    "that hosts run ahead without limit: a server's is one step ahead at most, as the next step needs the tokens of "
    "this one, and gains no more"
)
SLOW_STILL: Final = (
    "that the host launches all else as slowly as before: without these waits part of the idle time stays"
)
FIRST_FETCH: Final = (
    "that the first step, whose fetch comes before the first call, loses as much: the mean is of {steps} of {of} steps"
)
TOO_EARLY: Final = (
    "that no more is saved than these waits cost: a replay without them says nothing, as only they kept the optimizer "
    "behind the calls that it needs"
)
NEXT_TO_NOTHING: Final = 0.1
"""A replay that gains less than this share of the loss keeps, for another reason, what these waits cost: it is no gain
to show. A choice."""
UNCONFIRMED: Final = (
    "that what the host does after these waits can run beside the device: a replay keeps its order, and gains next to "
    "nothing"
)
FAR_LESS: Final = 0.9
"""A replay without waits that gains a smaller share of their loss is said to leave the rest to launches. A choice."""
KEPT: Final = "that what a host copies to itself and then works on for long is needed: these waits stay"
FAR_MORE: Final = 1.5
"""A replay without waits that gains so many times their loss is said to gain other host time as well. A choice."""
ALTERNATIVE: Final = 0.5
"""Least share of a loss that a second remedy must gain in its place to be named. A choice."""
LATE_HOSTS: Final = ("launch_bound", "host_pauses")
"""Losses of a host that a host which is ahead of its device does not have; the first that was found is replayed."""
NUMBER_NS: Final = 5_000
"""A copy of one number takes 1 to 2 us, and seldom longer than this."""
Waits = Mapping[tuple[str, str | None], int]
"""The time in calls that wait, in ns, by name and by the operation that makes them, None without one."""


class _Replay(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of the dependency graph, and what the recording gains by each."""

    run: Run
    graph: Graph
    window: Bounds
    changes: Mapping[str, Change]
    """By id of the recommendation."""
    gains: Mapping[str, int]
    """In ns, by the same."""
    steps: int
    fetching_steps: int
    """Those of which the graph has the fetch."""
    pauses: Mapping[int, Intervals]
    """By rank, those that `host_pauses` is of, on the clock of the graph."""


def with_replayed_gains(
    found: Sequence[Recommendation],
    run: Run,
    cross_rank: CrossRank,
    graphs: BuiltGraphs,
    alone: Mapping[int, RankSummary],
) -> list[Recommendation]:
    """Return recommendations whose upper bound is what a replay gains, where the graph may answer; others unchanged.

    It may for up to `MOST_RANKS` ranks with host events, recorded at once, whose graph passes its tests. A host that is
    late only because it waits for its device is seen by replay alone: `blocking_calls` is added beside `LATE_HOSTS`
    where removing these calls gains `LEAST_IDLE` of the recording or more. Where it is not, and a batch is fetched only
    after such a call had emptied the device, not to wait is named in `data_loading` as another remedy.
    """
    by_id = {each.id: each for each in found}
    wanted = by_id.keys() & (CHANGES.keys() | ROWS.keys())
    ranks = run.ranks
    if not any(timeline.has_device for timeline in ranks.values()):
        wanted -= {"data_loading"}  # a replay keeps what the host computes for a batch
    communicate = any(size(each.collectives) for each in ranks.values())
    if len(ranks) < (run.world_size or fewest_ranks(run)) and communicate:
        # Their calls hold waiting for ranks that copy as well: a replay, which keeps it, gains less than all would.
        wanted -= ROWS.keys()
    if "blocking_launches" not in by_id and ("data_loading" in wanted or _late_host(by_id) is not None):
        wanted |= {"blocking_calls"} & CHANGES.keys()
    known = all(each.has_host_events and size(each.recordings) == 1 for each in ranks.values())
    known &= not may_not_be_replayed(run, cross_rank.waited_for_unseen_ns)
    if not wanted or not known or len(ranks) > MOST_RANKS:
        return list(found)
    graph = graphs.of_ranks(tuple(ranks), cross_rank, 0)
    window = whole_bounds(graph)
    if window is None or not self_test(graph, [window]).answers(None, None):
        return list(found)
    copies = {rank: copy_rows(each) for rank, each in ranks.items()} if by_id.keys() & ROWS.keys() else {}
    changes = {name: _change_for(name, by_id, copies)(graph, ranks) for name in wanted}
    gains = {name: shortened_ns(graph, window, change) for name, change in changes.items()}
    if changes.keys() >= {"data_loading", "blocking_calls"} and by_id["data_loading"].evidence.get(BY_WORKERS):
        # Workers do not load faster for a host that asks earlier: what it gains is gained once batches take no time.
        both_ns = shortened_ns(graph, window, _both(changes))
        gains["blocking_calls"] = max(both_ns - gains["data_loading"], 0)
    steps = max((size(each.steps) for each in ranks.values()), default=0)
    of_pauses = by_id["host_pauses"].evidence if "host_pauses" in by_id else {}
    return _replayed(
        found,
        _Replay(
            run=run,
            graph=graph,
            window=window,
            changes=changes,
            gains=gains,
            steps=steps,
            fetching_steps=_fetching_steps(graph, ranks, steps) if "data_loading" in changes else steps,
            pauses=paused(of_pauses, graph, ranks, alone),
        ),
    )


def _replayed(found: Sequence[Recommendation], replay: _Replay) -> list[Recommendation]:
    """Return recommendations with what these changes gain, and `blocking_calls` where it is not among them and gains
    enough; without it where little of it is left because hosts need what they wait for (`needed_waits`)."""
    run, graph, window, gains = replay.run, replay.graph, replay.window, replay.gains
    bounds = {name: _bound(run, graph, change) for name, change in replay.changes.items()}
    stay = any(needed_waits(graph, part, run.ranks[part.rank]).any() for part in graph.ranks)
    of_waits = [*[KEPT] * stay, *[ONE_AHEAD] * job_kind(run).serves, bounds.get("blocking_calls", OPTIMISTIC)]
    fewer = FIRST_FETCH.format(steps=replay.fetching_steps, of=replay.steps)
    of_fetches = [bounds.get("data_loading", OPTIMISTIC), *[fewer] * (replay.fetching_steps < replay.steps)]
    assumed = {"blocking_calls": of_waits, "data_loading": of_fetches}
    steps = {"data_loading": replay.fetching_steps}
    bounded = _without_smaller_largest(
        [
            _bounded(each, gains[each.id], steps.get(each.id, replay.steps), assumed.get(each.id, [bounds[each.id]]))
            if each.id in gains
            else each
            for each in found
        ]
    )
    least_ns = LEAST_IDLE * window.length_ns(graph.nodes.time_ns)
    if stay and gains.get("blocking_calls", 0) < least_ns:
        return [each for each in bounded if each.id != "blocking_calls"]  # what little is left without these waits
    if "blocking_calls" not in gains:
        return bounded
    if all(each.id != "blocking_calls" for each in bounded):
        bounded = _with_waits(bounded, replay, least_ns, of_waits)
    return naming_each_other(bounded, graph, window, replay.changes["blocking_calls"], replay.pauses)


def _bound(run: Run, graph: Graph, change: Change) -> str:
    """Return what the gain of a change assumes: where not all ranks were recorded, that those alone change whose work
    it shortens."""
    if len(run.ranks) == run.world_size or not any(size(each.collectives) for each in run.ranks.values()):
        return OPTIMISTIC
    differs = change.lag_ns != Change.none(graph).lag_ns
    ranks = [part.rank for part in graph.ranks if (differs & _of_part(graph, part)).any()] or [*run.ranks]
    return ALONE.format(ranks=rank_list(ranks), s="s" if len(ranks) == 1 else "")


def _with_waits(
    found: Sequence[Recommendation], replay: _Replay, least_ns: float, assumed: Sequence[str]
) -> list[Recommendation]:
    """Return recommendations with one for waits that no rule named, where a host is late because of them and a replay
    without gains so much; else with them as the other remedy of `data_loading`, where they are one."""
    graph, ranks = replay.graph, replay.run.ranks
    by_id, ahead_ns = {each.id: each for each in found}, replay.gains["blocking_calls"]
    waits, job = _waiting_calls(graph, ranks), job_kind(replay.run)
    late = _late_host(by_id)
    if late is not None and ahead_ns >= least_ns:
        paused_late = late.id == "host_pauses"
        steps = steps_after_waits(graph, replay.pauses, replay.steps) if paused_late else replay.steps
        return [*found, _run_ahead(late, _each_step(late, ahead_ns, steps), waits, job, assumed)]
    if "data_loading" not in replay.gains or by_id["data_loading"].evidence.get(BY_WORKERS):
        return list(found)  # workers load no faster for a host that asks earlier
    fetching = by_id["data_loading"]
    # What each of the two gains alone.
    either_ns = replay.gains["data_loading"] + ahead_ns - shortened_ns(graph, replay.window, _both(replay.changes))
    steps = min(replay.fetching_steps, steps_after_waits(graph, _fetches(graph, ranks), replay.steps))
    if _each_step(fetching, either_ns, steps) < ALTERNATIVE * (fetching.loss_ns or 0):
        return list(found)
    each_ns = _each_step(fetching, ahead_ns, steps)
    return [_or_run_ahead(each, each_ns, waits, job) if each is fetching else each for each in found]


def _both(changes: Mapping[str, Change]) -> Change:
    """Return the change without fetches and without waits."""
    lags = [changes[each].lag_ns for each in ("data_loading", "blocking_calls")]
    return replace(changes["data_loading"], lag_ns=np.minimum(*lags))


def _late_host(found: Mapping[str, Recommendation]) -> Recommendation | None:
    """Return the first of `LATE_HOSTS` that was found; no pauses that perhaps come whether the host waits or not."""
    late = (found[each] for each in LATE_HOSTS if each in found)
    return next((each for each in late if not each.evidence.get(WAIT_OR_NOT)), None)


def _without_smaller_largest(found: Sequence[Recommendation]) -> list[Recommendation]:
    """Return recommendations of which none calls a loss the largest that is less than what waits cost by replay."""
    waits_ns = max((counted_loss_ns(each) or 0 for each in found if each.id == "blocking_calls"), default=0)
    largest = USUAL[0]
    return [
        replace(each, title=each.title.removeprefix(largest)) if 0 < (each.loss_ns or 0) < waits_ns else each
        for each in found
    ]


def _change_for(
    name: str, found: Mapping[str, Recommendation], copies: Mapping[int, CopyRows]
) -> Callable[[Graph, Ranks], Change]:
    """Return the change that a recommendation makes: of `copies`, by rank, those that it is about."""
    if name == "blocking_calls" and AWAITED in found and found[AWAITED].evidence.get(HOLDS_HOST):
        return partial(_without_calls, kept={rank: own.awaited for rank, own in copies.items()})
    if name in ROWS:
        rows = {rank: ROWS[name](own) for rank, own in copies.items()}
        return partial(instant_copies, rows=rows, to_host=bool(found[name].evidence.get(TO_HOST_ALONE)))
    return CHANGES[name]


def _or_run_ahead(fetching: Recommendation, gain_ns: int, waits: Waits, job: JobKind) -> Recommendation:
    """Return `data_loading` with the remedy that does as well: not to wait for the device before each fetch."""
    main = worth_naming(waits)
    code = "\n".join(instead_of(job, main).values())
    return replace(
        fetching,
        title=f"{fetching.title}; or do not wait for the device before it ({named_waits(_by_call(waits), main)}): the "
        f"fetch then runs beside the device (a replay is {ms(gain_ns)} a {fetching.per} shorter)",
        apply=fetching.apply | {"instead": code},
        assumed=[*fetching.assumed, f"of the other way, {not_at_once(job)}"],
        evidence={**fetching.evidence, "replayed_gain_without_waits_ns": gain_ns, "waited_in_ns": _by_call(waits)},
    )


def _by_call(waits: Waits) -> dict[str, int]:
    """Return the time in calls that have a share worth naming, by name, the longest first."""
    calls: dict[str, int] = {}
    for (name, _), ns in waits.items():
        calls[name] = calls.get(name, 0) + ns
    return {name: calls[name] for name in worth_naming(calls)}


def _run_ahead(
    late: Recommendation, gain_ns: int, waits: Waits, job: JobKind, assumed: Sequence[str]
) -> Recommendation:
    """Return `blocking_calls` for a host that is late, by replay, because it had waited in these calls."""
    calls, main = _by_call(waits), worth_naming(waits)
    most = " at most" if {OPTIMISTIC, ONE_AHEAD}.intersection(assumed) else ""
    return replace(
        late,
        id="blocking_calls",
        title=f"Let the host run ahead: its launches are late because it waits for the device "
        f"({named_waits(calls, main)}); a replay in which it does not is{most} {ms(gain_ns)} a {late.per} shorter",
        verdict="trial",
        verify=VERIFY,
        confidence="mixed",
        gain_low_ns=0,
        gain_high_ns=gain_ns,
        bound_from="replay",
        loss_ns=gain_ns,
        apply=instead_of(job, main),
        evidence={"replayed_gain_ns": gain_ns, "waited_in_ns": calls}
        | ({GAIN_AT_MOST: True} if ONE_AHEAD in assumed else {}),
        shown_by=None,
        published=[],
        measured=["calls that wait for the device", REPLAYED],
        assumed=[not_at_once(job), *assumed],
    )


def _waiting_calls(graph: Graph, ranks: Ranks) -> dict[tuple[str, str | None], int]:
    """Return the time in calls that wait for the device, but for allocations and for what the host needs
    (`needed_waits`), the longest first.

    Calls after a rank's last launch, as a profiler makes at its end, make no launch late.
    """
    found: dict[tuple[str, str | None], int] = {}
    time = graph.nodes.time_ns
    for part in graph.ranks:
        timeline = ranks[part.rank]
        begin = time[part.begins()]
        launches = begin[part.launched_by[part.launched_by >= 0]]
        waits = part.blocks & ~rows_named(part.call_name, timeline.names, ALLOCATES.search)
        waits &= (begin < launches.max(initial=0)) & ~needed_waits(graph, part, timeline)
        operations = select_host_spans(timeline.host, (OPERATION,))
        moments = begin[waits] - shift_ns(graph, part, timeline)
        by = calling_operation(timeline, operations, part.call_lane[waits], moments)
        taken = (time[part.returns()] - begin)[waits]
        for code, caller, ns in zip(part.call_name[waits].tolist(), by.tolist(), taken.tolist(), strict=True):
            key = VERSIONED.sub("", timeline.names[code]), timeline.name(caller)
            found[key] = found.get(key, 0) + ns
    return dict(sorted(found.items(), key=lambda each: -each[1]))


def _each_step(each: Recommendation, gain_ns: int, steps: int) -> int:
    return round(gain_ns / max(steps, 1)) if each.per == "step" else gain_ns


def _bounded(each: Recommendation, gain_ns: int, steps: int, assumed: Sequence[str]) -> Recommendation:
    gain = _each_step(each, gain_ns, steps)
    if gain > each.evidence.get(LOST_NS, gain):
        return replace(each, assumed=[*each.assumed, TOO_EARLY])
    if each.id == "blocking_calls" and gain < NEXT_TO_NOTHING * (each.loss_ns or 0):
        others = [one for one in each.assumed if AVOIDED not in one]
        return replace(each, assumed=[*others, UNCONFIRMED], evidence={**each.evidence, "replayed_gain_ns": gain})
    kept = [one for one in each.assumed if "upper bound" not in one and AVOIDED not in one]
    title, far_more = each.title, False
    if each.id == "blocking_calls" and gain < FAR_LESS * (each.loss_ns or 0):
        kept.append(SLOW_STILL)
    if each.id == "blocking_calls" and gain > FAR_MORE * max(each.evidence["of_rank_with_most_ns"], each.loss_ns or 0):
        kept.append(MORE)
        title += f"; a replay in which it does not is at most {ms(gain)} a {each.per} shorter"
        far_more = True
    is_bound = ONE_AHEAD in assumed and gain > (each.loss_ns or 0)
    return replace(
        each,
        title=title,
        gain_low_ns=0,
        gain_high_ns=gain,
        bound_from="replay",
        evidence={**each.evidence, "replayed_gain_ns": gain}
        | ({GAIN_AT_MOST: True} if is_bound or far_more else {})
        | ({GAIN_COUNTS: True} if far_more else {}),
        measured=[*each.measured, REPLAYED],
        assumed=[*kept, *assumed],
    )


def _instant_hosts(graph: Graph, ranks: Ranks) -> Change:
    """Return a change in which hosts take no time but for waits, and for fetching batches."""
    change = Change.none(graph)
    host = is_one_of(graph.edges.kind, HOST_TIME)
    return replace(change, lag_ns=np.where(host, _loading_ns(graph, ranks), change.lag_ns))


def _without_loading(graph: Graph, ranks: Ranks) -> Change:
    """Return a change in which the host takes no time under marks of fetching a batch."""
    change = Change.none(graph)
    return replace(change, lag_ns=change.lag_ns - _loading_ns(graph, ranks))


def _loading_ns(graph: Graph, ranks: Ranks) -> Ints:
    """Return for each edge the time of its host under marks of fetching a batch; 0 for other edges."""
    return host_ns(graph, _fetches(graph, ranks))


def _fetches(graph: Graph, ranks: Ranks) -> dict[int, Intervals]:
    """Return by rank when marks say that it fetched a batch, on the clock of the graph."""
    return {part.rank: _fetched(graph, part, ranks[part.rank]) for part in graph.ranks}


def _fetched(graph: Graph, part: RankPart, timeline: RankTimeline) -> Intervals:
    host, notes = without_functions(timeline.host), timeline.annotations
    shift = shift_ns(graph, part, timeline)
    loads, marks = (loads_data(timeline, each.name, each.start_ns, each.end_ns) for each in (host, notes))
    return union(
        (host.start_ns[loads] + shift, host.end_ns[loads] + shift),
        (notes.start_ns[marks] + shift, notes.end_ns[marks] + shift),
    )


def _fetching_steps(graph: Graph, ranks: Ranks, steps: int) -> int:
    """Return of how many steps the fetches are in the graph, of `steps`: one less where a fetch as long as the longest
    of any rank ends before the first call of its rank, to which no edge leads."""
    longest = _loading_ns(graph, ranks).max(initial=0)
    for part in graph.ranks if longest else ():
        if not part.calls:
            continue
        first_ns = graph.nodes.time_ns[part.begins()].min()
        fetches = BusyTime(_fetched(graph, part, ranks[part.rank]))
        if fetches.before(first_ns) >= MOSTLY * longest:
            return max(steps - 1, 1)
    return steps


def _without_calls(graph: Graph, ranks: Ranks, *, kept: Mapping[int, Ints] | None = None) -> Change:
    """Return a change in which calls that wait for the device return at once, but for allocations, for what the host
    needs (`needed_waits`), and for those of the copies in the rows `kept`, by rank."""
    return _returning(graph, ranks, allocations=False, kept=kept or {})


def _without_allocations(graph: Graph, ranks: Ranks) -> Change:
    """Return a change in which calls that allocate or free return at once."""
    return _returning(graph, ranks, allocations=True, kept={})


def _returning(graph: Graph, ranks: Ranks, *, allocations: bool, kept: Mapping[int, Ints]) -> Change:
    change, edges = Change.none(graph), graph.edges
    lag = change.lag_ns.copy()
    for part in graph.ranks:
        timeline = ranks[part.rank]
        allocates = rows_named(part.call_name, timeline.names, ALLOCATES.search)
        chosen = part.blocks & (allocates == allocations)
        if not allocations:
            chosen &= ~needed_waits(graph, part, timeline)
        if part.rank in kept:
            by = part.launched_by[np.isin(part.span_row, kept[part.rank])]
            chosen[by[by >= 0]] = False
        mine = np.flatnonzero(_of_part(graph, part) & (edges.node < part.starts().start))
        mine = mine[chosen[(edges.node[mine] - part.first) % max(part.calls, 1)]]
        kind = edges.kind[mine]
        lag[mine[kind == SYNC]] = NEVER
        within = mine[is_one_of(kind, (CALL, ALLOCATE))]
        lag[within] = np.minimum(lag[within], CALL_TAKES_NS)
    if not allocations:
        lag[edges.kind == POLL] = NEVER
        _drop_numbers(graph, ranks, lag)
    return replace(change, lag_ns=lag)


def _drop_numbers(graph: Graph, ranks: Ranks, lag_ns: Ints) -> None:
    """Take, in place, all time from copies of numbers that the host reads at once, from its calls for them, and from
    what it does between these calls and to come to them: nobody makes them for anything else."""
    edges, time = graph.edges, graph.nodes.time_ns
    for part in graph.ranks:
        timeline = ranks[part.rank]
        found = read_backs(graph, part, timeline)
        lasted = (time[part.ends()] - time[part.starts()])[found.span]
        number = (lasted <= NUMBER_NS) & ~needed_waits(graph, part, timeline)[found.wait]
        spans, calls, waits = found.span[number], found.call[number], found.wait[number]
        begins, returns = part.begins().start, part.returns().start
        later = waits[waits != calls]
        gone = np.isin(edges.node, np.concatenate([returns + calls, returns + later])) & (edges.kind == CALL)
        gone |= np.isin(edges.node, part.ends().start + spans) & (edges.kind == RUN_COPY)
        comes = np.isin(edges.node, np.concatenate([begins + calls, begins + later])) & (edges.kind == HOST_STRETCH)
        gone |= comes & (lag_ns <= READ_WITHIN_NS)
        lag_ns[gone] = 0


def instant_copies(graph: Graph, ranks: Ranks, *, rows: Mapping[int, Ints], to_host: bool = False) -> Change:
    """Return a change in which the copies in these rows, by rank, take no time; with `to_host` those to the host
    alone."""
    change = Change.none(graph)
    lag = change.lag_ns.copy()
    for part in graph.ranks:
        own = to_host_rows(ranks[part.rank], rows[part.rank]) if to_host else rows[part.rank]
        copies = np.isin(part.span_row, own)
        first = part.ends().start
        mine = np.flatnonzero((graph.edges.kind == RUN_COPY) & _of_part(graph, part) & (graph.edges.node >= first))
        lag[mine[copies[graph.edges.node[mine] - first]]] = 0
    return replace(change, lag_ns=lag)


def _of_part(graph: Graph, part: RankPart) -> Flags:
    return np.asarray((graph.edges.node >= part.first) & (graph.edges.node < part.first + part.nodes), np.bool_)


CHANGES: Final[Mapping[str, Callable[[Graph, Ranks], Change]]] = {
    "launch_bound": _instant_hosts,
    "data_loading": _without_loading,
    "blocking_calls": _without_calls,
    "allocator_churn": _without_allocations,
}
"""By id of the recommendation; those of copies (`ROWS`) depend on what it is about (`_change_for`)."""
