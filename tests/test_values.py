"""Our `dataclass` does what the standard library's does, which is the oracle here; only how it is made differs."""

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field, replace
from typing import Any

import pytest

from overlapscope.values import dataclass

FROZEN = {"frozen": True, "slots": True, "kw_only": True}
FORMS: list[dict[str, bool]] = [
    FROZEN,
    {"frozen": True, "slots": True},
    {"slots": True},
    {"slots": True, "kw_only": True},
    {"slots": True, "eq": False},
    {**FROZEN, "eq": False},
]


def pair(form: dict[str, bool]) -> tuple[type[Any], type[Any]]:
    """Give the same class made by both."""

    def make(by: Callable[..., Any]) -> type[Any]:
        @by(**form)
        class Point:
            x: int
            y: "float" = 1.5
            names: list[str] = field(default_factory=list)
            secret: str = field(default="s", repr=False, compare=False)
            fixed: int = field(default=7, init=False)

            def total(self) -> float:
                return self.x + self.y

        return Point

    return make(dataclass), make(dataclasses.dataclass)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_values_hold_show_and_compare_as_the_library_s(form: dict[str, bool]) -> None:
    ours, theirs = (
        [made(x=1), made(x=1, names=["a"]), made(x=1, names=["a"], secret="t"), made(x=2, y=0.5)] for made in pair(form)
    )
    assert [dataclasses.asdict(each) for each in ours] == [dataclasses.asdict(each) for each in theirs]
    assert [repr(each) for each in ours] == [repr(each) for each in theirs]
    assert [[a == b for b in ours] for a in ours] == [[a == b for b in theirs] for a in theirs]
    assert [each.total() for each in ours] == [each.total() for each in theirs]
    assert ours[0] != theirs[0]
    assert ours[0].names is not pair(form)[0](x=1).names
    assert dataclasses.asdict(replace(ours[1], x=5)) == dataclasses.asdict(replace(theirs[1], x=5))
    assert not hasattr(ours[0], "__dict__")


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_call_takes_and_refuses_what_the_library_s_does(form: dict[str, bool]) -> None:
    ours, theirs = pair(form)
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs)).replace(
        "<factory>", repr(dataclasses.MISSING)
    )
    for given in [(), (1,), (1, 2.0), (1, 2.0, [], "s", 9)]:
        for named in [{}, {"x": 1}, {"y": 2.0}, {"z": 1}, {"fixed": 1}]:
            told = []
            for made in (ours, theirs):
                try:
                    told.append(repr(made(*given, **named)))
                except TypeError as error:
                    told.append(str(error))
            assert told[0] == told[1]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_what_is_frozen_refuses_changes_and_can_be_a_key(form: dict[str, bool]) -> None:
    made, theirs = (each(x=1, names=()) for each in pair(form))
    try:
        expected: Any = hash(theirs) == hash(replace(theirs))
    except TypeError:
        with pytest.raises(TypeError):
            hash(made)
    else:
        assert (hash(made) == hash(replace(made))) == expected
    if form.get("frozen"):
        for change in (lambda: setattr(made, "x", 2), lambda: delattr(made, "x"), lambda: setattr(made, "new", 2)):
            with pytest.raises(FrozenInstanceError, match="cannot"):
                change()
        assert made.x == 1
    else:
        made.x = 2
        assert made.x == 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A value without fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived(Base):
    """One with some, and with methods of its own."""

    low: int
    high: int = 3

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"{self.low} lies above {self.high}")

    def __repr__(self) -> str:
        return f"{self.low} to {self.high}"


@dataclass(slots=True)
class Counter:
    """One that changes."""

    seen: int = 0


def test_values_are_copied_sent_and_derived() -> None:
    value = Derived(low=1)
    for made in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert made == value
        assert made is not value
        with pytest.raises(FrozenInstanceError):
            made.low = 2
    assert pickle.loads(pickle.dumps(Counter(seen=3))) == Counter(seen=3)
    assert isinstance(value, Base)
    assert Base() == Base()
    assert hash(Base()) == hash(Base())
    assert repr(value) == "1 to 3"
    with pytest.raises(ValueError, match="5 lies above 3"):
        Derived(low=5)
    with pytest.raises(TypeError, match=r"Derived.__init__\(\) missing 1 required keyword-only argument: 'low'"):
        Derived()  # type: ignore[call-arg]


def test_a_value_that_holds_itself_is_shown() -> None:
    made = pair({"slots": True})[0](x=1)
    made.names = [made]
    assert repr(made).endswith("names=[...], fixed=7)")


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_fields_may_be_called_what_their_defaults_might_be(form: dict[str, bool]) -> None:
    def make(by: Callable[..., Any]) -> Any:
        @by(**form)
        class Odd:
            _set: int
            _made: int
            _low_default: int
            low: int = 3
            names: list[str] = field(default_factory=list)
            fixed: list[int] = field(default_factory=list, init=False)

        return Odd(_set=1, _made=2, _low_default=5)

    assert repr(make(dataclass)) == repr(make(dataclasses.dataclass))
