"""Pickles that hold data and nothing else: decoded by our own walk over their opcodes, never by the pickle module.

Only opcodes that make numbers, text, lists, tuples and dictionaries are known; whatever names, imports, calls or
builds anything is refused with its name and place. The opcodes are those of Python's `pickletools`, protocols 2 to 5.
"""

import struct
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from overlapscope.errors import InputError
from overlapscope.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PickleLimits:
    """What a pickle may not exceed; a flight recorder's default buffer of 2,000 calls takes some 100,000 values."""

    values: int = 8_000_000
    """Values made, and places kept for later use."""
    depth: int = 64
    """Containers inside each other."""
    visits: int = 64_000_000
    """Values met on a walk through everything, where one that is used twice counts twice."""
    int_bytes: int = 16


LIMITS: Final = PickleLimits()
_REFUSED: Final = {
    ord("c"): "GLOBAL", 0x93: "STACK_GLOBAL", ord("R"): "REDUCE", ord("b"): "BUILD", ord("i"): "INST", ord("o"): "OBJ",
    0x81: "NEWOBJ", 0x92: "NEWOBJ_EX", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4", ord("P"): "PERSID",
    ord("Q"): "BINPERSID", ord("0"): "POP", ord("1"): "POP_MARK", ord("2"): "DUP", ord("p"): "PUT", ord("g"): "GET",
    ord("I"): "INT", ord("L"): "LONG", ord("F"): "FLOAT", ord("S"): "STRING", ord("V"): "UNICODE",
    ord("T"): "BINSTRING", ord("U"): "SHORT_BINSTRING", ord("B"): "BINBYTES", ord("C"): "SHORT_BINBYTES",
    0x8E: "BINBYTES8", 0x8F: "EMPTY_SET", 0x90: "ADDITEMS", 0x91: "FROZENSET", 0x96: "BYTEARRAY8",
    0x97: "NEXT_BUFFER", 0x98: "READONLY_BUFFER",
}  # fmt: skip
NEWEST_PROTOCOL: Final = 5


def decode_plain(content: bytes, name: str, limits: PickleLimits = LIMITS) -> tuple[Any, int]:
    """Give the value that a pickle holds, made of None, bool, int, float, str, list, tuple and dict, and its length.

    Nothing in the content is called or imported. Text that is no UTF-8 is replaced. Raises InputError, with `name`, the
    byte and the opcode, for anything but plain data, for cycles, for damage, and past the limits.
    """
    machine = _Machine(content, name, limits)
    return machine.run(), machine.at


