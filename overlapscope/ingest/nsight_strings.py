"""Nsight's StringIds: ids to codes of names, looked up as they are met, for an export may hold millions of strings."""

from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np

from overlapscope.ingest.sqlite_file import SqliteFile, as_text
from overlapscope.timeline.columns import NONE, Codes, Ints

STRINGS: Final = "StringIds"
_MAX_REMEMBERED: Final = 1 << 20


class Strings(msgspec.Struct):
    """Ids of StringIds to codes of names."""

    file: SqliteFile
    code: Callable[[str], int]
    _known: dict[int, int] = {}
    _whole: bool = False

    def codes(self, ids: Ints) -> Codes:
        """Give the code of each id; -1 where it is missing or unknown."""
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
        if not self._whole:  # a copy that lost its key is read once
            self._whole = True
            for ids, values in self.file.rows(STRINGS, ["id"], ["value"]):
                for each, value in zip(ids, values, strict=True):
                    if each is not None and value is not None:
                        self._known.setdefault(each, self.code(as_text(value) or ""))
        return self._known.get(number, -1)
