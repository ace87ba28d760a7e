"""Columns of timed ranges as a trace is read: they grow piece by piece and are joined at the end."""

from dataclasses import field
from typing import Any

import numpy as np

from overlapscope.timeline.columns import Ints
from overlapscope.timeline.names import Codes
from overlapscope.values import dataclass


@dataclass(slots=True)
class Growing:
    """Named columns that grow piece by piece."""

    parts: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, **columns: Any) -> None:
        """Put one piece of each column behind what is there."""
        for name, values in columns.items():
            self.parts.setdefault(name, []).append(values)

    def joined(self, name: str, dtype: type = np.int64) -> Any:
        """Give a column as one array, and forget it."""
        parts = self.parts.pop(name, None)
        return np.concatenate(parts) if parts else np.empty(0, dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """Timed host or device ranges: thread (code of its lane), name code, start and end."""

    lane: Ints
    name: Codes
    start_ns: Ints
    end_ns: Ints
    is_annotation: Any
