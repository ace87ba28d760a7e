"""Name tables: strings stored once and referred to by small integer codes."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.int32]
ROWS_OF_A_NAME: Final = 64
"""Looking at so many rows takes as long as asking for one name."""


def rows_named(codes: Codes, names: Sequence[str], fits: Callable[[str], object]) -> npt.NDArray[np.bool_]:
    """Return for each row whether `fits` accepts its name, False without a name; `fits` is called once per name."""
    answers = np.zeros(len(names) + 1, np.bool_)  # index -1 is the last
    if len(names) * ROWS_OF_A_NAME > codes.size:
        answers[codes] = True
        for code in np.flatnonzero(answers[:-1]).tolist():
            answers[code] = bool(fits(names[code]))
    else:  # to ask for all is quicker than to see which occur
        answers[:-1] = [bool(fits(name)) for name in names]
    answers[-1] = False
    if not answers.any():
        return np.zeros(codes.size, np.bool_)
    return answers.take(codes)


class NameTable:
    """Strings in the order they were added; a name's code is its position."""

    __slots__ = ("_codes",)

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._codes: dict[str, int] = {}
        for name in names:
            self.code(name)

    def __len__(self) -> int:
        return len(self._codes)

    def code(self, name: str) -> int:
        """Return the code of one name, adding it if new."""
        return self._codes.setdefault(name, len(self._codes))

    def codes(self, names: Iterable[str | None]) -> list[int]:
        """Return the codes of names; -1 for None."""
        return [-1 if name is None else self.code(name) for name in names]

    def encode(self, names: Sequence[object]) -> Codes:
        """Return the codes of many names, adding the new ones; values that are not strings are converted by `str`."""
        codes = self._codes
        try:
            return np.fromiter(map(codes.__getitem__, names), np.int32, len(names))  # type: ignore[arg-type]
        except (KeyError, TypeError):
            pass  # new names, or values that are not strings
        try:
            new = set(names) - codes.keys()
        except TypeError:  # unhashable
            return self.encode([str(each) for each in names])
        if not all(isinstance(name, str) for name in new):
            return self.encode([str(each) for each in names])
        for name in sorted(new):  # type: ignore[type-var]
            codes[name] = len(codes)  # type: ignore[index]
        return np.fromiter(map(codes.__getitem__, names), np.int32, len(names))  # type: ignore[arg-type]

    def to_list(self) -> list[str]:
        """Return all names in the order of their codes."""
        return list(self._codes)
