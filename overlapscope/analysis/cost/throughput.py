"""Compute what a run processes and what its losses cost: tokens/s, MFU, goodput, GPU-hours a day.

All definitions are in docs/definitions.md. Amounts (tokens, samples, model FLOPs) are never guessed: they are recorded
by `scope.step`, stated by a training log, or passed as options, in this order.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Final, Literal, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.common.cause_table import EVENTS_MISSING, NO_CAUSES, START_OF_RECORDING
from overlapscope.analysis.common.job_identity import fewest_ranks
from overlapscope.analysis.cost.late_starts import LateStarts, late_starts
from overlapscope.analysis.cost.peak_flops import published_peak_tflops
from overlapscope.analysis.cost.repeated_part import RepeatedPart
from overlapscope.analysis.cost.whole_cycles import Lead, Windows, cut_short, lead_of
from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.per_rank.breakdown import Breakdown
from overlapscope.analysis.per_rank.steps import StepWindow, complete_steps, of_the_same_ranks
from overlapscope.analysis.rank_summary import RankSummary
from overlapscope.timeline.columns import NONE, Floats, size
from overlapscope.timeline.facts import Facts
from overlapscope.timeline.intervals import length, union
from overlapscope.timeline.run import RankTimeline, Run

HOURS_A_DAY: Final = 24
TFLOP: Final = 1e12
ALIKE: Final = 1.1
"""Recorded ranks stand for the others of the job only where none of them processed more than this times another."""
ROLES: Final = 3.0
"""Recorded ranks stand for the others in GPU-hours only where none of them computes more than this times as long as
another: else they have roles, as a parameter server and its workers, and which role the others have is not known. A
choice: stages and experts differ by less."""
ITERATION: Final = "iteration"
NO_STEP: Final = "no complete step was recorded"
KnownFrom = Literal["recorded", "log", "option"]
T = TypeVar("T")


class Amount(msgspec.Struct, kw_only=True, frozen=True):
    """How much is processed: mean over the complete steps, and that over their time."""

    per_step: float
    per_second: float | None = None
    known_from: KnownFrom
    extrapolated: bool = False
    """Whether it was recorded on some ranks of the job only, and taken for the others."""


class Throughput(msgspec.Struct, kw_only=True, frozen=True):
    """What a run processes, and what its losses cost a day; null where not known, with the reason in `reasons`."""

    steps: int
    """Steps behind the figures: those that the most ranks recorded completely, but for `cut_short`; without any,
    iterations of a log."""
    ranks: int
    """Recorded ranks behind the figures."""
    devices: int | None
    """Ranks of the job, one device each; where the size of the job is not known, the fewest that the numbers of
    recorded ranks, and members and sizes of groups, allow."""
    devices_at_least: bool = False
    """Whether that is a lower bound, above the number of recorded ranks: so are amounts of the job that were taken from
    recorded ranks, and its GPU-hours."""
    roles_differ: bool = False
    """Whether not all ranks were recorded, and those that were compute so differently that they stand for no others:
    GPU-hours are then of the recorded ranks alone."""
    on_device: bool
    """False for CPU runs, which spend no GPU-hours."""
    device: str | None
    time_ns: int | None
    """Time that these steps took on the rank where they took longest; what ranks begin or end later is not added."""
    time_from: Literal["recorded", "log"] | None
    tokens: Amount | None = None
    """Of the whole job; likewise `samples`."""
    samples: Amount | None = None
    flops_per_device: Amount | None = None
    """Model FLOPs of one device: mean over the ranks."""
    dtype: str | None = None
    """Data type of the matrix products, as passed."""
    peak_tflops: float | None = None
    """Peak of one device in TFLOP/s (1e12)."""
    peak_from: Literal["option", "published"] | None = None
    mfu: float | None = None
    """Model FLOPs utilization: `flops_per_device.per_second` over the peak."""
    goodput: float | None = None
    """Share of the recorded wall time that lies in complete steps."""
    goodput_time_ns: int | None = None
    """That wall time: from the first step's begin to the last step's end of each recording, mean over ranks."""
    cut_short: list[int] = []
    """Numbers of complete steps that no step follows and that lack what the others lose before the next one begins:
    all these figures, and sums of causes over all steps, are without them."""
    lead: Lead | None = None
    """What came before the first launch of the first step, where it is more than any step idles; no window holds it,
    and so none of these figures."""
    late_starts: LateStarts | None = None
    """Idle time before the first kernels of ranks that begin later than others, where their hosts were recorded: a loss
    of its own, and part of the time that `exposed_fraction` and `idle_fraction` are of."""
    repeated: RepeatedPart | None = None
    """Without marks of steps, the part of the recording that repeats, where most of the recording is before it."""
    exposed_fraction: float | None = None
    """Exposed communication over time: sums over ranks and these steps (else over `repeated`, else over whole
    recordings) with `late_starts`, both without what is due to the start of the recording (cause `start_of_recording`
    of exposed and idle time): no step repeats it. Null, as is that of idle time, where a recording is sampled, or its
    file cut."""
    idle_fraction: float | None = None
    exposed_gpu_hours_a_day: float | None = None
    """exposed_fraction x devices x 24; null for CPU runs."""
    idle_gpu_hours_a_day: float | None = None
    late_starts_gpu_hours_a_day: float | None = None
    """`late_starts` as a share of the same time; null without."""
    exposed_causes_gpu_hours_a_day: dict[str, float] = {}
    """`exposed_gpu_hours_a_day` by cause, divided as the headline's exposed time without `start_of_recording`; they add
    up to it."""
    idle_causes_gpu_hours_a_day: dict[str, float] = {}
    price_per_gpu_hour: float | None = None
    exposed_price_a_day: float | None = None
    idle_price_a_day: float | None = None
    reasons: dict[str, str] = {}
    """Why a figure is null, by its name."""

    @property
    def paid_devices(self) -> int | None:
        """Return how many devices GPU-hours are of."""
        return self.ranks if self.roles_differ else self.devices


class Stated(msgspec.Struct, kw_only=True, frozen=True):
    """What the user states about a run; amounts are of the whole job."""

    tokens_per_step: float | None = None
    flops_per_step: float | None = None
    peak_tflops: float | None = None
    dtype: str | None = None
    price_per_gpu_hour: float | None = None


def gpu_hours_a_day(fraction: float | None, devices: int) -> float | None:
    """Return the GPU-hours of a day that a share of the time of so many GPUs is: the one formula of all losses."""
    return None if fraction is None else fraction * devices * HOURS_A_DAY


def throughput(
    run: Run,
    alone: Mapping[int, RankSummary],
    figures: Mapping[int, Sequence[Breakdown]],
    repeated: RepeatedPart | None,
    cross_rank: CrossRank,
) -> Throughput:
    """Return what the run itself states.

    `figures` holds the breakdowns of each rank with all causes: of its whole recording, then of each step; `repeated`
    is the part that repeats (`repeated_part`). Where a clock was set in the recording, times of ranks are not compared.
    """
    timed = {rank: own for rank, own in alone.items() if own.figures[0].window_ns}
    steps, cut = _counted_steps(run, timed, figures)
    parts = [its for step in steps for _, its in step.values()] or [figures[rank][0] for rank in timed]
    windows: dict[int, list[StepWindow]] = {}
    for step in steps:
        for rank, (at, _) in step.items():
            windows.setdefault(rank, []).append(at)
    with_unseen = len(run.ranks) + 1 if cross_rank.waited_for_unseen_ns else 0
    devices = run.world_size or max(fewest_ranks(run), with_unseen) or None
    reasons: dict[str, str] = {}
    lacking = next((own.no_causes_reason for own in timed.values() if own.no_causes_reason in EVENTS_MISSING), None)
    if lacking is not None:
        parts = []
        reasons["exposed_fraction"] = reasons["idle_fraction"] = NO_CAUSES[lacking]
    time_ns = max(map(_time_of, windows.values()), default=None)
    elapsed = _logged(run.facts, "elapsed_ms") if not timed else []
    if elapsed:
        time_ns = round(sum(elapsed) * 1e6)
    late = None
    if parts and repeated is None:
        wholes = {rank: timed[rank].whole for rank in windows or timed}
        clocks = None if cross_rank.clock_set else cross_rank.clocks
        late = late_starts(run, clocks, wholes, windows, _repeated_ns(parts))
    found = Throughput(
        steps=len(steps) or len(elapsed),
        ranks=len(windows) or len(timed),
        devices=devices,
        devices_at_least=not run.world_size and (devices or 0) > len(run.ranks),
        roles_differ=(devices or 0) > len(windows or timed)
        and _have_roles(steps, [figures[rank][0] for rank in timed]),
        on_device=any(each.has_device for each in run.ranks.values()),
        device=_text(run.fingerprint.get("device")),
        time_ns=time_ns,
        time_from=None if time_ns is None else "log" if elapsed else "recorded",
        tokens=_amount("tokens", run, windows, reasons),
        samples=_amount("samples", run, windows, reasons),
        flops_per_device=_flops_per_device(run, windows, reasons),
        cut_short=cut,
        lead=lead_of(steps, run.ranks, 0 if late is None else late.mean_ns),
        repeated=repeated,
        reasons=reasons,
    )
    return with_stated(_with_goodput(_with_losses(found, parts, repeated, late), run, alone), Stated())


def _counted_steps(
    run: Run, timed: Mapping[int, RankSummary], figures: Mapping[int, Sequence[Breakdown]]
) -> tuple[list[Windows], list[int]]:
    """Return the complete steps that figures are of, and the numbers of those that are left out: they are cut short."""
    steps = of_the_same_ranks(complete_steps({
        rank: [
            (at.step, at.complete and at.window is not None, (at, its))
            for at, its in zip(own.windows, figures[rank][1:], strict=True)
        ]
        for rank, own in timed.items()
    }))  # fmt: skip
    every = {rank: own.windows for rank, own in timed.items() if run.ranks[rank].has_device}
    short = cut_short(steps, every, run.ranks)
    cut = sorted({next(iter(steps[at].values()))[0].step for at in short})
    return [step for at, step in enumerate(steps) if at not in short], cut


def _have_roles(steps: Sequence[Windows], wholes: Sequence[Breakdown]) -> bool:
    """Return whether ranks compute so differently that they have roles: in these steps, without any in `wholes`, their
    whole recordings."""
    computed: defaultdict[int, list[int]] = defaultdict(list)
    for step in steps:
        for rank, (_, its) in step.items():
            computed[rank].append(its.compute_ns or 0)
    means = [fmean(own) for own in computed.values()] or [each.compute_ns or 0 for each in wholes]
    return len(means) > 1 and max(means) > ROLES * min(means)


def _with_losses(
    found: Throughput, parts: Sequence[Breakdown], repeated: RepeatedPart | None, late: LateStarts | None
) -> Throughput:
    """Add what is lost, as shares of one time: that of these parts, and what ranks began later."""
    late_ns = 0 if late is None else late.mean_ns * found.ranks
    exposed, idle = _fractions(parts, repeated, late_ns)
    lost = late_ns / (_repeated_ns(parts) + late_ns) if late_ns else None
    hours = gpu_hours_a_day(lost, found.paid_devices) if found.paid_devices else None
    return replace(
        found, late_starts=late, late_starts_gpu_hours_a_day=hours, exposed_fraction=exposed, idle_fraction=idle
    )


def with_stated(found: Throughput, stated: Stated) -> Throughput:
    """Return the figures with what the user states filled in where the run does not know it, and all that follows."""
    return _with_hours(_with_mfu(_with_amounts(found, stated), stated), stated)


def _with_amounts(found: Throughput, stated: Stated) -> Throughput:
    tokens, flops, reasons = found.tokens, found.flops_per_device, dict(found.reasons)
    if tokens is None and stated.tokens_per_step is not None:
        tokens = Amount(per_step=stated.tokens_per_step, known_from="option")
    if flops is None and stated.flops_per_step is not None and found.devices:
        flops = Amount(per_step=stated.flops_per_step / found.devices, known_from="option")
    rates = found.steps / (found.time_ns / 1e9) if found.time_ns else None
    known: dict[str, Amount] = {}
    for name, amount in (("tokens", tokens), ("samples", found.samples), ("flops_per_device", flops)):
        if amount is not None:
            reasons.pop(name, None)
            known[name] = replace(amount, per_second=None if rates is None else amount.per_step * rates)
            if rates is None:
                reasons[f"{name}.per_second"] = NO_STEP
    return replace(found, reasons=reasons, **known)


def _with_mfu(found: Throughput, stated: Stated) -> Throughput:
    flops, dtype, reasons = found.flops_per_device, stated.dtype or found.dtype, dict(found.reasons)
    peak, peak_from = _peak(found, dtype, stated)
    mfu = flops.per_second / (peak * TFLOP) if flops and flops.per_second is not None and peak else None
    reasons.pop("mfu", None)
    if flops is None or flops.per_second is None:
        reasons["mfu"] = "model FLOPs are not known" if flops is None else NO_STEP
    elif mfu is None:
        reasons["mfu"] = _why_no_peak(found, dtype)
    elif mfu > 1:
        reasons["mfu"] = f"{mfu * 100:,.1f} % of the peak cannot be: the FLOPs, the peak or the dtype are not right"
        mfu = None
    return replace(found, dtype=dtype, peak_tflops=peak, peak_from=peak_from, mfu=mfu, reasons=reasons)


def _with_hours(found: Throughput, stated: Stated) -> Throughput:
    price = found.price_per_gpu_hour if stated.price_per_gpu_hour is None else stated.price_per_gpu_hour
    figures: dict[str, float | None] = {"price_per_gpu_hour": price}
    reasons = dict(found.reasons)
    for name, fraction in (("exposed", found.exposed_fraction), ("idle", found.idle_fraction)):
        hours = gpu_hours_a_day(fraction, found.paid_devices) if found.on_device and found.paid_devices else None
        figures[f"{name}_gpu_hours_a_day"] = hours
        figures[f"{name}_price_a_day"] = None if hours is None or price is None else hours * price
        if hours is None:
            no_times = name == "idle" or found.idle_fraction is None
            why = "no times were recorded" if no_times else "no communication was recorded"
            why = reasons.get(f"{name}_fraction", why)
            reasons[f"{name}_gpu_hours_a_day"] = why if found.on_device else "a run without GPUs spends no GPU-hours"
    return replace(found, reasons=reasons, **figures)


def _peak(
    found: Throughput, dtype: str | None, stated: Stated
) -> tuple[float | None, Literal["option", "published"] | None]:
    if stated.peak_tflops is not None:
        return stated.peak_tflops, "option"
    if stated.dtype is None and found.peak_from == "option":
        return found.peak_tflops, "option"
    peak = published_peak_tflops(found.device, dtype) if found.device and dtype else None
    return peak, None if peak is None else "published"


def _why_no_peak(found: Throughput, dtype: str | None) -> str:
    if not found.on_device or not found.device:
        return (
            "the device is not known; pass --peak-tflops"
            if found.on_device
            else "a run without GPUs; pass --peak-tflops"
        )
    if dtype is None:
        return "the data type of the matrix products is not known; pass --dtype, or --peak-tflops"
    return f"no published peak is listed for {found.device} and {dtype}; pass --peak-tflops"


def _time_of(windows: Sequence[StepWindow]) -> int:
    """Return how long a rank was in these steps, by its own clock."""
    times = np.array([each.window or (0, 0) for each in windows], np.int64)
    return length(union((times[:, 0], times[:, 1])))


def _amount(name: str, run: Run, windows: Mapping[int, Sequence[StepWindow]], reasons: dict[str, str]) -> Amount | None:
    """Return what a step of the whole job processes: the sum over ranks, mean over steps."""
    totals = _recorded(name, run, windows, reasons)
    if totals is None:
        logged = set(_logged(run.facts, f"{name}_per_step"))
        return Amount(per_step=logged.pop(), known_from="log") if len(logged) == 1 else None
    steps = len(next(iter(windows.values())))
    of_recorded = sum(totals.values()) / steps
    world = run.world_size or max(fewest_ranks(run), len(totals))
    if world == len(totals):
        return Amount(per_step=of_recorded, known_from="recorded")
    if max(totals.values()) > ALIKE * min(totals.values()):
        reasons[name] = (
            f"{len(totals)} of {world} ranks have complete steps, and differ in {name}: the others are not known"
        )
        return None
    return Amount(per_step=of_recorded * world / len(totals), known_from="recorded", extrapolated=True)


def _flops_per_device(run: Run, windows: Mapping[int, Sequence[StepWindow]], reasons: dict[str, str]) -> Amount | None:
    name = "flops_per_device"
    totals = _recorded("flops", run, windows, reasons, said_as=name)
    if totals is None:
        logged = set(_logged(run.facts, "tflop_per_gpu"))
        return Amount(per_step=logged.pop() * TFLOP, known_from="log") if len(logged) == 1 else None
    steps = len(next(iter(windows.values())))
    world = run.world_size or max(fewest_ranks(run), len(totals))
    some = len(totals) < world
    if some and max(totals.values()) > ALIKE * min(totals.values()):
        reasons[name] = f"{len(totals)} of {world} ranks have complete steps, and differ in FLOPs"
        return None
    return Amount(per_step=sum(totals.values()) / steps / len(totals), known_from="recorded", extrapolated=some)


def _recorded(
    name: str,
    run: Run,
    windows: Mapping[int, Sequence[StepWindow]],
    reasons: dict[str, str],
    said_as: str | None = None,
) -> dict[int, float] | None:
    """Return for each rank the sum over its steps; None, with the reason, where any of them is not known."""
    found = {rank: _of_steps(run.ranks[rank], name, theirs) for rank, theirs in windows.items()}
    known = {rank: float(values.sum()) for rank, values in found.items() if not np.isnan(values).any()}
    if not found:
        reasons[said_as or name] = NO_STEP
        return None
    if len(known) == len(found):
        return known
    some = sum(int((~np.isnan(values)).sum()) for values in found.values())
    steps = sum(values.size for values in found.values())
    reasons[said_as or name] = (
        f"recorded for {some} of {steps} complete steps of all ranks: every rank must pass {name} in every step"
        if some
        else "neither recorded nor stated"
    )
    return None


def _of_steps(timeline: RankTimeline, name: str, windows: Sequence[StepWindow]) -> Floats:
    """Return what was recorded for each of the rank's steps, NaN where nothing was.

    Several recordings of a rank may use the same step numbers: of equal ones it is the nearest in time.
    """
    found = np.full(len(windows), np.nan)
    table = timeline.telemetry
    if not size(table) or name not in timeline.names:
        return found
    rows = np.flatnonzero((table.name == timeline.names.index(name)) & (table.step != NONE) & (table.value >= 0))
    order = rows[np.lexsort((table.time_ns[rows], table.step[rows]))]
    numbers, times, values = table.step[order], table.time_ns[order], table.value[order]
    wanted = np.array([each.step for each in windows], np.int64)
    first, last = np.searchsorted(numbers, wanted), np.searchsorted(numbers, wanted, side="right")
    for at in np.flatnonzero(last > first).tolist():
        own = slice(int(first[at]), int(last[at]))
        begin = (windows[at].window or (0, 0))[0]
        found[at] = values[own][np.abs(times[own] - begin).argmin()]
    return found


def _logged(facts: Facts, name: str) -> list[float]:
    """Return the figures of an iteration that training logs state under a name; not those of the first iteration of a
    log, which holds the warm-up.
    """
    figures = facts.figures
    codes = {each: code for code, each in enumerate(facts.names)}
    rows = np.flatnonzero((figures.name == codes.get(name, -2)) & (figures.subject == codes.get(ITERATION, -2)))
    _, firsts = np.unique(figures.source[rows], return_index=True)
    if name == "elapsed_ms":
        rows = np.delete(rows, firsts)
    values: list[float] = figures.value[rows].tolist()
    return values


def _with_goodput(found: Throughput, run: Run, alone: Mapping[int, RankSummary]) -> Throughput:
    """Add the share of wall time in complete steps, which only our own marks show: those of profilers have no gaps."""
    marked = [rank for rank, timeline in run.ranks.items() if "mode" in timeline.recorded]
    inside, covered = np.sum([_in_steps(run.ranks[rank], alone[rank].windows) for rank in marked] or [(0, 0)], axis=0)
    if covered and len(marked) == len(run.ranks):
        return replace(found, goodput=float(inside / covered), goodput_time_ns=round(float(covered / len(marked))))
    why = "no two steps were recorded one after the other" if marked else "only scope.step() marks where a step ends"
    return replace(found, reasons={**found.reasons, "goodput": why})


def _in_steps(timeline: RankTimeline, windows: Sequence[StepWindow]) -> tuple[int, int]:
    """Return (ns of complete steps, ns from the first step's begin to the last step's end) over the rank's recordings.

    These are host times. A recording of a single step shows nothing of the time between steps and is left out.
    """
    steps = timeline.steps
    inside = covered = 0
    for recording in np.unique(steps.recording).tolist():
        own = np.flatnonzero(steps.recording == recording)
        if own.size > 1:
            complete = np.array([each.complete for each in windows if each.recording == recording])
            inside += int((steps.end_ns[own] - steps.start_ns[own])[complete].sum())
            covered += int(steps.end_ns[own].max() - steps.start_ns[own].min())
    return inside, covered


def _fractions(
    parts: Sequence[Breakdown], repeated: RepeatedPart | None, late_ns: float
) -> tuple[float | None, float | None]:
    """Return the shares of exposed communication, where there is communication, and of idle time; `late_ns` is what
    ranks began later, in sum."""
    communicates = any(each.comm_ns for each in parts)
    if parts and repeated is not None:
        of_ns = max(repeated.window_ns, 1)
        return repeated.exposed_comm_ns / of_ns if communicates else None, repeated.idle_ns / of_ns
    time_ns = _repeated_ns(parts) + late_ns
    exposed = _share(parts, "exposed_comm_ns", "causes", time_ns) if communicates else None
    return exposed, _share(parts, "idle_ns", "idle_causes", time_ns)


def _share(parts: Iterable[Breakdown], name: str, causes: str, of_ns: float) -> float | None:
    """Return the share of this time, without the start of the recording."""
    lost_ns = sum((getattr(each, name) or 0) - getattr(each, causes).get(START_OF_RECORDING, 0) for each in parts)
    return lost_ns / of_ns if of_ns else None


def _repeated_ns(parts: Iterable[Breakdown]) -> int:
    """Return the time that was recorded as a day repeats it: without the start of the recording."""
    return sum(
        (each.window_ns or 0) - sum(of.get(START_OF_RECORDING, 0) for of in (each.causes, each.idle_causes))
        for each in parts
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
