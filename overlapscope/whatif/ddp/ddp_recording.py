"""Build a workload from a recording of DistributedDataParallel: times without the interference of its overlap."""

from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.across_ranks import CrossRank, match_and_align
from overlapscope.analysis.cross_rank.wait_transfer import mostly_waited_for
from overlapscope.analysis.graph.built_graphs import BuiltGraphs
from overlapscope.analysis.graph.job_replay import WHY_NOT
from overlapscope.analysis.job_step.step_medians import StepMedians
from overlapscope.display import percent_text
from overlapscope.errors import InputError
from overlapscope.timeline.columns import COMPUTE, NONE, Floats, Ints
from overlapscope.timeline.dimensions import PIPELINE
from overlapscope.timeline.intervals import EMPTY, Intervals, intersection, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import POINT_TO_POINT
from overlapscope.timeline.run import Run
from overlapscope.whatif.cost.link_fit import SPREAD, LinkTimes, determines_latency, link_times, transfer_curve
from overlapscope.whatif.ddp.calibrate import SLOWDOWN, Assumption, Fit, Measured, Values
from overlapscope.whatif.ddp.ddp_step import Settings
from overlapscope.whatif.ddp.not_ddp import why_not_ddp
from overlapscope.whatif.ddp.recorded_settings import recorded_settings, sent_elements
from overlapscope.whatif.ddp.recorded_steps import GLOO_THREADS, Recorded, recorded_steps
from overlapscope.whatif.ddp.slowdown import estimate_slowdown
from overlapscope.whatif.ddp.split_graphs import split_graphs
from overlapscope.whatif.result import WAITS_FIRST
from overlapscope.whatif.run_replay.answers import RunReplay, run_replay
from overlapscope.whatif.workload.workload import Gradients, Interference, Workload, without_interference

US: Final = 1e3
LATENCY_US: Final = {True: (5.0, 30.0, 100.0), False: (100.0, 300.0, 1000.0)}
"""Latency of a call: low, usual, high. True for a device (NCCL), False for gloo's sockets and threads."""
PER_BUCKET_US: Final = {True: (0.0, 30.0, 100.0), False: (0.0, 100.0, 300.0)}
"""Cost of a bucket besides its transfer (hooks, launch): low, usual, high; by whether there is a device."""
BESIDE_COMPUTE: Final = "transfer_beside_compute"
"""Name of the assumption of how many times as long a transfer takes beside compute, where it was measured."""
COMM_SHARE: Final = {True: (0.0, 1.0, 1.0), False: (0.0, 0.0, 1.0)}
"""How much of compute's slowdown a transfer suffers too, where it could not be measured. On a device both use the same
units and memory; a socket is limited by its link, and its threads need a core for little of the time."""
LEAST_NOISE: Final = 0.01
LEAST_TRANSFER: Final = 0.6
"""Smallest share of a recorded transfer that is transfer time, where it may include waiting for an unrecorded rank."""
MOSTLY_MATCHED: Final = 0.5
"""Where matched calls are less than this share of the time in calls, their waiting says little of the run."""
WAITING: Final = 0.5
"""Where waiting is at least this share of the time in collectives, it is the main problem."""


def time_beside_compute(values: Values) -> float:
    """Return how many times as long a transfer takes beside compute: measured, else its share of compute's slowdown."""
    beside = values.get(BESIDE_COMPUTE)
    return 1 + values.get("comm_share", 0.0) * (values[SLOWDOWN] - 1) if beside is None else beside


