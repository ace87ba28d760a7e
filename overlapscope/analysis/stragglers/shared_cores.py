"""Find hosts that share too few processor cores: from what host threads did, or from the system's own account.

Hosts that share k cores never run more than k at a time, and while others pause for lack of a core exactly k run. So
the pauses of all hosts of a machine are counted together. A host pauses where its process does nothing for a while and
waits for nothing that is known. What a host does in a wait for its device is not known: it may spin on a core or not;
but while others want to run, it holds the core for a turn at most. Where no host is seen to run, and none begins or
ends a pause for longer than that, all pause of themselves: they collect garbage, or wait for a file.
Which rank is late is then the scheduler's choice, and may be another one in the next step.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.common.job_identity import fewest_ranks, ranks_of_hosts
from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.graph.building.host_calls import ALLOCATES, SILENCE_NS, SYNCHRONIZES
from overlapscope.analysis.graph.self_test import DRAINED_WITHIN_NS
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.host_runs import HostRuns, readable_host_runs
from overlapscope.analysis.stragglers.core_turns import Turns, sharing_one_core, taking_turns
from overlapscope.analysis.stragglers.core_waits import FEWEST, WIDESPREAD, waits_for_cores
from overlapscope.analysis.stragglers.host_cause import fetching
from overlapscope.display import percent_text
from overlapscope.timeline.columns import COPY, NONE, Flags, Ints
from overlapscope.timeline.intervals import Intervals, difference, length, union
from overlapscope.timeline.lazy_host_spans import without_functions
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import sum_by, unique
from overlapscope.timeline.run import RankTimeline, Run

PINNED: Final = 0.8
"""Of the time in which more than k hosts wanted to run, k of them may have run for at least this share ..."""
OF_TIME: Final = 0.03
"""... and for at least this share of the recording."""
RAN: Final = 0.2
"""While hosts that fetch batches are taken to lack cores, this share of the k is seen to run in the mean, or pauses
outside of loading show the shortage once: all that fetch at once wait for data. A choice: hosts that spin in a wait
hold a core unseen, so that it may be little."""
MOST_HOSTS: Final = 0.5
"""Hosts of a machine are judged since all had begun to be recorded, while so many of them still were, ..."""
OF_RECORDING: Final = 0.5
"""... if that lasts for this share of the longest recording of one. Choices. What a host did before it was recorded is
not known, and would explain any shortage; one whose recording ends has done its work."""
SPREAD: Final = 0.3
"""Cores are short now and again over this share of the time: what is so once, such as garbage collection as a step
begins, is no lack of them. A choice."""
LONGEST_TURN_NS: Final = 12_000_000
"""While more hosts want to run than cores are there, and fewer run than these, one begins or ends a pause at least so
often: a core that is not seen to run a host may be held by one that spins in a wait, but for no longer than a turn.
Linux gives each of two tasks of a core at most so long: half of its `sched_latency_ns` of 24 ms on eight cores or
more."""
USUAL_FETCH: Final = 0.1
"""Fetching a batch is taken to need twice this quantile of all fetches; what is longer may be a pause."""
SAME_CLOCK_NS: Final = 50_000
"""Ranks whose clocks are closer than this, or three residuals, may be of one machine where no source names hosts."""

OFTEN: Final = 0.25
"""By the system's account, or by turns on cores, the scheduler decides who is late where hosts waited for a core for
this share of the time; else other losses may be larger, and a rank be late for another reason."""


class HostTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What the host of one rank did in its recording, on its own clock; it ran where none of the intervals holds."""

    begin_ns: int
    end_ns: int
    paused: Intervals
    waiting: Intervals
    """In calls that wait for the device, until what they awaited had ended, and in those that allocate or free."""
    fetching: Intervals
    """While it fetched a batch, which may be work, a wait for data, or a pause."""


class Pinned(msgspec.Struct, frozen=True, kw_only=True):
    """Hosts of which never more than `cores` ran at once, while others paused."""

    ranks: tuple[int, ...]
    cores: int
    share: float
    """Share of the time judged in which more hosts wanted to run than did."""
    paused_ns: Mapping[int, int]
    running: float
    """Mean number of hosts that ran, of the time judged."""
    while_fetching: bool
    """Whether pauses outside of data loading alone do not show it: loaders may have been slow instead."""


