"""Predicted steps with other settings: parse settings from an address, replay them, and prepare the figures."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from overlapscope.report.formatting import ms, percent, signed_ms, size
from overlapscope.whatif.ddp.cap_curve import CapCurve, cap_curve, caps_to_draw
from overlapscope.whatif.ddp.ddp_predict import predict_settings
from overlapscope.whatif.ddp.ddp_recording import RecordedCase
from overlapscope.whatif.ddp.ddp_step import HALF, Settings
from overlapscope.whatif.ddp.lane_usage import ReplayedStep, replayed_step
from overlapscope.whatif.ddp.search import with_cap
from overlapscope.whatif.result import CAP, Scenario, WhatIf
from overlapscope_dashboards.parts.bars import Segment
from overlapscope_dashboards.parts.quantities import Figure, Time, Words
from overlapscope_dashboards.views.scenarios import AS_RECORDED, SETTING_NAMES

MAX_CAP_MB: Final = 100_000.0
PASSES: Final = (1, 2, 4, 8)
SPEEDS: Final = (0.5, 1.0, 2.0, 4.0)
FRAMEWORKS: Final[Mapping[str, str]] = {
    "ddp": "DDP", "fsdp2": "FSDP2", "deepspeed": "DeepSpeed", "megatron": "Megatron", "horovod": "Horovod",
}  # fmt: skip


class SettingControl(msgspec.Struct, frozen=True, kw_only=True):
    """One control: a label, and options as (text, value in the address or None for as recorded, whether selected)."""

    name: str
    label: str
    options: tuple[tuple[str, str | None, bool], ...]


class SettingsOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The replay of some settings and that of the recorded ones."""

    settings: Settings
    present: Scenario
    scenario: Scenario
    before: ReplayedStep
    after: ReplayedStep
    curve: CapCurve
    passes: tuple[int, int]
    """Backward passes of a step, as recorded and as requested."""

    @property
    def changed(self) -> bool:
        """Whether the settings differ from the recorded ones."""
        return self.scenario is not self.present


def read_settings(query: Mapping[str, str], base: Settings) -> Settings:
    """Return the settings requested by an address; invalid values are ignored."""
    found = base
    cap = _number(query.get("cap"), 0.01, MAX_CAP_MB)
    if cap is not None:
        found = with_cap(found, cap)
    if query.get("hook") in ("16-bit", "none"):
        found = replace(found, communicated=HALF if query["hook"] == "16-bit" else 1.0)
    if query.get("views") in ("yes", "no"):
        found = replace(found, gradient_as_bucket_view=query["views"] == "yes")
    passes = _number(query.get("passes"), 1, max(PASSES))
    if passes is not None:
        found = replace(found, accumulation=int(passes))
    if query.get("sync") in ("every", "last") and found.accumulation > 1:
        found = replace(found, no_sync=query["sync"] == "last")
    if found.accumulation == 1:
        found = replace(found, no_sync=False)
    speed = _number(query.get("link"), 0.01, 100)
    if speed is not None:
        found = replace(found, link_speed=speed)
    return replace(found, late_ranks=False) if query.get("late") == "none" else found


def replay_settings(case: RecordedCase, settings: Settings) -> SettingsOutcome:
    """Replay the settings, the recorded ones, and the settings with each bucket cap."""
    rows = predict_settings(case, [settings])
    workload = case.workload()
    caps = caps_to_draw(workload, settings.ddp.bucket_cap_mb)
    return SettingsOutcome(
        settings=settings,
        present=rows[0],
        scenario=rows[-1],
        before=replayed_step(workload, case.baseline),
        after=replayed_step(workload, settings),
        curve=cap_curve(case, settings, caps),
        passes=(case.baseline.accumulation, settings.accumulation),
    )


def choices(case: RecordedCase, outcome: Settings) -> tuple[SettingControl, ...]:
    """Return the controls except the cap, without those that have no effect."""
    base = case.baseline
    late = case.lateness_ns
    passes = sorted({*PASSES, base.accumulation, outcome.accumulation})
    found = [
        _choice("views", "gradients as bucket views", [("yes", True), ("no", False)],
                base.gradient_as_bucket_view, outcome.gradient_as_bucket_view),
        _choice("passes", "backward passes per step", [(str(each), each) for each in passes],
                base.accumulation, outcome.accumulation),
        _choice("link", "link speed, factor", [(f"{each:g}", each) for each in SPEEDS], base.link_speed,
                outcome.link_speed),
    ]  # fmt: skip
    if case.halves or base.communicated != 1:
        found.insert(0, _choice("hook", "sent with", [("32 bits", 1.0), ("16 bits", HALF)], base.communicated,
                                outcome.communicated, {1.0: "none", HALF: "16-bit"}))  # fmt: skip
    if outcome.accumulation > 1:
        place = [each.name for each in found].index("passes") + 1
        found.insert(place, _choice("sync", "reduced after", [("every pass", False), ("the last pass", True)],
                                    base.no_sync, outcome.no_sync, {False: "every", True: "last"}))  # fmt: skip
    if late and max(late) > 0:
        found.append(_choice("late", "stragglers", [("as recorded", True), ("no stragglers", False)], True,
                             outcome.late_ranks, {False: "none", True: ""}))  # fmt: skip
    return tuple(found)


def change_setting(query: Mapping[str, str], name: str, value: str | None) -> dict[str, str | None]:
    """Return the query with one setting changed; None means as recorded, and is not written into an address.

    Without any setting it says so: an address that names none means the best.
    """
    kept: dict[str, str | None] = {key: query[key] for key in (*SETTING_NAMES, "for") if key in query}
    kept[name] = value
    is_recorded = all(kept.get(each) is None for each in SETTING_NAMES)
    return {**kept, "set": AS_RECORDED} if is_recorded else kept


