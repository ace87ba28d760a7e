"""The prices of a dry run as a document: `overlapscope.price/1`."""

from typing import Final, Literal

import msgspec

INTERVAL: Final = (0.1, 0.9)
"""Quantiles of the 80 % interval."""
Kind = Literal["estimate", "range", "none"]


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A time with its 80 % interval."""

    value_ns: int | None
    """Null where only the range can be given."""
    low_ns: int
    high_ns: int
    draws_ns: list[int] = []
    """Times under draws of all constants, without the noise of a measurement. A draw has the same place in each price,
    so that the times of two runs that are priced alike are compared draw by draw."""


class RankPrice(msgspec.Struct, frozen=True, kw_only=True):
    """The priced step of one rank."""

    rank: int
    kind: Kind
    """`estimate`; `range` where only the interval may be used; `none` where nothing can be said."""
    reasons: list[str] = []
    """Why it is no estimate."""
    step: Interval | None = None
    exposed_comm: Interval | None = None
    path: dict[str, float] = {}
    """Shares of the critical path by what the compute stream did or waited for, the largest first; they sum to 1."""
    notes: list[str] = []


class Constant(msgspec.Struct, frozen=True, kw_only=True):
    """A number that no data sheet states."""

    name: str
    value: float
    low: float | None
    """Null where a measured step fixed it."""
    high: float | None
    source: str


class Prices(msgspec.Struct, frozen=True, kw_only=True, rename={"schema_": "schema"}):
    """What the steps of a dry run would take on a device. All times are estimates, none was measured."""

    schema_: Literal["overlapscope.price/1"] = "overlapscope.price/1"
    device: str
    links: str
    recipe: str
    measured: list[str]
    """Steps that it was calibrated with, and the constant that each fixed."""
    ranks: list[RankPrice]
    constants: list[Constant]
    sources: list[str]
    """Where rates, bandwidths and collective times are from, and what of them is assumed."""
