"""`dataclass` as the standard library's, defined in a fraction of the time.

The library compiles six methods for each frozen class. A short command defines over a hundred, which took a seventh of
reading a trace of 200,000 events. Here only `__init__` is compiled; the others are shared. Type checkers see the
library's own, and `fields`, `replace`, `asdict` and `is_dataclass` of the library work as ever.

Not known here, and not needed so far: `InitVar`, `field(hash=...)`, `order`, and an `__eq__` of the class's own.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(*, frozen: bool = False, slots: bool, kw_only: bool = False, eq: bool = True) -> Callable:
        """Make a class a dataclass with slots; the arguments mean what they mean in the standard library."""

        def made(cls: type) -> type:
            cls.__doc__ = cls.__doc__ or cls.__name__  # the library would look for a signature
            own = cls.__dict__
            found = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(cls)
            methods = {"__init__": _init(found, frozen=frozen), "__repr__": _repr}
            if eq:
                methods |= _comparison(found, frozen=frozen)
            if frozen:
                methods |= _FROZEN
            for name, method in methods.items():
                if name not in own:
                    setattr(found, name, method)
            return found

        return made


def _init(cls: type, *, frozen: bool) -> Callable[..., None]:
    """Compile the method that sets the fields, with a signature of its own: errors name what is missing."""
    # No field is called as these are.
    space: dict[str, Any] = {"__dataclass_set__": object.__setattr__, "__dataclass_made__": MISSING}
    placed: list[str] = []
    named: list[str] = []
    body: list[str] = []
    chosen = [each for each in dataclasses.fields(cls) if each.init or _has_default(each)]
    for each in chosen:
        parameter = value = name = each.name
        if each.default is not MISSING:
            space[f"__dataclass_{name}_default__"] = each.default
            parameter = f"{name}=__dataclass_{name}_default__"
        elif each.default_factory is not MISSING:
            space[f"__dataclass_{name}_make__"] = each.default_factory
            parameter = f"{name}=__dataclass_made__"
            value = f"__dataclass_{name}_make__() if {name} is __dataclass_made__ else {name}"
        if each.init:
            (named if each.kw_only else placed).append(parameter)
        else:
            value = f"__dataclass_{name}_{'make__()' if each.default is MISSING else 'default__'}"
        body.append(f"__dataclass_set__(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join(["self", *placed, *(["*", *named] if named else [])])
    exec(f"def __init__({parameters}):\n " + "\n ".join(body or ["pass"]), space)
    init: Callable[..., None] = space["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {each.name: each.type for each in chosen if each.init} | {"return": None}
    return init


def _has_default(field: Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


@recursive_repr()
def _repr(self: Any) -> str:
    told = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in dataclasses.fields(self) if each.repr)
    return f"{type(self).__qualname__}({told})"


def _comparison(cls: type, *, frozen: bool) -> dict[str, Any]:
    """Give equality by fields and, for what does not change, a hash by them."""
    names = [each.name for each in dataclasses.fields(cls) if each.compare]
    content: Callable[[Any], Any] = (
        attrgetter(*names) if len(names) > 1 else lambda value: tuple(getattr(value, name) for name in names)
    )

    def equal(self: Any, other: object) -> Any:
        return content(self) == content(other) if other.__class__ is self.__class__ else NotImplemented

    def hashed(self: Any) -> int:
        return hash(content(self))

    return {"__eq__": equal, "__hash__": hashed if frozen else None}


def _refuse_set(self: Any, name: str, value: object) -> None:
    del self, value
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(self: Any, name: str) -> None:
    del self
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for each, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)


_FROZEN: dict[str, Any] = {
    "__setattr__": _refuse_set,
    "__delattr__": _refuse_delete,
    "__getstate__": _state,
    "__setstate__": _set_state,
}