def host_times(timeline: RankTimeline, polled: Intervals | None = None) -> HostTimes | None:
    """Return what a rank's host did in its recording; None where its recording holds no calls of the host.

    `polled` holds its silences with a poll for its device, and work on what it had polled for, on its own clock. Raises
    HostEventsError.
    """
    if not timeline.has_device or not timeline.has_host_events:
        return None
    host = without_functions(timeline.host)
    if not host.start_ns.size:
        return None
    notes, steps = timeline.annotations, timeline.steps
    marks = [notes.start_ns, notes.end_ns, steps.start_ns, steps.end_ns]
    moments = unique(np.concatenate([host.start_ns, host.end_ns, *marks]))
    silent = np.flatnonzero(np.diff(moments) >= SILENCE_NS)
    begin, end = moments[silent], moments[silent + 1]
    drains = _drains_at_end(timeline, begin, end)
    waiting = union(_device_waits(timeline), (begin[drains], end[drains]), *(() if polled is None else (polled,)))
    fetches = difference(fetching(timeline), waiting)
    quiet = difference(difference(Intervals(begin, end), waiting), fetches)
    long = quiet.ends - quiet.starts >= SILENCE_NS
    return HostTimes(
        begin_ns=int(moments[0]), end_ns=int(moments[-1]), paused=Intervals(quiet.starts[long], quiet.ends[long]),
        waiting=waiting, fetching=fetches,
    )  # fmt: skip


def _device_waits(timeline: RankTimeline) -> tuple[Ints, Ints]:
    """Return when calls waited for the device: until the last span that ended in them.

    Where a call returned later its thread had not been scheduled: that is a pause. But to allocate and to free is work
    of the driver, which takes its time besides.
    """
    host, spans = without_functions(timeline.host), timeline.spans
    copies = unique(spans.correlation[(spans.kind == COPY) & (spans.correlation != NONE)])
    allocates = rows_named(host.name, timeline.names, ALLOCATES.search)
    blocks = allocates | rows_named(host.name, timeline.names, SYNCHRONIZES.search)
    blocks |= np.isin(host.correlation, copies)
    begin, end = host.start_ns[blocks], host.end_ns[blocks]
    return begin, np.where(allocates[blocks], end, np.maximum(_last_end(timeline, end), begin))


def _last_end(timeline: RankTimeline, moment: Ints) -> Ints:
    """Return for each moment the end of the device span that ended last before; NONE for none."""
    ends = np.sort(timeline.spans.end_ns)
    return np.append(NONE, ends)[np.searchsorted(ends, moment, side="right")]


def _drains_at_end(timeline: RankTimeline, begin: Ints, end: Ints) -> Flags:
    """Return which silences end right after the device had drained in them: they may be waits that no call shows."""
    spans = timeline.spans
    last = _last_end(timeline, end)
    begun = np.searchsorted(np.sort(spans.start_ns), end, side="right")
    ended = np.searchsorted(np.sort(spans.end_ns), end, side="right")
    drained: Flags = (last > begin) & (last >= end - DRAINED_WITHIN_NS) & (begun == ended)
    return drained


def pinned_hosts(run: Run, hosts: Mapping[int, HostTimes], clocks: Clocks) -> list[Pinned]:
    """Return the machines whose hosts share too few cores. `hosts` holds the ranks whose host calls were recorded."""
    found = [_pinned(ranks, hosts, clocks) for ranks in _machines(run, hosts, clocks) if len(ranks) > 1]
    return [each for each in found if each is not None]


def hosts_in_turns(run: Run, hosts: Mapping[int, HostRuns], clocks: Clocks) -> list[Turns]:
    """Return the hosts of each machine that share cores: those that share one core among themselves, and the rest of
    the machine's hosts, if they share cores, too. `hosts` holds those of CPU runs, on their machine's clock."""
    found: list[Turns] = []
    for ranks in _machines(run, hosts, clocks):
        own = {rank: hosts[rank] for rank in ranks}
        every = taking_turns(own) if len(ranks) > 1 else None
        some = [] if every is not None and every.cores == 1 else sharing_one_core(own)
        rest = {rank: own[rank] for rank in own if not any(rank in each.ranks for each in some)}
        others = every if not some else taking_turns(rest) if len(rest) > 1 else None
        found += some if others is None else [*some, others]
    return found


