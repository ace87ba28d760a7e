"""Fit constants of a price to measured steps: one constant for each, the one that its recipe brings in.

A step in 16 bits fixes `pace`; one with float8 products the bytes of its casts; one with async TP the share that it
overlaps. So a measured step is met exactly, and changes nothing else. A step recorded on a device also shows how long
its kernels took by class: they fix `attention` and `memory` before. Each compile setting has its own pace, because what
a compiler joins is only estimated; where just one was measured, the other takes it over.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.timeline.columns import ATTENTION, MATMUL, MEMORY
from overlapscope.whatif.pricing.constants import PRIORS, Constants
from overlapscope.whatif.pricing.devices import Device
from overlapscope.whatif.pricing.links import Links
from overlapscope.whatif.pricing.program import Program
from overlapscope.whatif.pricing.recipe import Recipe
from overlapscope.whatif.pricing.step_replay import step_ns
from overlapscope.whatif.pricing.times import Times, call_times, row_times

MET: Final = 0.01
"""Relative error from which on a measured step counts as not met."""
_STEPS: Final = 30
_CLOSE: Final = 1e-5
_WIDEST: Final = {"pace": (0.05, 40.0), "hidden": (0.0, 1.0)}
"""Values a fitted constant may take; bytes of casts from 0 to 100."""


class Measured(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A measured step of a job that a dry run describes."""

    program: Program
    recipe: Recipe
    step_ns: float
    source: str
    device: Device | None = None
    """Where it was measured, if not on the device that is priced."""
    work_ns: Mapping[int, float] = {}
    """Time of its kernels by class, as `recorded_work` returns it."""


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Constants that measured steps fixed."""

    pace: tuple[tuple[bool, float], ...] = ()
    """(whether compiled, value)."""
    others: tuple[tuple[str, float], ...] = ()
    missed: tuple[str, ...] = ()
    """Steps that no value of their constant meets."""
    unusual: tuple[str, ...] = ()
    """Constants that were fitted to values outside their ranges."""

    def applied(self, values: Constants, recipe: Recipe) -> dict[str, float]:
        """Return the constants of a recipe: fitted where they were, `values` else."""
        found = {**values, **dict(self.others)}
        paces = dict(self.pace)
        if paces:
            compiled = recipe.compiled is not None
            found["pace"] = paces.get(compiled, next(iter(paces.values())))
        return found


def fitted_constants(measured: Measured) -> tuple[str, ...]:
    """Return the names of the constants that a measured step fixes."""
    return (*_classes_of(measured), fitted_constant(measured.recipe))


def fitted_constant(recipe: Recipe) -> str:
    """Return the name of the constant that a measured step of this recipe fixes."""
    if recipe.async_tp:
        return "hidden"
    return f"{recipe.float8}_bytes" if recipe.float8 else "pace"


def calibrated(measured: Sequence[Measured], device: Device, links: Links, values: Constants) -> Calibration:
    """Return the constants at which each measured step is met, or met as nearly as its constant can.

    Steps that fix `pace` are fitted first, then casts, then async TP, since each rests on those before.
    """
    found = Calibration()
    order = sorted(measured, key=lambda each: (each.recipe.async_tp, each.recipe.float8 is not None))
    for each in order:
        name = fitted_constant(each.recipe)
        by_class = _by_class(each, device, found.applied(values, each.recipe))
        found = msgspec.structs.replace(found, others=tuple({**dict(found.others), **by_class}.items()))
        given = found.applied(values, each.recipe)

        def predicted(value: float, each: Measured = each, name: str = name, given: Constants = given) -> float:
            return priced_ns(each.program, each.device or device, links, each.recipe, {**given, name: value})

        aim = each.step_ns * values["noise"]
        value, off_ns = _solve(predicted, aim, *_WIDEST.get(name, (0.0, 100.0)), start=given[name])
        if abs(off_ns) > MET * aim:
            found = msgspec.structs.replace(found, missed=(*found.missed, each.source))
        elif not PRIORS[name].low <= value <= PRIORS[name].high:
            said = f"{name} was fitted to {value:.3g}, outside {PRIORS[name].low:g} to {PRIORS[name].high:g}"
            found = msgspec.structs.replace(found, unusual=(*found.unusual, said))
        if name == "pace":
            value *= values["another_device"] if each.device else 1.0
            paces = {**dict(found.pace), each.recipe.compiled is not None: value}
            found = msgspec.structs.replace(found, pace=tuple(paces.items()))
        else:
            found = msgspec.structs.replace(found, others=tuple({**dict(found.others), name: value}.items()))
    return found


def _classes_of(measured: Measured) -> tuple[str, ...]:
    """Return which constants the kernels of a step fix: none where casts are among them, or of another device."""
    program, recorded = measured.program, measured.work_ns
    if measured.device is not None or measured.recipe.float8 or not recorded:
        return ()
    attends = recorded[ATTENTION] > 0 and bool((program.rows.work == ATTENTION).any())
    return (*(("attention",) if attends else ()), *(("memory",) if recorded[MEMORY] > 0 else ()))


def _by_class(measured: Measured, device: Device, values: Constants) -> dict[str, float]:
    """Return the constants at which attention has its recorded share beside products, and other kernels their time."""
    rows, found = measured.program.rows, {}
    classes = _classes_of(measured)
    if not classes:
        return {}
    times = np.where(rows.on_compute, row_times(rows, device, measured.recipe, values), 0.0)
    products, attention = times[rows.work == MATMUL].sum(), times[rows.work == ATTENTION].sum()
    others = times.sum() - products - attention
    recorded = measured.work_ns
    if "attention" in classes:
        found["attention"] = values["attention"] * attention / products * recorded[MATMUL] / recorded[ATTENTION]
    if "memory" in classes:
        found["memory"] = values["memory"] * others / recorded[MEMORY]
    return {name: float(each) for name, each in found.items()}


def priced_ns(program: Program, device: Device, links: Links, recipe: Recipe, values: Constants) -> float:
    """Return the time of a step in ns under these constants."""
    return step_ns(program, links, recipe, times_of(program, device, links, recipe, values), values)


def times_of(program: Program, device: Device, links: Links, recipe: Recipe, values: Constants) -> Times:
    """Return the times of a program's rows and calls under these constants."""
    rows = row_times(program.rows, device, recipe, values)
    return Times(rows=rows, calls=call_times(program, links, recipe, values, rows))


def _solve(
    function: Callable[[float], float], wanted: float, low: float, high: float, start: float
) -> tuple[float, float]:
    """Return where a monotone function has a value, and by how much it misses it, by secants kept between both ends."""
    x, y = start, function(start) - wanted
    other, at_other = start * 1.1 + 1e-3, 0.0
    other = min(max(other, low), high)
    at_other = function(other) - wanted
    for _ in range(_STEPS):
        if abs(y) <= _CLOSE * wanted or y == at_other:
            break
        step = x - y * (x - other) / (y - at_other)
        other, at_other = x, y
        x = min(max(step, low), high)
        if x == other:
            break
        y = function(x) - wanted
    return x, y
