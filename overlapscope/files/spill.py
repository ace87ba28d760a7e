"""Arrays that are looked at again later, put aside: in memory while they are few, beyond that in a temporary file.

What all ranks of a run come to grows with its steps, what is looked at together does not. The file has no name, so that
nothing is left of it however the process ends, and lies where Python's `tempfile` has it (`$TMPDIR`). All files of a
process leave half of what was free there without them, whoever took the rest; what finds no room stays in memory, as
all of a small run does. It is read, not mapped: what a process holds shows in its own figure.
"""

import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from threading import Lock
from typing import IO, Any, Final, Generic, TypeVar
from weakref import WeakSet, finalize

import msgspec
import numpy as np
import numpy.typing as npt

from overlapscope.errors import InputError

MEMORY_BYTES: Final = 1 << 20
"""Bytes that stay in memory."""
SMALL_BYTES: Final = 256
"""Arrays of fewer bytes stay there as well: where one lies takes about as much."""
V = TypeVar("V", bound=msgspec.Struct)


class ArrayInMemory(msgspec.Struct, frozen=True):
    """An array that stayed in memory."""

    array: npt.NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.array.shape

    @property
    def nbytes(self) -> int:
        """The bytes of the array."""
        return self.array.nbytes

    def values(self) -> npt.NDArray[Any]:
        """Return the array, not to be written to."""
        return self.array

    def row(self, number: int) -> npt.NDArray[Any]:
        """Return one row of the array."""
        found: npt.NDArray[Any] = self.array[number]
        return found


class ArrayInFile(msgspec.Struct, frozen=True):
    """An array in a file."""

    aside: "Aside"
    at: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """The bytes of the array."""
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def values(self) -> npt.NDArray[Any]:
        """Read the array. Raises InputError where that fails."""
        found = np.empty(self.shape, self.dtype)
        self.aside.read(self.at, found)
        return found

    def row(self, number: int) -> npt.NDArray[Any]:
        """Read one row of the array, from 0. Raises InputError where that fails."""
        found = np.empty(self.shape[1:], self.dtype)
        self.aside.read(self.at + number * found.nbytes, found)
        return found


Put = ArrayInMemory | ArrayInFile
"""An array that was put aside; `values()` gives it as it was."""


class Aside:
    """A place for arrays."""

    def __init__(self, room: int | None = None) -> None:
        """Hold so many bytes in memory, `MEMORY_BYTES` if not told."""
        self._room = MEMORY_BYTES if room is None else room
        self._file: IO[bytes] | None = None
        self._end, self._spare = 0, -1
        self._lock = Lock()

    def put(self, array: npt.NDArray[Any]) -> Put:
        """Put an array aside; nobody writes to it any more."""
        with self._lock:
            if array.nbytes < SMALL_BYTES or array.nbytes <= self._room:
                self._room -= array.nbytes
                return ArrayInMemory(array if array.base is None else array.copy())  # not with all that it is a part of
            at = self._written(np.ascontiguousarray(array))
        return ArrayInMemory(array) if at is None else ArrayInFile(self, at, array.shape, array.dtype)

    def put_fields(self, value: V) -> "PutFields[V]":
        """Put the arrays of a struct aside, and those of structs in it."""
        told = ((name, getattr(value, name)) for name in value.__struct_fields__)
        return PutFields(type(value), {name: self._put_part(part) for name, part in told})

    def _put_part(self, part: Any) -> Any:
        if isinstance(part, np.ndarray):
            return self.put(part)
        return self.put_fields(part) if isinstance(part, msgspec.Struct) else part

    def read(self, at: int, found: npt.NDArray[Any]) -> None:
        """Read into an array what lies at a place of the file. Raises InputError where that fails."""
        try:
            self._read(at, _bytes_of(found))
        except OSError as error:
            raise InputError(
                f"a temporary file in {tempfile.gettempdir()} cannot be read any more ({error.strerror or error}): "
                "set TMPDIR to a folder on another disk"
            ) from error

    def _read(self, at: int, left: memoryview) -> None:
        with self._lock:
            assert self._file is not None
            self._file.seek(at)
            while left.nbytes:
                count = self._file.readinto(left)  # type: ignore[attr-defined]  # a file without a buffer has it
                if not count:
                    raise OSError("it is shorter than what was written to it")
                left = left[count:]

    def _written(self, array: npt.NDArray[Any]) -> int | None:
        """Return where the file has the array now; None where there is no room for it."""
        try:
            if self._file is None and self._spare < 0:
                self._open()
            if self._file is None or _free() - array.nbytes < self._spare:
                return None
            left = _bytes_of(array)
            self._file.seek(self._end)
            while left.nbytes:
                left = left[self._file.write(left) :]
        except OSError:
            self._spare = sys.maxsize  # not asked again
            if self._file is not None:
                with suppress(OSError):
                    self._file.truncate(self._end)
            return None
        self._end += array.nbytes
        return self._end - array.nbytes

    def _open(self) -> None:
        with _OPENING:
            self._spare = (_free() + sum(each._end for each in _OPENED)) // 2
            self._file = tempfile.TemporaryFile(buffering=0, prefix="overlapscope-")  # noqa: SIM115 - closed with this object
            _OPENED.add(self)
        finalize(self, self._file.close)


_OPENED: Final[WeakSet[Aside]] = WeakSet()
"""Those with a file, to be asked for only while ..."""
_OPENING: Final = Lock()
"""... this is held."""


def _free() -> int:
    """Return how many bytes may be written where temporary files lie. Raises OSError."""
    return shutil.disk_usage(tempfile.gettempdir()).free


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


class PutFields(msgspec.Struct, Generic[V], frozen=True):
    """A struct whose arrays were put aside."""

    kind: type[V]
    parts: Mapping[str, Any]

    def value(self) -> V:
        """Return it as it was. Raises InputError where it cannot be read."""
        return self.kind(**{name: _as_it_was(part) for name, part in self.parts.items()})


def without_fields(kind: type[V], absent: Iterable[str], **values: Any) -> V:
    """Return a struct whose `absent` fields are not set: `__getattr__` of its class reads them.

    `msgspec.structs.replace` of it raises AttributeError, and so never makes a copy that lacks them.
    """
    found = kind(**dict.fromkeys(absent), **values)
    for name in absent:
        getattr(kind, name).__delete__(found)
    return found


def _as_it_was(part: Any) -> Any:
    if isinstance(part, ArrayInMemory | ArrayInFile):
        return part.values()
    return part.value() if isinstance(part, PutFields) else part
