"""Predict a DistributedDataParallel job under other settings: scenarios with intervals, assumptions and a verdict."""

from collections.abc import Sequence
from math import hypot
from typing import Any, Final, Literal, Protocol

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.job_step.step_medians import StepMedians
from overlapscope.display import percent_text
from overlapscope.errors import UsageError
from overlapscope.whatif.cost.compression import Compression
from overlapscope.whatif.ddp.calibrate import (
    SELF_TEST,
    Assumption,
    Fit,
    Measured,
    Predictions,
    Values,
    fit,
    model_error,
    predict_steps,
    step_ns,
)
from overlapscope.whatif.ddp.ddp_step import HALF, Settings, bucket_memory_bytes, buckets_of, ddp_job
from overlapscope.whatif.ddp.paired_gain import gains
from overlapscope.whatif.ddp.plan import MS
from overlapscope.whatif.ddp.search import can_list, caps_to_try, improved, merged, with_cap, with_groups
from overlapscope.whatif.replay.replay import Gap, Work
from overlapscope.whatif.result import (
    CAP,
    WAITS_FIRST,
    Assumed,
    Baseline,
    Best,
    Bounds,
    Interval,
    Scenario,
    WhatIf,
    equally_good,
    with_recorded_exposed,
)
from overlapscope.whatif.run_replay.answers import (
    PAUSE_CAP_MS,
    Answer,
    RunReplay,
    not_beyond,
    nothing_to_gain,
    only_shorter,
)
from overlapscope.whatif.workload.workload import Workload

WAITING: Final = 0.5
"""Where waiting for a straggler is more than this share of the exposed time, no setting is recommended."""
COMPRESSED: Final = (
    "compressed gradients: bytes sent are counted, the cost of compressing is assumed, accuracy is not predicted"
)
SEVERAL: Final = 3
"""With so many measured settings a verdict rests on them alone."""
RANGE_OF: Final = (1.0, 1.25, 1.39, 1.49, 1.57, 1.63, 1.69, 1.74, 1.77)
"""Range of 2 to 10 equal measurements over that of two: the studentized range that 10 % exceed (Tukey 1949)."""
OF_BEST: Final = 0.5
"""A cap that gains less than this share of the best one's gain is not as good, however noisy steps are: the present one
may be among the noise."""
ONE_MEASURED: Final = 2**0.5
"""The noise is that of a difference of two measured steps; a replayed gain is compared with one, which has less."""


class DdpCase(Protocol):
    """The input of a prediction: a described workload (`Plan`), or a recorded one (`RecordedCase`)."""

    @property
    def baseline(self) -> Settings:
        """The present settings."""

    @property
    def measured(self) -> tuple[Measured, ...]:
        """Steps that were measured."""

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """Values that were not measured, with their ranges."""

    @property
    def noise(self) -> float:
        """By what share two measurements of one setting differ."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Further notes for the user."""

    @property
    def fixed(self) -> str:
        """Why no other buckets can be replayed; empty where they can."""

    @property
    def lateness_ns(self) -> tuple[float, ...]:
        """How much later than the first rank each rank begins; empty where all begin at the same time."""

    @property
    def slowdown_fit(self) -> Fit | None:
        """The slowdown measured in a recording; None where it is to be fitted to the measured steps."""

    @property
    def halves(self) -> bool:
        """Whether all gradients have 32 bits, so that sending 16 bits halves the bytes."""

    @property
    def step(self) -> StepMedians | None:
        """The recorded step in the figures of the headline; None of a described workload."""

    @property
    def replay(self) -> RunReplay | None:
        """The dependency graph of a recording, which answers for changes of durations; None without one."""

    @property
    def abstains(self) -> str:
        """Why the dependency graph of a recording may not answer; empty where it may, or was not recorded."""

    def build(self, values: Values) -> Workload:
        """Return the workload for given values of the assumptions."""

    def workload(self) -> Workload:
        """Return the workload for the nominal values of all assumptions."""