def waits_in_turns(run: Run, coverage: Mapping[int, Coverage], clocks: Clocks) -> dict[int, Intervals]:
    """Return when hosts of CPU runs that take turns on cores waited for one, by rank, on their own clocks."""
    hosts = {rank: readable_host_runs(timeline, coverage[rank]) for rank, timeline in run.ranks.items()}
    known = {rank: host for rank, host in hosts.items() if host is not None}
    return {rank: waits for each in hosts_in_turns(run, known, clocks) for rank, waits in each.waits.items()}


def _machines(run: Run, hosts: Collection[int], clocks: Clocks) -> list[list[int]]:
    """Return the ranks of each machine: by its name, and of those that no source names, those whose clocks agree.

    Two machines taken for one do no harm: if the hosts of each are pinned, so is their number together, and hosts of
    two machines take no turns.
    """
    named = [[rank for rank in ranks if rank in hosts] for ranks in ranks_of_hosts(run).values()]
    nameless = set(hosts).difference(*named)
    found: list[list[int]] = []
    apart = max(SAME_CLOCK_NS, 3 * (clocks.residual_ns or 0.0))
    last = -np.inf
    for rank in sorted(nameless, key=lambda each: (clocks.tied.get(each, each), clocks.offset_ns.get(each, 0.0))):
        offset = clocks.offset_ns.get(rank, 0.0)
        if not found or offset - last > apart or not clocks.comparable([found[-1][-1], rank]):
            found.append([])
        found[-1].append(rank)
        last = offset
    return [*named, *map(sorted, found)]


def _pinned(ranks: Sequence[int], hosts: Mapping[int, HostTimes], clocks: Clocks) -> Pinned | None:
    lasting = np.concatenate([hosts[rank].fetching.ends - hosts[rank].fetching.starts for rank in ranks])
    usual = 2 * int(np.quantile(lasting, USUAL_FETCH)) if lasting.size else 0
    excess = {rank: _beyond(hosts[rank].fetching, usual) for rank in ranks}
    taken_ns, counts, turn_ns = _counts(ranks, hosts, excess, clocks)
    recording, paused, waiting, fetches, long_fetch = counts
    running = recording - paused - waiting - fetches
    may_run = fetches + waiting + len(ranks) - recording
    judged = (np.cumsum(recording == len(ranks)) > 0) & (recording >= MOST_HOSTS * len(ranks))
    taken_ns = np.where(judged, taken_ns, 0)
    if taken_ns.sum() < OF_RECORDING * max(hosts[rank].end_ns - hosts[rank].begin_ns for rank in ranks):
        return None
    in_turns = np.where(turn_ns <= LONGEST_TURN_NS, may_run, 0)
    once = False
    for wants, may, while_fetching in (
        (running + paused, in_turns, False), (running + paused + long_fetch, may_run, True),
    ):  # fmt: skip
        cores, held_ns, share = _most_likely(taken_ns, running, wants, may, len(ranks))
        lost = {rank: length(hosts[rank].paused) + (length(excess[rank]) if while_fetching else 0) for rank in ranks}
        every = np.array(list(lost.values()), np.float64)
        alike = float(every.sum() ** 2 / max((every**2).sum(), 1.0))
        if (
            share < PINNED
            or held_ns < OF_TIME * int(taken_ns.sum())
            or alike < max(WIDESPREAD * len(ranks), FEWEST)
            or (while_fetching and not once and _ran(taken_ns, running, wants, cores) < RAN * cores)
        ):
            continue
        once = True
        if _spread(taken_ns, running, wants, cores) >= SPREAD:
            together = taken_ns * (recording == len(ranks))
            return Pinned(
                ranks=tuple(ranks), cores=cores, share=held_ns / int(taken_ns.sum()), paused_ns=lost,
                running=float((running * together).sum() / max(int(together.sum()), 1)),
                while_fetching=while_fetching,
            )  # fmt: skip
    return None


