"""Predicted step time by bucket cap, all else unchanged, and the caps that are as good as the best."""

from collections.abc import Hashable, Sequence

import msgspec
from msgspec.structs import replace

from overlapscope.whatif.ddp.buckets import MIB
from overlapscope.whatif.ddp.ddp_predict import DdpCase, predict_settings
from overlapscope.whatif.ddp.ddp_step import Settings, buckets_of
from overlapscope.whatif.ddp.search import CAPS_MB, with_cap
from overlapscope.whatif.result import CAP, Scenario, equally_good
from overlapscope.whatif.workload.workload import Workload


class CapCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted steps by cap, in ascending order of caps."""

    caps_mb: tuple[float, ...]
    steps: tuple[Scenario, ...]
    good_mb: tuple[float, float]
    """Smallest and largest cap, without a worse one between, whose steps differ from the shortest by less than the
    noise; both are the cap of the shortest where no other does."""


def caps_to_draw(workload: Workload, *others_mb: float | None) -> tuple[float, ...]:
    """Return the caps to draw, in MiB: those that a prediction tries, up to the first that holds all gradients, and the
    given ones."""
    total = float(workload.gradients.sizes_bytes.sum()) / MIB
    last = next((at for at, cap in enumerate(CAPS_MB) if cap >= total), len(CAPS_MB) - 1)
    return tuple(sorted({*CAPS_MB[: last + 1], *(each for each in others_mb if each is not None)}))


def cap_curve(case: DdpCase, settings: Settings, caps_mb: Sequence[float]) -> CapCurve:
    """Predict the step under each cap, in MiB. Caps that make the same buckets are replayed once.

    The present settings are left out, because their step was measured (see `scenarios`): here all steps are replayed.
    """
    workload = case.workload()
    chosen: dict[float, Hashable] = {}
    distinct: dict[Hashable, Settings] = {}
    for cap in caps_mb:
        tried = with_cap(settings, cap)
        if tried == case.baseline:
            continue
        chosen[cap] = made = tuple(each.parameters for each in buckets_of(workload, tried))
        distinct.setdefault(made, tried)
    rows = predict_settings(case, list(distinct.values()))[1:]
    by_buckets = dict(zip(distinct, rows, strict=True))
    steps = tuple(by_buckets[made] for made in chosen.values())
    if not steps:
        return CapCurve(caps_mb=(), steps=(), good_mb=(0.0, 0.0))
    # Caps that make the same buckets share a replay: each row is named after its own cap.
    named = [replace(each, knobs={CAP: cap}) for cap, each in zip(chosen, steps, strict=True)]
    best = min(named, key=lambda each: each.predicted_step_ns)
    near = [each.knobs[CAP] for each in named if each.predicted_step_ns <= best.predicted_step_ns * (1 + case.noise)]
    low, high = equally_good(named, best, {CAP: near}).get(CAP, [best.knobs[CAP]] * 2)
    return CapCurve(caps_mb=tuple(chosen), steps=steps, good_mb=(low, high))
