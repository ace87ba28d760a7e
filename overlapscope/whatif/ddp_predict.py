"""From predictions to `overlapscope.whatif/1`: scenarios with intervals, what they rest on, and whether to change."""

from collections.abc import Sequence
from typing import Any, Final, Literal, Protocol

import numpy as np
from msgspec.structs import replace

from overlapscope.errors import UsageError
from overlapscope.whatif.calibrate import (
    SELF_TEST,
    Assumption,
    Fit,
    Measured,
    Predictions,
    Values,
    fit,
    model_error,
    predict,
    step_ns,
)
from overlapscope.whatif.compression import Compression
from overlapscope.whatif.ddp_step import HALF, Settings, bucket_memory_bytes, buckets_of, ddp_job
from overlapscope.whatif.paired_gain import gains
from overlapscope.whatif.plan import MS
from overlapscope.whatif.replay import Gap, Work
from overlapscope.whatif.result import Assumed, Baseline, Best, Bounds, Interval, Scenario, WhatIf
from overlapscope.whatif.search import can_list, caps_to_try, improved, merged, with_cap, with_groups
from overlapscope.whatif.workload import Workload

WAITING: Final = 0.5
"""Share of the exposed time from which on waiting for a late rank is the matter, and no setting is advised."""
COMPRESSED: Final = (
    "compressed gradients: what is sent is counted, what compressing costs is assumed, and nothing is said of accuracy"
)
ONE_MEASURED: Final = 2**0.5
"""By how much one measured step is surer than the difference of two: a replayed gain stands beside one only."""


class Case(Protocol):
    """What predictions are made from: a described workload, or one that a recording tells."""

    @property
    def baseline(self) -> Settings:
        """The present settings."""

    @property
    def measured(self) -> tuple[Measured, ...]:
        """Steps that were measured."""

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What nobody measured."""

    @property
    def noise(self) -> float:
        """By what share two measurements of one setting differ."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What else there is to say."""

    @property
    def fixed(self) -> str:
        """Why no other buckets can be replayed; empty where they can."""

    @property
    def lateness_ns(self) -> tuple[float, ...]:
        """How much later than the first each rank begins; empty where all begin at once."""

    @property
    def told(self) -> Fit | None:
        """The slowdown that a recording tells; None where it is fitted to the measured steps."""

    @property
    def halves(self) -> bool:
        """Return whether all gradients are of 32 bits, and sending 16 would halve them."""

    def build(self, values: Values) -> Workload:
        """Return the workload under values of the assumptions."""

    def workload(self) -> Workload:
        """Return it as all assumptions are taken to be."""


def answer(
    plan: Case, caps_mb: Sequence[float] = (), *, search: bool = True, compressions: Sequence[Compression] = ()
) -> WhatIf:
    """Replay a plan under other settings. `caps_mb` are the caps to try; `search` also looks for a list of caps.

    Raises UsageError for `compressions` where the shapes of gradients or the memory's bandwidth are not known.
    """
    workload = plan.workload()
    settings = list(dict.fromkeys([plan.baseline, *_others(plan, workload, caps_mb, search=search)]))
    replayed = predict(plan.build, plan.assumptions, plan.measured, settings, plan.noise, plan.told)
    predictions = replayed.times(_missed(plan, replayed))
    rows = _scenarios(plan, predictions, workload)
    best = _best(rows, plan.noise)
    place = rows.index(best)
    verdict, reasons = _verdict(plan, predictions, rows, place)
    compressed = _compressed(plan, workload, compressions)
    return WhatIf(
        baseline=Baseline(
            knobs=rows[0].knobs,
            measured_step_ns=_measured_ns(plan, plan.baseline),
            replayed_step_ns=round(float(replayed.steps_ns[0, 0])),
            replay_error=replayed.replay_error,
        ),
        scenarios=rows + compressed,
        bounds=_bounds(workload, plan.baseline),
        verdict=verdict,
        waiting=_waits(plan, rows[0]),
        best=Best(knobs=best.knobs if verdict == "change" else rows[0].knobs),
        flat_region=_flat(rows, best, plan.noise),
        reasons=[*reasons, *plan.notes, *([COMPRESSED] if compressed else [])],
        interference=Interval(**{name: getattr(predictions.fit, name) for name in Interval.__struct_fields__}),
        assumptions=_assumed(plan, predictions, place),
    )


