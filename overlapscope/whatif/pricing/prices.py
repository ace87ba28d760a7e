"""The price of a dry run: step time, exposed communication and critical path, each with an interval."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.display import percent_text
from overlapscope.timeline.columns import NONE as MISSING
from overlapscope.timeline.columns import Floats, Ints
from overlapscope.timeline.run import RankTimeline, Run
from overlapscope.whatif.cost.curves import ASSUMED, EXTRAPOLATED
from overlapscope.whatif.pricing.calibration import (
    Calibration,
    Measured,
    calibrated,
    fitted_constants,
    priced_ns,
    times_of,
)
from overlapscope.whatif.pricing.constants import PRIORS, draws, usual
from overlapscope.whatif.pricing.devices import Device
from overlapscope.whatif.pricing.links import Links
from overlapscope.whatif.pricing.program import Program, program_of
from overlapscope.whatif.pricing.recipe import Recipe
from overlapscope.whatif.pricing.result import INTERVAL, Constant, Interval, Prices, RankPrice
from overlapscope.whatif.pricing.step_replay import ReplayedStep, replayed
from overlapscope.whatif.pricing.support import ESTIMATE, NONE, host_notes, memory_notes, support

DRAWS: Final = 120
LEAST_RANGE: Final = 0.15
"""Least half-width of a range, over its middle: from a step of another H100, an H100's was off by 12 to 17 %."""
MOST_RANGE: Final = 0.35
"""A wider range says nothing that a decision could rest on."""
WHY_UNUSUAL: Final = "device, links or recipe may not be those that the step was measured with"


