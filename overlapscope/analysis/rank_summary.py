"""Summarize a rank from its own spans in one pass; comparing ranks then needs no spans any more."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.checks.pipelines.stages import PipelineStage, own_stages
from overlapscope.analysis.common.cause_table import START_OF_RECORDING, WAITED_FOR_CORE, NoCauses
from overlapscope.analysis.cross_rank.start_delays import StepsAndCompute
from overlapscope.analysis.exposure.activities import before_recorded_work
from overlapscope.analysis.exposure.core_waiting import CoreWaiting, core_waiting
from overlapscope.analysis.exposure.own_parts import OwnParts, own_parts
from overlapscope.analysis.graph.built_graphs import BuiltGraphs
from overlapscope.analysis.graph.found_causes import HostLoss, OwnCauses, marked_losses
from overlapscope.analysis.graph.own_causes import own_causes
from overlapscope.analysis.pauses.long_pauses import LongPauses, long_pauses
from overlapscope.analysis.pauses.whole_processes import Silences, Thread, thread_silences
from overlapscope.analysis.per_rank.breakdown import Breakdown, Coverage
from overlapscope.analysis.per_rank.host_operations import (
    EnqueuingCalls,
    OperationPieces,
    StepOperations,
    enqueuing_calls,
    operation_pieces,
    operation_times,
    operations_in_calls,
    step_operations,
)
from overlapscope.analysis.per_rank.host_runs import HostRuns, readable_host_runs
from overlapscope.analysis.per_rank.interference import Interference, NoInterference, interference
from overlapscope.analysis.per_rank.kernels import KernelTotals, sum_kernels
from overlapscope.analysis.per_rank.operation_gaps import OperationGaps, operation_gaps
from overlapscope.analysis.per_rank.steps import StepWindow, step_windows, whole_windows
from overlapscope.analysis.stragglers.shared_cores import HostTimes, host_times
from overlapscope.analysis.stragglers.straggler_cause import before_first_launch
from overlapscope.errors import HostEventsError
from overlapscope.timeline.columns import FUSED, NONE, UNCLASSIFIED, size
from overlapscope.timeline.intervals import Activity, BusyTime, Intervals, WindowSets, difference, union
from overlapscope.timeline.rows import sum_by
from overlapscope.timeline.run import Group, RankTimeline

UNKNOWN: Final = "unknown"
MAY_WAIT_FOR_CORE: Final = ("launch_bound", "launch_latency", UNKNOWN)
"""Causes of idle time in which the host of a run without a device may have waited for a core."""
LISTED: Final = (UNCLASSIFIED, FUSED)
"""Notes of spans that are reported."""


class RankSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one rank that need only its own spans."""

    windows: list[StepWindow]
    whole: list[tuple[int, int]]
    """Windows of its recordings; empty where it has no times."""
    figures: list[Breakdown]
    """Breakdown of the whole recording, then of each step, with causes of idle time, but not of exposed time."""
    interference: Interference | NoInterference
    """How much longer compute takes beside communication, or why that is not known."""
    coverage: Coverage
    parts: OwnParts
    no_causes_reason: NoCauses | None
    """Why the dependency graph names no causes; None where it does."""
    host_losses: tuple[HostLoss, ...]
    """Idle time that its host decided; without host events, only what marks and launches show."""
    kernels: KernelTotals
    noted: Mapping[int, Sequence[tuple[str, int, int]]]
    """For each of the notes `LISTED`: (name, count, total nanoseconds) of its spans."""
    linkage: tuple[int, int] | None
    """(device spans, device spans without a launch); None for a CPU run."""
    not_launched: Intervals
    """Time in which a step had begun and its host had not launched anything yet."""
    host: HostTimes | None
    """What its host did; None where that was not recorded, or no other rank was."""
    long_pauses: LongPauses | None
    """In a run with devices, the long pauses of its host that left its device idle; None where what idled it, or its
    steps, are not known. Of a process that is several ranks, `summarize_ranks` cuts them to those of all."""
    silences: Mapping[Thread, Silences]
    """Where its process is other ranks, too, when each of its threads was silent; empty where that is not known."""
    host_runs: HostRuns | None
    """In a CPU run, when its host computed, certainly ran and paused; None as above."""
    operations: StepOperations | None
    """In a CPU run, how long each step was in each operation; None without host events."""
    operation_ns: Mapping[str, int]
    """The same of the whole recording; empty without host events."""
    operation_gaps: OperationGaps | None
    """In a CPU run, its training thread's gaps between operations; None as above, and in runs of few steps."""
    in_calls: OperationPieces | None
    """In a CPU run, in which operation threads of communication were during their calls; None as above."""
    enqueuing: EnqueuingCalls | None
    """In a CPU run, the operations in which its threads began collectives; None as above."""
    stages: Mapping[str, PipelineStage]
    """Its stage in each pipeline, by the name of the group."""

    @property
    def stood_still(self) -> Activity | None:
        """When its host stood still while it seemed to compute; None where that is not known."""
        waiting = self.parts.waiting
        return waiting.sleeping if waiting and waiting.sleep_known else None

    @property
    def sets(self) -> WindowSets:
        """The sets of windows of `figures`."""
        return WindowSets.of(_sets(self.whole, self.windows))