class _Machine:
    """The stack of a pickle while it is walked."""

    __slots__ = ("_alive", "_extents", "_limits", "_made", "_marks", "_memo", "_name", "_sealed", "_stack", "_visits",
                 "at", "content")  # fmt: skip

    def __init__(self, content: bytes, name: str, limits: PickleLimits) -> None:
        self.content = content
        self.at = 0
        self._name = name
        self._limits = limits
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._made = self._visits = 0
        self._extents: dict[int, tuple[int, int]] = {}
        """Depth and number of values below a container, by its id."""
        self._alive: list[Any] = []
        """All containers, so that no id is used twice."""
        self._sealed: set[int] = set()
        """Containers in use in a second place: they may grow no more, which rules out cycles and keeps extents true."""

    def run(self) -> Any:
        content, size = self.content, len(self.content)
        while self.at < size:
            begun = self.at
            code = content[begun]
            self.at = begun + 1
            if code == _STOP:
                if len(self._stack) != 1 or self._marks:
                    raise self._error("ends before its values are complete", begun)
                return self._stack[0]
            step = _STEPS.get(code)
            if step is None:
                opcode = _REFUSED.get(code, f"the unknown opcode 0x{code:02x}")
                raise self._error(f"holds {opcode}, which plain data does not need and which could run code", begun)
            step(self)
            if self._made > self._limits.values:
                raise self._error(f"makes more than {self._limits.values} values", begun)
        raise self._error("ends in the middle", self.at)

    def text(self, form: struct.Struct) -> None:
        self._push(self._bytes(self._number(form)).decode("utf-8", "replace"))

    def number(self, form: struct.Struct) -> None:
        self._push(self._number(form))

    def long(self, form: struct.Struct) -> None:
        size = self._number(form)
        if size > self._limits.int_bytes:
            raise self._error(f"holds a whole number of {size} bytes", self.at)
        self._push(int.from_bytes(self._bytes(size), "little", signed=True))

    def constant(self, value: bool | None) -> None:
        self._push(value)

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def put(self, form: struct.Struct) -> None:
        self._put(self._number(form))

    def memoize(self) -> None:
        self._put(len(self._memo))

    def get(self, form: struct.Struct) -> None:
        place = self._number(form)
        if place not in self._memo:
            raise self._error(f"uses value {place} before it is made", self.at - 1)
        value = self._memo[place]
        extent = self._extents.get(id(value))
        if extent is not None:
            self._sealed.add(id(value))
            self._visits += extent[1]
            if self._visits > self._limits.visits:
                raise self._error("repeats values beyond measure", self.at - 1)
        self._stack.append(value)

    def protocol(self) -> None:
        protocol = self._number(_U1)
        if protocol > NEWEST_PROTOCOL:
            raise self._error(f"is of pickle protocol {protocol}, which is not known", self.at - 2)

    def frame(self) -> None:
        self._number(_U8)  # a hint for buffered reading

    def empty(self, kind: type) -> None:
        self._push_container(kind(), ())

    def tuple_of(self, count: int) -> None:
        values = self._pop(count)
        self._push_container(tuple(values), values)

    def tuple_to_mark(self) -> None:
        values = self._pop_to_mark()
        self._push_container(tuple(values), values)

    def list_to_mark(self) -> None:
        values = self._pop_to_mark()
        self._push_container(values, values)

    def dict_to_mark(self) -> None:
        values = self._pop_to_mark()
        self.empty(dict)
        self._set_items(values)

    def append(self) -> None:
        self._extend(self._pop(1))

    def appends(self) -> None:
        self._extend(self._pop_to_mark())

    def set_item(self) -> None:
        self._set_items(self._pop(2))

    def set_items(self) -> None:
        self._set_items(self._pop_to_mark())

    # --- the stack ----------------------------------------------------------------------------------------------------

    def _push(self, value: Any) -> None:
        self._made += 1
        self._stack.append(value)

    def _pop(self, count: int) -> list[Any]:
        floor = self._marks[-1] if self._marks else 0
        if len(self._stack) - count < floor:
            raise self._error("takes a value that is not there", self.at - 1)
        cut = len(self._stack) - count
        values = self._stack[cut:]
        del self._stack[cut:]
        return values

    def _pop_to_mark(self) -> list[Any]:
        if not self._marks:
            raise self._error("closes what was never opened", self.at - 1)
        values = self._stack[self._marks[-1] :]
        del self._stack[self._marks.pop() :]
        return values

    def _top(self) -> Any:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise self._error("uses a value that is not there", self.at - 1)
        return self._stack[-1]

    def _put(self, place: int) -> None:
        self._made += 1
        self._memo[place] = self._top()

    # --- containers ---------------------------------------------------------------------------------------------------

    def _push_container(self, container: Any, children: Any) -> None:
        self._push(container)
        self._alive.append(container)
        self._extents[id(container)] = (1, 1)
        self._measure(container, children)

    def _measure(self, container: Any, children: Any) -> None:
        depth, below = self._extents[id(container)]
        for child in children:
            extent = self._extents.get(id(child))
            below += 1 if extent is None else extent[1]
            if extent is not None and extent[0] >= depth:
                depth = extent[0] + 1
        if depth > self._limits.depth:
            raise self._error(f"nests containers more than {self._limits.depth} deep", self.at - 1)
        self._extents[id(container)] = (depth, below)

    def _grown(self, kind: type, what: str) -> Any:
        container = self._top()
        if type(container) is not kind:
            raise self._error(f"adds to {what}, but none is there", self.at - 1)
        if id(container) in self._sealed:
            raise self._error("changes a value that is used elsewhere, as a cycle does", self.at - 1)
        return container

    def _extend(self, values: list[Any]) -> None:
        container = self._grown(list, "a list")
        self._measure(container, values)
        container.extend(values)

    def _set_items(self, values: list[Any]) -> None:
        container = self._grown(dict, "a dictionary")
        if len(values) % 2:
            raise self._error("holds a key without a value", self.at - 1)
        keys = values[::2]
        if not all(isinstance(key, (str, int)) for key in keys):  # others may take forever, or the stack, to hash
            raise self._error("holds a key that is neither text nor a whole number", self.at - 1)
        self._measure(container, values)
        container.update(zip(keys, values[1::2], strict=True))

    # --- the bytes ----------------------------------------------------------------------------------------------------

    def _number(self, form: struct.Struct) -> Any:
        return form.unpack(self._bytes(form.size))[0]

    def _bytes(self, count: int) -> bytes:
        end = self.at + count
        if count < 0 or end > len(self.content):
            raise self._error("ends in the middle", len(self.content))
        found = self.content[self.at : end]
        self.at = end
        return found

    def _error(self, what: str, at: int) -> InputError:
        return InputError(f"{self._name}: byte {at}: the pickle {what}")


_STOP: Final = ord(".")
_U1, _U2, _U4, _U8, _I4, _F8 = (struct.Struct(each) for each in ("<B", "<H", "<I", "<Q", "<i", ">d"))
_STEPS: Final[dict[int, Callable[[_Machine], None]]] = {
    ord("N"): partial(_Machine.constant, value=None),
    0x88: partial(_Machine.constant, value=True),
    0x89: partial(_Machine.constant, value=False),
    ord("K"): partial(_Machine.number, form=_U1),
    ord("M"): partial(_Machine.number, form=_U2),
    ord("J"): partial(_Machine.number, form=_I4),
    ord("G"): partial(_Machine.number, form=_F8),
    0x8A: partial(_Machine.long, form=_U1),
    0x8B: partial(_Machine.long, form=_I4),
    0x8C: partial(_Machine.text, form=_U1),
    ord("X"): partial(_Machine.text, form=_U4),
    0x8D: partial(_Machine.text, form=_U8),
    ord("q"): partial(_Machine.put, form=_U1),
    ord("r"): partial(_Machine.put, form=_U4),
    0x94: _Machine.memoize,
    ord("h"): partial(_Machine.get, form=_U1),
    ord("j"): partial(_Machine.get, form=_U4),
    ord("("): _Machine.mark,
    ord("]"): partial(_Machine.empty, kind=list),
    ord("}"): partial(_Machine.empty, kind=dict),
    ord(")"): partial(_Machine.tuple_of, count=0),
    0x85: partial(_Machine.tuple_of, count=1),
    0x86: partial(_Machine.tuple_of, count=2),
    0x87: partial(_Machine.tuple_of, count=3),
    ord("t"): _Machine.tuple_to_mark,
    ord("l"): _Machine.list_to_mark,
    ord("d"): _Machine.dict_to_mark,
    ord("a"): _Machine.append,
    ord("e"): _Machine.appends,
    ord("s"): _Machine.set_item,
    ord("u"): _Machine.set_items,
    0x80: _Machine.protocol,
    0x95: _Machine.frame,
}
