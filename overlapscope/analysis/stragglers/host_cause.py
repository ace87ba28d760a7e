"""Find the cause of a rank's lateness on its host, from what capture recorded there while the other ranks waited.

Everything is summed over the intervals between two calls that a group makes together, for each member on its own clock.
The late rank's sum is compared with the median of its peers': what all ranks do makes none of them late. Readings that
were not recorded count neither for nor against a cause.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from overlapscope.analysis.common.loading import loads_data
from overlapscope.timeline.columns import NONE, Floats, Ints
from overlapscope.timeline.intervals import BusyTime, Intervals, difference, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.readings import COLLECTOR, ON_CORE, QUEUED, THROTTLED_US, reading_series, recorded_pauses
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import RankTimeline, Run

MOST: Final = 0.5
"""A cause must explain more than this share of the lateness."""
AT_LEAST: Final = 0.2
"""Waiting for a core is named from this share of the lateness, where nothing else explains it."""
MORE, BARELY = 0.5, 0.1
"""More work that other threads also slow down explains lateness only if the additional time on a core exceeds these
shares: of the rank's own time on a core (MORE), and of the lateness (BARELY; more than a tenfold slowdown explains
nothing)."""
RAN_LONGER: Final = 1.05
BETWEEN_STEPS, RETRIES = "between_steps_ns", "allocator_retries"
SHARED_CORES: Final = "shared_cores"
CLOCK: Final = re.compile(r"^gpu\d+\.sm_clock_mhz$")
REASONS: Final = re.compile(r"^gpu\d+\.throttle_reasons$")
HELD_DOWN: Final = 0x4 | 0x8 | 0x20 | 0x40 | 0x80
"""Bits of `nvmlClocksThrottleReasons` that reduce clocks without the user's request: power cap, hardware slowdown, heat
(software and hardware), power brake."""
CLOCK_FALLS: Final = 0.97
"""A device's clock is low at or below this share of its peers' median ..."""
EXPLAINS: Final = 0.5
"""... and it is throttled when that explains at least this share of its slowdown."""


class SharedInterval(msgspec.Struct, frozen=True, kw_only=True):
    """The intervals between two consecutive calls of a set of ranks, for the calls to which one of them was late.

    Rows are the ranks, columns the calls; each rank's times are on its own clock, in nanoseconds.
    """

    ranks: tuple[int, ...]
    begin_ns: Ints
    end_ns: Ints
    step: Ints
    """Step in which the late rank made the call."""


def recorded_cause(
    rank: int, run: Run, met: Sequence[SharedInterval], lead_ns: int
) -> tuple[str | None, dict[str, Any]]:
    """Return the cause of the rank's lateness recorded by capture, else None; and the evidence in nanoseconds.

    A cause is `garbage_collector`, `data_loading`, `throttled` (by the cgroup's CPU limit), SHARED_CORES (it waited for
    a core), `host` (the training thread was off its core), or `more_work` where all members run on one host: its cores
    are equal, so more time on a core is more work.
    """
    evidence: dict[str, Any] = {}
    members = {each for group in met for each in group.ranks}
    collecting = {each: recorded_pauses(run.ranks[each], COLLECTOR) for each in members}
    loading = {each: difference(fetching(run.ranks[each]), collecting[each]) for each in members}
    for name, times in (("garbage_collector", collecting), ("data_loading", loading)):
        more = more_than_peers(rank, met, {each: BusyTime(found) for each, found in times.items()})
        if more > 0:
            evidence[f"{name}_ns"] = more
        if more > MOST * lead_ns:
            return name, evidence
    throttled = _rises(rank, run, met, THROTTLED_US) * 1000
    if throttled > MOST * lead_ns:
        return "throttled", {**evidence, "cpu_throttled_ns": throttled}
    held_by, more_evidence = _by_thread(rank, run, met, lead_ns)
    return held_by, evidence | more_evidence


def _by_thread(rank: int, run: Run, met: Sequence[SharedInterval], lead_ns: int) -> tuple[str | None, dict[str, Any]]:
    """Find the cause from where the training thread was: on a core, waiting for a core, or neither.

    A thread with more work also waits for a core more often; that part of its core wait is in proportion to the
    additional work, and counts as work: as far as its peers, too, waited for a core in proportion to what they ran.
    """
    members = {each for group in met for each in group.ranks}
    running = {each: _CumulativeReading.of(run.ranks[each], ON_CORE) for each in members}
    queued = {each: _CumulativeReading.of(run.ranks[each], QUEUED) for each in members}
    if any(each is None for each in running.values()):
        return None, {}
    on_core = more_than_peers(rank, met, running)
    off_core = more_than_peers(rank, met, dict.fromkeys(members, _ElapsedTime())) - on_core
    evidence = {"on_core_more_ns": on_core, "off_core_more_ns": off_core}
    waited, slowed, had = 0, 1.0, max(_of(rank, met, running), 1.0)
    if all(each is not None for each in queued.values()):
        waited = evidence["waited_for_core_more_ns"] = more_than_peers(rank, met, queued)
        rates = {each: _of(each, met, queued) / max(_of(each, met, running), 1.0) for each in members}
        slowed += min(rates[rank], float(np.median([rates[each] for each in members - {rank}])))
    works_more = on_core > MOST * lead_ns or (
        on_core > max(MORE * had, BARELY * lead_ns) and on_core * slowed > MOST * lead_ns
    )
    # Between two readings a peer computes and then waits: a straight line moves what it ran into the wait, where no
    # interval counts it. Over the whole recording nothing is moved.
    in_all = {each: found.rose for each, found in running.items() if found is not None}
    works_more = works_more and in_all[rank] - float(np.median([in_all[each] for each in members - {rank}])) > (
        MOST * on_core
    )
    held_by = None
    if off_core - waited > MOST * lead_ns:
        held_by = "host"
    elif works_more:
        held_by = "more_work" if _on_one_host(run, members) else None
    elif waited > AT_LEAST * lead_ns:
        held_by = SHARED_CORES
    return held_by, evidence


def ran_longer_each_time(rank: int, run: Run, met: Sequence[SharedInterval]) -> bool:
    """Return whether the training thread ran RAN_LONGER times as long as that of each other rank in all intervals.

    Time on a core is no matter of who waited for one. False where it was not recorded.
    """
    members = {each for group in met for each in group.ranks}
    running = {each: _CumulativeReading.of(run.ranks[each], ON_CORE) for each in members}
    for each in met:
        ran = []
        for member, begin, end in zip(each.ranks, each.begin_ns, each.end_ns, strict=True):
            reading = running[member]
            if reading is None:
                return False
            ran.append(reading.within(begin, np.maximum(begin, end)))
        row = each.ranks.index(rank)
        others = np.delete(np.array(ran), row, axis=0).max(axis=0)
        if not (ran[row] >= RAN_LONGER * others).all():
            return False
    return True


def _on_one_host(run: Run, members: set[int]) -> bool:
    hosts = {_setting(run.ranks[each], "host") for each in members}
    return len(hosts) == 1 and None not in hosts


def extra_allocator_retries(rank: int, run: Run, met: Sequence[SharedInterval]) -> int:
    """Return how many more allocator retries (free cached memory, allocate again) the rank had than its peers."""
    return _rises(rank, run, met, RETRIES)


def lowered_clock(
    rank: int, peers: Sequence[int], run: Run, slowness: float, steps: Collection[int] | None = None
) -> dict[str, Any] | None:
    """Return the device clock as evidence where it is below that of its peers and throttling explains it; else None.

    `slowness` is the factor by which its kernels are slower; the clock must explain at least EXPLAINS of it. Where
    throttle reasons were recorded, a throttling one must be present in half of the readings. Where it is slower in some
    `steps` only, the readings of these count.
    """
    mine = _median_reading(run.ranks[rank], CLOCK, steps)
    theirs = [clock for each in peers if (clock := _median_reading(run.ranks[each], CLOCK, steps)) is not None]
    if mine is None or not theirs:
        return None
    usual = float(np.median(theirs))
    if mine > CLOCK_FALLS * usual or usual / max(mine, 1.0) - 1 < EXPLAINS * (slowness - 1):
        return None
    reasons = _readings(run.ranks[rank], REASONS, steps)
    held = (reasons.astype(np.int64) & HELD_DOWN) != 0
    if reasons.size and held.mean() < MOST:
        return None
    found = {"sm_clock_mhz": mine, "peers_sm_clock_mhz": usual}
    return found | ({"throttle_reasons": int(np.bitwise_or.reduce(reasons.astype(np.int64)))} if reasons.size else {})


def recording_cost(timeline: RankTimeline) -> float | None:
    """Return the upper bound of the recording overhead of a step in nanoseconds, where capture measured it."""
    overhead = timeline.recorded.get("overhead")
    cost = overhead.get("high_ns") if isinstance(overhead, Mapping) else None
    return float(cost) if isinstance(cost, int | float) and np.isfinite(cost) else None


class _CumulativeReading(msgspec.Struct, frozen=True):
    """A cumulative reading, known at some moments and interpolated linearly between them."""

    time_ns: Ints
    value: Floats

    @classmethod
    def of(cls, timeline: RankTimeline, reading: str) -> "_CumulativeReading | None":
        """Return the series of a reading; None where it was not recorded."""
        time_ns, value = reading_series(timeline, reading)
        return cls(time_ns, value) if time_ns.size else None

    @property
    def rose(self) -> float:
        """How much it increased from the first reading to the last."""
        return float(self.value[-1] - self.value[0])

    def within(self, starts: Ints, ends: Ints) -> Floats:
        """Return how much it increased in each interval."""
        begun = int(self.time_ns[0])
        at = (self.time_ns - begun).astype(np.float64)
        rose: Floats = np.interp(ends - begun, at, self.value) - np.interp(starts - begun, at, self.value)
        return rose


class _ElapsedTime(msgspec.Struct, frozen=True):
    """Elapsed time, with the interface of a cumulative reading."""

    def within(self, starts: Ints, ends: Ints) -> Ints:
        return ends - starts


def more_than_peers(rank: int, met: Sequence[SharedInterval], did: Mapping[int, Any]) -> int:
    """Return how much more the rank had than the median of its peers, summed over all intervals."""
    more = 0.0
    for each in met:
        if not each.step.size:
            continue
        ends = np.maximum(each.begin_ns, each.end_ns)
        had = np.array(
            [did[member].within(begin, end) for member, begin, end in zip(each.ranks, each.begin_ns, ends, strict=True)]
        )
        row = each.ranks.index(rank)
        more += float((had[row] - np.median(np.delete(had, row, axis=0), axis=0)).sum())
    return round(more)


def _of(rank: int, met: Sequence[SharedInterval], did: Mapping[int, Any]) -> float:
    """Return the rank's sum over all intervals of the sets that it is in."""
    total = 0.0
    for each in met:
        if rank not in each.ranks:
            continue
        row = each.ranks.index(rank)
        begin, end = each.begin_ns[row], each.end_ns[row]
        total += float(did[rank].within(begin, np.maximum(begin, end)).sum())
    return total


