"""Decode stored values of an Nsight Systems export: string ids, times, serialized process and thread ids.

String ids are looked up when they are first used, because an export may hold millions of strings.
"""

from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np

from overlapscope.ingest.parsing.sqlite import SqliteFile, as_text
from overlapscope.timeline.columns import NONE, Codes, Flags, Ints

STRINGS: Final = "StringIds"
_MAX_REMEMBERED: Final = 1 << 20
MAX_TIME_NS: Final = 1 << 61
"""73 years; a larger time is damage."""
_THREAD_BITS: Final = 0xFFFFFF


class StringTable(msgspec.Struct):
    """Maps ids of StringIds to codes of names."""

    file: SqliteFile
    code: Callable[[str], int]
    _known: dict[int, int] = {}
    _whole: bool = False

    def codes(self, ids: Ints) -> Codes:
        """Return the code (int32) of each id; -1 where it is missing or unknown."""
        distinct = np.unique(ids)
        if len(self._known) > _MAX_REMEMBERED and not self._whole:
            self._known.clear()
        codes = [self._one(number) for number in distinct.tolist()]
        return np.array(codes, np.int32)[np.searchsorted(distinct, ids)]

    def _one(self, number: int) -> int:
        if number == NONE:
            return -1
        found = self._known.get(number)
        if found is None:
            found = self._known[number] = self._look_up(number)
        return found

    def _look_up(self, number: int) -> int:
        if not {"id", "value"} <= set(self.file.columns(STRINGS)):
            return -1
        if self.file.is_key(STRINGS, "id"):
            text = self.file.text_of(STRINGS, "id", "value", number)
            return -1 if text is None else self.code(text)
        if not self._whole:  # a copied table without its key is read once
            self._whole = True
            for ids, values in self.file.rows(STRINGS, ["id"], ["value"]):
                for each, value in zip(ids, values, strict=True):
                    if each is not None and value is not None:
                        self._known.setdefault(each, self.code(as_text(value) or ""))
        return self._known.get(number, -1)


def is_sound(time_ns: Ints) -> Flags:
    """Return whether each time is present and possible."""
    return (time_ns > -MAX_TIME_NS) & (time_ns < MAX_TIME_NS)  # not abs: the smallest int64 (NONE) cannot be negated


def process_of(thread: Ints) -> Ints:
    """Return the process key of each global thread id, which is Nsight's globalPid."""
    return np.where(thread == NONE, NONE, thread & ~np.int64(_THREAD_BITS))


def thread_of(thread: Ints) -> Ints:
    """Return the thread id of each global thread id."""
    return np.where(thread == NONE, NONE, thread & np.int64(_THREAD_BITS))


def process_ids(*processes: Ints) -> dict[int, int]:
    """Return the process id of each process key."""
    keys = {key for each in processes for key in np.unique(each).tolist() if key != NONE}
    return {key: (key >> 24) & _THREAD_BITS for key in keys}
