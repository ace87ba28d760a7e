"""Arrays that are put aside: they come back as they were, from memory or a file that nobody sees, and need no room."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from overlapscope.errors import InputError
from overlapscope.files import spill as aside
from overlapscope.files.spill import ArrayInFile, ArrayInMemory, SpillStore

MANY = np.arange(1000)


@given(st.lists(arrays(st.sampled_from([np.int64, np.int32, np.bool_, np.float64]), array_shapes(min_side=0))))
def test_arrays_come_back_as_they_were_wherever_they_lie(given: list[npt.NDArray[Any]]) -> None:
    for room in (0, 1 << 20):
        place = SpillStore(room)
        for put, array in zip([place.put(each) for each in given], given, strict=True):
            found = put.values()
            assert (found.dtype, found.shape, put.shape, put.nbytes) == (
                array.dtype, array.shape, array.shape, array.nbytes,
            )  # fmt: skip
            np.testing.assert_array_equal(found, array)


def test_every_other_column_of_a_table_comes_back() -> None:
    table = np.arange(6000).reshape(6, 1000)[:, ::2]
    put = SpillStore(0).put(table)
    assert isinstance(put, ArrayInFile)
    np.testing.assert_array_equal(put.values(), table)


def test_what_fits_stays_in_memory_and_the_rest_does_not() -> None:
    place = SpillStore(2 * MANY.nbytes)
    assert [type(place.put(MANY)) for _ in range(4)] == [ArrayInMemory, ArrayInMemory, ArrayInFile, ArrayInFile]
    assert isinstance(place.put(np.arange(4)), ArrayInMemory)


def test_the_file_has_no_name_and_lies_where_tempfile_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    put = SpillStore(0).put(MANY)
    assert isinstance(put, ArrayInFile)
    assert os.listdir(tmp_path) == []
    assert put.values().sum() == MANY.sum()


class Pair(msgspec.Struct, frozen=True):
    name: str
    numbers: npt.NDArray[np.int64]


class Both(msgspec.Struct, frozen=True):
    one: Pair
    flags: npt.NDArray[np.bool_]


@pytest.mark.parametrize("room", [0, 1 << 20])
def test_a_value_of_arrays_comes_back_with_the_values_in_it(room: int) -> None:
    found = SpillStore(room).put_fields(Both(one=Pair("a", MANY), flags=MANY > 7)).value()
    assert (type(found), type(found.one), found.one.name) == (Both, Pair, "a")
    np.testing.assert_array_equal(found.one.numbers, MANY)
    np.testing.assert_array_equal(found.flags, MANY > 7)


def no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> str:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr(aside.tempfile, "gettempdir", refused)


def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk with room for two arrays."""
    usage, opened, files = aside.shutil.disk_usage, aside.tempfile.TemporaryFile, []

    def noted(**given: Any) -> Any:
        files.append(opened(**given))
        return files[-1]

    def free(place: str) -> Any:
        taken = sum(os.fstat(each.fileno()).st_size for each in files)
        return usage(place)._replace(free=2 * MANY.nbytes - taken)

    monkeypatch.setattr(aside.tempfile, "TemporaryFile", noted)
    monkeypatch.setattr(aside.shutil, "disk_usage", free)


def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    full = open("/dev/full", "r+b", buffering=0)  # noqa: SIM115 - `Aside` closes it
    monkeypatch.setattr(aside.tempfile, "TemporaryFile", lambda **_: full)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full to stand for a full disk")
@pytest.mark.parametrize(("broken", "written"), [(no_place, 0), (little_room, 1), (full_disk, 0)])
def test_what_finds_no_room_on_disk_stays_in_memory(
    broken: Callable[[pytest.MonkeyPatch], None], written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    place = SpillStore(0)
    puts = [place.put(MANY + number) for number in range(4)]
    assert [type(each) for each in puts] == [ArrayInFile] * written + [ArrayInMemory] * (4 - written)
    assert [int(each.values()[0]) for each in puts] == [0, 1, 2, 3]


def test_several_files_do_not_take_what_is_free_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    little_room(monkeypatch)
    places = [SpillStore(0), SpillStore(0)]
    assert [type(place.put(MANY[:500])) for place in places] == [ArrayInFile, ArrayInFile]
    assert [type(place.put(MANY[500:])) for place in places] == [ArrayInMemory, ArrayInMemory]


def test_what_one_file_left_is_not_halved_again_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    little_room(monkeypatch)
    first, second = SpillStore(0), SpillStore(0)
    assert type(first.put(MANY)) is ArrayInFile
    assert type(second.put(MANY[:200])) is ArrayInMemory


def test_a_file_that_was_cut_short_is_an_error_and_no_figures() -> None:
    place = SpillStore(0)
    put = place.put(MANY)
    assert place._file is not None
    place._file.truncate(100)
    with pytest.raises(InputError, match=r"temporary file in .* shorter than"):
        put.values()


def test_what_stays_in_memory_does_not_hold_what_it_is_a_part_of() -> None:
    table = np.arange(100_000).reshape(10, -1)
    held = SpillStore().put(table[:, 3])
    assert isinstance(held, ArrayInMemory)
    assert held.array.base is None
    assert held.values().tolist() == table[:, 3].tolist()


def test_one_row_is_read_alone() -> None:
    table = np.arange(60_000).reshape(6, -1)
    for room, kind in ((1 << 30, ArrayInMemory), (0, ArrayInFile)):
        put = SpillStore(room).put(table[:, ::2])
        assert isinstance(put, kind)
        assert [put.row(number).tolist() for number in range(6)] == table[:, ::2].tolist()
