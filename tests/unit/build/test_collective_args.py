"""What the profiler writes about a collective, in all its spellings."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlapscope.ingest.build.collective_args import (
    CollectiveArgs,
    dtype_name,
    from_concrete_inputs,
    group_ranks,
    input_dtype,
    input_elements,
    parse_count,
    parse_ranks,
    tensor_elements,
)
from overlapscope.timeline.operations import ITEM_BYTES, full_elements

SHOWN = 30
"""Ranks that the profiler writes before it cuts a list."""


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("Float", "float32"),
        ("float", "float32"),
        ("double", "float64"),
        ("Half", "float16"),
        ("c10::Half", "float16"),
        ("BFloat16", "bfloat16"),
        ("c10::BFloat16", "bfloat16"),
        ("torch.bfloat16", "bfloat16"),
        ("Float8_e4m3fn", "float8_e4m3fn"),
        ("c10::Float8_e5m2", "float8_e5m2"),
        ("Long", "int64"),
        ("long int", "int64"),
        ("Int", "int32"),
        ("Short", "int16"),
        ("Char", "int8"),
        ("signed char", "int8"),
        ("Byte", "uint8"),
        ("unsigned char", "uint8"),
        ("Bool", "bool"),
        ("ComplexFloat", "complex64"),
        ("c10::complex<double>", "complex128"),
    ],
)
def test_every_spelling_of_a_dtype_gives_torchs_name(spelling, name):
    assert dtype_name(spelling) == name


@pytest.mark.parametrize("spelling", ["", "GenericList", "Scalar", "TensorList", "QInt8", None, 3, ["Float"]])
def test_what_is_no_dtype_has_no_name(spelling):
    assert dtype_name(spelling) is None


@pytest.mark.parametrize("name", sorted(ITEM_BYTES))
def test_every_name_of_torch_names_itself(name):
    assert dtype_name(name) == dtype_name(f"torch.{name}") == name


def test_item_sizes_are_those_of_numpy():
    known = {name: size for name, size in ITEM_BYTES.items() if "float8" not in name and name != "bfloat16"}
    assert known == {name: np.dtype(name).itemsize for name in known}


@pytest.mark.parametrize(("value", "number"), [(0, 0), (7, 7), ("7", 7), (" 12 ", 12), (2**61, 2**61)])
def test_a_whole_number_may_stand_as_number_or_text(value, number):
    assert parse_count(value) == number


@pytest.mark.parametrize(
    "value",
    [None, True, False, -1, "-1", "", "x", "1.5", 1.5, [], "0x10", 2**62, 2**80, "²", "9" * 5000],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_no_count_is_unknown(value):
    assert parse_count(value) is None


@pytest.mark.parametrize(
    ("dims", "elements"),
    [
        ([8], 8),
        ([4, 5, 6], 120),
        ([4, 0], 0),
        ([[4, 5], [6]], 26),
        ([[8]], 8),
        ([[[2, 3], [4]], [5]], 15),
        ([], None),
        ([[]], None),
        ([[8], []], None),
        (None, None),
        ("[8]", None),
        ([8, "x"], None),
        ([8.0], None),
    ],
)
def test_elements_are_the_product_of_dims_and_the_sum_over_tensors(dims, elements):
    assert tensor_elements(dims) == elements


@pytest.mark.parametrize("dims", [[-4], [-4, -2], [[8], [-4]], [2**40, 2**40]], ids=repr)
def test_impossible_dims_give_no_elements(dims):
    assert tensor_elements(dims) is None


def test_a_collective_of_several_tensors_moves_all_of_them():
    args = CollectiveArgs(input_dims=[[[1024, 2], [16]], [8]])
    assert input_elements(args) == 2064
    assert input_elements(args, 1) == 8
    assert input_elements(args, 2) is None


def test_the_old_spelling_of_input_dims_is_read_where_the_new_one_is_missing():
    assert input_elements(CollectiveArgs(old_input_dims=[[3, 3]])) == 9
    assert input_elements(CollectiveArgs(input_dims=[[5]], old_input_dims=[[3, 3]])) == 5
    assert input_elements(CollectiveArgs()) is None


def test_the_dtype_is_that_of_the_first_input():
    assert input_dtype(CollectiveArgs(input_type=["c10::BFloat16", "float"])) == "bfloat16"
    assert input_dtype(CollectiveArgs(input_type=["GenericList", "float"])) is None
    assert input_dtype(CollectiveArgs(input_type=[])) is None
    assert input_dtype(CollectiveArgs(input_type="float")) is None


def test_old_versions_write_sequence_number_and_group_size_by_position():
    written = ["", "17", "0", "3", "allreduce", "", "", "64"]
    assert from_concrete_inputs(CollectiveArgs(concrete_inputs=written)) == (17, 64)
    assert from_concrete_inputs(CollectiveArgs(concrete_inputs=[*written, "", ""])) == (None, None)
    assert from_concrete_inputs(CollectiveArgs()) == (None, None)


def test_a_group_size_of_zero_is_unknown():
    assert from_concrete_inputs(CollectiveArgs(concrete_inputs=["", "0", "", "", "", "", "", "0"])) == (0, None)


# --- the size of an operation ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "moved_in", "moved_out", "size", "elements"),
    [
        ("all_reduce", 100, 100, 8, 100),
        ("all_reduce", 100, None, 8, 100),
        ("all_reduce", None, 100, None, 100),
        ("broadcast", 100, 100, 8, 100),
        ("reduce", 100, 100, 8, 100),
        ("all_gather", 100, 800, 8, 800),
        ("all_gather", 100, None, 8, 800),
        ("all_gather", None, 800, None, 800),
        ("all_gather", 100, None, None, None),
        ("reduce_scatter", 800, 100, 8, 800),
        ("reduce_scatter", None, 100, 8, 800),
        ("reduce_scatter", 800, None, None, 800),
        ("reduce_scatter", None, 100, None, None),
        ("gather", 100, 800, 8, 800),
        ("gather", 100, 0, 8, 800),
        ("scatter", 800, 100, 8, 800),
        ("scatter", 0, 100, 8, 800),
        ("all_to_all", 600, 500, 8, 600),
        ("send", 100, 0, 2, 100),
        ("send", 100, None, 2, 100),
        ("recv", 0, 100, 2, 100),
        ("recv", 7, 100, 2, 100),
        ("recv", 100, None, 2, 100),
        ("send_recv", 100, 100, 2, 100),
        ("dispatch", 100, 300, 8, 100),
        ("combine", 300, 100, 8, 300),
    ],
)
def test_the_size_of_an_operation_is_the_one_nccl_tests_uses(op, moved_in, moved_out, size, elements):
    assert full_elements(op, moved_in, moved_out, size) == elements


@pytest.mark.parametrize("op", ["wait", "barrier", "coalesced"])
@pytest.mark.parametrize(("moved_in", "moved_out"), [(1, 1), (800, None), (None, None)])
def test_pseudo_collectives_carry_no_volume(op, moved_in, moved_out):
    assert full_elements(op, moved_in, moved_out, 8) is None


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "recv", "send", "all_to_all"])
def test_nothing_written_is_unknown_and_not_zero(op):
    assert full_elements(op, None, None, 8) is None


@settings(max_examples=100)
@given(st.integers(1, 2**30), st.integers(1, 4096))
def test_both_ends_of_a_gather_or_scatter_tell_the_same_size(shard, size):
    for op in ("all_gather", "gather"):
        assert full_elements(op, shard, None, size) == full_elements(op, None, shard * size, size) == shard * size
    for op in ("reduce_scatter", "scatter"):
        assert full_elements(op, None, shard, size) == full_elements(op, shard * size, None, size) == shard * size


# --- ranks of a group -----------------------------------------------------------------------------------------------


def cut_old(ranks: list[int]) -> str:
    """Write ranks as torch 2.1 to 2.4 does: the first thirty, then dots."""
    return str(ranks) if len(ranks) <= SHOWN else f"{str(ranks[:SHOWN])[:-1]}, ...]"


def cut_new(ranks: list[int]) -> str:
    """Write ranks as later versions do: the first twenty-nine, dots, the last."""
    return str(ranks) if len(ranks) <= SHOWN else f"{str(ranks[: SHOWN - 1])[:-1]}, ..., {ranks[-1]}]"


cuts = pytest.mark.parametrize("cut", [cut_old, cut_new])
regular = st.tuples(st.integers(0, 100), st.integers(1, 16), st.integers(1, 200))


def written(text: object, *, start=None, stride=None, size=None, name=None) -> CollectiveArgs:
    return CollectiveArgs(group_ranks=text, rank_start=start, rank_stride=stride, group_size=size, group_name=name)


def test_the_cut_forms_are_those_of_the_profiler():
    assert cut_old(list(range(64))).endswith("28, 29, ...]")
    assert cut_new(list(range(64))).endswith("27, 28, ..., 63]")


@cuts
@settings(max_examples=100)
@given(regular)
def test_a_cut_list_is_rebuilt_from_start_stride_and_size(cut, group):
    start, stride, size = group
    ranks = list(range(start, start + stride * size, stride))
    assert group_ranks(written(cut(ranks), start=start, stride=stride, size=size), {}) == tuple(ranks)


@cuts
@settings(max_examples=150)
@given(
    st.tuples(st.integers(0, 100), st.integers(1, 16), st.integers(31, 200)), st.integers(0, 29), st.integers(-20, 20)
)
def test_a_visible_rank_that_start_and_stride_do_not_give_makes_the_list_unknown(cut, group, place, change):
    start, stride, size = group
    ranks = list(range(start, start + stride * size, stride))
    shown = place if place < 29 or cut is cut_old else size - 1
    ranks[shown] += change
    found = group_ranks(written(cut(ranks), start=start, stride=stride, size=size), {})
    assert found == (None if change else tuple(ranks))


@pytest.mark.parametrize(("cut", "place", "rank"), [(cut_old, 29, 31), (cut_new, 63, 62)])
def test_the_last_visible_rank_has_to_agree_as_well(cut, place, rank):
    """The group is not 0 to 63, although every listed rank is one of these."""
    ranks = list(range(64))
    ranks[place] = rank
    assert group_ranks(written(cut(ranks), start=0, stride=1, size=64), {}) is None


@cuts
def test_a_cut_list_is_known_from_the_groups_own_configuration(cut):
    ranks = [0, *range(3, 90, 2), 200]
    assert group_ranks(written(cut(ranks), name="5"), {"5": tuple(ranks)}) == tuple(ranks)
    assert group_ranks(written(cut(ranks), name=5), {"5": tuple(ranks)}) == tuple(ranks)


@cuts
@pytest.mark.parametrize("missing", ["start", "stride", "size"])
def test_a_cut_list_without_start_stride_or_size_is_unknown(cut, missing):
    known = {"start": 0, "stride": 1, "size": 64} | {missing: None}
    assert group_ranks(written(cut(list(range(64))), **known, name="5"), {"6": (0, 1)}) is None


def test_a_stride_of_zero_tells_nothing():
    assert group_ranks(written(cut_old(list(range(64))), start=0, stride=0, size=64), {}) is None


def test_a_whole_list_is_believed_before_anything_else():
    args = written("[3, 1, 2]", start=0, stride=1, size=3, name="5")
    assert group_ranks(args, {"5": (0, 1, 2)}) == (3, 1, 2)
    assert group_ranks(written([4, 5]), {}) == (4, 5)


def test_an_empty_list_gives_way_to_the_configuration():
    assert group_ranks(written("[]", name="5"), {"5": (0, 1)}) == (0, 1)
    assert group_ranks(written("[]", name="5"), {}) is None


def test_without_a_list_start_stride_and_size_are_enough():
    assert group_ranks(written(None, start=2, stride=4, size=3), {}) == (2, 6, 10)


def test_a_group_of_impossible_size_is_unknown():
    """Such a list would not fit in memory."""
    assert group_ranks(written("[0, 1, ...]", start=0, stride=1, size=10**15), {}) is None


@pytest.mark.parametrize(
    ("text", "ranks", "cut"),
    [
        ("[0, 1, 2]", (0, 1, 2), False),
        ("[0,1,2]", (0, 1, 2), False),
        ([0, 8], (0, 8), False),
        ("[]", (), False),
        ("[0, 1, ...]", (0, 1), True),
        ("[0, 1, ..., 63]", (0, 1, 63), True),
        ("[0, 1, \u2026, 63]", (0, 1, 63), True),
        ("[...]", (), True),
    ],
)
def test_a_list_of_ranks_is_read_with_its_cut(text, ranks, cut):
    assert parse_ranks(text) == (ranks, cut)


@pytest.mark.parametrize(
    "text", [None, "", "0, 1", 7, "{}", "[0, x]", "[0.5]", "[0, [1]]", [0, "1"], [0.5], "[0", "[" * 100_000],
    ids=lambda text: repr(text)[:20],
)  # fmt: skip
def test_what_is_no_list_of_ranks_is_unknown(text):
    assert parse_ranks(text) == (None, False)
