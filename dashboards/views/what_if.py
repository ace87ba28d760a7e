"""What a step would be under other settings: from an address to settings, and from replays to what is drawn."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from overlapscope.report.formatting import ms, percent, signed_ms, size
from overlapscope.whatif.cap_curve import CapCurve, cap_curve, caps_of
from overlapscope.whatif.ddp_predict import scenarios
from overlapscope.whatif.ddp_recording import RecordedCase
from overlapscope.whatif.ddp_step import HALF, Settings
from overlapscope.whatif.lane_usage import Lanes, lanes
from overlapscope.whatif.result import Scenario
from overlapscope.whatif.search import with_cap
from overlapscope_dashboards.parts.bars import Segment

MAX_CAP_MB: Final = 100_000.0
PASSES: Final = (1, 2, 4, 8)
SPEEDS: Final = (0.5, 1.0, 2.0, 4.0)
KNOBS: Final = ("cap", "hook", "views", "passes", "sync", "link", "late")
"""Names in the address, in the order of the controls."""
FRAMEWORKS: Final[Mapping[str, str]] = {
    "ddp": "DDP", "fsdp2": "FSDP2", "deepspeed": "DeepSpeed", "megatron": "Megatron", "horovod": "Horovod",
}  # fmt: skip


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One control: a label, and its values as (words, value in the address or None where it is as recorded, chosen)."""

    name: str
    label: str
    options: tuple[tuple[str, str | None, bool], ...]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the replay tells of one set of settings, beside the present one."""

    settings: Settings
    present: Scenario
    scenario: Scenario
    before: Lanes
    after: Lanes
    curve: CapCurve
    passes: tuple[int, int]
    """Backward passes of a step, now and as asked for."""

    @property
    def changed(self) -> bool:
        """Return whether anything else than the present settings is asked for."""
        return self.scenario is not self.present


def settings_of(query: Mapping[str, str], base: Settings) -> Settings:
    """Return the settings that an address asks for; a value that makes no sense is as if it were not there."""
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


def ask(case: RecordedCase, settings: Settings) -> Asked:
    """Replay settings, the present ones, and all caps beside them."""
    rows = scenarios(case, [settings])
    workload = case.workload()
    caps = caps_of(workload, settings.ddp.bucket_cap_mb)
    return Asked(
        settings=settings,
        present=rows[0],
        scenario=rows[-1],
        before=lanes(workload, case.baseline),
        after=lanes(workload, settings),
        curve=cap_curve(case, settings, caps),
        passes=(case.baseline.accumulation, settings.accumulation),
    )


def choices(case: RecordedCase, asked: Settings) -> tuple[Choice, ...]:
    """Return the controls besides the cap; those that would change nothing are left out."""
    base = case.baseline
    late = case.lateness_ns
    passes = sorted({*PASSES, base.accumulation, asked.accumulation})
    found = [
        _choice("views", "gradients as views of buckets", [("yes", True), ("no", False)],
                base.gradient_as_bucket_view, asked.gradient_as_bucket_view),
        _choice("passes", "backward passes a step", [(str(each), each) for each in passes],
                base.accumulation, asked.accumulation),
        _choice("link", "link speed, times", [(f"{each:g}", each) for each in SPEEDS], base.link_speed,
                asked.link_speed),
    ]  # fmt: skip
    if case.halves or base.communicated != 1:
        found.insert(0, _choice("hook", "sent with", [("32 bits", 1.0), ("16 bits", HALF)], base.communicated,
                                asked.communicated, {1.0: "none", HALF: "16-bit"}))  # fmt: skip
    if asked.accumulation > 1:
        place = [each.name for each in found].index("passes") + 1
        found.insert(place, _choice("sync", "reduced after", [("every pass", False), ("the last pass", True)],
                                    base.no_sync, asked.no_sync, {False: "every", True: "last"}))  # fmt: skip
    if late and max(late) > 0:
        found.append(_choice("late", "late ranks", [("as recorded", True), ("none late", False)], True,
                             asked.late_ranks, {False: "none", True: ""}))  # fmt: skip
    return tuple(found)


def with_knob(query: Mapping[str, str], name: str, value: str | None) -> dict[str, str | None]:
    """Return the query with one knob changed; None is as recorded, and does not stand in an address."""
    kept = {key: query[key] for key in (*KNOBS, "for") if key in query}
    return {**kept, name: value}


def lead(asked: Asked) -> str:
    """Say what the step would be, milliseconds first."""
    base, told = asked.present, asked.scenario
    known = "measured" if base.known_from == "measured" else "replayed"
    if not asked.changed:
        now = f"A step takes {ms(base.predicted_step_ns)} ms ({known}), {ms(base.exposed_comm_ns)} ms of it exposed."
        return f"{now} Choose other settings to see what it would take."
    if asked.passes[0] != asked.passes[1]:
        before, after = (
            each.predicted_step_ns / passes for each, passes in zip((base, told), asked.passes, strict=True)
        )
        return (
            f"A step of {asked.passes[1]} {'pass' if asked.passes[1] == 1 else 'passes'} would take "
            f"{ms(told.predicted_step_ns)} ms: {ms(after)} ms a pass instead of {ms(before)} ms."
        )
    sign = 1 if told.gain >= 0 else -1
    gain, *ends = (sign * share * base.predicted_step_ns for share in (told.gain, told.gain_low, told.gain_high))
    low, high = sorted(ends)
    numerics = " It changes numerics." if told.changes_numerics else ""
    hypothetical = " No setting alone brings this about." if told.hypothetical else ""
    return (
        f"A step would take {ms(told.predicted_step_ns)} ms instead of {ms(base.predicted_step_ns)} ms ({known}): that "
        f"{'saves' if sign > 0 else 'costs'} {ms(gain)} ms, {percent(abs(told.gain))} "
        f"({ms(low)} to {ms(high)} ms, 90 %).{numerics}{hypothetical}"
    )


def figures(asked: Asked) -> list[tuple[str, str, str, str]]:
    """Return (name, value, unit, what stands below) of the settings that are asked for."""
    base, told = asked.present, asked.scenario
    interval = f"{ms(told.low_ns)} to {ms(told.high_ns)} ms, 90 %"
    return [
        ("Step", ms(told.predicted_step_ns), "ms", f"{interval}, {told.known_from}"),
        ("Exposed", ms(told.exposed_comm_ns), "ms", f"now {ms(base.exposed_comm_ns)} ms, replayed"),
        ("Buckets", str(told.buckets), "", f"now {base.buckets}"),
        ("Memory of buckets", *_memory(told.memory_bytes), f"now {' '.join(_memory(base.memory_bytes))}"),
    ]


def segments(shown: Lanes) -> tuple[Segment, ...]:
    """Return the parts of a replayed step."""
    return (
        Segment(name="compute only", ns=shown.compute_only_ns, kind="compute"),
        Segment(name="hidden communication", ns=shown.hidden_ns, kind="hidden"),
        Segment(name="exposed", ns=shown.exposed_ns, kind="exposed"),
        Segment(name="idle", ns=shown.idle_ns, kind="idle"),
    )


def part_rows(before: Lanes, after: Lanes) -> list[tuple[str, str, str, str]]:
    """Return a row for each part of a step: before, after, and the difference."""
    pairs = [(a.name, a.ns, b.ns) for a, b in zip(segments(before), segments(after), strict=True)]
    pairs.append(("step, replayed", before.step_ns, after.step_ns))
    return [(name, ms(a), ms(b), signed_ms(b - a)) for name, a, b in pairs]


def lane_rows(shown: Lanes) -> list[tuple[str, str, str, str, str]]:
    """Return a row for each collective of a replayed step."""
    return [
        (
            f"{at + 1}",
            size(each.bytes) if each.bytes is not None else "besides",
            ms(each.begun_ns),
            ms(each.start_ns),
            ms(each.end_ns),
        )
        for at, each in enumerate(shown.sent)
    ]


def flat_ranges(curve: CapCurve) -> list[tuple[float, float]]:
    """Return the stretches of caps, first to last, whose steps the noise does not tell from the shortest."""
    found: list[list[float]] = []
    together = False
    for cap in curve.caps_mb:
        near = cap in curve.flat_mb
        if near and together:
            found[-1].append(cap)
        elif near:
            found.append([cap])
        together = near
    return [(each[0], each[-1]) for each in found]


def flat_words(curve: CapCurve) -> str:
    """Say which caps do as well as the best."""
    ranges = flat_ranges(curve)
    if not ranges:
        return ""
    if len(curve.flat_mb) == 1:
        return f"The shortest step is with a cap of {curve.flat_mb[0]:g} MiB."
    told = [f"{low:g} to {high:g}" if low != high else f"{low:g}" for low, high in ranges]
    return (
        f"Caps of {' or '.join(told)} MiB (shaded green) are as good as the best: the noise does not tell them apart."
    )


def curve_rows(curve: CapCurve) -> list[tuple[str, ...]]:
    """Return a row for each cap."""
    return [
        (f"{cap:g}", ms(each.predicted_step_ns), ms(each.low_ns), ms(each.high_ns), ms(each.exposed_comm_ns),
         str(each.buckets), "yes" if cap in curve.flat_mb else "")
        for cap, each in zip(curve.caps_mb, curve.steps, strict=True)
    ]  # fmt: skip


def _choice(
    name: str,
    label: str,
    values: Sequence[tuple[str, Any]],
    base: object,
    asked: object,
    spelled: Mapping[Any, str] | None = None,
) -> Choice:
    def address(value: Any) -> str | None:
        if value == base:
            return None
        if spelled is not None:
            return spelled[value]
        return {True: "yes", False: "no"}[value] if isinstance(value, bool) else f"{value:g}"

    options = tuple(
        (f"{words} (now)" if value == base else words, address(value), value == asked) for words, value in values
    )
    return Choice(name=name, label=label, options=options)


def _number(text: str | None, low: float, high: float) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if low <= value <= high else None


def _memory(size_bytes: int) -> tuple[str, str]:
    value, unit = size(size_bytes).split(" ")
    return value, unit
