"""Decoding many events at once gives the same result as decoding them one by one."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.ingest.formats.kineto.decoding import INSTANT, UNUSED, Decoded, decoded, decoded_any
from overlapscope.ingest.parsing.json_values import MAX_GRID_BLOCKS, correlation_ids, grid_blocks
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.names import NameTable

NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.booleans()
ODD = st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3) | st.just([1, 2])
LARGE = st.integers(2**63, 2**64)
VALUES = st.lists(NUMBERS) | st.lists(NUMBERS | ODD | LARGE) | st.lists(st.lists(NUMBERS, min_size=1, max_size=1))
GRIDS = st.lists(st.integers(-2, 2**26) | st.booleans(), min_size=3, max_size=3)
PHASES = ["X", "i", "s", "t", "f", "M", "C", "B", "E", "b", "n", "e", "I"]


@given(VALUES)
def test_a_correlation_is_a_number_other_than_zero(values: list[object]) -> None:
    expected = [int(value) if isinstance(value, int) and value and value < 2**63 else NONE for value in values]
    assert correlation_ids(values).tolist() == expected


@given(st.lists(GRIDS | st.none()) | st.lists(GRIDS | ODD | st.lists(ODD, max_size=3)))
def test_the_blocks_of_a_grid_are_the_product_of_its_three_sides(grids: list[Any]) -> None:
    expected = []
    for grid in grids:
        sound = isinstance(grid, list) and len(grid) == 3 and all(isinstance(side, int) and side > 0 for side in grid)
        product = grid[0] * grid[1] * grid[2] if sound else 0
        expected.append(int(product) if 0 < product <= MAX_GRID_BLOCKS else NONE)
    assert grid_blocks(grids).tolist() == expected


@given(st.lists(st.lists(st.sampled_from(["a", "b", "c", 1, None, 2.5]) | st.just([1]), max_size=6), max_size=6))
def test_a_name_has_one_code_however_and_whenever_it_is_met(batches: list[list[Any]]) -> None:
    table = NameTable()
    codes = [table.encode(batch).tolist() for batch in batches]
    names = table.to_list()
    assert len(set(names)) == len(names)
    assert [[names[code] for code in each] for each in codes] == [[str(name) for name in batch] for batch in batches]


def event(phase: object, at: int) -> dict[str, Any]:
    return {"ph": phase, "cat": "cpu_op", "name": f"n{at}", "pid": 1, "tid": "2", "ts": at, "dur": 3, "args": {"a": at}}


def by_phase(found: Decoded) -> tuple[list[Any], list[Any]]:
    """Return the events with a duration, and those without one, by the code of their category."""
    instants = [each for each in found.events if each.cat is INSTANT]
    return [each for each in found.events if each.cat not in (INSTANT, UNUSED)], instants


@given(st.lists(st.sampled_from(PHASES) | st.sampled_from(["?", "", None, 5, ["X"], "Xi"])), st.randoms())
def test_events_are_recognised_by_their_phase_wherever_it_stands(phases: list[object], order: Any) -> None:
    events = [event(phase, at) for at, phase in enumerate(phases)]
    for each in events:
        items = list(each.items())
        order.shuffle(items)
        each.clear()
        each.update(items)
    text = json.dumps(events).encode()
    found = decoded(text)
    assert found is not None
    assert found.num_events == len(events)
    for chosen, phase in zip(by_phase(found), ("X", "i"), strict=True):
        of_phase = [each for each in events if each["ph"] == phase]
        assert [(each.name, each.ts) for each in chosen] == [(each["name"], each["ts"]) for each in of_phase]
    for each in by_phase(found)[0]:
        assert (each.cat, each.pid, each.tid, each.dur) == ("cpu_op", 1, "2", 3)
        assert msgspec.json.decode(each.args) == {"a": each.ts}


@pytest.mark.parametrize("number", [b"1", b"2.5", b'"x"', b"null", b"[1]"])
@pytest.mark.parametrize("phase", [b'"X"', b'"i"', b'"f"', b"7"])
def test_values_of_any_type_are_kept_as_they_are(number: bytes, phase: bytes) -> None:
    text = b'[{"ph":%b,"ts":%b,"name":%b},{"ph":"X","ts":1}]' % (phase, number, number)
    quick, slow = decoded(text), decoded_any(text)
    assert quick is not None
    for one, other in zip(by_phase(quick), by_phase(slow), strict=True):
        assert [(each.name, each.ts) for each in one] == [(each.name, each.ts) for each in other]


@pytest.mark.parametrize(
    "text",
    [b"[", b'[{"ph":"X"]', b"[1]", b'[{"ph":"s","name":"\xff"}]', b'[{"ph":"s"} {"ph":"s"}]', b'[{"ph":"X",}]'],
)
def test_text_that_is_no_array_of_events_gives_nothing(text: bytes) -> None:
    assert decoded(text) is None