class Terms(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What a dry run is priced for."""

    device: Device
    links: Links
    recipe: Recipe = Recipe()
    measured: tuple[Measured, ...] = ()


class PricedRun(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The prices of a dry run, and the replayed step of each rank that has one."""

    prices: Prices
    steps: Mapping[int, ReplayedStep]


def price_run(run: Run, terms: Terms) -> PricedRun:
    """Return the prices of a dry run.

    Raises InputError for a run that is no dry run, UsageError where the device has no rate for a dtype or a group spans
    nodes without links between them.
    """
    programs = {rank: program_of(run, rank, host_computes=terms.device.host_computes) for rank in run.ranks}
    found = {rank: price_program(program, terms) for rank, program in programs.items()}
    noted = [
        replace(price, notes=[*price.notes, *memory_notes(run.ranks[rank].recorded, terms.device)])
        for rank, (price, _) in found.items()
    ]
    prices = Prices(
        device=terms.device.key,
        links=terms.links.name,
        recipe=str(terms.recipe),
        measured=[
            f"{each.source}: {each.recipe}, fixes {', '.join(fitted_constants(each))}" for each in terms.measured
        ],
        ranks=noted,
        constants=_constants(terms),
        sources=_sources(list(programs.values()), terms),
    )
    return PricedRun(prices=prices, steps={rank: step for rank, (_, step) in found.items() if step is not None})


def price_program(program: Program, terms: Terms) -> tuple[RankPrice, ReplayedStep | None]:
    """Return the price of one rank's step, and its replay; None where it cannot be priced."""
    fit = _fit(terms, usual())
    allowed = support(program, terms.recipe, terms.measured, fit.missed)
    if allowed.kind == NONE:
        return RankPrice(rank=program.rank, kind=allowed.kind, reasons=list(allowed.reasons)), None
    step = _replayed(program, terms, usual())
    drawn = [_replayed(program, terms, values) for values in draws(DRAWS)]
    noise = [values["noise"] for values in draws(DRAWS, seed=1)]
    only_range = allowed.kind != ESTIMATE
    took = _interval(step.step_ns, [each.step_ns for each in drawn], only_range, noise)
    if only_range:
        middle, half = (took.high_ns + took.low_ns) / 2, (took.high_ns - took.low_ns) / 2
        if half > MOST_RANGE * middle:
            wide = f"its range would be {percent_text(half / middle)} to each side: calibrate with a measured step"
            return RankPrice(rank=program.rank, kind=NONE, reasons=[*allowed.reasons, wide]), None
        half = max(half, LEAST_RANGE * middle)
        took = replace(took, low_ns=round(middle - half), high_ns=round(middle + half))
    price = RankPrice(
        rank=program.rank,
        kind=allowed.kind,
        reasons=list(allowed.reasons),
        step=took,
        exposed_comm=_interval(step.exposed_comm_ns, [each.exposed_comm_ns for each in drawn], only_range),
        path={name: each / step.step_ns for name, each in step.path_ns.items()} if step.step_ns else {},
        notes=[*host_notes(program, terms.recipe, step.step_ns), *(f"{each}: {WHY_UNUSUAL}" for each in fit.unusual)],
    )
    return price, step


def drawn_steps(targets: Sequence[tuple[Program, Recipe]], terms: Terms, number: int = DRAWS) -> Floats:
    """Return step times in ns, shape (draws, targets), under draws of all constants, each calibrated again.

    A draw holds for all targets, so that two columns can be compared draw by draw; the noise of a measurement is each
    target's own. `terms.recipe` does not count.
    """
    found = np.empty((number, len(targets)))
    for row, values in enumerate(draws(number)):
        fit = _fit(terms, values)
        for column, (program, recipe) in enumerate(targets):
            own = _applied(fit, terms, values, recipe)
            found[row, column] = priced_ns(program, terms.device, terms.links, recipe, own)
    for column in range(len(targets)):
        found[:, column] *= [values["noise"] for values in draws(number, seed=column + 1)]
    return found


def _fit(terms: Terms, values: dict[str, float]) -> Calibration:
    return calibrated(terms.measured, terms.device, terms.links, values)


def _applied(fit: Calibration, terms: Terms, values: dict[str, float], recipe: Recipe) -> dict[str, float]:
    """Return the constants of a recipe. Without any measured step, no less is unknown than with another device's."""
    found = fit.applied(values, recipe)
    if not terms.measured:
        found["pace"] *= values["another_device"]
    return found


def _replayed(program: Program, terms: Terms, values: dict[str, float]) -> ReplayedStep:
    device, links, recipe = terms.device, terms.links, terms.recipe
    own = _applied(_fit(terms, values), terms, values, recipe)
    return replayed(program, links, recipe, times_of(program, device, links, recipe, own), own)


def _interval(value: float, drawn: Sequence[float], only_range: bool, noise: Sequence[float] = (1.0,)) -> Interval:
    low, high = np.quantile(np.array(drawn) * noise, INTERVAL).tolist()
    return Interval(
        value_ns=None if only_range else round(value),
        low_ns=round(min(low, value)),
        high_ns=round(max(high, value)),
        draws_ns=[round(each) for each in drawn],
    )


def _constants(terms: Terms) -> list[Constant]:
    fixed = {name: each.source for each in terms.measured for name in fitted_constants(each)}
    values = _applied(_fit(terms, usual()), terms, usual(), terms.recipe)
    other = {f"{kind}_bytes" for kind in ("tensorwise", "rowwise") if kind != terms.recipe.float8}
    unused = {*other, *(() if terms.recipe.float8 else ("float8",)), *(() if terms.recipe.async_tp else ("hidden",))}
    if terms.measured and all(each.device is None for each in terms.measured):
        unused.add("another_device")
    return [
        Constant(
            name=name,
            value=values[name],
            low=None if name in fixed else prior.low,
            high=None if name in fixed else prior.high,
            source=f"fitted to {fixed[name]}" if name in fixed else prior.source,
        )
        for name, prior in PRIORS.items()
        if name not in unused
    ]


def _sources(programs: Sequence[Program], terms: Terms) -> list[str]:
    links = terms.links
    found = [
        f"{terms.device.name}, {terms.device.power_w:g} W: {terms.device.source}",
        f"links inside a node: {links.inside.source}",
    ]
    if links.between is not None:
        found.append(f"links between nodes: {links.between.source}")
    found += [f"{each.op} over {each.ranks} ranks: transfers of the recorded run" for each in links.recorded]
    assumed: dict[str, None] = {}
    for call in (each for program in programs for each in program.calls if len(each.ranks) > 1):
        how = links.known_from(call.op, call.ranks, call.size_bytes)
        if how in (ASSUMED, EXTRAPOLATED):
            nodes = links.nodes(call.ranks)
            where = "one node" if nodes == 1 else f"{nodes} nodes"
            assumed[f"{call.op} over {len(call.ranks)} ranks on {where}: {how}, from bandwidth and latency"] = None
    found += assumed
    if terms.recipe.compiled is not None:
        found.append("compile: each run of memory-bound operations is taken to be one kernel; a compiler may join less")
    return found


def with_prices(run: Run, priced: PricedRun) -> Run:
    """Return a dry run with priced times beside its exact columns, and its prices in what is recorded of each rank."""
    return replace(run, ranks={rank: _with_times(each, priced) for rank, each in run.ranks.items()})


def _with_times(timeline: RankTimeline, priced: PricedRun) -> RankTimeline:
    own = [each for each in priced.prices.ranks if each.rank == timeline.rank]
    recorded = {**timeline.recorded, "price": msgspec.to_builtins(replace(priced.prices, ranks=own))}
    step = priced.steps.get(timeline.rank)
    if step is None:
        return replace(timeline, recorded=recorded)
    starts, ends = _rounded(step.row_start_ns), _rounded(step.row_end_ns)
    begins, finishes = _rounded(step.call_start_ns), _rounded(step.call_end_ns)
    return replace(
        timeline,
        recorded=recorded,
        operations=replace(timeline.operations, priced_start_ns=starts, priced_end_ns=ends),
        schedule=replace(timeline.schedule, priced_start_ns=begins, priced_end_ns=finishes),
    )


def _rounded(times_ns: Floats) -> Ints:
    found = np.full(times_ns.size, MISSING, np.int64)
    known = np.isfinite(times_ns)
    found[known] = np.rint(times_ns[known]).astype(np.int64)
    return found