def _compressed(plan: Case, workload: Workload, compressions: Sequence[Compression]) -> list[Scenario]:
    """Return the scenarios of compressed gradients: their intervals span what compressing may cost."""
    if compressions and not workload.gradients.shapes:
        raise UsageError("--compress: the shapes of gradients are not known")
    if compressions and not workload.pass_ns_per_byte:
        raise UsageError("--compress: what compressing costs is told by the memory's bandwidth: give device.memory_gbs")
    found = []
    for each in compressions:
        settings = [replace(plan.baseline, compression=one) for one in each.range()]
        least, usual, most = scenarios(plan, settings)[1:]
        found.append(
            replace(usual, low_ns=least.low_ns, high_ns=most.high_ns, gain_low=most.gain_low, gain_high=least.gain_high)
        )
    return found


def scenarios(plan: Case, settings: Sequence[Settings]) -> list[Scenario]:
    """Predict given settings; a row for each, after that of the present ones."""
    chosen = list(dict.fromkeys([plan.baseline, *settings]))
    replayed = predict(plan.build, plan.assumptions, plan.measured, chosen, plan.noise, plan.told)
    return _scenarios(plan, replayed.times(_missed(plan, replayed)), plan.workload())


def _missed(plan: Case, replayed: Predictions) -> float:
    """Return the present step as measured over its replay; 1 where it was not measured.

    What the replay misses of the present step it is taken to miss of the others, so that a step agrees with its gain.
    """
    measured_ns = _measured_ns(plan, plan.baseline)
    return 1.0 if measured_ns is None else measured_ns / float(replayed.steps_ns[0, 0])


def _others(plan: Case, workload: Workload, caps_mb: Sequence[float], *, search: bool) -> list[Settings]:
    base = plan.baseline
    found: list[Settings] = []
    if not plan.fixed:
        found = _other_buckets(plan, workload, caps_mb, search=search)
    if base.communicated == 1.0 and plan.halves:
        found.append(replace(base, communicated=HALF))
    found.append(replace(base, link_speed=2.0))
    if len(set(workload.lateness_ns)) > 1:
        found.append(replace(base, late_ranks=False))
    return found


def _other_buckets(plan: Case, workload: Workload, caps_mb: Sequence[float], *, search: bool) -> list[Settings]:
    base = plan.baseline
    found = [each.settings for each in plan.measured if each.settings.accumulation == base.accumulation]
    found += [with_cap(base, cap) for cap in caps_to_try(base.ddp, caps_mb)]
    if not base.gradient_as_bucket_view and workload.pass_ns_per_byte:
        found.append(replace(base, gradient_as_bucket_view=True))
    if base.accumulation > 1 and not base.no_sync:
        found.append(replace(base, no_sync=True))
    if search and can_list(base, workload):
        slowdown = (plan.told or fit(workload, plan.measured, plan.noise)).slowdown

        def cost(groups: Sequence[Sequence[int]]) -> float:
            return step_ns(workload, with_groups(workload, base, groups), slowdown)

        found.append(with_groups(workload, base, improved(merged(workload), cost)))
    return found


def _scenarios(plan: Case, predictions: Predictions, workload: Workload) -> list[Scenario]:
    """Return a row for each setting: a step that was measured is what was measured, within the noise."""
    steps, besides = predictions.steps_ns, model_error(predictions)
    measured = [_measured_ns(plan, each) for each in predictions.settings]
    told = np.array([np.nan if each is None else each for each in measured])
    step = np.where(np.isnan(told), steps[0], told)
    half = np.sqrt(predictions.half_width(steps) ** 2 + (besides * steps[0]) ** 2)
    half = np.where(np.isnan(told), half, plan.noise / ONE_MEASURED * step)
    gain, gain_half = gains(predictions, told)
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
                != (plan.baseline.communicated, plan.baseline.compression),
                hypothetical=each.hypothetical,
                known_from="replay" if measured[place] is None else "measured",
            )
        )
    return rows


def _to_choose(scenarios: Sequence[Scenario]) -> list[Scenario]:
    """Return the scenarios that may be recommended."""
    return [each for each in scenarios if not each.changes_numerics and not each.hypothetical]


