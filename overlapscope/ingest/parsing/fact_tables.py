"""Build the tables of `overlapscope.timeline.facts` from the rows that readers collect."""

import math
from array import array
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, TypeVar

import numpy as np

from overlapscope.timeline.columns import MISSING, NONE, Columns, column_kinds, make
from overlapscope.timeline.facts import Facts, Figures
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import UNKNOWN_RANK

MAX_FIGURES = 4_000_000
"""A log of a long run may repeat its figures at every step of every rank; figures above this limit are only counted."""
T = TypeVar("T", bound=Columns)


def fact_table(table: type[T], rows: Sequence[Mapping[str, Any]], names: NameTable) -> T:
    """Return a table of `rows`, in which names are texts; a key that is absent or None becomes a missing value."""
    columns: dict[str, list[Any]] = {}
    for column, kind in column_kinds(table).items():
        values = [row.get(column) for row in rows]
        if kind == "name":
            columns[column] = names.codes(values)
        else:
            columns[column] = [MISSING[kind] if value is None else value for value in values]
    return make(table, len(rows), **columns)


class FigureRows:
    """Collects the figures that a source reports itself, in its order; at most `limit` are kept."""

    def __init__(self, rank: int = UNKNOWN_RANK, limit: int = MAX_FIGURES) -> None:
        self.rank = rank
        """The rank of figures that are added without one."""
        self._limit = limit
        self._names = NameTable()
        self._rank, self._step = array("q"), array("q")
        self._subject, self._name = array("i"), array("i")
        self._value = array("d")
        self.left_out = 0
        """Number of figures above the limit."""

    def add(
        self, subject: str | None, name: str, value: object, *, rank: int | None = None, step: int | None = None
    ) -> bool:
        """Add one figure, whose name ends in its unit; return False and add nothing if it is not a finite number."""
        if not _is_finite(value):
            return False
        if len(self._value) >= self._limit:
            self.left_out += 1
            return True
        own = NONE if self.rank == UNKNOWN_RANK else self.rank
        self._rank.append(own if rank is None else rank)
        self._step.append(NONE if step is None else step)
        self._subject.append(-1 if subject is None else self._names.code(subject))
        self._name.append(self._names.code(name))
        self._value.append(value)  # type: ignore[arg-type]  # a number
        return True

    def facts(self, source: str) -> Facts:
        """Return the figures as facts from the file `source`."""
        figures = make(
            Figures,
            len(self._value),
            source=self._names.code(source),
            rank=np.array(self._rank, np.int64),
            step=np.array(self._step, np.int64),
            subject=np.array(self._subject, np.int32),
            name=np.array(self._name, np.int32),
            value=np.array(self._value, np.float64),
        )
        return Facts(names=tuple(self._names.to_list()), figures=figures)


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer too large for a float
        return False
