"""Predicted step time by bucket cap, all else unchanged: the shortest, and those equal within the noise."""

from collections.abc import Hashable, Sequence
from typing import Final

import msgspec

from overlapscope.whatif.ddp.buckets import MIB
from overlapscope.whatif.ddp.ddp_predict import DdpCase, predict_settings
from overlapscope.whatif.ddp.ddp_step import Settings, buckets_of
from overlapscope.whatif.ddp.search import with_cap
from overlapscope.whatif.result import Scenario
from overlapscope.whatif.workload.workload import Workload

CAPS_MB: Final = (0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 18.0, 25.0, 40.0, 60.0, 100.0, 250.0, 500.0, 1000.0)


class CapCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted steps by cap, in ascending order of caps."""

    caps_mb: tuple[float, ...]
    steps: tuple[Scenario, ...]
    flat_mb: tuple[float, ...]
    """Caps whose steps differ from the shortest by less than the noise."""


def caps_to_draw(workload: Workload, *others_mb: float | None) -> tuple[float, ...]:
    """Return the caps to draw, in MiB: up to the first that holds all gradients, and the given ones."""
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
    least = min((each.predicted_step_ns for each in steps), default=0)
    flat = tuple(
        cap for cap, each in zip(chosen, steps, strict=True) if each.predicted_step_ns <= least * (1 + case.noise)
    )
    return CapCurve(caps_mb=tuple(chosen), steps=steps, flat_mb=flat)