class RecordedCase(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A workload measured in a recording, with assumptions for what was not measured."""

    recorded: Recorded
    baseline: Settings
    measured: tuple[Measured, ...]
    assumptions: tuple[Assumption, ...]
    noise: float
    notes: tuple[str, ...]
    slowdown_fit: Fit
    """The slowdown of compute on the rank that slows most."""
    shares: tuple[float, ...]
    """By rank, how much of that slowdown it suffers: 0 to 1."""
    moved: LinkTimes
    width: int
    copied_ns_per_byte: float
    optimizer_ns: float
    fixed: str = ""
    """Why no other buckets can be replayed; empty where they can."""
    step: StepMedians | None = None
    """The recorded step in the figures of the headline."""
    replay: RunReplay | None = None
    """The dependency graph of the run, which answers for changes of durations; None without host events."""
    abstains: str = ""
    """Why the dependency graph of a recording with host events may not answer."""

    @property
    def lateness_ns(self) -> tuple[float, ...]:
        """How much later than the first rank each rank has its last gradient."""
        return self._late(self._free(self._nominal()))

    @property
    def halves(self) -> bool:
        """Whether all gradients have 32 bits, and are sent so."""
        return set(self.recorded.dtypes) == {"float32"}

    def workload(self) -> Workload:
        """Return the workload for the nominal values of all assumptions."""
        return self.build(self._nominal())

    def build(self, values: Values) -> Workload:
        """Return the workload for given values of the assumptions."""
        seen = self.recorded
        compute, comm = values[SLOWDOWN], time_beside_compute(values)
        free = self._free(values)
        late = self._late(free)
        # The latest rank decides when a bucket can be sent; how late each rank is, is kept apart in `lateness_ns`.
        ready = np.median(free.max(axis=0), axis=0) - max(late)
        order = np.argsort(ready, kind="stable")
        ready = np.maximum(ready[order], 1.0) * values["compute_time"]
        span = float(ready[-1])
        scale = values["transfer_time"]
        curve = transfer_curve(
            self.moved, comm, values.get("latency_us", 0.0) * US, ranks=len(seen.ranks), source="the recording"
        )
        forward = min(float(ready[0]), span / 3)
        return Workload(
            world_size=len(seen.ranks),
            forward_ns=forward,
            backward_ns=span - forward,
            optimizer_ns=self.optimizer_ns,
            gradients=Gradients(
                names=tuple(seen.names[each] for each in order.tolist()),
                sizes_bytes=seen.grad_bytes[order],
                kinds=tuple(("all", seen.dtypes[each]) for each in order.tolist()),
                ready_ns=ready,
                registered=np.arange(order.size)[::-1].copy(),
            ),
            curves=(replace(curve, times_ns=curve.times_ns * scale),),
            per_bucket_ns=values["per_bucket_us"] * US,
            pass_ns_per_byte=self.copied_ns_per_byte,
            lateness_ns=late if max(late) else (),
            interference=Interference(compute=compute, comm=comm),
            comm_width=self.width,
        )

    def _nominal(self) -> dict[str, float]:
        return {**{each.name: each.value for each in self.assumptions}, SLOWDOWN: self.slowdown_fit.slowdown}

    def _late(self, free: Floats) -> tuple[float, ...]:
        last = free[:, :, -1]
        late = np.median(last - last.min(axis=0), axis=1)
        return tuple((late - late.min()).tolist())

    def _free(self, values: Values) -> Floats:
        """Return (rank, step, gradient): when gradients of the last pass were ready without communication."""
        seen = self.recorded
        ready = seen.ready_ns[:, :, -1]
        origin = _origins(seen)
        # Every rank counts from its own start; the difference to the first rank's start is lateness.
        begun = origin - origin.min(axis=0)
        free = np.empty_like(ready)
        for rank in range(len(seen.ranks)):
            slowdown = 1 + (values[SLOWDOWN] - 1) * self.shares[rank]
            for step in range(len(seen.steps)):
                busy = _moving(seen, rank, step)
                lasted = without_interference(np.sort(ready[rank, step]), busy, slowdown)
                lasted -= without_interference(origin[rank, step : step + 1], busy, slowdown)
                free[rank, step] = lasted + begun[rank, step]
        return free - self._overheads(values)

    def _overheads(self, values: Values) -> Floats:
        """Return the time of launching and filling buckets before each gradient was ready: the replay adds its own."""
        sizes = self.recorded.grad_bytes
        filled = np.cumsum(self.recorded.elements)
        closed = np.cumsum(sent_elements(self.recorded))
        buckets = np.searchsorted(closed, filled, side="left")
        before = np.concatenate(([0], np.cumsum(sizes)[:-1]))
        return buckets * values["per_bucket_us"] * US + before * self.copied_ns_per_byte


def ddp_case_of_run(run: Run, cross_rank: CrossRank | None = None, graphs: BuiltGraphs | None = None) -> RecordedCase:
    """Return the workload of a recording. Raises InputError, saying what is missing and what to do."""
    cross_rank = cross_rank or match_and_align(run)
    try:
        seen = recorded_steps(run, cross_rank)
    except InputError as error:
        why = InputError(why_not_ddp(run) or str(error))
        raise InputError(f"{_waiting_message(run, cross_rank)}{why}") from why
    device = any(each.has_device for each in run.ranks.values())
    transfers = {rank: _own_clock(rank, seen.transfers(at), cross_rank) for at, rank in enumerate(seen.ranks)}
    computing = {rank: _computing(run, rank, seen) for rank in seen.ranks}
    steps = {rank: _windows(run, rank, seen) for rank in seen.ranks}
    slowdown_fit, shares = estimate_slowdown(seen, run.ranks, transfers, computing, steps)
    moved = link_times(
        seen.bytes, seen.begun_ns.max(axis=0), np.median(seen.done_ns, axis=0), seen.ready_ns[:, :, -1].max(axis=(0, 2))
    )
    if not (moved.own_ns > 0).all():
        raise InputError("some all-reduces ended before they began on every rank: the recorded times are wrong")
    measured_ns = seen.steps_ns
    baseline, notes = recorded_settings(run, seen)
    copied, optimizer = _copy_and_optimizer(run, seen, baseline)
    spread = float(np.median(np.abs(measured_ns - np.median(measured_ns))) * 1.4826 / np.median(measured_ns))
    steps_error = 1.2533 * spread / len(seen.steps) ** 0.5
    asked = run_replay(run, cross_rank, graphs)
    return RecordedCase(
        recorded=seen,
        baseline=baseline,
        measured=(Measured(settings=baseline, step_ns=float(np.median(measured_ns))),),
        assumptions=tuple(_assumptions(seen, moved, device=device, is_partial=_is_partial(run, seen))),
        noise=max(SPREAD * steps_error * 2**0.5, LEAST_NOISE),
        notes=(*notes, *_notes(run, seen)),
        slowdown_fit=slowdown_fit,
        shares=shares,
        moved=moved,
        width=1 if device else GLOO_THREADS,
        copied_ns_per_byte=copied,
        optimizer_ns=optimizer,
        fixed=split_graphs(next(iter(run.ranks.values())), seen),
        step=StepMedians.of(run, cross_rank),
        replay=None if isinstance(asked, str) else asked,
        abstains=asked if isinstance(asked, str) and asked in WHY_NOT.values() else "",
    )


def _origins(seen: Recorded) -> Floats:
    """Return (rank, step): the start of the last pass: the step's start, or the end of the pass before it."""
    if seen.passes == 1:
        return seen.start_ns
    ended: Floats = seen.ready_ns[:, :, -2].max(axis=-1)
    return ended


def _moving(seen: Recorded, rank: int, step: int) -> Floats:
    """Return rows (start, end) in which all-reduces moved data on a rank."""
    begun, done = seen.begun_ns[:, step].max(axis=0), seen.done_ns[rank, step]
    covered = union((np.rint(begun).astype(np.int64), np.rint(done).astype(np.int64)))
    return np.stack((covered.starts, covered.ends), axis=1).astype(np.float64)


def _own_clock(rank: int, shared: Intervals, cross_rank: CrossRank) -> Intervals:
    """Convert intervals from the shared clock to a rank's own; clock drift is far below the precision needed here."""
    if not shared.starts.size:
        return EMPTY
    zero = cross_rank.clocks.aligned(rank, np.array([cross_rank.clocks.reference_ns], np.int64))[0]
    shift = cross_rank.clocks.reference_ns - round(float(zero))
    return Intervals(shared.starts + shift, shared.ends + shift)


def _windows(run: Run, rank: int, seen: Recorded) -> Ints:
    table = run.ranks[rank].steps
    rows = np.array([int(np.flatnonzero(table.step == step)[0]) for step in seen.steps], np.int64)
    return np.stack((table.start_ns[rows], table.end_ns[rows]), axis=1)


def _computing(run: Run, rank: int, seen: Recorded) -> Intervals:
    """Return when a rank computed, until its last gradient was ready."""
    timeline = run.ranks[rank]
    spans = timeline.spans
    rows = np.flatnonzero(spans.kind == COMPUTE)
    mine = union((spans.start_ns[rows], spans.end_ns[rows]))
    table = timeline.gradients
    windows = _windows(run, rank, seen)
    ends = np.array([table.ready_ns[table.step == step].max() for step in seen.steps], np.int64)
    return intersection(mine, union((windows[:, 0], ends)))


def _copy_and_optimizer(run: Run, seen: Recorded, baseline: Settings) -> tuple[float, float]:
    """Return the ns per byte of copying buckets out, and the ns after the last bucket: mostly the optimizer."""
    copied = []
    for rank in seen.ranks if not baseline.gradient_as_bucket_view else ():
        timeline = run.ranks[rank]
        if timeline.basis != "events" or timeline.has_device:
            continue
        spans, table = timeline.spans, timeline.gradients
        code = timeline.names.index("backward") if "backward" in timeline.names else -2
        for step in seen.steps:
            last = table.ready_ns[table.step == step].max()
            of_step = (spans.step == step) & (spans.name == code) & (spans.kind == COMPUTE)
            # The pieces of one backward have one launch; another one, of another model, copies nothing of this.
            begun = spans.launch_ns[of_step & (spans.start_ns <= last)].max(initial=NONE)
            rows = of_step & (spans.start_ns > last) & (spans.launch_ns <= begun)
            copied.append(int((spans.end_ns[rows] - spans.start_ns[rows]).sum()))
    per_byte = float(np.median(copied)) / float(seen.grad_bytes.sum()) if copied else 0.0
    last = np.maximum(seen.done_ns.max(axis=2), seen.ready_ns[:, :, -1].max(axis=2))
    rest = float(np.median(seen.end_ns.max(axis=0) - last.max(axis=0)))
    return per_byte, max(rest - per_byte * float(seen.bytes[-1]), 0.0)


def _assumptions(seen: Recorded, moved: LinkTimes, *, device: bool, is_partial: bool) -> list[Assumption]:
    found = [Assumption.of("per_bucket_us", PER_BUCKET_US[device], "assumed, not measured")]
    if not determines_latency(moved.reliable_sizes):
        how = "could not be measured: the recorded sizes are too similar"
        found.append(Assumption.of("latency_us", LATENCY_US[device], how))
    slowed = moved.slowed
    if slowed is None:
        how = "assumed to slow each other equally" if device else "assumed to be limited by its link alone"
        found.append(Assumption.of("comm_share", COMM_SHARE[device], how))
    else:
        mean, low, high = slowed
        how = "measured: the same size beside compute and alone"
        found.append(Assumption.of(BESIDE_COMPUTE, (low, mean, high), how))
    error = _error(moved.own_ns / _medians(moved))
    least, how = 1 / (1 + error), "variation of the recorded transfers"
    if is_partial:
        least, how = min(least, LEAST_TRANSFER), "may include waiting for ranks that were not recorded"
    found.append(Assumption.of("transfer_time", (least, 1.0, 1 + error), how))
    lasted = (seen.ready_ns[:, :, -1].max(axis=2) - _origins(seen)).max(axis=0)
    error = _error(lasted / np.median(lasted))
    found.append(Assumption.of("compute_time", (1 / (1 + error), 1.0, 1 + error), "variation of the recorded steps"))
    return found


def _medians(moved: LinkTimes) -> Floats:
    found = np.empty_like(moved.own_ns)
    for size in np.unique(moved.bytes).tolist():
        found[moved.bytes == size] = np.median(moved.own_ns[moved.bytes == size])
    return np.maximum(found, 1.0)


def _error(ratios: Floats) -> float:
    """Return half the 90 % interval of the median of ratios that scatter about 1."""
    return float(SPREAD * 1.2533 * 1.4826 * np.median(np.abs(ratios - 1)) / ratios.size**0.5)


def _is_partial(run: Run, seen: Recorded) -> bool:
    return run.world_size is None or len(seen.ranks) < run.world_size


def _notes(run: Run, seen: Recorded) -> list[str]:
    found = []
    if _is_partial(run, seen):
        world = run.world_size or "an unknown number of"
        recorded = f"{len(seen.ranks)} of {world} ranks were recorded"
        found.append(f"{recorded}: transfers may include waiting for the others")
    if seen.unsynced:
        often = 1 + seen.unsynced / max(len(seen.steps) - 1, 1)
        period = f"one recorded step in {often:.3g} reduces gradients, the others accumulate them (no_sync)"
        found.append(f"{period}: the step here is one that reduces, so a gain counts only once in so many steps")
    if seen.earlier:
        found.append(f"the last {len(seen.steps)} steps are replayed: the measured step is their median")
    if seen.left_out > 0:
        found.append(f"{seen.left_out} recorded steps did other work or are incomplete, and are left out")
    return found


def _waiting_message(run: Run, cross_rank: CrossRank) -> str:
    """Return the start of a message where waiting dominates; else an empty text.

    It says nothing where most of the time is in calls without a match, nor of a pipeline, whose stages come to their
    common calls one after the other, by the schedule.
    """
    total = sum(each.collective_ns for each in cross_rank.waits.values())
    waited = sum(each.wait_ns - each.late_end_ns for each in cross_rank.waits.values())
    called, of_stages = _in_calls(run)
    if not total or waited < WAITING * total or total < MOSTLY_MATCHED * called or of_stages:
        return ""
    most = mostly_waited_for({rank: each.blame_ns for rank, each in cross_rank.waits.items()})
    left_out = cross_rank.pairs.matched or cross_rank.uneven or cross_rank.not_split
    mostly = "" if most is None or left_out else f", mostly for rank {most}"
    return f"waiting is {percent_text(waited / total)} of the time in its collectives{mostly}: {WAITS_FIRST}; also, "


def _in_calls(run: Run) -> tuple[int, bool]:
    """Return the time in ns in calls, over all ranks, and whether a pipeline makes some, or messages most of it."""
    called, in_messages, of_stages = 0, 0, False
    for each in run.ranks.values():
        calls = each.collectives
        took = np.where((calls.start_ns == NONE) | (calls.end_ns == NONE), 0, calls.end_ns - calls.start_ns)
        called += int(took.sum())
        in_messages += int(took[rows_named(calls.op, each.names, POINT_TO_POINT.__contains__)].sum())
        of_stages |= bool(rows_named(calls.dimension, each.names, PIPELINE.__eq__).any())
    return called, of_stages or in_messages > called / 2