def predict_ddp(
    case: DdpCase, caps_mb: Sequence[float] = (), *, search: bool = True, compressions: Sequence[Compression] = ()
) -> WhatIf:
    """Replay a case under other settings and return scenarios, bounds and a verdict.

    `caps_mb` are the bucket caps to try, in MiB; `search` also searches for a list of caps. Raises UsageError for
    `compressions` where the shapes of gradients or the memory bandwidth are not known.
    """
    workload = case.workload()
    settings = list(dict.fromkeys([case.baseline, *_settings_to_try(case, workload, caps_mb, search=search)]))
    replayed = predict_steps(case.build, case.assumptions, case.measured, settings, case.noise, case.slowdown_fit)
    predictions = replayed.times(_measured_over_replayed(case, replayed))
    rows = _scenarios(case, predictions, workload)
    best = _best(rows, case.noise)
    place = rows.index(best)
    verdict, reasons = _verdict(case, predictions, rows, place)
    flat = _flat(rows, best, case.noise, OF_BEST * best.gain if verdict == "change" else -1.0)
    compressed = _compressed(case, workload, compressions)
    bounds = _bounds(case, workload)
    # A description that does not match the run explains nothing.
    known = () if verdict == "insufficient_data" else case.notes
    shown = with_recorded_exposed([*rows, *_pauses(case, rows[0])], case.step)
    notes = [*known]
    if case.replay is not None:
        notes = [*nothing_to_gain(shown[0], bounds, case.replay.path_shares), *known]
    if case.abstains:
        notes.append(f"faster links and stragglers are not replayed: {case.abstains}")
    return WhatIf(
        baseline=Baseline(
            knobs=rows[0].knobs,
            measured_step_ns=_measured_ns(case, case.baseline),
            replayed_step_ns=round(float(replayed.steps_ns[0, 0])),
            replay_error=replayed.replay_error,
        ),
        scenarios=[*shown, *compressed],
        bounds=bounds,
        verdict=verdict,
        waiting=_waits(case, rows[0]),
        best=Best(knobs=best.knobs if verdict == "change" else rows[0].knobs),
        flat_region=flat,
        equally_good=equally_good(rows, best, flat) if verdict == "change" else {},
        reasons=[*reasons, *notes, *([COMPRESSED] if compressed else [])],
        interference=Interval(**{name: getattr(predictions.fit, name) for name in Interval.__struct_fields__}),
        assumptions=_assumed(case, predictions, place),
    )


def _compressed(case: DdpCase, workload: Workload, compressions: Sequence[Compression]) -> list[Scenario]:
    """Return the scenarios of compressed gradients; each interval spans the range of the cost of compressing."""
    if compressions and not workload.gradients.shapes:
        raise UsageError("--compress: the shapes of gradients are not known")
    if compressions and not workload.pass_ns_per_byte:
        raise UsageError("--compress: the cost of compressing depends on the memory bandwidth: give device.memory_gbs")
    found = []
    for each in compressions:
        settings = [replace(case.baseline, compression=one) for one in each.range()]
        least, usual, most = predict_settings(case, settings)[1:]
        found.append(
            replace(usual, low_ns=least.low_ns, high_ns=most.high_ns, gain_low=most.gain_low, gain_high=least.gain_high)
        )
    return found


def predict_settings(case: DdpCase, settings: Sequence[Settings]) -> list[Scenario]:
    """Predict the step under each of `settings`; the first scenario is that of the present settings."""
    chosen = list(dict.fromkeys([case.baseline, *settings]))
    replayed = predict_steps(case.build, case.assumptions, case.measured, chosen, case.noise, case.slowdown_fit)
    rows = _scenarios(case, replayed.times(_measured_over_replayed(case, replayed)), case.workload())
    return with_recorded_exposed(rows, case.step)


def _measured_over_replayed(case: DdpCase, replayed: Predictions) -> float:
    """Return the measured present step divided by its replay; 1 where it was not measured.

    All replayed steps are multiplied by it, so that a predicted step agrees with its gain.
    """
    measured_ns = _measured_ns(case, case.baseline)
    return 1.0 if measured_ns is None else measured_ns / float(replayed.steps_ns[0, 0])


def _settings_to_try(case: DdpCase, workload: Workload, caps_mb: Sequence[float], *, search: bool) -> list[Settings]:
    base = case.baseline
    found: list[Settings] = []
    if not case.fixed:
        found = _buckets_to_try(case, workload, caps_mb, search=search)
    if base.communicated == 1.0 and case.halves:
        found.append(replace(base, communicated=HALF))
    if case.abstains:
        return found
    found.append(replace(base, link_speed=2.0))
    if len(set(workload.lateness_ns)) > 1 and (case.replay is None or _without_excess(case) is not None):
        found.append(replace(base, late_ranks=False))
    return found