def lead(outcome: SettingsOutcome) -> Words:
    """Return a sentence on the predicted step time."""
    base, changed = outcome.present, outcome.scenario
    known = "measured" if base.known_from == "measured" else "replayed"
    if not outcome.changed:
        return ("A step takes ", Time(base.predicted_step_ns), f" ({known}); in the replay ",
                Time(base.exposed_comm_ns), " of it is exposed. Select settings to predict the step time.")  # fmt: skip
    if outcome.passes[0] != outcome.passes[1]:
        before, after = (
            each.predicted_step_ns / passes for each, passes in zip((base, changed), outcome.passes, strict=True)
        )
        passes = "pass" if outcome.passes[1] == 1 else "passes"
        return (f"A step of {outcome.passes[1]} {passes} would take ", Time(changed.predicted_step_ns), ": ",
                Time(after), " per pass instead of ", Time(before), ".")  # fmt: skip
    sign = 1 if changed.gain >= 0 else -1
    gain, *ends = (
        sign * share * base.predicted_step_ns for share in (changed.gain, changed.gain_low, changed.gain_high)
    )
    low, high = sorted(ends)
    return (
        "A step would take ", Time(changed.predicted_step_ns), " instead of ", Time(base.predicted_step_ns),
        f" ({known}): that {'saves' if sign > 0 else 'costs'} ", Time(gain),
        f", {percent(abs(changed.gain))} ({ms(low)} to {ms(high)} ms, 90 %).",
        " It changes numerics." if changed.changes_numerics else "",
        " No setting achieves this on its own." if changed.hypothetical else "",
    )  # fmt: skip


def figures(outcome: SettingsOutcome) -> list[Figure]:
    """Return the key figures of the requested settings."""
    base, changed = outcome.present, outcome.scenario
    return [
        ("Step", Time(changed.predicted_step_ns),
         (Time(changed.low_ns), " to ", Time(changed.high_ns), f", 90 %, {changed.known_from}")),
        ("Exposed in the replay", Time(changed.exposed_comm_ns), ("now ", Time(base.exposed_comm_ns))),
        ("Buckets", str(changed.buckets), (f"now {base.buckets}",)),
        ("Memory of buckets", size(changed.memory_bytes), (f"now {size(base.memory_bytes)}",)),
    ]  # fmt: skip


def segments(shown: ReplayedStep) -> tuple[Segment, ...]:
    """Return the parts of a replayed step."""
    return (
        Segment(name="compute only", ns=shown.compute_only_ns, kind="compute"),
        Segment(name="overlapped communication", ns=shown.hidden_ns, kind="hidden"),
        Segment(name="exposed", ns=shown.exposed_ns, kind="exposed"),
        Segment(name="idle", ns=shown.idle_ns, kind="idle"),
    )


def part_rows(before: ReplayedStep, after: ReplayedStep) -> list[tuple[str, str, str, str]]:
    """Return a row for each part of a step: before, after, and the difference."""
    pairs = [(a.name, a.ns, b.ns) for a, b in zip(segments(before), segments(after), strict=True)]
    pairs.append(("step, replayed", before.step_ns, after.step_ns))
    return [(name, ms(a), ms(b), signed_ms(b - a)) for name, a, b in pairs]


def lane_rows(shown: ReplayedStep) -> list[tuple[str, str, str, str, str]]:
    """Return a row for each collective of a replayed step."""
    return [
        (
            f"{at + 1}",
            size(each.bytes) if each.bytes is not None else "other",
            ms(each.begun_ns),
            ms(each.start_ns),
            ms(each.end_ns),
        )
        for at, each in enumerate(shown.sent)
    ]


def best_caps(outcome: SettingsOutcome, found: WhatIf) -> tuple[float, float]:
    """Return the smallest and the largest cap in MiB that are as good as the best: those of the prediction, which the
    recommendation names, where the settings are its own but for the cap; else those of the curve."""
    predicted = found.equally_good.get(CAP)
    if predicted and _but_cap(outcome.scenario.knobs) == _but_cap(found.best.knobs):
        return predicted[0], predicted[1]
    return outcome.curve.good_mb


def _but_cap(knobs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in knobs.items() if name != CAP}


def best_caps_sentence(best_mb: tuple[float, float]) -> str:
    """Return a sentence on the caps that are as good as the best."""
    low, high = best_mb
    if low == high:
        return f"The shortest step is with a cap of {low:g} MiB."
    return f"Caps of {low:g} to {high:g} MiB (shaded green) are equally good within the noise."


def curve_rows(curve: CapCurve, best_mb: tuple[float, float]) -> list[tuple[str, ...]]:
    """Return a row for each cap."""
    return [
        (f"{cap:g}", ms(each.predicted_step_ns), ms(each.low_ns), ms(each.high_ns), ms(each.exposed_comm_ns),
         str(each.buckets), "yes" if best_mb[0] <= cap <= best_mb[1] else "")
        for cap, each in zip(curve.caps_mb, curve.steps, strict=True)
    ]  # fmt: skip


def _choice(
    name: str,
    label: str,
    values: Sequence[tuple[str, Any]],
    base: object,
    outcome: object,
    spelled: Mapping[Any, str] | None = None,
) -> SettingControl:
    def address(value: Any) -> str | None:
        if value == base:
            return None
        if spelled is not None:
            return spelled[value]
        return {True: "yes", False: "no"}[value] if isinstance(value, bool) else f"{value:g}"

    options = tuple(
        (f"{words} (now)" if value == base else words, address(value), value == outcome) for words, value in values
    )
    return SettingControl(name=name, label=label, options=options)


def _number(text: str | None, low: float, high: float) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if low <= value <= high else None
