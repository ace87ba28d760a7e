"""Figures that a source reports, collected row by row."""

from array import array

import numpy as np

from overlapscope.timeline.columns import NONE, make
from overlapscope.timeline.facts import Facts, Figures
from overlapscope.timeline.names import NameTable

MAX_ROWS = 4_000_000
"""A log of a long run may repeat its figures at every step of every rank; what follows is counted, not kept."""


class FigureRows:
    """Takes figures in order, gives the table; at most `limit` rows are kept."""

    def __init__(self, limit: int = MAX_ROWS) -> None:
        self._limit = limit
        self._names = NameTable()
        self._rank, self._step = array("q"), array("q")
        self._subject, self._name = array("i"), array("i")
        self._value = array("d")
        self.left_out = 0

    def add(self, subject: str, name: str, value: float, *, rank: int = NONE, step: int = NONE) -> None:
        """Take one figure; its name ends in its unit."""
        if len(self._value) >= self._limit:
            self.left_out += 1
            return
        self._rank.append(rank)
        self._step.append(step)
        self._subject.append(self._names.code(subject))
        self._name.append(self._names.code(name))
        self._value.append(value)

    def facts(self, source: str) -> Facts:
        """Give the figures as facts of the file `source`."""
        rows = len(self._value)
        table = make(
            Figures,
            rows,
            source=self._names.code(source),
            rank=np.array(self._rank, np.int64),
            step=np.array(self._step, np.int64),
            subject=np.array(self._subject, np.int32),
            name=np.array(self._name, np.int32),
            value=np.array(self._value, np.float64),
        )
        return Facts(names=tuple(self._names.to_list()), figures=table)