def _best(scenarios: Sequence[Scenario], noise: float) -> Scenario:
    """Return the shortest step that changes no numerics; one cap rather than a list where noise does not part them."""
    plain = _to_choose(scenarios)
    best = min(plain, key=lambda each: each.predicted_step_ns)
    simple = [each for each in plain if "bucket_cap_mb_list" not in each.knobs]
    first = min(simple or plain, key=lambda each: each.predicted_step_ns)
    return first if first.predicted_step_ns <= best.predicted_step_ns * (1 + noise) else best


def _verdict(
    plan: Case, predictions: Predictions, scenarios: Sequence[Scenario], place: int
) -> tuple[Literal["change", "no_change", "insufficient_data"], list[str]]:
    base, best = scenarios[0], scenarios[place]
    reasons = []
    if not plan.measured:
        reasons.append(
            "no step was measured, so the replay could not be tested; measure one and add it as [[measured]]"
        )
    if not predictions.fit.identified:
        reasons.append(f"interference is not identified, a prior stands for it: {predictions.fit.reason}")
    error = predictions.replay_error
    if error is not None and abs(error) > SELF_TEST:
        missed = f"the replay misses a measured step by {abs(error):.1%}, more than {SELF_TEST:.0%}"
        return "insufficient_data", [f"{missed}: what is described is not what ran", *reasons]
    if plan.fixed:
        return "insufficient_data", [plan.fixed, *reasons]
    if _waits(plan, base):
        late, last = plan.lateness_ns, max(plan.lateness_ns)
        held = f"waiting {(last - min(late)) / MS:.3f} ms for rank {late.index(last)} dominates what is exposed"
        return "no_change", [f"{held}: find what holds it before any setting here", *reasons]
    noise = plan.noise if best.known_from == "measured" else plan.noise / ONE_MEASURED
    if best.gain <= noise or best is base:
        spread = f"the best setting gains {best.gain:.1%}, the noise is {noise:.1%}"
        return "no_change", [
            f"{spread}: leave it as it is" if best is not base else "the present settings are the best",
            *reasons,
        ]
    if best.gain_low <= 0:
        widest = _widest(predictions, place)
        doubt = f"the gain of {best.gain:.1%} may be none: its interval begins at {best.gain_low:.1%}"
        return "no_change", [f"{doubt}; most of what varies is {widest.replace('_', ' ')}", *reasons]
    return "change", reasons


def _waits(plan: Case, base: Scenario) -> bool:
    late = plan.lateness_ns
    return bool(late) and max(late) - min(late) > WAITING * base.exposed_comm_ns


def _widest(predictions: Predictions, place: int) -> str:
    """Return what moves a setting's step most of all that is not known."""
    swing = predictions.depends_on(place)
    return max(swing, key=lambda name: swing[name][1] - swing[name][0])


def _flat(scenarios: Sequence[Scenario], best: Scenario, noise: float) -> dict[str, list[Any]]:
    """Return the caps whose steps are the best's within the noise."""
    near = [
        each.knobs["bucket_cap_mb"]
        for each in _to_choose(scenarios)
        if "bucket_cap_mb" in each.knobs and each.predicted_step_ns <= best.predicted_step_ns * (1 + noise)
    ]
    return {"bucket_cap_mb": list(dict.fromkeys(near))}


def _bounds(workload: Workload, settings: Settings) -> Bounds:
    """Return bounds without interference: nothing sent; everything hidden that can be; nothing hidden."""
    job = ddp_job(workload, settings)
    moving = sum(each.alone_ns for each in job.transfers)
    first = job.programmes[min(job.programmes)]
    busy = sum(each.ns for each in first if isinstance(each, Work | Gap))
    free = workload.compute_ns + workload.host_gap_ns
    free += (settings.accumulation - 1) * (workload.forward_ns + workload.backward_ns)
    return Bounds(
        no_comm_ns=round(free), perfect_overlap_ns=round(max(busy, moving)), no_overlap_ns=round(busy + moving)
    )


def _assumed(plan: Case, predictions: Predictions, place: int) -> list[Assumed]:
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
        for each in plan.assumptions
    ]


def _measured_ns(plan: Case, settings: Settings) -> int | None:
    """Return the median of the measured steps of these settings; None without one."""
    steps = [each.step_ns for each in plan.measured if each.settings == settings]
    return round(float(np.median(steps))) if steps else None