def _ran(taken_ns: Ints, running: Ints, wants: Ints, cores: int) -> float:
    """Return how many hosts ran in the mean while more than `cores` wanted to, and no more than these did."""
    short = taken_ns * ((wants > cores) & (running <= cores))
    return float((running * short).sum() / max(int(short.sum()), 1))


def _spread(taken_ns: Ints, running: Ints, wants: Ints, cores: int) -> float:
    """Return in which share of the time judged, from the first to the last such moment, more than `cores` wanted to run
    and no more than these did."""
    short = np.flatnonzero((taken_ns > 0) & (wants > cores) & (running <= cores))
    return float(taken_ns[short[0] : short[-1] + 1].sum() / taken_ns.sum()) if short.size else 0.0


def _beyond(fetches: Intervals, usual_ns: int) -> Intervals:
    """Return what of each fetch is longer than usual, where that is much."""
    begin = np.minimum(fetches.starts + usual_ns, fetches.ends)
    long = fetches.ends - begin >= SILENCE_NS
    return Intervals(begin[long], fetches.ends[long])


PAUSED: Final = 1
"""The place of pauses among what `_counts` counts."""


def _counts(
    ranks: Sequence[int], hosts: Mapping[int, HostTimes], excess: Mapping[int, Intervals], clocks: Clocks
) -> tuple[Ints, Ints, Ints]:
    """Return the lengths of the stretches between any two changes, in each how many hosts record, pause, wait, fetch,
    and fetch for longer than usual, and how long it is around each in which no pause begins or ends."""
    at, kind, change = [], [], []
    for rank in ranks:
        own = hosts[rank]
        recording = Intervals(np.array([own.begin_ns]), np.array([own.end_ns]))
        for code, times in enumerate((recording, own.paused, own.waiting, own.fetching, excess[rank])):
            for moments, by in ((times.starts, 1), (times.ends, -1)):
                at.append(np.rint(clocks.aligned(rank, moments)).astype(np.int64))
                kind.append(np.full(moments.size, code))
                change.append(np.full(moments.size, by))
    order = np.argsort(np.concatenate(at), kind="stable")
    moment, kinds, changes = (np.concatenate(each)[order] for each in (at, kind, change))
    counts = np.array([np.cumsum(np.where(kinds == each, changes, 0)) for each in range(5)])
    taken_ns, turn = np.diff(moment), np.cumsum(kinds == PAUSED)[:-1]
    return taken_ns, counts[:, :-1], sum_by(turn, taken_ns, int(turn[-1]) + 1)[turn]


def _most_likely(taken_ns: Ints, running: Ints, wants: Ints, may_run: Ints, size: int) -> tuple[int, int, float]:
    """Return the number of cores that fits best, how long they did not suffice, and the share of time that fits.

    With k cores, while more than k hosts want to run: k run, some of them perhaps unseen (`may_run`), as in waits.
    """
    best = (0, 0, 0.0)
    most = -np.inf
    for cores in range(1, size):
        wanted = (wants > cores) & (running <= cores)
        fits = wanted & (running + may_run >= cores)
        held, against = int(taken_ns[fits].sum()), int(taken_ns[(running > cores) | (wanted & ~fits)].sum())
        if held - against > most:
            most, best = held - against, (cores, held, held / max(held + against, 1))
    return best


def shared_cores(
    run: Run,
    pinned: Sequence[Pinned],
    turns: Sequence[Turns] = (),
    capped_ns: Callable[[], tuple[int, int] | None] = lambda: None,
) -> list[Finding]:
    """Return a finding where hosts share too few cores: as the system counted it, else as their pauses or turns show.

    `capped_ns` returns the length of the recording and what it would be with pauses of at most 3 ms, by replay; None
    where that is not known. It is no bound where ranks that were not recorded are waited for, and left out then.
    """
    all_known = len(run.ranks) >= (run.world_size or fewest_ranks(run))
    return waits_for_cores(run) or [
        *(_as_paused(each, len(pinned), capped_ns if all_known else lambda: None) for each in pinned),
        *(_as_turns(each, len(turns)) for each in turns),
    ]


