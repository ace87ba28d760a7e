"""The input of a prediction for a recording of any kind: its steps, interference, straggler, and assumptions."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.cross_rank.wait_transfer import mostly_waited_for
from overlapscope.analysis.graph.built_graphs import BuiltGraphs
from overlapscope.analysis.graph.job_replay import NO_HOST_EVENTS, WHY_NOT
from overlapscope.analysis.job_step.step_medians import StepMedians
from overlapscope.analysis.per_rank.interference import NO_INTERFERENCE, Interference, interference
from overlapscope.errors import InputError
from overlapscope.timeline.columns import Floats, Ints, size
from overlapscope.timeline.intervals import BusyTime, Intervals, union
from overlapscope.timeline.run import Run
from overlapscope.whatif.cost.link_fit import ALONE, LEAST_CALLS, SPREAD, determines_latency, fit_line
from overlapscope.whatif.ddp.calibrate import Assumption, Fit, assumed_slowdown
from overlapscope.whatif.ddp.ddp_recording import (
    BESIDE_COMPUTE,
    COMM_SHARE,
    LATENCY_US,
    LEAST_NOISE,
    LEAST_TRANSFER,
    US,
)
from overlapscope.whatif.parallelism import Parallelism, parallelism_of
from overlapscope.whatif.replay.graph import Call, CallShape, Graph
from overlapscope.whatif.run_replay.answers import RunReplay, run_replay
from overlapscope.whatif.step_graph.graph_changes import HOST_SHARE, LATENCY, same_launch_order
from overlapscope.whatif.step_graph.recorded_graph import UNPAIRED, RecordedGraphs, recorded_graphs

Calls = Sequence[tuple[CallShape, Floats]]
"""Shapes of calls, and the times in ns of the calls of each."""

LATE_SHARE: Final = (0.5, 1.0, 1.0)
"""Share of the late ends of collectives that is caused by the link and scales with transfer times: low, usual, high. It
is estimated from one link rate to another (gloo's last member to call a gather has the result half as long again after
the first, at 300 and at 600 Mbit/s); the rest is waiting for a CPU core."""
HOST_SHARE_RANGE: Final = (0.0, 0.06, 0.22)
"""Share of a transfer over sockets that the host needs, whatever the link: low, usual, high, from links half and twice
as fast in eleven jobs at 300 to 1200 Mbit/s: the median and the range of nine in ten; more at higher rates (see
benchmarks/WHATIF_FSDP.md)."""
FEW_STEPS: Final = 3
FEW_NOISE: Final = 0.03
"""The assumed noise where fewer steps were recorded."""


RANKS_OF_A_NODE: Final = 8
"""With so many ranks a call on devices has a latency of at most the high end of `LATENCY_US`, with more ranks in
proportion: a ring takes a step for each rank (see NCCL's `src/graph/tuning.cc` for the times of a step)."""


PARTLY: Final = 0.5
"""Least share of its time beside compute for a call to show how compute slows it. A choice: of less noise is most."""

OLDER: Final = "no host events were recorded: steps are replayed from the times of their collectives"


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """Steps that are not replayed, as they took much longer or shorter than the others."""

    steps: int
    longest_ns: int
    of_waiting: float
    """Share of all waiting that lies in them."""
    waited_besides: float
    """Share of the time in collectives of all other times that is waiting."""


class GraphCase(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The steps of a recording, ready to be replayed."""

    kind: Parallelism
    graphs: tuple[Graph, ...]
    """Steps whose programme can be changed; empty where the dependency graph answers all that can be asked."""
    slowdown_fit: Fit
    assumptions: tuple[Assumption, ...]
    noise: float
    """Relative error of the median step, from the variation of the recorded steps."""
    drift: float
    """Relative difference to the step of another run with the same settings: as much as one recorded step varies. A
    disturbance that lasts for minutes affects all steps of a short recording, so that more steps do not reduce it."""
    straggler: int | None
    """The rank that the others waited for most; None where its work cannot be compared with theirs."""
    waited: float
    """Share of the time in collectives that is waiting, without late ends: those are replayed as such."""
    waited_for: int | None
    """The rank with most of the blame, where one has by far the most."""
    left_out: LeftOut | None = None
    """What of the waiting lies in steps that are not replayed, as they took much longer or shorter; None without."""
    notes: tuple[str, ...]
    step: StepMedians | None = None
    """The recorded step in the figures of the headline."""
    replay: RunReplay | None = None
    """The dependency graph of the run, which answers for changes of durations; None without host events."""
    abstains: str = ""
    """Why the dependency graph of a recording with host events may not answer; nothing is predicted then."""

    @property
    def measured_ns(self) -> float:
        """The median step."""
        if not self.graphs and self.replay is not None:
            return self.replay.step_ns
        return float(np.median([each.measured_ns for each in self.graphs]))

    @property
    def middle(self) -> Graph:
        """The step that took the median time, or a little less."""
        return sorted(self.graphs, key=lambda each: each.measured_ns)[(len(self.graphs) - 1) // 2]


def graph_case(run: Run, cross_rank: CrossRank, graphs: BuiltGraphs | None = None) -> GraphCase:
    """Build the case of a recording. Raises InputError, which says what is missing and what to do."""
    kind = parallelism_of(run)
    asked = run_replay(run, cross_rank, graphs)
    replay = None if isinstance(asked, str) else asked
    found, notes = _recorded_graphs(run, cross_rank, kind, replay)
    steps_ns = np.array([each.measured_ns for each in found.graphs]) if found else _of(replay).job.steps_ns
    few = steps_ns.size < FEW_STEPS
    spread = 1.4826 * float(np.median(np.abs(steps_ns / np.median(steps_ns) - 1)))
    total = sum(each.collective_ns for each in cross_rank.waits.values())
    blame = {rank: each.blame_ns for rank, each in cross_rank.waits.items() if each.blame_ns}
    most = max(blame, key=lambda rank: blame[rank]) if blame else None
    missing = (run.world_size or 0) - len(run.ranks)
    if missing > 0:
        partial = f"{len(run.ranks)} of {run.world_size} ranks were recorded"
        notes.insert(0, f"{partial}: transfers may include waiting for others")
    notes += _notes_on_steps(steps_ns.size, replay, of_calls=found is not None)
    notes += [OLDER] if asked == NO_HOST_EVENTS else []
    unmatched = missing > 0 or len(run.ranks) < 2 or _mostly_unmatched(run, cross_rank)
    device = any(each.has_device for each in run.ranks.values())
    moving = {rank: _of(replay).moving(rank) for rank in run.ranks} if found is None else found.moving
    slowdown = _slowdown_fit(run, moving, device=device)
    comparable = replay is not None or (found is not None and same_launch_order(found.graphs[0]))
    return GraphCase(
        kind=kind,
        graphs=found.graphs if found else (),
        slowdown_fit=slowdown,
        assumptions=tuple(
            _assumptions(
                _of(replay).transfer_times() if found is None else _calls_of(found.graphs), device=device,
                is_partial=unmatched, graphs=found.graphs if found else (), slowdown=slowdown,
            )
        ),
        noise=FEW_NOISE if few else max(SPREAD * 1.2533 * spread / steps_ns.size**0.5, LEAST_NOISE),
        drift=FEW_NOISE if few else max(SPREAD * spread, LEAST_NOISE),
        straggler=most if comparable else None,
        waited=sum(each.wait_ns - each.late_end_ns for each in cross_rank.waits.values()) / total if total else 0.0,
        waited_for=mostly_waited_for(blame),
        left_out=None if replay is None else _left_out(cross_rank, replay),
        notes=tuple(notes),
        step=StepMedians.of(run, cross_rank),
        replay=replay,
        abstains=asked if isinstance(asked, str) and asked in WHY_NOT.values() else "",
    )  # fmt: skip


def _left_out(cross_rank: CrossRank, replay: RunReplay) -> LeftOut | None:
    """Return what of the waiting lies in steps that are not replayed; None without such steps, or any waiting."""
    windows = replay.job.unlike_windows
    if not windows:
        return None
    inside, besides = np.zeros(2), np.zeros(2)  # waiting, and time in collectives
    apart = union(tuple(np.array(windows, np.int64).T))
    for split in cross_rank.splits:
        block = split.block
        starts, ends = (
            np.array([cross_rank.clocks.aligned_ns(rank, each) for rank, each in zip(block.ranks, of, strict=True)])
            for of in (block.start_ns, block.end_ns)
        )
        middle = starts.min(axis=0) + (ends.max(axis=0) - starts.min(axis=0)) // 2
        left_out = BusyTime(apart).within(middle, middle + 1) > 0
        sums = np.array([(split.wait_ns - split.late_end_ns).sum(axis=0), (block.end_ns - block.start_ns).sum(axis=0)])
        inside += sums[:, left_out].sum(axis=1)
        besides += sums[:, ~left_out].sum(axis=1)
    if not inside[0]:
        return None
    return LeftOut(
        steps=len(windows), longest_ns=max(end - start for start, end in windows),
        of_waiting=float(inside[0] / (inside[0] + besides[0])),
        waited_besides=float(besides[0] / besides[1]) if besides[1] else 0.0,
    )  # fmt: skip


def _mostly_unmatched(run: Run, cross_rank: CrossRank) -> bool:
    """Return whether so many calls have no match that their times may hold waiting for other ranks."""
    total = sum(size(each.collectives) for each in run.ranks.values())
    return cross_rank.matching.unmatched + cross_rank.pairs.unmatched > UNPAIRED * total


def _notes_on_steps(steps: int, replay: RunReplay | None, *, of_calls: bool) -> list[str]:
    """Return what is to be known of the replayed steps; `of_calls` where their programme is."""
    notes = []
    if steps < FEW_STEPS:
        counted = "one complete step was" if steps == 1 else f"{steps} complete steps were"
        notes.append(f"{counted} recorded: too few to measure how much steps vary")
    if replay is None:
        return notes
    if replay.job.earlier and not of_calls:
        notes.append(f"the last {steps} steps are replayed: the measured step is their median")
    if replay.job.unlike:
        left_out = "is" if replay.job.unlike == 1 else "are"
        unlike = f"{replay.job.unlike} recorded step{'s' * (replay.job.unlike != 1)}"
        notes.append(f"{unlike} took much longer or shorter than the others and {left_out} left out")
    if replay.job.cut_short and not of_calls:
        notes.append(
            "the last step ends early (no step follows it): no change is replayed on it; the measured median includes "
            "it"
            if replay.job.cut_short == 1
            else f"the last steps of {replay.job.cut_short} recordings end early (no step follows them): no change is "
            "replayed on them; the measured median includes them"
        )
    if not replay.job.annotated:
        notes.append("no step was annotated: the whole recording counts as one step")
    return notes


def _of(replay: RunReplay | None) -> RunReplay:
    assert replay is not None
    return replay


def _recorded_graphs(
    run: Run, cross_rank: CrossRank, kind: Parallelism, replay: RunReplay | None
) -> tuple[RecordedGraphs | None, list[str]]:
    """Return the steps whose programme can be changed, and notes on them.

    Of a recording that the dependency graph answers for, only steps of FSDP2 are changed in their programme.
    """
    if replay is not None and kind != "fsdp":
        return None, []
    try:
        found = recorded_graphs(run, cross_rank)
    except InputError as error:
        if replay is None:
            raise
        return None, [f"its settings are not replayed: {error}"]
    notes = []
    if found.earlier:
        notes.append(f"the last {len(found.steps)} steps are replayed: the measured step is their median")
    if found.left_out:
        notes.append(f"{found.left_out} recorded steps have other collectives and are left out")
    return found, notes


def _slowdown_fit(run: Run, moving: Mapping[int, Intervals], *, device: bool) -> Fit:
    """Return the slowdown measured from kernels on a device, of the rank that slows most; else the assumed one."""
    if device:
        each = [interference(timeline.spans, moving[rank]).value for rank, timeline in run.ranks.items()]
        measured = [(one.times, one.low, one.high) for one in each if isinstance(one, Interference)]
        if measured:
            mean, low, high = max(measured)
            return Fit(slowdown=max(mean, 1.0), low=max(low, 1.0), high=max(high, 1.0), identified=True, reason="")
        why = " or ".join(sorted({NO_INTERFERENCE[one] for one in each if isinstance(one, str)}))
    else:
        why = "it cannot be measured for this kind of job in a recording without a device"
    return assumed_slowdown(why)


def _assumptions(
    calls: Calls, *, device: bool, is_partial: bool, graphs: Sequence[Graph], slowdown: Fit
) -> list[Assumption]:
    if not calls:
        return []
    found = [_slowed_by_compute(graphs, slowdown, device=device, is_partial=is_partial)] if graphs else []
    if not device:
        if graphs:
            low, value, high = LATE_SHARE
            how = "assumed to be all; the rest is waiting for a core"
            found.append(Assumption(name="late_ends_of_links", value=value, low=low, high=high, known_from=how))
        low, value, high = HOST_SHARE_RANGE
        how = "share of transfers, whatever the link: measured on other jobs"
        found.append(Assumption(name=HOST_SHARE, value=value, low=low, high=high, known_from=how))
    low, value, high, how = _latency_us(calls, device=device, is_partial=is_partial)
    found.append(Assumption(name=LATENCY, value=value, low=low, high=high, known_from=how))
    if is_partial:
        how = "may include waiting for ranks that were not recorded, or whose calls were not matched"
        found.append(Assumption(name="transfer_time", value=1.0, low=LEAST_TRANSFER, high=1.0, known_from=how))
    return found


def _slowed_by_compute(graphs: Sequence[Graph], slowdown: Fit, *, device: bool, is_partial: bool) -> Assumption:
    """Return how many times as long a call takes beside compute: measured on like calls where it can be; else how much
    of compute's slowdown it suffers."""
    slowed = slowed_beside([call for graph in graphs for call in graph.calls]) if device else None
    if slowed is None:
        how = "assumed to slow each other equally" if device else "assumed to be limited by its link alone"
        return Assumption.of("comm_share", COMM_SHARE[device], how)
    value, low, high = (max(each, 1.0) for each in slowed)
    how = "measured: like calls beside compute and free of it"
    if is_partial:
        how = "from like calls beside compute and free of it, which may wait for ranks that were not recorded"
        value, low, high = min(value, slowdown.high), 1.0, slowdown.high
    return Assumption.of(BESIDE_COMPUTE, (low, value, high), how)


def slowed_beside(calls: Sequence[Call]) -> tuple[float, float, float] | None:
    """Return how many times as long calls take beside compute as like calls free of it: mean, low, high (90 %
    interval); None where too few ran so. Time in part beside compute counts for as much of it."""
    kinds: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    for each in calls:
        if each.bytes and each.own_ns > 0:
            kinds.setdefault((each.link, each.op, each.bytes), []).append((each.own_ns, each.beside))
    ratio, wide, weight = 0.0, 0.0, 0
    for pairs in kinds.values():
        own, beside = np.array(pairs).T
        alone, many = own[beside < ALONE], beside >= PARTLY
        if min(alone.size, int(many.sum())) < LEAST_CALLS:
            continue
        times = 1 + (own[many] / alone.mean() - 1) / beside[many]
        error = np.hypot(alone.std() / alone.mean() / alone.size**0.5, times.std() / times.size**0.5)
        ratio, wide, weight = ratio + times.mean() * times.size, wide + (error * times.size) ** 2, weight + times.size
    if not weight:
        return None
    mean, half = ratio / weight, SPREAD * wide**0.5 / weight
    return float(mean), float(mean - half), float(mean + half)


def _latency_us(calls: Calls, *, device: bool, is_partial: bool) -> tuple[float, float, float, str]:
    """Return the low, usual and high latency of a call in us, and how it is known.

    What calls take more than their bytes explain is latency and waiting; where waits are not known, or it is more than
    any latency, it is not measured.
    """
    low, value, high = LATENCY_US[device]
    sizes, times = _transfers(calls)
    if not sizes.size or not determines_latency(sizes):
        return low, value, high, "could not be measured: the recorded sizes are too similar"
    base = fit_line(sizes, times, value * US)[0] / US
    most = high * max(max(shape.group_size for shape, _ in calls) / RANKS_OF_A_NODE, 1.0)
    if device and base > most:
        more = f"{base:,.0f} us more than their bytes explain, which is waiting, or compute beside them"
        return low, value, high, f"could not be measured: calls take {more}"
    if is_partial:
        how = "from calls of different sizes, which may wait for ranks that were not recorded"
        return min(low, base / 2), base, base * 2, how
    return base / 2, base, base * 2, "measured: calls of different sizes"


def _calls_of(graphs: Sequence[Graph]) -> Calls:
    return [(each, np.array([each.own_ns])) for graph in graphs for each in graph.calls]


def _transfers(calls: Calls) -> tuple[Ints, Floats]:
    """Return the sizes in bytes of the calls of the most frequent operation, and the median link time in ns of each."""
    by_op: dict[str, dict[int, list[Floats]]] = {}
    for shape, times_ns in calls:
        known = times_ns[times_ns > 0]
        if shape.bytes and known.size:
            by_op.setdefault(shape.op, {}).setdefault(shape.bytes, []).append(known)
    if not by_op:
        return np.empty(0, np.int64), np.empty(0)
    sizes = max(by_op.values(), key=lambda each: sum(times.size for found in each.values() for times in found))
    ordered = sorted(sizes)
    return np.array(ordered, np.int64), np.array([np.median(np.concatenate(sizes[each])) for each in ordered])