def _buckets_to_try(case: DdpCase, workload: Workload, caps_mb: Sequence[float], *, search: bool) -> list[Settings]:
    base = case.baseline
    found = [each.settings for each in case.measured if each.settings.accumulation == base.accumulation]
    found += [with_cap(base, cap) for cap in caps_to_try(base.ddp, caps_mb)]
    if not base.gradient_as_bucket_view and workload.pass_ns_per_byte:
        found.append(replace(base, gradient_as_bucket_view=True))
    if base.accumulation > 1 and not base.no_sync:
        found.append(replace(base, no_sync=True))
    if search and can_list(base, workload):
        slowdown = (case.slowdown_fit or fit(workload, case.measured, case.noise)).slowdown

        def cost(groups: Sequence[Sequence[int]]) -> float:
            return step_ns(workload, with_groups(workload, base, groups), slowdown)

        found.append(with_groups(workload, base, improved(merged(workload), cost)))
    return found


def _scenarios(case: DdpCase, predictions: Predictions, workload: Workload) -> list[Scenario]:
    """Return a scenario for each setting; a measured step is taken as measured, with the noise as its interval."""
    steps, besides = predictions.steps_ns, model_error(predictions)
    measured = [_measured_ns(case, each) for each in predictions.settings]
    measured_ns = np.array([np.nan if each is None else each for each in measured])
    step = np.where(np.isnan(measured_ns), steps[0], measured_ns)
    half = np.sqrt(predictions.half_width(steps) ** 2 + (besides * steps[0]) ** 2)
    half = np.where(np.isnan(measured_ns), half, case.noise / ONE_MEASURED * step)
    gain, gain_half = gains(predictions, measured_ns)
    rows = []
    for place, each in enumerate(predictions.settings):
        rows.append(
            Scenario(
                knobs=each.knobs(),
                predicted_step_ns=round(float(step[place])),
                low_ns=round(float(step[place] - half[place])),
                high_ns=round(float(step[place] + half[place])),
                gain=float(gain[place]),
                gain_low=float(gain[place] - gain_half[place]),
                gain_high=float(gain[place] + gain_half[place]),
                exposed_comm_ns=round(float(predictions.exposed_ns[place])),
                memory_bytes=bucket_memory_bytes(workload, each),
                buckets=len(buckets_of(workload, each)),
                changes_numerics=(each.communicated, each.compression)
                != (case.baseline.communicated, case.baseline.compression),
                hypothetical=each.hypothetical,
                known_from="replay" if measured[place] is None else "measured",
            )
        )
    return rows if case.replay is None else _by_graph(case, case.replay, predictions, workload, rows)


def _by_graph(
    case: DdpCase, graph: RunReplay, predictions: Predictions, workload: Workload, rows: Sequence[Scenario]
) -> list[Scenario]:
    """Return the scenarios with those answered by the dependency graph that change durations alone; of the others none
    that changes communication alone is shorter than the step without any."""
    bounds, base = _bounds(case, workload), case.baseline
    # Other buckets are replayed by another engine: what it says of exposed time is taken relative to its own.
    exposed = graph.unchanged.exposed_ns / rows[0].exposed_comm_ns if rows[0].exposed_comm_ns else 1.0
    rows = [replace(row, exposed_comm_ns=round(row.exposed_comm_ns * exposed)) for row in rows]
    found = [rows[0]]
    for settings, row in zip(predictions.settings[1:], rows[1:], strict=True):
        if replace(settings, link_speed=1.0) == base:
            found.append(_answered(case, row, rows[0], _of_link(case, graph, settings.link_speed)))
        elif replace(settings, late_ranks=True) == base:
            answer = _without_excess(case)
            found.append(row if answer is None else _answered(case, row, rows[0], answer))
        else:
            same_work = replace(
                settings, ddp=base.ddp, communicated=base.communicated, link_speed=1.0, partition_mb=None
            )
            found.append(not_beyond(row, bounds, rows[0]) if same_work == base else row)
    return found


def _of_link(case: DdpCase, graph: RunReplay, speed: float) -> Answer:
    partial = next((each.low for each in case.assumptions if each.name == "transfer_time"), 1.0)
    slowed = 1.0 if case.slowdown_fit is None else case.slowdown_fit.slowdown
    return graph.of_transfers(lambda _, own_ns: own_ns / speed, {}, least_transfer=partial, slowdown=slowed)


