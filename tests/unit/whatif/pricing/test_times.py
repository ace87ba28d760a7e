"""Times of rows and calls, calculated by hand."""

import numpy as np
import pytest

from overlapscope.errors import UsageError
from overlapscope.timeline.columns import ATTENTION, FRAMEWORK_COPY, MATMUL, MEMORY
from overlapscope.whatif.pricing.constants import usual
from overlapscope.whatif.pricing.devices import device
from overlapscope.whatif.pricing.links import links
from overlapscope.whatif.pricing.program import Program, program_of
from overlapscope.whatif.pricing.recipe import Recipe, parse_recipe
from overlapscope.whatif.pricing.times import call_times, row_times
from tests.unit.whatif.pricing.dry_runs import Row, call, dry_run

H100 = device("h100-sxm")
ONES = dict.fromkeys(usual(), 1.0)
"""All of the peak, all of the bandwidth."""
BOTH = links("8xh100-nvswitch,roce-400")


def program(*rows: Row, groups: dict[str, range] | None = None) -> Program:
    return program_of(dry_run(rows, groups), 0)


def times(*rows: Row, recipe: str = "", **values: float) -> list[float]:
    return row_times(program(*rows).rows, H100, parse_recipe(recipe), {**ONES, **values}).tolist()


def test_a_product_takes_its_operations_over_the_peak() -> None:
    assert times(Row(work=MATMUL, flops=989_000_000_000)) == pytest.approx([1e6])
    assert times(Row(work=MATMUL, flops=989_000_000_000), matmul=0.5, pace=1.2) == pytest.approx([2.4e6])


def test_a_thin_product_takes_as_long_as_its_bytes() -> None:
    assert times(Row(work=MATMUL, flops=1000, read=3_350_000)) == pytest.approx([1e3])


def test_attention_takes_the_share_that_the_device_states() -> None:
    forward = Row(work=ATTENTION, flops=989_000_000_000, name="aten._attention.default")
    backward = Row(work=ATTENTION, flops=989_000_000_000, name="aten._attention_backward.default")
    assert times(forward, backward) == pytest.approx([1e6 / 0.35, 1e6 / 0.30])


def test_a_memory_bound_row_takes_its_bytes_and_a_compiler_joins_them() -> None:
    row = Row(work=MEMORY, read=3_350_000, written=3_350_000, fused=3_350_000)
    other = Row(work=MEMORY, read=3_350_000, written=3_350_000, fused=3_350_000, module="output")
    assert times(row, other) == pytest.approx([2e3, 2e3])
    assert times(row, other, recipe="compile") == pytest.approx([1e3, 1e3])
    assert times(row, other, recipe="compile=layers") == pytest.approx([1e3, 2e3])


def test_a_compiler_does_not_join_copies_of_a_framework() -> None:
    assert times(Row(work=FRAMEWORK_COPY, read=3_350_000, fused=0), recipe="compile") == pytest.approx([1e3])


def test_float8_has_the_rate_of_float8_and_the_bytes_of_its_casts_but_for_the_head() -> None:
    inner = Row(work=MATMUL, flops=1979_000_000_000, read=2 * 3_350_000, module="layers.0.w1")
    head = Row(work=MATMUL, flops=989_000_000_000, module="output")
    found = times(inner, head, recipe="float8=tensorwise", tensorwise_bytes=3.0)
    assert found == pytest.approx([1e6 + 3e3, 1e6])


def test_what_does_no_work_takes_no_time() -> None:
    assert times(call("all_gather", 100), Row(work=MEMORY)) == [0, 0]


def test_a_dtype_that_the_device_has_no_rate_for_is_refused() -> None:
    rows = program(Row(work=MATMUL, flops=10, dtype="bfloat16")).rows
    with pytest.raises(UsageError, match="no rate for bfloat16"):
        row_times(rows, device("v100-sxm"), Recipe(), ONES)


def test_more_work_and_worse_constants_never_take_less() -> None:
    work = [Row(work=MATMUL, flops=10**power, read=10**8) for power in range(6, 15)]
    found = times(*work)
    assert found == sorted(found)
    for name in ("matmul", "memory"):
        assert all(np.array(times(*work, **{name: 0.5})) >= np.array(found))


def test_a_call_takes_its_copies_its_transfer_and_what_follows_the_last() -> None:
    rows = (
        Row(work=MEMORY, read=3_350_000, stream="side"),
        call("all_gather", 8 << 20, stream="gather"),
        call("all_gather", 8 << 20, stream="gather"),
        Row(work=MEMORY, read=6_700_000, stream="callbacks"),
    )
    step = program(*rows)
    alone = row_times(step.rows, H100, Recipe(), ONES)
    assert call_times(step, BOTH, Recipe(), {**ONES, "inside": 2.0}, alone).tolist() == pytest.approx(
        [1e3 + 2 * 43.4e3, 2 * 43.4e3 + 2e3]
    )


def test_tensorwise_float8_gathers_half_the_bytes_of_tensor_parallelism_alone() -> None:
    step = program(
        call("all_gather", 16 << 20, dimension="tensor"),
        call("reduce_scatter", 8 << 20, dimension="tensor"),
        call("all_gather", 8 << 20, dimension="data"),
        call("all_gather", 8 << 20, dimension="tensor", module="output"),
    )
    rows = row_times(step.rows, H100, Recipe(), ONES)
    for recipe in ("float8=tensorwise", "float8=rowwise"):
        expected = [43.4e3 if recipe.endswith("tensorwise") else BOTH.time_ns("all_gather", range(8), 16 << 20), 47e3,
                    43.4e3, 43.4e3]  # fmt: skip
        assert call_times(step, BOTH, parse_recipe(recipe), ONES, rows).tolist() == pytest.approx(expected)


def test_async_tp_leaves_the_rest_of_what_it_overlaps() -> None:
    step = program(
        call("all_gather", 8 << 20, dimension="tensor"),
        call("all_reduce", 8 << 20, dimension="tensor"),
        call("all_gather", 8 << 20, dimension="data"),
    )
    rows = row_times(step.rows, H100, Recipe(), ONES)
    plain = call_times(step, BOTH, Recipe(), ONES, rows)
    found = call_times(step, BOTH, parse_recipe("async-tp"), {**ONES, "hidden": 0.25}, rows)
    assert (found / plain).tolist() == pytest.approx([0.75, 1, 1])


@pytest.mark.parametrize("text", ["compiled", "float8", "float8=blockwise", "async-tp=1"])
def test_an_unknown_recipe_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="must be of"):
        parse_recipe(text)


@pytest.mark.parametrize("text", ["eager", "compile", "compile=layers+head,float8=rowwise,async-tp"])
def test_a_recipe_is_written_as_it_is_read(text: str) -> None:
    assert str(parse_recipe(text)) == text