def steps_and_compute(alone: Mapping[int, RankSummary]) -> dict[int, StepsAndCompute]:
    """Return by rank what matching may ask of the spans, so that it reads none again."""
    return {rank: (own.windows, own.coverage.compute) for rank, own in alone.items()}


def summarize_rank(
    timeline: RankTimeline, groups: Sequence[Group], graphs: BuiltGraphs, *, alone: bool, shares_process: bool = False
) -> RankSummary:
    """Summarize one rank; `groups` are its groups with other members, `alone` says that no other was recorded, and
    `shares_process` that its process is other ranks, too."""
    spans = timeline.spans
    windows, whole, covered = step_windows(timeline), whole_windows(timeline), Coverage.of(spans)
    before_recorded_work(timeline, covered)  # other ranks ask for it, when these spans are no longer in memory
    causes = own_causes(timeline, graphs)
    sets = _sets(whole, windows)
    slowed = interference(spans, has_kernels=timeline.has_device and timeline.basis == "trace")
    linkage = (size(spans), int((spans.launch_ns == NONE).sum())) if timeline.has_device else None
    runs = None if alone else readable_host_runs(timeline, covered)
    waiting = core_waiting(timeline, covered, runs)
    operations = _operations(timeline, windows, covered)
    host = _host_times(timeline, causes)
    idle = _idle(covered, whole)
    return RankSummary(
        windows=windows,
        whole=whole,
        figures=[
            figures
            if lost is None or figures.window_ns is None
            else replace(figures, interference_ns=lost[0], interference_low_ns=lost[1], interference_high_ns=lost[2])
            for figures, lost in zip(
                _figures(covered, sets, causes.idle or {}, waiting), slowed.within(WindowSets.of(sets)), strict=True
            )
        ],
        interference=slowed.value,
        coverage=covered,
        parts=own_parts(timeline, causes, waiting),
        no_causes_reason=causes.reason,
        host_losses=marked_losses(idle, timeline) if causes.reason == "no_host_events" else causes.host_losses,
        kernels=sum_kernels(timeline),
        noted={note: _noted(timeline, note) for note in LISTED},
        linkage=linkage,
        not_launched=before_first_launch(timeline),
        host=None if alone else host,
        long_pauses=None if causes.reason else long_pauses(timeline, host, _recorded_idle(idle, causes)),
        silences=thread_silences(timeline) if shares_process and host is not None else {},
        host_runs=runs,
        operations=operations.of_steps,
        operation_ns=operations.times_ns,
        operation_gaps=operations.gaps,
        in_calls=operations.in_calls,
        enqueuing=operations.enqueuing,
        stages=own_stages(timeline, groups, windows),
    )


def _host_times(timeline: RankTimeline, causes: OwnCauses) -> HostTimes | None:
    """Return what the host of a rank did; None also where its host events cannot be read."""
    if timeline.host_is_lost:
        return None
    try:
        return host_times(timeline, causes.polled)
    except HostEventsError:  # the rank's other figures do not need them; `RankTimeline.host_error` has it
        return None


