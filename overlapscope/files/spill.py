"""Spill arrays that are needed again later: keep the first ones in memory, write the others to a temporary file.

The results of all ranks of a run grow with its steps; what is used at one time does not. The file has no name, so
nothing is left of it however the process ends; it is in the folder of Python's `tempfile` (`$TMPDIR`). All files of a
process together leave free half of what was free there without them, also if other processes fill the disk; an array
that does not fit stays in memory, as all arrays of a small run do. The file is read, not mapped, so that a process's
memory figure is its own.
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
"""Bytes of arrays that stay in memory."""
SMALL_BYTES: Final = 256
"""Smaller arrays always stay in memory: the record of their place in the file takes about as much."""
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
    """An array in the temporary file."""

    aside: "SpillStore"
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


SpilledArray = ArrayInMemory | ArrayInFile
"""A spilled array; `values()` returns it unchanged."""


class SpillStore:
    """A store of arrays with a memory budget and a temporary file."""

    def __init__(self, room: int | None = None) -> None:
        """Create a store that keeps `room` bytes in memory, MEMORY_BYTES by default."""
        self._room = MEMORY_BYTES if room is None else room
        self._file: IO[bytes] | None = None
        self._end, self._spare = 0, -1
        self._lock = Lock()

    def put(self, array: npt.NDArray[Any]) -> SpilledArray:
        """Spill an array, which must not be changed any more."""
        with self._lock:
            if array.nbytes < SMALL_BYTES or array.nbytes <= self._room:
                self._room -= array.nbytes
                return ArrayInMemory(array if array.base is None else array.copy())  # a view would keep its whole base
            at = self._written(np.ascontiguousarray(array))
        return ArrayInMemory(array) if at is None else ArrayInFile(self, at, array.shape, array.dtype)

    def put_fields(self, value: V) -> "SpilledStruct[V]":
        """Spill the arrays of a struct, and those of structs in it."""
        fields = ((name, getattr(value, name)) for name in value.__struct_fields__)
        return SpilledStruct(type(value), {name: self._put_part(part) for name, part in fields})

    def _put_part(self, part: Any) -> Any:
        if isinstance(part, np.ndarray):
            return self.put(part)
        return self.put_fields(part) if isinstance(part, msgspec.Struct) else part

    def read(self, at: int, found: npt.NDArray[Any]) -> None:
        """Fill an array from the file at offset `at`. Raises InputError if that fails."""
        try:
            self._read(at, _bytes_of(found))
        except OSError as error:
            raise InputError(
                f"a temporary file in {tempfile.gettempdir()} cannot be read ({error.strerror or error}): "
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
        """Write an array to the file and return its offset; None if it does not fit."""
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
            self._spare = sys.maxsize  # never try again
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


_OPENED: Final[WeakSet[SpillStore]] = WeakSet()
"""The stores that have a file; used only while ..."""
_OPENING: Final = Lock()
"""... this is held."""


def _free() -> int:
    """Return the free bytes of the folder for temporary files. Raises OSError."""
    return shutil.disk_usage(tempfile.gettempdir()).free


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


class SpilledStruct(msgspec.Struct, Generic[V], frozen=True):
    """A struct whose arrays are spilled."""

    kind: type[V]
    parts: Mapping[str, Any]

    def value(self) -> V:
        """Return the struct unchanged. Raises InputError if an array cannot be read."""
        return self.kind(**{name: _restored(part) for name, part in self.parts.items()})


def make_without_fields(kind: type[V], absent: Iterable[str], **values: Any) -> V:
    """Return a struct of class `kind` whose `absent` fields are not set, so that its `__getattr__` computes them.

    `msgspec.structs.replace` of it raises AttributeError, so it never makes a copy without these fields.
    """
    found = kind(**dict.fromkeys(absent), **values)
    for name in absent:
        getattr(kind, name).__delete__(found)
    return found


def _restored(part: Any) -> Any:
    if isinstance(part, ArrayInMemory | ArrayInFile):
        return part.values()
    return part.value() if isinstance(part, SpilledStruct) else part