def _without_excess(case: DdpCase) -> Answer | None:
    """Return what it is worth that the latest rank, and those late with it, work as fast as others; None where no other
    did the same work."""
    late = case.lateness_ns
    if case.replay is None or not late:
        return None
    ranks = case.replay.late_with(sorted(case.replay.ranks)[late.index(max(late))])
    return case.replay.without_excess(ranks) if ranks else None


def _pauses(case: DdpCase, base: Scenario) -> list[Scenario]:
    """Return the scenario in which no host pauses for long."""
    if case.replay is None:
        return []
    row = replace(base, knobs={**base.knobs, "host_pauses_ms": PAUSE_CAP_MS}, hypothetical=True, known_from="replay")
    return [only_shorter(_answered(case, row, base, case.replay.of_pauses()))]


def _answered(case: DdpCase, row: Scenario, base: Scenario, answer: Answer) -> Scenario:
    assert case.replay is not None
    error = case.replay.error_bar() or hypot(case.noise, SELF_TEST)
    below, above = hypot(answer.below, error), hypot(answer.above, error)
    step = base.predicted_step_ns
    return replace(
        row, predicted_step_ns=round(step * answer.share), low_ns=round(step * (answer.share - below)),
        high_ns=round(step * (answer.share + above)), gain=1 - answer.share, gain_low=1 - answer.share - above,
        gain_high=1 - answer.share + below, exposed_comm_ns=round(answer.exposed_ns),
    )  # fmt: skip


def _recommendable(scenarios: Sequence[Scenario]) -> list[Scenario]:
    """Return the scenarios that may be recommended."""
    return [each for each in scenarios if not each.changes_numerics and not each.hypothetical]


def _best(scenarios: Sequence[Scenario], noise: float) -> Scenario:
    """Return the shortest step that keeps numerics; one cap rather than a list where they differ by less than noise.

    Where several settings were measured, only measured ones.
    """
    plain = _recommendable(scenarios)
    measured = [each for each in plain if each.known_from == "measured"]
    plain = measured if len(measured) >= SEVERAL else plain
    best = min(plain, key=lambda each: each.predicted_step_ns)
    simple = [each for each in plain if "bucket_cap_mb_list" not in each.knobs]
    first = min(simple or plain, key=lambda each: each.predicted_step_ns)
    return first if first.predicted_step_ns <= best.predicted_step_ns * (1 + noise) else best


def _verdict(
    case: DdpCase, predictions: Predictions, scenarios: Sequence[Scenario], place: int
) -> tuple[Literal["change", "no_change", "insufficient_data"], list[str]]:
    base, best = scenarios[0], scenarios[place]
    several = [each for each in _recommendable(scenarios) if each.known_from == "measured"]
    waits = _waits(case, base)
    if len(several) >= SEVERAL and base.known_from == "measured" and not waits:
        return _by_measurement(case.noise, base, best, several)
    reasons = []
    if not case.measured:
        reasons.append(
            "no step was measured, so the replay could not be checked; measure one and add it as [[measured]]"
        )
    if not predictions.fit.identified:
        reasons.append(predictions.fit.explanation)
    error = predictions.replay_error
    if error is not None and abs(error) > SELF_TEST:
        missed = (
            f"the replay misses a measured step by {percent_text(abs(error))}, more than {percent_text(SELF_TEST, 0)}"
        )
        return "insufficient_data", [f"{missed}: the description does not match the run", *reasons]
    if case.fixed:
        return "insufficient_data", [case.fixed, *reasons]
    if waits:
        late, last = case.lateness_ns, max(case.lateness_ns)
        waited_ms = (last - min(late)) / MS
        whom = f"waiting for rank {late.index(last)} ({waited_ms:.3f} ms)"
        held = f"most of what its buckets expose in the replayed step is {whom}"
        return "no_change", [f"{held}; {WAITS_FIRST}", *reasons]
    against = _against(case, predictions, scenarios, place)
    return ("no_change", [against, *reasons]) if against else ("change", reasons)


