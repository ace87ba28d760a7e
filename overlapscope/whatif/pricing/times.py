"""How long each row of work and each collective of a dry run takes by itself, from rates, bandwidths and constants."""

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Final

import msgspec
import numpy as np

from overlapscope.timeline.columns import ATTENTION, MATMUL, MEMORY, Flags, Floats, Ints
from overlapscope.whatif.pricing.constants import Constants
from overlapscope.whatif.pricing.devices import Device
from overlapscope.whatif.pricing.links import Links
from overlapscope.whatif.pricing.program import Call, Program, Rows
from overlapscope.whatif.pricing.recipe import Recipe

TENSOR: Final = "tensor"
"""The dimension whose collectives async TP and 8-bit gathers change."""
SIXTEEN_BITS: Final = ("bfloat16", "float16")


class Times(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Times in ns, each alone on its device or link."""

    rows: Floats
    calls: Floats


class Classes(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What the time of each row depends on; one entry a row, or row numbers."""

    bytes: Ints
    products: tuple[tuple[str, Ints], ...]
    """(dtype, rows) of matrix products; `float8` for those that a recipe casts."""
    attention: tuple[tuple[str, Ints, Ints], ...]
    """(dtype, rows of forward, rows of backward)."""
    cast_elements: Ints


class Alone(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Times of the calls without constants; one entry a call."""

    times_ns: Floats
    inside: Flags
    """Whether all its ranks are on one node."""
    split: Flags
    """Whether async TP runs it beside compute."""


def row_times(rows: Rows, device: Device, recipe: Recipe, values: Constants) -> Floats:
    """Return the time of each row in ns: of its operations or of its bytes, whichever takes longer.

    A row without bytes and operations takes no time: a compiler has joined it to another, or it is no work. Raises
    UsageError where the device has no rate for a dtype.
    """
    classes = classes_of(rows, recipe)
    memory = device.memory_gbs * values["memory"]
    computing = np.zeros(rows.work.size)
    for dtype, chosen in classes.products:
        share = values["float8" if dtype == "float8" else "matmul"]
        computing[chosen] = rows.flops[chosen] / (device.peak_flops_per_ns(dtype) * share)
    for dtype, *ways in classes.attention:
        for chosen, share in zip(ways, device.attention, strict=True):
            rate = device.peak_flops_per_ns(dtype) * share * values["attention"]
            computing[chosen] = rows.flops[chosen] / rate
    found: Floats = np.maximum(computing * values["pace"], classes.bytes / memory)
    if recipe.float8:
        found += classes.cast_elements * (values[f"{recipe.float8}_bytes"] / memory)
    return found


@lru_cache(maxsize=64)
def classes_of(rows: Rows, recipe: Recipe) -> Classes:
    """Return what the times of rows depend on under a recipe."""
    joined = (rows.work == MEMORY) & _within(rows.modules, recipe.compiled)
    dtypes = np.array([each or "" for each in rows.dtypes])
    products = (rows.work == MATMUL) & (rows.flops > 0)
    cast = products & np.isin(dtypes, SIXTEEN_BITS) & ~_within(rows.modules, recipe.float8_except)
    dtypes = np.where(cast & (recipe.float8 is not None), "float8", dtypes)
    attention = (rows.work == ATTENTION) & (rows.flops > 0)
    return Classes(
        bytes=np.where(joined, rows.fused_bytes, rows.moved_bytes),
        products=tuple(
            (str(each), np.flatnonzero(products & (dtypes == each))) for each in np.unique(dtypes[products])
        ),
        attention=tuple(
            (
                str(each),
                np.flatnonzero(attention & (dtypes == each) & ~rows.backward_attention),
                np.flatnonzero(attention & (dtypes == each) & rows.backward_attention),
            )
            for each in np.unique(dtypes[attention])
        ),
        cast_elements=np.where(cast, rows.read_elements, 0),
    )


def call_times(program: Program, links: Links, recipe: Recipe, values: Constants, rows: Floats) -> Floats:
    """Return the time of each collective in ns, with the copies that must end before it; `rows` are `row_times`."""
    alone = alone_times(program, links, recipe)
    copies = np.array([rows[list(call.rows_before)].sum() for call in program.calls])
    scale = np.where(alone.inside, values["inside"], values["between"])
    found: Floats = alone.times_ns * scale * np.where(alone.split, 1 - values["hidden"], 1.0) + copies
    return found


@lru_cache(maxsize=64)
def alone_times(program: Program, links: Links, recipe: Recipe) -> Alone:
    """Return the times of the calls as their links give them. Raises UsageError where links are missing."""
    calls = program.calls
    halved = [each.size_bytes // 2 if gathered_in_8_bits(each, recipe) else each.size_bytes for each in calls]
    return Alone(
        times_ns=np.array([links.time_ns(each.op, each.ranks, size) for each, size in zip(calls, halved, strict=True)]),
        inside=np.array([links.nodes(each.ranks) == 1 for each in calls], np.bool_),
        split=np.array([split_by_async_tp(each, recipe) for each in calls], np.bool_),
    )


def gathered_in_8_bits(call: Call, recipe: Recipe) -> bool:
    """Return whether a call gathers activations that tensorwise float8 has cast before.

    torchao casts the input of a column-wise layer and the gradient of a row-wise one before it gathers them.
    """
    return (
        recipe.float8 == "tensorwise"
        and call.dimension == TENSOR
        and call.op == "all_gather"
        and call.dtype in SIXTEEN_BITS
        and not _begins(call.module, recipe.float8_except)
    )


def split_by_async_tp(call: Call, recipe: Recipe) -> bool:
    """Return whether async TP runs a call in pieces beside the product that makes or needs its data."""
    return recipe.async_tp and call.dimension == TENSOR and call.op in ("all_gather", "reduce_scatter")


def _within(modules: Sequence[str | None], prefixes: tuple[str, ...] | None) -> Flags:
    if prefixes is None:
        return np.zeros(len(modules), np.bool_)
    if not prefixes:
        return np.ones(len(modules), np.bool_)
    return np.array([_begins(each, prefixes) for each in modules], np.bool_)


@cache
def _begins(module: str | None, prefixes: tuple[str, ...]) -> bool:
    return any(module == each or (module or "").startswith(f"{each}.") for each in prefixes)