class _Operations(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank's threads did in operations, as `RankSummary` has it."""

    of_steps: StepOperations | None = None
    times_ns: Mapping[str, int] = {}
    gaps: OperationGaps | None = None
    in_calls: OperationPieces | None = None
    enqueuing: EnqueuingCalls | None = None


def _operations(timeline: RankTimeline, windows: Sequence[StepWindow], cover: Coverage) -> _Operations:
    """Return in which operations the threads of a CPU run were; nothing also where its host events cannot be read."""
    if timeline.host_is_lost:
        return _Operations()
    try:
        pieces = operation_pieces(timeline)
        return _Operations(
            of_steps=None if pieces is None else step_operations(timeline, pieces, windows),
            times_ns={} if pieces is None else operation_times(timeline, pieces),
            gaps=None if pieces is None else operation_gaps(pieces, timeline.names, windows, cover.comm),
            in_calls=operations_in_calls(timeline),
            enqueuing=enqueuing_calls(timeline),
        )
    except HostEventsError:  # as above
        return _Operations()


def _idle(covered: Coverage, whole: Sequence[tuple[int, int]]) -> Intervals:
    windows = union((np.array([start for start, _ in whole]), np.array([end for _, end in whole])))
    return difference(windows, union(covered.comm, covered.compute, covered.copy))


def _recorded_idle(idle: Intervals, causes: OwnCauses) -> Intervals:
    """Return the idle time in which the device had nothing from before the recording to do."""
    before = (causes.idle or {}).get(START_OF_RECORDING)
    return idle if before is None else difference(idle, before)


def _sets(whole: Sequence[tuple[int, int]], windows: Sequence[StepWindow]) -> list[Sequence[tuple[int, int]]]:
    return [whole, *((each.window,) if each.window else () for each in windows)]


def _figures(
    covered: Coverage,
    sets: Sequence[Sequence[tuple[int, int]]],
    idle: Mapping[str, Intervals],
    waiting: CoreWaiting | None,
) -> list[Breakdown]:
    """Return the breakdown of each set of windows; a set without windows has no figures."""
    windows = WindowSets.of(sets)
    found = covered.breakdowns(windows)
    sums = {cause: windows.within(BusyTime(times)) for cause, times in idle.items() if cause != UNKNOWN}
    for_core = [0] * len(sets) if waiting is None else windows.within(waiting.idling)
    return [
        replace(figures, idle_causes=_with_rest(figures.idle_ns or 0, {name: each[at] for name, each in sums.items()},
                                                for_core[at]))
        if own
        else Breakdown()
        for at, (own, figures) in enumerate(zip(sets, found, strict=True))
    ]  # fmt: skip


def _with_rest(idle_ns: int, causes: Mapping[str, int], for_core_ns: int) -> dict[str, int]:
    """Return the causes that have any time; what they lack of the idle time is unknown.

    `for_core_ns` is how long the host waited for a core in all of it, evenly: what of that lies in what is not known,
    or was no call's, is a cause of its own.
    """
    every = {**causes, UNKNOWN: idle_ns - sum(causes.values())}
    may_be = {cause: ns for cause, ns in every.items() if cause in MAY_WAIT_FOR_CORE and ns > 0}
    left = sum(may_be.values())
    for_core_ns = min(for_core_ns, idle_ns) * left // max(idle_ns, 1)
    if for_core_ns:
        every[WAITED_FOR_CORE] = for_core_ns
    for cause, ns in may_be.items():
        own_ns = for_core_ns * ns // left
        every[cause] -= own_ns
        left, for_core_ns = left - ns, for_core_ns - own_ns
    return {cause: ns for cause, ns in every.items() if ns}


def _noted(timeline: RankTimeline, note: int) -> list[tuple[str, int, int]]:
    spans = timeline.spans
    rows = np.flatnonzero(spans.note == note)
    if not rows.size:
        return []
    codes, place = np.unique(spans.name[rows], return_inverse=True)
    counts = np.bincount(place, minlength=codes.size)
    totals = sum_by(place, spans.end_ns[rows] - spans.start_ns[rows], codes.size)
    names = [timeline.names[code] for code in codes.tolist()]
    return list(zip(names, counts.tolist(), totals.tolist(), strict=True))