def _against(case: DdpCase, predictions: Predictions, scenarios: Sequence[Scenario], place: int) -> str:
    """Return why the best replayed setting is not recommended; empty where it is."""
    base, best = scenarios[0], scenarios[place]
    noise = case.noise if best.known_from == "measured" else case.noise / ONE_MEASURED
    if best is base:
        return "no setting that was replayed is faster than the present ones"
    if best.gain <= noise:
        within = f"the best setting gains {percent_text(best.gain)}, which is within the noise of {percent_text(noise)}"
        return f"{within}: leave the settings as they are"
    if best.gain_low <= 0:
        widest = _widest(predictions, place)
        doubt = (
            f"the gain of {percent_text(best.gain)} may be zero: its interval begins at {percent_text(best.gain_low)}"
        )
        return f"{doubt}; the largest uncertainty is {widest.replace('_', ' ')}"
    return ""


def _by_measurement(
    noise: float, base: Scenario, best: Scenario, several: Sequence[Scenario]
) -> tuple[Literal["change", "no_change", "insufficient_data"], list[str]]:
    """Return the verdict of several measured settings: their spread against what as many equal settings would show.

    The noise is that of two measurements; of more, the largest and the smallest differ by more.
    """
    steps = [each.predicted_step_ns for each in several]
    spread = max(steps) / min(steps) - 1
    expected = noise * RANGE_OF[min(len(steps), len(RANGE_OF) + 1) - 2]
    counted = f"{len(steps)} settings were measured; their steps differ by {percent_text(spread)}"
    if spread <= expected:
        return "no_change", [f"{counted}, and {percent_text(expected)} would be noise: leave the settings as they are"]
    if best is base or best.gain <= noise:
        return "no_change", [f"{counted}, and the present one is as good as the best of them"]
    return "change", [f"{counted}, where {percent_text(expected)} would be noise"]


def _waits(case: DdpCase, base: Scenario) -> bool:
    late = case.lateness_ns
    return bool(late) and max(late) - min(late) > WAITING * base.exposed_comm_ns


def _widest(predictions: Predictions, place: int) -> str:
    """Return the name of the assumption that changes the predicted step of a setting most."""
    swing = predictions.depends_on(place)
    return max(swing, key=lambda name: swing[name][1] - swing[name][0])


def _flat(scenarios: Sequence[Scenario], best: Scenario, noise: float, least_gain: float) -> dict[str, list[Any]]:
    """Return the caps whose steps are the best's within the noise, and that gain so much."""
    near = [
        each.knobs[CAP]
        for each in _recommendable(scenarios)
        if CAP in each.knobs and each.predicted_step_ns <= best.predicted_step_ns * (1 + noise)
        and each.gain >= least_gain
    ]  # fmt: skip
    return {CAP: list(dict.fromkeys(near))}


def _bounds(case: DdpCase, workload: Workload) -> Bounds:
    """Return step bounds: by the dependency graph where there is one, else without interference: none sent; all
    overlapped where possible; none overlapped."""
    settings, measured_ns = case.baseline, _measured_ns(case, case.baseline)
    if case.replay is not None and measured_ns is not None:
        return case.replay.bounds(measured_ns, 1.0 if case.slowdown_fit is None else case.slowdown_fit.of_bounds)
    job = ddp_job(workload, settings)
    moving = sum(each.alone_ns for each in job.transfers)
    first = job.programmes[min(job.programmes)]
    busy = sum(each.ns for each in first if isinstance(each, Work | Gap))
    free = workload.compute_ns + workload.host_gap_ns
    free += (settings.accumulation - 1) * (workload.forward_ns + workload.backward_ns)
    return Bounds(
        no_comm_ns=round(free), perfect_overlap_ns=round(max(busy, moving)), no_overlap_ns=round(busy + moving)
    )


def _assumed(case: DdpCase, predictions: Predictions, place: int) -> list[Assumed]:
    swing = predictions.depends_on(place)
    return [
        Assumed(
            name=each.name,
            value=each.value,
            low=each.low,
            high=each.high,
            known_from=each.known_from,
            step_low_ns=round(swing[each.name][0]),
            step_high_ns=round(swing[each.name][1]),
        )
        for each in case.assumptions
    ]


def _measured_ns(case: DdpCase, settings: Settings) -> int | None:
    """Return the median of the measured steps of these settings; None without one."""
    steps = [each.step_ns for each in case.measured if each.settings == settings]
    return round(float(np.median(steps))) if steps else None