def _as_turns(each: Turns, of: int) -> Finding:
    size, cores = len(each.ranks), each.cores
    ran = f"never more than {cores}" if cores > 1 else "no two"
    more = "more" if cores > 1 else "two or more"
    shared = f"about {cores} cores" if cores > 1 else "one core"
    what = f"{ran} of the {size} hosts of ranks {_listed(each.ranks)} ran at once, though {more} computed"
    if size == 2:
        what = f"the hosts of ranks {each.ranks[0]} and {each.ranks[1]} never ran at once, though both computed"
    whom = "either" if size == 2 else "any of them"
    return Finding(
        id="shared_cores" if of == 1 else f"shared_cores:rank{each.ranks[0]}",
        severity="warning",
        title=f"{what} {percent_text(each.share)} of the time: they share {shared}, and the scheduler can make {whom} "
        "late",
        evidence={
            "ranks": list(each.ranks), "cores": cores, "share_of_time": each.share, "waited_share": each.waited_share,
            "at_once_ns": each.at_once_ns, "at_once_by_chance_ns": round(each.by_chance_ns),
        },
        known_from="trace",
    )  # fmt: skip


def _as_paused(each: Pinned, of: int, capped_ns: Callable[[], tuple[int, int] | None]) -> Finding:
    size, total = len(each.ranks), sum(each.paused_ns.values())
    evidence: dict[str, Any] = {
        "ranks": list(each.ranks), "cores": each.cores, "share_of_time": each.share,
        "running_hosts": each.running, "paused_ns": {str(rank): ns for rank, ns in each.paused_ns.items()},
    }  # fmt: skip
    who = f"never more than {each.cores} of the {size} hosts of ranks {_listed(each.ranks)} ran at once"
    what = f"{who} while others paused, {percent_text(each.share)} of the time ({total / size / 1e6:.1f} ms a host)"
    if each.while_fetching:
        evidence["while_fetching"] = True
        return Finding(
            id="shared_cores" if of == 1 else f"shared_cores:rank{each.ranks[0]}", severity="info",
            title=f"{what}, in data loading: either they share too few cores, or their data comes late",
            evidence=evidence, known_from="trace",
        )  # fmt: skip
    gain = capped_ns()
    if gain is not None:
        evidence |= {"recorded_ns": gain[0], "pauses_capped_ns": gain[1]}
    without = "" if gain is None else f"; with pauses of at most 3 ms it would take {gain[1] / 1e6:.1f} ms"
    return Finding(
        id="shared_cores" if of == 1 else f"shared_cores:rank{each.ranks[0]}", severity="warning",
        title=f"{what}: they share too few cores, and the scheduler decides which rank is late{without}",
        evidence=evidence, known_from="trace",
    )  # fmt: skip


def _listed(ranks: Sequence[int]) -> str:
    if len(ranks) > 1 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(str(rank) for rank in ranks)


def waited_share(evidence: Mapping[str, Any]) -> float:
    """Return the share of the time for which hosts waited for a core; 1 where that is not known."""
    share: float = evidence.get("waited_share", evidence.get("median_share", 1.0))
    return share


def decides_who_is_late(evidence: Mapping[str, Any]) -> bool:
    """Return whether many hosts share cores so much that what a step is longer by may be the scheduler's choice."""
    return "concentrated_on" not in evidence and waited_share(evidence) >= OFTEN


def decide_who_is_late(findings: Sequence[Finding]) -> bool:
    """Return whether one of the findings says so; not where it may be slow loaders."""
    return any(
        each.id.startswith("shared_cores") and each.severity == "warning" and decides_who_is_late(each.evidence)
        for each in findings
    )


def lack_cores(findings: Sequence[Finding]) -> bool:
    """Return whether hosts, or the threads of a rank, were found to have too few cores."""
    return any(each.id.startswith(("shared_cores", "few_cores")) and each.severity == "warning" for each in findings)
