"""How long each row of work and each collective of a dry run takes by itself, from rates, bandwidths and constants."""

from collections.abc import Sequence
from functools import cache
from typing import Final

import msgspec
import numpy as np

from overlapscope.timeline.columns import ATTENTION, MATMUL, MEMORY, Flags, Floats
from overlapscope.whatif.pricing.constants import Constants
from overlapscope.whatif.pricing.devices import Device
from overlapscope.whatif.pricing.links import Links
from overlapscope.whatif.pricing.program import Call, Program, Rows
from overlapscope.whatif.pricing.recipe import Recipe

TENSOR: Final = "tensor"
"""The dimension whose collectives async TP and 8-bit gathers change."""


class Times(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Times in ns, each alone on its device or link."""

    rows: Floats
    calls: Floats


def row_times(rows: Rows, device: Device, recipe: Recipe, values: Constants) -> Floats:
    """Return the time of each row in ns: of its operations or of its bytes, whichever takes longer.

    A row without bytes and operations takes no time: a compiler has joined it to another, or it is no work.
    """
    memory = device.memory_gbs * values["memory"]
    joined = (rows.work == MEMORY) & _within(rows.modules, recipe.compiled)
    moving = np.where(joined, rows.fused_bytes, rows.moved_bytes) / memory
    eighth = _float8(rows, recipe)
    computing = np.zeros(rows.work.size)
    for dtype, chosen in _by_dtype(rows).items():
        rate = device.peak_flops_per_ns(dtype)
        products = chosen & (rows.work == MATMUL)
        computing[products] = rows.flops[products] / (rate * values["matmul"])
        attention = chosen & (rows.work == ATTENTION)
        share = np.where(rows.backward_attention, device.attention[1], device.attention[0]) * values["attention"]
        computing[attention] = (rows.flops / (rate * share))[attention]
    casting = np.zeros(rows.work.size)
    if eighth.any():
        computing[eighth] = rows.flops[eighth] / (device.peak_flops_per_ns("float8") * values["float8"])
        casting[eighth] = rows.read_elements[eighth] * values[f"{recipe.float8}_bytes"] / memory
    found: Floats = np.maximum(computing * values["pace"], moving) + casting
    return found


def call_times(program: Program, links: Links, recipe: Recipe, values: Constants, rows: Floats) -> Floats:
    """Return the time of each collective in ns, with the copies that must end before it; `rows` are `row_times`."""
    found = np.zeros(len(program.calls))
    for number, call in enumerate(program.calls):
        size = call.size_bytes
        if gathered_in_8_bits(call, recipe):
            size //= 2
        scale = values["inside" if links.nodes(call.ranks) == 1 else "between"]
        time = links.time_ns(call.op, call.ranks, size) * scale
        if split_by_async_tp(call, recipe):
            time *= 1 - values["hidden"]
        found[number] = time + rows[list(call.rows_before)].sum()
    return found


def gathered_in_8_bits(call: Call, recipe: Recipe) -> bool:
    """Return whether a call gathers activations that tensorwise float8 has cast before.

    torchao casts the input of a column-wise layer and the gradient of a row-wise one before it gathers them.
    """
    return (
        recipe.float8 == "tensorwise"
        and call.dimension == TENSOR
        and call.op == "all_gather"
        and not _begins(call.module, recipe.float8_except)
    )


def split_by_async_tp(call: Call, recipe: Recipe) -> bool:
    """Return whether async TP runs a call in pieces beside the product that makes or needs its data."""
    return recipe.async_tp and call.dimension == TENSOR and call.op in ("all_gather", "reduce_scatter")


def _float8(rows: Rows, recipe: Recipe) -> Flags:
    if recipe.float8 is None:
        return np.zeros(rows.work.size, np.bool_)
    kept = _within(rows.modules, recipe.float8_except)
    sixteen = np.array([each in ("bfloat16", "float16") for each in rows.dtypes], np.bool_)
    found: Flags = (rows.work == MATMUL) & ~kept & sixteen
    return found


def _by_dtype(rows: Rows) -> dict[str, Flags]:
    computes = np.isin(rows.work, (MATMUL, ATTENTION)) & (rows.flops > 0)
    names = np.array([each or "" for each in rows.dtypes])
    return {str(dtype): computes & (names == dtype) for dtype in np.unique(names[computes])}


def _within(modules: Sequence[str | None], prefixes: tuple[str, ...] | None) -> Flags:
    if prefixes is None:
        return np.zeros(len(modules), np.bool_)
    if not prefixes:
        return np.ones(len(modules), np.bool_)
    return np.array([_begins(each, prefixes) for each in modules], np.bool_)


@cache
def _begins(module: str | None, prefixes: tuple[str, ...]) -> bool:
    return any(module == each or (module or "").startswith(f"{each}.") for each in prefixes)
