"""Figures that a source reports itself, gathered row by row while it is read."""

import math
from dataclasses import field

from overlapscope.timeline.columns import NONE
from overlapscope.timeline.columns import make as table
from overlapscope.timeline.facts import Facts, Figures
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import UNKNOWN_RANK
from overlapscope.values import dataclass


@dataclass(slots=True)
class FigureBook:
    """Rows of `facts.Figures` of one source."""

    source: str
    rank: int = UNKNOWN_RANK
    _names: NameTable = field(default_factory=NameTable)
    _rows: list[tuple[int, int, int, float]] = field(default_factory=list)

    def add(self, name: str, value: object, *, step: int | None = None, subject: str | None = None) -> bool:
        """Add one figure; False, and nothing added, when the value is no finite number."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        try:
            number = float(value)
        except OverflowError:
            return False
        if not math.isfinite(number):
            return False
        named = -1 if subject is None else self._names.code(subject)
        self._rows.append((NONE if step is None else step, named, self._names.code(name), number))
        return True

    def facts(self) -> Facts:
        """Give what was added."""
        code = self._names.code(self.source)
        figures = table(
            Figures,
            len(self._rows),
            source=code,
            rank=NONE if self.rank == UNKNOWN_RANK else self.rank,
            step=[row[0] for row in self._rows],
            subject=[row[1] for row in self._rows],
            name=[row[2] for row in self._rows],
            value=[row[3] for row in self._rows],
        )
        return Facts(names=tuple(self._names.to_list()), figures=figures)