def fetching(timeline: RankTimeline) -> Intervals:
    """Return when batches were fetched: between steps, and in ranges named like data loading."""
    notes = timeline.annotations
    ranges = loads_data(timeline, notes.name, notes.start_ns, notes.end_ns)
    named = (notes.start_ns[ranges], notes.end_ns[ranges])
    pauses = recorded_pauses(timeline, BETWEEN_STEPS)
    return union(named, (pauses.starts, pauses.ends), _between_steps(timeline))


def _between_steps(timeline: RankTimeline) -> tuple[Ints, Ints]:
    """Return the gaps between consecutive steps of one recording."""
    steps = timeline.steps
    follows = (steps.recording[1:] == steps.recording[:-1]) & (steps.step[1:] == steps.step[:-1] + 1)
    gap = follows & (steps.start_ns[1:] > steps.end_ns[:-1])
    return steps.end_ns[:-1][gap], steps.start_ns[1:][gap]


def _rises(rank: int, run: Run, met: Sequence[SharedInterval], reading: str) -> int:
    """Return how much more a count of the rank increased than its peers', in the steps in which it was late."""
    steps = unique(np.concatenate([each.step for each in met]))
    members = {member for each in met for member in each.ranks}
    rose = {each: _in_steps(run.ranks[each], reading, steps[steps != NONE]) for each in members}
    peers = [rise for each, rise in rose.items() if each != rank]
    return round(rose.get(rank, 0.0) - float(np.median(peers))) if peers else 0


def _in_steps(timeline: RankTimeline, reading: str, steps: Ints) -> float:
    if reading not in timeline.names:
        return 0.0
    table = timeline.telemetry
    rows = (table.name == timeline.names.index(reading)) & np.isin(table.step, steps) & np.isfinite(table.value)
    return float(table.value[rows].sum())


def _readings(timeline: RankTimeline, pattern: re.Pattern[str], steps: Collection[int] | None) -> Floats:
    """Return the readings of these names, of some steps where these are given."""
    table = timeline.telemetry
    rows = rows_named(table.name, timeline.names, pattern.match)
    values = table.value[rows if steps is None else rows & np.isin(table.step, list(steps))]
    return values[np.isfinite(values)]


def _median_reading(
    timeline: RankTimeline, pattern: re.Pattern[str], steps: Collection[int] | None = None
) -> float | None:
    values = _readings(timeline, pattern, steps)
    return float(np.median(values)) if values.size else None


def _setting(timeline: RankTimeline, name: str) -> str | None:
    settings = timeline.recorded.get("settings")
    value = settings.get(name) if isinstance(settings, Mapping) else None
    return value if isinstance(value, str) else None
