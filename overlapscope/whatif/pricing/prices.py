"""The price of a dry run: step time, exposed communication and critical path, each with an interval."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.timeline.columns import Floats
from overlapscope.whatif.cost.curves import ASSUMED, EXTRAPOLATED
from overlapscope.whatif.pricing.calibration import Measured, calibrated, fitted_constant, priced_ns, times_of
from overlapscope.whatif.pricing.constants import PRIORS, draws, usual
from overlapscope.whatif.pricing.devices import Device
from overlapscope.whatif.pricing.links import Links
from overlapscope.whatif.pricing.program import Program
from overlapscope.whatif.pricing.recipe import Recipe
from overlapscope.whatif.pricing.step_replay import ReplayedStep, replayed
from overlapscope.whatif.pricing.support import NONE, Support, host_notes, support

DRAWS: Final = 120
INTERVAL: Final = (0.1, 0.9)
"""Quantiles of the 80 % interval."""


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A time in ns with its 80 % interval."""

    value_ns: float
    low_ns: float
    high_ns: float


class Price(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What a dry run's step would take on a device. Every figure is an estimate; counts and bytes are not in it."""

    device: str
    links: str
    recipe: str
    support: Support
    step: Interval | None
    """None where `support.kind` is `none`."""
    exposed_comm: Interval | None
    path: Mapping[str, float]
    """Shares of the critical path: what the compute stream did, and what it waited for; they sum to 1."""
    constants: Mapping[str, float]
    """Value of each constant."""
    measured: tuple[str, ...]
    """Steps that it was calibrated with, and the constant that each fixed."""
    assumed: tuple[str, ...]
    """What was assumed, with its source."""
    notes: tuple[str, ...]
    replayed: ReplayedStep | None


class Target(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A step to price."""

    program: Program
    recipe: Recipe


def price(program: Program, device: Device, links: Links, recipe: Recipe, measured: Sequence[Measured] = ()) -> Price:
    """Return the price of a step. Raises UsageError where the device has no rate for a dtype, or links are missing."""
    found = support(program, recipe, measured)
    values = calibrated(measured, device, links, usual()).applied(usual(), recipe)
    step = None
    spread: tuple[Interval, Interval] | None = None
    if found.kind != NONE:
        step = replayed(program, links, times_of(program, device, links, recipe, values), values)
        spread = _intervals(program, device, links, recipe, measured, step)
    return Price(
        device=device.key,
        links=links.name,
        recipe=str(recipe),
        support=found,
        step=spread[0] if spread else None,
        exposed_comm=spread[1] if spread else None,
        path={name: each / step.step_ns for name, each in step.path_ns.items()} if step else {},
        constants={name: values[name] for name in _used(recipe)},
        measured=tuple(f"{each.source}: {each.recipe}, fixes {fitted_constant(each.recipe)}" for each in measured),
        assumed=tuple(_assumed(program, device, links, recipe, measured)),
        notes=tuple(host_notes(program, recipe, step.step_ns)) if step else (),
        replayed=step,
    )


def drawn_steps(
    targets: Sequence[Target], device: Device, links: Links, measured: Sequence[Measured] = (), number: int = DRAWS
) -> Floats:
    """Return the step times in ns, shape (draws, targets), under draws of all constants, each calibrated again.

    One draw holds for all targets, so that two columns can be compared draw by draw.
    """
    found = np.empty((number, len(targets)))
    for row, values in enumerate(draws(number)):
        fit = calibrated(measured, device, links, values)
        for column, each in enumerate(targets):
            own = fit.applied(values, each.recipe)
            found[row, column] = priced_ns(each.program, device, links, each.recipe, own)
    # What is predicted was measured once too, with a noise of its own.
    return found * np.array([each["noise"] for each in draws(number, seed=1)])[:, None]


def _intervals(
    program: Program, device: Device, links: Links, recipe: Recipe, measured: Sequence[Measured], step: ReplayedStep
) -> tuple[Interval, Interval]:
    steps, exposed = [], []
    for values, noise in zip(draws(DRAWS), draws(DRAWS, seed=1), strict=True):
        own = calibrated(measured, device, links, values).applied(values, recipe)
        found = replayed(program, links, times_of(program, device, links, recipe, own), own)
        steps.append(found.step_ns * noise["noise"])
        exposed.append(found.exposed_comm_ns)
    return _interval(step.step_ns, steps), _interval(step.exposed_comm_ns, exposed)


def _interval(value: float, drawn: Sequence[float]) -> Interval:
    low, high = np.quantile(drawn, INTERVAL)
    return Interval(value_ns=value, low_ns=min(float(low), value), high_ns=max(float(high), value))


def _used(recipe: Recipe) -> list[str]:
    other = {f"{kind}_bytes" for kind in ("tensorwise", "rowwise")} - {f"{recipe.float8}_bytes"}
    unused = {*other, *(() if recipe.float8 else ("float8",)), *(() if recipe.async_tp else ("hidden",))}
    return [name for name in PRIORS if name not in unused]


def _assumed(program: Program, device: Device, links: Links, recipe: Recipe, measured: Sequence[Measured]) -> list[str]:
    fixed = {fitted_constant(each.recipe) for each in measured}
    found = [f"{device.name}: {device.source}", f"links: {links.inside.source}"]
    if links.between is not None:
        found.append(f"links: {links.between.source}")
    kinds = {(call.op, len(call.ranks), links.nodes(call.ranks)): call for call in program.calls}
    for (op, size, nodes), call in kinds.items():
        how = links.known_from(op, call.ranks, call.size_bytes)
        if how in (ASSUMED, EXTRAPOLATED):
            where = "one node" if nodes == 1 else f"{nodes} nodes"
            found.append(f"{op} over {size} ranks on {where}: {how}, from bandwidth and latency")
    if recipe.compiled is not None:
        found.append(
            "compile: each run of memory-bound operations is one kernel; what a compiler really joins may differ"
        )
    found += [f"{name} {PRIORS[name].low:g} .. {PRIORS[name].usual:g} .. {PRIORS[name].high:g}: {PRIORS[name].source}"
              for name in _used(recipe) if name not in fixed]  # fmt: skip
    return found
