"""Read pickles that hold only data: Python's own unpickler, restricted to the opcodes that make data.

It is `pickle._Unpickler`, the implementation in Python, because its table of opcodes can be reduced: ours has none that
import, call or build anything. The implementation in C has no such table, crashes on a key of deeply nested tuples, and
allocates as much memory as a number in the pickle requests.
"""

import io
import pickle
import pickletools
import struct
from collections.abc import Callable
from typing import Any, Final

from overlapscope.errors import InputError

MAX_VALUES: Final = 10_000_000
"""Largest number of values, marks and memo entries; a recorder's default of 2,000 calls takes some 100,000."""
MAX_DEPTH: Final = 64
MAX_VISITS: Final = 64_000_000
"""Largest number of values on a walk through the result, where a value that is used twice counts twice."""
_Step = Callable[[Any], None]
_DAMAGE: Final = (
    pickle.UnpicklingError, EOFError, LookupError, AttributeError, TypeError, ValueError, OverflowError, struct.error,
)  # fmt: skip


def decode_plain(content: bytes, name: str) -> tuple[Any, int]:
    """Return the value in a pickle, made of None, bool, int, float, str, list, tuple and dict, and the pickle's length.

    Nothing in the content is called or imported. Text that is not UTF-8 is replaced. Raises InputError, with `name` and
    the byte offset, for anything but plain data, for cycles, for damage, and beyond the limits above.
    """
    file = io.BytesIO(content)
    machine: Any = _Unpickler(file)
    try:
        value = machine.load()
        if machine.stack or machine.metastack:
            raise EOFError
        _walk([value], {}, MAX_DEPTH + 1)
    except _NotDataError as error:
        raise InputError(f"{name}: byte {max(file.tell() - 1, 0)}: the pickle {error}") from None
    except _DAMAGE as error:
        raise InputError(f"{name}: byte {file.tell()}: the pickle ends in the middle or is damaged") from error
    return value, file.tell()


class _NotDataError(Exception):
    """Raised for content that plain data does not have."""


class _Steps(dict[int, _Step]):
    """Function to run at each opcode."""

    def __missing__(self, code: int) -> _Step:
        opcode = pickletools.code2op.get(chr(code))  # type: ignore[attr-defined]  # a table of its own documentation
        named = f"the unknown opcode 0x{code:02x}" if opcode is None else opcode.name
        raise _NotDataError(f"holds {named}, which plain data does not need and which could run code")


def _counted(step: _Step) -> _Step:
    def run(machine: Any) -> None:
        machine.made += 1
        if machine.made > MAX_VALUES:
            raise _NotDataError(f"makes more than {MAX_VALUES} values")
        step(machine)

    return run


def _text(form: str) -> _Step:
    size = struct.Struct(form)
    return lambda machine: machine.append(
        machine.read(*size.unpack(machine.read(size.size))).decode("utf-8", "replace")
    )


def _checked(step: _Step, keys: slice) -> _Step:
    def run(machine: Any) -> None:
        if not all(isinstance(key, (str, int)) for key in machine.stack[keys]):  # hashing other keys may take for ever
            raise _NotDataError("holds a key that is neither text nor a whole number")
        step(machine)

    return run


_STANDARD: Final = pickle._Unpickler.dispatch


class _Unpickler(pickle._Unpickler):
    made = 0
    dispatch = _Steps(
        {code: _counted(_STANDARD[code]) for code in b"N\x88\x89KMJG\x8aqr\x94(]})\x85\x86\x87t"}
        | {code: _STANDARD[code] for code in b"hjae\x80."}
        | {0x8C: _counted(_text("<B")), ord("X"): _counted(_text("<I")), 0x8D: _counted(_text("<Q"))}
        | {
            ord("s"): _checked(_STANDARD[ord("s")], slice(-2, -1)),
            ord("u"): _checked(_STANDARD[ord("u")], slice(0, None, 2)),
        }
        | {0x95: lambda machine: machine.read(8)}  # a frame's length is a hint for reading from a slow file
    )


def _walk(value: Any, known: dict[int, tuple[int, int] | None], depth: int) -> tuple[int, int]:
    """Return how many values a walk through a container visits, and how many containers deep it is.

    Raises _NotDataError for cycles and past the limits. A shared value is walked once, but counted wherever it is used:
    `depth` is how deep it may be there.
    """
    if depth and id(value) not in known:
        known[id(value)] = None
        inner = value.values() if isinstance(value, dict) else value
        walks = [_walk(each, known, depth - 1) for each in inner if isinstance(each, (list, tuple, dict))]
        known[id(value)] = (
            len(value) + sum(visits for visits, _ in walks),
            1 + max((deep for _, deep in walks), default=0),
        )
    found = known.get(id(value), (0, depth + 1))
    if found is None:
        raise _NotDataError("holds a value inside itself, as a cycle does")
    if found[0] > MAX_VISITS:
        raise _NotDataError("repeats values too often")
    if found[1] > depth:
        raise _NotDataError(f"nests containers more than {MAX_DEPTH} deep")
    return found
