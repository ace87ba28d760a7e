"""Columns of timed ranges as a trace is read: they grow piece by piece and are joined at the end."""

from typing import Any

import msgspec
import numpy as np

from overlapscope.timeline.columns import Ints
from overlapscope.timeline.names import Codes


class Growing(msgspec.Struct):
    """Named columns that grow piece by piece."""

    parts: dict[str, list[Any]] = {}

    def add(self, **columns: Any) -> None:
        """Put one piece of each column behind what is there."""
        for name, values in columns.items():
            self.parts.setdefault(name, []).append(values)

    def joined(self, name: str, dtype: type = np.int64) -> Any:
        """Give a column as one array, and forget it."""
        parts = self.parts.pop(name, None)
        return np.concatenate(parts) if parts else np.empty(0, dtype)


class Ranges(msgspec.Struct, frozen=True, kw_only=True):
    """Timed host or device ranges: thread (code of its lane), name code, start and end."""

    lane: Ints
    name: Codes
    start_ns: Ints
    end_ns: Ints
    is_annotation: Any
