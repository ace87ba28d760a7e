"""Names stored once: a growing table that turns strings into small integers."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.int32]


def rows_named(codes: Codes, names: Sequence[str], fits: Callable[[str], object]) -> npt.NDArray[np.bool_]:
    """Say of each row whether its name fits; what has no name does not. Each name that occurs is asked for once."""
    answers = np.zeros(len(names) + 1, np.bool_)  # index -1 is the last
    answers[codes] = True
    for code in np.flatnonzero(answers[:-1]).tolist():
        answers[code] = bool(fits(names[code]))
    answers[-1] = False
    return answers[codes]


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
        """Return the codes of names of which some may be missing; of those it is -1."""
        return [-1 if name is None else self.code(name) for name in names]

    def encode(self, names: Sequence[object]) -> Codes:
        """Return the codes of many names, adding the new ones; what is not a string is named by `str`."""
        codes = self._codes
        try:
            return np.fromiter(map(codes.__getitem__, names), np.int32, len(names))  # type: ignore[arg-type]
        except (KeyError, TypeError):
            pass  # new ones, or no strings
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
